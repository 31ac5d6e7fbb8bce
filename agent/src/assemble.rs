//! Puts an agent together from its configuration: memory, drivers, links.

use crate::config::{Backing as ConfiguredBacking, Config, SegmentConfig, ViewConfig};
use crate::front::LinkFront;
use crate::holder::HolderDriver;
use crate::lives::{self, Lives, Mapped};
use crate::metrics::Metrics;
use crate::node::{Node, NodeIdentity, Parts};
use crate::peers::Dialler;
use crate::rdma;
use crate::segments::{Backing, MountFailure, SegmentError, SegmentSource, Segments};
use sha2::{Digest, Sha256};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tenon_client::Transports;
use tenon_protocol::ids::{Incarnation, NodeId, SegmentId, SessionId};
use tenon_store_core::membership::{ProbeTiming, View, ViewError, ViewSource};
use tenon_store_core::objects::HolderConfig;
use tenon_store_core::placement::Policy;
use tenon_transport::link::{
    AuthError, Authenticator, BindError, Endpoint, FEATURE_RDMA, Identity, Link, LinkError, Listener, NoSecret, Role,
    Service, Serving, SharedSecret,
};
use tenon_transport::{ClusterId, Exports, PeerId};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long the agent tries to reach itself at its advertised address.
const SELF_DIAL_TIMEOUT: Duration = Duration::from_secs(3);

/// Why an agent could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An endpoint is taken or cannot be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A segment could not be mounted.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The member list makes no view.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] AuthError),
    /// Nobody, or somebody else, answers at the address that others are told.
    #[error("the advertised address {endpoint} does not lead here: {source}; {advice}")]
    Advertise {
        /// The address.
        endpoint: SocketAddr,
        /// What is to be done, as far as can be seen.
        advice: String,
        /// What happened.
        source: LinkError,
    },
    /// Mapped memory did not become a segment.
    #[error(transparent)]
    Mount(#[from] MountFailure),
    /// RDMA is required and cannot be had.
    #[error("RDMA is required by rdma.policy and cannot be used: {reason}; `tenon doctor` tells more")]
    Rdma {
        /// Why.
        reason: String,
    },
    /// The task that maps a segment failed.
    #[error("mapping segment {segment} failed: {reason}")]
    Task {
        /// Which.
        segment: SegmentId,
        /// Why.
        reason: String,
    },
}

/// A started agent.
#[derive(Debug)]
pub struct Running {
    /// The agent.
    pub node: Arc<Node>,
    /// Where its link listens.
    pub link: SocketAddr,
    /// Its unix socket.
    pub unix: Option<PathBuf>,
    stop: watch::Sender<bool>,
    listeners: Vec<JoinHandle<()>>,
}

impl Running {
    /// Stops listening, lets calls under way finish for a short time, and closes all links.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        for listener in self.listeners {
            if let Err(error) = listener.await {
                tracing::error!(%error, "a listener failed");
            }
        }
    }
}

/// Starts an agent. Tasks of links run on the current runtime, bulk data on `data`.
///
/// # Errors
/// Each part that cannot be had, by name; nothing is left running.
pub async fn start(
    config: &Config,
    node: NodeId,
    incarnation: Incarnation,
    data: &Handle,
    metrics: Arc<Metrics>,
    lives: Arc<Lives>,
) -> Result<Running, StartError> {
    let doors = Doors::open(config).await?;
    let bound = doors.bound;
    let (view, others) = view_of(config, node)?;
    let secret = match &config.cluster.secret {
        Some(source) => Some(Arc::new(SharedSecret::new(source.secret.expose())?)),
        None => None,
    };
    let advertised = config.advertised(node, bound);
    let identity = NodeIdentity {
        node,
        incarnation,
        cluster: config.cluster.id(),
        cluster_name: config.cluster.name.as_str().into(),
        endpoint: advertised.to_string(),
        member_digest: Sha256::digest(view.canonical_bytes()).into(),
        session: SessionId::from_bytes(rand::random()),
    };
    let exports = Arc::new(Exports::new());
    let segments = Arc::new(Segments::new(Arc::clone(&exports)));
    let holder = holder(config, &identity, &segments, &exports, Arc::clone(&metrics));
    let mut memories = map_segments(config, &holder, &lives).await?;
    let rails = rdma::prepare(&config.rdma, &mut memories, data).await?;
    for (segment, memory, _) in memories {
        holder.mount(segment, memory)?;
        lives.mounted(segment);
    }
    let target = rdma::target(rails.as_ref(), &exports, data)?;
    let dialler = dialler(&identity, secret.as_ref(), target.is_some());
    let transports = Transports {
        rdma: config.rdma.policy,
        rails,
        ..Transports::default()
    };
    let parts = Parts {
        identity,
        view,
        others,
        secret,
        dialler: dialler.clone(),
        timing: ProbeTiming {
            heartbeat_ms: millis(config.timeouts.heartbeat),
            unreachable_after_ms: millis(config.timeouts.unreachable_after),
        },
        placement: config.placement,
        holder,
        lives,
        exports: Arc::clone(&exports),
        metrics,
        transports,
        data: data.clone(),
    };
    let running = doors.serve(Node::start(parts), &dialler, &exports, target, data);
    if let Err(source) = reach_oneself(&dialler, advertised).await {
        running.stop().await;
        return Err(StartError::Advertise {
            endpoint: advertised,
            advice: advice(config, node, (advertised, bound), &source),
            source,
        });
    }
    Ok(running)
}

/// The bound endpoints, before anybody is served.
struct Doors {
    link: Listener,
    bound: SocketAddr,
    unix: Option<(Listener, PathBuf)>,
}

impl Doors {
    async fn open(config: &Config) -> Result<Self, BindError> {
        let link = Listener::bind(&Endpoint::Tcp(config.listen.link)).await?;
        let Endpoint::Tcp(bound) = *link.local_endpoint() else {
            unreachable!("a TCP listener has a TCP endpoint")
        };
        let unix = match &config.listen.unix {
            Some(path) => Some((Listener::bind(&Endpoint::Unix(path.clone())).await?, path.clone())),
            None => None,
        };
        Ok(Self { link, bound, unix })
    }

    /// Serves a node: members and clients that prove the secret at the link, clients of this host at the unix socket.
    fn serve(
        self,
        node: Arc<Node>,
        dialler: &Dialler,
        exports: &Arc<Exports>,
        rdma: Option<Arc<dyn Service>>,
        data: &Handle,
    ) -> Running {
        let serving = |auth: Arc<dyn Authenticator>, local, members| {
            let front = Arc::new(LinkFront::new(Arc::clone(&node), local, members));
            Serving {
                identity: Arc::clone(&dialler.identity),
                auth,
                admission: Arc::clone(&front) as _,
                service: front,
                exports: Arc::clone(exports),
                rdma: rdma.clone(),
                data_runtime: data.clone(),
            }
        };
        let (stop, stopped) = watch::channel(false);
        let is_local = self.link.local_endpoint().is_local();
        let at_link = serving(Arc::clone(&dialler.auth), is_local, true);
        let mut listeners = vec![tokio::spawn(self.link.serve(at_link, stopped.clone()))];
        let unix = self.unix.map(|(listener, path)| {
            let at_socket = serving(Arc::new(NoSecret), true, false);
            listeners.push(tokio::spawn(listener.serve(at_socket, stopped)));
            path
        });
        Running {
            node,
            link: self.bound,
            unix,
            stop,
            listeners,
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The view, and the endpoints of the other members.
fn view_of(config: &Config, own: NodeId) -> Result<(View, Vec<(NodeId, Endpoint)>), ViewError> {
    match &config.cluster.view {
        ViewConfig::Standalone => Ok((View::standalone(own), Vec::new())),
        ViewConfig::Static { members, .. } => {
            let view = View::new(
                ViewSource::Static,
                1,
                members.iter().map(|member| member.node).collect(),
            )?;
            let others = members.iter().filter(|member| member.node != own);
            Ok((
                view,
                others
                    .map(|member| (member.node, Endpoint::Tcp(member.endpoint)))
                    .collect(),
            ))
        }
    }
}

fn dialler(identity: &NodeIdentity, secret: Option<&Arc<SharedSecret>>, has_rdma: bool) -> Dialler {
    let auth: Arc<dyn Authenticator> = match secret {
        Some(secret) => Arc::clone(secret) as _,
        None => Arc::new(NoSecret),
    };
    let dialling = Identity {
        cluster: ClusterId(identity.cluster.to_bytes()),
        role: Role::Member,
        peer: PeerId(identity.node.to_bytes()),
        incarnation: identity.incarnation.0,
        session: tenon_transport::SessionId(identity.session.to_bytes()),
        features: if has_rdma { FEATURE_RDMA } else { 0 },
        context: identity.member_digest,
    };
    Dialler {
        identity: Arc::new(dialling),
        cluster_name: Arc::clone(&identity.cluster_name),
        auth,
    }
}

/// Maps all segments, in parallel, off the runtime's workers.
async fn map_segments(config: &Config, holder: &HolderDriver, lives: &Lives) -> Result<Vec<Mapped>, StartError> {
    let mut mapping = Vec::with_capacity(config.segments.len());
    for configured in &config.segments {
        let segment = holder.new_segment_id()?;
        let mounting = lives.begin(segment, source_of(configured));
        let task = Arc::clone(&mounting);
        mapping.push((
            segment,
            mounting,
            tokio::spawn(async move { lives::map(segment, &task).await }),
        ));
    }
    let mut memories = Vec::with_capacity(mapping.len());
    for (segment, mounting, memory) in mapping {
        let failed = |error: tokio::task::JoinError| StartError::Task {
            segment,
            reason: error.to_string(),
        };
        let memory = memory.await.map_err(failed)?.map_err(failed)??;
        memories.push((segment, memory, mounting));
    }
    Ok(memories)
}

fn holder(
    config: &Config,
    identity: &NodeIdentity,
    segments: &Arc<Segments>,
    exports: &Arc<Exports>,
    metrics: Arc<Metrics>,
) -> Arc<HolderDriver> {
    HolderDriver::new(
        HolderConfig {
            node: identity.node,
            incarnation: identity.incarnation,
            cluster: identity.cluster,
            reservation_ttl_ms: u32::try_from(millis(config.timeouts.reservation_ttl)).unwrap_or(u32::MAX),
            policy: Policy {
                strategy: config.placement.strategy,
                fallback: config.placement.fallback,
            },
            eviction: config.eviction.in_use(),
        },
        Arc::clone(segments),
        Arc::clone(exports),
        metrics,
    )
}

fn source_of(segment: &SegmentConfig) -> SegmentSource {
    let backing = match &segment.backing {
        ConfiguredBacking::Memfd(huge_pages) => Backing::Memfd(*huge_pages),
        ConfiguredBacking::File(path) => Backing::File(path.clone()),
    };
    SegmentSource {
        len_bytes: segment.len_bytes,
        slots: segment.slots,
        backing,
    }
}

/// Others will dial the advertised address and expect this node: make sure now that they will find it.
async fn reach_oneself(dialler: &Dialler, advertised: SocketAddr) -> Result<(), LinkError> {
    // A session of its own: the end of the agent's session would end its puts.
    let identity = Identity {
        role: Role::Client,
        session: tenon_transport::SessionId(rand::random()),
        ..(*dialler.identity).clone()
    };
    let deadline = Instant::now() + SELF_DIAL_TIMEOUT;
    let link = Link::dial(
        &Endpoint::Tcp(advertised),
        &identity,
        &*dialler.auth,
        Some(identity.peer),
        deadline,
    )
    .await?;
    link.close();
    Ok(())
}

/// Why the advertised address may lead nowhere, or to somebody else.
fn advice(config: &Config, node: NodeId, (advertised, bound): (SocketAddr, SocketAddr), found: &LinkError) -> String {
    let is_listed = config.listen.advertise.is_none() && config.own_member(node).is_some();
    let is_bound_elsewhere =
        bound.port() != advertised.port() || !(bound.ip().is_unspecified() || bound.ip() == advertised.ip());
    match found {
        LinkError::WrongPeer { found, .. } if is_listed => {
            format!(
                "there is node {found}: the member list does not give each node its own endpoint, so make it right on every member"
            )
        }
        _ if is_listed && is_bound_elsewhere => {
            format!("the member list gives this node that endpoint, and listen.link is {bound}: make both the same")
        }
        _ if is_listed => {
            "the member list gives this node that endpoint: correct it on every member, or open the way there"
                .to_owned()
        }
        _ => "set listen.advertise to an address that other nodes can reach".to_owned(),
    }
}

//! One running agent: everything that its fronts and drivers share.

use crate::config::PlacementConfig;
use crate::embedded;
use crate::evict::Untold;
use crate::holder::{HolderDriver, Owner};
use crate::home::HomeDriver;
use crate::limits::ROOM_NEWS_TIMEOUT;
use crate::lives::Lives;
use crate::metrics::Metrics;
use crate::peers::{Dialler, OnNews, Peers, other_answer};
use crate::publish::Publisher;
use crate::rooms::{Rooms, told};
use crate::sessions::Sessions;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tenon_client::{Client, Transports};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{ClusterId, Incarnation, NodeId, SessionId};
use tenon_protocol::member::{Heartbeat, MemberReply, MemberRequest};
use tenon_protocol::message::{Alarm, Reply, Request};
use tenon_protocol::name::Namespace;
use tenon_protocol::placement::{FitHint, PlacementPolicy};
use tenon_store_core::directory::Event;
use tenon_store_core::membership::{IndexCache, IndexNodes, ProbeTiming, View};
use tenon_store_core::placement::nodes::NodePolicy;
use tenon_transport::Exports;
use tenon_transport::link::{Endpoint, SharedSecret};
use tenon_transport::verbs::engine::Rails;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Who this agent is, in this life.
#[derive(Debug, Clone)]
pub struct NodeIdentity {
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its cluster.
    pub cluster: ClusterId,
    /// What people call its cluster.
    pub cluster_name: Arc<str>,
    /// Its link's advertised endpoint.
    pub endpoint: String,
    /// The digest of its member list.
    pub member_digest: [u8; 32],
    /// The session of its own transfers.
    pub session: SessionId,
}

/// The parts of an agent, put together by `startup`.
#[derive(Debug)]
pub struct Node {
    identity: NodeIdentity,
    view: View,
    index: Mutex<IndexCache>,
    secret: Option<Arc<SharedSecret>>,
    peers: Peers,
    sessions: Sessions,
    holder: Arc<HolderDriver>,
    homes: HomeDriver,
    publisher: Publisher,
    untold_evictions: Untold,
    rooms: Arc<Rooms>,
    policy: PlacementPolicy,
    metrics: Arc<Metrics>,
    client: Client,
    draining: AtomicBool,
    /// Devices that segments are registered with.
    rails: Option<Arc<Rails>>,
    lives: Arc<Lives>,
}

/// What a node is put together from.
pub(crate) struct Parts {
    /// Who it is.
    pub identity: NodeIdentity,
    /// The member list.
    pub view: View,
    /// The other members' endpoints.
    pub others: Vec<(NodeId, Endpoint)>,
    /// The cluster's secret.
    pub secret: Option<Arc<SharedSecret>>,
    /// How it dials.
    pub dialler: Dialler,
    /// How members are probed.
    pub timing: ProbeTiming,
    /// How it places.
    pub placement: PlacementConfig,
    /// Its objects.
    pub holder: Arc<HolderDriver>,
    /// Its segments that are not simply in use.
    pub lives: Arc<Lives>,
    /// What its memory is exported by.
    pub exports: Arc<Exports>,
    /// Its counters.
    pub metrics: Arc<Metrics>,
    /// How it connects to other holders.
    pub transports: Transports,
    /// Where bulk data runs.
    pub data: Handle,
}

impl Node {
    /// Puts a node together and starts what it does by itself: heartbeats and the passing of time.
    pub(crate) fn start(parts: Parts) -> Arc<Self> {
        let Parts {
            identity,
            view,
            others,
            secret,
            dialler,
            timing,
            placement,
            holder,
            lives,
            exports,
            metrics,
            transports,
            data,
        } = parts;
        metrics.watch_transports(&transports);
        let rails = transports.rails.clone();
        let nodes = NodePolicy {
            affinity: placement.affinity,
            local_until_percent: placement.local_until_percent,
        };
        let rooms = Arc::new(Rooms::new(nodes, identity.node, others.iter().map(|(node, _)| *node)));
        let node = Arc::new_cyclic(|me: &Weak<Self>| {
            let homes = Weak::clone(me);
            let on_news: OnNews = Arc::new(move |event| {
                if let Some(me) = homes.upgrade() {
                    me.tell_homes(event);
                }
            });
            let peers = Peers::new(others, &dialler, timing, &on_news, &rooms);
            let client = embedded::client(me, &identity, &holder, exports, &dialler, (transports, data));
            Self {
                homes: HomeDriver::new(identity.node, identity.incarnation, timing.pause_ms()),
                publisher: Publisher::default(),
                untold_evictions: Untold::default(),
                policy: PlacementPolicy {
                    affinity: placement.affinity.to_string(),
                    local_until_percent: placement.local_until_percent,
                    strategy: placement.strategy.to_string(),
                    fallback: placement.fallback.to_string(),
                },
                rooms,
                identity,
                view,
                index: Mutex::default(),
                secret,
                peers,
                sessions: Sessions::default(),
                holder,
                metrics,
                client,
                draining: AtomicBool::new(false),
                rails,
                lives,
            }
        });
        let me = Arc::clone(&node);
        let members = node.view.members().to_vec();
        node.tell_homes(Event::View { members });
        // What an earlier life of this node held is gone too, whoever hands it over.
        node.tell_homes(Event::Life {
            node: node.id(),
            incarnation: node.incarnation(),
        });
        node.peers.start(move |member| me.heartbeat(member));
        tokio::spawn(Arc::clone(&node).tick_for_ever());
        tokio::spawn(Arc::clone(&node).evict_for_ever());
        node
    }

    /// This agent as its own client: whole objects, by the code that programs use.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Why this node should not be given work: empty if it is ready.
    pub fn unready(&self) -> Vec<String> {
        let mut reasons: Vec<String> = self.peers.refusals().map(|(_, reason)| reason).collect();
        let counts = self.homes.counts();
        if counts.unannounced > 0 {
            let members = counts.unannounced;
            reasons.push(format!("{members} members have not announced yet what they hold"));
        }
        if counts.out_of_step > 0 {
            let partners = counts.out_of_step;
            reasons.push(format!(
                "{partners} members have not handed over yet what they keep of shared keys"
            ));
        }
        if self.is_draining() {
            reasons.push("the node is draining".to_owned());
        }
        reasons
    }

    /// What an operator should look at.
    pub fn alarms(&self) -> Vec<Alarm> {
        self.peers.alarms()
    }

    /// From now on no put is placed here; everything else goes on.
    pub fn drain(self: &Arc<Self>) {
        self.draining.store(true, Ordering::Relaxed);
        self.rooms.set_usable(self.id(), false);
        self.room_changed();
    }

    /// The room here has changed by more than puts and evictions do: members are told at once.
    pub(crate) fn room_changed(self: &Arc<Self>) {
        self.rooms.hear(self.id(), &self.fit_hint());
        for member in self.peers.ids().filter(|member| self.peers.is_reachable(*member)) {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let (call, deadline) = (
                    MemberRequest::Heartbeat(node.heartbeat(member)),
                    Instant::now() + ROOM_NEWS_TIMEOUT,
                );
                if let Err(error) = node
                    .peers
                    .call(member, call, deadline, "it is told of the room here")
                    .await
                {
                    tracing::debug!(%member, %error, "a member hears of the room here with the next heartbeat");
                }
            });
        }
    }

    /// The devices that segments are registered with.
    pub(crate) fn rails(&self) -> Option<&Arc<Rails>> {
        self.rails.as_ref()
    }

    /// The segments that are not simply in use.
    pub(crate) fn lives(&self) -> &Lives {
        &self.lives
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// This node's id.
    pub fn id(&self) -> NodeId {
        self.identity.node
    }

    /// This node's life.
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.identity.cluster
    }

    /// The name of the cluster.
    pub(crate) fn cluster_name(&self) -> &str {
        &self.identity.cluster_name
    }

    /// This node's advertised link endpoint.
    pub fn endpoint(&self) -> &str {
        &self.identity.endpoint
    }

    /// The digest of this node's member list.
    pub(crate) fn member_digest(&self) -> [u8; 32] {
        self.identity.member_digest
    }

    /// The session of this agent's own transfers.
    pub(crate) fn own_session(&self) -> SessionId {
        self.identity.session
    }

    /// The member list.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The nodes among which the homes of a namespace's keys are.
    pub(crate) fn index_nodes(&self, namespace: &Namespace) -> IndexNodes {
        self.index.lock().index_nodes(&self.view, namespace).clone()
    }

    pub(crate) fn secret(&self) -> Option<&SharedSecret> {
        self.secret.as_deref()
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    pub(crate) fn holder(&self) -> &Arc<HolderDriver> {
        &self.holder
    }

    pub(crate) fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    pub(crate) fn untold_evictions(&self) -> &Untold {
        &self.untold_evictions
    }

    pub(crate) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    pub(crate) fn placement_policy(&self) -> &PlacementPolicy {
        &self.policy
    }

    /// What this node says of its room.
    pub(crate) fn fit_hint(&self) -> FitHint {
        let hint = told(self.holder.hint());
        if self.is_draining() {
            return FitHint {
                free_bytes: 0,
                largest_free_upper_bound_bytes: 0,
                ..hint
            };
        }
        hint
    }

    pub(crate) fn homes(&self) -> &HomeDriver {
        &self.homes
    }

    /// The counters.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// The life in which a member was last seen; this node's own.
    pub(crate) fn known_incarnation(&self, node: NodeId) -> Option<Incarnation> {
        if node == self.id() {
            Some(self.incarnation())
        } else {
            self.peers.incarnation(node)
        }
    }

    /// Whether a member is worth asking.
    pub(crate) fn is_reachable(&self, node: NodeId) -> bool {
        node == self.id() || self.peers.is_reachable(node)
    }

    pub(crate) fn unknown_node(&self, node: NodeId) -> ServiceError {
        let message = format!("node {node} is no member of the view; `tenon nodes` lists the members");
        ServiceError::new(ErrorCode::UnknownNode, message)
    }

    /// Asks a member to serve a client's call from its own memory.
    pub(crate) async fn on_behalf(
        &self,
        node: NodeId,
        session: Option<SessionId>,
        request: Request,
        deadline: Instant,
    ) -> Result<Reply, ServiceError> {
        match self.on_behalf_hinted(node, session, request, deadline).await? {
            (Reply::Failed(error), _) => Err(error),
            (reply, _) => Ok(reply),
        }
    }

    /// The same, with the room of the member after it. A member that answers that the call failed has answered.
    pub(crate) async fn on_behalf_hinted(
        &self,
        node: NodeId,
        session: Option<SessionId>,
        request: Request,
        deadline: Instant,
    ) -> Result<(Reply, FitHint), ServiceError> {
        let call = MemberRequest::OnBehalf {
            session,
            request: Box::new(request),
        };
        self.served(node, call, deadline).await
    }

    /// Has a member serve a call that is answered by [`MemberReply::OnBehalf`].
    pub(crate) async fn served(
        &self,
        node: NodeId,
        call: MemberRequest,
        deadline: Instant,
    ) -> Result<(Reply, FitHint), ServiceError> {
        match self
            .peers
            .call(node, call, deadline, "it was to serve a part of the call")
            .await?
        {
            MemberReply::OnBehalf { reply, hint } if hint.is_sound() => {
                self.rooms.hear(node, &hint);
                Ok((*reply, hint))
            }
            _ => Err(other_answer()),
        }
    }

    /// Asks a member why it would not set regions of these lengths aside, and for its room; `None` of those that it might.
    pub(crate) async fn look(
        &self,
        node: NodeId,
        lens_bytes: Vec<u64>,
        deadline: Instant,
    ) -> Result<(Vec<Option<ServiceError>>, FitHint), ServiceError> {
        let call = MemberRequest::Look { lens_bytes };
        match self
            .peers
            .call(node, call, deadline, "it was asked for its room")
            .await?
        {
            MemberReply::Look { refusals, hint } if hint.is_sound() => {
                self.rooms.hear(node, &hint);
                Ok((refusals, hint))
            }
            _ => Err(other_answer()),
        }
    }

    /// What this node says of itself to a member once per heartbeat.
    pub(crate) fn heartbeat(&self, member: NodeId) -> Heartbeat {
        Heartbeat {
            incarnation: self.incarnation(),
            version: crate::VERSION.to_owned(),
            is_draining: self.is_draining(),
            space: self.holder.space(),
            untold_keys: self.homes.untold_keys(member),
            hint: self.fit_hint(),
        }
    }

    /// A link of a client has ended. With the last one, its reservations that have no commit in progress end here and
    /// at the other holders.
    pub(crate) fn client_gone(self: &Arc<Self>, session: SessionId) {
        let Some(holders) = self.sessions.closed(session) else {
            return;
        };
        self.holder.session_ended(Owner {
            coordinator: self.id(),
            session,
        });
        for holder in holders {
            let node = Arc::clone(self);
            tokio::spawn(async move {
                let deadline = Instant::now() + crate::limits::SESSION_END_RELAY;
                let call = MemberRequest::SessionEnded { session };
                if let Err(error) = node
                    .peers
                    .call(holder, call, deadline, "a client's session has ended")
                    .await
                {
                    tracing::info!(%holder, %session, %error, "the end of a session was not relayed; its reservations there run out");
                }
            });
        }
    }

    /// The passing of time: reservations run out, outcomes are forgotten, homes answer what waits too long.
    pub(crate) async fn tick_for_ever(self: Arc<Self>) {
        let mut every = tokio::time::interval(crate::limits::TICK_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            self.holder.tick();
            self.tick_homes();
        }
    }
}

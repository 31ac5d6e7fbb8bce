//! The way to each peer.

mod rdma;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use tenon_protocol::codec;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{NodeState, NodesReply, Reply, Request};
use tenon_transport::link::{
    Authenticator, Endpoint, FEATURE_RDMA, Identity, Link, LinkError, NoSecret, Role, SharedSecret,
};
use tenon_transport::{ClusterId, PeerId, SessionId};
use tokio::time::Instant;

use crate::cli::doctor::facts::{Agent, AgentState, Configuration, Outcome, Peer, Reach};
use crate::cli::limits::{DOCTOR_CALLS, DOCTOR_PEERS_AT_ONCE};
use crate::cli::session::Session;
use crate::config::{Config, Member, ViewConfig};
use crate::refusals;

/// Dials every member but this node.
pub(super) async fn reach(
    session: &Session,
    (configuration, config): (&Configuration, Option<&Config>),
    agent: &Agent,
) -> Vec<Peer> {
    let own = own_node(configuration, agent);
    let Some((config, members)) = config.and_then(|config| Some((config, listed(config)?))) else {
        return Vec::new();
    };
    let dialler = Dialler::new(session, config, members, configuration.secret_error.is_some());
    let others = members.iter().filter(|member| Some(member.node) != own);
    let rails = &rdma::Devices::open(&config.rdma).await;
    let peers = others.map(|member| async {
        let transports = match &dialler {
            Ok(dialler) => dialler.dial(member, rails).await,
            Err(why) => vec![over_tcp(Outcome::NotTried { why: why.clone() })],
        };
        Peer {
            node: member.node,
            endpoint: member.endpoint.to_string(),
            agent_sees: seen_by(agent, member.node),
            transports,
        }
    });
    stream::iter(peers.collect::<Vec<_>>())
        .buffered(DOCTOR_PEERS_AT_ONCE)
        .collect()
        .await
}

/// Which node this host's is: as its state directory has it, else as its agent says.
fn own_node(configuration: &Configuration, agent: &Agent) -> Option<NodeId> {
    let stored = configuration.node.get().copied().flatten();
    stored.or(match &agent.state {
        AgentState::Answers(answer) => answer.node,
        _ => None,
    })
}

fn listed(config: &Config) -> Option<&[Member]> {
    match &config.cluster.view {
        ViewConfig::Standalone => None,
        ViewConfig::Static { members, .. } => Some(members),
    }
}

fn seen_by(agent: &Agent, node: NodeId) -> Option<NodeState> {
    let AgentState::Answers(answer) = &agent.state else {
        return None;
    };
    let seen = answer.members.iter().find(|(member, _)| *member == node);
    seen.map(|(_, state)| *state)
}

fn over_tcp(outcome: Outcome) -> Reach {
    Reach {
        transport: "tcp",
        outcome,
    }
}

/// Microseconds since a moment.
pub(super) fn micros(since: Instant) -> u64 {
    whole_micros(since.elapsed())
}

fn whole_micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Dials as `tenond` does, but as a client: a second member under this node's id would disturb the first.
struct Dialler<'a> {
    session: &'a Session,
    cluster: ClusterId,
    cluster_name: String,
    auth: Arc<dyn Authenticator>,
    patience: Duration,
    members: &'a [Member],
}

impl<'a> Dialler<'a> {
    fn new(session: &'a Session, config: &Config, members: &'a [Member], lacks_secret: bool) -> Result<Self, String> {
        let named = session.secret().map_err(|failure| failure.line())?;
        let configured = config.cluster.secret.as_ref().map(|source| &source.secret);
        let auth: Arc<dyn Authenticator> = match named.as_ref().or(configured) {
            Some(secret) => Arc::new(SharedSecret::new(secret.expose()).map_err(|error| error.to_string())?),
            None if lacks_secret => return Err("the cluster's secret cannot be read here".to_owned()),
            None => Arc::new(NoSecret),
        };
        Ok(Self {
            session,
            cluster: ClusterId(config.cluster.id().to_bytes()),
            cluster_name: config.cluster.name.clone(),
            auth,
            patience: config.timeouts.unreachable_after,
            members,
        })
    }

    /// Over TCP, and over RDMA if this host is to use it and the peer answers.
    async fn dial(&self, member: &Member, rails: &rdma::Devices) -> Vec<Reach> {
        match self.measure(member).await {
            Ok((outcome, features)) => {
                let over_rdma = rails.reach(self, member, features & FEATURE_RDMA != 0).await;
                [Some(over_tcp(outcome)), over_rdma].into_iter().flatten().collect()
            }
            Err(error) => vec![over_tcp(failed(&error, &self.cluster_name))],
        }
    }

    fn deadline(&self) -> Instant {
        self.session.deadline(0).min(Instant::now() + self.patience)
    }

    fn identity(&self) -> Identity {
        Identity {
            cluster: self.cluster,
            role: Role::Client,
            peer: PeerId(rand::random()),
            incarnation: 0,
            session: SessionId(rand::random()),
            features: 0,
            context: [0; 32],
        }
    }

    /// What came of it, and the peer's feature bits.
    async fn measure(&self, member: &Member) -> Result<(Outcome, u64), LinkError> {
        let (deadline, identity) = (self.deadline(), self.identity());
        let started = Instant::now();
        let expect = Some(PeerId(member.node.to_bytes()));
        let link = Link::dial(
            &Endpoint::Tcp(member.endpoint),
            &identity,
            &*self.auth,
            expect,
            deadline,
        )
        .await?;
        let connect_us = micros(started);
        let reply = nodes(&link.call(nodes_request()?, deadline).await?)?;
        let mut round_trip_us = u64::MAX;
        for _ in 0..DOCTOR_CALLS {
            let started = Instant::now();
            link.call(nodes_request()?, deadline).await?;
            round_trip_us = round_trip_us.min(micros(started));
        }
        let own = reply.nodes.iter().find(|node| node.is_self);
        let theirs: BTreeSet<NodeId> = reply.nodes.iter().map(|node| node.node).collect();
        let ours: BTreeSet<NodeId> = self.members.iter().map(|member| member.node).collect();
        let outcome = Outcome::Reached {
            connect_us,
            round_trip_us,
            version: own.and_then(|own| own.version.clone()),
            same_members: theirs == ours,
            only_there: theirs.difference(&ours).copied().collect(),
            only_here: ours.difference(&theirs).copied().collect(),
        };
        Ok((outcome, link.remote().features))
    }
}

fn nodes_request() -> Result<Bytes, LinkError> {
    codec::encode(&Request::Nodes).map(Bytes::from).map_err(protocol)
}

fn nodes(bytes: &[u8]) -> Result<NodesReply, LinkError> {
    match codec::decode::<Reply>(bytes).map_err(protocol)? {
        Reply::Nodes(reply) => Ok(reply),
        Reply::Failed(error) => Err(LinkError::Protocol {
            reason: error.to_string(),
        }),
        _ => Err(LinkError::Protocol {
            reason: "another question was answered than was asked".to_owned(),
        }),
    }
}

fn protocol(error: codec::CodecError) -> LinkError {
    LinkError::Protocol {
        reason: error.to_string(),
    }
}

/// What a failure says of the peer.
fn failed(error: &LinkError, cluster: &str) -> Outcome {
    let said = refusals::told(error, cluster);
    match error {
        LinkError::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
            Outcome::NobodyListens { said }
        }
        LinkError::Connect { .. } | LinkError::Io { .. } | LinkError::Deadline { .. } | LinkError::Closed { .. } => {
            Outcome::Silent { said }
        }
        _ => Outcome::Refused { said },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_tell_an_empty_port_a_silent_host_and_a_refusal_apart() {
        let connect = |kind: io::ErrorKind| LinkError::Connect {
            endpoint: "127.0.0.1:1".parse().unwrap(),
            source: kind.into(),
        };
        let refused = LinkError::Unauthenticated { reason: "no".into() };
        assert!(matches!(
            failed(&connect(io::ErrorKind::ConnectionRefused), "tenon"),
            Outcome::NobodyListens { .. }
        ));
        assert!(matches!(
            failed(&connect(io::ErrorKind::NetworkUnreachable), "tenon"),
            Outcome::Silent { .. }
        ));
        assert!(matches!(
            failed(&LinkError::Deadline { during: "a call" }, "tenon"),
            Outcome::Silent { .. }
        ));
        assert!(matches!(failed(&refused, "tenon"), Outcome::Refused { .. }));
    }
}

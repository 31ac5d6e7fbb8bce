//! Whether transfers go over RDMA or over TCP.

use crate::link_control::{Peer, dial_error};
use crate::rdma_failures::{Failure, RdmaFailures, Retry};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_transport::link::{Authenticator, Endpoint, FEATURE_RDMA, Identity};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::verbs::engine::{Rails, RdmaConnection};
use tenon_transport::{Connection, PeerId};
use tokio::time::Instant;

/// Whether transfers may, must or must not go over RDMA.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RdmaPolicy {
    /// Over RDMA where both ends have it and it works, else over TCP; each change is counted and logged.
    #[default]
    Prefer,
    /// Over RDMA alone: where it can't be had, transfers fail by `rdma_required`.
    Require,
    /// Over TCP alone: no device is opened.
    Forbid,
}

impl RdmaPolicy {
    /// All of them, with their names.
    pub const NAMED: [(&'static str, Self); 3] = [
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("forbid", Self::Forbid),
    ];
}

impl fmt::Display for RdmaPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.iter().find(|(_, policy)| policy == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for RdmaPolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMED.iter().find(|(known, _)| *known == name);
        named
            .map(|(_, policy)| *policy)
            .ok_or_else(|| "one of prefer, require, forbid".to_owned())
    }
}

/// What connections to holders were made of, since the start.
#[derive(Debug, Default)]
pub struct TransportCounts {
    /// Connections over RDMA.
    pub rdma: AtomicU64,
    /// Connections over TCP.
    pub tcp: AtomicU64,
    /// Of which because RDMA, which both ends have, did not work.
    pub fallbacks: AtomicU64,
}

/// How connections to holders are set up.
#[derive(Debug, Clone, Default)]
pub struct Transports {
    /// Over TCP.
    pub tcp: TcpOptions,
    /// When over RDMA.
    pub rdma: RdmaPolicy,
    /// The devices of this process, if it has opened some.
    pub rails: Option<Arc<Rails>>,
    /// Counts what is made.
    pub counts: Arc<TransportCounts>,
}

/// Where a holder is, and what it takes to dial it.
pub(crate) struct Dial<'a> {
    pub(crate) node: NodeId,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) identity: &'a Identity,
    pub(crate) auth: &'a Arc<dyn Authenticator>,
    /// The holder's own feature bits.
    pub(crate) features: u64,
}

/// A connection to a holder.
pub(crate) struct Connected {
    pub(crate) connection: Arc<dyn Connection>,
    /// RDMA did not work, and is worth trying again some time.
    pub(crate) retry: Option<Retry>,
}

impl Transports {
    /// Connects to a holder as the policy says.
    pub(crate) async fn connect(
        &self,
        dial: &Dial<'_>,
        failures: &RdmaFailures,
        deadline: Instant,
    ) -> Result<Connected, ServiceError> {
        let has_rdma = dial.features & FEATURE_RDMA != 0;
        let rails = self
            .rails
            .as_ref()
            .filter(|_| self.rdma != RdmaPolicy::Forbid && has_rdma);
        let mut failure = None;
        if let Some(rails) = rails {
            // Before it is tried: what changes meanwhile is another reason to try again.
            let seen = Failure::before(rails);
            match self.over_rdma(rails, dial, deadline).await {
                Ok(connection) => {
                    failures.end(dial.node);
                    let retry = None;
                    return Ok(Connected { connection, retry });
                }
                Err(reason) => failure = Some(Failure { reason, ..seen }),
            }
        }
        if self.rdma == RdmaPolicy::Require {
            let reason = failure.map_or_else(|| self.missing(has_rdma).to_owned(), |failure| failure.reason);
            let message = format!(
                "node {} is not reached over RDMA, which is required: {reason}",
                dial.node
            );
            return Err(ServiceError::new(ErrorCode::RdmaRequired, message));
        }
        let peer = Some(PeerId(dial.node.to_bytes()));
        let auth = Arc::clone(dial.auth);
        let connection = TcpConnection::open(dial.endpoint, dial.identity, auth, peer, self.tcp, deadline).await;
        let connection = connection.map_err(|error| dial_error(&error, &Peer::Holder(dial.node)))?;
        self.counts.tcp.fetch_add(1, Ordering::Relaxed);
        let retry = failure.map(|failure| {
            self.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
            failures.note(dial.node, failure)
        });
        Ok(Connected { connection, retry })
    }

    async fn over_rdma(
        &self,
        rails: &Arc<Rails>,
        dial: &Dial<'_>,
        deadline: Instant,
    ) -> Result<Arc<dyn Connection>, String> {
        if rails.names().next().is_none() {
            return Err(rails.unused().join("; "));
        }
        // What is left must do for TCP.
        let deadline = deadline.min(Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2);
        let peer = Some(PeerId(dial.node.to_bytes()));
        let opened = RdmaConnection::open(rails, dial.endpoint, dial.identity, &**dial.auth, peer, deadline).await;
        let connection = opened.map_err(|error| error.to_string())?;
        self.counts.rdma.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(node = %dial.node, "transfers go over RDMA");
        Ok(connection)
    }

    fn missing(&self, has_rdma: bool) -> &'static str {
        match (&self.rails, has_rdma) {
            (None, _) => "this side uses no RDMA device",
            (Some(_), false) => "it uses no RDMA device",
            (Some(_), true) => "the policy of this side forbids it",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names() {
        for (name, policy) in RdmaPolicy::NAMED {
            assert_eq!((name.parse(), policy.to_string()), (Ok(policy), name.to_owned()));
        }
        assert!("always".parse::<RdmaPolicy>().is_err());
    }
}

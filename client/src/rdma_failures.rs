//! Holders that RDMA, which both ends have, does not reach: what stays as it was is logged once, and tried ever less often.

use crate::limits::{HOLDERS_MAX, RDMA_RETRY_MAX_MS, RDMA_RETRY_MIN_MS};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::ids::NodeId;
use tenon_transport::verbs::engine::Rails;
use tokio::time::Instant;

/// That RDMA did not work, so that transfers go over TCP.
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) rails: Arc<Rails>,
    /// Of this side's ports before it was tried.
    pub(crate) revision: u64,
    /// Whether one of them was up.
    pub(crate) has_port: bool,
}

impl Failure {
    /// What is known before it is tried.
    pub(crate) fn before(rails: &Arc<Rails>) -> Self {
        Self {
            reason: String::new(),
            revision: rails.revision(),
            has_port: rails.names().next().is_some(),
            rails: Arc::clone(rails),
        }
    }
}

/// When RDMA, which did not work, is worth trying again: after some time, or when a port of this side went up or down.
#[derive(Debug)]
pub(crate) struct Retry {
    /// `None`: no port of this side was up, so time alone changes nothing.
    at: Option<Instant>,
    rails: Arc<Rails>,
    revision: u64,
}

impl Retry {
    /// Whether it is now.
    pub(crate) fn is_due(&self) -> bool {
        self.at.is_some_and(|at| Instant::now() >= at) || self.rails.revision() != self.revision
    }
}

/// How RDMA failed the last time, by holder.
#[derive(Debug, Default)]
pub(crate) struct RdmaFailures {
    holders: Mutex<HashMap<NodeId, Last>>,
}

#[derive(Debug)]
struct Last {
    reason: String,
    revision: u64,
    pause_ms: u64,
}

impl RdmaFailures {
    /// It failed; says when it is worth trying again.
    pub(crate) fn note(&self, node: NodeId, failure: Failure) -> Retry {
        let Failure {
            reason,
            rails,
            revision,
            has_port,
        } = failure;
        let (is_news, pause) = self.pause(node, &reason, revision);
        match is_news {
            true => tracing::warn!(%node, reason, "RDMA does not work, transfers go over TCP"),
            false => tracing::debug!(%node, reason, "RDMA still does not work"),
        }
        Retry {
            at: has_port.then(|| Instant::now() + pause),
            rails,
            revision,
        }
    }

    /// It works.
    pub(crate) fn end(&self, node: NodeId) {
        if self.holders.lock().remove(&node).is_some() {
            tracing::info!(%node, "RDMA works again");
        }
    }

    /// Whether it failed for another reason than the last time, and the pause before the next try.
    fn pause(&self, node: NodeId, reason: &str, revision: u64) -> (bool, Duration) {
        let mut holders = self.holders.lock();
        if holders.len() >= HOLDERS_MAX && !holders.contains_key(&node) {
            holders.clear();
        }
        let last = holders.get(&node);
        let is_news = last.is_none_or(|last| last.reason != reason);
        let pause_ms = match last {
            Some(last) if last.revision == revision => (2 * last.pause_ms).min(RDMA_RETRY_MAX_MS),
            _ => RDMA_RETRY_MIN_MS,
        };
        let reason = reason.to_owned();
        holders.insert(
            node,
            Last {
                reason,
                revision,
                pause_ms,
            },
        );
        (is_news, Duration::from_millis(pause_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId::from_bytes([1; 16]);

    #[test]
    fn what_fails_alike_is_news_once_and_tried_ever_less_often_until_a_port_changes() {
        let failures = RdmaFailures::default();
        let noted = |reason: &str, revision| {
            let (is_news, pause) = failures.pause(NODE, reason, revision);
            (is_news, pause.as_secs())
        };
        let all: Vec<_> = (0..6).map(|_| noted("no port", 1)).collect();
        assert_eq!(
            all,
            [
                (true, 30),
                (false, 60),
                (false, 120),
                (false, 240),
                (false, 480),
                (false, 480)
            ]
        );
        assert_eq!(noted("no port", 2), (false, 30), "it is tried sooner");
        assert_eq!(noted("no path", 2), (true, 60), "it is another reason");
        failures.end(NODE);
        assert_eq!(noted("no path", 2), (true, 30), "it worked in between");
    }

    #[test]
    fn one_holder_says_nothing_of_another() {
        let failures = RdmaFailures::default();
        failures.pause(NODE, "no port", 1);
        let other = NodeId::from_bytes([2; 16]);
        assert_eq!(failures.pause(other, "no port", 1), (true, Duration::from_secs(30)));
    }
}

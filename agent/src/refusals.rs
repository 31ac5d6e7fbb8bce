//! What is said where nodes do not let each other in: names where the link has ids, both member lists where they differ,
//! and the same failure of a host not again and again.

use crate::limits::{FAILED_HANDSHAKE_TOLD_AGAIN, FAILED_HANDSHAKES_KEPT_MAX, REFUSAL_MEMBERS_NAMED_MAX};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::net::IpAddr;
use tenon_store_core::membership::View;
use tenon_transport::link::{Endpoint, LinkError};
use tokio::time::Instant;

/// What a link's error says, where the cluster's name is known.
pub(crate) fn told(error: &LinkError, cluster: &str) -> String {
    match error {
        LinkError::WrongCluster { ours } => format!("the peer does not belong to cluster {cluster:?} ({ours})"),
        error => error.to_string(),
    }
}

/// The beginning of a member list's digest: enough to see whether two are the same.
pub(crate) fn short(digest: &[u8; 32]) -> String {
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A member list as it is told to others.
pub(crate) fn list(view: &View, digest: &[u8; 32]) -> String {
    let members = view.members();
    let named: Vec<String> = members
        .iter()
        .take(REFUSAL_MEMBERS_NAMED_MAX)
        .map(ToString::to_string)
        .collect();
    let others = match members.len() - named.len() {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    format!("digest {}: {}{others}", short(digest), named.join(", "))
}

#[derive(Debug)]
struct Told {
    from: Option<IpAddr>,
    what: String,
    at: Instant,
}

/// The failed handshakes that were told lately.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<VecDeque<Told>>);

impl Failures {
    /// Whether a host's handshake has failed in a way that was not told lately; it counts as told then.
    pub(crate) fn is_news(&self, from: &Endpoint, what: &str, now: Instant) -> bool {
        let from = match from {
            Endpoint::Tcp(address) => Some(address.ip()),
            Endpoint::Unix(_) => None,
        };
        let mut told = self.0.lock();
        while told
            .front()
            .is_some_and(|oldest| now - oldest.at >= FAILED_HANDSHAKE_TOLD_AGAIN)
        {
            told.pop_front();
        }
        if told.iter().any(|known| known.from == from && known.what == what) {
            return false;
        }
        if told.len() >= FAILED_HANDSHAKES_KEPT_MAX {
            told.pop_front();
        }
        let what = what.to_owned();
        told.push_back(Told { from, what, at: now });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::NodeId;
    use tenon_store_core::membership::ViewSource;
    use tenon_transport::ClusterId;
    use tenon_transport::limits::MAX_REFUSAL_TEXT_BYTES;

    fn at(address: &str) -> Endpoint {
        address.parse().unwrap()
    }

    #[test]
    fn a_failure_is_told_once_per_host_and_again_after_a_while_or_when_it_changes() {
        let (failures, now) = (Failures::default(), Instant::now());
        assert!(failures.is_news(&at("127.0.0.1:1"), "no secret", now));
        assert!(
            !failures.is_news(&at("127.0.0.1:2"), "no secret", now),
            "another port of the host"
        );
        assert!(failures.is_news(&at("127.0.0.2:1"), "no secret", now));
        assert!(failures.is_news(&at("127.0.0.1:1"), "another version", now));
        assert!(!failures.is_news(&at("127.0.0.1:1"), "no secret", now));
        let later = now + FAILED_HANDSHAKE_TOLD_AGAIN;
        assert!(failures.is_news(&at("127.0.0.1:1"), "no secret", later));
    }

    #[test]
    fn no_more_failures_are_kept_than_may_be() {
        let (failures, now) = (Failures::default(), Instant::now());
        for number in 0..=FAILED_HANDSHAKES_KEPT_MAX {
            assert!(failures.is_news(&at("127.0.0.1:1"), &number.to_string(), now));
        }
        assert_eq!(failures.0.lock().len(), FAILED_HANDSHAKES_KEPT_MAX);
        assert!(failures.is_news(&at("127.0.0.1:1"), "0", now), "the oldest made room");
    }

    #[test]
    fn a_long_list_is_told_by_its_digest_its_first_members_and_how_many_there_are() {
        let members = (1..=12).map(|id| NodeId::from_bytes([id; 16])).collect();
        let view = View::new(ViewSource::Static, 1, members).unwrap();
        let text = list(&view, &[0xab; 32]);
        assert!(text.starts_with("digest abababab: 01010101"), "{text}");
        assert!(text.ends_with(" and 4 more"), "{text}");
        // It stands in a refusal beside two ids and a digest.
        assert!(text.len() + 160 < usize::from(MAX_REFUSAL_TEXT_BYTES), "{}", text.len());
    }

    #[test]
    fn a_cluster_is_called_by_its_name() {
        let error = LinkError::WrongCluster {
            ours: ClusterId([7; 16]),
        };
        assert!(told(&error, "prod").starts_with("the peer does not belong to cluster \"prod\" ("));
    }
}

//! Which members that are not in the list any more are gone: a guard against losing everything to one silent moment.
//!
//! A member whose lease runs out is gone one lease time later, with what it held. If more than a third of the members,
//! and at least two, run out within one lease time, it is more likely that something between them broke: then nothing
//! is gone until they return or an operator confirms, and an *alarm* stands meanwhile. Departures that were announced do
//! not count.

use crate::time::Time;
use std::collections::BTreeMap;
use tenon_protocol::ids::NodeId;

/// Members that have left the list, until it is known whether they are gone.
#[derive(Debug)]
pub struct Departures {
    lease_ms: u64,
    /// Since when.
    expired: BTreeMap<NodeId, Time>,
    is_alarmed: bool,
}

impl Departures {
    /// Nobody has left. `lease_ms` is how long a member may be silent before its lease runs out.
    pub fn new(lease_ms: u64) -> Self {
        Self {
            lease_ms,
            expired: BTreeMap::new(),
            is_alarmed: false,
        }
    }

    /// A member's lease has run out. `members` is how many there were before any that is not gone yet ran out.
    pub fn expired(&mut self, now: Time, node: NodeId, members: usize) {
        self.expired.entry(node).or_insert(now);
        let lately = self
            .expired
            .values()
            .filter(|&&since| now.since_ms(since) < self.lease_ms);
        let count = lately.count();
        self.is_alarmed |= count >= 2 && 3 * count > members;
    }

    /// A member is there again.
    pub fn returned(&mut self, node: NodeId) {
        self.expired.remove(&node);
        self.is_alarmed &= !self.expired.is_empty();
    }

    /// A member has said that it leaves: it is gone at once, and does not count.
    pub fn announced(&mut self, node: NodeId) {
        self.returned(node);
    }

    /// An operator says that those who ran out are gone: answers who they are.
    pub fn confirm(&mut self) -> Vec<NodeId> {
        self.is_alarmed = false;
        std::mem::take(&mut self.expired).into_keys().collect()
    }

    /// Whether so many ran out at once that nothing of theirs is dropped.
    pub fn is_alarmed(&self) -> bool {
        self.is_alarmed
    }

    /// Members that ran out and are not known to be gone.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.expired.keys().copied()
    }

    /// Who is gone since the last call.
    pub fn take_gone(&mut self, now: Time) -> Vec<NodeId> {
        if self.is_alarmed {
            return Vec::new();
        }
        let lease_ms = self.lease_ms;
        let gone = self.expired.extract_if(.., |_, since| now.since_ms(*since) >= lease_ms);
        gone.map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LEASE_MS: u64 = 10_000;

    fn node(id: u8) -> NodeId {
        NodeId::from_bytes([id; 16])
    }

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    #[test]
    fn one_that_runs_out_is_gone_a_lease_time_later() {
        let mut departures = Departures::new(LEASE_MS);
        departures.expired(at(5), node(1), 3);
        assert!(!departures.is_alarmed());
        assert_eq!(departures.take_gone(at(LEASE_MS + 4)), []);
        assert_eq!(departures.take_gone(at(LEASE_MS + 5)), [node(1)]);
        assert_eq!(departures.waiting().len(), 0);
    }

    #[test]
    fn more_than_a_third_at_once_are_not_gone_until_somebody_confirms() {
        let mut departures = Departures::new(LEASE_MS);
        for id in 0..3 {
            departures.expired(at(u64::from(id)), node(id), 9);
        }
        assert!(!departures.is_alarmed(), "a third is not more than a third");
        departures.expired(at(9_000), node(3), 9);
        assert!(departures.is_alarmed());
        assert_eq!(departures.take_gone(at(100 * LEASE_MS)), []);
        departures.returned(node(0));
        assert!(departures.is_alarmed());
        assert_eq!(departures.confirm(), [node(1), node(2), node(3)]);
        assert!(!departures.is_alarmed());
    }

    #[test]
    fn one_of_two_members_may_be_gone() {
        let mut departures = Departures::new(LEASE_MS);
        departures.expired(at(0), node(1), 2);
        assert!(!departures.is_alarmed());
        assert_eq!(departures.take_gone(at(LEASE_MS)), [node(1)]);
    }

    #[test]
    fn an_alarm_ends_when_all_have_returned() {
        let mut departures = Departures::new(LEASE_MS);
        departures.expired(at(0), node(1), 3);
        departures.expired(at(1), node(2), 3);
        departures.returned(node(1));
        assert!(departures.is_alarmed());
        departures.returned(node(2));
        assert!(!departures.is_alarmed());
        assert_eq!(departures.take_gone(at(100 * LEASE_MS)), []);
    }

    #[test]
    fn an_announced_departure_does_not_count() {
        let mut departures = Departures::new(LEASE_MS);
        departures.expired(at(0), node(1), 4);
        departures.announced(node(1));
        departures.expired(at(1), node(2), 4);
        assert!(!departures.is_alarmed());
    }

    proptest! {
        /// A list of all that happened says the same.
        #[test]
        fn it_says_what_the_record_of_all_events_says(
            steps in proptest::collection::vec((0..8u8, 0..6_000u64, 0..4u8), 1..40)
        ) {
            let mut departures = Departures::new(LEASE_MS);
            let (mut now, mut out, mut alarmed) = (0, Vec::<(u64, u8)>::new(), false);
            for (id, wait_ms, what) in steps {
                now += wait_ms;
                if what == 0 {
                    departures.returned(node(id));
                    out.retain(|(_, other)| *other != id);
                    alarmed &= !out.is_empty();
                } else {
                    departures.expired(at(now), node(id), 8);
                    if out.iter().all(|(_, other)| *other != id) {
                        out.push((now, id));
                    }
                    let lately = out.iter().filter(|(since, _)| since + LEASE_MS > now).count();
                    alarmed |= lately > 2;
                }
                prop_assert_eq!(departures.is_alarmed(), alarmed);
                let mut gone = BTreeSet::new();
                if !alarmed {
                    out.retain(|(since, id)| {
                        let is_gone = since + LEASE_MS <= now;
                        if is_gone {
                            gone.insert(node(*id));
                        }
                        !is_gone
                    });
                }
                prop_assert_eq!(departures.take_gone(at(now)), gone.into_iter().collect::<Vec<_>>());
            }
        }
    }
}

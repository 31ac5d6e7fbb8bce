//! What stays of a key that was removed: the epoch below which nothing is its object, and the drops that holders still
//! owe.

use crate::limits::{OWED_DROPS_MAX, TOMBSTONE_LIFE_MS, TOMBSTONES_MAX};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::member::{Homes, OwedDrop};

#[derive(Debug)]
struct Tombstone {
    homes: Homes,
    /// Nothing below it is the key's object.
    epoch: u64,
    until: Time,
    owed: Vec<OwedDrop>,
}

/// Tombstones by key: at most [`TOMBSTONES_MAX`], each for [`TOMBSTONE_LIFE_MS`] since it last changed and until holders
/// owe nothing any more.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_key: BTreeMap<KeyHash, Tombstone>,
    /// In the order of `until`; a key that changed since stands here more than once.
    in_order: VecDeque<(Time, KeyHash)>,
    /// Keys of which a holder owes drops.
    debts: BTreeSet<(NodeId, KeyHash)>,
}

impl Tombstones {
    /// Raises the epoch of a key, and adds to what holders owe.
    pub(super) fn raise(
        &mut self,
        now: Time,
        key: KeyHash,
        homes: Homes,
        epoch: u64,
        owed: impl IntoIterator<Item = OwedDrop>,
    ) {
        let until = now.after_ms(TOMBSTONE_LIFE_MS);
        let is_new = !self.by_key.contains_key(&key);
        let tombstone = self.by_key.entry(key).or_insert(Tombstone {
            homes,
            epoch: 0,
            until,
            owed: Vec::new(),
        });
        tombstone.homes = homes;
        let mut is_changed = epoch > tombstone.epoch;
        tombstone.epoch = tombstone.epoch.max(epoch);
        for owed in owed {
            if !tombstone.owed.contains(&owed) && tombstone.owed.len() < OWED_DROPS_MAX {
                tombstone.owed.push(owed);
                self.debts.insert((owed.replica.holder, key));
                is_changed = true;
            }
        }
        if is_new || (is_changed && tombstone.until != until) {
            tombstone.until = until;
            self.in_order.push_back((until, key));
        }
        if self.in_order.len() > 2 * TOMBSTONES_MAX {
            let by_key = &self.by_key;
            self.in_order
                .retain(|(until, key)| by_key.get(key).is_some_and(|tombstone| tombstone.until == *until));
        }
        self.forget(now);
    }

    /// The epoch below which nothing is the key's object; 0 if the key was never removed, as far as is remembered.
    pub(super) fn epoch(&self, key: KeyHash) -> u64 {
        self.by_key.get(&key).map_or(0, |tombstone| tombstone.epoch)
    }

    /// What holders owe of a key.
    pub(super) fn owed(&self, key: KeyHash) -> &[OwedDrop] {
        self.by_key.get(&key).map_or(&[], |tombstone| &tombstone.owed)
    }

    /// Keys of which a holder owes drops.
    pub(super) fn debts(&self, holder: NodeId) -> impl Iterator<Item = KeyHash> {
        let debts = self.debts.range((holder, KeyHash::from_bytes([0; 16]))..);
        debts.take_while(move |(node, _)| *node == holder).map(|(_, key)| *key)
    }

    /// Strikes out what `is_paid`.
    pub(super) fn pay(&mut self, key: KeyHash, is_paid: impl Fn(&OwedDrop) -> bool) {
        let Some(tombstone) = self.by_key.get_mut(&key) else {
            return;
        };
        let before = std::mem::take(&mut tombstone.owed);
        let (paid, left): (Vec<_>, Vec<_>) = before.into_iter().partition(is_paid);
        for paid in paid {
            if left.iter().all(|owed| owed.replica.holder != paid.replica.holder) {
                self.debts.remove(&(paid.replica.holder, key));
            }
        }
        tombstone.owed = left;
    }

    /// Forgets those whose time is over, and the oldest beyond the limit.
    pub(super) fn forget(&mut self, now: Time) {
        while let Some(&(until, key)) = self.in_order.front() {
            // A key that has changed since stands here again: the place that it had is nobody's.
            let tombstone = self.by_key.get_mut(&key).filter(|tombstone| tombstone.until == until);
            if tombstone.is_some() && until > now && self.by_key.len() <= TOMBSTONES_MAX {
                break;
            }
            self.in_order.pop_front();
            let Some(tombstone) = self.by_key.get_mut(&key).filter(|tombstone| tombstone.until == until) else {
                continue;
            };
            let is_over = until <= now;
            if is_over && !tombstone.owed.is_empty() {
                tombstone.until = now.after_ms(TOMBSTONE_LIFE_MS);
                self.in_order.push_back((tombstone.until, key));
                continue;
            }
            self.pay(key, |_| true);
            self.by_key.remove(&key);
        }
    }

    /// Keys with tombstones after `after` and whose they are, in order.
    pub(super) fn keys_after(&self, after: Option<KeyHash>) -> impl Iterator<Item = (KeyHash, Homes)> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let tombstones = self.by_key.range(range);
        tombstones.map(|(key, tombstone)| (*key, tombstone.homes))
    }

    /// Panics if debts and what is owed do not agree. O(n).
    pub(super) fn check_invariants(&self) {
        let owed = self.by_key.iter().flat_map(|(key, tombstone)| {
            let owed = tombstone.owed.iter();
            owed.map(|owed| (owed.replica.holder, *key))
        });
        assert_eq!(self.debts, owed.collect(), "debts are not what is owed");
    }

    /// Drops that are owed, at least one per holder and key.
    pub(super) fn owed_total(&self) -> usize {
        self.debts.len()
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::{Epoch, Generation, Incarnation, PutId, SegmentId, Slot, Version};
    use tenon_protocol::message::Replica;

    const HOMES: Homes = Homes {
        first: NodeId::from_bytes([1; 16]),
        second: None,
    };

    fn key(id: u32) -> KeyHash {
        KeyHash::from_bytes(u128::from(id).to_be_bytes())
    }

    #[test]
    fn an_epoch_is_kept_for_its_time_since_it_was_raised_last() {
        let mut tombstones = Tombstones::default();
        tombstones.raise(Time::ZERO, key(1), HOMES, 2, []);
        tombstones.raise(Time::from_ms(10), key(1), HOMES, 3, []);
        // What changes nothing does not count.
        tombstones.raise(Time::from_ms(20), key(1), HOMES, 3, []);
        tombstones.forget(Time::from_ms(TOMBSTONE_LIFE_MS));
        assert_eq!(tombstones.epoch(key(1)), 3);
        tombstones.forget(Time::from_ms(TOMBSTONE_LIFE_MS + 10));
        assert_eq!((tombstones.epoch(key(1)), tombstones.len()), (0, 0));
    }

    #[test]
    fn keys_that_are_removed_again_and_again_push_nothing_out() {
        let mut tombstones = Tombstones::default();
        let owed = OwedDrop {
            version: Version {
                epoch: Epoch(1),
                put_id: PutId::from_bytes([1; 16]),
            },
            replica: Replica {
                holder: NodeId::from_bytes([9; 16]),
                incarnation: Incarnation(1),
                segment: SegmentId(1),
                offset_bytes: 0,
                slot: Slot(0),
                generation: Generation(1),
                is_copy: false,
            },
        };
        tombstones.raise(Time::ZERO, key(1), HOMES, 2, [owed]);
        let raises = u64::try_from(TOMBSTONES_MAX).unwrap() + 10;
        for epoch in 0..raises {
            tombstones.raise(Time::ZERO, key(2), HOMES, epoch, []);
        }
        assert_eq!(tombstones.owed(key(1)), [owed]);
        assert!(
            tombstones.in_order.len() <= 2 * TOMBSTONES_MAX,
            "places of nobody are given up"
        );
        tombstones.check_invariants();
    }

    #[test]
    fn the_oldest_are_forgotten_beyond_the_limit() {
        let mut tombstones = Tombstones::default();
        let last = u32::try_from(TOMBSTONES_MAX).unwrap();
        for id in 0..=last {
            tombstones.raise(Time::ZERO, key(id), HOMES, 2, []);
        }
        assert_eq!(tombstones.len(), TOMBSTONES_MAX);
        assert_eq!(
            (
                tombstones.epoch(key(0)),
                tombstones.epoch(key(1)),
                tombstones.epoch(key(last))
            ),
            (0, 2, 2)
        );
    }
}

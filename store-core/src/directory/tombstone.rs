//! What stays of a key that was removed: the epoch below which nothing is its object, and the drops that holders still
//! owe.

use crate::limits::{OWED_DROPS_MAX, TOMBSTONE_LIFE_MS, TOMBSTONES_MAX};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use tenon_protocol::ids::{KeyHash, Version};
use tenon_protocol::message::Replica;

/// A replica that must be dropped and was not heard to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owed {
    pub(super) version: Version,
    pub(super) replica: Replica,
}

#[derive(Debug)]
struct Tombstone {
    /// Nothing below it is the key's object.
    epoch: u64,
    until: Time,
    owed: Vec<Owed>,
}

/// Tombstones by key: at most [`TOMBSTONES_MAX`], each for [`TOMBSTONE_LIFE_MS`] since it last changed.
#[derive(Debug, Default)]
pub(super) struct Tombstones {
    by_key: BTreeMap<KeyHash, Tombstone>,
    /// In the order of `until`; a key that changed since stands here more than once.
    in_order: VecDeque<(Time, KeyHash)>,
}

impl Tombstones {
    /// Raises the epoch of a key, and adds to what holders owe.
    pub(super) fn raise(&mut self, now: Time, key: KeyHash, epoch: u64, owed: impl IntoIterator<Item = Owed>) {
        let until = now.after_ms(TOMBSTONE_LIFE_MS);
        let tombstone = self.by_key.entry(key).or_insert(Tombstone {
            epoch: 0,
            until,
            owed: Vec::new(),
        });
        tombstone.epoch = tombstone.epoch.max(epoch);
        tombstone.until = until;
        for owed in owed {
            if !tombstone.owed.contains(&owed) && tombstone.owed.len() < OWED_DROPS_MAX {
                tombstone.owed.push(owed);
            }
        }
        self.in_order.push_back((until, key));
        self.forget(now);
    }

    /// The epoch below which nothing is the key's object; 0 if the key was never removed, as far as is remembered.
    pub(super) fn epoch(&self, key: KeyHash) -> u64 {
        self.by_key.get(&key).map_or(0, |tombstone| tombstone.epoch)
    }

    /// What holders owe of a key.
    pub(super) fn owed(&self, key: KeyHash) -> &[Owed] {
        self.by_key.get(&key).map_or(&[], |tombstone| &tombstone.owed)
    }

    /// Strikes out what `is_paid`.
    pub(super) fn pay(&mut self, key: KeyHash, is_paid: impl Fn(&Owed) -> bool) {
        if let Some(tombstone) = self.by_key.get_mut(&key) {
            tombstone.owed.retain(|owed| !is_paid(owed));
        }
    }

    /// Forgets those whose time is over, and the oldest beyond the limit.
    pub(super) fn forget(&mut self, now: Time) {
        while let Some(&(until, key)) = self.in_order.front() {
            if until > now && self.in_order.len() <= TOMBSTONES_MAX {
                break;
            }
            self.in_order.pop_front();
            if self.by_key.get(&key).is_some_and(|tombstone| tombstone.until == until) {
                self.by_key.remove(&key);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u32) -> KeyHash {
        KeyHash::from_bytes(u128::from(id).to_be_bytes())
    }

    #[test]
    fn an_epoch_is_kept_for_its_time_since_it_was_raised_last() {
        let mut tombstones = Tombstones::default();
        tombstones.raise(Time::ZERO, key(1), 3, []);
        tombstones.raise(Time::from_ms(10), key(1), 2, []);
        tombstones.forget(Time::from_ms(TOMBSTONE_LIFE_MS));
        assert_eq!(tombstones.epoch(key(1)), 3);
        tombstones.forget(Time::from_ms(TOMBSTONE_LIFE_MS + 10));
        assert_eq!((tombstones.epoch(key(1)), tombstones.len()), (0, 0));
    }

    #[test]
    fn the_oldest_are_forgotten_beyond_the_limit() {
        let mut tombstones = Tombstones::default();
        let last = u32::try_from(TOMBSTONES_MAX).unwrap();
        for id in 0..=last {
            tombstones.raise(Time::ZERO, key(id), 2, []);
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

//! How puts ended well, remembered for a while so that a retry with the same put id gets the same answer.
//!
//! Failures are not remembered: a put that failed left nothing behind and may be tried again.

use crate::limits::{OUTCOME_LIFE_MS, OUTCOMES_MAX};
use crate::time::Time;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use tenon_protocol::ids::{KeyHash, PutId, Version};
use tenon_protocol::message::{Committed, PutOutcome};

type Put = (KeyHash, PutId);

/// Outcomes by put and key: at most [`OUTCOMES_MAX`], each for at most [`OUTCOME_LIFE_MS`]; the oldest goes first.
#[derive(Debug)]
pub(crate) struct Outcomes<T = Committed> {
    by_put: BTreeMap<Put, (Time, T)>,
    /// In the order of their ends; a put that was forgotten before stands here still.
    in_order: VecDeque<(Time, Put)>,
}

impl<T> Default for Outcomes<T> {
    fn default() -> Self {
        Self {
            by_put: BTreeMap::new(),
            in_order: VecDeque::new(),
        }
    }
}

impl<T: Copy> Outcomes<T> {
    /// Remembers how a put ended. The first outcome of a put stands.
    pub(crate) fn remember(&mut self, now: Time, put_id: PutId, key_hash: KeyHash, outcome: T) {
        self.forget_old(now);
        let put = (key_hash, put_id);
        if self.by_put.contains_key(&put) {
            return;
        }
        if self.in_order.len() >= OUTCOMES_MAX {
            self.forget_oldest();
        }
        let until = now.after_ms(OUTCOME_LIFE_MS);
        self.by_put.insert(put, (until, outcome));
        self.in_order.push_back((until, put));
    }

    /// How the put ended, if that is still remembered.
    pub(crate) fn get(&mut self, now: Time, put_id: PutId, key_hash: KeyHash) -> Option<T> {
        self.forget_old(now);
        self.by_put.get(&(key_hash, put_id)).map(|(_, outcome)| *outcome)
    }

    /// How puts of a key ended whose ids come after this one, in the order of the ids, as far as that is remembered.
    pub(crate) fn of_key_after(&self, key_hash: KeyHash, after: Option<PutId>) -> impl Iterator<Item = (PutId, T)> {
        self.after(key_hash, after)
            .map(|(put_id, _, outcome)| (put_id, outcome))
    }

    /// How those puts of a key ended that ended last, the last one first.
    pub(crate) fn newest_of_key(&self, key_hash: KeyHash, most: usize) -> impl Iterator<Item = (PutId, T)> {
        let mut newest: Vec<(PutId, Time, T)> = Vec::with_capacity(most + 1);
        for put in self.after(key_hash, None) {
            let at = newest.partition_point(|(_, until, _)| *until >= put.1);
            if at < most {
                newest.insert(at, put);
                newest.truncate(most);
            }
        }
        newest.into_iter().map(|(put_id, _, outcome)| (put_id, outcome))
    }

    fn after(&self, key_hash: KeyHash, after: Option<PutId>) -> impl Iterator<Item = (PutId, Time, T)> {
        let first = match after {
            Some(put_id) => Bound::Excluded((key_hash, put_id)),
            None => Bound::Included((key_hash, PutId::from_bytes([0; 16]))),
        };
        let puts = self.by_put.range((first, Bound::Unbounded));
        puts.take_while(move |((key, _), _)| *key == key_hash)
            .map(|((_, put_id), (until, outcome))| (*put_id, *until, *outcome))
    }

    /// The put has failed after all.
    pub(crate) fn forget(&mut self, put_id: PutId, key_hash: KeyHash) {
        self.by_put.remove(&(key_hash, put_id));
    }

    fn forget_old(&mut self, now: Time) {
        while self.in_order.front().is_some_and(|&(until, _)| until <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((until, put)) = self.in_order.pop_front()
            && self.by_put.get(&put).is_some_and(|&(known, _)| known == until)
        {
            self.by_put.remove(&put);
        }
    }

    /// Panics if an outcome would never be forgotten.
    pub(crate) fn check_invariants(&self) {
        assert!(self.by_put.len() <= self.in_order.len() && self.in_order.len() <= OUTCOMES_MAX);
        assert!(self.in_order.iter().is_sorted_by_key(|&(until, _)| until));
        for (put, (until, _)) in &self.by_put {
            let is_queued = self.in_order.binary_search_by_key(until, |&(until, _)| until).is_ok();
            assert!(is_queued, "the outcome of {put:?} is never forgotten");
        }
    }
}

impl Outcomes {
    /// Takes in how a put ended by the word of another home. If homes that did not see each other said differently of it, it is
    /// stored: that is remembered only after its holder had heard so and sealed, while the other answer may have reached nobody.
    pub(crate) fn learn(&mut self, now: Time, put_id: PutId, key_hash: KeyHash, told: Committed) {
        let known = self.get(now, put_id, key_hash);
        if told.outcome == PutOutcome::Stored && known.is_some_and(|known| known.outcome != PutOutcome::Stored) {
            self.forget(put_id, key_hash);
        }
        self.remember(now, put_id, key_hash, told);
    }

    /// The put of this object was taken for stored, and its holder has withdrawn it.
    pub(crate) fn forget_stored(&mut self, version: Version, key_hash: KeyHash) {
        let put = (key_hash, version.put_id);
        if self.by_put.get(&put).is_some_and(|(_, known)| known.version == version) {
            self.by_put.remove(&put);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::Epoch;

    const KEY: KeyHash = KeyHash::from_bytes([1; 16]);

    fn put(id: u32) -> PutId {
        PutId::from_bytes(u128::from(id).to_be_bytes())
    }

    fn outcome(outcome: PutOutcome) -> Committed {
        let version = Version {
            epoch: Epoch(1),
            put_id: put(0),
        };
        Committed {
            outcome,
            version,
            degraded: false,
            copies: 0,
        }
    }

    #[test]
    fn of_two_homes_words_the_one_that_a_put_is_stored_stands() {
        for told in [PutOutcome::Stored, PutOutcome::AlreadyExists] {
            for known in [PutOutcome::Stored, PutOutcome::AlreadyExists] {
                let mut outcomes = Outcomes::default();
                outcomes.learn(Time::ZERO, put(1), KEY, outcome(known));
                outcomes.learn(Time::ZERO, put(1), KEY, outcome(told));
                let stands = if told == PutOutcome::Stored { told } else { known };
                assert_eq!(outcomes.get(Time::ZERO, put(1), KEY), Some(outcome(stands)));
                outcomes.check_invariants();
            }
        }
    }

    #[test]
    fn an_outcome_is_remembered_for_its_time_and_not_changed() {
        let mut outcomes = Outcomes::default();
        let stored = outcome(PutOutcome::Stored);
        outcomes.remember(Time::ZERO, put(1), KEY, stored);
        outcomes.remember(Time::ZERO, put(1), KEY, outcome(PutOutcome::AlreadyExists));
        assert_eq!(
            outcomes.get(Time::from_ms(OUTCOME_LIFE_MS - 1), put(1), KEY),
            Some(stored)
        );
        assert_eq!(outcomes.get(Time::from_ms(OUTCOME_LIFE_MS), put(1), KEY), None);
        outcomes.check_invariants();
    }

    #[test]
    fn a_put_that_failed_after_all_is_forgotten_and_may_end_otherwise() {
        let mut outcomes = Outcomes::default();
        outcomes.remember(Time::ZERO, put(1), KEY, outcome(PutOutcome::Stored));
        outcomes.forget(put(1), KEY);
        assert_eq!(outcomes.get(Time::ZERO, put(1), KEY), None);
        let exists = outcome(PutOutcome::AlreadyExists);
        outcomes.remember(Time::from_ms(1), put(1), KEY, exists);
        assert_eq!(outcomes.get(Time::from_ms(OUTCOME_LIFE_MS), put(1), KEY), Some(exists));
        outcomes.check_invariants();
    }

    #[test]
    fn what_is_remembered_of_one_key_is_found_by_it() {
        let mut outcomes = Outcomes::default();
        let stored = outcome(PutOutcome::Stored);
        for key in [[0; 16], [1; 16], [2; 16]] {
            for id in [3, 4] {
                outcomes.remember(Time::ZERO, put(id), KeyHash::from_bytes(key), stored);
            }
        }
        let found: Vec<_> = outcomes.of_key_after(KEY, None).collect();
        assert_eq!(found, [(put(3), stored), (put(4), stored)]);
        let found: Vec<_> = outcomes.of_key_after(KEY, Some(put(3))).collect();
        assert_eq!(found, [(put(4), stored)]);
    }

    #[test]
    fn what_ended_last_of_one_key_comes_first() {
        let mut outcomes = Outcomes::default();
        for (ms, id) in [(1, 2), (2, 3), (3, 1)] {
            outcomes.remember(Time::from_ms(ms), put(id), KEY, outcome(PutOutcome::Stored));
        }
        let found: Vec<_> = outcomes.newest_of_key(KEY, 2).map(|(put_id, _)| put_id).collect();
        assert_eq!(found, [put(1), put(3)]);
    }

    #[test]
    fn a_full_memory_forgets_the_oldest() {
        let mut outcomes = Outcomes::default();
        let ids = 0..=u32::try_from(OUTCOMES_MAX).unwrap();
        for id in ids.clone() {
            outcomes.remember(Time::ZERO, put(id), KEY, outcome(PutOutcome::Stored));
        }
        assert_eq!(outcomes.get(Time::ZERO, put(0), KEY), None);
        assert!(outcomes.get(Time::ZERO, put(1), KEY).is_some());
        assert!(outcomes.get(Time::ZERO, put(*ids.end()), KEY).is_some());
        outcomes.check_invariants();
    }
}

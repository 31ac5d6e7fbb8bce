//! Things that wait, each until its deadline.

use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// A map whose entries have deadlines.
#[derive(Debug)]
pub(super) struct Deadlined<K, V> {
    entries: BTreeMap<K, (Time, V)>,
    by_deadline: BTreeSet<(Time, K)>,
}

impl<K: Copy + Ord + std::fmt::Debug, V> Deadlined<K, V> {
    pub(super) fn new() -> Self {
        Self {
            entries: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// If there is one of this key.
    pub(super) fn insert(&mut self, key: K, deadline: Time, value: V) {
        let previous = self.entries.insert(key, (deadline, value));
        assert!(previous.is_none(), "{key:?} is waited for already");
        self.by_deadline.insert((deadline, key));
    }

    pub(super) fn remove(&mut self, key: K) -> Option<V> {
        let (deadline, value) = self.entries.remove(&key)?;
        self.by_deadline.remove(&(deadline, key));
        Some(value)
    }

    pub(super) fn contains(&self, key: K) -> bool {
        self.entries.contains_key(&key)
    }

    /// Until when an entry waits.
    pub(super) fn deadline(&self, key: K) -> Option<Time> {
        self.entries.get(&key).map(|(deadline, _)| *deadline)
    }

    /// An entry whose deadline is not after `now`, the earliest first.
    pub(super) fn first_expired(&self, now: Time) -> Option<K> {
        let &(deadline, key) = self.by_deadline.first()?;
        (deadline <= now).then_some(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(&key, (_, value))| (key, value))
    }
}

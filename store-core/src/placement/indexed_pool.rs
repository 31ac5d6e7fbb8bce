//! A pool of one owner whose hints are kept in order.

use super::fit_index::FitIndex;
use super::pool::{EntryIndex, Pool, PoolSummary, Space};
use crate::allocator::{Region, RegionAllocator};

/// One entry of an [`IndexedPool`]: space whose owner knows its hint at any moment.
pub trait FitEntry {
    /// The right to use an allocated region.
    type Region;

    /// The space of the entry.
    fn space(&self) -> Space;

    /// A size in bytes that no free region of the entry exceeds.
    fn largest_free_upper_bound_bytes(&self) -> u64;

    /// Allocates `len_bytes`, or nothing if there is no room.
    fn allocate(&mut self, len_bytes: u64) -> Option<Self::Region>;
}

impl FitEntry for RegionAllocator {
    type Region = Region;

    fn space(&self) -> Space {
        Space {
            free_bytes: self.free_bytes(),
            capacity_bytes: self.capacity_bytes(),
        }
    }

    fn largest_free_upper_bound_bytes(&self) -> u64 {
        self.largest_free_upper_bound_bytes()
    }

    fn allocate(&mut self, len_bytes: u64) -> Option<Region> {
        self.allocate(len_bytes).ok()
    }
}

/// Entries of one owner with their [`FitIndex`].
///
/// An entry can be changed only through this type, which brings the index up to date after each change: O(1) if the entry's
/// hint is what it was, O(log n) otherwise.
#[derive(Debug)]
pub struct IndexedPool<E> {
    entries: Vec<E>,
    index: FitIndex,
    free_bytes: u64,
}

impl<E: FitEntry> IndexedPool<E> {
    /// A pool of these entries.
    #[must_use]
    pub fn new(entries: Vec<E>) -> Self {
        let mut pool = Self {
            index: FitIndex::new(entries.len()),
            free_bytes: entries.iter().map(|entry| entry.space().free_bytes).sum(),
            entries,
        };
        for number in 0..pool.entries.len() {
            pool.note(EntryIndex(number));
        }
        pool
    }

    /// Adds an entry after the last one.
    pub fn push(&mut self, entry: E) -> EntryIndex {
        self.free_bytes += entry.space().free_bytes;
        self.entries.push(entry);
        let number = self.index.push();
        self.note(number);
        number
    }

    /// The entries in their order.
    #[must_use]
    pub fn as_slice(&self) -> &[E] {
        &self.entries
    }

    /// Changes an entry and notes what has become of it. Panics if there is no such entry.
    pub fn change<T>(&mut self, entry: EntryIndex, change: impl FnOnce(&mut E) -> T) -> T {
        self.free_bytes -= self.entries[entry.0].space().free_bytes;
        let result = change(&mut self.entries[entry.0]);
        self.free_bytes += self.entries[entry.0].space().free_bytes;
        self.note(entry);
        result
    }

    /// The order of the entries' hints.
    #[must_use]
    pub fn index(&self) -> &FitIndex {
        &self.index
    }

    /// Panics if the index does not say of each entry what the entry says. O(n): for tests.
    pub fn check_invariants(&self) {
        self.index.check_invariants();
        for (number, entry) in self.entries.iter().enumerate() {
            let (hint, bound_bytes) = (
                self.index.hint(EntryIndex(number)),
                entry.largest_free_upper_bound_bytes(),
            );
            assert_eq!(hint, Some(bound_bytes), "the hint of entry {number} is not up to date");
        }
        let free_bytes: u64 = self.entries.iter().map(|entry| entry.space().free_bytes).sum();
        assert_eq!(self.free_bytes, free_bytes, "the account of free bytes is wrong");
    }

    fn note(&mut self, entry: EntryIndex) {
        let bound_bytes = self.entries[entry.0].largest_free_upper_bound_bytes();
        self.index.set(entry, Some(bound_bytes));
    }
}

impl<E: FitEntry> Pool for IndexedPool<E> {
    type Region = E::Region;

    fn entries(&self) -> usize {
        self.entries.len()
    }

    fn space(&self, entry: EntryIndex) -> Space {
        self.entries[entry.0].space()
    }

    fn allocators(&self, _entry: EntryIndex) -> usize {
        1
    }

    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, _allocator: usize) -> Option<u64> {
        Some(self.entries[entry.0].largest_free_upper_bound_bytes())
    }

    fn allocate(&mut self, entry: EntryIndex, _allocator: usize, len_bytes: u64) -> Option<Self::Region> {
        self.change(entry, |entry| entry.allocate(len_bytes))
    }

    fn summary(&self) -> PoolSummary {
        PoolSummary {
            free_bytes: self.free_bytes,
            largest_free_upper_bound_bytes: self.index.largest_free_upper_bound_bytes(),
        }
    }

    fn tightest(&self, len_bytes: u64, may_use: &dyn Fn(EntryIndex) -> bool) -> Option<EntryIndex> {
        self.index.tightest(len_bytes, may_use)
    }
}

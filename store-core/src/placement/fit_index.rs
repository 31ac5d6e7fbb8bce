//! Which entry of a pool can hold a length: the order of the pool's hints.

use super::pool::EntryIndex;
use crate::allocator::SizeOrder;

/// The hints of a pool's entries in the order of their sizes.
///
/// An entry lies in the size class of its hint; classes that have entries are found by find-first-set in two levels of bitmaps, and each class is
/// a tree. So the question which entry can hold a length is never a scan, and a change of one hint is as cheap: O(log n) at worst.
///
/// Whoever owns the pool keeps it true: it calls [`Self::set`] after whatever may have changed an entry's hint. [`IndexedPool`] does so
/// by construction. Memory: 48 B per entry and 15 KiB per index.
///
/// [`IndexedPool`]: super::IndexedPool
#[derive(Clone, Debug)]
pub struct FitIndex {
    hints: SizeOrder,
}

impl FitIndex {
    /// An index of so many entries, all known to have no room.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self {
            hints: SizeOrder::new(entries),
        }
    }

    /// Adds an entry that has no room, after the last one.
    pub fn push(&mut self) -> EntryIndex {
        self.hints.push();
        EntryIndex(self.hints.len() - 1)
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.hints.len()
    }

    /// Says what is known of an entry: a size in bytes that no free region of it exceeds, or `None` if nothing is.
    ///
    /// Too high costs a call that fails; too low would hide free space. An unknown entry is found for every length, after all others.
    pub fn set(&mut self, entry: EntryIndex, largest_free_upper_bound_bytes: Option<u64>) {
        self.hints
            .set(entry.0, largest_free_upper_bound_bytes.unwrap_or(u64::MAX));
    }

    /// What [`Self::set`] last said of an entry.
    #[must_use]
    pub fn hint(&self, entry: EntryIndex) -> Option<u64> {
        Some(self.hints.size(entry.0)).filter(|&bytes| bytes < u64::MAX)
    }

    /// The entry that may be used whose hint promises the tightest room for `len_bytes`; see [`Pool::tightest`].
    ///
    /// Each fitting entry that may not be used costs one more step.
    ///
    /// [`Pool::tightest`]: super::Pool::tightest
    pub fn tightest(&self, len_bytes: u64, may_use: &dyn Fn(EntryIndex) -> bool) -> Option<EntryIndex> {
        self.hints
            .at_least(len_bytes)
            .map(EntryIndex)
            .find(|&entry| may_use(entry))
    }

    /// A size in bytes that no free region of any entry exceeds, or `None` while an entry is unknown.
    #[must_use]
    pub fn largest_free_upper_bound_bytes(&self) -> Option<u64> {
        Some(self.hints.largest()).filter(|&bytes| bytes < u64::MAX)
    }

    /// Bytes of memory that the index takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.hints.memory_bytes()
    }

    /// Panics if the index is not in order. O(n): for tests.
    pub fn check_invariants(&self) {
        self.hints.check_invariants();
    }
}

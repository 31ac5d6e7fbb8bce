//! What a placement decision can see, and the calls it makes.

use crate::allocator::RegionAllocator;

/// The position of an entry in a pool; it stays the same for as long as the pool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryIndex(pub usize);

/// The space of an entry, possibly a moment old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that are not allocated.
    pub free_bytes: u64,
    /// Bytes that can be allocated when none are.
    pub capacity_bytes: u64,
}

impl Space {
    /// Free bytes per byte of capacity; 0 for an entry without capacity.
    #[must_use]
    pub fn free_ratio(self) -> f64 {
        if self.capacity_bytes == 0 {
            0.0
        } else {
            self.free_bytes as f64 / self.capacity_bytes as f64
        }
    }
}

/// The space of a whole pool, to explain why a request found none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSummary {
    /// Bytes that are not allocated in any entry.
    pub free_bytes: u64,
    /// A size that no free region of the pool exceeds, or `None` while that is unknown for some entry.
    pub largest_free_upper_bound_bytes: Option<u64>,
}

/// What the hints of an entry say about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Every allocator of the entry is known to have no region as large.
    NoFit,
    /// An allocator may have a region as large.
    MayFit,
    /// An allocator, or all of the entry, is not known.
    Unknown,
}

/// The entries that one decision can see, in a stable order.
///
/// An entry is a segment of this node, or something larger that is seen from outside: it stands for any number of
/// allocators. Numbers may be stale; the answer of [`Self::allocate`] is the only truth.
pub trait Pool {
    /// The right to use an allocated region. The pool's owner frees it.
    type Region;

    /// Number of entries; constant during a decision.
    fn entries(&self) -> usize;

    /// The space of an entry.
    fn space(&self, entry: EntryIndex) -> Space;

    /// Number of allocators that an entry stands for; constant during a decision.
    fn allocators(&self, entry: EntryIndex) -> usize;

    /// A size in bytes that no free region of this allocator exceeds, if one is known.
    ///
    /// Too high costs a call that fails. Too low would hide free space.
    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, allocator: usize) -> Option<u64>;

    /// Allocates `len_bytes` from one allocator of an entry, or nothing if it has no room.
    fn allocate(&mut self, entry: EntryIndex, allocator: usize, len_bytes: u64) -> Option<Self::Region>;

    /// The space of the whole pool. Read once for each request that finds no space, never for a decision.
    fn summary(&self) -> PoolSummary;

    /// The entry among those that may be used whose hints promise the tightest room for `len_bytes`, or nothing if all are known to
    /// have none. Equally tight ones come in the order of the pool, unknown ones last.
    ///
    /// This reads every hint. A pool whose owner keeps its hints in order answers from there.
    fn tightest(&self, len_bytes: u64, may_use: &dyn Fn(EntryIndex) -> bool) -> Option<EntryIndex> {
        tightest_by_scan(self, len_bytes, may_use)
    }

    /// Whether an entry can hold `len_bytes`, as far as its hints tell.
    fn fit(&self, entry: EntryIndex, len_bytes: u64) -> Fit {
        let allocators = self.allocators(entry);
        let mut fit = if allocators == 0 { Fit::Unknown } else { Fit::NoFit };
        for allocator in 0..allocators {
            match self.largest_free_upper_bound_bytes(entry, allocator) {
                Some(bound_bytes) if bound_bytes < len_bytes => {}
                Some(_) => return Fit::MayFit,
                None => fit = Fit::Unknown,
            }
        }
        fit
    }
}

/// See [`Pool::tightest`]: the answer from the hints of all entries, read one by one.
pub(super) fn tightest_by_scan<P: Pool + ?Sized>(
    pool: &P,
    len_bytes: u64,
    may_use: &dyn Fn(EntryIndex) -> bool,
) -> Option<EntryIndex> {
    // What is not known counts as the loosest fit.
    let room_bytes = |entry: EntryIndex| {
        let hints = (0..pool.allocators(entry)).map(|allocator| pool.largest_free_upper_bound_bytes(entry, allocator));
        let fitting = hints
            .map(|hint| hint.unwrap_or(u64::MAX))
            .filter(|&bytes| bytes >= len_bytes);
        fitting.min()
    };
    let rooms = (0..pool.entries()).map(EntryIndex).filter(|&entry| may_use(entry));
    let rooms = rooms.filter_map(|entry| room_bytes(entry).map(|bytes| (bytes, entry)));
    rooms.min().map(|(_, entry)| entry)
}

/// Segments of one owner: each entry is one allocator, and its hint is always known.
impl Pool for [RegionAllocator] {
    type Region = crate::allocator::Region;

    fn entries(&self) -> usize {
        self.len()
    }

    fn space(&self, entry: EntryIndex) -> Space {
        let allocator = &self[entry.0];
        Space {
            free_bytes: allocator.free_bytes(),
            capacity_bytes: allocator.capacity_bytes(),
        }
    }

    fn allocators(&self, _entry: EntryIndex) -> usize {
        1
    }

    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, _allocator: usize) -> Option<u64> {
        Some(self[entry.0].largest_free_upper_bound_bytes())
    }

    fn allocate(&mut self, entry: EntryIndex, _allocator: usize, len_bytes: u64) -> Option<Self::Region> {
        self[entry.0].allocate(len_bytes).ok()
    }

    fn summary(&self) -> PoolSummary {
        let largest = self
            .iter()
            .map(RegionAllocator::largest_free_upper_bound_bytes)
            .max()
            .unwrap_or(0);
        PoolSummary {
            free_bytes: self.iter().map(RegionAllocator::free_bytes).sum(),
            largest_free_upper_bound_bytes: Some(largest),
        }
    }
}

//! The segments of a node as the pool of one placement decision.

use super::SegmentTable;
use super::segment::{Segment, Taken};
use crate::placement::{EntryIndex, Pool, PoolSummary, Space};

impl<T: SegmentTable> Pool for [Segment<T>] {
    type Region = Taken;

    fn entries(&self) -> usize {
        self.len()
    }

    fn space(&self, entry: EntryIndex) -> Space {
        let account = self[entry.0].account();
        Space {
            free_bytes: account.free_bytes,
            capacity_bytes: account.capacity_bytes,
        }
    }

    fn allocators(&self, _entry: EntryIndex) -> usize {
        1
    }

    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, _allocator: usize) -> Option<u64> {
        Some(self[entry.0].largest_fit_upper_bound_bytes())
    }

    fn allocate(&mut self, entry: EntryIndex, _allocator: usize, len_bytes: u64) -> Option<Taken> {
        self[entry.0].take(len_bytes)
    }

    fn summary(&self) -> PoolSummary {
        let accounts = || self.iter().map(Segment::account);
        PoolSummary {
            free_bytes: accounts().map(|account| account.free_bytes).sum(),
            largest_free_upper_bound_bytes: accounts().map(|account| account.largest_free_bytes).max(),
        }
    }
}

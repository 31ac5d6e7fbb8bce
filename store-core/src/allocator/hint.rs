//! What a reader may know of a segment without taking its lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A view of one allocator's space that is readable from any thread without a lock.
///
/// Clones share one cell, which outlives the allocator; the view then stays at its last values. Each value is true at
/// the end of the last operation of which the reader has heard, but the two may belong to different operations.
#[derive(Clone, Debug)]
pub struct FitHint {
    cell: Arc<Cell>,
}

/// A line of its own, so that readers of one segment do not slow the owner of another.
#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    largest_free_bytes: AtomicU64,
    free_bytes: AtomicU64,
    capacity_bytes: AtomicU64,
}

impl FitHint {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let cell = Cell {
            largest_free_bytes: AtomicU64::new(0),
            free_bytes: AtomicU64::new(0),
            capacity_bytes: AtomicU64::new(capacity_bytes),
        };
        Self { cell: Arc::new(cell) }
    }

    pub(super) fn publish_capacity(&self, capacity_bytes: u64) {
        self.cell.capacity_bytes.store(capacity_bytes, Ordering::Release);
    }

    pub(super) fn publish(&self, largest_free_bytes: u64, free_bytes: u64) {
        // Release, so that a reader who sees the value also sees what led to it, such as the object that was freed.
        self.cell
            .largest_free_bytes
            .store(largest_free_bytes, Ordering::Release);
        self.cell.free_bytes.store(free_bytes, Ordering::Release);
    }

    /// A size in bytes that no free region exceeds: a larger request cannot succeed.
    ///
    /// Never below the size of the largest free region, and in the same size class as it, after every operation.
    #[must_use]
    pub fn largest_free_upper_bound_bytes(&self) -> u64 {
        self.cell.largest_free_bytes.load(Ordering::Acquire)
    }

    /// Bytes that are not allocated.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.cell.free_bytes.load(Ordering::Acquire)
    }

    /// Bytes that can be allocated when none are.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.cell.capacity_bytes.load(Ordering::Acquire)
    }
}

//! What is free in the segments of a node: bytes and descriptors, in the order of what each segment can still hold.

use super::slots::SlotList;
use super::{MountError, SegmentSpec};
use crate::allocator::{AllocatorConfig, Classes, Region, RegionAllocator};
use crate::placement::{FitEntry, Space};
use tenon_protocol::ids::Slot;

/// Bytes and a slot of one segment, in one use or in none yet.
#[derive(Debug)]
#[must_use = "bytes and slot stay taken"]
pub(super) struct Taken {
    pub(super) region: Region,
    pub(super) slot: Slot,
}

/// The free bytes and slots of one segment.
#[derive(Debug)]
pub(super) struct SegmentSpace {
    allocator: RegionAllocator,
    slots: SlotList,
}

impl SegmentSpace {
    pub(super) fn new(spec: &SegmentSpec) -> Result<Self, MountError> {
        if spec.slots == 0 {
            return Err(MountError::NoSlots);
        }
        let config = AllocatorConfig {
            capacity_bytes: spec.len_bytes,
            alignment_bytes: spec.alignment_bytes,
            classes: Classes::Tight,
        };
        Ok(Self {
            allocator: RegionAllocator::new(config)?,
            slots: SlotList::new(spec.slots),
        })
    }

    pub(super) fn slots(&self) -> &SlotList {
        &self.slots
    }

    pub(super) fn allocator(&self) -> &RegionAllocator {
        &self.allocator
    }

    /// Gives bytes and slot back, which were taken from this segment and describe nothing any more.
    pub(super) fn give_back(&mut self, taken: Taken) {
        self.slots.give_back(taken.slot);
        self.allocator
            .free(taken.region)
            .expect("the region came from this allocator");
    }

    /// Panics if allocator and account do not agree. O(n): for tests.
    pub(super) fn check_invariants(&self) {
        self.allocator.check_invariants();
    }
}

impl FitEntry for SegmentSpace {
    type Region = Taken;

    fn space(&self) -> Space {
        Space {
            free_bytes: self.allocator.free_bytes(),
            capacity_bytes: self.allocator.capacity_bytes(),
        }
    }

    /// 0 without a free slot: then no request is served, whatever is free.
    fn largest_free_upper_bound_bytes(&self) -> u64 {
        if self.slots.has_free() {
            self.allocator.largest_free_upper_bound_bytes()
        } else {
            0
        }
    }

    /// Takes bytes and a slot. They leak unless they are given back or become a region in use.
    fn allocate(&mut self, len_bytes: u64) -> Option<Taken> {
        if !self.slots.has_free() {
            return None;
        }
        let region = self.allocator.allocate(len_bytes).ok()?;
        let slot = self.slots.take().expect("a slot is free");
        Some(Taken { region, slot })
    }
}

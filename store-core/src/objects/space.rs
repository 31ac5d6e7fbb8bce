//! What is free in the segments of a node: bytes and descriptors, and which segment gives room to a request.

use super::slots::SlotList;
use super::{MountError, SegmentSpec};
use crate::allocator::{
    AllocateError, AllocatorConfig, Classes, PackedSegments, Region, RegionAllocator, SegmentIndex,
};
use crate::limits::{ALIGNMENT_BYTES_MIN, BOUND_VISITS_MAX};
use crate::placement::{
    EntryIndex, Fallback, FitEntry, IndexedPool, PlaceError, PlacementFigures, Placer, Policy, Pool, PoolSummary,
    Request, Space, StopReason, Strategy,
};
use rand::Rng;
use tenon_protocol::ids::Slot;

/// Bytes and a slot of one segment, in one use or in none yet.
#[derive(Debug)]
#[must_use = "bytes and slot stay taken"]
pub(super) struct Taken {
    pub(super) region: Region,
    pub(super) slot: Slot,
}

/// Room that was found.
#[derive(Debug)]
#[must_use = "bytes and slot stay taken"]
pub(super) struct Found {
    /// Position of the segment.
    pub(super) segment: usize,
    pub(super) taken: Taken,
    pub(super) figures: PlacementFigures,
}

/// Why none was found.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) stop: StopReason,
    pub(super) figures: PlacementFigures,
}

impl Default for Refused {
    /// Nothing was searched: what is known of the segments says that none has room.
    fn default() -> Self {
        Self {
            stop: StopReason::NothingFits,
            figures: PlacementFigures::default(),
        }
    }
}

/// What is free of one segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeOfSegment {
    pub(super) capacity_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) slots: u32,
    pub(super) slots_used: u32,
}

/// The free bytes and slots of all segments, in the order in which they were mounted.
#[derive(Debug)]
pub(super) enum NodeSpace {
    /// All free regions under one index, which gives the tightest one: the default.
    Packed {
        regions: PackedSegments,
        slots: Vec<SlotList>,
    },
    /// Each segment with an allocator of its own, and a strategy to compare with that chooses among them.
    Entries {
        pool: IndexedPool<SegmentSpace>,
        placer: Placer,
    },
}

impl NodeSpace {
    /// No segments yet.
    pub(super) fn new(policy: Policy) -> Self {
        match policy {
            Policy {
                strategy: Strategy::FreeRatioFirst | Strategy::FragmentationAware,
                fallback: Fallback::Indexed,
            } => Self::Packed {
                regions: PackedSegments::new(ALIGNMENT_BYTES_MIN).expect("the smallest alignment is one"),
                slots: Vec::new(),
            },
            policy => Self::Entries {
                pool: IndexedPool::new(Vec::new()),
                placer: Placer::new(policy),
            },
        }
    }

    /// Adds a segment, all of it free, and answers its position and its capacity in bytes.
    pub(super) fn mount(&mut self, spec: &SegmentSpec) -> Result<(usize, u64), MountError> {
        if spec.slots == 0 {
            return Err(MountError::NoSlots);
        }
        match self {
            Self::Packed { regions, slots } => {
                let segment = regions.mount(spec.len_bytes, spec.slots)?;
                let list = SlotList::new(spec.slots);
                match slots.get_mut(segment.0) {
                    Some(vacant) => *vacant = list,
                    None => slots.push(list),
                }
                Ok((segment.0, regions.segment_capacity_bytes(segment)))
            }
            Self::Entries { pool, .. } => {
                let space = SegmentSpace::new(spec)?;
                let capacity_bytes = space.allocator.capacity_bytes();
                let vacant = pool.as_slice().iter().position(|space| space.use_of == Use::Removed);
                let index = match vacant {
                    Some(index) => {
                        pool.change(EntryIndex(index), |vacant| *vacant = space);
                        index
                    }
                    None => pool.push(space).0,
                };
                Ok((index, capacity_bytes))
            }
        }
    }

    /// The segment serves no further requests.
    pub(super) fn withdraw(&mut self, segment: usize) {
        match self {
            Self::Packed { regions, .. } => regions.withdraw(SegmentIndex(segment)),
            Self::Entries { pool, .. } => pool.change(EntryIndex(segment), |space| space.use_of = Use::Withdrawn),
        }
    }

    /// Forgets a segment that was withdrawn and of which nothing is in use. Another one may get its position.
    pub(super) fn remove(&mut self, segment: usize) {
        match self {
            Self::Packed { regions, slots } => {
                regions.remove(SegmentIndex(segment));
                slots[segment] = SlotList::new(0);
            }
            Self::Entries { pool, .. } => pool.change(EntryIndex(segment), |space| space.use_of = Use::Removed),
        }
    }

    /// Takes room for `len_bytes`, which are not 0. It leaks unless it is given back or becomes a region in use.
    pub(super) fn take<R: Rng + ?Sized>(&mut self, rng: &mut R, len_bytes: u64) -> Result<Found, Refused> {
        match self {
            Self::Packed { regions, slots } => take_packed(regions, slots, len_bytes),
            Self::Entries { pool, placer } => {
                let mut placed = Vec::with_capacity(1);
                match placer.place(pool, &Request::new(len_bytes), rng, &mut placed) {
                    Ok(figures) => {
                        let placed = placed.pop().expect("a placement that succeeds has placed");
                        Ok(Found {
                            segment: placed.entry.0,
                            taken: placed.region,
                            figures,
                        })
                    }
                    Err(PlaceError::NoSpace(error)) => Err(Refused {
                        stop: error.stop,
                        figures: error.figures,
                    }),
                    Err(error) => unreachable!("a request for one region of {len_bytes} bytes: {error}"),
                }
            }
        }
    }

    /// Gives bytes and slot back, which were taken from this segment and describe nothing any more.
    pub(super) fn give_back(&mut self, segment: usize, taken: Taken) {
        let freed = match self {
            Self::Packed { regions, slots } => {
                slots[segment].give_back(taken.slot);
                regions.free(SegmentIndex(segment), taken.region)
            }
            Self::Entries { pool, .. } => pool.change(EntryIndex(segment), |space| {
                space.slots.give_back(taken.slot);
                space.allocator.free(taken.region)
            }),
        };
        freed.expect("the region came from this segment");
    }

    /// Free bytes, and a size that no request exceeds that could be served. O(1).
    pub(super) fn summary(&self) -> PoolSummary {
        match self {
            Self::Packed { regions, .. } => PoolSummary {
                free_bytes: regions.free_bytes(),
                largest_free_upper_bound_bytes: Some(regions.largest_free_bytes()),
            },
            Self::Entries { pool, .. } => pool.summary(),
        }
    }

    /// The longest request that is served, where that is known exactly. O(1).
    pub(super) fn largest_that_fits_bytes(&self) -> Option<u64> {
        match self {
            Self::Packed { regions, .. } => Some(regions.largest_free_bytes()),
            Self::Entries { .. } => None,
        }
    }

    /// What is free of one segment.
    pub(super) fn of_segment(&self, segment: usize) -> FreeOfSegment {
        let (capacity_bytes, free_bytes, slots) = match self {
            Self::Packed { regions, slots } => {
                let index = SegmentIndex(segment);
                let (capacity_bytes, free_bytes) =
                    (regions.segment_capacity_bytes(index), regions.segment_free_bytes(index));
                (capacity_bytes, free_bytes, &slots[segment])
            }
            Self::Entries { pool, .. } => {
                let SegmentSpace { allocator, slots, .. } = &pool.as_slice()[segment];
                (allocator.capacity_bytes(), allocator.free_bytes(), slots)
            }
        };
        FreeOfSegment {
            capacity_bytes,
            free_bytes,
            slots: slots.slots(),
            slots_used: slots.used(),
        }
    }

    /// For each segment a size in bytes that no free region of it exceeds, with or without a free slot.
    pub(super) fn largest_free_upper_bounds_bytes(&self) -> Vec<u64> {
        match self {
            Self::Packed { regions, .. } => regions.largest_free_upper_bounds_bytes(BOUND_VISITS_MAX),
            Self::Entries { pool, .. } => {
                let bounds = pool.as_slice().iter();
                bounds
                    .map(|space| match space.use_of {
                        Use::Serving => space.allocator.largest_free_upper_bound_bytes(),
                        Use::Withdrawn | Use::Removed => 0,
                    })
                    .collect()
            }
        }
    }

    /// A size in bytes that no free region exceeds of the segments that have no free slot.
    pub(super) fn largest_without_slot_bytes(&self) -> u64 {
        match self {
            Self::Packed { regions, .. } => regions.largest_exhausted_bytes(),
            Self::Entries { pool, .. } => {
                let serving = pool.as_slice().iter().filter(|space| space.use_of == Use::Serving);
                let without = serving.filter(|space| !space.slots.has_free());
                without
                    .map(|space| space.allocator.largest_free_upper_bound_bytes())
                    .max()
                    .unwrap_or(0)
            }
        }
    }

    /// Panics if allocators and accounts do not agree. O(n): for tests.
    pub(super) fn check_invariants(&self) {
        match self {
            Self::Packed { regions, slots } => {
                regions.check_invariants();
                for (segment, slots) in slots.iter().enumerate() {
                    let in_use = regions.segment_regions(SegmentIndex(segment));
                    assert_eq!(in_use, slots.used(), "segment {segment}: regions and slots differ");
                }
            }
            Self::Entries { pool, .. } => {
                pool.check_invariants();
                pool.as_slice()
                    .iter()
                    .for_each(|space| space.allocator.check_invariants());
            }
        }
    }
}

fn take_packed(regions: &mut PackedSegments, slots: &mut [SlotList], len_bytes: u64) -> Result<Found, Refused> {
    match regions.allocate(len_bytes) {
        Ok((segment, region)) => {
            let slot = slots[segment.0].take().expect("no more regions than slots are in use");
            Ok(Found {
                segment: segment.0,
                taken: Taken { region, slot },
                figures: PlacementFigures {
                    tightest_calls: 1,
                    allocator_calls: 1,
                    ..PlacementFigures::default()
                },
            })
        }
        Err(AllocateError::NoFit { .. } | AllocateError::TooManyBlocks { .. }) => Err(Refused::default()),
        Err(AllocateError::ZeroLength) => unreachable!("a request has at least one byte"),
    }
}

/// The free bytes and slots of one segment with an allocator of its own.
#[derive(Debug)]
pub(super) struct SegmentSpace {
    allocator: RegionAllocator,
    slots: SlotList,
    use_of: Use,
}

/// What a segment with an allocator of its own is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It serves requests.
    Serving,
    /// It serves none, and takes back what it gave.
    Withdrawn,
    /// Its position waits for another one.
    Removed,
}

impl SegmentSpace {
    fn new(spec: &SegmentSpec) -> Result<Self, MountError> {
        let config = AllocatorConfig {
            capacity_bytes: spec.len_bytes,
            alignment_bytes: ALIGNMENT_BYTES_MIN,
            classes: Classes::Tight,
        };
        Ok(Self {
            allocator: RegionAllocator::new(config)?,
            slots: SlotList::new(spec.slots),
            use_of: Use::Serving,
        })
    }
}

impl FitEntry for SegmentSpace {
    type Region = Taken;

    /// None once it serves no requests.
    fn space(&self) -> Space {
        match self.use_of {
            Use::Serving => self.allocator.space(),
            Use::Withdrawn | Use::Removed => Space {
                free_bytes: 0,
                capacity_bytes: 0,
            },
        }
    }

    /// 0 without a free slot: then no request is served, whatever is free.
    fn largest_free_upper_bound_bytes(&self) -> u64 {
        if self.use_of == Use::Serving && self.slots.has_free() {
            self.allocator.largest_free_upper_bound_bytes()
        } else {
            0
        }
    }

    /// Takes bytes and a slot. They leak unless they are given back or become a region in use.
    fn allocate(&mut self, len_bytes: u64) -> Option<Taken> {
        if self.use_of != Use::Serving || !self.slots.has_free() {
            return None;
        }
        let region = self.allocator.allocate(len_bytes).ok()?;
        let slot = self.slots.take().expect("a slot is free");
        Some(Taken { region, slot })
    }
}

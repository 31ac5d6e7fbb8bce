//! The regions of all segments of one owner under one index.

use super::arena::{Arena, TakeError};
use super::block::{Slot, State};
use super::{AllocateError, Classes, ConfigError, FitHint, FreeError, Region, Run};
use crate::limits::{ALIGNMENT_BYTES_MIN, PACKED_BLOCKS_MAX};

/// The position of a segment in [`PackedSegments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub usize);

/// One segment: a stretch of the units that all segments number through.
#[derive(Debug)]
struct Member {
    first: Slot,
    first_unit: u64,
    capacity_units: u64,
    free_units: u64,
    is_withdrawn: bool,
}

/// Decides which bytes of any of its segments belong to whom: a request gets the tightest free region of all.
///
/// One index over the free regions of all segments takes the place of one per segment, so where a region lies costs nothing to decide,
/// and a request fails only if no segment has a region that holds it. Among equal regions the one of the earliest segment, lowest
/// there, serves: the answer depends only on which runs are free, and segments mounted later stay empty longest.
///
/// Memory: 48 B per region, free or allocated, 40 B per segment, 15 KiB in all for the size classes.
#[derive(Debug)]
pub struct PackedSegments {
    arena: Arena,
    members: Vec<Member>,
    unit_shift: u32,
    /// Where the next segment's units begin.
    end_units: u64,
    /// Of the segments that are not withdrawn.
    capacity_units: u64,
    free_units: u64,
    hint: FitHint,
}

impl PackedSegments {
    /// No segments yet. Offsets and occupied sizes are multiples of `alignment_bytes`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Alignment`] if that is not a power of two of at least 64.
    pub fn new(alignment_bytes: u64) -> Result<Self, ConfigError> {
        if !alignment_bytes.is_power_of_two() || alignment_bytes < ALIGNMENT_BYTES_MIN {
            return Err(ConfigError::Alignment { alignment_bytes });
        }
        let unit_shift = alignment_bytes.ilog2();
        Ok(Self {
            arena: Arena::new(Classes::Tight, u64::MAX >> unit_shift, PACKED_BLOCKS_MAX),
            members: Vec::new(),
            unit_shift,
            end_units: 0,
            capacity_units: 0,
            free_units: 0,
            hint: FitHint::new(0),
        })
    }

    /// Adds a segment, all of it free.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is smaller than the alignment, or too large to be numbered through with the others.
    pub fn mount(&mut self, capacity_bytes: u64) -> Result<SegmentIndex, ConfigError> {
        let capacity_units = capacity_bytes >> self.unit_shift;
        if capacity_units == 0 {
            return Err(ConfigError::CapacityTooSmall {
                capacity_bytes,
                alignment_bytes: 1 << self.unit_shift,
            });
        }
        let end_units = (self.end_units.checked_add(capacity_units)).filter(|&end| end <= u64::MAX >> self.unit_shift);
        let (Some(end_units), true) = (end_units, self.arena.blocks.has_room()) else {
            return Err(ConfigError::TooMuch { capacity_bytes });
        };
        let first = self.arena.blocks.push(self.end_units, capacity_units);
        let index = SegmentIndex(self.members.len());
        self.arena.blocks[first].segment = u32::try_from(index.0).expect("fewer segments than blocks");
        self.members.push(Member {
            first,
            first_unit: self.end_units,
            capacity_units,
            free_units: capacity_units,
            is_withdrawn: false,
        });
        self.end_units = end_units;
        self.capacity_units += capacity_units;
        self.free_units += capacity_units;
        self.arena.give(first);
        self.hint.publish_capacity(self.capacity_bytes());
        self.publish();
        Ok(index)
    }

    /// Lets a segment serve no further requests; what it holds stays allocated until it is freed. O(regions of the segment).
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn withdraw(&mut self, segment: SegmentIndex) {
        let member = &mut self.members[segment.0];
        if std::mem::replace(&mut member.is_withdrawn, true) {
            return;
        }
        self.capacity_units -= member.capacity_units;
        self.free_units -= member.free_units;
        self.arena.withdraw_chain(member.first);
        self.hint.publish_capacity(self.capacity_bytes());
        self.publish();
    }

    /// Sets `len_bytes` aside in the tightest free region of all segments, in O(log n) at worst and without a scan.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NoFit`] if no free region is large enough; nothing was changed.
    pub fn allocate(&mut self, len_bytes: u64) -> Result<(SegmentIndex, Region), AllocateError> {
        if len_bytes == 0 {
            return Err(AllocateError::ZeroLength);
        }
        let units = self.units_of(len_bytes);
        let slot = self
            .arena
            .take(units)
            .map_err(|refusal| self.refused(len_bytes, refusal))?;
        let block = &self.arena.blocks[slot];
        let segment = SegmentIndex(block.segment as usize);
        let member = &mut self.members[segment.0];
        member.free_units -= units;
        self.free_units -= units;
        let offset_bytes = (block.offset - member.first_unit) << self.unit_shift;
        self.publish();
        let region = Region {
            offset_bytes,
            len_bytes,
            slot,
        };
        Ok((segment, region))
    }

    /// Gives a region of a segment back, merging it with free neighbours.
    ///
    /// # Errors
    ///
    /// [`FreeError::NotAllocated`] if the segment has no such region: a mistake of the caller; nothing was changed.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a region that was given back must not be used again"
    )]
    pub fn free(&mut self, segment: SegmentIndex, region: Region) -> Result<(), FreeError> {
        let Region {
            offset_bytes,
            len_bytes,
            slot,
        } = region;
        let units = self.units_of(len_bytes);
        let is_ours = self.arena.blocks.get(slot).is_some_and(|block| {
            block.state == State::Allocated && block.segment as usize == segment.0 && block.units == units
        }) && (self.arena.blocks[slot].offset - self.members[segment.0].first_unit) << self.unit_shift
            == offset_bytes;
        if !is_ours {
            return Err(FreeError::NotAllocated {
                offset_bytes,
                len_bytes,
            });
        }
        let member = &mut self.members[segment.0];
        member.free_units += units;
        assert!(
            member.free_units <= member.capacity_units,
            "corrupt account: more free than there is"
        );
        if member.is_withdrawn {
            self.arena.give_unindexed(slot);
        } else {
            self.arena.give(slot);
            self.free_units += units;
            self.publish();
        }
        Ok(())
    }

    /// A handle through which any thread reads the space of all segments without a lock.
    #[must_use]
    pub fn hint(&self) -> FitHint {
        self.hint.clone()
    }

    /// The size in bytes of the largest free region of all segments that serve requests.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.arena.largest_units << self.unit_shift
    }

    /// Bytes that are not allocated, in segments that serve requests.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_units << self.unit_shift
    }

    /// Bytes that can be allocated when none are, in segments that serve requests.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_units << self.unit_shift
    }

    /// Number of segments ever mounted.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.members.len()
    }

    /// Bytes of a segment that are not allocated. Panics if there is no such segment.
    #[must_use]
    pub fn segment_free_bytes(&self, segment: SegmentIndex) -> u64 {
        self.members[segment.0].free_units << self.unit_shift
    }

    /// Bytes of a segment that can be allocated when none are. Panics if there is no such segment.
    #[must_use]
    pub fn segment_capacity_bytes(&self, segment: SegmentIndex) -> u64 {
        self.members[segment.0].capacity_units << self.unit_shift
    }

    /// The bytes that a region of `len_bytes` occupies, saturating.
    #[must_use]
    pub fn occupied_bytes(&self, len_bytes: u64) -> u64 {
        self.units_of(len_bytes).saturating_mul(1 << self.unit_shift)
    }

    /// All runs of a segment in address order; see [`RegionAllocator::runs`]. Panics if there is no such segment.
    ///
    /// [`RegionAllocator::runs`]: super::RegionAllocator::runs
    pub fn runs(&self, segment: SegmentIndex) -> impl Iterator<Item = Run> + '_ {
        let member = &self.members[segment.0];
        self.arena.blocks.from(member.first).map(|(_, block)| Run {
            offset_bytes: (block.offset - member.first_unit) << self.unit_shift,
            len_bytes: block.units << self.unit_shift,
            is_free: block.state == State::Free,
        })
    }

    /// Bytes of memory that the records of all regions take, and what does not depend on their number.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.arena.blocks.memory_bytes() + self.arena.index.memory_bytes() + size_of_val(&self.members[..])
    }

    /// Looks at every block and panics if chains, index, accounts and hint are not consistent. O(n): for tests.
    pub fn check_invariants(&self) {
        let (mut free_units, mut capacity_units, mut largest_units, mut blocks) = (0, 0, 0, 0);
        for member in &self.members {
            let chain = self.arena.check_chain(member.first, member.first_unit);
            assert_eq!(
                chain.end_units,
                member.first_unit + member.capacity_units,
                "a chain does not cover its segment"
            );
            assert_eq!(
                chain.free_units, member.free_units,
                "a segment's account of free units is wrong"
            );
            blocks += chain.blocks;
            if !member.is_withdrawn {
                free_units += chain.free_units;
                capacity_units += member.capacity_units;
                largest_units = largest_units.max(chain.largest_units);
            }
        }
        assert_eq!((free_units, capacity_units), (self.free_units, self.capacity_units));
        self.arena.check(blocks, largest_units);
        self.arena.index.check_members(&self.arena.blocks, |_, block| {
            block.state == State::Free && !self.members[block.segment as usize].is_withdrawn
        });
        assert_eq!(
            self.hint.largest_free_upper_bound_bytes(),
            largest_units << self.unit_shift
        );
        assert_eq!(self.hint.free_bytes(), self.free_bytes());
        assert_eq!(self.hint.capacity_bytes(), self.capacity_bytes());
    }

    fn units_of(&self, len_bytes: u64) -> u64 {
        let whole = len_bytes >> self.unit_shift;
        whole + u64::from(whole << self.unit_shift != len_bytes)
    }

    fn refused(&self, len_bytes: u64, refusal: TakeError) -> AllocateError {
        match refusal {
            TakeError::NoFit => AllocateError::NoFit {
                len_bytes,
                free_bytes: self.free_bytes(),
                largest_free_bytes: self.largest_free_bytes(),
            },
            TakeError::TooManyBlocks => AllocateError::TooManyBlocks {
                len_bytes,
                blocks_max: self.arena.blocks.slots_max(),
            },
        }
    }

    fn publish(&self) {
        self.hint.publish(self.largest_free_bytes(), self.free_bytes());
    }
}

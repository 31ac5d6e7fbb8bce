//! The region allocator of one segment.
//!
//! A segment is a chain of blocks in address order; each is free or belongs to a caller. Neighbouring free blocks are
//! merged at once, so two free blocks never adjoin. Sizes are counted in units of the alignment.
//!
//! Free blocks are indexed by size class. By default ([`Classes::Tight`]) a request gets the tightest free block, of equal
//! ones that which came to its size last, and occupies nothing but its length rounded up to the alignment. A long request
//! that would leave a rest of the tightest block which is neither small nor holds another one like it gets the tightest block
//! that holds two, if there is one: rests that nothing fits into are what fails later requests.
//! [`Classes::Peer`] reproduces another system's rule for comparison.
//!
//! The allocator keeps no memory and does no I/O: it decides offsets in memory that its owner holds.

mod block;
mod class;
mod free;
mod hint;
mod index;
mod list;
mod order;
mod packed;
mod stack;
mod tree;

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use self::block::{Blocks, Slot, State};
use self::free::{FreeBlocks, TakeError};
use self::index::FreeIndex;
use crate::limits::{ALIGNMENT_BYTES_MIN, BLOCKS_MAX, PEER_CLASSES};
use crate::names::{self, UnknownName};

pub use self::hint::FitHint;
pub(crate) use self::order::SizeOrder;
pub use self::packed::{PackedSegments, SegmentIndex};

/// How sizes are rounded and which free region serves a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Classes {
    /// A region occupies its length rounded up to the alignment; the tightest free region serves it, unless that would leave a useless rest.
    #[default]
    Tight,
    /// For comparison only: 256 classes with a 3-bit mantissa, lengths rounded up to a class, last in first out.
    Peer,
}

impl Classes {
    const ALL: [Self; 2] = [Self::Tight, Self::Peer];

    fn name(self) -> &'static str {
        match self {
            Self::Tight => "tight",
            Self::Peer => "peer",
        }
    }
}

impl fmt::Display for Classes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Classes {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        names::choose("size classes", name, &Self::ALL, Self::name)
    }
}

/// What an allocator is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorConfig {
    /// Length of the segment in bytes; what exceeds a multiple of the alignment is never handed out.
    pub capacity_bytes: u64,
    /// Offsets and occupied sizes are multiples of this power of two, at least 64.
    pub alignment_bytes: u64,
    /// The rule of size classes.
    pub classes: Classes,
}

impl AllocatorConfig {
    /// A segment of `capacity_bytes` with the smallest alignment and the default classes.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            alignment_bytes: ALIGNMENT_BYTES_MIN,
            classes: Classes::default(),
        }
    }
}

/// Why an allocator cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// The alignment is not a power of two, or below the smallest.
    #[error("alignment of {alignment_bytes} B is not a power of two of at least {ALIGNMENT_BYTES_MIN} B")]
    Alignment {
        /// The alignment that was asked for.
        alignment_bytes: u64,
    },
    /// The segment is smaller than one aligned region.
    #[error("capacity of {capacity_bytes} B is less than the alignment of {alignment_bytes} B")]
    CapacityTooSmall {
        /// The capacity that was asked for.
        capacity_bytes: u64,
        /// The alignment that was asked for.
        alignment_bytes: u64,
    },
    /// The segment has sizes that the peer's classes do not reach.
    #[error("capacity of {capacity_bytes} B needs {classes} peer size classes, there are {PEER_CLASSES}")]
    CapacityTooLargeForPeer {
        /// The capacity that was asked for.
        capacity_bytes: u64,
        /// The classes that it would need.
        classes: usize,
    },
    /// No region of the segment could ever be in use.
    #[error("a segment of which no region may be in use holds nothing")]
    NoRegions,
    /// The units of all segments together cannot be numbered any more.
    #[error("capacity of {capacity_bytes} B is too much beside the segments that are mounted")]
    TooMuch {
        /// The capacity that was asked for.
        capacity_bytes: u64,
    },
}

/// Why a region was not allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AllocateError {
    /// A region has at least one byte.
    #[error("cannot allocate a region of 0 B")]
    ZeroLength,
    /// No free region is large enough.
    #[error(
        "no free region holds {len_bytes} B: {free_bytes} B are free, the largest region has {largest_free_bytes} B"
    )]
    NoFit {
        /// The length that was asked for.
        len_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
        /// An upper bound of the largest free region, as the hint gives it.
        largest_free_bytes: u64,
    },
    /// The segment is cut into as many blocks as can be recorded.
    #[error("cannot cut a region of {len_bytes} B: the segment already has {blocks_max} blocks")]
    TooManyBlocks {
        /// The length that was asked for.
        len_bytes: u64,
        /// The limit.
        blocks_max: u32,
    },
}

/// Why a region was not freed. The caller has mixed up allocators or regions; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FreeError {
    /// This allocator has no such region allocated.
    #[error("cannot free {len_bytes} B at offset {offset_bytes}: no such region is allocated here")]
    NotAllocated {
        /// Offset of the region.
        offset_bytes: u64,
        /// Length of the region.
        len_bytes: u64,
    },
}

/// An allocated region: the right to use these bytes of one segment, until it is given back to its allocator.
///
/// It cannot be copied, so it cannot be freed twice. Dropping it leaves the bytes allocated.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped region stays allocated"]
pub struct Region {
    offset_bytes: u64,
    len_bytes: u64,
    slot: Slot,
}

impl Region {
    /// Offset from the start of the segment in bytes, a multiple of the alignment.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The length in bytes that was asked for; the region may occupy more.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

/// A maximal free run or one allocated region, for a map of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset from the start of the segment in bytes.
    pub offset_bytes: u64,
    /// Bytes occupied or free, a multiple of the alignment.
    pub len_bytes: u64,
    /// Whether the run is free.
    pub is_free: bool,
}

/// Decides which bytes of one segment belong to whom.
#[derive(Debug)]
pub struct RegionAllocator {
    blocks: Blocks,
    free: FreeBlocks,
    unit_shift: u32,
    capacity_units: u64,
    free_units: u64,
    hint: FitHint,
}

impl RegionAllocator {
    /// An allocator for one segment, all of it free.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the value that cannot be.
    pub fn new(config: AllocatorConfig) -> Result<Self, ConfigError> {
        Self::with_blocks_max(config, BLOCKS_MAX)
    }

    fn with_blocks_max(config: AllocatorConfig, blocks_max: u32) -> Result<Self, ConfigError> {
        let AllocatorConfig {
            capacity_bytes,
            alignment_bytes,
            classes,
        } = config;
        if !alignment_bytes.is_power_of_two() || alignment_bytes < ALIGNMENT_BYTES_MIN {
            return Err(ConfigError::Alignment { alignment_bytes });
        }
        let unit_shift = alignment_bytes.ilog2();
        let capacity_units = capacity_bytes >> unit_shift;
        if capacity_units == 0 {
            return Err(ConfigError::CapacityTooSmall {
                capacity_bytes,
                alignment_bytes,
            });
        }
        let peer_classes = FreeIndex::peer_class_count(capacity_units);
        if classes == Classes::Peer && peer_classes > PEER_CLASSES {
            return Err(ConfigError::CapacityTooLargeForPeer {
                capacity_bytes,
                classes: peer_classes,
            });
        }
        let mut blocks = Blocks::new(capacity_units, blocks_max);
        let mut free = FreeBlocks::none(classes.into(), capacity_units, unit_shift);
        free.add(&mut blocks, Slot::FIRST);
        let allocator = Self {
            blocks,
            free,
            unit_shift,
            capacity_units,
            free_units: capacity_units,
            hint: FitHint::new(capacity_units << unit_shift),
        };
        allocator.publish();
        Ok(allocator)
    }

    /// Sets `len_bytes` aside, in O(log n) at worst and without a scan.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NoFit`] if no free region is large enough; nothing was changed.
    pub fn allocate(&mut self, len_bytes: u64) -> Result<Region, AllocateError> {
        if len_bytes == 0 {
            return Err(AllocateError::ZeroLength);
        }
        let units = self.free.index.occupied_units(self.units_of(len_bytes));
        let taken = self.free.take(&mut self.blocks, units);
        let slot = taken.map_err(|refusal| self.refused(len_bytes, refusal))?;
        let offset_bytes = self.blocks[slot].offset << self.unit_shift;
        self.free_units -= units;
        self.publish();
        Ok(Region {
            offset_bytes,
            len_bytes,
            slot,
        })
    }

    /// Gives a region back, merging it with free neighbours.
    ///
    /// # Errors
    ///
    /// [`FreeError::NotAllocated`] if this allocator has no such region: a mistake of the caller; nothing was changed.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a region that was given back must not be used again"
    )]
    pub fn free(&mut self, region: Region) -> Result<(), FreeError> {
        let Region {
            offset_bytes,
            len_bytes,
            slot,
        } = region;
        let units = self.free.index.occupied_units(self.units_of(len_bytes));
        let is_ours = self.blocks.get(slot).is_some_and(|block| {
            block.state == State::Allocated && block.offset << self.unit_shift == offset_bytes && block.units == units
        });
        if !is_ours {
            return Err(FreeError::NotAllocated {
                offset_bytes,
                len_bytes,
            });
        }
        self.free.give(&mut self.blocks, slot);
        self.free_units += units;
        assert!(
            self.free_units <= self.capacity_units,
            "corrupt account: more free than there is"
        );
        self.publish();
        Ok(())
    }

    /// A handle through which any thread reads the space of this segment without a lock.
    #[must_use]
    pub fn hint(&self) -> FitHint {
        self.hint.clone()
    }

    /// A size in bytes that no free region exceeds; see [`FitHint::largest_free_upper_bound_bytes`].
    #[must_use]
    pub fn largest_free_upper_bound_bytes(&self) -> u64 {
        self.free.largest_units.min(self.free_units) << self.unit_shift
    }

    /// The size in bytes of the largest free region. With [`Classes::Peer`] this looks at every region of its class.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.free.index.largest_units(&self.blocks) << self.unit_shift
    }

    /// Bytes that are not allocated.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free_units << self.unit_shift
    }

    /// Bytes occupied by regions, what their lengths were rounded up by included.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        (self.capacity_units - self.free_units) << self.unit_shift
    }

    /// Bytes that can be allocated when none are: the length of the segment rounded down to the alignment.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_units << self.unit_shift
    }

    /// The bytes that a region of `len_bytes` occupies, saturating.
    #[must_use]
    pub fn occupied_bytes(&self, len_bytes: u64) -> u64 {
        let units = self.free.index.occupied_units(self.units_of(len_bytes));
        units.saturating_mul(1 << self.unit_shift)
    }

    /// All runs in address order. They adjoin, cover the capacity, and no two free ones follow each other.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.blocks.from(Slot::FIRST).map(|(_, block)| Run {
            offset_bytes: block.offset << self.unit_shift,
            len_bytes: block.units << self.unit_shift,
            is_free: block.state == State::Free,
        })
    }

    /// Looks at every block and panics if chain, index, accounts and hint are not consistent. O(n): for tests.
    pub fn check_invariants(&self) {
        let chain = free::check_chain(&self.blocks, Slot::FIRST, 0);
        assert_eq!(
            chain.end_units, self.capacity_units,
            "the chain does not cover the segment"
        );
        assert_eq!(chain.free_units, self.free_units, "the account of free units is wrong");
        free::check_slots(&self.blocks, chain.blocks);
        self.free.check_largest(&self.blocks, chain.largest_units);
        self.free
            .index
            .check_members(&self.blocks, |_, block| block.state == State::Free);
        assert_eq!(
            self.hint.largest_free_upper_bound_bytes(),
            self.largest_free_upper_bound_bytes()
        );
        assert_eq!(self.hint.free_bytes(), self.free_bytes());
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
                largest_free_bytes: self.largest_free_upper_bound_bytes(),
            },
            TakeError::TooManyBlocks => AllocateError::TooManyBlocks {
                len_bytes,
                blocks_max: self.blocks.slots_max(),
            },
        }
    }

    fn publish(&self) {
        self.hint
            .publish(self.largest_free_upper_bound_bytes(), self.free_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_of_blocks_refuses_what_needs_a_cut_and_nothing_else() {
        let config = AllocatorConfig::new(4 * 64);
        let mut allocator = RegionAllocator::with_blocks_max(config, 2).expect("valid");
        let first = allocator.allocate(64).expect("one cut");
        let refusal = AllocateError::TooManyBlocks {
            len_bytes: 64,
            blocks_max: 2,
        };
        assert_eq!(allocator.allocate(64), Err(refusal));
        allocator.check_invariants();
        let rest = allocator.allocate(3 * 64).expect("no cut");
        allocator.free(first).expect("allocated");
        allocator.free(rest).expect("allocated");
        allocator.check_invariants();
        assert_eq!(allocator.largest_free_bytes(), 4 * 64);
    }

    #[test]
    #[should_panic(expected = "corrupt free index")]
    fn an_index_that_holds_an_allocated_block_stops_the_caller() {
        let mut allocator = RegionAllocator::new(AllocatorConfig::new(4 * 64)).expect("valid");
        allocator.blocks[Slot::FIRST].state = State::Allocated;
        let _ = allocator.allocate(64);
    }

    #[test]
    #[should_panic(expected = "neighbours do not adjoin")]
    fn a_broken_chain_stops_the_caller() {
        let mut allocator = RegionAllocator::new(AllocatorConfig::new(4 * 64)).expect("valid");
        let region = allocator.allocate(64).expect("fits");
        let above = allocator.blocks[Slot::FIRST].above;
        allocator.blocks[above].offset += 1;
        let _ = allocator.free(region);
    }
}

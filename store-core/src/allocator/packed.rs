//! The regions of all segments of one owner under one index.

use super::block::{Blocks, Slot, State};
use super::free::{self, FreeBlocks, TakeError};
use super::index::Shape;
use super::order::SizeOrder;
use super::{AllocateError, ConfigError, FitHint, FreeError, Region, Run};
use crate::limits::{ALIGNMENT_BYTES_MIN, PACKED_BLOCKS_MAX, SCARCE_UNTIL_DIVISOR};

/// The position of a segment in [`PackedSegments`]. Once that is removed, another one may get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentIndex(pub usize);

/// Where the free blocks of a segment are indexed.
#[derive(Debug)]
enum Standing {
    /// Under the index of all segments.
    Shared,
    /// Under an index of its own: it had as many regions in use as it may have, and has few to spare.
    Scarce(Box<FreeBlocks>),
    /// Nowhere: it serves no requests.
    Withdrawn,
    /// It is not there any more: its position waits for another one.
    Removed,
}

/// One segment: a stretch of the units that all segments number through.
#[derive(Debug)]
struct Member {
    first: Slot,
    first_unit: u64,
    capacity_units: u64,
    free_units: u64,
    regions: u32,
    regions_max: u32,
    standing: Standing,
}

impl Member {
    /// Whether so many further regions may be in use that the segment can stand under the index of all.
    fn has_plenty(&self) -> bool {
        self.regions_max - self.regions >= self.regions_max.div_ceil(SCARCE_UNTIL_DIVISOR)
    }
}

/// Decides which bytes of any of its segments belong to whom: a request gets the tightest free region of all, or, if it is long and that would leave a
/// useless rest, the tightest that holds two of it.
///
/// One index over the free regions of all segments takes the place of one per segment, so where a region lies costs nothing to decide,
/// and a request fails only if no segment has a region that holds it. Of equal regions the one that came to its size last serves, whose record is most likely
/// still at hand.
///
/// A segment may limit how many of its regions are in use at once. With its last one it becomes *scarce*: its free regions move to an index of
/// its own, and it serves, while it can, what no other segment holds: among scarce ones that whose largest region is the smallest that suffices. It
/// goes back once an eighth of its regions can be in use again, so a move, which is O(regions of the segment), pays for as many operations as an
/// eighth of them.
///
/// Memory: 48 B per region, free or allocated, 104 B per segment, 30 KiB in all for the size classes, and as much as 15 KiB more for each scarce segment.
#[derive(Debug)]
pub struct PackedSegments {
    blocks: Blocks,
    /// The free blocks of segments that have regions in plenty.
    shared: FreeBlocks,
    /// The largest free block in units of each scarce segment that can have a further region in use; 0 for all others.
    scarce: SizeOrder,
    members: Vec<Member>,
    /// Positions of segments that were removed.
    vacant: Vec<SegmentIndex>,
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
            blocks: Blocks::none(PACKED_BLOCKS_MAX),
            shared: FreeBlocks::none(Shape::Stacks, u64::MAX >> unit_shift, unit_shift),
            scarce: SizeOrder::new(0),
            members: Vec::new(),
            vacant: Vec::new(),
            unit_shift,
            end_units: 0,
            capacity_units: 0,
            free_units: 0,
            hint: FitHint::new(0),
        })
    }

    /// Adds a segment, all of it free, of which at most `regions_max` regions may be in use at once.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if it is smaller than the alignment, may have no region, or is too large to be numbered through with the others.
    pub fn mount(&mut self, capacity_bytes: u64, regions_max: u32) -> Result<SegmentIndex, ConfigError> {
        let capacity_units = capacity_bytes >> self.unit_shift;
        if capacity_units == 0 {
            return Err(ConfigError::CapacityTooSmall {
                capacity_bytes,
                alignment_bytes: 1 << self.unit_shift,
            });
        }
        if regions_max == 0 {
            return Err(ConfigError::NoRegions);
        }
        let end_units = (self.end_units.checked_add(capacity_units)).filter(|&end| end <= u64::MAX >> self.unit_shift);
        let (Some(end_units), true) = (end_units, self.blocks.has_room()) else {
            return Err(ConfigError::TooMuch { capacity_bytes });
        };
        let first = self.blocks.add(self.end_units, capacity_units);
        let index = self.settle_in(Member {
            first,
            first_unit: self.end_units,
            capacity_units,
            free_units: capacity_units,
            regions: 0,
            regions_max,
            standing: Standing::Shared,
        });
        self.blocks[first].segment = u32::try_from(index.0).expect("fewer segments than blocks");
        self.end_units = end_units;
        self.capacity_units += capacity_units;
        self.free_units += capacity_units;
        self.shared.give(&mut self.blocks, first);
        self.hint.publish_capacity(self.capacity_bytes());
        self.publish();
        Ok(index)
    }

    /// Gives a segment a position.
    fn settle_in(&mut self, member: Member) -> SegmentIndex {
        if let Some(index) = self.vacant.pop() {
            self.members[index.0] = member;
            return index;
        }
        self.members.push(member);
        self.scarce.push();
        SegmentIndex(self.members.len() - 1)
    }

    /// Forgets a segment that was withdrawn and of which no region is in use. Its position may be another one's from now on.
    ///
    /// # Panics
    /// If there is no such segment, if it is not withdrawn, or if a region of it is in use.
    pub fn remove(&mut self, segment: SegmentIndex) {
        let member = &mut self.members[segment.0];
        assert!(
            matches!(member.standing, Standing::Withdrawn),
            "a segment is removed that serves requests"
        );
        assert_eq!(member.regions, 0, "a segment is removed of which regions are in use");
        // Without regions all of it is one free block.
        self.blocks.remove(member.first);
        *member = Member {
            first: Slot::NONE,
            first_unit: 0,
            capacity_units: 0,
            free_units: 0,
            regions: 0,
            regions_max: 0,
            standing: Standing::Removed,
        };
        self.vacant.push(segment);
    }

    /// Lets a segment serve no further requests; what it holds stays allocated until it is freed. O(regions of the segment).
    ///
    /// # Panics
    /// If there is no such segment.
    pub fn withdraw(&mut self, segment: SegmentIndex) {
        let member = &mut self.members[segment.0];
        assert!(
            !matches!(member.standing, Standing::Removed),
            "a segment is withdrawn that was removed"
        );
        let standing = std::mem::replace(&mut member.standing, Standing::Withdrawn);
        let first = member.first;
        match standing {
            Standing::Withdrawn | Standing::Removed => return,
            Standing::Shared => self.shared.withdraw_chain(&mut self.blocks, first, |_, _| {}),
            Standing::Scarce(mut own) => own.withdraw_chain(&mut self.blocks, first, |_, _| {}),
        }
        self.capacity_units -= member.capacity_units;
        self.free_units -= member.free_units;
        self.scarce.set(segment.0, 0);
        self.hint.publish_capacity(self.capacity_bytes());
        self.publish();
    }

    /// Sets `len_bytes` aside in the free region of all segments that suits it best, in O(log n) at worst and without a scan.
    ///
    /// # Errors
    ///
    /// [`AllocateError::NoFit`] if no free region is large enough; nothing was changed.
    pub fn allocate(&mut self, len_bytes: u64) -> Result<(SegmentIndex, Region), AllocateError> {
        if len_bytes == 0 {
            return Err(AllocateError::ZeroLength);
        }
        let units = self.units_of(len_bytes);
        let slot = match self.shared.take(&mut self.blocks, units) {
            Err(TakeError::NoFit) => self.take_scarce(units),
            taken => taken,
        };
        let slot = slot.map_err(|refusal| self.refused(len_bytes, refusal))?;
        let block = &self.blocks[slot];
        let segment = SegmentIndex(block.segment as usize);
        let member = &mut self.members[segment.0];
        member.free_units -= units;
        member.regions += 1;
        self.free_units -= units;
        let offset_bytes = (block.offset - member.first_unit) << self.unit_shift;
        if member.regions == member.regions_max {
            self.become_scarce(segment);
        }
        self.publish();
        let region = Region {
            offset_bytes,
            len_bytes,
            slot,
        };
        Ok((segment, region))
    }

    /// The same from the scarce segment whose largest free block is the smallest that suffices.
    fn take_scarce(&mut self, units: u64) -> Result<Slot, TakeError> {
        let segment = self.scarce.at_least(units).next().ok_or(TakeError::NoFit)?;
        let Standing::Scarce(own) = &mut self.members[segment].standing else {
            unreachable!("only scarce segments have a size in their order");
        };
        let slot = own.take(&mut self.blocks, units)?;
        self.scarce.set(segment, own.largest_units);
        Ok(slot)
    }

    /// A segment has as many regions in use as it may have.
    fn become_scarce(&mut self, segment: SegmentIndex) {
        let member = &mut self.members[segment.0];
        if matches!(member.standing, Standing::Shared) {
            let mut own = FreeBlocks::none(Shape::Stacks, member.capacity_units, self.unit_shift);
            self.shared
                .withdraw_chain(&mut self.blocks, member.first, |blocks, slot| own.add(blocks, slot));
            member.standing = Standing::Scarce(Box::new(own));
        }
        self.scarce.set(segment.0, 0);
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
        let (members, blocks) = (&mut self.members, &self.blocks);
        let member = members.get_mut(segment.0).filter(|member| {
            blocks.get(slot).is_some_and(|block| {
                block.state == State::Allocated
                    && block.segment as usize == segment.0
                    && block.units == units
                    && (block.offset - member.first_unit) << self.unit_shift == offset_bytes
            })
        });
        let member = member.ok_or(FreeError::NotAllocated {
            offset_bytes,
            len_bytes,
        })?;
        member.free_units += units;
        member.regions -= 1;
        assert!(
            member.free_units <= member.capacity_units,
            "corrupt account: more free than there is"
        );
        match &mut member.standing {
            Standing::Removed => unreachable!("no region of it is in use"),
            Standing::Withdrawn => {
                free::give_unindexed(&mut self.blocks, slot);
                return Ok(());
            }
            Standing::Shared => {
                self.shared.give(&mut self.blocks, slot);
            }
            Standing::Scarce(own) => {
                own.give(&mut self.blocks, slot);
                self.scarce.set(segment.0, own.largest_units);
                self.end_scarcity(segment);
            }
        }
        self.free_units += units;
        self.publish();
        Ok(())
    }

    /// Takes a scarce segment back under the index of all if it has regions in plenty.
    fn end_scarcity(&mut self, segment: SegmentIndex) {
        let member = &mut self.members[segment.0];
        if member.has_plenty()
            && let Standing::Scarce(mut own) = std::mem::replace(&mut member.standing, Standing::Shared)
        {
            own.withdraw_chain(&mut self.blocks, member.first, |blocks, slot| {
                self.shared.add(blocks, slot)
            });
            self.scarce.set(segment.0, 0);
        }
    }

    /// A handle through which any thread reads the space of all segments without a lock.
    #[must_use]
    pub fn hint(&self) -> FitHint {
        self.hint.clone()
    }

    /// The size in bytes of the largest free region that a request can get.
    #[must_use]
    pub fn largest_free_bytes(&self) -> u64 {
        self.shared.largest_units.max(self.scarce.largest()) << self.unit_shift
    }

    /// The size in bytes of the largest free region that no request can get, since its segment has as many regions in use as it may have.
    #[must_use]
    pub fn largest_exhausted_bytes(&self) -> u64 {
        let exhausted_units = self.members.iter().filter_map(|member| match &member.standing {
            Standing::Scarce(own) if member.regions == member.regions_max => Some(own.largest_units),
            _ => None,
        });
        exhausted_units.max().unwrap_or(0) << self.unit_shift
    }

    /// Regions of a segment that are in use. Panics if there is no such segment.
    #[must_use]
    pub fn segment_regions(&self, segment: SegmentIndex) -> u32 {
        self.members[segment.0].regions
    }

    /// For each segment a size in bytes that no free region of it exceeds that a request might get; 0 for those withdrawn or removed.
    ///
    /// Looks at the largest free regions of all segments until each has shown its largest one, and at `visits_max` at most. Those that have not by
    /// then have none larger than the last one seen.
    #[must_use]
    pub fn largest_free_upper_bounds_bytes(&self, visits_max: usize) -> Vec<u64> {
        let mut bounds: Vec<Option<u64>> = vec![None; self.members.len()];
        let mut open = 0;
        for (bound, member) in bounds.iter_mut().zip(&self.members) {
            match &member.standing {
                Standing::Withdrawn | Standing::Removed => *bound = Some(0),
                Standing::Scarce(own) => *bound = Some(own.largest_units),
                Standing::Shared if member.free_units == 0 => *bound = Some(0),
                Standing::Shared => open += 1,
            }
        }
        let mut last_units = self.shared.largest_units;
        for slot in self.shared.index.largest_first(&self.blocks).take(visits_max) {
            if open == 0 {
                break;
            }
            let block = &self.blocks[slot];
            last_units = block.units;
            let bound = &mut bounds[block.segment as usize];
            if bound.is_none() {
                *bound = Some(block.units);
                open -= 1;
            }
        }
        let bounds = bounds.into_iter().zip(&self.members);
        bounds
            .map(|(bound, member)| bound.unwrap_or(last_units.min(member.free_units)) << self.unit_shift)
            .collect()
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

    /// Number of segments that are not removed.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.members.len() - self.vacant.len()
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
        let first = Some(member.first).filter(|first| !first.is_none());
        let blocks = first.into_iter().flat_map(|first| self.blocks.from(first));
        blocks.map(|(_, block)| Run {
            offset_bytes: (block.offset - member.first_unit) << self.unit_shift,
            len_bytes: block.units << self.unit_shift,
            is_free: block.state == State::Free,
        })
    }

    /// Bytes of memory that the records of all regions take, and what does not depend on their number.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let own = |member: &Member| match &member.standing {
            Standing::Scarce(own) => own.index.memory_bytes(),
            Standing::Shared | Standing::Withdrawn | Standing::Removed => 0,
        };
        self.blocks.memory_bytes()
            + self.shared.index.memory_bytes()
            + self.scarce.memory_bytes()
            + size_of_val(&self.members[..])
            + self.members.iter().map(own).sum::<usize>()
    }

    /// Looks at every block and panics if chains, indexes, accounts and hint are not consistent. O(n): for tests.
    pub fn check_invariants(&self) {
        let (mut free_units, mut capacity_units, mut largest_units, mut blocks) = (0, 0, 0, 0);
        for (segment, member) in self.members.iter().enumerate() {
            if matches!(member.standing, Standing::Removed) {
                assert!(self.vacant.contains(&SegmentIndex(segment)), "a position is lost");
                assert_eq!(self.scarce.size(segment), 0);
                continue;
            }
            let chain = free::check_chain(&self.blocks, member.first, member.first_unit);
            assert_eq!(
                chain.end_units,
                member.first_unit + member.capacity_units,
                "a chain does not cover its segment"
            );
            assert_eq!(
                (chain.free_units, chain.blocks - chain.free_blocks),
                (member.free_units, member.regions as usize),
                "a segment's account is wrong"
            );
            blocks += chain.blocks;
            let mut in_order_units = 0;
            match &member.standing {
                Standing::Withdrawn | Standing::Removed => {}
                Standing::Shared => largest_units = largest_units.max(chain.largest_units),
                Standing::Scarce(own) => {
                    assert!(!member.has_plenty(), "a segment with regions in plenty is scarce");
                    own.check_largest(&self.blocks, chain.largest_units);
                    own.index.check_members(&self.blocks, |_, block| {
                        block.state == State::Free && block.segment as usize == segment
                    });
                    if member.regions < member.regions_max {
                        in_order_units = chain.largest_units;
                    }
                }
            }
            assert_eq!(
                self.scarce.size(segment),
                in_order_units,
                "the order of scarce segments is wrong"
            );
            if !matches!(member.standing, Standing::Withdrawn) {
                free_units += chain.free_units;
                capacity_units += member.capacity_units;
            }
        }
        assert_eq!((free_units, capacity_units), (self.free_units, self.capacity_units));
        free::check_slots(&self.blocks, blocks);
        self.shared.check_largest(&self.blocks, largest_units);
        self.shared.index.check_members(&self.blocks, |_, block| {
            block.state == State::Free && matches!(self.members[block.segment as usize].standing, Standing::Shared)
        });
        self.scarce.check_invariants();
        assert_eq!(self.hint.largest_free_upper_bound_bytes(), self.largest_free_bytes());
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
                blocks_max: self.blocks.slots_max(),
            },
        }
    }

    fn publish(&self) {
        self.hint.publish(self.largest_free_bytes(), self.free_bytes());
    }
}

//! Blocks that are free, under one index: what it means to take and to give back.

use super::block::{Blocks, Slot, State};
use super::index::{FreeIndex, Shape};
use crate::limits::{REST_MATTERS_BYTES_MIN, REST_PARTS};

/// Why no block was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakeError {
    /// No free block is large enough.
    NoFit,
    /// A block would have to be cut, and no further one can be recorded.
    TooManyBlocks,
}

/// What was found by walking along a chain of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainSum {
    /// The unit after the last block.
    pub(super) end_units: u64,
    pub(super) free_units: u64,
    pub(super) free_blocks: usize,
    pub(super) largest_units: u64,
    pub(super) blocks: usize,
}

/// The free blocks of one or several chains.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    pub(super) index: FreeIndex,
    /// At least the largest free block, and in its class; exact unless the shape is [`Shape::List`].
    pub(super) largest_units: u64,
    /// Units of the shortest request for which it is looked at what would be left.
    rest_matters_units: u64,
}

impl FreeBlocks {
    /// None; each will have at most `units_max` units of 2^`unit_shift` bytes.
    pub(super) fn none(shape: Shape, units_max: u64, unit_shift: u32) -> Self {
        Self {
            index: FreeIndex::new(shape, units_max),
            largest_units: 0,
            rest_matters_units: match shape {
                Shape::List => u64::MAX,
                Shape::Stacks | Shape::Tree => (REST_MATTERS_BYTES_MIN >> unit_shift).max(1),
            },
        }
    }

    /// Adds a free block that is in no index.
    pub(super) fn add(&mut self, blocks: &mut Blocks, slot: Slot) {
        self.index.insert(blocks, slot);
        self.largest_units = self.index.bound_with(self.largest_units, blocks[slot].units);
    }

    /// Makes exactly `units` units allocated, which must be what the index says that a request occupies.
    pub(super) fn take(&mut self, blocks: &mut Blocks, units: u64) -> Result<Slot, TakeError> {
        if units > self.largest_units {
            return Err(TakeError::NoFit);
        }
        let slot = self.choose(blocks, units);
        if slot.is_none() {
            return Err(TakeError::NoFit);
        }
        let taken_units = blocks[slot].units;
        if taken_units > units && !blocks.has_room() {
            return Err(TakeError::TooManyBlocks);
        }
        self.index.remove(blocks, slot);
        if taken_units > units {
            let rest = blocks.split(slot, units);
            self.index.insert(blocks, rest);
        }
        blocks.set_free(slot, false);
        if self.index.bound_is_stale(self.largest_units, taken_units) {
            self.largest_units = self.index.largest_units_bound(blocks);
        }
        Ok(slot)
    }

    /// The tightest block; but if a long request would leave a rest of it that is neither small nor holds another request like it, the tightest of those that
    /// hold two, if there is one.
    fn choose(&self, blocks: &Blocks, units: u64) -> Slot {
        let tightest = self.index.find(blocks, units);
        if units < self.rest_matters_units || tightest.is_none() {
            return tightest;
        }
        let rest_units = blocks[tightest].units - units;
        if rest_units <= units / REST_PARTS || 2 * units > self.largest_units {
            return tightest;
        }
        self.index.find(blocks, 2 * units)
    }

    /// Makes an allocated block free and merges it with its free neighbours. Returns what it has become.
    pub(super) fn give(&mut self, blocks: &mut Blocks, slot: Slot) -> Slot {
        let block = &blocks[slot];
        let (below, above) = (
            block.below_is_free.then_some(block.below),
            block.above_is_free.then_some(block.above),
        );
        for neighbour in [above, below].into_iter().flatten() {
            self.index.remove(blocks, neighbour);
        }
        let slot = give_unindexed(blocks, slot);
        self.add(blocks, slot);
        slot
    }

    /// Takes the free blocks of a chain out of the index, and passes each on.
    pub(super) fn withdraw_chain(
        &mut self,
        blocks: &mut Blocks,
        first: Slot,
        mut pass_on: impl FnMut(&mut Blocks, Slot),
    ) {
        let mut slot = first;
        while !slot.is_none() {
            if blocks[slot].state == State::Free {
                self.index.remove(blocks, slot);
                pass_on(blocks, slot);
            }
            slot = blocks[slot].above;
        }
        self.largest_units = self.index.largest_units_bound(blocks);
    }

    /// Checks what is known of the largest block against what walks along the chains have found. Panics if they do not agree.
    pub(super) fn check_largest(&self, blocks: &Blocks, largest_units: u64) {
        assert_eq!(
            self.index.largest_units(blocks),
            largest_units,
            "the index does not know the largest block"
        );
        assert!(
            largest_units <= self.largest_units,
            "the bound is below the largest block"
        );
    }
}

/// Makes an allocated block free and merges it with its free neighbours, which must be in no index. Returns what it has become.
pub(super) fn give_unindexed(blocks: &mut Blocks, slot: Slot) -> Slot {
    let block = &blocks[slot];
    let (below, below_is_free, above_is_free) = (block.below, block.below_is_free, block.above_is_free);
    blocks.set_free(slot, true);
    if above_is_free {
        blocks.absorb_above(slot);
    }
    if below_is_free {
        blocks.absorb_above(below);
        return below;
    }
    slot
}

/// Walks along a chain that begins at unit `start_units`. Panics if it is corrupt.
pub(super) fn check_chain(blocks: &Blocks, first: Slot, start_units: u64) -> ChainSum {
    let mut sum = ChainSum {
        end_units: start_units,
        free_units: 0,
        free_blocks: 0,
        largest_units: 0,
        blocks: 0,
    };
    let (mut previous, mut previous_is_free) = (Slot::NONE, false);
    for (slot, block) in blocks.from(first) {
        assert_eq!(block.offset, sum.end_units, "the chain has a gap or an overlap");
        assert_eq!(block.below, previous, "wrong link at offset {}", block.offset);
        assert!(
            block.units > 0 && block.state != State::Spare,
            "a spare slot is in the chain"
        );
        let is_free = block.state == State::Free;
        assert!(
            !(is_free && previous_is_free),
            "unmerged neighbours at offset {}",
            block.offset
        );
        let above_is_free = !block.above.is_none() && blocks[block.above].state == State::Free;
        assert_eq!(
            (block.below_is_free, block.above_is_free),
            (previous_is_free, above_is_free),
            "the block at offset {} does not know its neighbours",
            block.offset
        );
        if is_free {
            sum.free_units += block.units;
            sum.free_blocks += 1;
            sum.largest_units = sum.largest_units.max(block.units);
        }
        sum.end_units += block.units;
        sum.blocks += 1;
        (previous, previous_is_free) = (slot, is_free);
    }
    sum
}

/// Checks that the chains have so many blocks together that no slot is lost. Panics otherwise.
pub(super) fn check_slots(blocks: &Blocks, in_chains: usize) {
    assert_eq!(in_chains + blocks.count_spare(), blocks.slots(), "a slot was lost");
}

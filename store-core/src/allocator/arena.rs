//! Blocks and the index of those that are free, as one state: what it means to take and to give back.

use super::Classes;
use super::block::{Blocks, Slot, State};
use super::index::FreeIndex;

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
    pub(super) largest_units: u64,
    pub(super) blocks: usize,
}

/// The blocks of one or several segments, each a chain, under one free index.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) blocks: Blocks,
    pub(super) index: FreeIndex,
    /// At least the largest free block, and in its class; exact with [`Classes::Tight`].
    pub(super) largest_units: u64,
}

impl Arena {
    /// No blocks; each will have at most `units_max` units.
    pub(super) fn new(classes: Classes, units_max: u64, slots_max: u32) -> Self {
        Self {
            blocks: Blocks::none(slots_max),
            index: FreeIndex::new(classes, units_max),
            largest_units: 0,
        }
    }

    /// A single segment that is one free block.
    pub(super) fn of_one_segment(classes: Classes, mut blocks: Blocks) -> Self {
        let mut index = FreeIndex::new(classes, blocks[Slot::FIRST].units);
        index.insert(&mut blocks, Slot::FIRST);
        Self {
            largest_units: index.largest_units_bound(&blocks),
            blocks,
            index,
        }
    }

    /// Makes exactly `units` units allocated, which must be what the index says that a request occupies.
    pub(super) fn take(&mut self, units: u64) -> Result<Slot, TakeError> {
        if units > self.largest_units {
            return Err(TakeError::NoFit);
        }
        let slot = self.index.find(&self.blocks, units);
        if slot.is_none() {
            return Err(TakeError::NoFit);
        }
        let taken_units = self.blocks[slot].units;
        if taken_units > units && !self.blocks.has_room() {
            return Err(TakeError::TooManyBlocks);
        }
        self.index.remove(&mut self.blocks, slot);
        if taken_units > units {
            let rest = self.blocks.split(slot, units);
            self.index.insert(&mut self.blocks, rest);
        }
        self.blocks[slot].state = State::Allocated;
        if self.index.bound_is_stale(self.largest_units, taken_units) {
            self.largest_units = self.index.largest_units_bound(&self.blocks);
        }
        Ok(slot)
    }

    /// Makes an allocated block free and merges it with free neighbours.
    pub(super) fn give(&mut self, slot: Slot) {
        for neighbour in [self.blocks[slot].above, self.blocks[slot].below] {
            if self.is_free(neighbour) {
                self.index.remove(&mut self.blocks, neighbour);
            }
        }
        let slot = self.give_unindexed(slot);
        self.index.insert(&mut self.blocks, slot);
        self.largest_units = self.index.bound_with(self.largest_units, self.blocks[slot].units);
    }

    /// The same in a chain whose free blocks are in no index. Returns what the block has become.
    pub(super) fn give_unindexed(&mut self, slot: Slot) -> Slot {
        let (below, above) = (self.blocks[slot].below, self.blocks[slot].above);
        self.blocks[slot].state = State::Free;
        if self.is_free(above) {
            self.blocks.absorb_above(slot);
        }
        if self.is_free(below) {
            self.blocks.absorb_above(below);
            return below;
        }
        slot
    }

    /// Takes the free blocks of a chain out of the index.
    pub(super) fn withdraw_chain(&mut self, first: Slot) {
        let mut slot = first;
        while !slot.is_none() {
            if self.is_free(slot) {
                self.index.remove(&mut self.blocks, slot);
            }
            slot = self.blocks[slot].above;
        }
        self.largest_units = self.index.largest_units_bound(&self.blocks);
    }

    fn is_free(&self, slot: Slot) -> bool {
        !slot.is_none() && self.blocks[slot].state == State::Free
    }

    /// Walks along a chain that begins at unit `start_units`. Panics if it is corrupt.
    pub(super) fn check_chain(&self, first: Slot, start_units: u64) -> ChainSum {
        let mut sum = ChainSum {
            end_units: start_units,
            free_units: 0,
            largest_units: 0,
            blocks: 0,
        };
        let (mut previous, mut previous_is_free) = (Slot::NONE, false);
        for (slot, block) in self.blocks.from(first) {
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
            if is_free {
                sum.free_units += block.units;
                sum.largest_units = sum.largest_units.max(block.units);
            }
            sum.end_units += block.units;
            sum.blocks += 1;
            (previous, previous_is_free) = (slot, is_free);
        }
        sum
    }

    /// Checks the index against what walks along all chains have found. Panics if they do not agree.
    pub(super) fn check(&self, blocks: usize, largest_units: u64) {
        assert_eq!(
            blocks + self.blocks.count_spare(),
            self.blocks.slots(),
            "a slot was lost"
        );
        assert_eq!(
            self.index.largest_units(&self.blocks),
            largest_units,
            "the index does not know the largest block"
        );
        assert!(
            largest_units <= self.largest_units,
            "the bound is below the largest block"
        );
    }
}

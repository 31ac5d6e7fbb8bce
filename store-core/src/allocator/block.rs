//! The blocks of a segment: a chain in address order, kept in an arena of reusable slots.

use std::ops::{Index, IndexMut};

/// The place of a block in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

impl Slot {
    /// No block.
    pub(super) const NONE: Self = Self(u32::MAX);

    /// The block at offset 0: splitting and merging keep the slot of the lower block, so it never moves.
    pub(super) const FIRST: Self = Self(0);

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The slot at this place, as [`Blocks::push`] made it. Panics beyond 2^32 places.
    pub(super) fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("a place in the arena"))
    }

    /// The place in the arena.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }

    /// Position of the block in the heap order of a tree: a bijective scramble of 32 bits, which looks random but depends on nothing but
    /// the slot.
    pub(super) fn priority(self) -> u32 {
        let mut bits = self.0 ^ 0x9e37_79b9;
        bits = (bits ^ bits >> 16).wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ bits >> 13).wrapping_mul(0xc2b2_ae35);
        bits ^ bits >> 16
    }
}

/// What a slot of the arena stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No block: the slot waits in the list of spare slots.
    Spare,
    /// A block that is in the free index.
    Free,
    /// A block that belongs to a caller.
    Allocated,
}

/// A run of units with one state, and its links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// First unit of the block.
    pub(super) offset: u64,
    /// Units in the block; none only before a new block gets its own.
    pub(super) units: u64,
    /// The block that ends where this one starts.
    pub(super) below: Slot,
    /// The block that starts where this one ends; in a spare slot, the next spare slot.
    pub(super) above: Slot,
    /// Links of the free index, meaningful in a free block only.
    pub(super) left: Slot,
    pub(super) right: Slot,
    pub(super) parent: Slot,
    /// In a free block of a tree: the youngest of the other blocks of its size, which are stacked on it.
    pub(super) youngest: Slot,
    /// Which of several segments the block is a part of.
    pub(super) segment: u32,
    pub(super) state: State,
    /// Whether the block lies in a stack on another one rather than in a tree itself.
    pub(super) is_stacked: bool,
    /// Whether the neighbours are free: to give a block back, they need not be read unless they are.
    pub(super) below_is_free: bool,
    pub(super) above_is_free: bool,
}

impl Block {
    /// An allocated block of no units, without neighbours and in no index.
    const LONELY: Self = Self {
        offset: 0,
        units: 0,
        below: Slot::NONE,
        above: Slot::NONE,
        left: Slot::NONE,
        right: Slot::NONE,
        parent: Slot::NONE,
        youngest: Slot::NONE,
        segment: 0,
        state: State::Allocated,
        is_stacked: false,
        below_is_free: false,
        above_is_free: false,
    };
}

// Documented beside the types that hold blocks.
const _: () = assert!(size_of::<Block>() == 48);

/// The arena. Indexing a slot that never existed panics.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    spare: Slot,
    slots_max: u32,
}

impl Blocks {
    /// One free block of `units` units that is not yet in any index.
    pub(super) fn new(units: u64, slots_max: u32) -> Self {
        let mut blocks = Self::none(slots_max);
        let first = blocks.push(0, units);
        blocks[first].state = State::Free;
        blocks
    }

    /// No block at all.
    pub(super) fn none(slots_max: u32) -> Self {
        Self {
            blocks: Vec::new(),
            spare: Slot::NONE,
            slots_max,
        }
    }

    /// Adds an allocated block of `units` units without neighbours, in the slot after the last one. Panics if there is no room.
    pub(super) fn push(&mut self, offset: u64, units: u64) -> Slot {
        assert!(
            self.blocks.len() < self.slots_max as usize,
            "more than {} blocks",
            self.slots_max
        );
        #[expect(clippy::cast_possible_truncation, reason = "slots_max is a u32")]
        let slot = self.blocks.len() as u32;
        self.blocks.push(Block {
            offset,
            units,
            ..Block::LONELY
        });
        Slot(slot)
    }

    /// The block in `slot`, or nothing if there is no such slot.
    pub(super) fn get(&self, slot: Slot) -> Option<&Block> {
        self.blocks.get(slot.index())
    }

    /// Whether another block can be recorded.
    pub(super) fn has_room(&self) -> bool {
        !self.spare.is_none() || self.blocks.len() < self.slots_max as usize
    }

    /// The most blocks that can be recorded.
    pub(super) fn slots_max(&self) -> u32 {
        self.slots_max
    }

    /// Number of slots ever used, spare ones included.
    pub(super) fn slots(&self) -> usize {
        self.blocks.len()
    }

    /// Bytes of memory that all slots take.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.blocks[..])
    }

    /// All slots ever used, spare ones included.
    pub(super) fn all(&self) -> impl Iterator<Item = (Slot, &Block)> {
        self.blocks
            .iter()
            .enumerate()
            .map(|(index, block)| (Slot::at(index), block))
    }

    /// Number of spare slots, counted one by one.
    pub(super) fn count_spare(&self) -> usize {
        let next = |slot: &Slot| Some(self[*slot].above).filter(|above| !above.is_none());
        std::iter::successors(Some(self.spare).filter(|spare| !spare.is_none()), next).count()
    }

    /// Cuts `slot` to `units` units and returns a new free block, in no index, of what is left above.
    ///
    /// Panics if nothing would be left or if [`Self::has_room`] is false.
    pub(super) fn split(&mut self, slot: Slot, units: u64) -> Slot {
        let lower = self[slot];
        assert!(
            0 < units && units < lower.units,
            "cannot cut {units} units off a block of {}",
            lower.units
        );
        let upper = self.take_slot();
        let block = &mut self[upper];
        block.offset = lower.offset + units;
        block.units = lower.units - units;
        block.below = slot;
        block.above = lower.above;
        block.segment = lower.segment;
        block.state = State::Free;
        block.below_is_free = lower.state == State::Free;
        block.above_is_free = lower.above_is_free;
        if !lower.above.is_none() {
            let neighbour = &mut self[lower.above];
            neighbour.below = upper;
            neighbour.below_is_free = true;
        }
        let block = &mut self[slot];
        block.units = units;
        block.above = upper;
        block.above_is_free = true;
        upper
    }

    /// Makes a block free or allocated, and lets its neighbours know.
    pub(super) fn set_free(&mut self, slot: Slot, is_free: bool) {
        let block = &mut self[slot];
        block.state = if is_free { State::Free } else { State::Allocated };
        let (below, above) = (block.below, block.above);
        if !below.is_none() {
            self[below].above_is_free = is_free;
        }
        if !above.is_none() {
            self[above].below_is_free = is_free;
        }
    }

    /// Merges the block above `slot` into it; neither may be in an index. Panics if they don't adjoin.
    pub(super) fn absorb_above(&mut self, slot: Slot) {
        let Block {
            offset,
            units,
            above: gone,
            state,
            ..
        } = self[slot];
        let upper = self[gone];
        assert_eq!(
            offset + units,
            upper.offset,
            "corrupt block chain: neighbours do not adjoin"
        );
        let block = &mut self[slot];
        block.units = units + upper.units;
        block.above = upper.above;
        block.above_is_free = upper.above_is_free;
        if !upper.above.is_none() {
            let neighbour = &mut self[upper.above];
            neighbour.below = slot;
            neighbour.below_is_free = state == State::Free;
        }
        self.give_slot(gone);
    }

    /// All blocks from `first` on in address order.
    pub(super) fn from(&self, first: Slot) -> impl Iterator<Item = (Slot, &Block)> {
        let next = |slot: &Slot| Some(self[*slot].above).filter(|above| !above.is_none());
        std::iter::successors(Some(first), next).map(|slot| (slot, &self[slot]))
    }

    /// Adds an allocated block of `units` units without neighbours, in any slot. Panics if [`Self::has_room`] is false.
    pub(super) fn add(&mut self, offset: u64, units: u64) -> Slot {
        let slot = self.take_slot();
        self[slot] = Block {
            offset,
            units,
            ..Block::LONELY
        };
        slot
    }

    /// Gives up a block that has no neighbours and is in no index.
    pub(super) fn remove(&mut self, slot: Slot) {
        let block = &self[slot];
        assert!(
            block.below.is_none() && block.above.is_none() && block.state != State::Spare,
            "corrupt block chain: a block that is given up has neighbours"
        );
        self.give_slot(slot);
    }

    fn give_slot(&mut self, slot: Slot) {
        let spare = self.spare;
        let block = &mut self[slot];
        block.state = State::Spare;
        block.above = spare;
        self.spare = slot;
    }

    fn take_slot(&mut self) -> Slot {
        if self.spare.is_none() {
            return self.push(0, 0);
        }
        let slot = self.spare;
        assert_eq!(self[slot].state, State::Spare, "corrupt list of spare slots");
        self.spare = self[slot].above;
        slot
    }
}

impl Index<Slot> for Blocks {
    type Output = Block;

    fn index(&self, slot: Slot) -> &Block {
        &self.blocks[slot.index()]
    }
}

impl IndexMut<Slot> for Blocks {
    fn index_mut(&mut self, slot: Slot) -> &mut Block {
        &mut self.blocks[slot.index()]
    }
}

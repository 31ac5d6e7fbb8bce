//! Numbered items in the order of their sizes.

use super::block::{Blocks, Slot, State};
use super::index::{FreeIndex, Shape};

/// Items 0, 1, 2 … and the size of each, searched by size.
///
/// The same classes, bitmaps and trees as for free blocks: a change of one size and a search are O(log n), and never a scan. Items of size 0
/// are in no class.
#[derive(Clone, Debug)]
pub(crate) struct SizeOrder {
    /// Each item is a block whose offset is its number. Free ones are those in the index.
    items: Blocks,
    index: FreeIndex,
}

impl SizeOrder {
    /// Items that all have size 0.
    pub(crate) fn new(items: usize) -> Self {
        let mut order = Self {
            items: Blocks::none(u32::MAX),
            index: FreeIndex::new(Shape::Tree, u64::MAX),
        };
        (0..items).for_each(|_| order.push());
        order
    }

    /// Adds an item of size 0 with the next number.
    pub(crate) fn push(&mut self) {
        let number = self.items.slots() as u64;
        self.items.push(number, 0);
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.slots()
    }

    /// The size of an item.
    pub(crate) fn size(&self, item: usize) -> u64 {
        self.items[Slot::at(item)].units
    }

    /// Gives an item a new size: O(1) if it is the old one.
    pub(crate) fn set(&mut self, item: usize, size: u64) {
        let slot = Slot::at(item);
        let old = self.items[slot].units;
        if old == size {
            return;
        }
        if old > 0 {
            self.index.remove(&mut self.items, slot);
        }
        self.items[slot].units = size;
        self.items[slot].state = if size > 0 { State::Free } else { State::Allocated };
        if size > 0 {
            self.index.insert(&mut self.items, slot);
        }
    }

    /// Items of at least `size`, which is not 0, the smallest first, and equal ones by their numbers.
    pub(crate) fn at_least(&self, size: u64) -> impl Iterator<Item = usize> + '_ {
        debug_assert!(size > 0, "items of size 0 are in no class");
        let some = |slot: Slot| Some(slot).filter(|slot| !slot.is_none());
        let first = some(self.index.find(&self.items, size));
        std::iter::successors(first, move |&slot| some(self.index.next(&self.items, slot))).map(Slot::index)
    }

    /// The largest size.
    pub(crate) fn largest(&self) -> u64 {
        self.index.largest_units(&self.items)
    }

    /// Bytes of memory for the items as they are, and for their classes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.items.memory_bytes() + self.index.memory_bytes()
    }

    /// Looks at every item and panics if the order is not consistent. O(n): for tests.
    pub(crate) fn check_invariants(&self) {
        self.index.check_members(&self.items, |_, block| block.units > 0);
    }
}

//! Free blocks of one size: the oldest of them lies in the tree of its class, the others are stacked on it.
//!
//! A block that comes free is found first, while its record is still at hand, and neither pushing nor popping changes the tree. The stack is a ring
//! through the blocks' own links: `right` leads to the next older block and from the oldest back to the youngest.

use super::block::{Blocks, Slot};

/// Lays the block in `slot` on top of the stack of `base`, which lies in a tree and has the same size.
pub(super) fn push(blocks: &mut Blocks, base: Slot, slot: Slot) {
    debug_assert_eq!(blocks[base].units, blocks[slot].units, "a stack has one size");
    let youngest = blocks[base].youngest;
    let (younger, older) = if youngest.is_none() {
        (slot, slot)
    } else {
        let oldest = blocks[youngest].left;
        blocks[youngest].left = slot;
        blocks[oldest].right = slot;
        (oldest, youngest)
    };
    let block = &mut blocks[slot];
    (block.left, block.right, block.is_stacked) = (younger, older, true);
    blocks[base].youngest = slot;
}

/// Takes the block in `slot` out of the stack of `base`, wherever it lies in it. Panics if it is not in one.
pub(super) fn remove(blocks: &mut Blocks, base: Slot, slot: Slot) {
    let block = &mut blocks[slot];
    assert!(block.is_stacked, "corrupt free index: a block is in no stack");
    let (younger, older) = (block.left, block.right);
    block.is_stacked = false;
    if older == slot {
        assert_eq!(
            blocks[base].youngest, slot,
            "corrupt free index: a stack of one block is not that of its size"
        );
        blocks[base].youngest = Slot::NONE;
        return;
    }
    assert_eq!(
        blocks[older].left, slot,
        "corrupt free index: an older block does not know the younger"
    );
    blocks[younger].right = older;
    blocks[older].left = younger;
    if blocks[base].youngest == slot {
        blocks[base].youngest = older;
    }
}

/// The youngest block of the size of `base`: the top of its stack, or itself.
pub(super) fn top(blocks: &Blocks, base: Slot) -> Slot {
    let youngest = blocks[base].youngest;
    if youngest.is_none() { base } else { youngest }
}

/// The block that follows `base` in age, or [`Slot::NONE`] if it is the only one of its size.
pub(super) fn second_oldest(blocks: &Blocks, base: Slot) -> Slot {
    let youngest = blocks[base].youngest;
    if youngest.is_none() {
        youngest
    } else {
        blocks[youngest].left
    }
}

/// Makes `heir` the bearer of the stack of `base`, both being in no stack and of one size.
pub(super) fn hand_over(blocks: &mut Blocks, base: Slot, heir: Slot) {
    blocks[heir].youngest = std::mem::replace(&mut blocks[base].youngest, Slot::NONE);
}

/// The blocks stacked on `base`, the youngest first.
pub(super) fn iter(blocks: &Blocks, base: Slot) -> impl Iterator<Item = Slot> {
    let youngest = blocks[base].youngest;
    let some = |slot: Slot| Some(slot).filter(|slot| !slot.is_none());
    std::iter::successors(some(youngest), move |slot| {
        Some(blocks[*slot].right).filter(|&older| older != youngest)
    })
}

//! The last-in-first-out list of the free blocks of one size class under the peer's rule, linked through the blocks:
//! `left` towards the head, `right` away from it.

use super::block::{Blocks, Slot};

/// Adds the block in `slot`, which must be in no list, at the head.
pub(super) fn insert(blocks: &mut Blocks, head: &mut Slot, slot: Slot) {
    let next = *head;
    if !next.is_none() {
        blocks[next].left = slot;
    }
    let block = &mut blocks[slot];
    block.left = Slot::NONE;
    block.right = next;
    *head = slot;
}

/// Takes the block in `slot` out of the list. Panics if it is not in it where its links say.
pub(super) fn remove(blocks: &mut Blocks, head: &mut Slot, slot: Slot) {
    let (previous, next) = (blocks[slot].left, blocks[slot].right);
    if previous.is_none() {
        assert_eq!(
            *head, slot,
            "corrupt free index: a block without predecessor is not the head of its class"
        );
        *head = next;
    } else {
        assert_eq!(
            blocks[previous].right, slot,
            "corrupt free index: a predecessor does not know its successor"
        );
        blocks[previous].right = next;
    }
    if !next.is_none() {
        blocks[next].left = previous;
    }
}

/// All blocks of the list from its head.
pub(super) fn iter(blocks: &Blocks, head: Slot) -> impl Iterator<Item = Slot> {
    let some = |slot: Slot| Some(slot).filter(|slot| !slot.is_none());
    std::iter::successors(some(head), move |slot| some(blocks[*slot].right))
}

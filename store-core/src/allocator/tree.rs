//! An ordered set of the free blocks of one size class: a treap linked through the blocks themselves.
//!
//! In-order it is sorted by (size, offset); along every path priorities do not increase. Priorities are a scramble of
//! the slots, so depth is O(log n) whatever the order of insertions. Parent links make a removal a local change.

use std::cmp::Ordering;

use super::block::{Block, Blocks, Slot};

fn key(block: &Block) -> (u64, u64) {
    (block.units, block.offset)
}

/// Adds the block in `slot`, which must be in no tree.
pub(super) fn insert(blocks: &mut Blocks, root: &mut Slot, slot: Slot) {
    let (new_key, priority) = (key(&blocks[slot]), slot.priority());
    let (mut parent, mut goes_left) = (Slot::NONE, false);
    let mut current = *root;
    while !current.is_none() {
        if current.priority() < priority {
            break;
        }
        let block = &blocks[current];
        (parent, goes_left) = (current, new_key < key(block));
        current = if goes_left { block.left } else { block.right };
    }
    blocks[slot].parent = parent;
    if parent.is_none() {
        *root = slot;
    } else if goes_left {
        blocks[parent].left = slot;
    } else {
        blocks[parent].right = slot;
    }
    split_below(blocks, current, slot);
}

/// Makes the subtree `current` the two subtrees of `slot`: what is smaller to its left, what is larger to its right.
fn split_below(blocks: &mut Blocks, mut current: Slot, slot: Slot) {
    let slot_key = key(&blocks[slot]);
    // The lowest block on either side whose inner link is still open; at first the open links are those of `slot`.
    let (mut smaller, mut larger) = (slot, slot);
    while !current.is_none() {
        if key(&blocks[current]) < slot_key {
            link_smaller(blocks, slot, smaller, current);
            smaller = current;
            current = blocks[current].right;
        } else {
            link_larger(blocks, slot, larger, current);
            larger = current;
            current = blocks[current].left;
        }
    }
    link_smaller(blocks, slot, smaller, Slot::NONE);
    link_larger(blocks, slot, larger, Slot::NONE);
}

fn link_smaller(blocks: &mut Blocks, slot: Slot, open: Slot, child: Slot) {
    if open == slot {
        blocks[slot].left = child;
    } else {
        blocks[open].right = child;
    }
    if !child.is_none() {
        blocks[child].parent = open;
    }
}

fn link_larger(blocks: &mut Blocks, slot: Slot, open: Slot, child: Slot) {
    if open == slot {
        blocks[slot].right = child;
    } else {
        blocks[open].left = child;
    }
    if !child.is_none() {
        blocks[child].parent = open;
    }
}

/// Takes the block in `slot` out of the tree. Panics if it is not in it where its links say.
pub(super) fn remove(blocks: &mut Blocks, root: &mut Slot, slot: Slot) {
    let Block {
        mut left,
        mut right,
        mut parent,
        ..
    } = blocks[slot];
    let mut goes_left = false;
    if parent.is_none() {
        assert_eq!(
            *root, slot,
            "corrupt free index: a block without parent is not the root of its class"
        );
    } else {
        goes_left = blocks[parent].left == slot;
        assert!(
            goes_left || blocks[parent].right == slot,
            "corrupt free index: a parent does not know its child"
        );
    }
    // Merge the two subtrees from the top, the higher priority first.
    loop {
        let child = match (left.is_none(), right.is_none()) {
            (true, _) => right,
            (false, true) => left,
            (false, false) if left.priority() >= right.priority() => left,
            (false, false) => right,
        };
        if parent.is_none() {
            *root = child;
        } else if goes_left {
            blocks[parent].left = child;
        } else {
            blocks[parent].right = child;
        }
        if child.is_none() {
            return;
        }
        blocks[child].parent = parent;
        if left.is_none() || right.is_none() {
            return;
        }
        parent = child;
        goes_left = child == right;
        if goes_left {
            right = blocks[child].left;
        } else {
            left = blocks[child].right;
        }
    }
}

/// The smallest block of at least `units` units, the lowest of them if several are equal.
pub(super) fn first_at_least(blocks: &Blocks, root: Slot, units: u64) -> Slot {
    let (mut current, mut best) = (root, Slot::NONE);
    while !current.is_none() {
        let block = &blocks[current];
        if block.units >= units {
            best = current;
            current = block.left;
        } else {
            current = block.right;
        }
    }
    best
}

/// A block of exactly `units` units, or [`Slot::NONE`]; the tree must have no two blocks of one size.
pub(super) fn find(blocks: &Blocks, root: Slot, units: u64) -> Slot {
    let mut current = root;
    while !current.is_none() {
        let block = &blocks[current];
        match block.units.cmp(&units) {
            Ordering::Equal => break,
            Ordering::Greater => current = block.left,
            Ordering::Less => current = block.right,
        }
    }
    current
}

/// The next larger block of the tree that holds `slot`, or [`Slot::NONE`].
pub(super) fn next(blocks: &Blocks, slot: Slot) -> Slot {
    let right = blocks[slot].right;
    if !right.is_none() {
        return first_at_least(blocks, right, 0);
    }
    let (mut child, mut parent) = (slot, blocks[slot].parent);
    while !parent.is_none() && blocks[parent].right == child {
        (child, parent) = (parent, blocks[parent].parent);
    }
    parent
}

/// The next smaller block of the tree that holds `slot`, or [`Slot::NONE`].
pub(super) fn previous(blocks: &Blocks, slot: Slot) -> Slot {
    let left = blocks[slot].left;
    if !left.is_none() {
        return last(blocks, left);
    }
    let (mut child, mut parent) = (slot, blocks[slot].parent);
    while !parent.is_none() && blocks[parent].left == child {
        (child, parent) = (parent, blocks[parent].parent);
    }
    parent
}

/// The largest block of a tree that is not empty.
pub(super) fn last(blocks: &Blocks, root: Slot) -> Slot {
    let mut current = root;
    while !blocks[current].right.is_none() {
        current = blocks[current].right;
    }
    current
}

/// Checks order, heap order and links of the whole tree and returns its blocks. Panics if it is corrupt.
pub(super) fn check(blocks: &Blocks, root: Slot) -> Vec<Slot> {
    let mut pending = vec![(root, Slot::NONE, (0, 0), (u64::MAX, u64::MAX))];
    let mut found = Vec::new();
    while let Some((slot, parent, above, below)) = pending.pop() {
        if slot.is_none() {
            continue;
        }
        let block = &blocks[slot];
        let block_key = key(block);
        assert_eq!(block.parent, parent, "wrong parent link at offset {}", block.offset);
        assert!(
            above <= block_key && block_key < below,
            "order broken at offset {}",
            block.offset
        );
        assert!(
            parent.is_none() || parent.priority() >= slot.priority(),
            "heap order broken at {block_key:?}"
        );
        pending.push((block.left, slot, above, block_key));
        pending.push((block.right, slot, block_key, below));
        found.push(slot);
    }
    found
}

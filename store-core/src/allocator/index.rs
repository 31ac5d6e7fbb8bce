//! The free index: which free block serves a request.

use super::block::{Block, Blocks, Slot, State};
use super::class::{Class, ClassBitmap, ClassRule};
use super::{Classes, list, stack, tree};
use crate::limits::{CLASS_MANTISSA_BITS, PEER_CLASS_MANTISSA_BITS};

/// How the blocks of one size class are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A tree of the sizes, and on each of them a stack: of equal blocks the youngest comes first.
    Stacks,
    /// A tree of all blocks: of equal blocks the lowest comes first.
    Tree,
    /// A last-in-first-out list, whatever the sizes: the peer's rule.
    List,
}

impl From<Classes> for Shape {
    fn from(classes: Classes) -> Self {
        match classes {
            Classes::Tight => Self::Stacks,
            Classes::Peer => Self::List,
        }
    }
}

/// Free blocks by size class.
#[derive(Clone, Debug)]
pub(super) struct FreeIndex {
    shape: Shape,
    rule: ClassRule,
    occupied: ClassBitmap,
    /// Root or head of each class.
    heads: Vec<Slot>,
}

impl FreeIndex {
    /// An empty index for blocks of up to `capacity_units` units.
    pub(super) fn new(shape: Shape, capacity_units: u64) -> Self {
        let rule = ClassRule::new(match shape {
            Shape::Stacks | Shape::Tree => CLASS_MANTISSA_BITS,
            Shape::List => PEER_CLASS_MANTISSA_BITS,
        });
        let count = rule.floor(capacity_units).index() + 1;
        Self {
            shape,
            rule,
            occupied: ClassBitmap::new(count),
            heads: vec![Slot::NONE; count],
        }
    }

    /// Number of classes that an index for blocks of up to `capacity_units` units needs under the peer's rule.
    pub(super) fn peer_class_count(capacity_units: u64) -> usize {
        ClassRule::new(PEER_CLASS_MANTISSA_BITS).floor(capacity_units).index() + 1
    }

    /// The units that a request of `units` units occupies.
    pub(super) fn occupied_units(&self, units: u64) -> u64 {
        match self.shape {
            Shape::Stacks | Shape::Tree => units,
            Shape::List => self.rule.smallest(self.rule.ceil(units)),
        }
    }

    /// Adds a free block.
    pub(super) fn insert(&mut self, blocks: &mut Blocks, slot: Slot) {
        let units = blocks[slot].units;
        let class = self.rule.floor(units);
        let head = &mut self.heads[class.index()];
        if head.is_none() {
            self.occupied.insert(class);
        }
        match self.shape {
            Shape::Stacks => {
                let base = tree::find(blocks, *head, units);
                if base.is_none() {
                    tree::insert(blocks, head, slot);
                } else {
                    stack::push(blocks, base, slot);
                }
            }
            Shape::Tree => tree::insert(blocks, head, slot),
            Shape::List => list::insert(blocks, head, slot),
        }
    }

    /// Takes a free block out.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, slot: Slot) {
        let block = &blocks[slot];
        assert_eq!(
            block.state,
            State::Free,
            "corrupt free index: it holds a block that is not free"
        );
        let (units, is_stacked) = (block.units, block.is_stacked);
        let class = self.rule.floor(units);
        let head = &mut self.heads[class.index()];
        match self.shape {
            Shape::Stacks if is_stacked => {
                let base = tree::find(blocks, *head, units);
                stack::remove(blocks, base, slot);
            }
            Shape::Stacks => {
                let heir = stack::second_oldest(blocks, slot);
                tree::remove(blocks, head, slot);
                if !heir.is_none() {
                    stack::remove(blocks, slot, heir);
                    stack::hand_over(blocks, slot, heir);
                    tree::insert(blocks, head, heir);
                }
            }
            Shape::Tree => tree::remove(blocks, head, slot),
            Shape::List => list::remove(blocks, head, slot),
        }
        if head.is_none() {
            self.occupied.remove(class);
        }
    }

    /// A block of at least `units` units, or [`Slot::NONE`]; `units` must be what [`Self::occupied_units`] returned.
    ///
    /// The tightest, from the boundary class if that has one, otherwise the smallest of the next class that has a block; of equal ones the youngest
    /// or the lowest, as the shape is. With [`Shape::List`] the youngest of the first class that suffices.
    pub(super) fn find(&self, blocks: &Blocks, units: u64) -> Slot {
        let boundary = self.rule.floor(units);
        let found = if self.shape == Shape::List {
            debug_assert!(
                units <= self.rule.smallest(boundary),
                "a peer request is not the smallest size of its class"
            );
            self.first_of_class(blocks, boundary)
        } else {
            let in_boundary = if self.occupied.contains(boundary) {
                tree::first_at_least(blocks, self.heads[boundary.index()], units)
            } else {
                Slot::NONE
            };
            if in_boundary.is_none() {
                self.first_of_class(blocks, boundary.next())
            } else {
                in_boundary
            }
        };
        if self.shape == Shape::Stacks && !found.is_none() {
            return stack::top(blocks, found);
        }
        found
    }

    /// The smallest block of the first class from `from` on that has one, the head of the list if it is one, or [`Slot::NONE`].
    fn first_of_class(&self, blocks: &Blocks, from: Class) -> Slot {
        let Some(class) = self.occupied.first_at_least(from) else {
            return Slot::NONE;
        };
        let head = self.heads[class.index()];
        match self.shape {
            Shape::Stacks | Shape::Tree => tree::first_at_least(blocks, head, 0),
            Shape::List => head,
        }
    }

    /// The next larger block, the next higher among equals, or [`Slot::NONE`]. Only with [`Shape::Tree`].
    pub(super) fn next(&self, blocks: &Blocks, slot: Slot) -> Slot {
        assert_eq!(self.shape, Shape::Tree, "other shapes have no order of all blocks");
        let next = tree::next(blocks, slot);
        if !next.is_none() {
            return next;
        }
        self.first_of_class(blocks, self.rule.floor(blocks[slot].units).next())
    }

    /// All blocks, the largest first. Only where classes are trees.
    pub(super) fn largest_first<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = Slot> + 'a {
        assert_ne!(self.shape, Shape::List, "a list has no order of sizes");
        let class_below = |class: Class| self.occupied.last_at_most(class.previous()?);
        let classes = std::iter::successors(self.occupied.last(), move |&class| class_below(class));
        let some = |slot: Slot| Some(slot).filter(|slot| !slot.is_none());
        let largest_of = move |class: Class| some(tree::last(blocks, self.heads[class.index()]));
        classes
            .flat_map(move |class| {
                std::iter::successors(largest_of(class), move |&slot| some(tree::previous(blocks, slot)))
            })
            .flat_map(move |base| std::iter::once(base).chain(stack::iter(blocks, base)))
    }

    /// Bytes of memory that the index takes whatever is in it.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.heads[..])
    }

    /// The size of the largest free block: O(log n), with [`Shape::List`] O(size of a class).
    pub(super) fn largest_units(&self, blocks: &Blocks) -> u64 {
        let Some(class) = self.occupied.last() else {
            return 0;
        };
        let head = self.heads[class.index()];
        match self.shape {
            Shape::Stacks | Shape::Tree => blocks[tree::last(blocks, head)].units,
            Shape::List => list::iter(blocks, head)
                .map(|slot| blocks[slot].units)
                .max()
                .unwrap_or(0),
        }
    }

    /// A bound of the largest free block that is no smaller than it and in the same class, in O(log n) at worst.
    pub(super) fn largest_units_bound(&self, blocks: &Blocks) -> u64 {
        match (self.shape, self.occupied.last()) {
            (_, None) => 0,
            (Shape::Stacks | Shape::Tree, Some(_)) => self.largest_units(blocks),
            (Shape::List, Some(class)) => self.rule.largest(class),
        }
    }

    /// Whether a bound that held before the free block of `taken_units` was cut up may be too high now.
    pub(super) fn bound_is_stale(&self, bound_units: u64, taken_units: u64) -> bool {
        match self.shape {
            Shape::Stacks | Shape::Tree => taken_units >= bound_units,
            Shape::List => self.rule.floor(taken_units) >= self.rule.floor(bound_units),
        }
    }

    /// A bound that holds after a free block of `units` joins blocks that `bound_units` is a bound of.
    pub(super) fn bound_with(&self, bound_units: u64, units: u64) -> u64 {
        match self.shape {
            Shape::Stacks | Shape::Tree => bound_units.max(units),
            Shape::List => bound_units.max(self.rule.largest(self.rule.floor(units))),
        }
    }

    /// Checks that the index holds exactly the wanted blocks, each in its class. Panics if it is corrupt.
    pub(super) fn check_members(&self, blocks: &Blocks, is_member: impl Fn(Slot, &Block) -> bool) {
        let members = blocks.all().filter(|&(slot, block)| is_member(slot, block)).count();
        let mut indexed = 0;
        let mut class = self.rule.floor(0);
        for &head in &self.heads {
            assert_eq!(
                self.occupied.contains(class),
                !head.is_none(),
                "bitmap wrong for {class:?}"
            );
            indexed += self.check_class(blocks, head, class);
            class = class.next();
        }
        assert_eq!(
            indexed, members,
            "the index and the chain disagree on the number of free blocks"
        );
    }

    /// Checks one class and returns its number of blocks. Panics if it is corrupt.
    fn check_class(&self, blocks: &Blocks, head: Slot, class: Class) -> usize {
        let is_of_class = |slot: Slot| self.rule.floor(blocks[slot].units) == class;
        if self.shape == Shape::List {
            assert!(list::iter(blocks, head).all(is_of_class), "strangers in {class:?}");
            return list::iter(blocks, head).count();
        }
        let mut count = 0;
        for base in tree::check(blocks, head) {
            assert!(is_of_class(base), "a stranger in {class:?}");
            assert!(!blocks[base].is_stacked, "a stacked block is in a tree");
            count += 1;
            for stacked in stack::iter(blocks, base) {
                assert_eq!(self.shape, Shape::Stacks, "a tree of all blocks has a stack");
                let block = &blocks[stacked];
                assert!(
                    block.is_stacked && block.units == blocks[base].units,
                    "a stranger in a stack"
                );
                assert_eq!(blocks[block.right].left, stacked, "a stack is no ring");
                count += 1;
            }
        }
        count
    }
}

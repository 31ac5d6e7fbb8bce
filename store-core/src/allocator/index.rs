//! The free index: which free block serves a request.

use super::block::{Block, Blocks, Slot, State};
use super::class::{ClassBitmap, ClassRule};
use super::{Classes, list, tree};
use crate::limits::{CLASS_MANTISSA_BITS, PEER_CLASS_MANTISSA_BITS};

/// The free blocks of a segment by size class.
///
/// With [`Classes::Tight`] a class is an ordered tree, with [`Classes::Peer`] a last-in-first-out list.
#[derive(Clone, Debug)]
pub(super) struct FreeIndex {
    classes: Classes,
    rule: ClassRule,
    occupied: ClassBitmap,
    /// Root or head of each class.
    heads: Vec<Slot>,
}

impl FreeIndex {
    /// An empty index for blocks of up to `capacity_units` units.
    pub(super) fn new(classes: Classes, capacity_units: u64) -> Self {
        let rule = ClassRule::new(match classes {
            Classes::Tight => CLASS_MANTISSA_BITS,
            Classes::Peer => PEER_CLASS_MANTISSA_BITS,
        });
        let count = rule.floor(capacity_units).index() + 1;
        Self {
            classes,
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
        match self.classes {
            Classes::Tight => units,
            Classes::Peer => self.rule.smallest(self.rule.ceil(units)),
        }
    }

    /// Adds a free block.
    pub(super) fn insert(&mut self, blocks: &mut Blocks, slot: Slot) {
        let class = self.rule.floor(blocks[slot].units);
        let head = &mut self.heads[class.index()];
        if head.is_none() {
            self.occupied.insert(class);
        }
        match self.classes {
            Classes::Tight => tree::insert(blocks, head, slot),
            Classes::Peer => list::insert(blocks, head, slot),
        }
    }

    /// Takes a free block out.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, slot: Slot) {
        assert_eq!(
            blocks[slot].state,
            State::Free,
            "corrupt free index: it holds a block that is not free"
        );
        let class = self.rule.floor(blocks[slot].units);
        let head = &mut self.heads[class.index()];
        match self.classes {
            Classes::Tight => tree::remove(blocks, head, slot),
            Classes::Peer => list::remove(blocks, head, slot),
        }
        if head.is_none() {
            self.occupied.remove(class);
        }
    }

    /// A block of at least `units` units, or [`Slot::NONE`]; `units` must be what [`Self::occupied_units`] returned.
    ///
    /// [`Classes::Tight`]: the tightest, the lowest among equals: from the boundary class if it has one, otherwise the
    /// smallest of the next class that has a block. [`Classes::Peer`]: the youngest of the first class that suffices.
    pub(super) fn find(&self, blocks: &Blocks, units: u64) -> Slot {
        let boundary = self.rule.floor(units);
        if self.classes == Classes::Tight && self.occupied.contains(boundary) {
            let slot = tree::first_at_least(blocks, self.heads[boundary.index()], units);
            if !slot.is_none() {
                return slot;
            }
        }
        let (from, smallest) = match self.classes {
            Classes::Tight => (boundary.next(), 0),
            Classes::Peer => (boundary, units),
        };
        debug_assert!(
            smallest <= self.rule.smallest(from),
            "a peer request is not the smallest size of its class"
        );
        let Some(class) = self.occupied.first_at_least(from) else {
            return Slot::NONE;
        };
        let head = self.heads[class.index()];
        match self.classes {
            Classes::Tight => tree::first_at_least(blocks, head, 0),
            Classes::Peer => head,
        }
    }

    /// The next larger block, the next higher among equals, or [`Slot::NONE`]. Only with [`Classes::Tight`].
    pub(super) fn next(&self, blocks: &Blocks, slot: Slot) -> Slot {
        assert_eq!(self.classes, Classes::Tight, "a list has no order of sizes");
        let next = tree::next(blocks, slot);
        if !next.is_none() {
            return next;
        }
        match self.occupied.first_at_least(self.rule.floor(blocks[slot].units).next()) {
            Some(class) => tree::first_at_least(blocks, self.heads[class.index()], 0),
            None => Slot::NONE,
        }
    }

    /// Bytes of memory that the index takes whatever is in it.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&self.heads[..])
    }

    /// The size of the largest free block: O(log n) with [`Classes::Tight`], O(size of a class) with [`Classes::Peer`].
    pub(super) fn largest_units(&self, blocks: &Blocks) -> u64 {
        let Some(class) = self.occupied.last() else {
            return 0;
        };
        let head = self.heads[class.index()];
        match self.classes {
            Classes::Tight => blocks[tree::last(blocks, head)].units,
            Classes::Peer => list::iter(blocks, head)
                .map(|slot| blocks[slot].units)
                .max()
                .unwrap_or(0),
        }
    }

    /// A bound of the largest free block that is no smaller than it and in the same class, in O(log n) at worst.
    pub(super) fn largest_units_bound(&self, blocks: &Blocks) -> u64 {
        match (self.classes, self.occupied.last()) {
            (_, None) => 0,
            (Classes::Tight, Some(_)) => self.largest_units(blocks),
            (Classes::Peer, Some(class)) => self.rule.largest(class),
        }
    }

    /// Whether a bound that held before the free block of `taken_units` was cut up may be too high now.
    pub(super) fn bound_is_stale(&self, bound_units: u64, taken_units: u64) -> bool {
        match self.classes {
            Classes::Tight => taken_units >= bound_units,
            Classes::Peer => self.rule.floor(taken_units) >= self.rule.floor(bound_units),
        }
    }

    /// A bound that holds after a free block of `units` joins blocks that `bound_units` is a bound of.
    pub(super) fn bound_with(&self, bound_units: u64, units: u64) -> u64 {
        match self.classes {
            Classes::Tight => bound_units.max(units),
            Classes::Peer => bound_units.max(self.rule.largest(self.rule.floor(units))),
        }
    }

    /// Checks that the index holds exactly the free blocks, each in its class. Panics if it is corrupt.
    pub(super) fn check(&self, blocks: &Blocks) {
        self.check_members(blocks, |_, block| block.state == State::Free);
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
            let listed = || list::iter(blocks, head);
            indexed += match self.classes {
                Classes::Tight => tree::check(blocks, head),
                Classes::Peer => listed().count(),
            };
            if self.classes == Classes::Peer {
                assert!(
                    listed().all(|slot| self.rule.floor(blocks[slot].units) == class),
                    "strangers in {class:?}"
                );
            } else if !head.is_none() {
                let (first, last) = (tree::first_at_least(blocks, head, 0), tree::last(blocks, head));
                assert!(
                    [first, last]
                        .iter()
                        .all(|&slot| self.rule.floor(blocks[slot].units) == class)
                );
            }
            class = class.next();
        }
        assert_eq!(
            indexed, members,
            "the index and the chain disagree on the number of free blocks"
        );
    }
}

//! Which descriptors of a segment's table are free.

use tenon_protocol::ids::Slot;

/// The free slots of one table: those given back, and those never used.
#[derive(Debug)]
pub(super) struct SlotList {
    slots: u32,
    first_unused: u32,
    given_back: Vec<Slot>,
}

impl SlotList {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots,
            first_unused: 0,
            given_back: Vec::new(),
        }
    }

    /// How many slots there are.
    pub(super) fn slots(&self) -> u32 {
        self.slots
    }

    /// How many are in use.
    pub(super) fn used(&self) -> u32 {
        let free = u32::try_from(self.given_back.len()).expect("no more slots are free than there are");
        self.first_unused - free
    }

    pub(super) fn has_free(&self) -> bool {
        self.used() < self.slots
    }

    pub(super) fn take(&mut self) -> Option<Slot> {
        if let Some(slot) = self.given_back.pop() {
            return Some(slot);
        }
        if self.first_unused == self.slots {
            return None;
        }
        self.first_unused += 1;
        Some(Slot(self.first_unused - 1))
    }

    /// Takes back a slot that [`Self::take`] gave and that describes nothing any more.
    pub(super) fn give_back(&mut self, slot: Slot) {
        assert!(slot.0 < self.first_unused, "slot {slot} was never taken");
        assert!(self.used() > 0, "slot {slot} is given back twice");
        self.given_back.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_distinct_and_run_out() {
        let mut list = SlotList::new(3);
        let taken: Vec<_> = (0..3).map(|_| list.take().unwrap()).collect();
        assert_eq!(taken, [Slot(0), Slot(1), Slot(2)]);
        assert_eq!((list.take(), list.used()), (None, 3));
        list.give_back(Slot(1));
        assert_eq!((list.used(), list.take(), list.take()), (2, Some(Slot(1)), None));
    }
}

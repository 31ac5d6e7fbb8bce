//! A table that checks what is written to it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tenon_protocol::checksum::{combine_pieces, piece_count};
use tenon_protocol::ids::Slot;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::table::row_checksum;
use tenon_store_core::objects::{SealPlan, SegmentTable};

/// What each slot describes, shared with the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckedTable(Rc<RefCell<BTreeMap<Slot, SealPlan>>>);

impl CheckedTable {
    /// What the slots describe now.
    pub(crate) fn described(&self) -> Vec<SealPlan> {
        self.0.borrow().values().cloned().collect()
    }
}

impl SegmentTable for CheckedTable {
    fn seal(&mut self, plan: &SealPlan) {
        check_plan(plan);
        let mut slots = self.0.borrow_mut();
        let (start, end) = (plan.row.offset_bytes, plan.row.offset_bytes + plan.descriptor.len_bytes);
        for other in slots.values() {
            let (other_start, other_end) = (
                other.row.offset_bytes,
                other.row.offset_bytes + other.descriptor.len_bytes,
            );
            assert!(
                end <= other_start || other_end <= start,
                "two descriptors describe the same bytes"
            );
            assert_ne!(plan.row.generation, other.row.generation);
        }
        let before = slots.insert(plan.slot, plan.clone());
        assert!(
            before.is_none(),
            "slot {} is described anew before it was invalidated",
            plan.slot
        );
    }

    fn invalidate(&mut self, slot: Slot) {
        let before = self.0.borrow_mut().remove(&slot);
        assert!(before.is_some(), "slot {slot} describes nothing");
    }
}

/// What a reader relies on.
fn check_plan(plan: &SealPlan) {
    let SealPlan {
        descriptor,
        row,
        piece_sums,
        ..
    } = plan;
    let len_bytes = descriptor.len_bytes;
    assert_eq!(descriptor.generation, row.generation);
    assert_eq!(descriptor.row_checksum, row_checksum(&row.encode()));
    let mut pieces = piece_sums.clone();
    if len_bytes.is_multiple_of(PIECE_BYTES) {
        assert_eq!(row.tail_checksum, 0);
    } else {
        pieces.push(row.tail_checksum);
    }
    assert_eq!(pieces.len() as u64, piece_count(len_bytes));
    assert_eq!(combine_pieces(len_bytes, &pieces), descriptor.checksum);
}

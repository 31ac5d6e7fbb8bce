//! What is asked of a holder whose objects are moved to other nodes.

use super::HolderDriver;
use crate::clock;
use std::sync::Arc;
use tenon_protocol::ids::SegmentId;
use tenon_store_core::objects::{Movable, ReadHold};
use tenon_transport::Slice;

/// Keeps an object's region as it is while it is read to be moved.
#[derive(Debug)]
pub(crate) struct MoveHold {
    holder: Arc<HolderDriver>,
    hold: Option<ReadHold>,
}

impl Drop for MoveHold {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.holder.core.lock().end_read(hold);
        }
    }
}

impl HolderDriver {
    /// Objects of a draining segment that may be moved, from an offset on, and where to go on; `None` if it is not mounted.
    pub(crate) fn movable(
        &self,
        segment: SegmentId,
        from_bytes: u64,
        limit: usize,
    ) -> Option<(Vec<Movable>, Option<u64>)> {
        self.core.lock().movable(clock::now(), segment, from_bytes, limit)
    }

    /// Keeps an object's region as it is; `None` if it is not there any more.
    pub(crate) fn hold(&self, object: &Movable) -> Option<MoveHold> {
        let region = object.region;
        let hold = self.begin_read(
            region.segment,
            region.offset_bytes..region.offset_bytes + object.len_bytes,
        );
        let hold = MoveHold {
            holder: self.me.upgrade()?,
            hold: Some(hold.ok()?),
        };
        let is_same = hold
            .hold
            .as_ref()
            .is_some_and(|hold| hold.generation() == region.generation);
        is_same.then_some(hold)
    }

    /// The memory of an object whose region is held.
    pub(crate) fn memory_of(&self, object: &Movable) -> Option<Slice> {
        let segment = self.segments.get(object.region.segment)?;
        let start = object.region.offset_bytes;
        Some(segment.region(start..start + object.len_bytes))
    }

    /// Another holder has answered that an object stays there: it goes here. False if it has gone before.
    pub(crate) fn moved(&self, object: &Movable) -> bool {
        self.core.lock().moved(clock::now(), object.region)
    }
}

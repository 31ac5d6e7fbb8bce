//! Where room was found for puts, and why it was not.

use prometheus::IntCounterVec;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{KeyResult, Reservation};
use tenon_store_core::placement::nodes::Why;

use super::Maker;
use super::labels::{AllocationFailure, PlacedOn, RoomAnswer};

/// Counters of what an owner refuses, and of what a coordinator decides.
#[derive(Debug)]
pub(super) struct RoomCounters {
    allocation_failures: IntCounterVec,
    placed: IntCounterVec,
    placement_failures: IntCounterVec,
    answers: IntCounterVec,
}

impl RoomCounters {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        Self {
            allocation_failures: make.counters(
                "tenon_allocation_failures_total",
                "Regions that this node did not set aside in its own memory, by reason.",
                &["reason"],
            ),
            placed: make.counters(
                "tenon_placed_total",
                "Objects for which room was set aside by this agent's decision, by where.",
                &["on"],
            ),
            placement_failures: make.counters(
                "tenon_placement_failures_total",
                "Objects for which no room was set aside by this agent's decision, by error code.",
                &["code"],
            ),
            answers: make.counters(
                "tenon_room_answers_total",
                "Answers of nodes that were asked for room, per object, by why the node was asked.",
                &["why", "answer"],
            ),
        }
    }

    /// See [`super::Metrics::show_zeroes`].
    pub(super) fn show_zeroes(&self) {
        for reason in AllocationFailure::ALL {
            self.allocation_failures.with_label_values(&[reason.as_str()]);
        }
        for place in PlacedOn::ALL {
            self.placed.with_label_values(&[place.as_str()]);
        }
        for why in Why::ALL {
            for answer in RoomAnswer::ALL {
                self.answers.with_label_values(&[why.as_str(), answer.as_str()]);
            }
        }
        self.placement_failures
            .with_label_values(&[ErrorCode::NoSpace.as_str()]);
    }

    pub(super) fn allocation_failed(&self, reason: AllocationFailure) {
        self.allocation_failures.with_label_values(&[reason.as_str()]).inc();
    }

    pub(super) fn placed(&self, own: NodeId, result: &KeyResult<Reservation>) {
        match result {
            Ok(reservation) => {
                let is_own = reservation.replicas.iter().all(|region| region.holder == own);
                let place = if is_own { PlacedOn::Own } else { PlacedOn::Other };
                self.placed.with_label_values(&[place.as_str()]).inc();
            }
            Err(error) => self.placement_failures.with_label_values(&[error.code.as_str()]).inc(),
        }
    }

    pub(super) fn answered(&self, why: Why, answer: RoomAnswer, objects: usize) {
        let counter = self.answers.with_label_values(&[why.as_str(), answer.as_str()]);
        counter.inc_by(objects as u64);
    }
}

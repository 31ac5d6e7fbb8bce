//! Gauges that are set when somebody asks for them.

use prometheus::IntGaugeVec;
use tenon_protocol::message::{NodeInfo, NodeState, SegmentInfo};

use super::Maker;

/// What is not counted but looked up when somebody asks.
#[derive(Debug)]
pub(super) struct AtScrape {
    nodes: IntGaugeVec,
    segment_capacity_bytes: IntGaugeVec,
    segment_bytes: IntGaugeVec,
    segment_largest_free_bytes: IntGaugeVec,
    segment_objects: IntGaugeVec,
    segment_reservations: IntGaugeVec,
    segment_slots: IntGaugeVec,
    segment_slots_used: IntGaugeVec,
}

const NODE_STATES: [(NodeState, &str); 4] = [
    (NodeState::Alive, "alive"),
    (NodeState::Unreachable, "unreachable"),
    (NodeState::Refused, "refused"),
    (NodeState::Unknown, "unknown"),
];

impl AtScrape {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        let of_segment = |name: &str, help: &str| make.gauges(name, help, &["segment"]);
        Self {
            nodes: make.gauges("tenon_peers", "Other members of the view by state.", &["state"]),
            segment_capacity_bytes: of_segment("tenon_segment_capacity_bytes", "Payload bytes of a segment."),
            segment_bytes: make.gauges(
                "tenon_segment_bytes",
                "Payload bytes of a segment by use; they add up to its capacity.",
                &["segment", "use"],
            ),
            segment_largest_free_bytes: of_segment(
                "tenon_segment_largest_free_bytes",
                "Upper bound of the largest free region of a segment.",
            ),
            segment_objects: of_segment("tenon_segment_objects", "Objects in a segment."),
            segment_reservations: of_segment("tenon_segment_reservations", "Reservations in a segment."),
            segment_slots: of_segment("tenon_segment_slots", "Descriptors in a segment's table."),
            segment_slots_used: of_segment("tenon_segment_slots_used", "Descriptors of a segment in use."),
        }
    }

    pub(super) fn set(&self, nodes: &[NodeInfo], segments: &[SegmentInfo]) {
        for (state, label) in NODE_STATES {
            let count = nodes.iter().filter(|node| !node.is_self && node.state == state).count();
            self.nodes.with_label_values(&[label]).set(gauge(count as u64));
        }
        // A segment that was given back has no series any more.
        for family in self.of_segments() {
            family.reset();
        }
        self.segment_bytes.reset();
        for segment in segments {
            self.set_segment(segment);
        }
    }

    fn of_segments(&self) -> [&IntGaugeVec; 6] {
        [
            &self.segment_capacity_bytes,
            &self.segment_largest_free_bytes,
            &self.segment_objects,
            &self.segment_reservations,
            &self.segment_slots,
            &self.segment_slots_used,
        ]
    }

    fn set_segment(&self, segment: &SegmentInfo) {
        let id = segment.segment.to_string();
        let space = &segment.space;
        let values = [
            space.capacity_bytes,
            space.largest_free_bytes,
            space.objects,
            space.reservations,
            segment.slots.into(),
            segment.slots_used.into(),
        ];
        for (family, value) in self.of_segments().into_iter().zip(values) {
            family.with_label_values(&[&id]).set(gauge(value));
        }
        for (used_for, bytes) in [
            ("free", space.free_bytes),
            ("sealed", space.sealed_bytes),
            ("reserved", space.reserved_bytes),
            ("held", space.held_bytes),
        ] {
            self.segment_bytes.with_label_values(&[&id, used_for]).set(gauge(bytes));
        }
    }
}

pub(super) fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

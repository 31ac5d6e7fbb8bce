//! Gauges that are set when somebody asks for them.

use prometheus::{GaugeVec, IntCounter, IntGaugeVec};
use tenon_protocol::message::{AlarmKind, IndexInfo, NodeState, SpaceAccount};
use tenon_protocol::segments::SegmentInfo;

use super::{Maker, Snapshot};

/// What is not counted but looked up when somebody asks.
#[derive(Debug)]
pub(super) struct AtScrape {
    nodes: IntGaugeVec,
    alarms: IntGaugeVec,
    index: [(IntGaugeVec, OfIndex); INDEX.len()],
    conflicts: IntCounter,
    learned: IntCounter,
    segment_capacity_bytes: IntGaugeVec,
    segment_bytes: IntGaugeVec,
    segment_largest_free_bytes: IntGaugeVec,
    segment_fragmentation: GaugeVec,
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

/// One number of an index.
type OfIndex = fn(&IndexInfo) -> u64;

/// Gauges of what a node keeps as a home of keys.
const INDEX: &[(&str, &str, OfIndex)] = &[
    (
        "tenon_index_settled",
        "1 if this node knows, as a home, all that there is to know.",
        |index| index.settled.into(),
    ),
    ("tenon_index_keys", "Keys with an entry.", |index| index.keys),
    (
        "tenon_index_pending_keys",
        "Keys with an accepted object that is not sealed yet.",
        |index| index.pending_keys,
    ),
    ("tenon_index_tombstones", "Removed keys that are remembered.", |index| {
        index.tombstones
    }),
    (
        "tenon_index_owed_drops",
        "Drops of removed objects that holders owe.",
        |index| index.owed_drops,
    ),
    (
        "tenon_index_unannounced_members",
        "Members that have not announced what they hold and are not known to be out of reach.",
        |index| index.unannounced_members,
    ),
    (
        "tenon_index_partners_out_of_step",
        "Partners that have not handed over what they keep, or withhold something.",
        |index| index.partners_out_of_step,
    ),
    (
        "tenon_index_untold_keys",
        "Keys decided without a partner that was not told of them yet.",
        |index| index.untold_keys,
    ),
    (
        "tenon_index_unpublished_objects",
        "Objects held here of which a home is still to be told.",
        |index| index.unpublished_objects,
    ),
    (
        "tenon_index_waiting_decisions",
        "Decisions that wait until this home knows more.",
        |index| index.waiting_decisions,
    ),
];

impl AtScrape {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        let of_segment = |name: &str, help: &str| make.gauges(name, help, &["segment"]);
        Self {
            nodes: make.gauges("tenon_peers", "Other members of the view by state.", &["state"]),
            alarms: make.gauges(
                "tenon_alarms",
                "What an operator should look at: how many stand, by kind.",
                &["kind"],
            ),
            index: std::array::from_fn(|at| {
                let (name, help, value) = INDEX[at];
                (make.gauges(name, help, &[]), value)
            }),
            conflicts: make.counter(
                "tenon_index_conflicts_total",
                "Objects that lost against another which was accepted on the other side of a partition.",
            ),
            learned: make.counter(
                "tenon_index_learned_keys_total",
                "Keys that were learned from announcements and hand-overs.",
            ),
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
            segment_fragmentation: make.ratios(
                "tenon_segment_fragmentation_ratio",
                "Share of a segment's free bytes that lies outside its largest free region; 0 if none are free.",
                &["segment"],
            ),
            segment_objects: of_segment("tenon_segment_objects", "Objects in a segment."),
            segment_reservations: of_segment("tenon_segment_reservations", "Reservations in a segment."),
            segment_slots: of_segment("tenon_segment_slots", "Descriptors in a segment's table."),
            segment_slots_used: of_segment("tenon_segment_slots_used", "Descriptors of a segment in use."),
        }
    }

    pub(super) fn set(&self, now: &Snapshot) {
        let (nodes, index) = (&now.nodes, &now.index);
        for (family, value) in &self.index {
            family.with_label_values::<&str>(&[]).set(gauge(value(index)));
        }
        for (counter, total) in [(&self.conflicts, index.conflicts), (&self.learned, index.learned_keys)] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        for (state, label) in NODE_STATES {
            let count = nodes.iter().filter(|node| !node.is_self && node.state == state).count();
            self.nodes.with_label_values(&[label]).set(gauge(count as u64));
        }
        for kind in AlarmKind::ALL {
            let count = now.alarms.iter().filter(|alarm| alarm.kind == kind).count();
            self.alarms.with_label_values(&[kind.name()]).set(gauge(count as u64));
        }
        // A segment that was given back has no series any more.
        for family in self.of_segments() {
            family.reset();
        }
        self.segment_bytes.reset();
        self.segment_fragmentation.reset();
        for segment in &now.segments {
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
        self.segment_fragmentation
            .with_label_values(&[&id])
            .set(fragmentation(space));
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

/// 1 − largest/free, by the bound of the largest.
#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn fragmentation(space: &SpaceAccount) -> f64 {
    if space.free_bytes == 0 {
        return 0.0;
    }
    space.free_bytes.saturating_sub(space.largest_free_bytes) as f64 / space.free_bytes as f64
}

pub(super) fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! Segments that come and go.

use prometheus::{IntCounter, IntCounterVec, IntGaugeVec};
use tenon_protocol::segments::{SegmentInfo, SegmentState};

use super::Maker;
use super::scrape::gauge;

/// Counters of what was done, and gauges that are set when somebody asks for them.
#[derive(Debug)]
pub(super) struct LivesCounters {
    mounts: IntCounterVec,
    unmounts: IntCounter,
    state: IntGaugeVec,
    mounting_bytes: IntGaugeVec,
    draining_objects: IntGaugeVec,
    draining_bytes: IntGaugeVec,
    draining_users: IntGaugeVec,
}

const STATES: [(SegmentState, &str); 4] = [
    (SegmentState::Mounting, "mounting"),
    (SegmentState::Active, "active"),
    (SegmentState::Draining, "draining"),
    (SegmentState::Gone, "gone"),
];

impl LivesCounters {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        Self {
            mounts: make.counters(
                "tenon_segment_mounts_total",
                "Segments that were mounted at run time, or were to be, by result.",
                &["result"],
            ),
            unmounts: make.counter("tenon_segment_unmounts_total", "Segments that were unmounted."),
            state: make.gauges(
                "tenon_segments",
                "Segments of this node by state; the last ones that are gone are among them.",
                &["state"],
            ),
            mounting_bytes: make.gauges(
                "tenon_segment_mounting_bytes",
                "Bytes of a segment that is being mounted, by what is done with them.",
                &["segment", "step"],
            ),
            draining_objects: make.gauges(
                "tenon_segment_draining_objects",
                "Objects of a segment that takes nothing any more, by what has become of them.",
                &["segment", "fate"],
            ),
            draining_bytes: make.gauges(
                "tenon_segment_draining_bytes",
                "Bytes of objects of a segment that takes nothing any more, by what has become of them.",
                &["segment", "fate"],
            ),
            draining_users: make.gauges(
                "tenon_segment_draining_users",
                "Puts and transfers that are under way in a segment that takes nothing any more.",
                &["segment", "user"],
            ),
        }
    }

    /// See [`super::Metrics::show_zeroes`].
    pub(super) fn show_zeroes(&self) {
        for result in ["mounted", "failed"] {
            self.mounts.with_label_values(&[result]);
        }
    }

    pub(super) fn mounted(&self, result: &str) {
        self.mounts.with_label_values(&[result]).inc();
    }

    pub(super) fn unmounted(&self) {
        self.unmounts.inc();
    }

    pub(super) fn set(&self, segments: &[SegmentInfo]) {
        for (state, label) in STATES {
            let count = segments.iter().filter(|segment| segment.state == state).count();
            self.state.with_label_values(&[label]).set(gauge(count as u64));
        }
        for family in [
            &self.mounting_bytes,
            &self.draining_objects,
            &self.draining_bytes,
            &self.draining_users,
        ] {
            family.reset();
        }
        for segment in segments {
            self.set_segment(segment);
        }
    }

    fn set_segment(&self, segment: &SegmentInfo) {
        let id = segment.segment.to_string();
        let set = |family: &IntGaugeVec, label: &str, value: u64| {
            family.with_label_values(&[id.as_str(), label]).set(gauge(value));
        };
        if let Some(progress) = segment.mounting {
            set(&self.mounting_bytes, "asked", progress.len_bytes);
            set(&self.mounting_bytes, "prefaulted", progress.prefaulted_bytes);
            set(&self.mounting_bytes, "to_register", progress.to_register_bytes);
            set(&self.mounting_bytes, "registered", progress.registered_bytes);
        }
        if let Some(progress) = segment.draining {
            for (fate, objects, bytes) in [
                ("left", progress.left_objects, progress.left_bytes),
                ("moved", progress.moved_objects, progress.moved_bytes),
                ("no_room", progress.no_room_objects, progress.no_room_bytes),
                ("dropped", progress.dropped_objects, progress.dropped_bytes),
            ] {
                set(&self.draining_objects, fate, objects);
                set(&self.draining_bytes, fate, bytes);
            }
            set(&self.draining_users, "puts", progress.puts);
            set(&self.draining_users, "transfers", progress.transfers);
        }
    }
}

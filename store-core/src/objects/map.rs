//! What a segment is used for, run by run.

use super::region::{Record, State};
use super::segment::{Segment, occupied_bytes};
use super::{Holder, SegmentTable};
use crate::time::Time;
use tenon_protocol::ids::{Incarnation, SegmentId};
use tenon_protocol::placement::{MapRun, RunState};

/// A part of the occupancy of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapPage {
    /// In which life of the node.
    pub incarnation: Incarnation,
    /// How often what the segment is used for has changed: pages with the same one are parts of one map.
    pub version: u64,
    /// Payload bytes of the segment.
    pub capacity_bytes: u64,
    /// In the order of their offsets; they adjoin.
    pub runs: Vec<MapRun>,
    /// Where the next page begins; `None` if this one reaches the segment's end.
    pub next_bytes: Option<u64>,
}

/// The clocks by which ages are told: reservations are stamped by the one, objects by the other.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    now: Time,
    unix_ms: u64,
}

impl<T: SegmentTable> Holder<T> {
    /// At most `limit` runs of a segment, from the one on that has the byte at `from_bytes`; `None` if it is not
    /// mounted. O(`limit`).
    pub fn map(&self, segment: SegmentId, from_bytes: u64, limit: usize, now: Time, unix_ms: u64) -> Option<MapPage> {
        let segment = self.segments.get(segment)?;
        let capacity_bytes = segment.capacity_bytes();
        let mut runs = segment.runs(from_bytes, capacity_bytes, Clocks { now, unix_ms });
        let page = runs.by_ref().take(limit).collect();
        Some(MapPage {
            incarnation: self.config.incarnation,
            version: segment.changes(),
            capacity_bytes,
            runs: page,
            next_bytes: runs.next().map(|run| run.offset_bytes),
        })
    }
}

impl<T: SegmentTable> Segment<T> {
    /// Runs from the one on that has the byte at `from_bytes`.
    fn runs(&self, from_bytes: u64, capacity_bytes: u64, clocks: Clocks) -> impl Iterator<Item = MapRun> + '_ {
        let mut at_bytes = self.run_start(from_bytes);
        let mut regions = self.regions_from(at_bytes).peekable();
        std::iter::from_fn(move || {
            let next_bytes = regions.peek().map_or(capacity_bytes, |(region, _)| region.offset_bytes);
            if at_bytes >= capacity_bytes || from_bytes >= capacity_bytes {
                return None;
            }
            let (len_bytes, state, age_ms) = if next_bytes > at_bytes {
                (next_bytes - at_bytes, RunState::Free, None)
            } else {
                let (_, record) = regions.next()?;
                let (state, age_ms) = use_of(record, clocks);
                (occupied_bytes(record.len_bytes()), state, age_ms)
            };
            let run = MapRun {
                offset_bytes: at_bytes,
                len_bytes,
                state,
                age_ms,
            };
            at_bytes += len_bytes;
            Some(run)
        })
    }
}

fn use_of(record: &Record, clocks: Clocks) -> (RunState, Option<u64>) {
    match &record.state {
        State::Reserved(reservation) => (RunState::Reserved, Some(clocks.now.since_ms(reservation.reserved_at))),
        State::Sealed(object) => (
            RunState::Sealed,
            Some(clocks.unix_ms.saturating_sub(object.sealed_unix_ms)),
        ),
        State::Held => (RunState::Held, None),
    }
}

//! What the holder does, said as plainly as possible: a list of regions that is searched from end to end.

use crate::fixture::{ALIGNMENT_BYTES, TTL_MS, name, put};
use std::ops::Range;
use tenon_protocol::ids::{Generation, SegmentId, Version};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Committed, SpaceAccount};
use tenon_store_core::limits::OUTCOME_LIFE_MS;
use tenon_store_core::objects::{EndReason, HoldError, RegionId};

/// A put of a key, by small numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Put {
    pub(crate) put_id: u8,
    pub(crate) key: u8,
}

impl Put {
    pub(crate) fn key_text(self) -> String {
        format!("k/{}", self.key)
    }
}

/// Whether homes know of a sealed object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    UnderWay,
    Unanswered,
    Taken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Reserved,
    Committing,
    Sealed { stored: Committed, report: Report },
    Held,
}

/// A write as it was seen: its end is `None` while it is under way.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) range: Range<u64>,
    pub(crate) begun: usize,
    pub(crate) ended: Option<usize>,
    pub(crate) arrived: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) put: Put,
    pub(crate) len_bytes: u64,
    pub(crate) session: u8,
    pub(crate) ttl_ms: u64,
    pub(crate) expires_ms: u64,
    pub(crate) writes: Vec<Write>,
    pub(crate) holds: usize,
    pub(crate) state: State,
    pub(crate) pin: Pinned,
}

/// What keeps an object from being evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinned {
    No,
    Softly { until_ms: u64 },
    Hard,
}

impl Region {
    fn end(&self) -> u64 {
        self.id.offset_bytes + self.len_bytes.next_multiple_of(ALIGNMENT_BYTES)
    }

    /// The checksum of a piece, if one write brought exactly it and every other write of it was over before that one
    /// began.
    pub(crate) fn known_piece(&self, piece: u64) -> Option<u64> {
        let range = piece * PIECE_BYTES..self.len_bytes.min((piece + 1) * PIECE_BYTES);
        let touching: Vec<_> = (self.writes.iter())
            .filter(|write| write.range.start < range.end && range.start < write.range.end)
            .collect();
        let last = touching.iter().max_by_key(|write| write.begun)?;
        let is_over = |other: &&Write| other.begun == last.begun || other.ended.is_some_and(|ended| ended < last.begun);
        let is_alone = touching.iter().all(is_over);
        if last.range == range && is_alone {
            last.arrived
        } else {
            None
        }
    }
}

impl Region {
    /// Whether it holds an object that may be evicted, for a request or, if that is not so, in the background.
    pub(crate) fn may_go(&self, for_request: bool) -> bool {
        let is_there = matches!(&self.state, State::Sealed { report, .. } if *report != Report::UnderWay);
        let may_be = match self.pin {
            Pinned::No => true,
            Pinned::Softly { .. } => for_request,
            Pinned::Hard => false,
        };
        is_there && may_be && self.holds == 0
    }

    /// The first byte that no write has brought.
    fn first_missing(&self) -> Option<u64> {
        let mut end = 0;
        while let Some(write) = self
            .writes
            .iter()
            .find(|write| write.arrived.is_some() && write.range.start <= end && end < write.range.end)
        {
            end = write.range.end;
        }
        (end < self.len_bytes).then_some(end)
    }
}

/// A segment that was mounted once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) capacity_bytes: u64,
    pub(crate) slots: u32,
    pub(crate) phase: Phase,
}

/// Where a segment stands in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Active,
    Draining,
    Gone,
}

/// How a put ended, and the length of its object, from which its checksums follow.
pub(crate) type Outcome = (Committed, u64);

/// How a commit goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ModelStep {
    Done(Committed),
    OtherBytes,
    Wait,
    /// The commit began; these pieces are unknown.
    Verify(RegionId, Vec<u64>),
    /// This object's homes are to be told again.
    Report(RegionId, Outcome),
    UnknownPut,
    /// The first byte that was not written.
    Unwritten(u64),
    /// The first known piece that differs.
    Mismatch(u64),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) now_ms: u64,
    /// Counts what happens to writes.
    pub(crate) clock: usize,
    /// The one with id n is at n - 1, gone or not.
    pub(crate) segments: Vec<Segment>,
    /// The last one that a region got.
    pub(crate) generation: Option<Generation>,
    pub(crate) regions: Vec<Region>,
    pub(crate) outcomes: Vec<(u64, Put, Outcome)>,
    pub(crate) ended: Vec<(RegionId, EndReason)>,
}

impl Model {
    pub(crate) fn region(&mut self, id: RegionId) -> Option<&mut Region> {
        self.regions.iter_mut().find(|region| region.id == id)
    }

    pub(crate) fn reserved(&self, put: Put) -> Option<&Region> {
        let is_reserved = |region: &&Region| matches!(region.state, State::Reserved | State::Committing);
        self.regions.iter().filter(is_reserved).find(|region| region.put == put)
    }

    /// The object of a key, how its put ended, and whether homes know it.
    pub(crate) fn sealed(&self, key: u8) -> Option<(&Region, Committed, Report)> {
        self.regions.iter().find_map(|region| match region.state {
            State::Sealed { stored, report } if region.put.key == key => Some((region, stored, report)),
            _ => None,
        })
    }

    pub(crate) fn phase(&self, id: SegmentId) -> Phase {
        self.segments[id.0 as usize - 1].phase
    }

    /// Those segments, by position.
    pub(crate) fn in_phase(&self, phase: Phase) -> Vec<usize> {
        let segments = self.segments.iter().enumerate();
        let wanted = segments.filter(|(_, segment)| segment.phase == phase);
        wanted.map(|(at, _)| at).collect()
    }

    /// The capacity of the largest segment that takes regions; 0 if none does.
    pub(crate) fn largest_segment_bytes(&self) -> u64 {
        let active = self.in_phase(Phase::Active).into_iter();
        active.map(|at| self.segments[at].capacity_bytes).max().unwrap_or(0)
    }

    /// Free runs of a segment, by going through it from its start.
    fn holes(&self, segment: usize) -> Vec<u64> {
        let id = SegmentId(u32::try_from(segment + 1).unwrap());
        let mut used: Vec<_> = self.regions.iter().filter(|region| region.id.segment == id).collect();
        used.sort_by_key(|region| region.id.offset_bytes);
        let mut at = 0;
        let mut holes = Vec::new();
        for region in used {
            holes.push(region.id.offset_bytes - at);
            at = region.end();
        }
        holes.push(self.segments[segment].capacity_bytes - at);
        holes
    }

    pub(crate) fn slots_used(&self, segment: usize) -> usize {
        let id = SegmentId(u32::try_from(segment + 1).unwrap());
        self.regions.iter().filter(|region| region.id.segment == id).count()
    }

    /// Whether a region of this length can be set aside.
    pub(crate) fn fits(&self, len_bytes: u64) -> bool {
        self.in_phase(Phase::Active).into_iter().any(|segment| {
            let has_slot = self.slots_used(segment) < self.segments[segment].slots as usize;
            has_slot
                && self
                    .holes(segment)
                    .iter()
                    .any(|&hole| hole >= len_bytes.next_multiple_of(ALIGNMENT_BYTES))
        })
    }

    /// Whether a region of this length could be set aside if all went that may.
    pub(crate) fn could_fit(&self, len_bytes: u64) -> bool {
        let left = |region: &&Region| !region.may_go(true);
        let without = Self {
            segments: self.segments.clone(),
            regions: self.regions.iter().filter(left).cloned().collect(),
            ..Self::default()
        };
        without.fits(len_bytes)
    }

    /// A region that was set aside: nothing else may lie there.
    pub(crate) fn add(&mut self, id: RegionId, put: Put, len_bytes: u64, session: u8) {
        let region = Region {
            id,
            put,
            len_bytes,
            session,
            ttl_ms: TTL_MS.into(),
            expires_ms: self.now_ms + u64::from(TTL_MS),
            writes: Vec::new(),
            holds: 0,
            state: State::Reserved,
            pin: Pinned::No,
        };
        let overlaps = |other: &Region| {
            other.id.segment == id.segment && id.offset_bytes < other.end() && other.id.offset_bytes < region.end()
        };
        assert!(!self.regions.iter().any(overlaps), "{id:?} overlaps");
        assert!(region.end() <= self.segments[id.segment.0 as usize - 1].capacity_bytes);
        assert_eq!(
            self.phase(id.segment),
            Phase::Active,
            "{id:?} lies in a segment that takes none"
        );
        assert!(
            self.generation < Some(id.generation),
            "generation {} repeats",
            id.generation
        );
        self.generation = Some(id.generation);
        self.regions.push(region);
    }

    pub(crate) fn may_write(&self, id: RegionId, range: &Range<u64>) -> Result<(), HoldError> {
        let region = self
            .regions
            .iter()
            .find(|region| region.id == id)
            .ok_or(HoldError::Stale)?;
        match region.state {
            _ if range.end > region.len_bytes => Err(HoldError::OutOfRange),
            State::Reserved => Ok(()),
            State::Committing => Err(HoldError::Committing),
            State::Sealed { .. } | State::Held => Err(HoldError::Stale),
        }
    }

    /// The object in which a range of a segment lies.
    pub(crate) fn may_read(
        &self,
        segment: SegmentId,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> Result<RegionId, HoldError> {
        let has_start = |region: &&Region| {
            let range = region.id.offset_bytes..region.id.offset_bytes + region.len_bytes;
            region.id.segment == segment
                && matches!(region.state, State::Sealed { .. })
                && range.contains(&offset_bytes)
        };
        let region = self.regions.iter().find(has_start).ok_or(HoldError::Stale)?;
        let is_inside = len_bytes > 0 && offset_bytes + len_bytes <= region.id.offset_bytes + region.len_bytes;
        if is_inside {
            Ok(region.id)
        } else {
            Err(HoldError::OutOfRange)
        }
    }

    /// Gives a region up for this reason, if it was a reservation.
    pub(crate) fn give_up(&mut self, id: RegionId, reason: Option<EndReason>) {
        let region = self.region(id).unwrap();
        region.state = State::Held;
        if let Some(reason) = reason {
            self.ended.push((id, reason));
        }
        self.free_unused();
    }

    pub(crate) fn free_unused(&mut self) {
        self.regions
            .retain(|region| region.state != State::Held || region.holds > 0);
    }

    pub(crate) fn expire(&mut self) {
        let now_ms = self.now_ms;
        for region in &mut self.regions {
            if matches!(region.pin, Pinned::Softly { until_ms } if until_ms <= now_ms) {
                region.pin = Pinned::No;
            }
        }
        let mut expired = Vec::new();
        for region in self.regions.iter_mut().filter(|region| region.state == State::Reserved) {
            if region.expires_ms > now_ms {
                continue;
            }
            if region.holds > 0 {
                region.expires_ms = now_ms + region.ttl_ms;
            } else {
                expired.push(region.id);
            }
        }
        for id in expired {
            self.give_up(id, Some(EndReason::Expired));
        }
    }

    pub(crate) fn remember(&mut self, put: Put, outcome: Outcome) {
        self.outcomes.push((self.now_ms + OUTCOME_LIFE_MS, put, outcome));
    }

    pub(crate) fn forget(&mut self, put: Put) {
        self.outcomes.retain(|(_, of, _)| *of != put);
    }

    pub(crate) fn outcome(&self, put: Put) -> Option<Outcome> {
        let known = |(until_ms, of, _): &&(u64, Put, Outcome)| *of == put && *until_ms > self.now_ms;
        self.outcomes.iter().find(known).map(|(.., outcome)| *outcome)
    }

    /// How a put ended, or is about to, and how far its report is.
    pub(crate) fn ended(&self, of: Put) -> Option<(Outcome, Report)> {
        let remembered = self.outcome(of).map(|outcome| (outcome, Report::Taken));
        remembered.or_else(|| {
            let (region, stored, report) = self.sealed(of.key)?;
            (stored.version.put_id == put(of.put_id)).then_some(((stored, region.len_bytes), report))
        })
    }

    /// `committed` are the checksums that the committer names.
    pub(crate) fn begin_commit(&mut self, of: Put, committed: impl Fn(u64) -> Vec<u64>) -> ModelStep {
        let reserved = self.reserved(of).cloned();
        if let Some(region) = &reserved
            && (region.state == State::Committing || region.holds > 0)
        {
            return ModelStep::Wait;
        }
        if let Some((outcome, report)) = self.ended(of) {
            if report == Report::UnderWay {
                return ModelStep::Wait;
            }
            let (ended, len_bytes) = outcome;
            let is_same = reserved.is_none_or(|region| {
                self.give_up(region.id, Some(EndReason::NotNeeded));
                committed(region.len_bytes) == committed(len_bytes)
            });
            if !is_same {
                return ModelStep::OtherBytes;
            }
            if report == Report::Taken {
                return ModelStep::Done(ended);
            }
            let id = self.sealed(of.key).expect("it says how the put ended").0.id;
            self.set_report(id, Report::UnderWay);
            return ModelStep::Report(id, outcome);
        }
        let Some(region) = reserved else {
            return ModelStep::UnknownPut;
        };
        if let Some(missing) = region.first_missing() {
            self.give_up(region.id, Some(EndReason::Failed));
            return ModelStep::Unwritten(missing);
        }
        let mut unknown = Vec::new();
        for (piece, expected) in (0..).zip(committed(region.len_bytes)) {
            match region.known_piece(piece) {
                Some(arrived) if arrived != expected => {
                    self.give_up(region.id, Some(EndReason::Failed));
                    return ModelStep::Mismatch(piece);
                }
                Some(_) => {}
                None => unknown.push(piece),
            }
        }
        self.region(region.id).unwrap().state = State::Committing;
        ModelStep::Verify(region.id, unknown)
    }

    /// A home asks for an object, or has it dropped: so it knows of it.
    pub(crate) fn home_knows(&mut self, id: RegionId) {
        let region = self.region(id).unwrap();
        let of = region.put;
        if let State::Sealed { stored, report } = &mut region.state
            && std::mem::replace(report, Report::Taken) != Report::Taken
        {
            let outcome = (*stored, region.len_bytes);
            self.remember(of, outcome);
        }
    }

    pub(crate) fn set_report(&mut self, id: RegionId, to: Report) {
        if let State::Sealed { report, .. } = &mut self.region(id).unwrap().state {
            *report = to;
        }
    }

    pub(crate) fn seal(&mut self, id: RegionId, stored: Committed) {
        let key = self.region(id).unwrap().put.key;
        let older = self.sealed(key).map(|(region, ..)| region.id);
        self.region(id).unwrap().state = State::Sealed {
            stored,
            report: Report::UnderWay,
        };
        self.ended.push((id, EndReason::Sealed));
        if let Some(older) = older {
            self.give_up(older, None);
        }
    }

    pub(crate) fn account(&self) -> SpaceAccount {
        let mut account = SpaceAccount::default();
        for region in &self.regions {
            let bytes = region.len_bytes.next_multiple_of(ALIGNMENT_BYTES);
            match region.state {
                State::Reserved | State::Committing => {
                    account.reserved_bytes += bytes;
                    account.reservations += 1;
                }
                State::Sealed { .. } => {
                    account.sealed_bytes += bytes;
                    account.objects += 1;
                }
                State::Held => account.held_bytes += bytes,
            }
        }
        for (at, segment) in self.segments.iter().enumerate() {
            if segment.phase == Phase::Gone {
                continue;
            }
            let holes = self.holes(at);
            account.capacity_bytes += segment.capacity_bytes;
            account.free_bytes += holes.iter().sum::<u64>();
            if segment.phase == Phase::Active {
                account.largest_free_bytes = account.largest_free_bytes.max(holes.into_iter().max().unwrap_or(0));
            }
        }
        account
    }

    /// The account of the segments that take regions, by free bytes and capacity.
    pub(crate) fn active_free_and_capacity(&self) -> (u64, u64) {
        let active = self.in_phase(Phase::Active).into_iter();
        let of_one = |at: usize| (self.holes(at).iter().sum::<u64>(), self.segments[at].capacity_bytes);
        active
            .map(of_one)
            .fold((0, 0), |(free, capacity), one| (free + one.0, capacity + one.1))
    }

    /// Drops what may be dropped of a draining segment.
    pub(crate) fn drop_all(&mut self, segment: usize) -> Vec<RegionId> {
        let id = SegmentId(u32::try_from(segment + 1).unwrap());
        let in_it: Vec<Region> = self
            .regions
            .iter()
            .filter(|region| region.id.segment == id)
            .cloned()
            .collect();
        let mut dropped = Vec::new();
        for region in in_it {
            match region.state {
                State::Reserved => self.give_up(region.id, Some(EndReason::Unmounted)),
                State::Sealed { report, .. } if report != Report::UnderWay => {
                    dropped.push(region.id);
                    self.give_up(region.id, None);
                }
                State::Sealed { .. } | State::Committing | State::Held => {}
            }
        }
        dropped
    }

    /// Keys, lengths and versions in the order of a listing.
    pub(crate) fn listing(&self) -> Vec<(String, u64, Version)> {
        let sealed = self.regions.iter().filter_map(|region| match region.state {
            State::Sealed { stored, .. } => Some((region.put.key_text(), region.len_bytes, stored.version)),
            _ => None,
        });
        let mut listing: Vec<_> = sealed.collect();
        listing.sort_by_key(|(key, ..)| name(key).key().to_owned());
        listing
    }
}

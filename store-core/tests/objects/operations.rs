//! Random operations on the holder and on its model: every answer and every account must agree.

use crate::fixture::{
    CLUSTER, checksums, commit_spec, holder_that_places, name, owner, piece_checksum, put, reserve_spec,
};
use crate::model::{Model, ModelStep, Outcome, Phase, Pinned, Put, Report, State, Write};
use crate::operation::{Advance, Operation, operation};
use crate::table::CheckedTable;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::ops::Range;
use tenon_protocol::ids::{Epoch, Version};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Committed, Pin, PutOutcome};
use tenon_protocol::name::Namespace;
use tenon_store_core::objects::*;
use tenon_store_core::placement::Policy;
use tenon_store_core::time::Time;

/// A commit in progress.
#[derive(Debug)]
enum Token {
    Unverified(Unverified),
    Verified(Verified),
    Unreported(Unreported, Outcome),
}

const LENS: [u64; 7] = [
    1,
    64,
    1000,
    PIECE_BYTES,
    PIECE_BYTES + 1,
    3 * PIECE_BYTES - 7,
    9 * PIECE_BYTES,
];
const MARKS: Watermarks = Watermarks {
    from_percent: 30,
    to_percent: 10,
};
pub(crate) const SEGMENTS: [(u64, u32); 2] = [(6 << 20, 5), (4 << 20, 4)];

pub(crate) struct Run {
    pub(crate) holder: Holder<CheckedTable>,
    pub(crate) tables: Vec<CheckedTable>,
    rng: ChaCha8Rng,
    pub(crate) model: Model,
    writes: Vec<(WriteHold, RegionId, Range<u64>, usize)>,
    reads: Vec<(ReadHold, RegionId)>,
    commits: Vec<(Token, RegionId, Put)>,
}

impl Run {
    fn new() -> Self {
        Self::that_places(Policy::default())
    }

    pub(crate) fn that_places(policy: Policy) -> Self {
        let (holder, _) = holder_that_places(policy, &[], Some(MARKS));
        let mut run = Self {
            holder,
            tables: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(3),
            model: Model::default(),
            writes: Vec::new(),
            reads: Vec::new(),
            commits: Vec::new(),
        };
        (0..SEGMENTS.len()).for_each(|like| run.mount(like));
        run
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_ms(self.model.now_ms)
    }

    pub(crate) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Reserve {
                put,
                len_class,
                session,
            } => self.reserve(put, LENS[len_class % LENS.len()], session),
            Operation::BeginWrite { put, start, end } => self.begin_write(put, start, end),
            Operation::EndWrite {
                which,
                arrives,
                is_damaged,
            } => self.end_write(which, arrives, is_damaged),
            Operation::WriteAll { put, step } => self.write_all(put, step),
            Operation::BeginCommit { put } => self.begin_commit(put),
            Operation::AdvanceCommit { which, how } => self.advance_commit(which, how),
            Operation::Abort { put, session } => self.abort(put, session),
            Operation::EndSession { session } => self.end_session(session),
            Operation::Sleep { ms } => self.model.now_ms += ms,
            Operation::Expire => {
                self.holder.expire(self.now());
                self.model.expire();
            }
            Operation::BeginRead { key, start, len_bytes } => self.begin_read(key, start, len_bytes),
            Operation::EndRead { which } => self.end_read(which),
            Operation::Confirm { key, put_id } => self.confirm(key, put_id),
            Operation::Remove { key, put_id } => self.remove(key, put_id),
            Operation::Pin { key, pin } => self.pin(key, pin),
            Operation::EvictSome => self.evict_some(),
            Operation::MakeRoom { len_class } => self.make_room(LENS[len_class % LENS.len()]),
            Operation::Mount { like } => self.mount(like),
            Operation::Drain { which } => self.drain(which),
            Operation::DropSome { which } => self.drop_some(which),
            Operation::Unmount { which } => self.unmount(which),
            Operation::MoveAway { key, put_id } => self.move_away(key, put_id),
        }
    }

    fn reserve(&mut self, put: Put, len_bytes: u64, session: u8) {
        let spec = ReserveSpec {
            owner: owner(session),
            ..reserve_spec(put.put_id, &put.key_text(), len_bytes)
        };
        let now = self.now();
        let answer = self.holder.reserve(now, &mut self.rng, spec);
        let known = self.model.reserved(put).cloned();
        match (answer, known) {
            (Ok(reserved), Some(known)) => {
                assert_eq!((reserved.region, known.len_bytes), (known.id, len_bytes));
                let is_open = known.state == State::Reserved;
                assert_eq!(reserved.needs_grant, is_open && known.session != session);
                if is_open {
                    let expires_ms = self.model.now_ms + known.ttl_ms;
                    let region = self.model.region(known.id).unwrap();
                    (region.expires_ms, region.session) = (expires_ms, session);
                }
            }
            (Ok(reserved), None) => {
                assert!(reserved.needs_grant && self.model.fits(len_bytes));
                self.model.add(reserved.region, put, len_bytes, session);
            }
            (Err(ReserveError::OtherLength { reserved_bytes, .. }), Some(known)) => {
                assert_eq!(reserved_bytes, known.len_bytes);
                assert_ne!(len_bytes, known.len_bytes);
            }
            (Err(ReserveError::TooLarge { .. }), None) => assert!(len_bytes > self.model.largest_segment_bytes()),
            (Err(ReserveError::NoSpace(numbers)), None) => {
                let largest_bytes = self.model.largest_segment_bytes();
                assert!(!self.model.fits(len_bytes) && (len_bytes <= largest_bytes || largest_bytes == 0));
                assert_eq!(numbers.free_bytes, self.model.active_free_and_capacity().0);
                assert_eq!(numbers.stop_reason == "no_segment", largest_bytes == 0);
            }
            (answer, known) => panic!("{answer:?} where the model knows {known:?}"),
        }
    }

    /// A write from one piece boundary, the start or the end, to another.
    fn begin_write(&mut self, put: Put, start: usize, end: usize) {
        let Some(region) = self.model.reserved(put).map(|region| (region.id, region.len_bytes)) else {
            return;
        };
        let (id, len_bytes) = region;
        let mut marks: Vec<u64> = (0..len_bytes.div_ceil(PIECE_BYTES))
            .map(|piece| piece * PIECE_BYTES)
            .collect();
        marks.extend([len_bytes / 2, len_bytes, len_bytes + 1]);
        marks.sort_unstable();
        let start = marks[start % marks.len()];
        let end = marks[end % marks.len()];
        if start < end {
            self.begin_write_of(id, start..end);
        }
    }

    /// All bytes, so many at a time, beginning with the last ones.
    fn write_all(&mut self, put: Put, step: u64) {
        let Some((id, len_bytes)) = self.model.reserved(put).map(|region| (region.id, region.len_bytes)) else {
            return;
        };
        for start in (0..len_bytes.div_ceil(step)).rev().map(|part| part * step) {
            let under_way = self.writes.len();
            self.begin_write_of(id, start..len_bytes.min(start + step));
            if self.writes.len() > under_way {
                self.end_write(under_way, true, false);
            }
        }
    }

    fn begin_write_of(&mut self, id: RegionId, range: Range<u64>) {
        let Range { start, end } = range;
        let answer = self.holder.begin_write(id, start, end - start);
        let expected = self.model.may_write(id, &(start..end));
        assert_eq!(answer.as_ref().map(|_| ()).map_err(|error| *error), expected);
        let Ok(hold) = answer else { return };
        self.model.clock += 1;
        let begun = self.model.clock;
        let region = self.model.region(id).unwrap();
        region.holds += 1;
        region.writes.push(Write {
            range: start..end,
            begun,
            ended: None,
            arrived: None,
        });
        self.writes.push((hold, id, start..end, begun));
    }

    fn end_write(&mut self, which: usize, arrives: bool, is_damaged: bool) {
        if self.writes.is_empty() {
            return;
        }
        let (hold, id, range, begun) = self.writes.swap_remove(which % self.writes.len());
        let now = self.now();
        self.model.clock += 1;
        let (now_ms, clock) = (self.model.now_ms, self.model.clock);
        let region = self.model.region(id).unwrap();
        let checksum = piece_checksum(region.put.put_id.into(), range.start / PIECE_BYTES) ^ u64::from(is_damaged);
        if arrives {
            self.holder
                .wrote(now, id, range.start, range.end - range.start, checksum);
            region.expires_ms = now_ms + region.ttl_ms;
        }
        self.holder.end_write(hold);
        region.holds -= 1;
        let write = region.writes.iter_mut().find(|write| write.begun == begun).unwrap();
        write.ended = Some(clock);
        write.arrived = arrives.then_some(checksum);
        self.model.free_unused();
    }

    fn begin_commit(&mut self, put: Put) {
        let reserved = self.model.reserved(put).map(|region| region.len_bytes);
        let ended = self.model.ended(put).map(|((_, len_bytes), _)| len_bytes);
        let len_bytes = reserved.or(ended).unwrap_or(1);
        let now = self.now();
        let answer = self
            .holder
            .begin_commit(now, commit_spec(put.put_id, &put.key_text(), len_bytes));
        let step = self
            .model
            .begin_commit(put, |len_bytes| checksums(len_bytes, put.put_id.into()).pieces);
        match (answer, step) {
            (Ok(CommitStep::Done(outcome)), ModelStep::Done(expected)) => assert_eq!(outcome, expected),
            (Ok(CommitStep::Wait), ModelStep::Wait)
            | (Err(CommitError::UnknownPut), ModelStep::UnknownPut)
            | (Err(CommitError::OtherBytes), ModelStep::OtherBytes) => {}
            (Ok(CommitStep::Verify(unverified)), ModelStep::Verify(id, unknown)) => {
                assert_eq!((unverified.region(), unverified.unknown_pieces()), (id, &unknown[..]));
                self.commits.push((Token::Unverified(unverified), id, put));
            }
            (Err(CommitError::Mismatch { piece, .. }), ModelStep::Mismatch(expected)) => assert_eq!(piece, expected),
            (Err(CommitError::Unwritten { offset_bytes, .. }), ModelStep::Unwritten(expected)) => {
                assert_eq!(offset_bytes, expected);
            }
            (Ok(CommitStep::Report(unreported)), ModelStep::Report(id, outcome)) => {
                assert_eq!(unreported.version(), outcome.0.version);
                self.commits.push((Token::Unreported(unreported, outcome), id, put));
            }
            (answer, expected) => panic!("{answer:?} where the model says {expected:?}"),
        }
    }

    fn advance_commit(&mut self, which: usize, how: Advance) {
        if self.commits.is_empty() {
            return;
        }
        let (token, id, put) = self.commits.swap_remove(which % self.commits.len());
        match token {
            Token::Unverified(unverified) => self.advance_unverified(unverified, id, put, how),
            Token::Verified(verified) => self.advance_verified(verified, id, put, how),
            Token::Unreported(unreported, outcome) => self.advance_unreported(unreported, outcome, id, put, how),
        }
    }

    fn advance_unverified(&mut self, unverified: Unverified, id: RegionId, put: Put, how: Advance) {
        if matches!(how, Advance::Abandon) {
            self.holder.abandon(unverified);
            return self.model.give_up(id, Some(EndReason::Failed));
        }
        let unknown = unverified.unknown_pieces().iter();
        let mut found: Vec<_> = unknown.map(|&piece| piece_checksum(put.put_id.into(), piece)).collect();
        if let (Advance::DamagedPiece, Some(last)) = (how, found.last_mut()) {
            *last ^= 1;
            assert!(self.holder.verify(unverified, &found).is_err());
            return self.model.give_up(id, Some(EndReason::Failed));
        }
        let verified = self.holder.verify(unverified, &found).unwrap();
        self.commits.push((Token::Verified(verified), id, put));
    }

    fn advance_verified(&mut self, verified: Verified, id: RegionId, of: Put, how: Advance) {
        let len_bytes = self.model.region(id).unwrap().len_bytes;
        match how {
            Advance::Abandon => {
                self.holder.abandon(verified);
                self.model.give_up(id, Some(EndReason::Failed));
            }
            Advance::Yield { to } => {
                let version = version(7, to);
                let now = self.now();
                let outcome = self.holder.yield_to(now, verified, version, false);
                let expected = if to == of.put_id {
                    PutOutcome::Stored
                } else {
                    PutOutcome::AlreadyExists
                };
                assert_eq!((outcome.outcome, outcome.version), (expected, version));
                self.model.remember(of, (outcome, len_bytes));
                self.model.give_up(id, Some(EndReason::NotNeeded));
            }
            Advance::Well { .. } | Advance::DamagedPiece | Advance::Unanswered => {
                let epoch = if let Advance::Well { epoch } = how { epoch } else { 1 };
                let accepted = Accepted {
                    epoch: Epoch(epoch),
                    degraded: epoch == 2,
                };
                let unreported = self.holder.seal(verified, accepted, 0);
                let outcome = Committed {
                    outcome: PutOutcome::Stored,
                    version: version(epoch, of.put_id),
                    degraded: epoch == 2,
                    copies: 0,
                };
                assert_eq!(unreported.version(), outcome.version);
                self.model.seal(id, outcome);
                self.commits
                    .push((Token::Unreported(unreported, (outcome, len_bytes)), id, of));
            }
        }
    }

    fn advance_unreported(&mut self, unreported: Unreported, outcome: Outcome, id: RegionId, of: Put, how: Advance) {
        let now = self.now();
        let is_here = self
            .model
            .region(id)
            .is_some_and(|region| matches!(region.state, State::Sealed { .. }));
        let known = self.model.outcome(of);
        match how {
            Advance::Abandon | Advance::DamagedPiece => {
                let stored = known.filter(|_| !is_here).map(|(stored, _)| stored);
                assert_eq!(self.holder.retract(now, unreported), stored);
                if is_here {
                    self.model.forget(of);
                    self.model.give_up(id, None);
                }
            }
            Advance::Unanswered => {
                self.holder.keep_unanswered(unreported);
                if is_here && known.is_none() {
                    self.model.set_report(id, Report::Unanswered);
                }
            }
            Advance::Well { .. } | Advance::Yield { .. } => {
                assert_eq!(self.holder.report(now, unreported), outcome.0);
                if known.is_none() {
                    self.model.remember(of, outcome);
                }
                if let Some(region) = self.model.region(id).filter(|_| is_here) {
                    let (stored, report) = (outcome.0, Report::Taken);
                    region.state = State::Sealed { stored, report };
                }
            }
        }
    }

    fn abort(&mut self, of: Put, by: u8) {
        let answer = self
            .holder
            .abort(put(of.put_id), &name(&of.key_text()), owner(by).session);
        match self.model.reserved(of) {
            Some(region) if region.state == State::Committing => assert_eq!(answer, Err(CommitInProgress)),
            Some(region) if region.session == by => {
                assert_eq!(answer, Ok(true));
                self.model.give_up(region.id, Some(EndReason::Aborted));
            }
            _ => assert_eq!(answer, Ok(false)),
        }
    }

    fn end_session(&mut self, session: u8) {
        self.holder.session_ended(owner(session));
        let open = self
            .model
            .regions
            .iter()
            .filter(|region| region.state == State::Reserved);
        let ended: Vec<_> = open
            .filter(|region| region.session == session)
            .map(|region| region.id)
            .collect();
        for id in ended {
            self.model.give_up(id, Some(EndReason::SessionEnded));
        }
    }

    fn begin_read(&mut self, key: u8, start: u64, len_bytes: u64) {
        let Some(id) = self.model.sealed(key).map(|(region, ..)| region.id) else {
            return;
        };
        let offset_bytes = id.offset_bytes + start;
        let answer = self.holder.begin_read(id.segment, offset_bytes, len_bytes);
        match (answer, self.model.may_read(id.segment, offset_bytes, len_bytes)) {
            (Ok(hold), Ok(id)) => {
                assert_eq!(hold.generation(), id.generation);
                self.model.region(id).unwrap().holds += 1;
                self.reads.push((hold, id));
            }
            (answer, expected) => assert_eq!(answer.map(|_| id), expected),
        }
    }

    fn end_read(&mut self, which: usize) {
        if self.reads.is_empty() {
            return;
        }
        let (hold, id) = self.reads.swap_remove(which % self.reads.len());
        self.holder.end_read(hold);
        self.model.region(id).unwrap().holds -= 1;
        self.model.free_unused();
    }

    pub(crate) fn sealed_as(&self, key: u8, put_id: u8) -> Option<(RegionId, Version)> {
        let (region, stored, _) = self.model.sealed(key)?;
        (stored.version.put_id == put(put_id)).then_some((region.id, stored.version))
    }

    fn confirm(&mut self, key: u8, put_id: u8) {
        let sealed = self.sealed_as(key, put_id);
        let asked = sealed.map_or(version(1, put_id), |(_, version)| version);
        assert_eq!(self.holder.confirm(self.now(), hash(key), asked), sealed.is_some());
        if let Some((id, _)) = sealed {
            self.model.home_knows(id);
        }
    }

    fn remove(&mut self, key: u8, put_id: u8) {
        let sealed = self.sealed_as(key, put_id);
        let asked = sealed.map_or(version(1, put_id), |(_, version)| version);
        assert_eq!(self.holder.remove(self.now(), hash(key), asked), sealed.is_some());
        if let Some((id, _)) = sealed {
            self.model.home_knows(id);
            self.model.give_up(id, None);
        }
    }

    fn pin(&mut self, key: u8, pin: Pin) {
        let sealed = self.model.sealed(key).map(|(region, ..)| region.id);
        assert_eq!(
            self.holder.pin(self.now(), &name(&format!("k/{key}")), pin),
            sealed.is_some()
        );
        let now_ms = self.model.now_ms;
        if let Some(region) = sealed.and_then(|id| self.model.region(id)) {
            region.pin = match pin {
                Pin::None => Pinned::No,
                Pin::Soft { for_ms } => Pinned::Softly {
                    until_ms: now_ms + for_ms,
                },
                Pin::Hard => Pinned::Hard,
            };
        }
    }

    fn evict_some(&mut self) {
        while self.holder.evict_some(self.now()) {}
        self.note_evicted(false);
        let (free_bytes, capacity_bytes) = self.model.active_free_and_capacity();
        let used_bytes = capacity_bytes - free_bytes;
        let is_too_full = used_bytes > 0 && 100 * used_bytes >= u64::from(MARKS.from_percent) * capacity_bytes;
        let mut in_use = self.model.regions.iter();
        let may_go = in_use.any(|region| region.may_go(false) && self.model.phase(region.id.segment) == Phase::Active);
        assert!(!is_too_full || !may_go);
    }

    fn make_room(&mut self, len_bytes: u64) {
        if self.model.fits(len_bytes) {
            return;
        }
        let could_fit = self.model.could_fit(len_bytes);
        assert_eq!(self.holder.make_room(self.now(), len_bytes), could_fit);
        self.note_evicted(true);
        assert_eq!(self.model.fits(len_bytes), could_fit);
    }

    /// Takes what has gone out of the model, which says whether it might.
    fn note_evicted(&mut self, for_request: bool) {
        for evicted in self.holder.take_evicted() {
            let mut regions = self.model.regions.iter();
            let region = regions
                .find(|region| region.id.generation == evicted.generation)
                .unwrap();
            assert!(region.may_go(for_request), "{region:?} has gone");
            assert_eq!(
                self.model.phase(region.id.segment),
                Phase::Active,
                "that makes room for nobody"
            );
            let id = region.id;
            self.model.give_up(id, None);
        }
    }

    /// Whatever was done, both must say the same of everything.
    pub(crate) fn compare(&mut self) {
        self.holder.check_invariants();
        assert_eq!(self.holder.account(), self.model.account());
        let mut ended: Vec<_> = self
            .holder
            .take_ended()
            .iter()
            .map(|ended| (ended.region, ended.reason))
            .collect();
        let mut expected = std::mem::take(&mut self.model.ended);
        ended.sort_by_key(|(region, _)| *region);
        expected.sort_by_key(|(region, _)| *region);
        assert_eq!(ended, expected);
        let mut mounted = 0;
        for usage in self.holder.segments() {
            let at = usage.segment.0 as usize - 1;
            assert_eq!(usage.slots_used as usize, self.model.slots_used(at));
            assert_eq!(usage.is_draining, self.model.segments[at].phase == Phase::Draining);
            let transfers: usize = (self.model.regions.iter())
                .filter(|region| region.id.segment == usage.segment)
                .map(|region| region.holds)
                .sum();
            assert_eq!(self.holder.users(usage.segment).unwrap().transfers, transfers as u64);
            mounted += 1;
        }
        assert_eq!(
            mounted,
            self.model.segments.len() - self.model.in_phase(Phase::Gone).len()
        );
        let page = self
            .holder
            .list(&Namespace::new(Namespace::DEFAULT).unwrap(), "k/", None, 100);
        let listing: Vec<_> = (page.entries.into_iter())
            .map(|entry| (entry.key, entry.len_bytes, entry.version))
            .collect();
        assert_eq!(listing, self.model.listing());
        for key in 0..2 {
            let info = self
                .holder
                .lookup_hash(hash(key))
                .map(|info| (info.version, info.replica.generation));
            let sealed = self
                .model
                .sealed(key)
                .map(|(region, stored, _)| (stored.version, region.id.generation));
            assert_eq!(info, sealed);
        }
        let described: usize = self.tables.iter().map(|table| table.described().len()).sum();
        assert_eq!(described as u64, self.model.account().objects);
    }

    /// Ends all that is under way: then nothing is reserved or held.
    pub(crate) fn finish(mut self) {
        while !self.writes.is_empty() {
            self.end_write(0, false, false);
        }
        while !self.reads.is_empty() {
            self.end_read(0);
        }
        while !self.commits.is_empty() {
            self.advance_commit(0, Advance::Abandon);
        }
        self.model.now_ms += 1_000_000;
        self.apply(Operation::Expire);
        self.compare();
        let account = self.holder.account();
        assert_eq!((account.reserved_bytes, account.held_bytes), (0, 0));
        assert_eq!(account.capacity_bytes, account.free_bytes + account.sealed_bytes);
        self.unmount_all();
    }
}

pub(crate) fn version(epoch: u64, put_id: u8) -> Version {
    Version {
        epoch: Epoch(epoch),
        put_id: put(put_id),
    }
}

pub(crate) fn hash(key: u8) -> tenon_protocol::ids::KeyHash {
    name(&format!("k/{key}")).hash(CLUSTER)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]
    #[test]
    fn the_holder_and_its_model_agree(operations in proptest::collection::vec(operation(), 1..160)) {
        let mut run = Run::new();
        for operation in operations {
            run.apply(operation);
            run.compare();
        }
        run.finish();
    }
}

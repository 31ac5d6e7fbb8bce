//! Commits: from bytes that arrived to an object that can be read.

use super::region::{CommitData, Object, Outcome, Record, Report, Reservation, State};
use super::reserve::EndReason;
use super::{CommitError, Holder, RegionId, SealPlan, SegmentTable};
use crate::time::Time;
use std::sync::Arc;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::ids::{Epoch, KeyHash, NodeId, PutId, Version};
use tenon_protocol::limits::{FINGERPRINT_LEN_BYTES_MAX, PIECE_BYTES};
use tenon_protocol::member::{HomeEventKind, Withdrawal};
use tenon_protocol::message::{Committed, PutOutcome, Replica};
use tenon_protocol::name::ObjectName;
use tenon_protocol::table::{Descriptor, KeyRow, row_checksum};

/// What is to be committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitSpec {
    /// The attempt that reserved.
    pub put_id: PutId,
    /// The key.
    pub name: ObjectName,
    /// Of the bytes that were sent.
    pub checksums: Checksums,
    /// Stored with the object.
    pub fingerprint: Vec<u8>,
}

/// How a commit goes on.
#[derive(Debug)]
#[must_use]
pub enum CommitStep {
    /// The put has its outcome already.
    Done(Committed),
    /// A commit of the same put is in progress, or its last writes are not over yet: ask again after one of them has
    /// ended.
    Wait,
    /// The commit is begun; these pieces are to be read and checked.
    Verify(Unverified),
    /// An earlier commit of the put has sealed its object, and the homes did not answer its report: they are to be told
    /// again.
    Report(Unreported),
}

/// What the homes have accepted, as far as the holder does not know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The epoch of the object's version.
    pub epoch: Epoch,
    /// One home decided alone.
    pub degraded: bool,
}

/// The region of a commit in progress.
#[derive(Debug)]
pub struct Commit {
    region: RegionId,
    put_id: PutId,
    key_hash: KeyHash,
}

impl Commit {
    /// What homes are to be told if it has come to nothing.
    fn withdrawal(&self, holder: NodeId) -> Withdrawal {
        Withdrawal {
            put_id: self.put_id,
            holder,
            generation: self.region.generation,
        }
    }
}

/// A commit whose bytes are not known to be right.
#[derive(Debug)]
#[must_use = "the commit stays in progress"]
pub struct Unverified {
    commit: Commit,
    len_bytes: u64,
    unknown: Vec<u64>,
}

impl Unverified {
    /// Where the bytes are.
    pub fn region(&self) -> RegionId {
        self.commit.region
    }

    /// How many.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Indices of the pieces whose checksum is not known from their arrival, in order.
    pub fn unknown_pieces(&self) -> &[u64] {
        &self.unknown
    }
}

/// A commit whose bytes are right. Whether they become the key's object is for the homes to say.
#[derive(Debug)]
#[must_use = "the commit stays in progress"]
pub struct Verified {
    commit: Commit,
    len_bytes: u64,
    replica: Replica,
    replace: bool,
}

impl Verified {
    /// What to ask the homes.
    pub fn proposal(&self) -> HomeEventKind {
        HomeEventKind::Propose {
            put_id: self.commit.put_id,
            len_bytes: self.len_bytes,
            replicas: vec![self.replica],
            replace: self.replace,
        }
    }

    pub(super) fn withdrawal(&self) -> Withdrawal {
        self.commit.withdrawal(self.replica.holder)
    }
}

/// A commit whose object can be read, but whose homes do not know that yet.
#[derive(Debug)]
#[must_use = "the commit stays in progress"]
pub struct Unreported {
    commit: Commit,
    outcome: Outcome,
    replace: bool,
}

impl Unreported {
    /// The version to report.
    pub fn version(&self) -> Version {
        self.outcome.committed.version
    }

    /// What the homes are told. `holder` is this node.
    pub fn report(&self, holder: NodeId) -> HomeEventKind {
        HomeEventKind::Sealed {
            version: self.version(),
            holder,
            generation: self.commit.region.generation,
            replace: self.replace,
        }
    }

    pub(super) fn withdrawal(&self, holder: NodeId) -> Withdrawal {
        self.commit.withdrawal(holder)
    }
}

impl From<Unverified> for Commit {
    fn from(unverified: Unverified) -> Self {
        unverified.commit
    }
}

impl From<Verified> for Commit {
    fn from(verified: Verified) -> Self {
        verified.commit
    }
}

impl<T: SegmentTable> Holder<T> {
    /// Begins the commit of a put, or tells its outcome. From here on nothing more is written and neither time nor the
    /// end of the session ends the reservation.
    pub fn begin_commit(&mut self, now: Time, spec: CommitSpec) -> Result<CommitStep, CommitError> {
        self.pass(now);
        let CommitSpec { put_id, name, .. } = &spec;
        let key_hash = name.hash(self.config.cluster);
        let reserved = self.reservations.get(&(*put_id, key_hash)).copied();
        let must_wait = reserved.is_some_and(|region| {
            let record = self.record(region).expect("reservations are recorded");
            record.holds > 0
                || record
                    .reservation()
                    .is_some_and(|reservation| reservation.commit.is_some())
        });
        if must_wait {
            return Ok(CommitStep::Wait);
        }
        if let Some((outcome, report)) = self.known_outcome(now, *put_id, key_hash) {
            if report == Report::UnderWay {
                return Ok(CommitStep::Wait);
            }
            if let Some(region) = reserved {
                self.end(region, EndReason::NotNeeded);
            }
            if outcome.checksum != spec.checksums.whole {
                return Err(CommitError::OtherBytes);
            }
            return Ok(match report {
                Report::Unanswered => CommitStep::Report(self.report_again(key_hash)),
                _ => CommitStep::Done(outcome.committed),
            });
        }
        let region = reserved.ok_or(CommitError::UnknownPut)?;
        self.begin_verification(region, spec)
            .inspect_err(|_| self.end(region, EndReason::Failed))
            .map(CommitStep::Verify)
    }

    /// How a put ended, or will have ended once the homes know of its object.
    fn known_outcome(&mut self, now: Time, put_id: PutId, key_hash: KeyHash) -> Option<(Outcome, Report)> {
        if let Some(outcome) = self.outcomes.get(now, put_id, key_hash) {
            return Some((outcome, Report::Taken));
        }
        let object = self.record(*self.by_hash.get(&key_hash)?)?.object()?;
        let is_of_the_put = object.version.put_id == put_id;
        is_of_the_put.then(|| (object.outcome(), object.report))
    }

    /// Takes up again the commit of the key's object, whose report was not answered.
    fn report_again(&mut self, key_hash: KeyHash) -> Unreported {
        let region = self.by_hash[&key_hash];
        let object = self.record_mut(region).and_then(Record::object_mut);
        let object = object.expect("what is found by its hash is sealed");
        object.report = Report::UnderWay;
        let (outcome, replace) = (object.outcome(), object.replaces);
        let put_id = object.version.put_id;
        let commit = Commit {
            region,
            put_id,
            key_hash,
        };
        Unreported {
            commit,
            outcome,
            replace,
        }
    }

    fn begin_verification(&mut self, region: RegionId, spec: CommitSpec) -> Result<Unverified, CommitError> {
        let record = self.record_mut(region).expect("reservations are recorded");
        let len_bytes = record.len_bytes();
        let CommitSpec {
            checksums, fingerprint, ..
        } = spec;
        if fingerprint.len() > FINGERPRINT_LEN_BYTES_MAX {
            return Err(CommitError::Fingerprint {
                len_bytes: fingerprint.len(),
            });
        }
        if !checksums.is_consistent(len_bytes) {
            return Err(CommitError::Inconsistent {
                len_bytes,
                pieces: checksums.pieces.len(),
            });
        }
        let reservation = record.reservation_mut().expect("it is reserved");
        // Before anything is compared: what lies where nobody wrote is not for the committer to learn.
        if let Some(offset_bytes) = reservation.pieces.first_missing() {
            return Err(CommitError::Unwritten {
                offset_bytes,
                len_bytes,
            });
        }
        let mut unknown = Vec::new();
        for ((piece, &expected), arrived) in (0..).zip(&checksums.pieces).zip(reservation.pieces.checksums()) {
            match arrived {
                None => unknown.push(piece),
                Some(arrived) => check_piece(piece, arrived, expected)?,
            }
        }
        let commit = Commit {
            region,
            put_id: reservation.put_id,
            key_hash: reservation.key_hash,
        };
        reservation.commit = Some(CommitData { checksums, fingerprint });
        let (owner, queued_at) = (reservation.owner, reservation.queued_at);
        self.unqueue(region, owner, queued_at);
        Ok(Unverified {
            commit,
            len_bytes,
            unknown,
        })
    }

    /// Compares what was read with what the committer said. `found` are the checksums of
    /// [`Unverified::unknown_pieces`], in their order. If one is wrong the reservation has ended.
    ///
    /// # Panics
    /// If there are more or fewer checksums than unknown pieces.
    pub fn verify(&mut self, unverified: Unverified, found: &[u64]) -> Result<Verified, CommitError> {
        let Unverified {
            commit,
            len_bytes,
            unknown,
        } = unverified;
        assert_eq!(found.len(), unknown.len(), "one checksum per unknown piece");
        let (record, reservation, data) = self.committing(&commit);
        let replace = reservation.replace;
        let result = unknown.iter().zip(found).try_for_each(|(&piece, &arrived)| {
            let expected = usize::try_from(piece)
                .ok()
                .and_then(|piece| data.checksums.pieces.get(piece));
            check_piece(
                piece,
                arrived,
                *expected.expect("unknown pieces are pieces of the object"),
            )
        });
        let replica = self.replica(commit.region, record);
        match result {
            Ok(()) => Ok(Verified {
                commit,
                len_bytes,
                replica,
                replace,
            }),
            Err(error) => {
                self.end(commit.region, EndReason::Failed);
                Err(error)
            }
        }
    }

    /// The homes have accepted the object as the key's, in this epoch: describes it in the table and makes it readable
    /// here. An older object of the key is dropped after that.
    pub fn seal(&mut self, verified: Verified, accepted: Accepted, sealed_unix_ms: u64) -> Unreported {
        let Verified { commit, replace, .. } = verified;
        let Accepted { epoch, degraded } = accepted;
        let version = Version {
            epoch,
            put_id: commit.put_id,
        };
        let (record, reservation, data) = self.committing(&commit);
        let plan = seal_plan(record, reservation, data, version, sealed_unix_ms);
        let name = Arc::clone(&reservation.name);
        let (region, len_bytes, pin) = (commit.region, record.len_bytes(), reservation.pin);
        let object = Object {
            name: Arc::clone(&name),
            key_hash: commit.key_hash,
            version,
            checksum: data.checksums.whole,
            fingerprint: data.fingerprint.as_slice().into(),
            sealed_unix_ms,
            sealed_at: self.now,
            used_at: self.now,
            standing: self.admit(region, len_bytes, pin),
            degraded,
            is_copy: false,
            replaces: replace,
            report: Report::UnderWay,
        };
        let outcome = object.outcome();
        let segment = self.segment_of(region);
        segment.write_table(&plan);
        let State::Reserved(reservation) = segment.enter(region, State::Sealed(Box::new(object))) else {
            unreachable!("a commit is in progress in a reservation");
        };
        self.unlist(region, &reservation, EndReason::Sealed);
        self.names.insert(name, region);
        if let Some(older) = self.by_hash.insert(commit.key_hash, region) {
            self.retire(older);
        }
        Unreported {
            commit,
            outcome,
            replace,
        }
    }

    /// The key's object, committed at another holder, is readable here too: describes it in the table. Its homes are to be told
    /// ([`Self::held`]). False if the key has this object or a later one here: then the region is freed.
    pub fn seal_copy(&mut self, now: Time, verified: Verified, epoch: Epoch, sealed_unix_ms: u64) -> bool {
        let version = Version {
            epoch,
            put_id: verified.commit.put_id,
        };
        let is_late = self
            .present(&verified)
            .is_some_and(|present| present == version || present.epoch >= epoch);
        if is_late {
            self.end(verified.commit.region, EndReason::NotNeeded);
            return false;
        }
        let accepted = Accepted { epoch, degraded: false };
        let sealed = self.seal(verified, accepted, sealed_unix_ms);
        let object = self.record_mut(sealed.commit.region).and_then(Record::object_mut);
        object.expect("it was just sealed").is_copy = true;
        self.report(now, sealed);
        true
    }

    /// The key has an object, which stays: this put's region is freed. If that object is of the same put, stored
    /// elsewhere by an earlier try, the put is stored.
    pub fn yield_to(&mut self, now: Time, verified: Verified, version: Version, degraded: bool) -> Committed {
        let (.., data) = self.committing(&verified.commit);
        let checksum = data.checksums.whole;
        let Commit {
            region,
            put_id,
            key_hash,
        } = verified.commit;
        self.end(region, EndReason::NotNeeded);
        let committed = Committed {
            outcome: if version.put_id == put_id {
                PutOutcome::Stored
            } else {
                PutOutcome::AlreadyExists
            },
            version,
            degraded,
            copies: 0,
        };
        let outcome = Outcome { committed, checksum };
        self.outcomes.remember(now, put_id, key_hash, outcome);
        committed
    }

    /// The homes have noted the seal: the put is done.
    pub fn report(&mut self, now: Time, unreported: Unreported) -> Committed {
        let Unreported { commit, outcome, .. } = unreported;
        if let Some(object) = self.record_mut(commit.region).and_then(Record::object_mut) {
            object.report = Report::Taken;
        }
        self.outcomes.remember(now, commit.put_id, commit.key_hash, outcome);
        outcome.committed
    }

    /// The object of a commit's key that this holder has now.
    pub(super) fn present(&self, verified: &Verified) -> Option<Version> {
        let region = self.by_hash.get(&verified.commit.key_hash)?;
        let object = self.record(*region).and_then(Record::object)?;
        Some(object.version)
    }

    /// The put is stored, by another try at another holder: the object here is dropped.
    pub(super) fn retract_for_another_try(&mut self, now: Time, unreported: Unreported) -> Committed {
        let Unreported { commit, outcome, .. } = unreported;
        self.drop_object(commit.key_hash, outcome.committed.version);
        self.outcomes.remember(now, commit.put_id, commit.key_hash, outcome);
        outcome.committed
    }

    /// The homes do not take the seal: the object is dropped, the put has failed. Unless a home has had the object
    /// dropped before: then it was the key's, and this is how the put ended.
    pub fn retract(&mut self, now: Time, unreported: Unreported) -> Option<Committed> {
        let Unreported { commit, outcome, .. } = unreported;
        if self.drop_object(commit.key_hash, outcome.committed.version) {
            self.outcomes.forget(commit.put_id, commit.key_hash);
        }
        let known = self.outcomes.get(now, commit.put_id, commit.key_hash);
        known.map(|outcome| outcome.committed)
    }

    /// The homes have not answered whether they took the seal. They may have, and may have told others, so the object
    /// stays as it is; they are to be told of it until they answer ([`Self::held`]). Who repeats the put has its commit
    /// taken up again ([`CommitStep::Report`]).
    pub fn keep_unanswered(&mut self, unreported: Unreported) {
        let object = self.record_mut(unreported.commit.region).and_then(Record::object_mut);
        if let Some(object) = object.filter(|object| object.report == Report::UnderWay) {
            object.report = Report::Unanswered;
        }
    }

    /// Gives a commit up: the put has failed and its region is freed.
    pub fn abandon(&mut self, commit: impl Into<Commit>) {
        self.end(commit.into().region, EndReason::Failed);
    }

    fn committing(&self, commit: &Commit) -> (&Record, &Reservation, &CommitData) {
        let record = self.record(commit.region).expect("a commit in progress is recorded");
        let reservation = record.reservation().expect("a commit is in progress in a reservation");
        let data = reservation.commit.as_ref().expect("the commit was begun");
        (record, reservation, data)
    }
}

fn check_piece(piece: u64, arrived: u64, expected: u64) -> Result<(), CommitError> {
    if arrived == expected {
        Ok(())
    } else {
        Err(CommitError::Mismatch {
            piece,
            arrived,
            expected,
        })
    }
}

fn seal_plan(
    record: &Record,
    reservation: &Reservation,
    data: &CommitData,
    version: Version,
    sealed_unix_ms: u64,
) -> SealPlan {
    let len_bytes = record.len_bytes();
    let mut piece_sums = data.checksums.pieces.clone();
    let has_tail = !len_bytes.is_multiple_of(PIECE_BYTES);
    let tail_checksum = if has_tail { piece_sums.pop().unwrap_or(0) } else { 0 };
    let row = KeyRow {
        generation: record.generation,
        offset_bytes: record.region.offset_bytes(),
        version,
        tail_checksum,
        sealed_unix_ms,
        fingerprint: data.fingerprint.clone(),
        name: (*reservation.name).clone(),
    };
    let descriptor = Descriptor {
        key_hash: reservation.key_hash,
        len_bytes,
        checksum: data.checksums.whole,
        row_checksum: row_checksum(&row.encode()),
        generation: record.generation,
    };
    SealPlan {
        slot: record.slot,
        descriptor,
        row,
        piece_sums,
    }
}

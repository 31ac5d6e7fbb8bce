//! Drives this node's [`Holder`]: gives its decisions memory, write grants and time.
//!
//! Locks: `grants` before `core`. Revoking a grant waits for a peer's access that is just touching memory, and that
//! access asks `core`; so nothing is
//! revoked while either lock is held.

mod moves;

use crate::clock;
use crate::guards::{ReadGuard, WriteGuard};
use crate::metrics::{AllocationFailure, Metrics, Place};
use crate::pages;
use crate::segments::{MountFailure, MountedSegment, SegmentMemory, Segments};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use tenon_protocol::checksum::{Checksums, piece_len_bytes};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, KeyHash, NodeId, PutId, SegmentId, SessionId, Slot};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::member::{self, HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEntry, Homes};
use tenon_protocol::message::{
    AttachedSegment, Committed, Keep, KeyResult, ListEntry, Pin, ReservedRegion, SpaceAccount,
};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_protocol::placement::DryRunPlace;
use tenon_store_core::objects::{
    CommitSpec, CommitStep, Dropped, DryRun, EndReason, Evicted, HoldError, Holder, HolderConfig, MapPage, Proposed,
    ReadHold, RegionId, Reported, ReserveError, ReserveSpec, Reserved, SealPlan, SegmentSpec, SegmentTable,
    SegmentUsage, SegmentUsers, Tellable, Unreported, Unverified, Verified, WouldPlace, WriteHold,
};
use tenon_store_core::placement::PlacementCounters;
use tenon_store_core::placement::nodes::NodeHint;
use tenon_transport::{Export, Exports, RemoteKey, Rights, Scope, Slice};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

pub(crate) use tenon_store_core::objects::Owner;

/// One key of a reservation.
#[derive(Debug)]
pub(crate) struct ReserveKey {
    /// The attempt.
    pub put_id: PutId,
    /// The key.
    pub name: ObjectName,
    /// The object's length.
    pub len_bytes: u64,
    /// The asked time to live.
    pub ttl_ms: Option<u32>,
    /// How the object is to be pinned.
    pub pin: Pin,
    /// The object is to take the place of the one that the key has.
    pub replace: bool,
}

/// One key of a commit.
#[derive(Debug)]
pub(crate) struct CommitKey {
    /// Where it stands in the caller's batch.
    pub index: usize,
    /// The key.
    pub name: ObjectName,
    /// Its hash.
    pub hash: KeyHash,
    /// Who decides.
    pub homes: Homes,
    /// What the committer says of the bytes.
    pub checksums: Checksums,
    /// Stored with the object.
    pub fingerprint: Vec<u8>,
}

/// A commit that has its bytes, or its outcome.
#[derive(Debug)]
pub(crate) enum Begun {
    /// It was decided before.
    Done(Committed),
    /// The homes are to be asked.
    Verified(Verified),
    /// Its object was sealed before, and the homes did not answer to that: they are to be told again.
    Sealed(Unreported),
}

/// Writes the table of one segment for the holder.
#[derive(Debug)]
pub(crate) struct TableWriter(Arc<MountedSegment>);

impl SegmentTable for TableWriter {
    fn seal(&mut self, plan: &SealPlan) {
        self.0.seal(plan.slot, &plan.descriptor, &plan.row, &plan.piece_sums);
    }

    fn invalidate(&mut self, slot: Slot) {
        self.0.invalidate(slot);
    }
}

/// See the module.
#[derive(Debug)]
pub struct HolderDriver {
    node: NodeId,
    core: Mutex<Holder<TableWriter>>,
    grants: Mutex<HashMap<RegionId, RemoteKey>>,
    segments: Arc<Segments>,
    exports: Arc<Exports>,
    /// A commit or a write has ended: commits that wait look again.
    ended: Notify,
    /// Objects were evicted, or are to be.
    too_full: Notify,
    metrics: Arc<Metrics>,
    me: Weak<Self>,
}

impl HolderDriver {
    /// A holder without segments.
    pub(crate) fn new(
        config: HolderConfig,
        segments: Arc<Segments>,
        exports: Arc<Exports>,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            node: config.node,
            core: Mutex::new(Holder::new(config)),
            grants: Mutex::default(),
            segments,
            exports,
            ended: Notify::new(),
            too_full: Notify::new(),
            metrics,
            me: Weak::clone(me),
        })
    }

    /// An id for a segment that is about to be mounted.
    pub(crate) fn new_segment_id(&self) -> Result<SegmentId, MountFailure> {
        Ok(self.core.lock().new_segment_id()?)
    }

    /// Takes mapped memory into use under an id that was given for it.
    pub(crate) fn mount(&self, id: SegmentId, memory: SegmentMemory) -> Result<(), MountFailure> {
        let spec = SegmentSpec {
            len_bytes: memory.len_bytes(),
            slots: memory.slots(),
        };
        let guard = Arc::new(ReadGuard {
            holder: Weak::clone(&self.me),
            segment: id,
        });
        let mounted = self.segments.mount(id, memory, guard)?;
        let taken = self.core.lock().mount(id, &spec, TableWriter(Arc::clone(&mounted)));
        Ok(taken.inspect_err(|_| {
            self.segments.close(&mounted);
            self.segments.remove(id);
        })?)
    }

    /// Lets a segment take no further regions.
    pub(crate) fn drain(&self, segment: SegmentId) -> KeyResult<()> {
        Ok(self.core.lock().drain(segment)?)
    }

    /// Who keeps a segment from being given back; `None` if it is not mounted.
    pub(crate) fn users(&self, segment: SegmentId) -> Option<SegmentUsers> {
        self.core.lock().users(segment)
    }

    /// Drops some of what a draining segment holds.
    pub(crate) fn drop_some(&self, segment: SegmentId, from_bytes: u64) -> Dropped {
        let dropped = self.core.lock().drop_some(clock::now(), segment, from_bytes);
        self.settle();
        dropped
    }

    /// Forgets a draining segment of which nothing is in use; false if something is.
    pub(crate) fn unmount(&self, segment: SegmentId) -> bool {
        let table = self.core.lock().unmount(segment);
        let is_gone = table.is_ok();
        if is_gone {
            self.segments.remove(segment);
        }
        is_gone
    }

    /// The mounted segments.
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// How a session reaches the segments.
    pub(crate) fn attached(&self) -> Vec<AttachedSegment> {
        self.segments.attached()
    }

    /// What one segment is used for.
    pub(crate) fn segment_usage(&self, segment: SegmentId) -> Option<SegmentUsage> {
        self.core.lock().segment_usage(segment)
    }

    /// What all segments are used for.
    pub(crate) fn space(&self) -> SpaceAccount {
        self.core.lock().account()
    }

    /// What placement did so far.
    pub(crate) fn placement_counters(&self) -> PlacementCounters {
        self.core.lock().placement_counters().clone()
    }

    /// What others are told of the room here.
    pub(crate) fn hint(&self) -> NodeHint {
        self.core.lock().hint()
    }

    /// Where objects of these lengths would be placed now.
    pub(crate) fn dry_run(&self, lens_bytes: &[u64]) -> (Vec<KeyResult<DryRunPlace>>, NodeHint) {
        let DryRun { places, hint } = self.core.lock().dry_run(&mut rand::rng(), lens_bytes);
        let told = |place: WouldPlace| DryRunPlace {
            node: self.node,
            segment: place.segment,
            offset_bytes: place.offset_bytes,
            segments_asked: place.segments_asked,
        };
        (places.into_iter().map(|place| Ok(place.map(told)?)).collect(), hint)
    }

    /// Why objects of these lengths would not be placed now, each by itself; `None` of those that might be. Nothing is set aside.
    pub(crate) fn look(&self, lens_bytes: &[u64]) -> Vec<Option<ServiceError>> {
        let refusals: Vec<Option<ReserveError>> = {
            let (mut core, mut rng) = (self.core.lock(), rand::rng());
            lens_bytes
                .iter()
                .map(|&len_bytes| core.look(&mut rng, len_bytes))
                .collect()
        };
        for error in refusals.iter().flatten() {
            self.count_failure(error);
        }
        let told = |refusal: Option<ReserveError>| refusal.map(ServiceError::from);
        refusals.into_iter().map(told).collect()
    }

    /// A part of what a segment is used for; `None` if it is not mounted.
    pub(crate) fn map(&self, segment: SegmentId, from_bytes: u64, limit: u32) -> Option<MapPage> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let core = self.core.lock();
        core.map(segment, from_bytes, limit, clock::now(), clock::unix_ms())
    }

    /// Sets a region aside and grants its owner's session to write there. If there is no room and it may evict, objects go for it.
    pub(crate) fn reserve(&self, owner: Owner, key: ReserveKey, may_evict: bool) -> KeyResult<ReservedRegion> {
        let ReserveKey {
            put_id,
            name,
            len_bytes,
            ttl_ms,
            pin,
            replace,
        } = key;
        let mut grants = self.grants.lock();
        let spec = ReserveSpec {
            put_id,
            name: name.clone(),
            len_bytes,
            owner,
            ttl_ms,
            pin,
            replace,
        };
        let reserved = self.set_aside(spec, may_evict);
        let reserved = reserved.inspect_err(|error| self.count_failure(error))?;
        let region = reserved.region;
        let (key, replaced) = match grants.get(&region) {
            Some(key) if !reserved.needs_grant => (Ok(*key), None),
            replaced => {
                let replaced = replaced.copied();
                let key = self.grant(region, reserved.len_bytes, owner).inspect(|key| {
                    grants.insert(region, *key);
                });
                (key, replaced)
            }
        };
        drop(grants);
        if let Some(replaced) = replaced {
            self.exports.revoke(replaced);
        }
        let write_key = key.inspect_err(|_| {
            // Nobody can write there, so nobody can commit: a reservation without a grant is given back at once.
            let _ = self.abort(put_id, &name, owner.session);
        })?;
        Ok(ReservedRegion {
            holder: self.node,
            segment: region.segment,
            offset_bytes: region.offset_bytes,
            write_key: write_key.0,
            ttl_ms: reserved.ttl_ms,
        })
    }

    fn set_aside(&self, spec: ReserveSpec, may_evict: bool) -> Result<Reserved, ReserveError> {
        let (now, len_bytes) = (clock::now(), spec.len_bytes);
        let mut core = self.core.lock();
        let reserved = match core.reserve(now, &mut rand::rng(), spec.clone()) {
            Err(ReserveError::NoSpace(_)) if may_evict && core.make_room(now, len_bytes) => {
                self.too_full.notify_one();
                core.reserve(now, &mut rand::rng(), spec)
            }
            reserved => reserved,
        };
        if core.is_too_full() {
            self.too_full.notify_one();
        }
        reserved
    }

    /// Marks an object as used, or pins it otherwise. False if the key has none here.
    pub(crate) fn keep(&self, name: &ObjectName, keep: Keep) -> bool {
        let (now, mut core) = (clock::now(), self.core.lock());
        match keep {
            Keep::Touch => core.touch(now, name),
            Keep::Pin(pin) => core.pin(now, name, pin),
        }
    }

    /// Comes back when objects were evicted, or are to be.
    pub(crate) async fn too_full(&self) {
        self.too_full.notified().await;
    }

    /// Lets some objects go if the node is too full; false once it is not.
    pub(crate) fn evict_some(&self) -> bool {
        self.core.lock().evict_some(clock::now())
    }

    /// What was evicted since the last call.
    pub(crate) fn take_evicted(&self) -> Vec<Evicted> {
        self.core.lock().take_evicted()
    }

    fn count_failure(&self, error: &ReserveError) {
        match error {
            ReserveError::NoSpace(numbers) => {
                self.metrics
                    .allocation_failed(AllocationFailure::of_stop_reason(&numbers.stop_reason));
            }
            ReserveError::TooLarge(_) => self.metrics.allocation_failed(AllocationFailure::TooLarge),
            _ => {}
        }
    }

    fn grant(&self, region: RegionId, len_bytes: u64, owner: Owner) -> KeyResult<RemoteKey> {
        let export = Export {
            memory: self.memory(region, 0, len_bytes),
            rights: Rights::Write,
            scope: Scope::Session(tenon_transport::SessionId(owner.session.to_bytes())),
            guard: Arc::new(WriteGuard {
                holder: Weak::clone(&self.me),
                region,
            }),
        };
        self.exports
            .add(export)
            .map_err(|error| ServiceError::new(ErrorCode::Overloaded, error.to_string()))
    }

    /// Bytes of a region that the holder gave out.
    fn memory(&self, region: RegionId, offset_bytes: u64, len_bytes: u64) -> Slice {
        let segment = self
            .segments
            .get(region.segment)
            .expect("regions lie in mounted segments");
        let start = region.offset_bytes + offset_bytes;
        segment.region(start..start + len_bytes)
    }

    /// Gives a reservation of a session back; says whether there was one.
    pub(crate) fn abort(&self, put_id: PutId, name: &ObjectName, by: SessionId) -> KeyResult<bool> {
        let aborted = self.core.lock().abort(put_id, name, by);
        self.settle();
        Ok(aborted?)
    }

    /// A client's session has ended.
    pub(crate) fn session_ended(&self, owner: Owner) {
        self.core.lock().session_ended(owner);
        self.settle();
    }

    /// Time has passed.
    pub(crate) fn tick(&self) {
        let kept = {
            let mut core = self.core.lock();
            core.expire(clock::now());
            core.pin_account()
        };
        self.metrics.objects_kept(&kept);
        self.settle();
    }

    /// Revokes the grants of reservations that have ended, and wakes the commits that waited for that.
    fn settle(&self) {
        let ended = self.core.lock().take_ended();
        if ended.is_empty() {
            return;
        }
        let revoked: Vec<RemoteKey> = {
            let mut grants = self.grants.lock();
            ended.iter().filter_map(|ended| grants.remove(&ended.region)).collect()
        };
        for key in revoked {
            self.exports.revoke(key);
        }
        for ended in ended {
            if matches!(ended.reason, EndReason::Expired | EndReason::SessionEnded) {
                tracing::info!(put_id = %ended.put_id, reason = ?ended.reason, "a reservation ended without a commit");
            }
        }
        self.ended.notify_waiters();
    }

    /// Begins a commit, waits for writes or another commit of the same put, and checks the bytes.
    pub(crate) async fn begin_commit(&self, put_id: PutId, key: &CommitKey, deadline: Instant) -> KeyResult<Begun> {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let spec = CommitSpec {
                put_id,
                name: key.name.clone(),
                checksums: key.checksums.clone(),
                fingerprint: key.fingerprint.clone(),
            };
            let step = self.core.lock().begin_commit(clock::now(), spec);
            self.settle();
            match step? {
                CommitStep::Done(outcome) => return Ok(Begun::Done(outcome)),
                CommitStep::Verify(unverified) => return self.verify(unverified).await.map(Begun::Verified),
                CommitStep::Report(unreported) => return Ok(Begun::Sealed(unreported)),
                CommitStep::Wait => timeout_at(deadline, ended).await.map_err(|_| {
                    let message = "the put's own writes, or another commit of it, did not end by the deadline; ask again with the same put id";
                    ServiceError::new(ErrorCode::DeadlineExceeded, message)
                })?,
            }
        }
    }

    /// Reads the pieces whose checksum is not known from their arrival, off the workers that serve calls.
    async fn verify(&self, unverified: Unverified) -> KeyResult<Verified> {
        let (region, len_bytes) = (unverified.region(), unverified.len_bytes());
        let pieces = unverified.unknown_pieces().iter();
        let memory: Vec<Slice> = pieces
            .map(|&piece| self.memory(region, piece * PIECE_BYTES, piece_len_bytes(len_bytes, piece)))
            .collect();
        let found = if memory.is_empty() {
            Vec::new()
        } else {
            let read = tokio::task::spawn_blocking(move || memory.iter().map(Slice::crc64).collect::<Vec<u64>>());
            match read.await {
                Ok(found) => found,
                Err(error) => {
                    self.abandon(unverified);
                    return Err(ServiceError::new(
                        ErrorCode::Internal,
                        format!("the bytes could not be checked: {error}"),
                    ));
                }
            }
        };
        let verified = self.core.lock().verify(unverified, &found);
        self.settle();
        Ok(verified?)
    }

    /// Ends a commit that cannot go on.
    pub(crate) fn abandon(&self, commit: impl Into<tenon_store_core::objects::Commit>) {
        self.core.lock().abandon(commit.into());
        self.settle();
    }

    /// The homes have answered to a proposal.
    pub(crate) fn proposed(&self, verified: Verified, answer: KeyResult<HomeAnswer>) -> Proposed {
        let unix_ms = clock::unix_ms();
        let proposed = self.core.lock().proposed(clock::now(), verified, answer, unix_ms);
        self.settle();
        self.ended.notify_waiters();
        proposed
    }

    /// The homes have answered to the report of a seal.
    pub(crate) fn reported(&self, unreported: Unreported, answer: KeyResult<HomeAnswer>) -> Reported {
        let reported = self.core.lock().reported(clock::now(), unreported, answer);
        self.settle();
        self.ended.notify_waiters();
        reported
    }

    /// Makes a copy readable here whose object was committed at another holder. False if it is not needed.
    pub(crate) fn seal_copy(&self, verified: Verified, epoch: Epoch) -> bool {
        let unix_ms = clock::unix_ms();
        let is_sealed = self.core.lock().seal_copy(clock::now(), verified, epoch, unix_ms);
        self.settle();
        self.ended.notify_waiters();
        is_sealed
    }

    /// One object that is held, for homes that may not know of it.
    pub(crate) fn held(&self, key_hash: KeyHash) -> Option<HomeEntry> {
        self.core.lock().held(key_hash)
    }

    /// Answers a question of a home, or of another holder.
    pub(crate) fn answer(&self, question: &HolderQuestion) -> KeyResult<HolderAnswer> {
        let HolderQuestion {
            key_hash,
            version,
            kind,
        } = *question;
        Ok(match kind {
            HolderQuestionKind::Confirm => HolderAnswer::Confirmed {
                held: self.core.lock().confirm(clock::now(), key_hash, version),
            },
            HolderQuestionKind::Drop => {
                self.core.lock().remove(clock::now(), key_hash, version);
                HolderAnswer::Dropped
            }
            HolderQuestionKind::Refuse => {
                self.core.lock().refuse(key_hash, version);
                HolderAnswer::Dropped
            }
            HolderQuestionKind::Stay => HolderAnswer::Stays {
                generation: self.core.lock().stays(key_hash, version),
            },
        })
    }

    /// A step of a page of what is held here, for a home of its keys.
    pub(crate) fn announce(
        &self,
        after: Option<KeyHash>,
        homes_of: impl FnMut(&Tellable<'_, TableWriter>) -> Option<Homes>,
    ) -> member::Page {
        pages::step(&self.core, |core| core.announce(after, homes_of))
    }

    /// A page of the keys that are held here.
    pub(crate) fn list(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> (Vec<ListEntry>, bool) {
        let page = self.core.lock().list(namespace, prefix, after, limit);
        (page.entries, page.more)
    }
}

/// What the guards of exported memory ask.
impl HolderDriver {
    /// A peer's read of a segment's payload begins.
    pub(crate) fn begin_read(&self, segment: SegmentId, range: Range<u64>) -> Result<ReadHold, HoldError> {
        self.core
            .lock()
            .begin_read(segment, range.start, range.end - range.start)
    }

    /// It is over, well or not.
    pub(crate) fn end_read(&self, hold: ReadHold, len_bytes: u64) {
        self.core.lock().end_read(hold);
        self.metrics.sent(Place::Segments, len_bytes);
    }

    /// A peer's write into a reserved region begins.
    pub(crate) fn begin_write(&self, region: RegionId, range: Range<u64>) -> Result<WriteHold, HoldError> {
        self.core
            .lock()
            .begin_write(region, range.start, range.end - range.start)
    }

    /// Its bytes have arrived.
    pub(crate) fn wrote(&self, region: RegionId, range: Range<u64>, crc64: u64) {
        let len_bytes = range.end - range.start;
        self.core
            .lock()
            .wrote(clock::now(), region, range.start, len_bytes, crc64);
        self.metrics.received(Place::Segments, len_bytes);
    }

    /// It is over, well or not: a commit may have waited for that.
    pub(crate) fn end_write(&self, hold: WriteHold) {
        self.core.lock().end_write(hold);
        self.ended.notify_waiters();
    }
}

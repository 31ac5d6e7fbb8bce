//! The life of the objects that one node holds: *reserved*, then *sealed*, then removed.
//!
//! A [`Holder`] decides for all segments of one node in one of its lives. The memory is not here; what is written to
//! the tables beside the segments goes through [`SegmentTable`].
//!
//! *A put.* [`Holder::reserve`] sets a region aside. Each write into it is announced by [`Holder::begin_write`] and
//! over with [`Holder::end_write`]; [`Holder::wrote`] in between says that the bytes are there.
//! [`Holder::begin_commit`] refuses an object of which bytes were never written, whatever the memory has there; it stops
//! the writing and says which pieces the owner must read and check. The commit then goes through three types, so that no
//! step can be left out:
//!
//! | has | call | next |
//! |---|---|---|
//! | [`Unverified`] | [`Holder::verify`] | [`Verified`], or the region is freed |
//! | [`Verified`]; now ask the homes | [`Holder::seal`] | [`Unreported`]: readable, described in the table |
//! | | [`Holder::yield_to`] (the key has an object) | over, the region is freed |
//! | [`Unreported`]; now tell the homes | [`Holder::report`] | over, the outcome is remembered |
//! | | [`Holder::retract`] (they do not take it) | over, the region is freed |
//! | | [`Holder::keep_unanswered`] (no answer) | over, the object stays, the put is not known to be stored |
//! | [`Unverified`] or [`Verified`] | [`Holder::abandon`] | over, the region is freed |
//!
//! A commit that is begun ends by one of these calls and by nothing else: neither time nor the end of the session ends
//! it. So the caller keeps each token in something that gives it back whatever happens. The same holds for
//! [`WriteHold`] and [`ReadHold`].
//!
//! *Eviction.* See [`Holder::evict_some`] and [`Holder::make_room`]: objects go so that others have room.
//!
//! *Held.* A region that is given up while the owner's own transfers are under way in it is *held* until the last of
//! them is over, and its bytes are allocated until then. Readers elsewhere do not hold it up: they see that the
//! generation has changed.
//!
//! Payload is counted in occupied bytes (lengths rounded up to the alignment), and always
//! capacity = free + sealed + reserved + held.

mod announce;
mod commit;
mod decided;
mod error;
mod evict;
mod hole;
mod map;
mod names;
mod pieces;
mod read;
mod region;
mod reserve;
mod segment;
mod segments;
mod slots;
mod space;
mod write;
mod written;

use self::evict::Eviction;
use self::names::Names;
use self::region::{Outcome, Record, State};
use self::segment::Segment;
use self::segments::SegmentList;
use self::space::{FreeOfSegment, NodeSpace, Taken};
use crate::outcomes::Outcomes;
use crate::placement::nodes::NodeHint;
use crate::placement::{PlacementCounters, Policy, PoolSummary};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use tenon_protocol::ids::{ClusterId, Generation, Incarnation, KeyHash, NodeId, PutId, SegmentId, SessionId, Slot};
use tenon_protocol::message::SpaceAccount;
use tenon_protocol::table::{Descriptor, KeyRow};

pub use self::announce::Tellable;
pub use self::commit::{Accepted, Commit, CommitSpec, CommitStep, Unreported, Unverified, Verified};
pub use self::decided::{Proposed, Reported};
pub use self::error::{CommitError, CommitInProgress, HoldError, MountError, ReserveError, UnmountError};
pub use self::evict::{EvictReason, Evicted, PinAccount, Share, Watermarks};
pub use self::map::MapPage;
pub use self::read::{ObjectInfo, Page, ReadHold};
pub use self::region::RegionId;
pub use self::reserve::{DryRun, EndReason, Ended, ReserveSpec, Reserved, WouldPlace};
pub use self::segments::{Dropped, Movable, SegmentUsers};
pub use self::write::WriteHold;

/// Who reserved, and so whose end ends the reservation: a session is known to its coordinator only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The node that the client talks to.
    pub coordinator: NodeId,
    /// The client's session there.
    pub session: SessionId,
}

/// What a holder is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderConfig {
    /// Which node.
    pub node: NodeId,
    /// Which of its lives.
    pub incarnation: Incarnation,
    /// The cluster under which keys are hashed.
    pub cluster: ClusterId,
    /// A reservation that does not say otherwise ends this long after the last byte arrived.
    pub reservation_ttl_ms: u32,
    /// How a segment is chosen for a region.
    pub policy: Policy,
    /// When objects are evicted; `None` for never.
    pub eviction: Option<Watermarks>,
}

/// What a segment is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Payload bytes.
    pub len_bytes: u64,
    /// Descriptors in its table: at most so many regions are in use at once.
    pub slots: u32,
}

/// The table beside one segment, as the holder writes it. Each call is complete, in memory, when it returns.
pub trait SegmentTable {
    /// Describes an object: first all else, then, by one store, the descriptor's generation.
    fn seal(&mut self, plan: &SealPlan);

    /// Makes a slot describe nothing, by one store of the descriptor's generation. Slot and region may be used again
    /// right after.
    fn invalidate(&mut self, slot: Slot);
}

/// What is written to the table when an object is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealPlan {
    /// The descriptor and row to write.
    pub slot: Slot,
    /// The descriptor.
    pub descriptor: Descriptor,
    /// The row beside it; it says where the object lies.
    pub row: KeyRow,
    /// CRC-64/NVME of each full piece, in order.
    pub piece_sums: Vec<u64>,
}

/// What one segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentUsage {
    /// Which.
    pub segment: SegmentId,
    /// Its payload.
    pub space: SpaceAccount,
    /// Descriptors in its table.
    pub slots: u32,
    /// Of which in use, by objects, reservations and held regions.
    pub slots_used: u32,
    /// It takes no further regions.
    pub is_draining: bool,
}

/// The objects and reservations of one node.
#[derive(Debug)]
pub struct Holder<T> {
    config: HolderConfig,
    /// The latest that was told, by a call each few milliseconds at least: ages and soft pins need no more.
    now: Time,
    /// The last one given out.
    generation: Generation,
    segments: SegmentList<T>,
    /// The last id given to one.
    last_segment: SegmentId,
    /// What is free of each.
    space: NodeSpace,
    /// Counts the changes of `space`.
    space_version: u64,
    /// Of the segments that take regions.
    capacity_bytes: u64,
    /// The same.
    largest_segment_bytes: u64,
    placement: PlacementCounters,
    /// Live reservations, commits in progress included.
    reservations: BTreeMap<(PutId, KeyHash), RegionId>,
    /// Reservations without a commit in progress, by who made them.
    by_owner: BTreeSet<(Owner, RegionId)>,
    /// The same, by when they are next looked at.
    expiries: BTreeSet<(Time, RegionId)>,
    /// Sealed objects.
    by_hash: BTreeMap<KeyHash, RegionId>,
    names: Names,
    eviction: Eviction,
    outcomes: Outcomes<Outcome>,
    /// Reservations that ended and were not drained yet.
    ended: Vec<Ended>,
}

impl<T: SegmentTable> Holder<T> {
    /// A holder without segments.
    pub fn new(config: HolderConfig) -> Self {
        Self {
            config,
            now: Time::ZERO,
            generation: Generation::base(config.incarnation),
            segments: SegmentList::default(),
            last_segment: SegmentId(0),
            space: NodeSpace::new(config.policy),
            space_version: 0,
            capacity_bytes: 0,
            largest_segment_bytes: 0,
            placement: PlacementCounters::default(),
            reservations: BTreeMap::new(),
            by_owner: BTreeSet::new(),
            expiries: BTreeSet::new(),
            by_hash: BTreeMap::new(),
            names: Names::default(),
            eviction: Eviction::new(config.eviction),
            outcomes: Outcomes::default(),
            ended: Vec::new(),
        }
    }

    /// What one segment is used for; `None` if it is not mounted.
    pub fn segment_usage(&self, segment: SegmentId) -> Option<SegmentUsage> {
        let segment = self.segments.get(segment)?;
        let bounds_bytes = self.space.largest_free_upper_bounds_bytes();
        Some(self.usage(segment, bounds_bytes[segment.index()]))
    }

    /// What the segments are used for, by id.
    pub fn segments(&self) -> impl Iterator<Item = SegmentUsage> {
        let bounds_bytes = self.space.largest_free_upper_bounds_bytes();
        let segments = self.segments.iter();
        segments.map(move |segment| self.usage(segment, bounds_bytes[segment.index()]))
    }

    /// What all segments together are used for, those included that take no further regions.
    pub fn account(&self) -> SpaceAccount {
        let mut total = SpaceAccount::default();
        for SegmentUsage { space: account, .. } in self.segments() {
            total.capacity_bytes += account.capacity_bytes;
            total.free_bytes += account.free_bytes;
            total.sealed_bytes += account.sealed_bytes;
            total.reserved_bytes += account.reserved_bytes;
            total.held_bytes += account.held_bytes;
            total.largest_free_bytes = total.largest_free_bytes.max(account.largest_free_bytes);
            total.objects += account.objects;
            total.reservations += account.reservations;
        }
        total
    }

    /// What other nodes are told of the room here. O(1).
    pub fn hint(&self) -> NodeHint {
        let PoolSummary {
            free_bytes,
            largest_free_upper_bound_bytes,
        } = self.space.summary();
        NodeHint {
            version: (self.config.incarnation.0, self.space_version),
            capacity_bytes: self.capacity_bytes,
            free_bytes,
            largest_free_upper_bound_bytes: largest_free_upper_bound_bytes.unwrap_or(u64::MAX),
        }
    }

    /// What placement did so far, for metrics.
    pub fn placement_counters(&self) -> &PlacementCounters {
        &self.placement
    }

    fn segment_mut(&mut self, id: SegmentId) -> Option<&mut Segment<T>> {
        self.segments.get_mut(id)
    }

    /// A segment in which something lies.
    fn mounted(&self, id: SegmentId) -> &Segment<T> {
        self.segments.get(id).expect("regions lie in mounted segments")
    }

    fn record(&self, id: RegionId) -> Option<&Record> {
        self.segments.record(id)
    }

    fn record_mut(&mut self, id: RegionId) -> Option<&mut Record> {
        self.segment_mut(id.segment)?.get_mut(id)
    }

    /// The segment of a region that this holder gave out.
    fn segment_of(&mut self, id: RegionId) -> &mut Segment<T> {
        self.segment_mut(id.segment).expect("regions lie in mounted segments")
    }

    /// What is free of a mounted segment.
    fn free_of(&self, segment: &Segment<T>) -> FreeOfSegment {
        self.space.of_segment(segment.index())
    }

    fn usage(&self, segment: &Segment<T>, largest_free_bytes: u64) -> SegmentUsage {
        let free = self.free_of(segment);
        SegmentUsage {
            segment: segment.id(),
            space: segment.account(&free, largest_free_bytes),
            slots: free.slots,
            slots_used: free.slots_used,
            is_draining: segment.is_draining(),
        }
    }

    /// Time has come so far.
    fn pass(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Ends this use of a region; see [`Segment::retire`]. Answers the state before.
    fn retire(&mut self, id: RegionId) -> State {
        let len_bytes = self.record(id).expect("a region in use").len_bytes();
        let (before, unused) = self.segment_of(id).retire(id);
        if let State::Sealed(object) = &before {
            self.dismiss(id, len_bytes, object.standing);
        }
        self.give_back(id.segment, unused);
        before
    }

    /// One transfer in a region is over.
    fn release(&mut self, id: RegionId) {
        let unused = self.segment_of(id).release(id);
        self.give_back(id.segment, unused);
    }

    fn give_back(&mut self, segment: SegmentId, unused: Option<Taken>) {
        if let Some(taken) = unused {
            let index = self.mounted(segment).index();
            self.space.give_back(index, taken);
            self.space_version += 1;
        }
    }

    /// Panics if indexes, records, accounts and tokens do not agree. O(n): for tests.
    pub fn check_invariants(&self) {
        self.space.check_invariants();
        let (mut reservations, mut waiting, mut objects) = (0, 0, 0);
        for segment in self.segments.iter() {
            segment.check_invariants(&self.free_of(segment));
            for (id, record) in segment.regions() {
                assert!(record.generation <= self.generation, "a generation was never given out");
                if let Some(reservation) = record.reservation() {
                    reservations += 1;
                    let put = (reservation.put_id, reservation.key_hash);
                    assert_eq!(
                        self.reservations.get(&put),
                        Some(&id),
                        "a reservation is not found by its put"
                    );
                    assert_eq!(reservation.name.hash(self.config.cluster), reservation.key_hash);
                    let waits = reservation.commit.is_none();
                    waiting += usize::from(waits);
                    assert_eq!(self.by_owner.contains(&(reservation.owner, id)), waits);
                    assert_eq!(self.expiries.contains(&(reservation.queued_at, id)), waits);
                    assert!(
                        reservation.queued_at <= reservation.expires_at,
                        "a reservation expires before it is looked at"
                    );
                    assert!(waits || record.holds == 0, "a region is written during its commit");
                }
                if let Some(object) = record.object() {
                    objects += 1;
                    assert_eq!(
                        self.by_hash.get(&object.key_hash),
                        Some(&id),
                        "an object is not found by its hash"
                    );
                    assert_eq!(
                        self.names.get(&object.name),
                        Some(id),
                        "an object is not found by its name"
                    );
                }
            }
        }
        assert_eq!(self.reservations.len(), reservations);
        assert_eq!((self.by_owner.len(), self.expiries.len()), (waiting, waiting));
        assert_eq!((self.by_hash.len(), self.names.iter().count()), (objects, objects));
        self.outcomes.check_invariants();
        self.check_eviction();
    }
}

//! One region of a segment: who it is, and where in an object's life it stands.

use super::pieces::ArrivedPieces;
use super::{HoldError, Owner};
use crate::allocator::Region;
use crate::eviction::Place;
use crate::limits::HOLDS_PER_REGION_MAX;
use crate::time::Time;
use std::sync::Arc;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::ids::{Generation, KeyHash, PutId, SegmentId, Slot, Version};
use tenon_protocol::message::{Committed, Pin, PutOutcome};
use tenon_protocol::name::ObjectName;

/// One use of a region: two uses of the same bytes differ in their generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId {
    /// In which segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset_bytes: u64,
    /// Which use.
    pub generation: Generation,
}

impl RegionId {
    /// Not above any other, and of no region.
    pub(super) const LOWEST: Self = Self {
        segment: SegmentId(0),
        offset_bytes: 0,
        generation: Generation::NONE,
    };
}

/// A region in use. It leaves its segment's records only when its bytes are given back to the allocator.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) region: Region,
    pub(super) slot: Slot,
    pub(super) generation: Generation,
    /// The owner's own transfers that are under way in these bytes.
    pub(super) holds: u32,
    pub(super) state: State,
}

/// Where a region stands in the life of an object.
#[derive(Debug)]
pub(super) enum State {
    /// Set aside for a put: bytes arrive, or a commit is in progress.
    Reserved(Box<Reservation>),
    /// Holds an object that can be read.
    Sealed(Box<Object>),
    /// Holds nothing any more, but transfers are still under way.
    Held,
}

/// What is known of a put before its object is sealed.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) put_id: PutId,
    pub(super) name: Arc<ObjectName>,
    pub(super) key_hash: KeyHash,
    pub(super) owner: Owner,
    pub(super) ttl_ms: u32,
    /// How its object is to be pinned.
    pub(super) pin: Pin,
    /// Its object is to take the place of the one that the key has.
    pub(super) replace: bool,
    pub(super) reserved_at: Time,
    /// When it ends unless more bytes arrive.
    pub(super) expires_at: Time,
    /// The time under which it stands in the queue of expiries: at most `expires_at`.
    pub(super) queued_at: Time,
    pub(super) pieces: ArrivedPieces,
    /// What the committer said, once a commit is in progress. Nothing is written from then on.
    pub(super) commit: Option<CommitData>,
}

/// What the committer said of the bytes.
#[derive(Debug)]
pub(super) struct CommitData {
    pub(super) checksums: Checksums,
    pub(super) fingerprint: Vec<u8>,
}

/// How a put ended well, and of which bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    pub(super) committed: Committed,
    /// Of all of them, as the committer said.
    pub(super) checksum: u64,
}

/// A sealed object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) name: Arc<ObjectName>,
    pub(super) key_hash: KeyHash,
    pub(super) version: Version,
    pub(super) checksum: u64,
    pub(super) fingerprint: Box<[u8]>,
    pub(super) sealed_unix_ms: u64,
    pub(super) sealed_at: Time,
    /// When it was last used: read by way of its owner, or touched.
    pub(super) used_at: Time,
    pub(super) standing: Standing,
    /// One home decided alone that it is the key's.
    pub(super) degraded: bool,
    /// It came after the object was committed at another holder.
    pub(super) is_copy: bool,
    /// It has taken the place of another one.
    pub(super) replaces: bool,
    pub(super) report: Report,
}

/// Whether homes know of an object that was sealed. Before that its put is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// They are being told.
    UnderWay,
    /// They were told and did not answer: they may know of it. Who repeats the put has them told again.
    Unanswered,
    /// One is known to know of it.
    Taken,
}

/// What keeps an object from being evicted, if anything does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing: it stands in the queue.
    Queued(Place),
    /// A soft pin that ends then.
    Soft { until: Time },
    /// A pin.
    Hard,
}

impl Object {
    /// Homes are not just being told of it.
    pub(super) fn is_told(&self) -> bool {
        self.report != Report::UnderWay
    }

    /// How its put ended, or is about to.
    pub(super) fn outcome(&self) -> Outcome {
        let committed = Committed {
            outcome: PutOutcome::Stored,
            version: self.version,
            degraded: self.degraded,
            copies: 0,
        };
        Outcome {
            committed,
            checksum: self.checksum,
        }
    }
}

impl Record {
    pub(super) fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }

    /// Counts one more transfer under way.
    pub(super) fn hold(&mut self) -> Result<(), HoldError> {
        if self.holds >= HOLDS_PER_REGION_MAX {
            return Err(HoldError::TooMany);
        }
        self.holds += 1;
        Ok(())
    }

    pub(super) fn reservation(&self) -> Option<&Reservation> {
        match &self.state {
            State::Reserved(reservation) => Some(reservation),
            State::Sealed(_) | State::Held => None,
        }
    }

    pub(super) fn reservation_mut(&mut self) -> Option<&mut Reservation> {
        match &mut self.state {
            State::Reserved(reservation) => Some(reservation),
            State::Sealed(_) | State::Held => None,
        }
    }

    pub(super) fn object(&self) -> Option<&Object> {
        match &self.state {
            State::Sealed(object) => Some(object),
            State::Reserved(_) | State::Held => None,
        }
    }

    pub(super) fn object_mut(&mut self) -> Option<&mut Object> {
        match &mut self.state {
            State::Sealed(object) => Some(object),
            State::Reserved(_) | State::Held => None,
        }
    }
}

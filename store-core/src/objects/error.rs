//! Why the holder refuses, and what a client is told then.

use crate::allocator::ConfigError;
use crate::limits::{HOLDS_PER_REGION_MAX, SEGMENTS_MAX, WRITTEN_PARTS_PER_PIECE_MAX};
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::SegmentId;
use tenon_protocol::limits::{FINGERPRINT_LEN_BYTES_MAX, RESERVATION_TTL_MS_MAX};

/// Why a segment is not mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// Its table would describe nothing.
    #[error("a segment needs at least one descriptor slot")]
    NoSlots,
    /// [`SEGMENTS_MAX`] are mounted.
    #[error("{SEGMENTS_MAX} segments are mounted, more are not allowed")]
    TooMany,
    /// As many ids were given as there are.
    #[error("no further id is left for a segment in this life of the node")]
    OutOfIds,
    /// Length and alignment do not go together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Why a segment stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnmountError {
    /// It is not there.
    #[error("segment {segment} is not mounted here")]
    Unknown {
        /// Which.
        segment: SegmentId,
    },
    /// It takes regions, or has some.
    #[error("segment {segment} is in use")]
    InUse {
        /// Which.
        segment: SegmentId,
    },
}

impl From<UnmountError> for ServiceError {
    fn from(error: UnmountError) -> Self {
        let code = match error {
            UnmountError::Unknown { .. } => ErrorCode::UnknownSegment,
            UnmountError::InUse { .. } => ErrorCode::Conflict,
        };
        Self::new(code, error.to_string())
    }
}

/// Why nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// An object has at least one byte.
    #[error("an object has at least one byte")]
    EmptyObject,
    /// It could never be placed here.
    #[error("an object of {} bytes is larger than the largest segment, which has {}", .0.asked_bytes, .0.largest_segment_bytes)]
    TooLarge(NoSpace),
    /// The time to live is 0 or longer than [`RESERVATION_TTL_MS_MAX`].
    #[error("a time to live of {ttl_ms} ms: 1 to {RESERVATION_TTL_MS_MAX} are allowed")]
    TimeToLive {
        /// What was asked for.
        ttl_ms: u32,
    },
    /// The put has reserved for this key already, with another length.
    #[error("this put has reserved {reserved_bytes} bytes for the key, and now asks for {len_bytes}")]
    OtherLength {
        /// What it has.
        reserved_bytes: u64,
        /// What it asks for now.
        len_bytes: u64,
    },
    /// Nothing fits right now.
    #[error("no room for {} bytes: {}", .0.asked_bytes, .0.stop_reason)]
    NoSpace(NoSpace),
}

impl From<ReserveError> for ServiceError {
    fn from(error: ReserveError) -> Self {
        let code = match error {
            ReserveError::NoSpace(numbers) => return Self::no_space(numbers),
            ReserveError::TooLarge(numbers) => return Self::too_large(numbers),
            ReserveError::EmptyObject => ErrorCode::EmptyObject,
            ReserveError::TimeToLive { .. } | ReserveError::OtherLength { .. } => ErrorCode::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

/// Why a transfer may not begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// This use of the region is over, or it never was what the caller believes.
    #[error("the region does not hold this any more")]
    Stale,
    /// The range is empty, or not inside one region.
    #[error("the range is not inside one region")]
    OutOfRange,
    /// A commit is in progress: what it verifies must not change.
    #[error("the put is being committed, nothing more may be written")]
    Committing,
    /// [`HOLDS_PER_REGION_MAX`] transfers are under way.
    #[error("{HOLDS_PER_REGION_MAX} transfers are under way in the region, more are not allowed")]
    TooMany,
}

/// Why a put was not committed. Except for [`CommitError::UnknownPut`] its reservation has ended: a put that failed
/// leaves nothing behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Never reserved here, or ended.
    #[error("this node has no reservation of the put for the key: never made, aborted, or expired")]
    UnknownPut,
    /// Not one checksum per piece, or they do not combine to the whole.
    #[error(
        "the checksums do not fit an object of {len_bytes} bytes: {pieces} pieces, or a wrong checksum of the whole"
    )]
    Inconsistent {
        /// The object's length.
        len_bytes: u64,
        /// How many checksums of pieces were given.
        pieces: usize,
    },
    /// Longer than [`FINGERPRINT_LEN_BYTES_MAX`].
    #[error("a fingerprint of {len_bytes} bytes: at most {FINGERPRINT_LEN_BYTES_MAX} are allowed")]
    Fingerprint {
        /// The length.
        len_bytes: usize,
    },
    /// Not all bytes were written since the region was reserved, or in more than [`WRITTEN_PARTS_PER_PIECE_MAX`]
    /// separate parts of one piece at a time.
    #[error(
        "byte {offset_bytes} of {len_bytes} was never written (each MiB in at most {WRITTEN_PARTS_PER_PIECE_MAX} parts)"
    )]
    Unwritten {
        /// The first such byte.
        offset_bytes: u64,
        /// The object's length.
        len_bytes: u64,
    },
    /// The put has ended already, and was of other bytes.
    #[error("the put id was used for other bytes of the key before; each put has an id of its own")]
    OtherBytes,
    /// Other bytes lie in the region than the committer described.
    #[error("piece {piece} arrived with checksum {arrived:016x}, the committer said {expected:016x}")]
    Mismatch {
        /// The first such piece.
        piece: u64,
        /// Of the bytes that arrived.
        arrived: u64,
        /// What the committer said.
        expected: u64,
    },
}

impl From<CommitError> for ServiceError {
    fn from(error: CommitError) -> Self {
        let code = match error {
            CommitError::UnknownPut => ErrorCode::UnknownPut,
            CommitError::Unwritten { .. } => ErrorCode::BytesMissing,
            CommitError::OtherBytes => ErrorCode::PutIdReused,
            CommitError::Mismatch { .. } => ErrorCode::ChecksumMismatch,
            CommitError::Inconsistent { .. } | CommitError::Fingerprint { .. } => ErrorCode::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

/// Why a put was not aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the put is being committed; ask for its outcome")]
pub struct CommitInProgress;

impl From<CommitInProgress> for ServiceError {
    fn from(error: CommitInProgress) -> Self {
        Self::new(ErrorCode::Conflict, error.to_string())
    }
}

//! The contract that every engine keeps: submit batches of one-sided reads and writes, get one typed result for each.
//!
//! # Ordering
//! Transfers of a batch have no order among each other, except those that share a non-zero [`Transfer::group`]: they
//! are carried out in the order in which they stand in the batch, and all go in the same direction. Two batches have no
//! order; await the first before submitting the second where order matters. Transfers that overlap in memory and are
//! not ordered leave undefined content there.
//!
//! # Holds
//! On engines that guard reads ([`Connection::guards_reads`]) the owner takes the [`Hold`](crate::Hold)s of *all* reads
//! of a group before it sends the group's first byte, and keeps each until the group's last byte is sent. So a group
//! that reads a payload and the line that describes it sees both under one hold.
//!
//! # Deadlines and cancellation
//! Each submission has one deadline. When it passes, transfers that are not complete resolve to
//! [`TransferError::Deadline`]; the connection stays usable. Dropping the [`Submission`] cancels. In both cases the
//! engine touches no memory of [`Transfer::local`] any more: it lets go of the slices before the future resolves, or
//! before the drop returns. A one-sided engine lets go a moment after a drop, when its device has flushed what was under
//! way; it keeps the slices counted until then, so who holds the last reference knows. At the owner, bytes of a write that has ended in this way may still land for as long as the
//! export is there: write again only where the owner verifies what it has, or under another key.
//!
//! # Back-pressure
//! Bytes and transfers under way are bounded, per connection or, over RDMA, per path (see [`limits`](crate::limits)). A submission beyond that
//! waits inside its own deadline; nothing queues without bound.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::ids::{PeerId, RemoteKey};
use crate::limits::MAX_BATCH_TRANSFERS;
use crate::memory::Slice;

/// Direction of a transfer, seen from the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// From the peer's exported memory into `local`.
    Read,
    /// From `local` into the peer's exported memory.
    Write,
}

/// One contiguous range of a peer's export, and the local memory it is read into or written from.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Direction.
    pub op: Op,
    /// Which export of the peer.
    pub key: RemoteKey,
    /// Where the range starts, counted from the start of the export.
    pub remote_offset_bytes: u64,
    /// Local memory in order; the sum of the lengths is the transfer's length, at least one byte. The slices keep the
    /// memory alive while the engine may touch it.
    pub local: Vec<Slice>,
    /// Zero: independent, and free to be striped over lanes. Otherwise all transfers of the batch with the same number
    /// go in the same direction and are carried out in order, reads under common holds. Group numbers mean nothing
    /// beyond their batch.
    pub group: u32,
}

impl Transfer {
    /// Length in bytes: the sum of the local slices.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.local.iter().map(Slice::len_bytes).sum()
    }
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes moved: always the full length of the transfer.
    pub bytes: u64,
    /// What the owner's guard stamped the read with (see [`Hold::stamp`](crate::Hold::stamp)). `None` for writes and
    /// for one-sided engines.
    pub stamp: Option<u64>,
    /// CRC-64/NVME of the bytes where they landed: computed by this side for reads, by the owner for writes. Compare it
    /// with the checksum that was expected; the engine cannot know it. `None` for engines that do not see the bytes.
    pub crc64: Option<u64>,
    /// CRC-64/NVME of the local bytes of a write, computed as they were sent, while they were hot. If [`Done::crc64`]
    /// is another, the bytes changed on their way, or somebody wrote to them meanwhile. `None` for reads, and for
    /// engines that do not compute it.
    pub sent_crc64: Option<u64>,
}

/// Why a transfer did not complete.
///
/// In every case: the local memory of a failed *read* has undefined content and is no longer touched; the remote range
/// of a failed *write* has undefined content until the owner says otherwise, unless the variant says that nothing was
/// written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The peer has no export under this key (never had, or it was revoked before the transfer arrived). Nothing was
    /// touched. The connection is usable.
    #[error("the peer exports nothing under key {key}")]
    UnknownKey {
        /// The key that was asked for.
        key: RemoteKey,
    },
    /// The export belongs to another session, or does not allow this direction. Nothing was touched. The connection is
    /// usable.
    #[error("key {key} does not allow a {op:?} in this session")]
    Forbidden {
        /// The key that was asked for.
        key: RemoteKey,
        /// The direction that was asked for.
        op: Op,
    },
    /// The range does not lie inside the export. Nothing was touched. The connection is usable.
    #[error("{len_bytes} bytes at {offset_bytes} do not lie inside the export of {export_bytes} bytes")]
    OutOfRange {
        /// Start of the range that was asked for.
        offset_bytes: u64,
        /// Length of the range that was asked for.
        len_bytes: u64,
        /// Length of the export.
        export_bytes: u64,
    },
    /// The export's guard refused. A large transfer is guarded frame by frame, so earlier frames may have moved. The
    /// connection is usable.
    #[error("the peer's guard refused: {message} (code {code})")]
    Refused {
        /// The guard's code; its meaning belongs to the crates above.
        code: u16,
        /// The guard's words.
        message: String,
    },
    /// The export was revoked while the transfer was under way. The connection is usable.
    #[error("the export was revoked during the transfer")]
    Revoked,
    /// Parts of one read were served under different stamps: the range changed its meaning in between. The connection
    /// is usable.
    #[error("parts of the read carry different stamps, {first} and {other}")]
    Torn {
        /// Stamp of the part that arrived first.
        first: u64,
        /// A stamp that differs from it.
        other: u64,
    },
    /// The submission's deadline passed first. The connection is usable.
    #[error("the deadline passed after {moved_bytes} of {len_bytes} bytes")]
    Deadline {
        /// Bytes whose completion was known.
        moved_bytes: u64,
        /// Length of the transfer.
        len_bytes: u64,
    },
    /// The path that carried the transfer died, or the connection was closed. Other transfers may have survived; ask
    /// [`Connection::is_closed`]. A write of unknown fate may have landed.
    #[error("disconnected: {reason}")]
    Disconnected {
        /// What happened, in words.
        reason: String,
    },
    /// The request itself is malformed: no bytes, too many transfers in the batch, or both directions in a group.
    /// Nothing was touched. The connection is usable.
    #[error("invalid transfer: {reason}")]
    Invalid {
        /// What is wrong with it, in words.
        reason: String,
    },
}

/// What is wrong with each transfer of a batch before anything is tried; `None` where nothing is.
pub(crate) fn faults(batch: &[Transfer]) -> Vec<Option<TransferError>> {
    let invalid = |reason: &str| {
        Some(TransferError::Invalid {
            reason: reason.to_owned(),
        })
    };
    if batch.len() > MAX_BATCH_TRANSFERS {
        let reason = format!(
            "{} transfers in a batch, more than the {MAX_BATCH_TRANSFERS} allowed",
            batch.len()
        );
        return vec![invalid(&reason); batch.len()];
    }
    let mut directions = HashMap::new();
    for transfer in batch.iter().filter(|transfer| transfer.group != 0) {
        let (read, written) = directions.entry(transfer.group).or_insert((false, false));
        *read |= transfer.op == Op::Read;
        *written |= transfer.op == Op::Write;
    }
    let fault = |transfer: &Transfer| {
        if transfer.len_bytes() == 0 {
            invalid("a transfer of no bytes")
        } else if directions.get(&transfer.group) == Some(&(true, true)) {
            invalid("a group that reads and writes")
        } else {
            None
        }
    };
    batch.iter().map(fault).collect()
}

/// What became of one transfer.
pub type TransferResult = Result<Done, TransferError>;

/// A batch under way: resolves to one result per transfer, in the order of the batch.
///
/// Nothing starts before the first poll. Dropping it cancels (see the module's contract).
#[must_use = "a submission does nothing unless it is awaited"]
pub struct Submission {
    inner: Pin<Box<dyn Future<Output = Vec<TransferResult>> + Send>>,
}

impl Submission {
    /// Wraps an engine's future. The future keeps the contract of this module, dropping included.
    pub fn new(future: impl Future<Output = Vec<TransferResult>> + Send + 'static) -> Self {
        Self {
            inner: Box::pin(future),
        }
    }
}

impl Future for Submission {
    type Output = Vec<TransferResult>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(cx)
    }
}

impl fmt::Debug for Submission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Submission").finish_non_exhaustive()
    }
}

/// An initiator's connection to one peer's exports.
pub trait Connection: Send + Sync + fmt::Debug {
    /// The peer at the other end, as proven by the handshake.
    fn peer(&self) -> PeerId;

    /// Submits a batch. The result has one entry per transfer, in order; one failed transfer does not fail the others.
    fn submit(&self, batch: Vec<Transfer>, deadline: Instant) -> Submission;

    /// True if the owner holds a range while it sends it and [`Done::stamp`] is exact. False for one-sided engines:
    /// read the line that describes the range afterwards.
    fn guards_reads(&self) -> bool;

    /// True once the connection is closed for good: it will not come back by itself.
    fn is_closed(&self) -> bool;

    /// Closes: transfers under way resolve to [`TransferError::Disconnected`], later ones do so at once. Does not wait.
    fn close(&self);
}

//! What peers may touch: exported ranges of memory, each with rights, a scope and a guard. Shared by the target side of every
//! engine that sees the bytes.

use std::fmt;
use std::sync::Arc;

use crate::ids::{RemoteKey, SessionId};
use crate::memory::Slice;

/// Which direction a peer may use an export in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Peers may read.
    Read,
    /// Peers may write.
    Write,
}

/// Who may use an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Any authenticated session.
    AnySession,
    /// One session alone.
    Session(SessionId),
}

/// Decides on each access to an export, and learns when it is over. Called by the target side, from its I/O tasks: it must
/// not block.
pub trait Guard: Send + Sync {
    /// Called before the first byte of a remote read of this range is touched. The hold is dropped when the last byte has left, or the
    /// access failed. Offsets count from the start of the export.
    ///
    /// # Errors
    /// [`Refused`] reaches the initiator; nothing is touched.
    fn begin_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused>;

    /// Called before the first byte of one write frame lands in this range. From here until the hold is dropped, the content of the
    /// range is undefined, whatever [`Guard::wrote`] said of it before.
    ///
    /// # Errors
    /// [`Refused`] reaches the initiator; nothing is touched.
    fn begin_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused>;

    /// All bytes of one write frame are in memory; `crc64` was computed over the destination as they landed. Called before the frame's
    /// hold is dropped and before the initiator hears of it. Not called for a frame that failed.
    fn wrote(&self, offset_bytes: u64, len_bytes: u64, crc64: u64);
}

/// Keeps a range as it is while a peer's access to it is under way. Dropping it runs the release action.
pub struct Hold {
    /// An opaque value that the reader gets with its completion.
    pub stamp: u64,
    release: Option<Box<dyn FnOnce() + Send>>,
}

impl Hold {
    /// A hold that has nothing to release.
    #[must_use]
    pub fn new(stamp: u64) -> Self {
        Self { stamp, release: None }
    }

    /// A hold that runs `release` once, when it is dropped.
    #[must_use]
    pub fn with_release(stamp: u64, release: impl FnOnce() + Send + 'static) -> Self {
        Self {
            stamp,
            release: Some(Box::new(release)),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            release();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("stamp", &self.stamp)
            .finish_non_exhaustive()
    }
}

/// A guard's refusal. The code is opaque to this crate and reaches the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Meaning belongs to the crates above.
    pub code: u16,
    /// Words for a log.
    pub message: &'static str,
}

/// A guard that always grants, with stamp zero.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unguarded;

impl Guard for Unguarded {
    fn begin_read(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn begin_write(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn wrote(&self, _offset_bytes: u64, _len_bytes: u64, _crc64: u64) {}
}

/// A range to export.
pub struct Export {
    /// The memory, kept alive by the export until it is revoked and no access is under way.
    pub memory: Slice,
    /// Which direction.
    pub rights: Rights,
    /// For whom.
    pub scope: Scope,
    /// Who decides on each access.
    pub guard: Arc<dyn Guard>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("memory", &self.memory)
            .field("rights", &self.rights)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Why an export could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportsError {
    /// The table is full.
    #[error("cannot export: {limit} ranges are exported already, the most there may be")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// An empty range cannot be exported.
    #[error("cannot export an empty range")]
    Empty,
}

/// The table of exports of one process.
#[derive(Debug, Default)]
pub struct Exports {}

impl Exports {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a range available under a new random key.
    ///
    /// # Errors
    /// [`ExportsError::Full`], [`ExportsError::Empty`].
    pub fn add(&self, _export: Export) -> Result<RemoteKey, ExportsError> {
        unimplemented!()
    }

    /// Takes a range back. When this returns, no peer's access through this table touches the memory any more, and none will:
    /// accesses under way fail with [`TransferError::Revoked`](crate::TransferError::Revoked) and drop their holds soon after. Returns
    /// false if there is no such key.
    pub fn revoke(&self, _key: RemoteKey) -> bool {
        unimplemented!()
    }

    /// Number of exports.
    #[must_use]
    pub fn len(&self) -> usize {
        unimplemented!()
    }

    /// True if nothing is exported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

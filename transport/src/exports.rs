//! What peers may touch: exported ranges of memory, each with rights, a scope and a guard. Shared by the target side of
//! every engine that sees the bytes.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::engine::{Op, TransferError};
use crate::ids::{RemoteKey, SessionId};
use crate::limits::MAX_EXPORTS;
use crate::memory::{Memory, Slice};

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

/// Decides on each access to an export, and learns when it is over. Called by the target side, from its I/O tasks: it
/// must not block. No lock of this crate is held during a call or while a hold is released, so it may call [`Exports`]
/// back. A call that raced with [`Exports::revoke`] may come just after it; such an access touches nothing.
pub trait Guard: Send + Sync {
    /// Called before the first byte of a remote read of this range is touched. The hold is dropped when the last byte
    /// has left, or the access failed. Offsets count from the start of the export.
    ///
    /// # Errors
    /// [`Refused`] reaches the initiator; nothing is touched.
    fn begin_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused>;

    /// Called before the first byte of one write frame lands in this range. From here until the hold is dropped, the
    /// content of the range is undefined, whatever [`Guard::wrote`] said of it before.
    ///
    /// # Errors
    /// [`Refused`] reaches the initiator; nothing is touched.
    fn begin_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused>;

    /// All bytes of one write frame are in memory; `crc64` was computed over the destination as they landed. Called
    /// before the frame's hold is dropped and before the initiator hears of it. Not called for a frame that failed.
    fn wrote(&self, offset_bytes: u64, len_bytes: u64, crc64: u64);
}

/// Keeps a range as it is while a peer's access to it is under way. Dropping it runs the release action.
pub struct Hold {
    /// An opaque value that the reader gets with its completion.
    pub stamp: u64,
    /// In a lock only to be shareable between threads, which the action need not be.
    release: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Hold {
    /// A hold that has nothing to release.
    #[must_use]
    pub fn new(stamp: u64) -> Self {
        Self {
            stamp,
            release: Mutex::new(None),
        }
    }

    /// A hold that runs `release` once, when it is dropped.
    #[must_use]
    pub fn with_release(stamp: u64, release: impl FnOnce() + Send + 'static) -> Self {
        Self {
            stamp,
            release: Mutex::new(Some(Box::new(release))),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(release) = self.release.get_mut().take() {
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
    /// The memory, kept alive by the export until it is revoked and no write is under way.
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
#[derive(Default)]
pub struct Exports {
    entries: RwLock<HashMap<RemoteKey, Arc<Entry>>>,
    watchers: RwLock<Vec<Watcher>>,
}

type Watcher = Box<dyn Fn(RemoteKey) + Send + Sync>;

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exports")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

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
    pub fn add(&self, export: Export) -> Result<RemoteKey, ExportsError> {
        if export.memory.len_bytes() == 0 {
            return Err(ExportsError::Empty);
        }
        let mut entries = self.entries.write();
        if entries.len() >= MAX_EXPORTS {
            return Err(ExportsError::Full { limit: MAX_EXPORTS });
        }
        let key = loop {
            let key = RemoteKey(rand::random());
            if key.0 != 0 && !entries.contains_key(&key) {
                break key;
            }
        };
        entries.insert(
            key,
            Arc::new(Entry {
                rights: export.rights,
                scope: export.scope,
                guard: export.guard,
                len_bytes: export.memory.len_bytes(),
                open: RwLock::new(Some(export.memory)),
                reads: Mutex::default(),
            }),
        );
        Ok(key)
    }

    /// Takes a range back. When this returns, no peer's access through this table touches the memory any more, and none
    /// will, but for what a device was told to write, or to let a peer write, before: that ends with its hold; and but for peers that read by themselves: they are
    /// asked to forget where it lies, and may read there until they have, or until they are cut off, which is after
    /// [`VERBS_FORGET_TIMEOUT`](crate::limits::VERBS_FORGET_TIMEOUT) at the latest. So long the memory is kept. Accesses under way fail with [`TransferError::Revoked`]. The holds of reads are dropped
    /// before this returns, whether or not their peer takes what was sent; those of writes soon after. It waits for at most one system call or copy of a piece. Returns false if there is no such key.
    pub fn revoke(&self, key: RemoteKey) -> bool {
        let Some(entry) = self.entries.write().remove(&key) else {
            return false;
        };
        // The memory goes with it: an access that cannot tell its peer does not keep it.
        let memory = entry.open.write().take();
        drop(memory);
        let reads = std::mem::take(&mut entry.reads.lock().holds);
        // Without the lock: a release may call back.
        drop(reads);
        for watcher in self.watchers.read().iter() {
            watcher(key);
        }
        true
    }

    /// Has an engine whose peers read by themselves told of each export that is revoked.
    pub(crate) fn when_revoked(&self, watcher: impl Fn(RemoteKey) + Send + Sync + 'static) {
        self.watchers.write().push(Box::new(watcher));
    }

    /// Number of exports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.read().len()
    }

    /// True if nothing is exported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The memory that a session may read under a key, for an owner whose peers read it by themselves. No guard is asked.
    pub(crate) fn readable(&self, session: SessionId, key: RemoteKey) -> Result<Slice, TransferError> {
        let entry = self.entries.read().get(&key).cloned();
        let entry = entry.ok_or(TransferError::UnknownKey { key })?;
        if !entry.allows(session, Op::Read) {
            return Err(TransferError::Forbidden { key, op: Op::Read });
        }
        entry.memory()
    }

    /// Checks one access of a session and asks the guard. No lock of this module is held while the guard runs.
    pub(crate) fn begin(&self, session: SessionId, wanted: &Wanted) -> Result<Access, TransferError> {
        let &Wanted {
            op,
            key,
            offset_bytes,
            len_bytes,
        } = wanted;
        let entry = self
            .entries
            .read()
            .get(&key)
            .cloned()
            .ok_or(TransferError::UnknownKey { key })?;
        if !entry.allows(session, op) {
            return Err(TransferError::Forbidden { key, op });
        }
        let export_bytes = entry.len_bytes;
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > export_bytes) {
            return Err(TransferError::OutOfRange {
                offset_bytes,
                len_bytes,
                export_bytes,
            });
        }
        let granted = match op {
            Op::Read => entry.guard.begin_read(offset_bytes, len_bytes),
            Op::Write => entry.guard.begin_write(offset_bytes, len_bytes),
        };
        let hold = granted.map_err(|refused| TransferError::Refused {
            code: refused.code,
            message: refused.message.to_owned(),
        })?;
        let stamp = hold.stamp;
        let held = match op {
            Op::Read => entry.hold_read(hold)?,
            Op::Write => Held::ByAccess {
                memory: entry.memory()?,
                _hold: hold,
            },
        };
        Ok(Access {
            entry,
            offset_bytes,
            len_bytes,
            stamp,
            held,
        })
    }
}

struct Entry {
    rights: Rights,
    scope: Scope,
    guard: Arc<dyn Guard>,
    len_bytes: u64,
    /// The memory; none once revoked. Read-locked around every touch of it, so that revoking waits for touches under way.
    open: RwLock<Option<Slice>>,
    reads: Mutex<Reads>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("rights", &self.rights)
            .field("scope", &self.scope)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

/// The holds of reads under way: they end with their access, or when the export is revoked. Nothing touches the memory for a read without
/// [`Access::touch`], so then it is not read any more, however long the access stays to tell its peer.
#[derive(Debug, Default)]
struct Reads {
    next: u64,
    holds: HashMap<u64, Hold>,
}

impl Entry {
    fn allows(&self, session: SessionId, op: Op) -> bool {
        let in_scope = match self.scope {
            Scope::AnySession => true,
            Scope::Session(owner) => owner == session,
        };
        in_scope && matches!((op, self.rights), (Op::Read, Rights::Read) | (Op::Write, Rights::Write))
    }

    fn memory(&self) -> Result<Slice, TransferError> {
        self.open.read().clone().ok_or(TransferError::Revoked)
    }

    fn hold_read(&self, hold: Hold) -> Result<Held, TransferError> {
        let mut reads = self.reads.lock();
        if self.open.read().is_none() {
            drop(reads);
            return Err(TransferError::Revoked);
        }
        let number = reads.next;
        reads.next += 1;
        reads.holds.insert(number, hold);
        Ok(Held::ByExport { number })
    }
}

/// Where the hold of an access is.
#[derive(Debug)]
enum Held {
    /// A write's: a device may write to the memory as long as the access is there.
    ByAccess { memory: Slice, _hold: Hold },
    /// A read's, under this number.
    ByExport { number: u64 },
}

/// An access that a peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) op: Op,
    pub(crate) key: RemoteKey,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

/// An access that was granted. Keeps the memory alive, and holds the guard's hold until it is dropped.
#[derive(Debug)]
pub(crate) struct Access {
    entry: Arc<Entry>,
    offset_bytes: u64,
    len_bytes: u64,
    stamp: u64,
    held: Held,
}

impl Drop for Access {
    fn drop(&mut self) {
        if let Held::ByExport { number } = self.held {
            let hold = self.entry.reads.lock().holds.remove(&number);
            // Without the lock: a release may call back.
            drop(hold);
        }
    }
}

impl Access {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The memory of the access, for a device that is told to write to it. It may do so until the access is dropped,
    /// also when the export was revoked meanwhile: the hold says so to its guard.
    ///
    /// # Panics
    /// If it is a read's.
    pub(crate) fn memory(&self) -> Slice {
        let Held::ByAccess { memory, .. } = &self.held else {
            unreachable!("devices of the owner write, and never read for a peer")
        };
        let range = self.offset_bytes..self.offset_bytes + self.len_bytes;
        memory
            .subslice(range)
            .expect("the range was checked when the access began")
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Runs one short, synchronous touch of the memory with the place where `offset_bytes` of this access lies in it;
    /// refuses once the export is revoked.
    pub(crate) fn touch<T>(
        &self,
        offset_bytes: u64,
        touch: impl FnOnce(&Memory, u64) -> T,
    ) -> Result<T, TransferError> {
        debug_assert!(offset_bytes <= self.len_bytes, "an access touches its own range alone");
        let open = self.entry.open.read();
        let memory = open.as_ref().ok_or(TransferError::Revoked)?;
        Ok(touch(
            memory.memory(),
            memory.offset_bytes() + self.offset_bytes + offset_bytes,
        ))
    }

    /// Tells the guard that all bytes of this write are in memory.
    pub(crate) fn wrote(&self, crc64: u64) {
        self.entry.guard.wrote(self.offset_bytes, self.len_bytes, crc64);
    }
}

#[cfg(test)]
mod tests;

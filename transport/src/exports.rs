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
    /// The memory, kept alive by the export until it is revoked and no access is under way.
    pub memory: Slice,
    /// Which direction.
    pub rights: Rights,
    /// For whom.
    pub scope: Scope,
    /// Who decides on each access.
    pub guard: Arc<dyn Guard>,
}

impl Export {
    fn allows(&self, session: SessionId, op: Op) -> bool {
        let in_scope = match self.scope {
            Scope::AnySession => true,
            Scope::Session(owner) => owner == session,
        };
        in_scope && matches!((op, self.rights), (Op::Read, Rights::Read) | (Op::Write, Rights::Write))
    }
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
                export,
                open: RwLock::new(true),
            }),
        );
        Ok(key)
    }

    /// Takes a range back. When this returns, no peer's access through this table touches the memory any more, and none
    /// will, but for what a device was told to write, or to let a peer write, before: that ends with its hold. Accesses under way fail with [`TransferError::Revoked`] and drop their holds soon after. It waits for at
    /// most one system call or copy of a piece. Returns false if there is no such key.
    pub fn revoke(&self, key: RemoteKey) -> bool {
        let Some(entry) = self.entries.write().remove(&key) else {
            return false;
        };
        *entry.open.write() = false;
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
        match entry.export.allows(session, Op::Read) {
            true => Ok(entry.export.memory.clone()),
            false => Err(TransferError::Forbidden { key, op: Op::Read }),
        }
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
        let export = &entry.export;
        if !export.allows(session, op) {
            return Err(TransferError::Forbidden { key, op });
        }
        let export_bytes = export.memory.len_bytes();
        if offset_bytes.checked_add(len_bytes).is_none_or(|end| end > export_bytes) {
            return Err(TransferError::OutOfRange {
                offset_bytes,
                len_bytes,
                export_bytes,
            });
        }
        let granted = match op {
            Op::Read => export.guard.begin_read(offset_bytes, len_bytes),
            Op::Write => export.guard.begin_write(offset_bytes, len_bytes),
        };
        let hold = granted.map_err(|refused| TransferError::Refused {
            code: refused.code,
            message: refused.message.to_owned(),
        })?;
        Ok(Access {
            entry,
            offset_bytes,
            len_bytes,
            hold,
        })
    }
}

#[derive(Debug)]
struct Entry {
    export: Export,
    /// False once revoked. Read-locked around every touch of the memory, so that revoking waits for touches under way.
    open: RwLock<bool>,
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
    hold: Hold,
}

impl Access {
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The memory of the access, for a device that is told to write to it. It may do so until the access is dropped,
    /// also when the export was revoked meanwhile: the hold says so to its guard.
    pub(crate) fn memory(&self) -> Slice {
        let range = self.offset_bytes..self.offset_bytes + self.len_bytes;
        let memory = &self.entry.export.memory;
        memory
            .subslice(range)
            .expect("the range was checked when the access began")
    }

    pub(crate) fn stamp(&self) -> u64 {
        self.hold.stamp
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
        if !*open {
            return Err(TransferError::Revoked);
        }
        let memory = &self.entry.export.memory;
        Ok(touch(
            memory.memory(),
            memory.offset_bytes() + self.offset_bytes + offset_bytes,
        ))
    }

    /// Tells the guard that all bytes of this write are in memory.
    pub(crate) fn wrote(&self, crc64: u64) {
        self.entry.export.guard.wrote(self.offset_bytes, self.len_bytes, crc64);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const OURS: SessionId = SessionId([1; 16]);
    const OTHER: SessionId = SessionId([2; 16]);

    fn export(rights: Rights, scope: Scope) -> Export {
        let memory = Arc::new(Memory::from_vec(vec![0; 100])).whole();
        Export {
            memory,
            rights,
            scope,
            guard: Arc::new(Unguarded),
        }
    }

    fn wanted(op: Op, key: RemoteKey, offset_bytes: u64, len_bytes: u64) -> Wanted {
        Wanted {
            op,
            key,
            offset_bytes,
            len_bytes,
        }
    }

    #[test]
    fn key_session_direction_and_range_are_checked() {
        let exports = Exports::new();
        let key = exports.add(export(Rights::Read, Scope::Session(OURS))).unwrap();
        assert!(exports.begin(OURS, &wanted(Op::Read, key, 90, 10)).is_ok());
        let unknown = RemoteKey(key.0 ^ 1);
        assert_eq!(
            exports.begin(OURS, &wanted(Op::Read, unknown, 0, 1)).unwrap_err(),
            TransferError::UnknownKey { key: unknown }
        );
        assert_eq!(
            exports.begin(OTHER, &wanted(Op::Read, key, 0, 1)).unwrap_err(),
            TransferError::Forbidden { key, op: Op::Read }
        );
        assert_eq!(
            exports.begin(OURS, &wanted(Op::Write, key, 0, 1)).unwrap_err(),
            TransferError::Forbidden { key, op: Op::Write }
        );
        for (offset_bytes, len_bytes) in [(91, 10), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(
                exports
                    .begin(OURS, &wanted(Op::Read, key, offset_bytes, len_bytes))
                    .unwrap_err(),
                TransferError::OutOfRange {
                    offset_bytes,
                    len_bytes,
                    export_bytes: 100
                }
            );
        }
    }

    #[test]
    fn after_revoking_nothing_begins_and_nothing_under_way_touches() {
        let exports = Exports::new();
        let key = exports.add(export(Rights::Write, Scope::AnySession)).unwrap();
        let access = exports.begin(OTHER, &wanted(Op::Write, key, 0, 10)).unwrap();
        assert_eq!(access.touch(3, |_, offset_bytes| offset_bytes), Ok(3));
        assert!(exports.revoke(key));
        assert!(!exports.revoke(key));
        assert_eq!(access.touch(0, |_, _| ()), Err(TransferError::Revoked));
        assert!(matches!(
            exports.begin(OTHER, &wanted(Op::Write, key, 0, 1)),
            Err(TransferError::UnknownKey { .. })
        ));
        assert!(exports.is_empty());
    }

    #[test]
    fn a_hold_is_released_once_when_its_access_ends() {
        struct Counting(Arc<AtomicUsize>);
        impl Guard for Counting {
            fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
                let released = Arc::clone(&self.0);
                Ok(Hold::with_release(9, move || {
                    _ = released.fetch_add(1, Ordering::Relaxed)
                }))
            }
            fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
                Err(Refused {
                    code: 4,
                    message: "sealed",
                })
            }
            fn wrote(&self, _: u64, _: u64, _: u64) {}
        }
        let released = Arc::new(AtomicUsize::new(0));
        let exports = Exports::new();
        let guard = Arc::new(Counting(Arc::clone(&released)));
        let key = exports
            .add(Export {
                guard: guard.clone(),
                ..export(Rights::Read, Scope::AnySession)
            })
            .unwrap();
        let access = exports.begin(OURS, &wanted(Op::Read, key, 0, 1)).unwrap();
        assert_eq!((access.stamp(), released.load(Ordering::Relaxed)), (9, 0));
        drop(access);
        assert_eq!(released.load(Ordering::Relaxed), 1);
        let key = exports
            .add(Export {
                guard,
                ..export(Rights::Write, Scope::AnySession)
            })
            .unwrap();
        let refused = exports.begin(OURS, &wanted(Op::Write, key, 0, 1)).unwrap_err();
        assert_eq!(
            refused,
            TransferError::Refused {
                code: 4,
                message: "sealed".to_owned()
            }
        );
    }

    #[test]
    fn an_empty_range_is_not_exported() {
        let empty = Arc::new(Memory::from_vec(Vec::new())).whole();
        let export = Export {
            memory: empty,
            ..export(Rights::Read, Scope::AnySession)
        };
        assert_eq!(Exports::new().add(export), Err(ExportsError::Empty));
    }
}

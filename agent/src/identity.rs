//! Who this node is: its id, made once, and its incarnation, raised before each start. Both are kept in the state
//! directory, which one process alone uses at a time.
//!
//! | file | content |
//! |---|---|
//! | `node-id` | 32 hexadecimal digits |
//! | `incarnation` | a decimal number |
//! | `lock` | nothing; locked by the process that uses the directory |
//! | `addresses.json` | where the running node listens; written by [`crate::startup`] |
//!
//! Files are replaced as a whole and reach the disk before they count. What cannot be understood is never replaced: a
//! node with a wrong identity would answer for objects of another.

use std::fmt;
use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rand::TryRng;
use rand::rngs::SysRng;
use tenon_protocol::ids::{Incarnation, NodeId};

use crate::limits::{INCARNATION_MAX, STATE_FILE_LEN_BYTES_MAX};

const NODE_ID: &str = "node-id";
const INCARNATION: &str = "incarnation";
const LOCK: &str = "lock";

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The system refused something.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} is used by another agent: give each its own state directory", path.display())]
    InUse {
        /// The state directory.
        path: PathBuf,
    },
    /// A file holds something else than it should.
    #[error(
        "{} is damaged: it holds {found:?} instead of {expected}; restore it, or remove the state directory to begin \
         as a new node",
        path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Its content, cut.
        found: String,
        /// What belongs there.
        expected: &'static str,
    },
    /// The node has lived, and its id is gone.
    #[error(
        "{} is missing beside an incarnation; restore it, or remove the state directory to begin as a new node",
        path.display()
    )]
    IdMissing {
        /// Where the id should be.
        path: PathBuf,
    },
    /// Incarnations are wall clock times, and this one would be the last.
    #[error("the wall clock says {now_unix_ms} ms since 1970, centuries ahead: set it right")]
    ClockTooFar {
        /// What the clock says.
        now_unix_ms: u64,
    },
    /// The system has no random bytes.
    #[error("cannot make a node id: {0}")]
    NoRandomness(String),
}

/// A state directory that this process alone uses, until the value is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// Who this node is in this life. Holds the state directory.
#[derive(Debug)]
pub struct Identity {
    /// The node.
    pub node: NodeId,
    /// Its life; stored, so that the next will be higher.
    pub incarnation: Incarnation,
    /// Where both are kept.
    pub state_dir: StateDir,
}

impl Identity {
    /// Takes the state directory, makes the node's id if there is none, and begins a new life. `now_unix_ms` is the
    /// wall clock.
    pub fn begin(state_dir: &Path, now_unix_ms: u64) -> Result<Self, IdentityError> {
        let state_dir = StateDir::take(state_dir)?;
        let node = state_dir.node_id_or_new()?;
        let incarnation = state_dir.next_incarnation(now_unix_ms)?;
        Ok(Self {
            node,
            incarnation,
            state_dir,
        })
    }
}

impl StateDir {
    /// Makes the directory if it is not there, and locks it.
    pub fn take(path: &Path) -> Result<Self, IdentityError> {
        let refused = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::System { doing, path, source }
        };
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(refused("make the state directory", path))?;
        let lock_path = path.join(LOCK);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(refused("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(IdentityError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(refused("lock", &lock_path)(source)),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The node's id, made now if the directory never had one.
    pub fn node_id_or_new(&self) -> Result<NodeId, IdentityError> {
        if let Some(node) = stored_node_id(&self.path)? {
            return Ok(node);
        }
        if read_number(&self.path)?.is_some() {
            return Err(IdentityError::IdMissing {
                path: self.path.join(NODE_ID),
            });
        }
        let mut bytes = [0; 16];
        SysRng
            .try_fill_bytes(&mut bytes)
            .map_err(|error| IdentityError::NoRandomness(error.to_string()))?;
        let node = NodeId::from_bytes(bytes);
        self.replace(NODE_ID, &format!("{node}\n"))?;
        Ok(node)
    }

    /// An incarnation above all earlier ones, which is on the disk when this returns.
    pub fn next_incarnation(&self, now_unix_ms: u64) -> Result<Incarnation, IdentityError> {
        let least = read_number(&self.path)?.map_or(0, |stored| stored + 1);
        let incarnation = least.max(now_unix_ms);
        if incarnation >= INCARNATION_MAX {
            return Err(IdentityError::ClockTooFar { now_unix_ms });
        }
        self.replace(INCARNATION, &format!("{incarnation}\n"))?;
        Ok(Incarnation(incarnation))
    }

    /// Replaces a file of the directory as a whole: readers and the next start see the old content or the new one.
    pub fn replace(&self, name: &str, content: &str) -> Result<(), IdentityError> {
        let path = self.path.join(name);
        let refused = |doing| {
            let path = path.clone();
            move |source| IdentityError::System { doing, path, source }
        };
        let scratch = self.path.join(format!("{name}.new"));
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&scratch)
            .map_err(refused("write"))?;
        file.write_all(content.as_bytes()).map_err(refused("write"))?;
        file.sync_all().map_err(refused("write"))?;
        std::fs::rename(&scratch, &path).map_err(refused("replace"))?;
        // The rename itself must be on the disk too.
        let directory = File::open(&self.path).map_err(refused("replace"))?;
        directory.sync_all().map_err(refused("replace"))
    }

    /// Removes a file of the directory if it is there.
    pub fn remove(&self, name: &str) -> Result<(), IdentityError> {
        let path = self.path.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(IdentityError::System {
                doing: "remove",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

/// The id in a state directory, if it has one. Takes and changes nothing, so it may be asked while an agent runs.
pub fn stored_node_id(state_dir: &Path) -> Result<Option<NodeId>, IdentityError> {
    read_parsed(&state_dir.join(NODE_ID), "a node id of 32 hexadecimal digits")
}

fn read_number(state_dir: &Path) -> Result<Option<u64>, IdentityError> {
    const EXPECTED: &str = "an incarnation: a number below 2^43";
    let path = state_dir.join(INCARNATION);
    match read_parsed::<u64>(&path, EXPECTED)? {
        Some(number) if number >= INCARNATION_MAX => Err(IdentityError::Damaged {
            path,
            found: number.to_string(),
            expected: EXPECTED,
        }),
        number => Ok(number),
    }
}

/// What the one line of a file says; `None` if there is no file.
fn read_parsed<T: FromStr + fmt::Debug>(path: &Path, expected: &'static str) -> Result<Option<T>, IdentityError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(STATE_FILE_LEN_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => {}
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(IdentityError::System {
                doing: "read",
                path: path.to_owned(),
                source,
            });
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    // Exactly one line: a cut file lacks its end.
    let parsed = text.strip_suffix('\n').and_then(|line| line.parse().ok());
    parsed.map(Some).ok_or_else(|| IdentityError::Damaged {
        path: path.to_owned(),
        found: text.chars().take(64).collect(),
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const NOW_UNIX_MS: u64 = 1_790_000_000_000;

    #[test]
    fn a_node_keeps_its_id_and_gets_a_new_incarnation_at_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap();
        let (node, incarnation) = (first.node, first.incarnation);
        assert_eq!(incarnation, Incarnation(NOW_UNIX_MS));
        drop(first);
        // The clock stands still, then goes back.
        for step in 1..3 {
            let again = Identity::begin(dir.path(), NOW_UNIX_MS - 1000 * (step - 1)).unwrap();
            assert_eq!(again.node, node);
            assert_eq!(again.incarnation, Incarnation(NOW_UNIX_MS + step));
        }
        let later = Identity::begin(dir.path(), NOW_UNIX_MS + 5000).unwrap();
        assert_eq!(later.incarnation, Incarnation(NOW_UNIX_MS + 5000));
    }

    #[test]
    fn ids_of_two_directories_differ() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let one = Identity::begin(one.path(), NOW_UNIX_MS).unwrap();
        let other = Identity::begin(other.path(), NOW_UNIX_MS).unwrap();
        assert_ne!(one.node, other.node);
    }

    #[test]
    fn the_incarnation_is_on_the_disk_before_the_node_serves() {
        let dir = tempfile::tempdir().unwrap();
        let _identity = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap();
        let stored = fs::read_to_string(dir.path().join(INCARNATION)).unwrap();
        assert_eq!(stored, format!("{NOW_UNIX_MS}\n"));
    }

    #[test]
    fn two_agents_do_not_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap();
        let error = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap_err();
        assert!(
            matches!(&error, IdentityError::InUse { path } if path == dir.path()),
            "{error}"
        );
        // Its id can be read all the same.
        assert_eq!(stored_node_id(dir.path()).unwrap(), Some(first.node));
        drop(first);
        Identity::begin(dir.path(), NOW_UNIX_MS).unwrap();
    }

    #[test]
    fn the_directory_and_its_files_are_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/for/tenon");
        let _identity = Identity::begin(&path, NOW_UNIX_MS).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        for name in [NODE_ID, INCARNATION, LOCK] {
            assert_eq!(mode(&path.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn damaged_files_are_named_and_stay_as_they_are() {
        for (name, content) in [
            (NODE_ID, ""),
            (NODE_ID, "0123456789abcdef0123456789abcdef"),
            (NODE_ID, "0123456789abcdef\n"),
            (NODE_ID, "0123456789abcdef0123456789abcdef\nmore\n"),
            (INCARNATION, "\n"),
            (INCARNATION, "-1\n"),
            (INCARNATION, "1790000000000"),
            (INCARNATION, "18446744073709551615\n"),
            (INCARNATION, "9000000000000\n"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            drop(Identity::begin(dir.path(), NOW_UNIX_MS).unwrap());
            let path = dir.path().join(name);
            fs::write(&path, content).unwrap();
            let error = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap_err();
            assert!(
                matches!(&error, IdentityError::Damaged { path: named, .. } if *named == path),
                "{name} {content:?}: {error}"
            );
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_lost_id_is_not_replaced_by_another() {
        let dir = tempfile::tempdir().unwrap();
        drop(Identity::begin(dir.path(), NOW_UNIX_MS).unwrap());
        fs::remove_file(dir.path().join(NODE_ID)).unwrap();
        let error = Identity::begin(dir.path(), NOW_UNIX_MS).unwrap_err();
        assert!(matches!(error, IdentityError::IdMissing { .. }), "{error}");
        assert_eq!(stored_node_id(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_clock_far_in_the_future_does_not_spoil_the_next_lives() {
        let dir = tempfile::tempdir().unwrap();
        let error = Identity::begin(dir.path(), u64::MAX).map(|identity| identity.incarnation);
        assert!(matches!(error, Err(IdentityError::ClockTooFar { .. })), "{error:?}");
        Identity::begin(dir.path(), NOW_UNIX_MS).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Identity::begin(&file.join("state"), NOW_UNIX_MS).unwrap_err();
        assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
    }
}

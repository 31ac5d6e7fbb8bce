//! What a home keeps per key.

use crate::limits::DIRECTORY_SHARDS;
use crate::time::Time;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use tenon_protocol::ids::{KeyHash, NodeId, Version};
use tenon_protocol::member::{HomeEntry, Homes, OwedDrop};
use tenon_protocol::message::Replica;

/// An object as a home knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) homes: Homes,
    pub(super) version: Version,
    pub(super) len_bytes: u64,
    pub(super) replicas: Box<[Replica]>,
}

impl Object {
    /// Takes the replicas away for which `is_gone`. True if none is left.
    pub(super) fn lose(&mut self, is_gone: impl Fn(&Replica) -> bool) -> bool {
        if self.replicas.iter().any(&is_gone) {
            self.replicas = self
                .replicas
                .iter()
                .copied()
                .filter(|replica| !is_gone(replica))
                .collect();
        }
        self.replicas.is_empty()
    }

    /// What the homes of a key know of it.
    pub(super) fn new(homes: Homes, entry: HomeEntry) -> Self {
        Self {
            homes,
            version: entry.version,
            len_bytes: entry.len_bytes,
            replicas: entry.replicas.into(),
        }
    }

    /// What its holders must do once it is not the key's object any more.
    pub(super) fn drops(&self) -> impl Iterator<Item = OwedDrop> {
        let version = self.version;
        self.replicas.iter().map(move |&replica| OwedDrop { version, replica })
    }

    /// Adds replicas that were not known. One in a later life, or of a later region, of the same holder takes the place
    /// of the known one.
    pub(super) fn gain(&mut self, others: &[Replica]) {
        let mut replicas = self.replicas.to_vec();
        for other in others {
            match replicas.iter_mut().find(|replica| replica.holder == other.holder) {
                Some(known) => {
                    if (known.incarnation, known.generation) < (other.incarnation, other.generation) {
                        *known = *other;
                    }
                }
                None => replicas.push(*other),
            }
        }
        self.replicas = replicas.into();
    }

    pub(super) fn is_on(&self, holder: NodeId) -> bool {
        self.replicas.iter().any(|replica| replica.holder == holder)
    }
}

impl From<&Object> for HomeEntry {
    fn from(object: &Object) -> Self {
        Self {
            version: object.version,
            len_bytes: object.len_bytes,
            replicas: object.replicas.to_vec(),
        }
    }
}

/// An object that was accepted and whose seal was not reported yet.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) object: Object,
    /// Accepted by this node, and not only passed on by the partner.
    pub(super) is_own: bool,
    pub(super) degraded: bool,
    /// When its holder is asked.
    pub(super) check_at: Time,
}

/// All that is known of one key.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) sealed: Option<Object>,
    /// Boxed, since few keys have one at any time.
    pub(super) pending: Option<Box<Pending>>,
}

impl Entry {
    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_none() && self.pending.is_none()
    }

    /// The homes of the key; `None` if nothing is known of it.
    fn homes(&self) -> Option<Homes> {
        let pending = self.pending.as_ref().map(|pending| &pending.object);
        self.sealed.as_ref().or(pending).map(|object| object.homes)
    }
}

/// Key hashes are keyed hashes already.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut word = [0; 8];
        let tail = &bytes[bytes.len().saturating_sub(8)..];
        word[..tail.len()].copy_from_slice(tail);
        self.0 ^= u64::from_le_bytes(word);
    }

    fn write_usize(&mut self, _: usize) {}
}

type Shard = HashMap<KeyHash, Entry, BuildHasherDefault<KeyHasher>>;

/// Entries by key, in shards so that a sweep need not go through all at once. An entry that says nothing is not kept.
#[derive(Debug)]
pub(super) struct Entries {
    shards: Vec<Shard>,
    len: usize,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..DIRECTORY_SHARDS).map(|_| Shard::default()).collect(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: KeyHash) -> Option<&Entry> {
        self.shards[shard_of(key)].get(&key)
    }

    pub(super) fn sealed(&self, key: KeyHash) -> Option<&Object> {
        self.get(key)?.sealed.as_ref()
    }

    pub(super) fn pending(&self, key: KeyHash) -> Option<&Pending> {
        self.get(key)?.pending.as_deref()
    }

    /// Changes the entry of a key, which is empty if nothing was known.
    pub(super) fn change<R>(&mut self, key: KeyHash, change: impl FnOnce(&mut Entry) -> R) -> R {
        let shard = &mut self.shards[shard_of(key)];
        let before = shard.len();
        let entry = shard.entry(key).or_default();
        let result = change(entry);
        if entry.is_empty() {
            shard.remove(&key);
        }
        self.len = self.len + shard.len() - before;
        result
    }

    /// Lets sealed objects of one shard lose the replicas for which `is_gone`.
    pub(super) fn sweep(&mut self, shard: usize, is_gone: impl Fn(&Replica) -> bool) {
        let shard = &mut self.shards[shard];
        let before = shard.len();
        shard.retain(|_, entry| {
            if entry.sealed.as_mut().is_some_and(|object| object.lose(&is_gone)) {
                entry.sealed = None;
            }
            !entry.is_empty()
        });
        self.len = self.len + shard.len() - before;
    }

    /// Panics if the number of entries is wrong, or one says nothing. O(n).
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.len, self.shards.iter().map(Shard::len).sum::<usize>());
        for entry in self.shards.iter().flat_map(Shard::values) {
            assert!(!entry.is_empty(), "an empty entry is kept");
            let objects = entry
                .sealed
                .iter()
                .chain(entry.pending.as_ref().map(|pending| &pending.object));
            assert!(
                objects.into_iter().all(|object| !object.replicas.is_empty()),
                "an object without a replica is kept"
            );
        }
    }

    /// Keys of one shard and whose they are, in any order.
    pub(super) fn keys_of(&self, shard: usize) -> impl Iterator<Item = (KeyHash, Homes)> {
        self.shards[shard]
            .iter()
            .filter_map(|(key, entry)| Some((*key, entry.homes()?)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (KeyHash, &Entry)> {
        self.shards.iter().flatten().map(|(&key, entry)| (key, entry))
    }
}

pub(super) fn shard_of(key: KeyHash) -> usize {
    key.to_bytes()[0].into()
}

//! What a home keeps per key.

use super::packed::{Life, Packed, Shared};
use crate::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use tenon_protocol::ids::{KeyHash, NodeId, Version};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::{HomeEntry, Homes, OwedDrop, Withdrawal};
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

    /// Who holds it; the first, if there are several.
    pub(super) fn holder(&self) -> NodeId {
        self.replicas[0].holder
    }

    pub(super) fn holders(&self) -> Vec<NodeId> {
        self.replicas.iter().map(|replica| replica.holder).collect()
    }

    /// Whether this object stays if both are there and no decision of the homes lies between them. Every home says the
    /// same of the same two.
    pub(super) fn beats(&self, other: &Self) -> bool {
        match self.version == other.version {
            true => self.holder() < other.holder(),
            false => self.version.wins_over(&other.version),
        }
    }

    /// Whether both are there rightly, at one or at several holders: one put's object and copies of it. Of two tries of a put only one stays.
    pub(super) fn may_join(&self, other: &Self) -> bool {
        let mut originals = self.originals().chain(other.originals());
        let first = originals.next();
        self.version == other.version && originals.all(|holder| Some(holder) == first)
    }

    fn originals(&self) -> impl Iterator<Item = NodeId> {
        let originals = self.replicas.iter().filter(|replica| !replica.is_copy);
        originals.map(|replica| replica.holder)
    }

    pub(super) fn has_copies(&self) -> bool {
        self.replicas.iter().any(|replica| replica.is_copy)
    }

    /// What its holders must do once it is not the key's object any more.
    pub(super) fn drops(&self) -> impl Iterator<Item = OwedDrop> {
        let version = self.version;
        self.replicas.iter().map(move |&replica| OwedDrop { version, replica })
    }

    /// Adds replicas that were not known. One in a later life, or of a later region, of the same holder takes the place
    /// of the known one. Says whether anything was new. Beyond [`REPLICAS_MAX`] more are not remembered.
    pub(super) fn gain(&mut self, others: &[Replica]) -> bool {
        let mut replicas = self.replicas.to_vec();
        let mut is_changed = false;
        for other in others {
            let has_room = replicas.len() < REPLICAS_MAX.into();
            match replicas.iter_mut().find(|replica| replica.holder == other.holder) {
                Some(known) if (known.incarnation, known.generation) < (other.incarnation, other.generation) => {
                    *known = *other;
                    is_changed = true;
                }
                None if has_room => {
                    replicas.push(*other);
                    is_changed = true;
                }
                Some(_) | None => {}
            }
        }
        self.replicas = replicas.into();
        is_changed
    }

    /// Whether it is this very region's that is not its put's any more.
    pub(super) fn is_withdrawn_by(&self, withdrawal: &Withdrawal) -> bool {
        let is_meant = |replica: &Replica| is_region_of(replica, withdrawal);
        self.version.put_id == withdrawal.put_id && self.replicas.iter().any(is_meant)
    }

    pub(super) fn is_on(&self, holder: NodeId) -> bool {
        self.replicas.iter().any(|replica| replica.holder == holder)
    }
}

pub(super) fn is_region_of(replica: &Replica, withdrawal: &Withdrawal) -> bool {
    (replica.holder, replica.generation) == (withdrawal.holder, withdrawal.generation)
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
    /// At the second home: copies of the sealed object that their holders have told, and that the first home has not named yet.
    pub(super) unheard: Vec<Replica>,
}

impl Entry {
    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_none() && self.pending.is_none()
    }

    /// A holder has told the second home of the sealed object.
    pub(super) fn gain_unheard(&mut self, replicas: &[Replica]) {
        let Some(known) = &mut self.sealed else { return };
        let before = known.replicas.clone();
        known.gain(replicas);
        let fresh = known
            .replicas
            .iter()
            .filter(|replica| replica.is_copy && !before.contains(replica));
        self.unheard.extend(fresh);
    }

    /// The first home says what the key's object is, and which replicas it has. Those that it can't know of yet stay. Answers what was the object
    /// before.
    pub(super) fn seal(&mut self, mut object: Object) -> Option<Object> {
        if self
            .sealed
            .as_ref()
            .is_some_and(|before| before.version == object.version)
        {
            self.unheard.retain(|replica| !object.replicas.contains(replica));
            object.gain(&self.unheard);
        } else {
            self.unheard.clear();
        }
        self.sealed.replace(object)
    }

    /// The homes of the key; `None` if nothing is known of it.
    fn homes(&self) -> Option<Homes> {
        self.objects().next().map(|object| object.homes)
    }

    fn objects(&self) -> impl Iterator<Item = &Object> {
        let pending = self.pending.as_ref().map(|pending| &pending.object);
        self.sealed.iter().chain(pending)
    }
}

/// Entries by key. Nearly all are packed into few bytes; those with a pending object, with several replicas, or with
/// numbers that do not fit are kept loose. An entry that says nothing is not kept.
#[derive(Debug, Default)]
pub(super) struct Entries {
    packed: BTreeMap<KeyHash, Packed>,
    loose: BTreeMap<KeyHash, Entry>,
    shared: Shared,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.packed.len() + self.loose.len()
    }

    pub(super) fn contains(&self, key: KeyHash) -> bool {
        self.packed.contains_key(&key) || self.loose.contains_key(&key)
    }

    pub(super) fn sealed(&self, key: KeyHash) -> Option<Object> {
        match self.packed.get(&key) {
            Some(packed) => Some(packed.unpack(&self.shared)),
            None => self.loose.get(&key)?.sealed.clone(),
        }
    }

    pub(super) fn pending(&self, key: KeyHash) -> Option<&Pending> {
        self.loose.get(&key)?.pending.as_deref()
    }

    /// Whether any object of the key lies in a life for which `is_gone`.
    pub(super) fn has_lost(&self, key: KeyHash, is_gone: impl Fn(Life) -> bool) -> bool {
        match self.packed.get(&key) {
            Some(packed) => is_gone(packed.life(&self.shared)),
            None => self.loose.get(&key).is_some_and(|entry| has_lost(entry, is_gone)),
        }
    }

    /// Changes the entry of a key, which is empty if nothing was known.
    pub(super) fn change<R>(&mut self, key: KeyHash, change: impl FnOnce(&mut Entry) -> R) -> R {
        let mut entry = match self.packed.remove(&key) {
            Some(packed) => {
                let sealed = Some(packed.unpack(&self.shared));
                packed.release(&mut self.shared);
                Entry {
                    sealed,
                    ..Entry::default()
                }
            }
            None => self.loose.remove(&key).unwrap_or_default(),
        };
        let result = change(&mut entry);
        let packed = match &entry {
            Entry {
                sealed: Some(object),
                pending: None,
                unheard,
            } if unheard.is_empty() => Packed::pack(&mut self.shared, object),
            _ => None,
        };
        if let Some(packed) = packed {
            self.packed.insert(key, packed);
        } else if !entry.is_empty() {
            self.loose.insert(key, entry);
        }
        result
    }

    /// Among the first `keys_max` keys after `after`, those of which an object lies in a life for which `is_gone`; and
    /// the key after which to go on, if there are more.
    pub(super) fn lost_after(
        &self,
        after: Option<KeyHash>,
        keys_max: usize,
        is_gone: impl Fn(Life) -> bool,
    ) -> (Vec<KeyHash>, Option<KeyHash>) {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let mut packed = self.packed.range(range);
        let mut lost = Vec::new();
        let mut last = None;
        for (key, entry) in packed.by_ref().take(keys_max) {
            last = Some(*key);
            if is_gone(entry.life(&self.shared)) {
                lost.push(*key);
            }
        }
        let next = packed.next().and(last);
        let end = next.map_or(Bound::Unbounded, Bound::Included);
        let loose = self.loose.range((range.0, end));
        lost.extend(
            loose
                .filter(|(_, entry)| has_lost(entry, &is_gone))
                .map(|(key, _)| *key),
        );
        (lost, next)
    }

    /// Keys after `after` and whose they are, in order: the packed ones and the loose ones.
    pub(super) fn keys_after(&self, after: Option<KeyHash>) -> [Box<dyn Iterator<Item = (KeyHash, Homes)> + '_>; 2] {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let packed = self.packed.range(range);
        let loose = self.loose.range(range);
        [
            Box::new(packed.map(|(key, entry)| (*key, entry.homes(&self.shared)))),
            Box::new(loose.filter_map(|(key, entry)| Some((*key, entry.homes()?)))),
        ]
    }

    /// Pending objects, by key.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = (KeyHash, &Pending)> {
        let loose = self.loose.iter();
        loose.filter_map(|(key, entry)| Some((*key, entry.pending.as_deref()?)))
    }

    /// Panics if an entry is kept that says nothing, or in the wrong place. O(n).
    pub(super) fn check_invariants(&self) {
        for (key, entry) in &self.loose {
            assert!(!self.packed.contains_key(key), "{key} is kept twice");
            assert!(!entry.is_empty(), "an empty entry is kept");
            assert!(
                entry.objects().all(|object| !object.replicas.is_empty()),
                "an object without a replica is kept"
            );
        }
        let Shared { lives, homes } = &self.shared;
        lives.check_invariants(self.packed.values().map(Packed::life_number));
        homes.check_invariants(self.packed.values().map(Packed::homes_number));
    }
}

fn has_lost(entry: &Entry, is_gone: impl Fn(Life) -> bool) -> bool {
    let mut replicas = entry.objects().flat_map(|object| &object.replicas);
    replicas.any(|replica| is_gone((replica.holder, replica.incarnation)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tenon_protocol::ids::{Epoch, Generation, Incarnation, PutId, SegmentId, Slot};

    fn node(id: u8) -> NodeId {
        NodeId::from_bytes([id; 16])
    }

    fn key(id: u8) -> KeyHash {
        KeyHash::from_bytes([id; 16])
    }

    fn replica() -> impl Strategy<Value = Replica> {
        let numbers = (
            0..4u8,
            1..3u64,
            prop_oneof![Just(1u32), Just(u32::MAX)],
            prop_oneof![Just(64u64), Just(63), Just(64 << 40), Just(u64::MAX)],
        );
        let rest = (any::<u32>(), prop_oneof![Just(5u64), Just(u64::MAX)]);
        (numbers, rest).prop_map(|((holder, life, segment, offset_bytes), (slot, generation))| {
            let incarnation = Incarnation(life << 40);
            Replica {
                holder: node(holder),
                incarnation,
                segment: SegmentId(segment),
                offset_bytes,
                slot: Slot(slot),
                generation: Generation(Generation::base(incarnation).0.saturating_add(generation)),
                is_copy: slot & 1 == 1,
            }
        })
    }

    fn object() -> impl Strategy<Value = Object> {
        let replicas = proptest::collection::vec(replica(), 1..3);
        let numbers = (
            prop_oneof![Just(1u64), Just(u64::MAX)],
            prop_oneof![Just(1u64), Just(u64::MAX)],
        );
        (replicas, numbers, any::<[u8; 16]>(), 0..3u8).prop_map(|(replicas, (epoch, len_bytes), put_id, home)| Object {
            homes: Homes {
                first: node(home),
                second: Some(node(9)),
            },
            version: Version {
                epoch: Epoch(epoch),
                put_id: PutId::from_bytes(put_id),
            },
            len_bytes,
            replicas: replicas.into(),
        })
    }

    fn pending(object: Object) -> Box<Pending> {
        Box::new(Pending {
            object,
            is_own: true,
            degraded: false,
            check_at: Time::ZERO,
        })
    }

    proptest! {
        /// What a plain map of objects says, whatever fits into the packed form.
        #[test]
        fn entries_are_kept_as_they_are(
            steps in proptest::collection::vec((0..8u8, proptest::option::of(object()), any::<bool>()), 1..60)
        ) {
            let mut entries = Entries::default();
            let mut model: BTreeMap<KeyHash, (Option<Object>, bool)> = BTreeMap::new();
            for (id, object, is_pending) in steps {
                entries.change(key(id), |entry| {
                    entry.pending = object.clone().filter(|_| is_pending).map(pending);
                    entry.sealed = object.clone();
                });
                model.insert(key(id), (object, is_pending));
                entries.check_invariants();
                model.retain(|_, (object, _)| object.is_some());
                prop_assert_eq!(entries.len(), model.len());
                for id in 0..8 {
                    let expected = model.get(&key(id));
                    let sealed = expected.and_then(|(object, _)| object.clone());
                    prop_assert_eq!(entries.sealed(key(id)), sealed);
                    prop_assert_eq!(entries.pending(key(id)).is_some(), expected.is_some_and(|(_, is_pending)| *is_pending));
                    prop_assert_eq!(entries.contains(key(id)), expected.is_some());
                }
                let is_gone = |(holder, _): Life| holder == node(1);
                let mut lost: Vec<KeyHash> = Vec::new();
                let mut after = None;
                loop {
                    let (found, next) = entries.lost_after(after, 3, is_gone);
                    lost.extend(found);
                    if next.is_none() { break; }
                    after = next;
                }
                lost.sort_unstable();
                let on = |object: &Object| object.replicas.iter().any(|replica| replica.holder == node(1));
                let expected: Vec<KeyHash> = model.iter().filter(|(_, (object, _))| object.as_ref().is_some_and(on)).map(|(key, _)| *key).collect();
                prop_assert_eq!(lost, expected);
            }
        }
    }
}

//! The common entry in few bytes: one sealed object with one replica, in a life and of homes that many entries share.

use super::entry::Object;
use std::collections::BTreeMap;
use tenon_protocol::ids::{Epoch, Generation, Incarnation, NodeId, PutId, SegmentId, Slot, Version};
use tenon_protocol::member::Homes;
use tenon_protocol::message::Replica;

/// The life of a holder.
pub(super) type Life = (NodeId, Incarnation);

/// Values that many entries share, each stored once and counted.
#[derive(Debug)]
pub(super) struct Interned<T> {
    values: Vec<Option<(T, u32)>>,
    by_value: BTreeMap<T, u16>,
    free: Vec<u16>,
}

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            by_value: BTreeMap::new(),
            free: Vec::new(),
        }
    }
}

impl<T: Copy + Ord> Interned<T> {
    /// The number of a value that is used once more; `None` if there are too many.
    fn take(&mut self, value: T) -> Option<u16> {
        if let Some(&number) = self.by_value.get(&value) {
            let (_, uses) = self.values[usize::from(number)].as_mut()?;
            *uses = uses.checked_add(1)?;
            return Some(number);
        }
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u16::try_from(self.values.len()).ok()?;
                self.values.push(None);
                number
            }
        };
        self.values[usize::from(number)] = Some((value, 1));
        self.by_value.insert(value, number);
        Some(number)
    }

    /// The value is used once less.
    fn give_back(&mut self, number: u16) {
        let slot = &mut self.values[usize::from(number)];
        let (value, uses) = slot.as_mut().expect("a number that is used has a value");
        *uses -= 1;
        if *uses == 0 {
            self.by_value.remove(value);
            *slot = None;
            self.free.push(number);
        }
    }

    fn get(&self, number: u16) -> T {
        let (value, _) = self.values[usize::from(number)].expect("a number that is used has a value");
        value
    }

    /// Panics if the uses of the values are not `used`. O(n).
    pub(super) fn check_invariants(&self, used: impl Iterator<Item = u16>) {
        let mut uses = BTreeMap::new();
        for number in used {
            *uses.entry(number).or_insert(0u32) += 1;
        }
        let known = self.by_value.values().map(|&number| {
            let (_, uses) = self.values[usize::from(number)].as_ref().expect("it has a value");
            (number, *uses)
        });
        assert_eq!(known.collect::<BTreeMap<_, _>>(), uses, "uses are counted wrong");
        assert_eq!(self.values.len(), self.by_value.len() + self.free.len());
    }
}

/// What packed entries share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) lives: Interned<Life>,
    pub(super) homes: Interned<Homes>,
}

/// Numbers of five bytes.
type Short = [u8; 5];

/// An entry of 44 bytes without alignment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    put_id: [u8; 16],
    epoch: [u8; 4],
    len_bytes: Short,
    homes: [u8; 2],
    life: [u8; 2],
    /// The lowest bit says that it is a copy.
    segment: [u8; 2],
    /// In units of [`OFFSET_UNIT_BYTES`].
    offset: Short,
    slot: [u8; 4],
    /// Counted from the life's base.
    generation: [u8; 4],
}

/// Regions begin at multiples of this.
const OFFSET_UNIT_BYTES: u64 = crate::limits::ALIGNMENT_BYTES_MIN;

const _: () = assert!(size_of::<Packed>() == 44);

impl Packed {
    /// Packs an object, or says that it does not fit.
    pub(super) fn pack(shared: &mut Shared, object: &Object) -> Option<Self> {
        let [replica] = *object.replicas else { return None };
        if !replica.offset_bytes.is_multiple_of(OFFSET_UNIT_BYTES) {
            return None;
        }
        let base = Generation::base(replica.incarnation).0;
        let generation = u32::try_from(replica.generation.0.checked_sub(base)?).ok()?;
        let packed = Self {
            put_id: object.version.put_id.to_bytes(),
            epoch: u32::try_from(object.version.epoch.0).ok()?.to_le_bytes(),
            len_bytes: shorten(object.len_bytes)?,
            homes: [0; 2],
            life: [0; 2],
            segment: pack_segment(replica)?.to_le_bytes(),
            offset: shorten(replica.offset_bytes / OFFSET_UNIT_BYTES)?,
            slot: replica.slot.0.to_le_bytes(),
            generation: generation.to_le_bytes(),
        };
        let homes = shared.homes.take(object.homes)?;
        let Some(life) = shared.lives.take((replica.holder, replica.incarnation)) else {
            shared.homes.give_back(homes);
            return None;
        };
        Some(Self {
            homes: homes.to_le_bytes(),
            life: life.to_le_bytes(),
            ..packed
        })
    }

    /// What was packed.
    pub(super) fn unpack(&self, shared: &Shared) -> Object {
        let (holder, incarnation) = self.life(shared);
        let base = Generation::base(incarnation).0;
        let segment = u16::from_le_bytes(self.segment);
        let replica = Replica {
            holder,
            incarnation,
            segment: SegmentId((segment >> 1).into()),
            offset_bytes: lengthen(self.offset) * OFFSET_UNIT_BYTES,
            slot: Slot(u32::from_le_bytes(self.slot)),
            generation: Generation(base + u64::from(u32::from_le_bytes(self.generation))),
            is_copy: segment & 1 == 1,
        };
        Object {
            homes: self.homes(shared),
            version: Version {
                epoch: Epoch(u32::from_le_bytes(self.epoch).into()),
                put_id: PutId::from_bytes(self.put_id),
            },
            len_bytes: lengthen(self.len_bytes),
            replicas: Box::new([replica]),
        }
    }

    /// Gives back what it shares with others, before it is dropped.
    pub(super) fn release(self, shared: &mut Shared) {
        shared.homes.give_back(self.homes_number());
        shared.lives.give_back(self.life_number());
    }

    /// The life of its holder.
    pub(super) fn life(&self, shared: &Shared) -> Life {
        shared.lives.get(self.life_number())
    }

    /// The homes of its key.
    pub(super) fn homes(&self, shared: &Shared) -> Homes {
        shared.homes.get(self.homes_number())
    }

    pub(super) fn life_number(&self) -> u16 {
        u16::from_le_bytes(self.life)
    }

    pub(super) fn homes_number(&self) -> u16 {
        u16::from_le_bytes(self.homes)
    }
}

fn pack_segment(replica: Replica) -> Option<u16> {
    let segment = u16::try_from(replica.segment.0.checked_mul(2)?).ok()?;
    Some(segment | u16::from(replica.is_copy))
}

fn shorten(value: u64) -> Option<Short> {
    let [a, b, c, d, e, 0, 0, 0] = value.to_le_bytes() else {
        return None;
    };
    Some([a, b, c, d, e])
}

fn lengthen([a, b, c, d, e]: Short) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
}

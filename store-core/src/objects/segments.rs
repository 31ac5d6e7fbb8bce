//! The segments of a node, found by their ids, and how they come and go.
//!
//! | has | call | next |
//! |---|---|---|
//! | – | [`Holder::new_segment_id`], while its memory is made ready | an id that no other segment of this life gets |
//! | an id | [`Holder::mount`] | *active*: it takes regions |
//! | active | [`Holder::drain`] | *draining*: no further region; what it holds stays as it is |
//! | draining | [`Holder::drop_some`], again and again | objects go as if evicted, reservations end; commits and transfers under way end by themselves |
//! | draining, and empty | [`Holder::unmount`] | gone |

use super::evict::{EvictReason, PinAccount};
use super::region::{Object, Record, RegionId, Standing, State};
use super::reserve::EndReason;
use super::segment::Segment;
use super::{Holder, MountError, SegmentSpec, SegmentTable, UnmountError};
use crate::limits::{DROPPED_AT_ONCE_MAX, SEGMENTS_MAX};
use crate::planted::{Bug, is_planted};
use crate::time::Time;
use std::sync::Arc;
use tenon_protocol::ids::{Generation, KeyHash, SegmentId, Version};
use tenon_protocol::message::Pin;
use tenon_protocol::name::ObjectName;

/// See the module.
#[derive(Debug)]
pub(super) struct SegmentList<T> {
    /// In the order of their ids.
    segments: Vec<Segment<T>>,
    /// Which of them stands, or last stood, at each position of the space.
    ids: Vec<SegmentId>,
}

impl<T> Default for SegmentList<T> {
    fn default() -> Self {
        Self {
            segments: Vec::new(),
            ids: Vec::new(),
        }
    }
}

impl<T: SegmentTable> SegmentList<T> {
    fn place(&self, id: SegmentId) -> Result<usize, usize> {
        // As long as none has gone, the one with id n stands at n - 1.
        let guess = usize::try_from(id.0).unwrap_or(0).wrapping_sub(1);
        match self.segments.get(guess) {
            Some(segment) if segment.id() == id => Ok(guess),
            _ => self.segments.binary_search_by_key(&id, Segment::id),
        }
    }

    pub(super) fn get(&self, id: SegmentId) -> Option<&Segment<T>> {
        Some(&self.segments[self.place(id).ok()?])
    }

    pub(super) fn get_mut(&mut self, id: SegmentId) -> Option<&mut Segment<T>> {
        let place = self.place(id).ok()?;
        Some(&mut self.segments[place])
    }

    /// Which stands at a position of the space.
    pub(super) fn id_at(&self, index: usize) -> SegmentId {
        self.ids[index]
    }

    pub(super) fn record(&self, id: RegionId) -> Option<&Record> {
        self.get(id.segment)?.get(id)
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Segment<T>> {
        self.segments.iter()
    }

    /// Those that take regions.
    pub(super) fn active(&self) -> impl Iterator<Item = &Segment<T>> {
        self.segments.iter().filter(|segment| !segment.is_draining())
    }

    fn insert(&mut self, segment: Segment<T>) {
        let place = self.place(segment.id()).expect_err("each id is given once");
        let (index, id) = (segment.index(), segment.id());
        self.ids.resize(self.ids.len().max(index + 1), id);
        self.ids[index] = id;
        self.segments.insert(place, segment);
    }

    fn remove(&mut self, id: SegmentId) -> Option<Segment<T>> {
        let place = self.place(id).ok()?;
        Some(self.segments.remove(place))
    }
}

/// What a step of dropping has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Objects that have gone.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Where the next step begins; `None` if this one reached the segment's end.
    pub next_bytes: Option<u64>,
}

/// An object that may be moved to another node.
#[derive(Debug, Clone)]
pub struct Movable {
    /// Its name.
    pub name: Arc<ObjectName>,
    /// The hash of that.
    pub key_hash: KeyHash,
    /// Which object of the key.
    pub version: Version,
    /// Where it lies.
    pub region: RegionId,
    /// How long it is.
    pub len_bytes: u64,
    /// CRC-64/NVME of all its bytes.
    pub checksum: u64,
    /// What was stored with it.
    pub fingerprint: Box<[u8]>,
    /// What keeps it from being evicted.
    pub pin: Pin,
}

/// What keeps a segment from being given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentUsers {
    /// Puts that are not over.
    pub puts: u64,
    /// The owner's own transfers that are under way.
    pub transfers: u64,
    /// Objects that lie there, by what keeps them from being evicted.
    pub pins: PinAccount,
}

impl<T: SegmentTable> Holder<T> {
    /// An id for a segment whose memory is about to be made ready. No other segment of this life gets it.
    ///
    /// # Errors
    /// [`MountError::OutOfIds`].
    pub fn new_segment_id(&mut self) -> Result<SegmentId, MountError> {
        let next = self.last_segment.0.checked_add(1).ok_or(MountError::OutOfIds)?;
        self.last_segment = SegmentId(next);
        Ok(self.last_segment)
    }

    /// Takes a segment into use under an id that was given for it. `table` is its table, in which no slot describes anything.
    ///
    /// # Errors
    /// What is wrong with it; or [`MountError::TooMany`].
    ///
    /// # Panics
    /// If the id was not given, or a segment has it already.
    pub fn mount(&mut self, id: SegmentId, spec: &SegmentSpec, table: T) -> Result<(), MountError> {
        assert!(id <= self.last_segment, "segment {id} was never announced");
        if self.segments.iter().len() >= SEGMENTS_MAX {
            return Err(MountError::TooMany);
        }
        let (index, capacity_bytes) = self.space.mount(spec)?;
        self.segments.insert(Segment::new(id, index, capacity_bytes, table));
        self.count_capacity();
        Ok(())
    }

    /// From now on the segment gives room to no request, and nothing is evicted from it. What it holds stays. O(regions of the segment) for one that was active.
    ///
    /// # Errors
    /// [`UnmountError::Unknown`].
    pub fn drain(&mut self, id: SegmentId) -> Result<(), UnmountError> {
        let segment = self.segments.get_mut(id).ok_or(UnmountError::Unknown { segment: id })?;
        if !segment.is_draining() {
            segment.begin_drain();
            let index = segment.index();
            self.space.withdraw(index);
            self.count_capacity();
        }
        Ok(())
    }

    /// Who keeps a segment from being given back; `None` if it is not mounted. O(1).
    pub fn users(&self, id: SegmentId) -> Option<SegmentUsers> {
        let segment = self.segments.get(id)?;
        Some(SegmentUsers {
            puts: segment.reservations(),
            transfers: segment.transfers(),
            pins: segment.pins(),
        })
    }

    /// Drops some of what a draining segment holds, whatever pins it: objects, of which the homes are to be told as of evicted ones, and reservations. What
    /// can't be dropped ends soon by itself: commits in progress, objects whose homes are just being told, transfers under way. Begins with the regions at
    /// `from_bytes`.
    ///
    /// # Panics
    /// If the segment is active.
    pub fn drop_some(&mut self, now: Time, id: SegmentId, from_bytes: u64) -> Dropped {
        self.pass(now);
        let mut dropped = Dropped::default();
        let Some(segment) = self.segments.get(id) else {
            return dropped;
        };
        assert!(segment.is_draining(), "segment {id} is in use");
        let mut regions = segment.regions_from(from_bytes);
        let some: Vec<(RegionId, bool, u64)> = (regions.by_ref().take(DROPPED_AT_ONCE_MAX))
            .filter_map(|(region, record)| Some((region, is_object_to_drop(record)?, record.len_bytes())))
            .collect();
        dropped.next_bytes = regions.next().map(|(region, _)| region.offset_bytes);
        drop(regions);
        for (region, is_object, len_bytes) in some {
            if is_object {
                dropped.objects += 1;
                dropped.bytes += len_bytes;
                self.evict(region, EvictReason::Unmounted);
            } else {
                self.end(region, EndReason::Unmounted);
            }
        }
        dropped
    }

    /// Objects of a segment that homes know of, at most `limit` regions from `from_bytes` on, and where to go on; `None` if it is not mounted.
    pub fn movable(
        &self,
        now: Time,
        id: SegmentId,
        from_bytes: u64,
        limit: usize,
    ) -> Option<(Vec<Movable>, Option<u64>)> {
        let mut regions = self.segments.get(id)?.regions_from(from_bytes);
        let some = regions.by_ref().take(limit);
        let movable = some.filter_map(|(region, record)| {
            let object = record.object().filter(|object| object.is_told())?;
            let pin = match object.standing {
                Standing::Queued(_) => Pin::None,
                Standing::Soft { until } => Pin::Soft {
                    for_ms: until.since_ms(now).max(1),
                },
                Standing::Hard => Pin::Hard,
            };
            Some(Movable {
                name: Arc::clone(&object.name),
                key_hash: object.key_hash,
                version: object.version,
                region,
                len_bytes: record.len_bytes(),
                checksum: object.checksum,
                fingerprint: object.fingerprint.clone(),
                pin,
            })
        });
        let movable = movable.collect();
        Some((movable, regions.next().map(|(region, _)| region.offset_bytes)))
    }

    /// Whether exactly this object is here and does not go because another holder has it: the region in which it lies. Not if its segment drains, which
    /// it does until it is gone: so one that lets go began to drain before the one that it relied on, and of all the last one does not let go.
    pub fn stays(&self, key_hash: KeyHash, version: Version) -> Option<Generation> {
        let region = self.object_of(key_hash, version)?;
        let object = self.record(region).and_then(Record::object)?;
        let is_leaving = self.segments.get(region.segment)?.is_draining() && !is_planted(Bug::LeaversStay);
        (object.is_told() && !is_leaving).then_some(region.generation)
    }

    /// Another holder has answered that exactly this object [stays](Self::stays) there: it goes here, and the homes are to be told. False if it is not in
    /// this region any more, or homes are just being told of it.
    ///
    /// # Panics
    /// If its segment is active: then others may have let go because it stays here.
    pub fn moved(&mut self, now: Time, region: RegionId) -> bool {
        self.pass(now);
        let object = self.record(region).and_then(Record::object);
        let is_movable = object.is_some_and(Object::is_told);
        if is_movable {
            let segment = self.segments.get(region.segment).expect("its object was just seen");
            assert!(segment.is_draining(), "what moves lies in a draining segment");
            self.evict(region, EvictReason::Moved);
        }
        is_movable
    }

    /// Forgets a draining segment of which nothing is in use. Answers its table.
    ///
    /// # Errors
    /// [`UnmountError`]: then nothing was changed.
    pub fn unmount(&mut self, id: SegmentId) -> Result<T, UnmountError> {
        let segment = self.segments.get(id).ok_or(UnmountError::Unknown { segment: id })?;
        if !segment.is_draining() || segment.len() > 0 {
            return Err(UnmountError::InUse { segment: id });
        }
        let segment = self.segments.remove(id).expect("it was just seen");
        self.space.remove(segment.index());
        self.space_version += 1;
        Ok(segment.into_table())
    }

    /// Sums up the segments that take regions.
    fn count_capacity(&mut self) {
        let capacities = self.segments.active().map(Segment::capacity_bytes);
        (self.capacity_bytes, self.largest_segment_bytes) =
            capacities.fold((0, 0), |(sum, largest), bytes| (sum + bytes, largest.max(bytes)));
        self.space_version += 1;
    }
}

/// Whether what lies there is an object, if it may be dropped now, and not a reservation.
fn is_object_to_drop(record: &Record) -> Option<bool> {
    match &record.state {
        State::Sealed(object) if object.is_told() => Some(true),
        State::Reserved(reservation) if reservation.commit.is_none() => Some(false),
        State::Sealed(_) | State::Reserved(_) | State::Held => None,
    }
}

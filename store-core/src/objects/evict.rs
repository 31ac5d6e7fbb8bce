//! Eviction: objects go, the least used first, so that others have room.
//!
//! *In the background*, between two watermarks: [`Holder::evict_some`] lets objects go in the order of a [`SecondChance`]. *For a request* that no node has room for
//! otherwise: [`Holder::make_room`] lets those go whose going costs least of all that would make one hole for it.
//!
//! Nothing goes that is in use by a transfer of the owner's, of which the homes are just being told, or that is pinned. What is pinned softly goes for requests, if
//! nothing else makes a hole, and only so.

use super::hole::{Hole, HoleSearch, Run, cheaper};
use super::region::{Object, Record, RegionId, Standing, State};
use super::segment::{Segment, occupied_bytes};
use super::{Holder, SegmentTable};
use crate::eviction::SecondChance;
use crate::limits::{
    EVICTED_AT_ONCE_MAX, EVICTION_PASSES_AT_ONCE_MAX, HOLE_REGIONS_SEEN_MAX, HOLE_SEEDS_MAX, OBJECT_COST_BYTES,
    SOFT_PIN_WEIGHT, VISITED_WEIGHT,
};
use crate::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::ids::{Generation, KeyHash, NodeId, SegmentId, Version};
use tenon_protocol::member::HomeEventKind;
use tenon_protocol::message::Pin;
use tenon_protocol::name::ObjectName;

/// Between which shares of the capacity objects go in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// It begins when so many percent are in use.
    pub from_percent: u8,
    /// It ends when so many are.
    pub to_percent: u8,
}

/// Why an object has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictReason {
    /// The node was full up to a watermark.
    Watermark,
    /// A put had no room otherwise.
    Request,
    /// Its segment was unmounted.
    Unmounted,
    /// It is held elsewhere since.
    Moved,
}

/// An object that has gone: its homes are to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evicted {
    /// Its name.
    pub name: Arc<ObjectName>,
    /// The hash of that.
    pub key_hash: KeyHash,
    /// Which object of the key.
    pub version: Version,
    /// Where it was.
    pub generation: Generation,
    /// How long it was.
    pub len_bytes: u64,
    /// Why it has gone.
    pub reason: EvictReason,
    /// When it has gone.
    pub at: Time,
    /// How long it was there.
    pub age_ms: u64,
    /// How long it was not used.
    pub idle_ms: u64,
}

impl Evicted {
    /// What its homes are told. `holder` is this node.
    pub fn report(&self, holder: NodeId) -> HomeEventKind {
        HomeEventKind::Evicted {
            version: self.version,
            holder,
            generation: self.generation,
        }
    }
}

/// Objects by what keeps them from being evicted, with the bytes that they occupy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinAccount {
    /// Those that nothing keeps.
    pub evictable: Share,
    /// Those that are pinned softly.
    pub soft: Share,
    /// Those that are pinned.
    pub hard: Share,
}

impl PinAccount {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            evictable: self.evictable.plus(other.evictable),
            soft: self.soft.plus(other.soft),
            hard: self.hard.plus(other.hard),
        }
    }
}

/// Some objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub objects: u64,
    /// What they occupy.
    pub bytes: u64,
}

impl Share {
    fn plus(self, other: Self) -> Self {
        Self {
            objects: self.objects + other.objects,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// What is known of all objects of a holder for their eviction.
#[derive(Debug, Default)]
pub(super) struct Eviction {
    /// `None` if nothing is ever evicted.
    watermarks: Option<Watermarks>,
    queue: SecondChance<RegionId>,
    /// Soft pins by their ends.
    soft: BTreeSet<(Time, RegionId)>,
    /// The upper watermark was reached, and the lower one not yet.
    is_under_way: bool,
    /// How many objects were looked at since one has gone.
    passed: usize,
    /// What has gone and was not drained yet.
    evicted: Vec<Evicted>,
}

impl Eviction {
    pub(super) fn new(watermarks: Option<Watermarks>) -> Self {
        Self {
            watermarks,
            ..Self::default()
        }
    }

    fn admit(&mut self, now: Time, region: RegionId, pin: Pin) -> Standing {
        match pin {
            Pin::None => Standing::Queued(self.queue.insert(region)),
            Pin::Soft { for_ms } => {
                let until = now.after_ms(for_ms);
                self.soft.insert((until, region));
                Standing::Soft { until }
            }
            Pin::Hard => Standing::Hard,
        }
    }

    fn dismiss(&mut self, region: RegionId, standing: Standing) {
        match standing {
            Standing::Queued(place) => {
                self.queue.remove(place);
            }
            Standing::Soft { until } => {
                self.soft.remove(&(until, region));
            }
            Standing::Hard => {}
        }
    }

    /// The object is used.
    pub(super) fn mark(&mut self, standing: Standing) {
        if let Standing::Queued(place) = standing {
            self.queue.visit(place);
        }
    }

    /// What it costs that a region becomes free: the bytes that are lost, and some for each object, weighed by how new it is and whether it was
    /// used. `None` if it must not go.
    fn cost(&self, record: &Record, takes_soft: bool) -> Option<u128> {
        let object = record.object().filter(|object| may_go(record, object))?;
        let weight = match object.standing {
            Standing::Hard => return None,
            Standing::Soft { .. } if !takes_soft => return None,
            Standing::Soft { .. } => SOFT_PIN_WEIGHT,
            Standing::Queued(place) => {
                let used = if self.queue.is_visited(place) {
                    VISITED_WEIGHT
                } else {
                    1
                };
                (1 + self.queue.sixteenth(place)) * used
            }
        };
        let bytes = occupied_bytes(record.len_bytes()) + OBJECT_COST_BYTES;
        Some(u128::from(bytes) * u128::from(weight))
    }
}

/// Whether nobody needs the object to be there: neither a transfer, nor its put, which is under way.
fn may_go(record: &Record, object: &Object) -> bool {
    record.holds == 0 && object.is_told()
}

impl<T: SegmentTable> Holder<T> {
    /// Objects by what keeps them from being evicted.
    pub fn pin_account(&self) -> PinAccount {
        let pins = self.segments.iter().map(Segment::pins);
        pins.fold(PinAccount::default(), PinAccount::plus)
    }

    /// Bytes of objects that may be evicted for others, sooner or later.
    pub(super) fn evictable_bytes(&self) -> u64 {
        if self.eviction.watermarks.is_none() {
            return 0;
        }
        let pins = self.segments.active().map(Segment::pins);
        pins.map(|pins| pins.evictable.bytes + pins.soft.bytes).sum()
    }

    /// An object of so many bytes is there from now on, or is pinned otherwise.
    pub(super) fn admit(&mut self, region: RegionId, len_bytes: u64, pin: Pin) -> Standing {
        let standing = self.eviction.admit(self.now, region, pin);
        self.segment_of(region).count_pin(standing, len_bytes, true);
        standing
    }

    /// The object is not there any more, or about to be pinned otherwise.
    pub(super) fn dismiss(&mut self, region: RegionId, len_bytes: u64, standing: Standing) {
        self.eviction.dismiss(region, standing);
        self.segment_of(region).count_pin(standing, len_bytes, false);
    }

    /// The objects that were evicted since the last call, in order. Ask after every call that may evict.
    pub fn take_evicted(&mut self) -> Vec<Evicted> {
        std::mem::take(&mut self.eviction.evicted)
    }

    /// Pins an object, or takes its pin away. False if the key has none here. An object that is not pinned any more is evicted as if it had just come.
    pub fn pin(&mut self, now: Time, name: &ObjectName, pin: Pin) -> bool {
        self.pass(now);
        let Some(region) = self.names.get(name) else {
            return false;
        };
        self.repin(region, pin);
        true
    }

    /// Marks an object as used. False if the key has none here.
    pub fn touch(&mut self, now: Time, name: &ObjectName) -> bool {
        self.pass(now);
        let region = self.names.get(name);
        let object = region.and_then(|region| self.record_mut(region)?.object_mut());
        let Some(object) = object else { return false };
        object.used_at = now;
        let standing = object.standing;
        self.eviction.mark(standing);
        true
    }

    fn repin(&mut self, region: RegionId, pin: Pin) {
        let record = self.record(region).expect("objects are recorded");
        let len_bytes = record.len_bytes();
        let standing = record.object().expect("only objects are pinned").standing;
        self.dismiss(region, len_bytes, standing);
        let standing = self.admit(region, len_bytes, pin);
        let object = self.record_mut(region).and_then(Record::object_mut);
        object.expect("it was just seen").standing = standing;
    }

    /// Takes soft pins away that have ended.
    pub(super) fn end_pins(&mut self) {
        while let Some(&(until, region)) = self.eviction.soft.first()
            && until <= self.now
        {
            self.repin(region, Pin::None);
        }
    }

    /// Lets some objects go if the node is too full; false once it is not, or nothing more may go. Call it until then, and let others in between: a call
    /// evicts at most [`EVICTED_AT_ONCE_MAX`] objects.
    pub fn evict_some(&mut self, now: Time) -> bool {
        self.pass(now);
        let Some(Watermarks { to_percent, .. }) = self.eviction.watermarks else {
            return false;
        };
        if !self.eviction.is_under_way && self.is_too_full() {
            self.eviction.is_under_way = true;
            self.eviction.passed = 0;
        }
        let mut passes = EVICTION_PASSES_AT_ONCE_MAX;
        for _ in 0..EVICTED_AT_ONCE_MAX {
            if !self.is_used_beyond(to_percent) {
                self.eviction.is_under_way = false;
            }
            if !self.eviction.is_under_way {
                break;
            }
            let before = passes;
            let segments = &self.segments;
            let is_free_to_go = |region: &RegionId| {
                let segment = segments.get(region.segment).expect("regions lie in mounted segments");
                let record = segment.get(*region).expect("what is queued is recorded");
                // What goes from a segment that takes nothing makes room for nobody.
                !segment.is_draining() && record.object().is_some_and(|object| may_go(record, object))
            };
            let found = self.eviction.queue.candidate(&mut passes, is_free_to_go);
            let Some((_, region)) = found else {
                self.eviction.passed += before - passes;
                // The first round takes marks away, the second one finds that nothing may go.
                self.eviction.is_under_way = self.eviction.passed < 2 * self.eviction.queue.len();
                break;
            };
            self.eviction.passed = 0;
            self.evict(region, EvictReason::Watermark);
        }
        self.eviction.is_under_way
    }

    /// Whether [`Self::evict_some`] has something to do.
    pub fn is_too_full(&self) -> bool {
        let watermarks = self.eviction.watermarks;
        watermarks.is_some_and(|Watermarks { from_percent, .. }| self.is_used_up_to(from_percent))
    }

    fn is_used_up_to(&self, percent: u8) -> bool {
        let used_bytes = self.capacity_bytes - self.space.summary().free_bytes;
        u128::from(used_bytes) * 100 >= u128::from(self.capacity_bytes) * u128::from(percent) && used_bytes > 0
    }

    fn is_used_beyond(&self, percent: u8) -> bool {
        let used_bytes = self.capacity_bytes - self.space.summary().free_bytes;
        u128::from(used_bytes) * 100 > u128::from(self.capacity_bytes) * u128::from(percent)
    }

    /// Makes one hole for an object of this length where that costs least. False if no eviction makes one: then nothing has gone.
    pub fn make_room(&mut self, now: Time, len_bytes: u64) -> bool {
        self.pass(now);
        if self.eviction.watermarks.is_none() || len_bytes == 0 || len_bytes > self.largest_segment_bytes {
            return false;
        }
        let needed_bytes = occupied_bytes(len_bytes);
        let Some((segment, hole)) = self.cheapest_hole(needed_bytes) else {
            return false;
        };
        let regions = self.mounted(segment).regions_from(hole.start_bytes);
        let in_the_way = regions.take_while(|(region, _)| region.offset_bytes < hole.end_bytes);
        let in_the_way: Vec<RegionId> = in_the_way.map(|(region, _)| region).collect();
        for region in in_the_way {
            self.evict(region, EvictReason::Request);
        }
        true
    }

    /// Of few regions the cheapest hole of all. Of many the cheapest around those objects that are to go next, and if there is none, of all.
    fn cheapest_hole(&self, needed_bytes: u64) -> Option<(SegmentId, Hole)> {
        let regions: usize = self.segments.iter().map(Segment::len).sum();
        let near = if regions > HOLE_REGIONS_SEEN_MAX {
            self.hole_near_the_oldest(needed_bytes)
        } else {
            None
        };
        near.or_else(|| self.hole_anywhere(needed_bytes, false))
            .or_else(|| self.hole_anywhere(needed_bytes, true))
    }

    fn hole_anywhere(&self, needed_bytes: u64, takes_soft: bool) -> Option<(SegmentId, Hole)> {
        let large = self.segments.active().filter(|segment| {
            let free_bytes = self.free_of(segment).free_bytes;
            free_bytes + segment.sealed_bytes() >= needed_bytes
        });
        let holes = large.filter_map(|segment| {
            let (hole, _) = self.hole_within(segment, needed_bytes, 0, u64::MAX, takes_soft);
            Some((segment.id(), hole?))
        });
        holes.min_by_key(|(_, hole)| hole.cost)
    }

    fn hole_near_the_oldest(&self, needed_bytes: u64) -> Option<(SegmentId, Hole)> {
        let queue = &self.eviction.queue;
        let next = queue.oldest_first().take(EVICTION_PASSES_AT_ONCE_MAX);
        let unused = next.filter(|(place, _)| !queue.is_visited(*place));
        let mut cheapest: Option<(SegmentId, Hole)> = None;
        let mut seen = 0;
        for (_, region) in unused.take(HOLE_SEEDS_MAX) {
            let from_bytes = region.offset_bytes.saturating_sub(needed_bytes);
            let to_bytes = region.offset_bytes.saturating_add(2 * needed_bytes);
            let segment = self.mounted(region.segment);
            if segment.is_draining() {
                continue;
            }
            let (hole, regions) = self.hole_within(segment, needed_bytes, from_bytes, to_bytes, false);
            if let Some(hole) = hole
                && cheaper(cheapest.map(|(_, known)| known), hole) == Some(hole)
            {
                cheapest = Some((region.segment, hole));
            }
            seen += regions;
            if seen >= HOLE_REGIONS_SEEN_MAX {
                break;
            }
        }
        cheapest
    }

    /// The cheapest hole among the runs of a segment that begin within a range, and how many regions were looked at.
    fn hole_within(
        &self,
        segment: &Segment<T>,
        needed_bytes: u64,
        from_bytes: u64,
        to_bytes: u64,
        takes_soft: bool,
    ) -> (Option<Hole>, usize) {
        let free = self.free_of(segment);
        let end_bytes = to_bytes.min(free.capacity_bytes);
        let mut search = HoleSearch::new(needed_bytes);
        let mut at_bytes = segment.run_start(from_bytes);
        let mut seen = 0;
        let free_run = |start_bytes, end_bytes: u64| Run {
            start_bytes,
            len_bytes: end_bytes - start_bytes,
            cost: Some(0),
        };
        for (region, record) in segment.regions_from(at_bytes) {
            if region.offset_bytes >= end_bytes {
                break;
            }
            if region.offset_bytes > at_bytes {
                search.push(free_run(at_bytes, region.offset_bytes));
            }
            let len_bytes = occupied_bytes(record.len_bytes());
            search.push(Run {
                start_bytes: region.offset_bytes,
                len_bytes,
                cost: self.eviction.cost(record, takes_soft),
            });
            at_bytes = region.offset_bytes + len_bytes;
            seen += 1;
        }
        if at_bytes < end_bytes {
            search.push(free_run(at_bytes, end_bytes));
        }
        (search.finish(free.slots_used < free.slots), seen)
    }

    /// Drops an object of which the homes are to be told.
    pub(super) fn evict(&mut self, region: RegionId, reason: EvictReason) {
        let len_bytes = self.record(region).expect("objects are recorded").len_bytes();
        let object = self.drop_region(region);
        self.eviction.evicted.push(Evicted {
            name: object.name,
            key_hash: object.key_hash,
            version: object.version,
            generation: region.generation,
            len_bytes,
            reason,
            at: self.now,
            age_ms: self.now.since_ms(object.sealed_at),
            idle_ms: self.now.since_ms(object.used_at),
        });
    }

    /// Ends an object that nothing follows under its key.
    pub(super) fn drop_region(&mut self, region: RegionId) -> Box<Object> {
        let State::Sealed(object) = self.retire(region) else {
            unreachable!("objects are sealed");
        };
        self.by_hash.remove(&object.key_hash);
        self.names.remove(&object.name);
        object
    }

    /// Panics if what is known for eviction is not what there is. O(n).
    pub(super) fn check_eviction(&self) {
        self.eviction.queue.check_invariants();
        let (mut queued, mut soft) = (0, 0);
        for segment in self.segments.iter() {
            let mut account = PinAccount::default();
            for (region, record) in segment.regions() {
                let Some(object) = record.object() else { continue };
                let share = match object.standing {
                    Standing::Queued(_) => {
                        queued += 1;
                        &mut account.evictable
                    }
                    Standing::Soft { until } => {
                        soft += 1;
                        assert!(self.eviction.soft.contains(&(until, region)), "a soft pin never ends");
                        &mut account.soft
                    }
                    Standing::Hard => &mut account.hard,
                };
                share.objects += 1;
                share.bytes += occupied_bytes(record.len_bytes());
            }
            assert_eq!(account, segment.pins(), "the account of pins is wrong");
        }
        assert_eq!((queued, soft), (self.eviction.queue.len(), self.eviction.soft.len()));
    }
}

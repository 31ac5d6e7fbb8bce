//! What is in use of one mounted segment: its regions, and the table that describes them.

use super::evict::PinAccount;
use super::region::{Record, RegionId, Standing, State};
use super::space::{FreeOfSegment, Taken};
use super::{SealPlan, SegmentTable};
use crate::limits::ALIGNMENT_BYTES_MIN;
use std::collections::BTreeMap;
use tenon_protocol::ids::{Generation, SegmentId};
use tenon_protocol::message::SpaceAccount;

/// Occupied bytes and numbers of regions, by what they are used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Use {
    sealed_bytes: u64,
    reserved_bytes: u64,
    held_bytes: u64,
    objects: u64,
    reservations: u64,
}

/// A mounted segment.
#[derive(Debug)]
pub(super) struct Segment<T> {
    id: SegmentId,
    /// Where it stands in the space of the node.
    index: usize,
    capacity_bytes: u64,
    /// It takes no further regions.
    is_draining: bool,
    table: T,
    /// By offset. Each is allocated, has a slot of its own, and does not overlap another.
    regions: BTreeMap<u64, Record>,
    in_use: Use,
    /// The owner's own transfers that are under way in its regions.
    transfers: u64,
    /// What keeps its objects from being evicted.
    pins: PinAccount,
    /// How often a region was taken into use, moved on to another state or was given up.
    changes: u64,
}

impl<T: SegmentTable> Segment<T> {
    /// A segment of which nothing is in use.
    pub(super) fn new(id: SegmentId, index: usize, capacity_bytes: u64, table: T) -> Self {
        Self {
            id,
            index,
            capacity_bytes,
            is_draining: false,
            table,
            regions: BTreeMap::new(),
            in_use: Use::default(),
            transfers: 0,
            pins: PinAccount::default(),
            changes: 0,
        }
    }

    pub(super) fn id(&self) -> SegmentId {
        self.id
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(super) fn begin_drain(&mut self) {
        self.is_draining = true;
    }

    pub(super) fn into_table(self) -> T {
        self.table
    }

    /// Makes what was taken from this segment a region in use.
    pub(super) fn adopt(&mut self, taken: Taken, generation: Generation, state: State) -> RegionId {
        let offset_bytes = taken.region.offset_bytes();
        let record = Record {
            region: taken.region,
            slot: taken.slot,
            generation,
            holds: 0,
            state,
        };
        self.count(&record, true);
        let previous = self.regions.insert(offset_bytes, record);
        assert!(previous.is_none(), "the allocator gave a region that is in use");
        RegionId {
            segment: self.id,
            offset_bytes,
            generation,
        }
    }

    /// The region, if this very use of it is not over.
    pub(super) fn get(&self, id: RegionId) -> Option<&Record> {
        self.regions
            .get(&id.offset_bytes)
            .filter(|record| record.generation == id.generation)
    }

    /// See [`Self::get`]. The state is changed by [`Self::enter`] only.
    pub(super) fn get_mut(&mut self, id: RegionId) -> Option<&mut Record> {
        self.regions
            .get_mut(&id.offset_bytes)
            .filter(|record| record.generation == id.generation)
    }

    /// The region that has the byte at `offset_bytes`, or may have it: the last one that begins there or before.
    pub(super) fn at_or_before(&mut self, offset_bytes: u64) -> Option<&mut Record> {
        self.regions
            .range_mut(..=offset_bytes)
            .next_back()
            .map(|(_, record)| record)
    }

    /// Moves a region on to another state, and the account with it. Answers the state before.
    ///
    /// # Panics
    /// If this use of the region is over.
    pub(super) fn enter(&mut self, id: RegionId, state: State) -> State {
        let mut record = self.regions.remove(&id.offset_bytes).expect("a region in use");
        assert_eq!(record.generation, id.generation, "this use of the region is over");
        self.count(&record, false);
        let before = std::mem::replace(&mut record.state, state);
        self.count(&record, true);
        self.regions.insert(id.offset_bytes, record);
        before
    }

    /// Describes the region's object in the table.
    pub(super) fn write_table(&mut self, plan: &SealPlan) {
        self.table.seal(plan);
    }

    /// Ends this use of a region: an object's descriptor is made to describe nothing, then the bytes are to be given
    /// back, or held until the transfers under way are over. Answers the state before, and what is to be given back.
    ///
    /// # Panics
    /// If this use of the region is over.
    pub(super) fn retire(&mut self, id: RegionId) -> (State, Option<Taken>) {
        let before = self.enter(id, State::Held);
        let record = &self.regions[&id.offset_bytes];
        if matches!(before, State::Sealed(_)) {
            self.table.invalidate(record.slot);
        }
        (before, self.take_unused(id))
    }

    /// A transfer in a region was counted there.
    pub(super) fn count_transfer(&mut self) {
        self.transfers += 1;
    }

    /// One transfer in the region is over. Answers what is to be given back with it.
    pub(super) fn release(&mut self, id: RegionId) -> Option<Taken> {
        self.transfers -= 1;
        let record = self.get_mut(id).expect("a region with a transfer under way");
        record.holds = record.holds.checked_sub(1).expect("a transfer under way was counted");
        self.take_unused(id)
    }

    fn take_unused(&mut self, id: RegionId) -> Option<Taken> {
        let is_unused = self
            .get(id)
            .is_some_and(|record| record.holds == 0 && matches!(record.state, State::Held));
        if !is_unused {
            return None;
        }
        let record = self.regions.remove(&id.offset_bytes).expect("it was just found");
        self.count(&record, false);
        Some(Taken {
            region: record.region,
            slot: record.slot,
        })
    }

    /// Every change of what the regions are used for is counted here.
    fn count(&mut self, record: &Record, is_added: bool) {
        self.changes += 1;
        let occupied_bytes = occupied_bytes(record.len_bytes());
        let in_use = &mut self.in_use;
        let (bytes, regions) = match record.state {
            State::Reserved(_) => (&mut in_use.reserved_bytes, Some(&mut in_use.reservations)),
            State::Sealed(_) => (&mut in_use.sealed_bytes, Some(&mut in_use.objects)),
            State::Held => (&mut in_use.held_bytes, None),
        };
        let change = |total: &mut u64, by| *total = if is_added { *total + by } else { *total - by };
        change(bytes, occupied_bytes);
        if let Some(regions) = regions {
            change(regions, 1);
        }
    }

    /// Grows with each change of what the segment is used for.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// How many regions are in use.
    pub(super) fn len(&self) -> usize {
        self.regions.len()
    }

    /// How many of them are reserved.
    pub(super) fn reservations(&self) -> u64 {
        self.in_use.reservations
    }

    /// The owner's own transfers that are under way.
    pub(super) fn transfers(&self) -> u64 {
        self.transfers
    }

    /// Its objects by what keeps them from being evicted.
    pub(super) fn pins(&self) -> PinAccount {
        self.pins
    }

    /// An object of so many bytes is kept so from now on, or not any more.
    pub(super) fn count_pin(&mut self, standing: Standing, len_bytes: u64, is_added: bool) {
        let share = match standing {
            Standing::Queued(_) => &mut self.pins.evictable,
            Standing::Soft { .. } => &mut self.pins.soft,
            Standing::Hard => &mut self.pins.hard,
        };
        let bytes = occupied_bytes(len_bytes);
        if is_added {
            share.objects += 1;
            share.bytes += bytes;
        } else {
            share.objects -= 1;
            share.bytes -= bytes;
        }
    }

    /// Bytes of regions with objects.
    pub(super) fn sealed_bytes(&self) -> u64 {
        self.in_use.sealed_bytes
    }

    /// Bytes of regions that hold nothing any more while transfers are under way in them.
    pub(super) fn held_bytes(&self) -> u64 {
        self.in_use.held_bytes
    }

    /// What the segment's payload bytes are used for, those included that are free.
    pub(super) fn account(&self, free: &FreeOfSegment, largest_free_bytes: u64) -> SpaceAccount {
        SpaceAccount {
            capacity_bytes: free.capacity_bytes,
            free_bytes: free.free_bytes,
            sealed_bytes: self.in_use.sealed_bytes,
            reserved_bytes: self.in_use.reserved_bytes,
            held_bytes: self.in_use.held_bytes,
            largest_free_bytes,
            objects: self.in_use.objects,
            reservations: self.in_use.reservations,
        }
    }

    /// Where the region or free run begins that has the byte at `offset_bytes`.
    pub(super) fn run_start(&self, offset_bytes: u64) -> u64 {
        let last = self.regions.range(..=offset_bytes).next_back();
        last.map_or(0, |(&start_bytes, record)| {
            let end_bytes = start_bytes + occupied_bytes(record.len_bytes());
            if end_bytes > offset_bytes {
                start_bytes
            } else {
                end_bytes
            }
        })
    }

    /// All regions in use, by offset.
    pub(super) fn regions(&self) -> impl Iterator<Item = (RegionId, &Record)> {
        self.regions_from(0)
    }

    /// Those that begin at `offset_bytes` or after.
    pub(super) fn regions_from(&self, offset_bytes: u64) -> impl Iterator<Item = (RegionId, &Record)> {
        self.regions.range(offset_bytes..).map(|(&offset_bytes, record)| {
            let id = RegionId {
                segment: self.id,
                offset_bytes,
                generation: record.generation,
            };
            (id, record)
        })
    }

    /// Panics if what is free, regions and account do not agree. O(n).
    pub(super) fn check_invariants(&self, free: &FreeOfSegment) {
        let account = self.account(free, 0);
        let used_bytes = account.sealed_bytes + account.reserved_bytes + account.held_bytes;
        assert_eq!(
            account.capacity_bytes,
            account.free_bytes + used_bytes,
            "segment {}: the account leaks",
            self.id
        );
        assert_eq!(
            free.slots_used as usize,
            self.regions.len(),
            "segment {}: a slot leaks",
            self.id
        );
        let mut slots: Vec<_> = self.regions.values().map(|record| record.slot).collect();
        slots.sort_unstable();
        assert!(
            slots.windows(2).all(|pair| pair[0] < pair[1]),
            "segment {}: a slot is used twice",
            self.id
        );
        let counted = |is_counted: fn(&State) -> bool| {
            let counted = self.regions.values().filter(|record| is_counted(&record.state));
            counted.map(|record| occupied_bytes(record.len_bytes())).sum::<u64>()
        };
        assert_eq!(
            counted(|state| matches!(state, State::Reserved(_))),
            account.reserved_bytes
        );
        assert_eq!(counted(|state| matches!(state, State::Sealed(_))), account.sealed_bytes);
        assert_eq!(counted(|state| matches!(state, State::Held)), account.held_bytes);
        let transfers: u64 = self.regions.values().map(|record| u64::from(record.holds)).sum();
        assert_eq!(transfers, self.transfers, "segment {}: a transfer leaks", self.id);
        assert_eq!(free.capacity_bytes, self.capacity_bytes);
        for (&offset_bytes, record) in &self.regions {
            assert_eq!(offset_bytes, record.region.offset_bytes());
            assert!(
                !matches!(record.state, State::Held) || record.holds > 0,
                "region {offset_bytes} is held by nobody"
            );
        }
    }
}

/// The bytes that a region of this length occupies.
pub(super) fn occupied_bytes(len_bytes: u64) -> u64 {
    len_bytes.next_multiple_of(ALIGNMENT_BYTES_MIN)
}

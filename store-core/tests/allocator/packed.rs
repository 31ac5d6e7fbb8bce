//! Segments under one index against naive models, one per segment, searched from end to end.

use std::cmp::Reverse;

use proptest::prelude::*;
use tenon_store_core::allocator::{
    AllocateError, AllocatorConfig, ConfigError, FreeError, PackedSegments, Region, Run, SegmentIndex,
};

use crate::model::Model;

/// One step of a run. Live regions and segments are chosen by any number, taken modulo how many there are.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Allocate(u64),
    Free(usize),
    Withdraw(usize),
    Remove(usize),
    Mount(u64, u32),
}

struct Twin {
    packed: PackedSegments,
    models: Vec<Model>,
    withdrawn: Vec<bool>,
    removed: Vec<bool>,
    scarce: Vec<bool>,
    /// Regions in use and the most that may be.
    regions: Vec<(u32, u32)>,
    clock: u64,
    live: Vec<(SegmentIndex, Region)>,
}

impl Twin {
    fn new() -> Self {
        Self {
            packed: PackedSegments::new(64).expect("a valid alignment"),
            models: Vec::new(),
            withdrawn: Vec::new(),
            removed: Vec::new(),
            scarce: Vec::new(),
            regions: Vec::new(),
            clock: 0,
            live: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate(len_bytes) => self.allocate(len_bytes),
            Operation::Free(number) if !self.live.is_empty() => {
                let (segment, region) = self.live.swap_remove(number % self.live.len());
                self.release(segment.0, region.offset_bytes());
                assert_eq!(self.packed.free(segment, region), Ok(()));
            }
            Operation::Withdraw(number) if !self.models.is_empty() => {
                let segment = number % self.models.len();
                if !self.removed[segment] {
                    self.packed.withdraw(SegmentIndex(segment));
                    self.withdrawn[segment] = true;
                }
            }
            Operation::Remove(number) if !self.models.is_empty() => self.remove(number % self.models.len()),
            Operation::Free(_) | Operation::Withdraw(_) | Operation::Remove(_) => {}
            Operation::Mount(capacity_bytes, regions_max) => self.mount(capacity_bytes, regions_max),
        }
        self.compare();
    }

    /// A segment gets a position that nobody has, if there is one; else the next.
    fn mount(&mut self, capacity_bytes: u64, regions_max: u32) {
        let segment = (self.packed.mount(capacity_bytes, regions_max))
            .expect("a segment that can be")
            .0;
        let model = Model::new(AllocatorConfig::new(capacity_bytes));
        if segment == self.models.len() {
            assert!(!self.removed.contains(&true), "a position stays empty");
            self.models.push(model);
            self.withdrawn.push(false);
            self.removed.push(false);
            self.scarce.push(false);
            self.regions.push((0, regions_max));
        } else {
            assert!(self.removed[segment], "a position is given twice");
            self.models[segment] = model;
            self.withdrawn[segment] = false;
            self.removed[segment] = false;
            self.scarce[segment] = false;
            self.regions[segment] = (0, regions_max);
        }
        self.on_clock(segment, Model::renew);
    }

    fn remove(&mut self, segment: usize) {
        if !self.removed[segment] && self.withdrawn[segment] && self.regions[segment].0 == 0 {
            self.packed.remove(SegmentIndex(segment));
            self.removed[segment] = true;
        }
    }

    /// Changes one model by the clock of all.
    fn on_clock(&mut self, segment: usize, change: impl FnOnce(&mut Model)) {
        let model = &mut self.models[segment];
        model.set_clock(self.clock);
        change(model);
        self.clock = model.clock();
    }

    fn occupy(&mut self, segment: usize, offset_bytes: u64, len_bytes: u64) {
        self.on_clock(segment, |model| model.occupy(offset_bytes, len_bytes));
        let (regions, regions_max) = &mut self.regions[segment];
        *regions += 1;
        if regions == regions_max && !std::mem::replace(&mut self.scarce[segment], true) {
            self.on_clock(segment, Model::renew);
        }
    }

    fn release(&mut self, segment: usize, offset_bytes: u64) {
        self.on_clock(segment, |model| model.release(offset_bytes));
        let (regions, regions_max) = &mut self.regions[segment];
        *regions -= 1;
        let has_plenty = *regions_max - *regions >= regions_max.div_ceil(8);
        if has_plenty && !self.withdrawn[segment] && std::mem::take(&mut self.scarce[segment]) {
            self.on_clock(segment, Model::renew);
        }
    }

    /// The free runs of the segments that `is_wanted` accepts and that serve requests, with their segments.
    fn free_runs<'a>(&'a self, is_wanted: impl Fn(usize) -> bool + 'a) -> impl Iterator<Item = (usize, Run)> + 'a {
        let serving = (self.models.iter().enumerate())
            .filter(move |&(segment, _)| !self.withdrawn[segment] && is_wanted(segment));
        let runs = serving.flat_map(|(segment, model)| model.runs().iter().map(move |&run| (segment, run)));
        runs.filter(|(_, run)| run.is_free)
    }

    fn has_room(&self, segment: usize) -> bool {
        self.regions[segment].0 < self.regions[segment].1
    }

    /// The tightest and among equals the youngest run of some segments; not that if it leaves a useless rest.
    fn tightest(&self, len_bytes: u64, is_wanted: impl Fn(usize) -> bool) -> Option<(usize, u64)> {
        let occupied_bytes = len_bytes.next_multiple_of(64);
        let tightest = |len_bytes: u64| {
            let fitting = self.free_runs(&is_wanted).filter(|(_, run)| run.len_bytes >= len_bytes);
            fitting.min_by_key(|&(segment, run)| (run.len_bytes, Reverse(self.models[segment].born(run.offset_bytes))))
        };
        let leaves_much =
            |&(segment, run): &(usize, Run)| self.models[segment].leaves_much(run.len_bytes, occupied_bytes.into());
        let roomier = tightest(occupied_bytes)
            .filter(leaves_much)
            .and_then(|_| tightest(2 * occupied_bytes));
        let chosen = roomier.or_else(|| tightest(occupied_bytes));
        chosen.map(|(segment, run)| (segment, run.offset_bytes))
    }

    /// The scarce segment to ask: that whose largest run is the smallest that suffices.
    fn tightest_scarce(&self, len_bytes: u64) -> Option<usize> {
        let asked = (0..self.models.len())
            .filter(|&segment| self.scarce[segment] && !self.withdrawn[segment] && self.has_room(segment));
        let fitting = asked.map(|segment| (self.models[segment].largest_free_bytes(), segment));
        let tightest = fitting.filter(|&(bytes, _)| bytes >= len_bytes).min();
        tightest.map(|(_, segment)| segment)
    }

    fn allocate(&mut self, len_bytes: u64) {
        let in_plenty = self.tightest(len_bytes, |segment| !self.scarce[segment]);
        let tightest = in_plenty.or_else(|| {
            let scarce = self.tightest_scarce(len_bytes)?;
            self.tightest(len_bytes, |segment| segment == scarce)
        });
        match self.packed.allocate(len_bytes) {
            Ok((segment, region)) => {
                assert_eq!(tightest, Some((segment.0, region.offset_bytes())));
                self.occupy(segment.0, region.offset_bytes(), len_bytes);
                self.live.push((segment, region));
            }
            Err(AllocateError::NoFit {
                len_bytes: named,
                free_bytes,
                largest_free_bytes,
            }) => {
                assert_eq!((named, tightest), (len_bytes, None));
                assert_eq!(
                    free_bytes,
                    self.free_runs(|_| true).map(|(_, run)| run.len_bytes).sum::<u64>()
                );
                assert_eq!(largest_free_bytes, self.largest_bytes(|segment| self.has_room(segment)));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn largest_bytes(&self, is_wanted: impl Fn(usize) -> bool) -> u64 {
        self.free_runs(is_wanted)
            .map(|(_, run)| run.len_bytes)
            .max()
            .unwrap_or(0)
    }

    fn compare(&self) {
        self.packed.check_invariants();
        assert_eq!(
            (self.packed.largest_free_bytes(), self.packed.largest_exhausted_bytes()),
            (
                self.largest_bytes(|segment| self.has_room(segment)),
                self.largest_bytes(|segment| !self.has_room(segment))
            )
        );
        let exact = |segment| self.largest_bytes(|other| other == segment);
        let exact: Vec<u64> = (0..self.models.len()).map(exact).collect();
        assert_eq!(
            self.packed.segments(),
            self.removed.iter().filter(|is_removed| !**is_removed).count()
        );
        assert_eq!(self.packed.largest_free_upper_bounds_bytes(usize::MAX), exact);
        for visits_max in [0, 1, 3] {
            let bounds = self.packed.largest_free_upper_bounds_bytes(visits_max);
            assert!(bounds.iter().zip(&exact).all(|(bound, exact)| bound >= exact));
        }
        for (number, model) in self.models.iter().enumerate() {
            let segment = SegmentIndex(number);
            if self.removed[number] {
                assert_eq!(self.packed.runs(segment).count(), 0);
                assert_eq!(self.packed.segment_capacity_bytes(segment), 0);
                continue;
            }
            assert_eq!(self.packed.runs(segment).collect::<Vec<Run>>(), model.runs());
            assert_eq!(self.packed.segment_free_bytes(segment), model.free_bytes());
            assert_eq!(self.packed.segment_regions(segment), self.regions[number].0);
        }
    }
}

/// All lengths are `scale` times as long.
fn operations(scale: u64) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        12 => prop_oneof![1..400_u64, 1..4000_u64, Just(64), Just(640)].prop_map(move |len| Operation::Allocate(scale * len)),
        8 => any::<usize>().prop_map(Operation::Free),
        1 => (64..16_384_u64, prop_oneof![1..20_u32, Just(u32::MAX)])
            .prop_map(move |(capacity, regions_max)| Operation::Mount(scale * capacity, regions_max)),
        1 => any::<usize>().prop_map(Operation::Withdraw),
        2 => any::<usize>().prop_map(Operation::Remove),
    ];
    prop::collection::vec(operation, 1..300)
}

proptest! {
    #[test]
    fn a_request_gets_the_tightest_free_region_of_all_segments(
        regions_max in prop::sample::select(vec![5, 17, u32::MAX]),
        (scale, operations) in prop::sample::select(vec![1, 1 << 13]).prop_flat_map(|scale| (Just(scale), operations(scale))),
    ) {
        let mut twin = Twin::new();
        (0..3).for_each(|_| twin.apply(Operation::Mount(scale * 8192, regions_max)));
        operations.into_iter().for_each(|operation| twin.apply(operation));
    }
}

#[test]
fn neighbours_of_two_segments_are_never_merged() {
    let mut twin = Twin::new();
    (0..3).for_each(|_| twin.apply(Operation::Mount(128, u32::MAX)));
    (0..6).for_each(|_| twin.apply(Operation::Allocate(64)));
    (0..6).for_each(|_| twin.apply(Operation::Free(0)));
    assert_eq!((twin.packed.largest_free_bytes(), twin.packed.free_bytes()), (128, 384));
    assert_eq!(twin.packed.segments(), 3);
    assert_eq!(twin.packed.segment_capacity_bytes(SegmentIndex(2)), 128);
}

#[test]
fn a_thousand_segments_that_came_and_went_leave_no_record() {
    let mut packed = PackedSegments::new(64).unwrap();
    packed.mount(4096, 8).unwrap();
    let mut memory_bytes = Vec::new();
    for _ in 0..1000 {
        let segment = packed.mount(1 << 20, 8).unwrap();
        let (of, region) = packed.allocate(1 << 19).unwrap();
        assert_eq!(of, segment, "nothing else holds it");
        packed.withdraw(segment);
        packed.free(segment, region).unwrap();
        packed.remove(segment);
        packed.check_invariants();
        memory_bytes.push(packed.memory_bytes());
    }
    assert_eq!(memory_bytes[0], memory_bytes[999]);
    assert_eq!((packed.segments(), packed.free_bytes()), (1, 4096));
}

#[test]
fn a_region_is_not_freed_in_another_segment() {
    let mut packed = PackedSegments::new(64).unwrap();
    let segments = [0, 1].map(|_| packed.mount(4096, u32::MAX).unwrap());
    let (segment, region) = packed.allocate(100).unwrap();
    let other = segments
        .into_iter()
        .find(|&other| other != segment)
        .expect("two segments");
    let refused = FreeError::NotAllocated {
        offset_bytes: 0,
        len_bytes: 100,
    };
    assert_eq!(packed.free(other, region), Err(refused));
    packed.check_invariants();
    assert_eq!(packed.occupied_bytes(100), 128);
}

#[test]
fn a_segment_without_a_region_to_spare_serves_again_as_soon_as_one_is_given_back() {
    let mut twin = Twin::new();
    twin.apply(Operation::Mount(64 * 64, 20));
    twin.apply(Operation::Mount(256, 20));
    // All regions of the first segment are in use, most of its bytes are not.
    (0..24).for_each(|_| twin.apply(Operation::Allocate(64)));
    assert_eq!([0, 1].map(|at| twin.packed.segment_regions(SegmentIndex(at))), [20, 4]);
    twin.apply(Operation::Allocate(1024));
    assert_eq!(twin.live.len(), 24);
    for _ in 0..8 {
        let (first, _) = (twin.live.iter().enumerate())
            .find(|(_, (segment, _))| segment.0 == 0)
            .expect("regions of the first segment");
        twin.apply(Operation::Free(first));
        twin.apply(Operation::Allocate(1024));
        assert_eq!(twin.packed.segment_regions(SegmentIndex(0)), 20);
        let last = twin.live.len() - 1;
        twin.apply(Operation::Free(last));
        twin.apply(Operation::Allocate(64));
    }
    assert!(twin.packed.memory_bytes() > 0);
}

#[test]
fn segments_that_cannot_be_are_named() {
    assert!(matches!(
        PackedSegments::new(100),
        Err(ConfigError::Alignment { alignment_bytes: 100 })
    ));
    let mut packed = PackedSegments::new(4096).unwrap();
    let too_small = ConfigError::CapacityTooSmall {
        capacity_bytes: 4095,
        alignment_bytes: 4096,
    };
    assert_eq!(packed.mount(4095, 1), Err(too_small));
    assert_eq!(packed.mount(4096, 0), Err(ConfigError::NoRegions));
    packed.mount(u64::MAX, 1).unwrap();
    assert_eq!(
        packed.mount(4096, 1),
        Err(ConfigError::TooMuch { capacity_bytes: 4096 })
    );
    let (_, region) = packed.allocate(u64::MAX - 4095).unwrap();
    assert_eq!(region.len_bytes(), u64::MAX - 4095);
    assert_eq!(
        packed.allocate(1),
        Err(AllocateError::NoFit {
            len_bytes: 1,
            free_bytes: 0,
            largest_free_bytes: 0
        })
    );
}

//! Segments under one index against naive models, one per segment, searched from end to end.

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
    Mount(u64),
}

struct Twin {
    packed: PackedSegments,
    models: Vec<Model>,
    withdrawn: Vec<bool>,
    live: Vec<(SegmentIndex, Region)>,
}

impl Twin {
    fn new() -> Self {
        Self {
            packed: PackedSegments::new(64).expect("a valid alignment"),
            models: Vec::new(),
            withdrawn: Vec::new(),
            live: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate(len_bytes) => self.allocate(len_bytes),
            Operation::Free(number) if !self.live.is_empty() => {
                let (segment, region) = self.live.swap_remove(number % self.live.len());
                self.models[segment.0].release(region.offset_bytes());
                assert_eq!(self.packed.free(segment, region), Ok(()));
            }
            Operation::Withdraw(number) if !self.models.is_empty() => {
                let segment = number % self.models.len();
                self.packed.withdraw(SegmentIndex(segment));
                self.withdrawn[segment] = true;
            }
            Operation::Free(_) | Operation::Withdraw(_) => {}
            Operation::Mount(capacity_bytes) => {
                let segment = self.packed.mount(capacity_bytes).expect("room for a segment");
                assert_eq!(segment.0, self.models.len());
                self.models.push(Model::new(AllocatorConfig::new(capacity_bytes)));
                self.withdrawn.push(false);
            }
        }
        self.compare();
    }

    /// The free runs of the segments that serve requests, with their segments.
    fn free_runs(&self) -> impl Iterator<Item = (usize, Run)> {
        let serving = (self.models.iter().enumerate()).filter(|&(segment, _)| !self.withdrawn[segment]);
        let runs = serving.flat_map(|(segment, model)| model.runs().iter().map(move |&run| (segment, run)));
        runs.filter(|(_, run)| run.is_free)
    }

    fn allocate(&mut self, len_bytes: u64) {
        let fitting = self.free_runs().filter(|(_, run)| run.len_bytes >= len_bytes);
        let tightest = fitting.min_by_key(|&(segment, run)| (run.len_bytes, segment, run.offset_bytes));
        match self.packed.allocate(len_bytes) {
            Ok((segment, region)) => {
                let at = tightest.map(|(segment, run)| (segment, run.offset_bytes));
                assert_eq!(at, Some((segment.0, region.offset_bytes())));
                self.models[segment.0].occupy(region.offset_bytes(), len_bytes);
                self.live.push((segment, region));
            }
            Err(AllocateError::NoFit {
                len_bytes: named,
                free_bytes,
                largest_free_bytes,
            }) => {
                assert_eq!((named, tightest), (len_bytes, None));
                let lengths = || self.free_runs().map(|(_, run)| run.len_bytes);
                assert_eq!(
                    (free_bytes, largest_free_bytes),
                    (lengths().sum(), lengths().max().unwrap_or(0))
                );
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn compare(&self) {
        self.packed.check_invariants();
        for (number, model) in self.models.iter().enumerate() {
            let segment = SegmentIndex(number);
            assert_eq!(self.packed.runs(segment).collect::<Vec<Run>>(), model.runs());
            assert_eq!(self.packed.segment_free_bytes(segment), model.free_bytes());
        }
    }
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        12 => prop_oneof![1..400_u64, 1..4000_u64, Just(64), Just(640)].prop_map(Operation::Allocate),
        8 => any::<usize>().prop_map(Operation::Free),
        1 => (64..16_384_u64).prop_map(Operation::Mount),
        1 => any::<usize>().prop_map(Operation::Withdraw),
    ];
    prop::collection::vec(operation, 1..300)
}

proptest! {
    #[test]
    fn a_request_gets_the_tightest_free_region_of_all_segments(operations in operations()) {
        let mut twin = Twin::new();
        (0..3).for_each(|_| twin.apply(Operation::Mount(8192)));
        operations.into_iter().for_each(|operation| twin.apply(operation));
    }
}

#[test]
fn neighbours_of_two_segments_are_never_merged() {
    let mut twin = Twin::new();
    (0..3).for_each(|_| twin.apply(Operation::Mount(128)));
    (0..6).for_each(|_| twin.apply(Operation::Allocate(64)));
    (0..6).for_each(|_| twin.apply(Operation::Free(0)));
    assert_eq!((twin.packed.largest_free_bytes(), twin.packed.free_bytes()), (128, 384));
    assert_eq!(twin.packed.segments(), 3);
    assert_eq!(twin.packed.segment_capacity_bytes(SegmentIndex(2)), 128);
}

#[test]
fn a_region_is_not_freed_in_another_segment() {
    let mut packed = PackedSegments::new(64).unwrap();
    let segments = [0, 1].map(|_| packed.mount(4096).unwrap());
    let (segment, region) = packed.allocate(100).unwrap();
    assert_eq!(segment, segments[0]);
    let refused = FreeError::NotAllocated {
        offset_bytes: 0,
        len_bytes: 100,
    };
    assert_eq!(packed.free(segments[1], region), Err(refused));
    packed.check_invariants();
    assert_eq!(packed.occupied_bytes(100), 128);
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
    assert_eq!(packed.mount(4095), Err(too_small));
    packed.mount(u64::MAX).unwrap();
    assert_eq!(packed.mount(4096), Err(ConfigError::TooMuch { capacity_bytes: 4096 }));
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

//! The region allocator against its naive model: chosen cases and random runs drive both by the same operations.

mod model;
mod operation;
mod packed;

use proptest::prelude::*;
use tenon_store_core::allocator::{AllocateError, AllocatorConfig, Classes, ConfigError, FreeError, RegionAllocator};

use operation::{Operation, Pair};

const KIB: u64 = 1024;

fn tight(capacity_bytes: u64) -> AllocatorConfig {
    AllocatorConfig::new(capacity_bytes)
}

fn peer(capacity_bytes: u64) -> AllocatorConfig {
    AllocatorConfig {
        classes: Classes::Peer,
        ..tight(capacity_bytes)
    }
}

/// Lengths at every edge: none, below and above an alignment, ordinary, near the capacity, impossible.
fn lengths(capacity_bytes: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        4 => 1..=200_u64,
        4 => prop_oneof![Just(64), Just(4096), Just(4097), Just(12_345)],
        4 => 1..=capacity_bytes / 4,
        1 => capacity_bytes - 100..=capacity_bytes + 100,
        1 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 62), Just(1 << 63), Just((1 << 63) + 1)],
    ]
}

fn operations(capacity_bytes: u64) -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        12 => lengths(capacity_bytes).prop_map(Operation::Allocate),
        8 => any::<usize>().prop_map(Operation::Free),
        1 => (1_usize..5).prop_map(Operation::FreeAllBut),
        1 => (1..1000_u64).prop_map(Operation::FreeForeign),
    ];
    prop::collection::vec(operation, 1..200)
}

fn configurations() -> impl Strategy<Value = AllocatorConfig> {
    let capacities = prop_oneof![Just(256 * KIB), Just(256 * KIB + 63), 4096..512 * KIB, Just(64 << 20)];
    let alignments = prop_oneof![Just(64), Just(128), Just(4096)];
    let classes = prop_oneof![3 => Just(Classes::Tight), 1 => Just(Classes::Peer)];
    (capacities, alignments, classes).prop_map(|(capacity_bytes, alignment_bytes, classes)| AllocatorConfig {
        capacity_bytes,
        alignment_bytes,
        classes,
    })
}

proptest! {
    #[test]
    fn allocator_and_model_agree_after_every_operation(
        (config, operations) in configurations().prop_flat_map(|config| (Just(config), operations(config.capacity_bytes)))
    ) {
        let mut pair = Pair::new(config);
        for operation in operations {
            pair.apply(operation);
        }
    }

    #[test]
    fn many_holes_of_few_sizes_are_found_as_the_model_finds_them(
        sizes in prop::collection::vec(1..40_u64, 300),
        frees in prop::collection::vec(any::<usize>(), 150),
        again in prop::collection::vec(1..40_u64, 200),
    ) {
        let mut pair = Pair::new(tight(64 * 40 * 300));
        sizes.iter().for_each(|units| pair.apply(Operation::Allocate(units * 64)));
        frees.iter().for_each(|number| pair.apply(Operation::Free(*number)));
        again.iter().for_each(|units| pair.apply(Operation::Allocate(units * 64)));
        pair.apply(Operation::FreeAllBut(usize::MAX));
        pair.apply(Operation::Free(0));
    }
}

#[test]
fn a_fully_fragmented_segment_says_that_it_holds_one_unit() {
    for config in [tight(256 * 64), peer(256 * 64)] {
        let mut pair = Pair::new(config);
        (0..256).for_each(|_| pair.apply(Operation::Allocate(64)));
        pair.apply(Operation::Allocate(1));
        pair.apply(Operation::FreeAllBut(2));
        assert_eq!(pair.live(), 128);
        pair.apply(Operation::Allocate(65));
        assert_eq!(pair.live(), 128);
        (0..128).for_each(|_| pair.apply(Operation::Allocate(64)));
        assert_eq!(pair.live(), 256);
    }
}

#[test]
fn lengths_that_cannot_be_are_refused_in_any_state() {
    for config in [tight(1000), peer(1000)] {
        let mut pair = Pair::new(config);
        for _ in 0..2 {
            for len_bytes in [0, 961, 1000, 1001, 1 << 63, u64::MAX] {
                pair.apply(Operation::Allocate(len_bytes));
                assert_eq!(pair.live(), 0, "{len_bytes} B from 960 B");
            }
            pair.apply(Operation::Allocate(960));
            assert_eq!(pair.live(), 1);
            pair.apply(Operation::Allocate(1));
            pair.apply(Operation::Free(0));
        }
    }
}

#[test]
fn a_capacity_beyond_the_last_aligned_byte_is_not_handed_out() {
    let allocator = RegionAllocator::new(tight(1000)).unwrap();
    assert_eq!(allocator.capacity_bytes(), 960);
    assert_eq!(allocator.hint().largest_free_upper_bound_bytes(), 960);
}

#[test]
fn configurations_that_cannot_be_are_named() {
    let with = |capacity_bytes, alignment_bytes, classes| {
        RegionAllocator::new(AllocatorConfig {
            capacity_bytes,
            alignment_bytes,
            classes,
        })
        .err()
    };
    for alignment_bytes in [0, 1, 32, 65, 96] {
        let error = ConfigError::Alignment { alignment_bytes };
        assert_eq!(with(1 << 20, alignment_bytes, Classes::Tight), Some(error));
    }
    let error = ConfigError::CapacityTooSmall {
        capacity_bytes: 4095,
        alignment_bytes: 4096,
    };
    assert_eq!(with(4095, 4096, Classes::Tight), Some(error));
    let capacity_bytes = 64 << 34;
    let error = ConfigError::CapacityTooLargeForPeer {
        capacity_bytes,
        classes: 257,
    };
    assert_eq!(with(capacity_bytes, 64, Classes::Peer), Some(error));
    assert_eq!(with(capacity_bytes - 1, 64, Classes::Peer), None);
    assert_eq!(with(u64::MAX, 64, Classes::Tight), None);
}

#[test]
fn the_largest_possible_segment_is_handed_out_whole() {
    let mut pair = Pair::new(tight(u64::MAX));
    pair.apply(Operation::Allocate(u64::MAX - 63));
    assert_eq!(pair.live(), 1);
    pair.apply(Operation::Allocate(1));
    pair.apply(Operation::Free(0));
}

#[test]
fn an_exact_fit_in_the_boundary_class_is_preferred_to_a_larger_region() {
    // The holes lie in one class: the search must not skip it, nor take the first of it.
    let mut allocator = RegionAllocator::new(tight(1 << 20)).unwrap();
    let holes = [100_096, 100_032, 100_160].map(|len_bytes| {
        let hole = allocator.allocate(len_bytes).unwrap();
        let wall = allocator.allocate(64).unwrap();
        (hole, wall)
    });
    let offset_bytes = holes[1].0.offset_bytes();
    let walls = holes.map(|(hole, wall)| {
        allocator.free(hole).unwrap();
        wall
    });
    assert_eq!(allocator.allocate(100_031).unwrap().offset_bytes(), offset_bytes);
    walls.into_iter().for_each(|wall| allocator.free(wall).unwrap());
    allocator.check_invariants();
}

#[test]
fn a_long_request_leaves_no_rest_that_nothing_like_it_fits_into() {
    const MIB: u64 = 1 << 20;
    let mut allocator = RegionAllocator::new(tight(64 * MIB)).unwrap();
    // Holes of 10 MiB and 16 MiB, and the end of the segment.
    let regions = [10, 1, 16, 1].map(|len_mib| allocator.allocate(len_mib * MIB).unwrap());
    let [small, _, large, _] = regions;
    let (small_at, large_at) = (small.offset_bytes(), large.offset_bytes());
    allocator.free(small).unwrap();
    allocator.free(large).unwrap();
    // 10 MiB would leave 2 MiB, 16 MiB hold another one.
    let first = allocator.allocate(8 * MIB).unwrap();
    assert_eq!(first.offset_bytes(), large_at);
    let second = allocator.allocate(8 * MIB).unwrap();
    assert_eq!(second.offset_bytes(), large_at + 8 * MIB);
    // What is left is small enough, and what holds two is gone in the end.
    let third = allocator.allocate(9 * MIB + MIB / 2).unwrap();
    assert_eq!(third.offset_bytes(), small_at);
    allocator.check_invariants();
}

#[test]
fn a_region_occupies_its_aligned_length_or_the_size_of_its_peer_class() {
    for (len_bytes, peer_bytes) in [(3_274_752, 3_407_872), (658_432, 720_896)] {
        let mut allocator = RegionAllocator::new(tight(16 << 20)).unwrap();
        let _region = allocator.allocate(len_bytes).unwrap();
        assert_eq!(allocator.allocated_bytes(), len_bytes);
        let mut allocator = RegionAllocator::new(peer(16 << 20)).unwrap();
        let _region = allocator.allocate(len_bytes).unwrap();
        assert_eq!(allocator.allocated_bytes(), peer_bytes);
        assert_eq!(allocator.occupied_bytes(len_bytes), peer_bytes);
    }
}

#[test]
fn peer_classes_reuse_the_youngest_hole_first() {
    let mut allocator = RegionAllocator::new(peer(1 << 20)).unwrap();
    let mut regions: Vec<_> = (0..8).map(|_| allocator.allocate(4096).unwrap()).collect();
    let (young, old) = (regions.remove(1), regions.remove(4));
    let offset_bytes = young.offset_bytes();
    allocator.free(old).unwrap();
    allocator.free(young).unwrap();
    assert_eq!(allocator.allocate(4096).unwrap().offset_bytes(), offset_bytes);
}

#[test]
fn a_second_free_of_a_region_changes_nothing() {
    // Allocators with one history hand out equal regions, so a twin makes the copy that the type forbids.
    let mut allocator = RegionAllocator::new(tight(4096)).unwrap();
    let mut twin = RegionAllocator::new(tight(4096)).unwrap();
    let region = allocator.allocate(100).unwrap();
    let copy = twin.allocate(100).unwrap();
    assert_eq!(region, copy);
    allocator.free(region).unwrap();
    assert_eq!(
        allocator.free(copy),
        Err(FreeError::NotAllocated {
            offset_bytes: 0,
            len_bytes: 100
        })
    );
    allocator.check_invariants();
    assert_eq!(allocator.free_bytes(), 4096);
}

#[test]
fn a_region_of_the_right_offset_and_a_wrong_length_is_not_freed() {
    let mut allocator = RegionAllocator::new(tight(4096)).unwrap();
    let mut other = RegionAllocator::new(tight(4096)).unwrap();
    let _owned = allocator.allocate(100).unwrap();
    let region = other.allocate(200).unwrap();
    assert_eq!(
        allocator.free(region),
        Err(FreeError::NotAllocated {
            offset_bytes: 0,
            len_bytes: 200
        })
    );
    allocator.check_invariants();
    assert_eq!(allocator.allocated_bytes(), 128);
}

#[test]
fn a_refusal_says_how_much_is_free_and_how_large_the_largest_hole_is() {
    let mut allocator = RegionAllocator::new(tight(4096)).unwrap();
    let _region = allocator.allocate(1024).unwrap();
    let error = allocator.allocate(3073).unwrap_err();
    assert_eq!(
        error,
        AllocateError::NoFit {
            len_bytes: 3073,
            free_bytes: 3072,
            largest_free_bytes: 3072
        }
    );
    assert_eq!(
        error.to_string(),
        "no free region holds 3073 B: 3072 B are free, the largest region has 3072 B"
    );
}

#[test]
fn a_hint_outlives_its_allocator() {
    let allocator = RegionAllocator::new(tight(4096)).unwrap();
    let hint = allocator.hint();
    drop(allocator);
    assert_eq!(hint.largest_free_upper_bound_bytes(), 4096);
}

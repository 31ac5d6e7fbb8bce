//! The strategies that serve as baselines: which entries they try, in cases whose answer is known.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::allocator::{AllocatorConfig, RegionAllocator};
use tenon_store_core::placement::{EntryIndex, PlaceError, Placer, Policy, Request, Space, StopReason};

use crate::pools::{
    Allocator, BEST_FIT, BLIND, FITTING, FRAGMENTATION_AWARE, KNOWN_SMALL, LEN_BYTES, RETRY_CONTROL, ScriptedPool,
    UNKNOWN_SMALL, starts,
};

const MIB: u64 = 1 << 20;

/// A segment of 24 MiB with two holes of 8 MiB.
fn fragmented() -> RegionAllocator {
    let mut segment = RegionAllocator::new(AllocatorConfig::new(24 * MIB)).expect("what the case relies on");
    let regions = [8, 4, 8, 4].map(|mib| segment.allocate(mib * MIB).expect("what the case relies on"));
    for region in regions {
        if region.len_bytes() == 8 * MIB {
            segment.free(region).expect("what the case relies on");
        }
    }
    assert_eq!(
        (segment.free_bytes(), segment.largest_free_bytes()),
        (16 * MIB, 8 * MIB)
    );
    segment
}

/// A segment of 24 MiB whose upper half is free.
fn contiguous() -> RegionAllocator {
    let mut segment = RegionAllocator::new(AllocatorConfig::new(24 * MIB)).expect("what the case relies on");
    let _used = segment.allocate(12 * MIB).expect("what the case relies on");
    segment
}

/// Six requests of 10 MiB on two fragmented and six contiguous segments: first choices that held them, and calls after the first choice.
fn first_choices(policy: Policy, seed: u64) -> (u32, u32) {
    let mut segments: Vec<_> = (0..8)
        .map(|index| if index < 2 { fragmented() } else { contiguous() })
        .collect();
    let (mut placer, mut placed) = (Placer::new(policy), Vec::new());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut right, mut later) = (0, 0);
    for _ in 0..6 {
        let figures = placer
            .place(&mut segments[..], &Request::new(10 * MIB), &mut rng, &mut placed)
            .expect("what the case relies on");
        right += u32::from(figures.calls() == 1);
        later += figures.calls() - 1;
    }
    (right, later)
}

#[test]
fn the_emptiest_entry_is_the_wrong_one_where_free_space_is_scattered() {
    // Both strategies draw the same samples from the same seed.
    let seed = (0..2000)
        .find(|&seed| first_choices(BLIND, seed) == (0, 11))
        .expect("a seed of the published case");
    assert_eq!(first_choices(FRAGMENTATION_AWARE, seed), (6, 0));
}

#[test]
fn entries_that_may_hold_the_request_come_first_then_the_least_scattered() {
    let (start, _) = starts(256, 4);
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    // Largest, free and capacity in hundredths of the request; only the third to fifth may hold it.
    let spaces = [
        (99, 100, 100),
        (50, 800, 800),
        (100, 800, 800),
        (100, 200, 1600),
        (400, 800, 1600),
        (90, 180, 800),
    ];
    for (step, (largest, free, capacity)) in spaces.into_iter().enumerate() {
        let bytes = |hundredths: u64| hundredths * LEN_BYTES / 100;
        let entry = &mut pool.entries[(start + step) % 256];
        entry.space = Space {
            free_bytes: bytes(free),
            capacity_bytes: bytes(capacity),
        };
        entry.allocators = vec![Allocator {
            room_bytes: 0,
            hint_bytes: Some(bytes(largest)),
        }];
    }
    pool.place_one(FRAGMENTATION_AWARE, 4).unwrap_err();
    // 0.7 × largest / free + 0.3 × free / capacity: 0.3875, 0.3875, 0.5 for those that may; 0.993, 0.344, 0.4175 for the others.
    let expected: Vec<usize> = [4, 2, 3, 0, 5, 1].map(|step| (start + step) % 256).to_vec();
    assert_eq!(pool.called_entries()[..6], expected);
}

#[test]
fn an_entry_of_unknown_regions_may_have_all_its_free_space_in_one() {
    let (start, _) = starts(256, 4);
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL).with((start + 5) % 256, &[UNKNOWN_SMALL]);
    pool.place_one(FRAGMENTATION_AWARE, 4).unwrap_err();
    assert_eq!(pool.called_entries()[0], (start + 5) % 256);
}

#[test]
fn a_scan_leaves_out_a_sample_of_a_quarter_of_the_pool() {
    for (entries, scanned) in [(7, 1), (16, 10), (24, 18), (25, 25), (64, 64), (128, 100)] {
        let mut pool = ScriptedPool::of(entries, UNKNOWN_SMALL);
        let figures = match pool.place_one(RETRY_CONTROL, 5) {
            Err(PlaceError::NoSpace(no_space)) => {
                let is_whole = scanned != 100;
                assert_eq!(no_space.stop == StopReason::PoolExhausted, is_whole);
                no_space.figures
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (figures.sampled_calls, figures.scan_calls),
            (6, scanned),
            "{entries} entries"
        );
        if entries < 25 {
            let mut asked = pool.called_entries();
            asked.sort_unstable();
            assert!(asked.into_iter().eq(0..entries), "each entry once");
        } else {
            let mut blind = ScriptedPool::of(entries, UNKNOWN_SMALL);
            blind.place_one(BLIND, 5).unwrap_err();
            assert_eq!(pool.calls, blind.calls);
        }
    }
}

#[test]
fn the_best_fit_is_the_smallest_hole_that_suffices() {
    let hole = |bytes| Allocator {
        room_bytes: bytes,
        hint_bytes: Some(bytes),
    };
    let mut pool = ScriptedPool::of(300, KNOWN_SMALL)
        .with(10, &[UNKNOWN_SMALL])
        .with(20, &[hole(LEN_BYTES + 64)])
        .with(250, &[KNOWN_SMALL, hole(LEN_BYTES + 1)])
        .with(280, &[FITTING]);
    let excluded = [EntryIndex(280)];
    let request = Request {
        replicas: 3,
        excluded: &excluded,
        ..Request::new(LEN_BYTES)
    };
    let (placed, figures) = pool.place(BEST_FIT, 1, &request).unwrap();
    assert_eq!(placed, [250, 20]);
    assert_eq!(
        pool.called_entries(),
        [250, 20, 10],
        "an unknown entry is asked last, and once"
    );
    assert_eq!((figures.tightest_calls, figures.scanned_positions), (3, 0));
}

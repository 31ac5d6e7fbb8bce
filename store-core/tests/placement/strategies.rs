//! What holds for every strategy, and what tells them apart.

use proptest::prelude::*;
use tenon_store_core::placement::{EntryIndex, PlaceError, Policy, Request, Space, StopReason};

use crate::pools::{
    Allocator, BEST_FIT, BLIND, FIT_AWARE, FITTING, FRAGMENTATION_AWARE, INDEXED, KNOWN_SMALL, LEN_BYTES, RANDOM,
    RETRY_CONTROL, ScriptedPool, UNKNOWN_SMALL, starts,
};

const POLICIES: [Policy; 7] = [
    RANDOM,
    BLIND,
    FIT_AWARE,
    FRAGMENTATION_AWARE,
    RETRY_CONTROL,
    BEST_FIT,
    INDEXED,
];

/// Whether a policy takes the hints of the whole pool into account from the beginning.
fn reads_all_hints(policy: Policy) -> bool {
    policy == BEST_FIT || policy == INDEXED
}

#[test]
fn zero_bytes_zero_replicas_and_unknown_entries_are_invalid() {
    for policy in POLICIES {
        let mut pool = ScriptedPool::of(3, FITTING);
        let mut place = |request: &Request<'_>| pool.place(policy, 1, request).unwrap_err();
        assert_eq!(place(&Request::new(0)), PlaceError::ZeroLength);
        let request = Request {
            replicas: 0,
            ..Request::new(LEN_BYTES)
        };
        assert_eq!(place(&request), PlaceError::ZeroReplicas { len_bytes: LEN_BYTES });
        let unknown = [EntryIndex(3)];
        let error = PlaceError::UnknownEntry { entry: 3, entries: 3 };
        assert_eq!(
            place(&Request {
                preferred: &unknown,
                ..Request::new(LEN_BYTES)
            }),
            error
        );
        assert_eq!(
            place(&Request {
                excluded: &unknown,
                ..Request::new(LEN_BYTES)
            }),
            error
        );
        assert!(pool.calls.is_empty());
    }
}

#[test]
fn a_request_without_space_says_so_in_numbers() {
    let mut pool = ScriptedPool::of(3, KNOWN_SMALL);
    let error = pool.place_one(BLIND, 1).unwrap_err();
    let text = "no space for 4096 B: 3145728 B are free, the largest free region has at most 4095 B; \
                6 entries examined until pool_exhausted";
    assert_eq!(error.to_string(), text);
    let mut pool = ScriptedPool::of(3, UNKNOWN_SMALL);
    let error = pool.place_one(RANDOM, 1).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the largest free region has unknown size; 3 entries examined"),
        "{error}"
    );
}

#[test]
fn an_empty_pool_has_no_space() {
    for policy in POLICIES {
        match ScriptedPool::of(0, FITTING).place_one(policy, 1) {
            Err(PlaceError::NoSpace(no_space)) => assert_eq!(no_space.stop, StopReason::PoolExhausted),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn preferred_entries_are_tried_in_their_order_before_all_others() {
    for policy in POLICIES {
        let mut pool = ScriptedPool::of(50, FITTING).with(7, &[UNKNOWN_SMALL]);
        let preferred = [7, 30, 30, 2, 40].map(EntryIndex);
        let excluded = [EntryIndex(2)];
        let request = Request {
            replicas: 2,
            preferred: &preferred,
            excluded: &excluded,
            ..Request::new(LEN_BYTES)
        };
        let (placed, figures) = pool.place(policy, 1, &request).unwrap();
        assert_eq!(placed, [30, 40]);
        assert_eq!((pool.called_entries(), figures.preferred_calls), (vec![7, 30, 40], 3));
        assert_eq!((figures.sampled_calls, figures.scanned_positions), (0, 0));
    }
}

#[test]
fn fewer_replicas_than_asked_are_a_success() {
    for policy in POLICIES {
        let mut pool = ScriptedPool::of(20, UNKNOWN_SMALL)
            .with(3, &[FITTING])
            .with(11, &[FITTING]);
        let request = Request {
            replicas: 4,
            ..Request::new(LEN_BYTES)
        };
        let (mut placed, _) = pool.place(policy, 1, &request).unwrap();
        placed.sort_unstable();
        assert_eq!(placed, [3, 11]);
    }
}

#[test]
fn random_scans_a_hundred_positions_in_order_from_a_random_start() {
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    match pool.place_one(RANDOM, 8) {
        Err(PlaceError::NoSpace(no_space)) => assert_eq!(no_space.stop, StopReason::PositionBudget),
        other => panic!("{other:?}"),
    }
    let start = pool.calls[0].0;
    let expected: Vec<usize> = (0..100).map(|step| (start + step) % 256).collect();
    assert_eq!((pool.called_entries(), pool.hint_reads.get()), (expected, 0));
    let mut other_start = ScriptedPool::of(256, KNOWN_SMALL);
    other_start.place_one(RANDOM, 9).unwrap_err();
    assert_ne!(start, other_start.calls[0].0);
}

#[test]
fn the_sample_is_tried_from_the_emptiest_entry_down() {
    let (start, scan_start) = starts(256, 4);
    let mut pool = ScriptedPool::of(256, UNKNOWN_SMALL);
    // Free bytes do not decide, their ratio to the capacity does; equal ratios keep the order of the pool.
    let spaces = [(8, 100), (3, 4), (90, 100), (6, 8), (0, 0), (1, 1)];
    for (step, (free_bytes, capacity_bytes)) in spaces.into_iter().enumerate() {
        pool.entries[(start + step) % 256].space = Space {
            free_bytes,
            capacity_bytes,
        };
    }
    pool.place_one(BLIND, 4).unwrap_err();
    let expected: Vec<usize> = [5, 2, 1, 3, 0, 4].map(|step| (start + step) % 256).to_vec();
    assert_eq!(pool.called_entries()[..6], expected);
    assert_eq!(pool.called_entries()[6], scan_start);
}

#[test]
fn the_sample_grows_with_the_missing_replicas_and_stops_at_the_pool() {
    for (entries, replicas, sampled) in [(256, 3, 18), (10, 3, 10), (256, 1, 6), (4, 9, 4)] {
        let request = Request {
            replicas,
            ..Request::new(LEN_BYTES)
        };
        match ScriptedPool::of(entries, UNKNOWN_SMALL).place(BLIND, 1, &request) {
            Err(PlaceError::NoSpace(no_space)) => assert_eq!(no_space.figures.sampled_calls, sampled),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn entries_that_failed_in_the_sample_are_tried_again_in_the_scan() {
    let mut pool = ScriptedPool::of(16, UNKNOWN_SMALL);
    pool.place_one(BLIND, 1).unwrap_err();
    assert_eq!(pool.calls.len(), 6 + 16);
}

fn allocators() -> impl Strategy<Value = Vec<Allocator>> {
    // A hint that is too low would hide space, which the promise of a hint excludes.
    let allocator = (any::<bool>(), any::<bool>(), 0..2_u64).prop_map(|(fits, known, excess)| {
        let room_bytes = if fits { LEN_BYTES } else { LEN_BYTES - 1 };
        Allocator {
            room_bytes,
            hint_bytes: known.then_some(room_bytes + excess),
        }
    });
    prop::collection::vec(allocator, 0..3)
}

proptest! {
    #[test]
    fn replicas_are_distinct_allowed_and_within_the_budgets(
        entries in prop::collection::vec(prop_oneof![8 => Just(vec![KNOWN_SMALL]), 2 => allocators()], 1..300),
        replicas in 1..6_u32,
        preferred in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        excluded in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        policy in prop::sample::select(POLICIES.to_vec()),
        seed in any::<u64>(),
    ) {
        let count = entries.len();
        let index = |indices: &[prop::sample::Index]| -> Vec<EntryIndex> {
            indices.iter().map(|index| EntryIndex(index.index(count))).collect()
        };
        let (preferred, excluded) = (index(&preferred), index(&excluded));
        let mut pool = ScriptedPool::of(count, KNOWN_SMALL);
        for (entry, allocators) in pool.entries.iter_mut().zip(&entries) {
            entry.allocators.clone_from(allocators);
        }
        let request = Request { len_bytes: LEN_BYTES, replicas, preferred: &preferred, excluded: &excluded };
        let fits = |entry: usize| {
            !excluded.contains(&EntryIndex(entry)) && entries[entry].iter().any(|one| one.room_bytes >= LEN_BYTES)
        };
        let fitting = (0..count).filter(|&entry| fits(entry)).count();
        let (placed, figures) = match pool.place(policy, seed, &request) {
            Ok(outcome) => outcome,
            Err(PlaceError::NoSpace(no_space)) => (Vec::new(), no_space.figures),
            Err(error) => panic!("{error}"),
        };
        prop_assert!(placed.iter().all(|&entry| fits(entry)));
        let mut distinct = placed.clone();
        distinct.sort_unstable();
        distinct.dedup();
        prop_assert_eq!(distinct.len(), placed.len());
        prop_assert!(placed.len() <= replicas as usize);
        if count <= 100 || reads_all_hints(policy) {
            prop_assert_eq!(placed.len(), fitting.min(replicas as usize), "the budget covers this pool");
        }
        if count <= 100 && [RANDOM, BLIND, FIT_AWARE, RETRY_CONTROL].contains(&policy) {
            prop_assert_eq!(pool.hint_reads.get(), 0);
        }
        prop_assert_eq!(pool.calls.len(), figures.allocator_calls as usize);
        prop_assert!(figures.chargeable_positions <= 100 && figures.scanned_positions <= 200);
        prop_assert_eq!(figures.chargeable_positions + figures.no_fit_credits, figures.scanned_positions);
        prop_assert!(figures.scan_calls <= figures.chargeable_positions);
        prop_assert!(!figures.armed || policy == FIT_AWARE);
    }
}

//! The fit-aware fallback in cases whose calls, credits and stop reasons are known exactly.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::allocator::{AllocatorConfig, RegionAllocator};
use tenon_store_core::placement::{
    EntryIndex, Fit, NoSpace, PlaceError, PlacementFigures, Placer, Pool, Request, StopReason,
};

use crate::pools::{
    Allocator, BLIND, FIT_AWARE, FITTING, KNOWN_SMALL, LEN_BYTES, ScriptedPool, UNKNOWN_SMALL, seed_reaching, starts,
};

fn no_space<T: std::fmt::Debug>(result: Result<T, PlaceError>) -> NoSpace {
    match result {
        Err(PlaceError::NoSpace(no_space)) => no_space,
        other => panic!("expected no space, got {other:?}"),
    }
}

#[test]
fn the_only_entry_that_fits_is_found_past_the_old_budget() {
    let seed = seed_reaching(256, 100, |position| position == 150);
    let pool = || ScriptedPool::of(256, KNOWN_SMALL).with(100, &[FITTING]);

    let mut blind = pool();
    assert_eq!(no_space(blind.place_one(BLIND, seed)).stop, StopReason::PositionBudget);
    assert_eq!(blind.calls.len(), 106);

    let mut fit_aware = pool();
    let (entry, figures) = fit_aware.place_one(FIT_AWARE, seed).unwrap();
    assert_eq!((entry, fit_aware.calls.len()), (100, 6 + 1));
    let expected = PlacementFigures {
        sampled_calls: 6,
        scan_calls: 1,
        armed_calls: 1,
        allocator_calls: 7,
        armed: true,
        hints_examined: 150,
        no_fit_credits: 149,
        scanned_positions: 150,
        chargeable_positions: 1,
        recovered: 1,
        ..Default::default()
    };
    assert_eq!(figures, expected);
}

#[test]
fn a_success_within_the_old_budget_is_not_a_recovery() {
    for (position, recovered) in [(100, 0), (101, 1)] {
        let seed = seed_reaching(256, 100, |reached| reached == position);
        let (_, figures) = ScriptedPool::of(256, KNOWN_SMALL)
            .with(100, &[FITTING])
            .place_one(FIT_AWARE, seed)
            .unwrap();
        assert_eq!(
            (figures.scanned_positions as usize, figures.recovered),
            (position, recovered)
        );
    }
}

#[test]
fn unknown_hints_earn_no_credit_and_end_with_the_chargeable_budget() {
    let mut pool = ScriptedPool::of(256, UNKNOWN_SMALL);
    let NoSpace { stop, figures, .. } = no_space(pool.place_one(FIT_AWARE, 1));
    assert_eq!(pool.calls.len(), 106);
    assert_eq!(
        (figures.sampled_calls, figures.scan_calls, figures.armed_calls),
        (6, 100, 100)
    );
    assert_eq!(
        (
            figures.no_fit_credits,
            figures.hints_examined,
            figures.chargeable_positions
        ),
        (0, 100, 100)
    );
    assert_eq!(
        (stop, figures.stop),
        (StopReason::ChargeableBudget, Some(StopReason::ChargeableBudget))
    );
}

#[test]
fn a_pool_that_the_old_budget_covers_reads_no_hint() {
    for entries in [64, 100] {
        for seed in 0..20 {
            let pool = || ScriptedPool::of(entries, KNOWN_SMALL).with(7, &[FITTING]);
            let (mut blind, mut fit_aware) = (pool(), pool());
            let (placed, figures) = fit_aware.place_one(FIT_AWARE, seed).unwrap();
            assert_eq!(blind.place_one(BLIND, seed).unwrap(), (placed, figures));
            assert_eq!(blind.calls, fit_aware.calls);
            assert_eq!(
                (fit_aware.hint_reads.get(), figures.armed, figures.recovered),
                (0, false, 0)
            );
        }
        let mut nothing_fits = ScriptedPool::of(entries, KNOWN_SMALL);
        let NoSpace { stop, figures, .. } = no_space(nothing_fits.place_one(FIT_AWARE, 1));
        assert_eq!((stop, figures.stop), (StopReason::PoolExhausted, None));
        assert_eq!(
            (nothing_fits.calls.len(), nothing_fits.hint_reads.get()),
            (6 + entries, 0)
        );
    }
    let mut just_larger = ScriptedPool::of(101, KNOWN_SMALL);
    no_space(just_larger.place_one(FIT_AWARE, 1));
    assert_eq!((just_larger.calls.len(), just_larger.hint_reads.get()), (6, 101));
}

#[test]
fn a_pool_known_to_be_too_small_ends_with_the_scan_cap() {
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    let NoSpace { stop, figures, .. } = no_space(pool.place_one(FIT_AWARE, 1));
    assert_eq!(
        (
            figures.scanned_positions,
            figures.no_fit_credits,
            figures.chargeable_positions
        ),
        (200, 200, 0)
    );
    assert_eq!((stop, figures.stop), (StopReason::ScanCap, Some(StopReason::ScanCap)));
    assert_eq!((figures.scan_calls, pool.calls.len()), (0, 6));
}

#[test]
fn when_both_budgets_end_at_once_the_scan_cap_is_named() {
    // Every second entry is known to be too small: 100 credits and 100 charges in 200 positions.
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    pool.entries
        .iter_mut()
        .step_by(2)
        .for_each(|entry| entry.allocators = vec![UNKNOWN_SMALL]);
    let NoSpace { stop, figures, .. } = no_space(pool.place_one(FIT_AWARE, 1));
    assert_eq!((figures.scanned_positions, figures.chargeable_positions), (200, 100));
    assert_eq!(stop, StopReason::ScanCap);
}

#[test]
fn an_entry_of_two_allocators_is_one_call() {
    let mut pool = ScriptedPool::of(128, UNKNOWN_SMALL);
    pool.entries
        .iter_mut()
        .for_each(|entry| entry.allocators = vec![UNKNOWN_SMALL; 2]);
    let figures = no_space(pool.place_one(FIT_AWARE, 1)).figures;
    assert_eq!((figures.sampled_calls, figures.scan_calls), (6, 100));
    assert_eq!((figures.allocator_calls, pool.calls.len()), (212, 212));
    // Both allocators of each entry were asked, beginning now with the one and now with the other.
    assert!(
        pool.calls
            .chunks(2)
            .all(|calls| calls[0].0 == calls[1].0 && calls[0].1 != calls[1].1)
    );
    let first_asked: Vec<usize> = pool.calls.chunks(2).map(|calls| calls[0].1).collect();
    assert!(first_asked.contains(&0) && first_asked.contains(&1));
}

#[test]
fn excluded_positions_cost_budget_although_they_are_known_to_be_too_small() {
    let (sample_start, scan_start) = starts(256, 3);
    let excluded: Vec<EntryIndex> = (10..50).map(|step| EntryIndex((scan_start + step) % 256)).collect();
    let sampled = |entry: &EntryIndex| (entry.0 + 256 - sample_start) % 256 < 6;
    assert!(!excluded.iter().any(sampled), "the sample is not to shrink");
    let request = Request {
        excluded: &excluded,
        ..Request::new(LEN_BYTES)
    };

    let figures = no_space(ScriptedPool::of(256, UNKNOWN_SMALL).place(FIT_AWARE, 3, &request)).figures;
    assert_eq!(
        (
            figures.scan_calls,
            figures.chargeable_positions,
            figures.scanned_positions
        ),
        (60, 100, 100)
    );

    let figures = no_space(ScriptedPool::of(256, KNOWN_SMALL).place(FIT_AWARE, 3, &request)).figures;
    assert_eq!(
        (
            figures.no_fit_credits,
            figures.chargeable_positions,
            figures.scanned_positions
        ),
        (160, 40, 200)
    );
    assert_eq!(figures.hints_examined, 160);
}

#[test]
fn used_positions_cost_budget() {
    let (_, scan_start) = starts(256, 3);
    let used = EntryIndex((scan_start + 20) % 256);
    let request = Request {
        replicas: 2,
        preferred: &[used],
        ..Request::new(LEN_BYTES)
    };
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL).with(used.0, &[FITTING]);
    // The preferred entry takes the first replica; the sample and the scan then start as for a single one.
    let (placed, figures) = pool.place(FIT_AWARE, 3, &request).unwrap();
    assert_eq!(placed, [used.0]);
    assert_eq!(
        (
            figures.no_fit_credits,
            figures.chargeable_positions,
            figures.scanned_positions
        ),
        (199, 1, 200)
    );
    assert_eq!(figures.stop, Some(StopReason::ScanCap));
}

#[test]
fn real_hints_lead_to_the_real_segment_that_has_room() {
    let seed = seed_reaching(256, 100, |position| position > 100);
    let mut segments: Vec<RegionAllocator> = (0..256)
        .map(|_| RegionAllocator::new(AllocatorConfig::new(1 << 20)).unwrap())
        .collect();
    // Every segment is half free, but only one of them in one piece.
    let mut live = Vec::new();
    for (index, segment) in segments.iter_mut().enumerate() {
        let len_bytes = if index == 100 { 512 << 10 } else { 256 << 10 };
        let mut pieces: Vec<_> = (0..(1 << 20) / len_bytes)
            .map(|_| segment.allocate(len_bytes).unwrap())
            .collect();
        segment.free(pieces.remove(0)).unwrap();
        if index != 100 {
            segment.free(pieces.remove(1)).unwrap();
        }
        live.extend(pieces);
        assert_eq!(segment.free_bytes(), 512 << 10);
    }
    let mut placed = Vec::new();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let request = Request::new(512 << 10);
    let figures = Placer::new(FIT_AWARE)
        .place(&mut segments[..], &request, &mut rng, &mut placed)
        .unwrap();
    assert_eq!((placed[0].entry, placed[0].region.offset_bytes()), (EntryIndex(100), 0));
    assert_eq!((figures.recovered, figures.scan_calls), (1, 1));
    assert!(figures.scanned_positions > 100);
    assert_eq!(segments[100].free_bytes(), 0);
}

#[test]
fn only_known_small_allocators_make_an_entry_unfit() {
    let fits = |allocators: &[Allocator]| {
        ScriptedPool::of(1, KNOWN_SMALL)
            .with(0, allocators)
            .fit(EntryIndex(0), LEN_BYTES)
    };
    assert_eq!(fits(&[]), Fit::Unknown);
    assert_eq!(fits(&[KNOWN_SMALL, KNOWN_SMALL]), Fit::NoFit);
    assert_eq!(fits(&[KNOWN_SMALL, UNKNOWN_SMALL]), Fit::Unknown);
    assert_eq!(fits(&[UNKNOWN_SMALL, FITTING]), Fit::MayFit);
    assert_eq!(
        fits(&[
            KNOWN_SMALL,
            Allocator {
                hint_bytes: Some(LEN_BYTES),
                ..KNOWN_SMALL
            }
        ]),
        Fit::MayFit
    );
}

#[test]
fn an_entry_with_one_unknown_allocator_is_asked() {
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    pool.entries
        .iter_mut()
        .for_each(|entry| entry.allocators = vec![KNOWN_SMALL, UNKNOWN_SMALL]);
    let figures = no_space(pool.place_one(FIT_AWARE, 1)).figures;
    assert_eq!((figures.no_fit_credits, figures.scan_calls), (0, 100));
}

#[test]
fn a_hint_that_is_too_high_costs_one_call_and_no_more() {
    let seed = seed_reaching(256, 100, |position| position == 150);
    let stale = Allocator {
        hint_bytes: Some(1 << 30),
        ..KNOWN_SMALL
    };
    let (_, scan_start) = starts(256, seed);
    let pool = ScriptedPool::of(256, KNOWN_SMALL).with(100, &[FITTING]);
    let (entry, figures) = pool
        .with((scan_start + 40) % 256, &[stale])
        .place_one(FIT_AWARE, seed)
        .unwrap();
    assert_eq!(
        (entry, figures.chargeable_positions, figures.no_fit_credits),
        (100, 2, 148)
    );
}

#[test]
fn without_a_real_failure_no_hint_is_read() {
    // All sampled entries are excluded, and the scan succeeds at its first position.
    let (sample_start, _) = starts(256, 5);
    let excluded: Vec<EntryIndex> = (0..6).map(|step| EntryIndex((sample_start + step) % 256)).collect();
    let request = Request {
        excluded: &excluded,
        ..Request::new(LEN_BYTES)
    };
    let mut pool = ScriptedPool::of(256, FITTING);
    let (_, figures) = pool.place(FIT_AWARE, 5, &request).unwrap();
    assert_eq!(
        (figures.scan_calls, figures.armed, pool.hint_reads.get()),
        (1, false, 0)
    );

    // If that position fails, hints are read from the next one on.
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    let figures = no_space(pool.place(FIT_AWARE, 5, &request)).figures;
    assert_eq!((figures.scan_calls, figures.armed_calls, figures.armed), (1, 0, true));
    assert_eq!(figures.no_fit_credits + figures.chargeable_positions, 200);
}

#[test]
fn order_best_effort_and_distinct_replicas_hold_while_armed() {
    let preferred = [9, 200, 30].map(EntryIndex);
    let request = Request {
        replicas: 5,
        preferred: &preferred,
        ..Request::new(LEN_BYTES)
    };
    let mut pool = ScriptedPool::of(256, KNOWN_SMALL);
    for entry in [200, 30, 77] {
        pool.entries[entry].allocators = vec![KNOWN_SMALL, FITTING];
    }
    let mut full_results = 0;
    for seed in 0..50 {
        pool.calls.clear();
        let (placed, figures) = pool.place(FIT_AWARE, seed, &request).unwrap();
        assert_eq!(pool.called_entries()[..3], [9, 200, 30]);
        assert_eq!(placed[..2], [200, 30]);
        assert!(placed == [200, 30] || placed == [200, 30, 77], "{placed:?}");
        assert!(figures.armed && figures.stop.is_some());
        full_results += usize::from(placed.len() == 3);
    }
    assert!(full_results > 0);
}

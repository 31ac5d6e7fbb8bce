//! Maps of segments, hints and dry runs: what is told without changing anything.

use crate::fixture::*;
use crate::steps::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_protocol::ids::SegmentId;
use tenon_protocol::placement::{MapRun, RunState};
use tenon_store_core::objects::*;
use tenon_store_core::placement::{Policy, Strategy};
use tenon_store_core::time::Time;

fn run(offset_bytes: u64, len_bytes: u64, state: RunState, age_ms: Option<u64>) -> MapRun {
    MapRun {
        offset_bytes,
        len_bytes,
        state,
        age_ms,
    }
}

#[test]
fn a_map_has_every_byte_once_in_pages_of_any_size() {
    let (mut holder, _) = holder(&[(4096, 8)]);
    let reserved: Vec<_> = [(1, 100), (2, 64), (3, 1000)]
        .map(|(id, len_bytes)| reserve(&mut holder, at(1000), reserve_spec(id, "k", len_bytes)).unwrap())
        .into();
    let hold = holder.begin_write(reserved[2].region, 0, 10).unwrap();
    for id in [2, 3] {
        assert_eq!(holder.abort(put(id), &name("k"), owner(id).session), Ok(true));
    }
    let expected = [
        run(0, 128, RunState::Reserved, Some(500)),
        run(128, 64, RunState::Free, None),
        run(192, 1024, RunState::Held, None),
        run(1216, 2880, RunState::Free, None),
    ];
    let map = |from_bytes, limit| holder.map(SegmentId(1), from_bytes, limit, at(1500), 0).unwrap();
    let whole = map(0, 100);
    assert_eq!(whole.incarnation, INCARNATION);
    assert_eq!((&whole.runs[..], whole.next_bytes), (&expected[..], None));
    for limit in 1..4 {
        let (mut runs, mut next_bytes) = (Vec::new(), Some(0));
        while let Some(from_bytes) = next_bytes {
            let page = map(from_bytes, limit);
            assert!(page.runs.len() <= limit);
            assert_eq!(page.version, whole.version, "nothing has changed");
            runs.extend(page.runs);
            next_bytes = page.next_bytes;
        }
        assert_eq!(runs, expected, "pages of {limit}");
    }
    for (from_bytes, first) in [(127, 0), (130, 1), (191, 1), (192, 2), (4095, 3)] {
        assert_eq!(map(from_bytes, 1).runs, [expected[first]], "from {from_bytes}");
    }
    assert_eq!(map(4096, 10).runs, []);
    assert_eq!(holder.map(SegmentId(2), 0, 10, at(0), 0), None);
    holder.end_write(hold);
    let after = holder.map(SegmentId(1), 0, 10, at(1500), 0).unwrap();
    assert!(after.version > whole.version, "what was held is free");
    reserve(&mut holder, at(1600), reserve_spec(4, "k", 100)).unwrap();
    assert!(holder.map(SegmentId(1), 0, 10, at(1600), 0).unwrap().version > after.version);
}

#[test]
fn whether_a_request_would_be_refused_is_told_without_setting_anything_aside() {
    let random = Policy {
        strategy: Strategy::Random,
        ..Policy::default()
    };
    for policy in [Policy::default(), random] {
        let (mut holder, _) = holder_that_places(policy, &[(4096, 2), (1024, 1)], None);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(holder.look(&mut rng, 4096), None);
        assert_eq!(holder.look(&mut rng, 0), Some(ReserveError::EmptyObject));
        assert!(matches!(holder.look(&mut rng, 4097), Some(ReserveError::TooLarge(_))));
        reserve(&mut holder, at(0), reserve_spec(1, "k", 3000)).unwrap();
        for len_bytes in 1..4097 {
            let hint = holder.hint();
            let told = holder.look(&mut rng, len_bytes);
            assert_eq!(holder.hint(), hint);
            let asked = reserve(&mut holder, at(0), reserve_spec(2, "k", len_bytes));
            assert_eq!(told, asked.err());
            if told.is_none() {
                assert!(holder.abort(put(2), &name("k"), owner(2).session).unwrap());
            }
        }
        reserve(&mut holder, at(0), reserve_spec(2, "k", 64)).unwrap();
        reserve(&mut holder, at(0), reserve_spec(3, "k", 64)).unwrap();
        let full = holder.look(&mut rng, 64);
        assert!(matches!(full, Some(ReserveError::NoSpace(numbers)) if numbers.stop_reason == "slots"));
        holder.check_invariants();
    }
}

#[test]
fn a_dry_run_says_where_objects_would_go_and_changes_nothing() {
    let (mut holder, _) = holder(&[(1024, 4), (4096, 4)]);
    let (hint, account) = (holder.hint(), holder.account());
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let DryRun { places, hint: after } = holder.dry_run(&mut rng, &[1000, 1000, 0, 4000, 5000]);
    assert_eq!((after.free_bytes, after.largest_free_upper_bound_bytes), (3072, 3072));
    let place = |at: usize| {
        let place = places[at].as_ref().unwrap();
        (place.segment, place.offset_bytes)
    };
    assert_eq!(
        (place(0), place(1)),
        ((SegmentId(1), 0), (SegmentId(2), 0)),
        "each beside those before it"
    );
    assert_eq!(places[2], Err(ReserveError::EmptyObject));
    assert!(
        matches!(&places[3], Err(ReserveError::NoSpace(numbers)) if numbers.largest_free_bytes == 3072),
        "{:?}",
        places[3]
    );
    assert!(matches!(places[4], Err(ReserveError::TooLarge { .. })));
    assert_eq!((holder.hint(), holder.account()), (hint, account));
    holder.check_invariants();
    let reserved = reserve(&mut holder, Time::from_ms(0), reserve_spec(1, "k", 1000)).unwrap();
    assert_eq!((reserved.region.segment, reserved.region.offset_bytes), place(0));
}

#[test]
fn a_hint_is_newer_after_every_change_of_the_room() {
    let (mut holder, _) = holder(&[(4096, 1)]);
    let mut last = holder.hint();
    assert_eq!((last.capacity_bytes, last.largest_free_upper_bound_bytes), (4096, 4096));
    for round in 0..3 {
        reserve(&mut holder, at(0), reserve_spec(round, "k", 100)).unwrap();
        let full = holder.hint();
        assert!(full.version > last.version);
        // Its only slot is taken: whatever is free, nothing can be placed.
        assert_eq!((full.free_bytes, full.largest_free_upper_bound_bytes), (4096 - 128, 0));
        assert!(holder.abort(put(round), &name("k"), owner(round).session).unwrap());
        last = holder.hint();
        assert!(last.version > full.version);
        assert_eq!(last.largest_free_upper_bound_bytes, 4096);
    }
}

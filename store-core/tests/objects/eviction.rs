//! Which objects go, and which stay.

use crate::fixture::*;
use crate::steps::*;
use tenon_protocol::ids::SegmentId;
use tenon_protocol::member::HomeEventKind;
use tenon_protocol::message::Pin;
use tenon_store_core::limits::EVICTED_AT_ONCE_MAX;
use tenon_store_core::objects::*;

const MARKS: Watermarks = Watermarks {
    from_percent: 90,
    to_percent: 50,
};

/// A holder that evicts, with one segment of so many units of alignment.
fn evicting(units: u64, slots: u32) -> TestHolder {
    holder_with(&[(units * ALIGNMENT_BYTES, slots)], Some(MARKS)).0
}

/// Stores objects of one unit with these put ids and the keys `k1`, `k2` and so on, in the order of their places.
fn stored(holder: &mut TestHolder, ids: impl IntoIterator<Item = u8>) {
    for id in ids {
        store(holder, id, &format!("k{id}"), ALIGNMENT_BYTES);
    }
}

fn gone(holder: &mut TestHolder) -> Vec<String> {
    holder.check_invariants();
    let evicted = holder.take_evicted().into_iter();
    evicted.map(|evicted| evicted.name.key().to_owned()).collect()
}

fn read(holder: &mut TestHolder, key: &str) -> ReadHold {
    let replica = holder.lookup(&name(key)).unwrap().replica;
    holder.begin_read(replica.segment, replica.offset_bytes, 1).unwrap()
}

fn use_of(holder: &mut TestHolder, key: &str) {
    let hold = read(holder, key);
    holder.end_read(hold);
}

#[test]
fn between_the_watermarks_the_oldest_that_were_not_used_go() {
    let mut holder = evicting(10, 100);
    stored(&mut holder, 1..=8);
    assert!(!holder.evict_some(at(5)), "80 % are less than 90 %");
    stored(&mut holder, [9]);
    use_of(&mut holder, "k1");
    assert!(holder.touch(at(6), &name("k3")));
    assert!(!holder.touch(at(6), &name("k0")));
    assert!(!holder.evict_some(at(7)), "it is done");
    assert_eq!(gone(&mut holder), ["k2", "k4", "k5", "k6"]);
    assert_eq!(holder.account().free_bytes, 5 * ALIGNMENT_BYTES);
    assert!(!holder.evict_some(at(8)), "half is in use");
}

#[test]
fn what_has_gone_is_told_with_its_age_and_how_long_it_was_not_used() {
    let mut holder = evicting(2, 100);
    stored(&mut holder, [1, 2]);
    holder.touch(at(60), &name("k2"));
    let generation = holder.lookup(&name("k1")).unwrap().replica.generation;
    holder.evict_some(at(100));
    let [evicted] = holder.take_evicted().try_into().unwrap();
    assert_eq!(
        (evicted.age_ms, evicted.idle_ms, evicted.reason),
        (100, 100, EvictReason::Watermark)
    );
    assert_eq!((evicted.key_hash, evicted.len_bytes), (hash("k1"), ALIGNMENT_BYTES));
    let report = HomeEventKind::Evicted {
        version: version(1),
        holder: NODE,
        generation,
    };
    assert_eq!(evicted.report(NODE), report);
    assert_eq!(holder.lookup(&name("k1")), None);
    assert!(!holder.confirm(at(100), hash("k1"), version(1)));
}

#[test]
fn one_step_evicts_no_more_than_it_may_and_the_next_one_goes_on() {
    let units = 10 * EVICTED_AT_ONCE_MAX as u64;
    let mut holder = evicting(units, u32::try_from(units).unwrap());
    for number in 0..units {
        let key = format!("k{number}");
        store(&mut holder, u8::try_from(number % 251).unwrap(), &key, ALIGNMENT_BYTES);
    }
    assert!(holder.evict_some(at(1)));
    assert_eq!(gone(&mut holder).len(), EVICTED_AT_ONCE_MAX);
    while holder.evict_some(at(1)) {}
    assert_eq!(holder.account().free_bytes, units / 2 * ALIGNMENT_BYTES);
}

#[test]
fn what_is_in_use_unreported_or_pinned_stays() {
    let mut holder = evicting(10, 100);
    stored(&mut holder, 1..=4);
    let hold = read(&mut holder, "k1");
    assert!(holder.pin(at(0), &name("k2"), Pin::Hard));
    assert!(holder.pin(at(0), &name("k3"), Pin::Soft { for_ms: 1000 }));
    assert!(!holder.pin(at(0), &name("k0"), Pin::Hard));
    fill(&mut holder, at(0), reserve_spec(9, "k9", 6 * ALIGNMENT_BYTES));
    let verified = verified(&mut holder, 9, "k9", 6 * ALIGNMENT_BYTES);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    while holder.evict_some(at(1)) {}
    assert_eq!(gone(&mut holder), ["k4"], "of the others none may go");
    let account = holder.pin_account();
    let share = |objects, units: u64| Share {
        objects,
        bytes: units * ALIGNMENT_BYTES,
    };
    assert_eq!(
        (account.evictable, account.soft, account.hard),
        (share(2, 7), share(1, 1), share(1, 1))
    );
    holder.end_read(hold);
    holder.report(at(0), unreported);
    holder.touch(at(2), &name("k1"));
    while holder.evict_some(at(2)) {}
    assert_eq!(gone(&mut holder), ["k9"], "it was not used, and then there is room");
    holder.expire(at(1000));
    stored(&mut holder, [10, 11, 12, 13, 14, 15]);
    while holder.evict_some(at(1001)) {}
    let gone = gone(&mut holder);
    assert!(
        gone.contains(&"k3".to_owned()) && !gone.contains(&"k2".to_owned()),
        "{gone:?}"
    );
}

#[test]
fn an_object_that_is_put_with_a_pin_has_it() {
    let mut holder = evicting(4, 100);
    let spec = ReserveSpec {
        pin: Pin::Hard,
        ..reserve_spec(1, "k1", 2 * ALIGNMENT_BYTES)
    };
    fill(&mut holder, at(0), spec);
    let verified = verified(&mut holder, 1, "k1", 2 * ALIGNMENT_BYTES);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    holder.report(at(0), unreported);
    stored(&mut holder, [2, 3]);
    assert!(
        !holder.make_room(at(0), 3 * ALIGNMENT_BYTES),
        "a pinned object is in the way"
    );
    assert_eq!(gone(&mut holder), [""; 0]);
    assert!(holder.pin(at(0), &name("k1"), Pin::None));
    assert!(holder.make_room(at(0), 3 * ALIGNMENT_BYTES));
}

#[test]
fn for_a_request_those_go_that_cost_least_and_lie_together() {
    let mut holder = evicting(16, 100);
    stored(&mut holder, 1..=16);
    for key in ["k1", "k2", "k3", "k4"] {
        use_of(&mut holder, key);
    }
    assert!(holder.make_room(at(1), 2 * ALIGNMENT_BYTES));
    let first = gone(&mut holder);
    assert_eq!(first, ["k5", "k6"], "the oldest neighbours that were not used");
    assert!(reserve(&mut holder, at(1), reserve_spec(100, "k", 2 * ALIGNMENT_BYTES)).is_ok());
}

#[test]
fn free_bytes_beside_objects_are_a_part_of_the_hole() {
    let mut holder = evicting(6, 100);
    stored(&mut holder, 1..=6);
    assert!(holder.remove(at(0), hash("k4"), version(4)));
    use_of(&mut holder, "k1");
    use_of(&mut holder, "k2");
    assert!(holder.make_room(at(1), 2 * ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder), ["k3"]);
}

#[test]
fn a_request_that_no_eviction_serves_evicts_nothing() {
    let (mut holder, _) = holder_with(&[(4 * ALIGNMENT_BYTES, 9), (2 * ALIGNMENT_BYTES, 9)], Some(MARKS));
    stored(&mut holder, 1..=6);
    let keys = (1..=6).map(|id| format!("k{id}"));
    let (middle, others): (Vec<_>, Vec<_>) = keys.partition(|key| {
        let replica = holder.lookup(&name(key)).unwrap().replica;
        replica.segment == SegmentId(1) && (1..=2).contains(&(replica.offset_bytes / ALIGNMENT_BYTES))
    });
    for key in &middle {
        assert!(holder.pin(at(0), &name(key), Pin::Hard));
    }
    for units in [3, 4, 5, 6] {
        assert!(!holder.make_room(at(0), units * ALIGNMENT_BYTES), "{units}");
    }
    assert_eq!(gone(&mut holder), [""; 0]);
    assert!(holder.make_room(at(0), 2 * ALIGNMENT_BYTES));
    let gone = gone(&mut holder);
    assert!(
        gone.len() == 2 && gone.iter().all(|key| others.contains(key)),
        "{gone:?}"
    );
}

#[test]
fn softly_pinned_objects_go_for_a_request_if_nothing_else_does() {
    let mut holder = evicting(4, 100);
    stored(&mut holder, 1..=4);
    for key in ["k1", "k2"] {
        assert!(holder.pin(at(0), &name(key), Pin::Soft { for_ms: 1000 }));
    }
    assert!(holder.make_room(at(1), 2 * ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder), ["k3", "k4"]);
    stored(&mut holder, [5, 6]);
    assert!(holder.make_room(at(1), 3 * ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder).len(), 3);
}

#[test]
fn where_descriptors_are_missing_one_object_goes() {
    let mut holder = evicting(8, 3);
    stored(&mut holder, 1..=3);
    let refused = reserve(&mut holder, at(0), reserve_spec(9, "k", ALIGNMENT_BYTES)).unwrap_err();
    assert!(
        matches!(refused, ReserveError::NoSpace(numbers) if numbers.stop_reason == "slots" && numbers.evictable_bytes == 3 * ALIGNMENT_BYTES)
    );
    assert!(holder.make_room(at(0), ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder), ["k1"]);
    assert!(reserve(&mut holder, at(0), reserve_spec(9, "k", ALIGNMENT_BYTES)).is_ok());
}

#[test]
fn a_holder_that_does_not_evict_says_that_nothing_may_go() {
    let (mut holder, _) = holder_with(&[(2 * ALIGNMENT_BYTES, 9)], None);
    stored(&mut holder, [1, 2]);
    assert!(!holder.evict_some(at(0)) && !holder.make_room(at(0), ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder), [""; 0]);
    let refused = reserve(&mut holder, at(0), reserve_spec(9, "k", 1)).unwrap_err();
    assert!(matches!(refused, ReserveError::NoSpace(numbers) if numbers.evictable_bytes == 0));
}

#[test]
fn of_many_regions_a_hole_is_found_near_those_that_are_to_go_or_anywhere() {
    const UNITS: u64 = 5000;
    let mut holder = evicting(UNITS, 5000);
    for number in 0..UNITS {
        let key = format!("k{number}");
        store(&mut holder, u8::try_from(number % 251).unwrap(), &key, ALIGNMENT_BYTES);
    }
    assert!(holder.make_room(at(1), 3 * ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder), ["k0", "k1", "k2"]);
    // Every second one is pinned, but for the last three.
    for number in (3..UNITS - 3).step_by(2) {
        assert!(holder.pin(at(1), &name(&format!("k{number}")), Pin::Hard));
    }
    assert!(reserve(&mut holder, at(1), reserve_spec(9, "k", 3 * ALIGNMENT_BYTES)).is_ok());
    assert!(holder.make_room(at(2), 4 * ALIGNMENT_BYTES));
    assert_eq!(gone(&mut holder).len(), 4);
}

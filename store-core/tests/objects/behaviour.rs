//! Each rule of the holder by itself.

use crate::fixture::*;
use crate::steps::*;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, Generation, PutId, SegmentId};
use tenon_protocol::message::PutOutcome;
use tenon_protocol::name::Namespace;
use tenon_store_core::objects::*;
use tenon_store_core::time::Time;

#[test]
fn an_object_is_found_after_its_seal_and_gone_after_its_removal() {
    let (mut holder, tables) = holder(&[(1 << 20, 4)]);
    assert_eq!(store(&mut holder, 1, "k", 1000).outcome, PutOutcome::Stored);
    let info = holder.lookup(&name("k")).unwrap();
    assert_eq!(
        (info.len_bytes, info.version, info.sealed_unix_ms),
        (1000, version(1), 5)
    );
    assert_eq!(info.fingerprint[..], [1; 3]);
    assert_eq!(holder.lookup_hash(hash("k")), Some(info.clone()));
    assert_eq!(tables[0].described().len(), 1);
    assert_eq!(tables[0].described()[0].row.generation, info.replica.generation);
    assert_eq!(holder.account().sealed_bytes, 1024, "occupied bytes are counted");
    assert!(
        !holder.remove(Time::ZERO, hash("k"), version(2)),
        "another version is not removed"
    );
    assert!(holder.remove(Time::ZERO, hash("k"), version(1)));
    assert_eq!((holder.lookup(&name("k")), tables[0].described().len()), (None, 0));
    assert_empty(&holder);
}

#[test]
fn reserving_again_answers_the_same_region_and_another_length_is_refused() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let first = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap();
    let again = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap();
    assert!(first.needs_grant && !again.needs_grant);
    assert_eq!((again.region, again.slot), (first.region, first.slot));
    let error = reserve(&mut holder, at(0), reserve_spec(1, "k", 101)).unwrap_err();
    assert_eq!(ServiceError::from(error).code, ErrorCode::InvalidArgument);
    let other = ReserveSpec {
        owner: owner(9),
        ..reserve_spec(1, "k", 100)
    };
    assert!(
        reserve(&mut holder, at(0), other).unwrap().needs_grant,
        "another session needs a grant of its own"
    );
    assert_eq!(
        holder.abort(put(1), &name("k"), owner(1).session),
        Ok(false),
        "it is not the first session's any more"
    );
    holder.session_ended(owner(1));
    assert_eq!(holder.account().reservations, 1);
    holder.session_ended(owner(9));
    assert_empty(&holder);
}

#[test]
fn every_reservation_has_a_new_generation() {
    let (mut holder, _) = holder(&[(1 << 20, 1)]);
    let mut last = Generation::base(INCARNATION);
    for round in 0..5 {
        let reserved = reserve(&mut holder, at(0), reserve_spec(round, "k", 100)).unwrap();
        assert!(reserved.region.generation > last);
        last = reserved.region.generation;
        assert!(holder.abort(put(round), &name("k"), owner(round).session).unwrap());
    }
}

#[test]
fn a_put_that_does_not_fit_gets_the_reason_in_numbers() {
    let (mut holder, _) = holder(&[(4096, 2), (1024, 1)]);
    let no_space = |holder: &mut TestHolder, len_bytes| match reserve(holder, at(0), reserve_spec(9, "k", len_bytes)) {
        Err(ReserveError::NoSpace(numbers)) => numbers,
        other => panic!("{other:?}"),
    };
    match reserve(&mut holder, at(0), reserve_spec(9, "k", 4097)) {
        Err(ReserveError::TooLarge(numbers)) => assert_eq!(
            (
                numbers.asked_bytes,
                numbers.free_bytes,
                numbers.largest_segment_bytes,
                numbers.stop_reason.as_str()
            ),
            (4097, 4096 + 1024, 4096, "too_large")
        ),
        other => panic!("{other:?}"),
    }
    reserve(&mut holder, at(0), reserve_spec(1, "k", 3000)).unwrap();
    let numbers = no_space(&mut holder, 2000);
    assert_eq!(
        (numbers.asked_bytes, numbers.free_bytes, numbers.largest_free_bytes),
        (2000, 1024 + 1088, 1088)
    );
    assert_eq!(
        (numbers.entries_looked_at, numbers.stop_reason.as_str()),
        (2, "nothing_fits")
    );
    reserve(&mut holder, at(0), reserve_spec(2, "k", 64)).unwrap();
    reserve(&mut holder, at(0), reserve_spec(3, "k", 64)).unwrap();
    assert_eq!(no_space(&mut holder, 64).stop_reason, "slots");
}

#[test]
fn by_default_a_put_fails_only_if_no_segment_of_many_holds_it() {
    let segments: Vec<_> = (0..300).map(|_| (4096, 4)).collect();
    let (mut holder, _) = holder(&segments);
    for round in 0..300_u32 {
        let spec = ReserveSpec {
            put_id: PutId::from_bytes(u128::from(round + 1000).to_be_bytes()),
            ..reserve_spec(1, "k", 2112)
        };
        reserve(&mut holder, at(0), spec).unwrap();
    }
    // Every segment has 1,984 bytes left; one of them gets its first half back.
    let freed = PutId::from_bytes(1_137_u128.to_be_bytes());
    assert_eq!(holder.abort(freed, &name("k"), owner(1).session), Ok(true));
    reserve(&mut holder, at(0), reserve_spec(2, "k", 4096)).expect("one segment of 300 holds it");
    let Err(ReserveError::NoSpace(numbers)) = reserve(&mut holder, at(0), reserve_spec(3, "k", 1985)) else {
        panic!("nothing holds it")
    };
    assert_eq!((numbers.largest_free_bytes, numbers.entries_looked_at), (1984, 300));
    holder.check_invariants();
}

#[test]
fn a_segment_without_slots_is_passed_over_though_it_has_the_tightest_room() {
    let (mut holder, _) = holder(&[(1024, 1), (4096, 2)]);
    let first = reserve(&mut holder, at(0), reserve_spec(1, "k", 64)).unwrap();
    let second = reserve(&mut holder, at(0), reserve_spec(2, "k", 64)).unwrap();
    assert_eq!(
        (first.region.segment, second.region.segment),
        (SegmentId(1), SegmentId(2))
    );
    assert_eq!(holder.abort(put(1), &name("k"), owner(1).session), Ok(true));
    let third = reserve(&mut holder, at(0), reserve_spec(3, "k", 64)).unwrap();
    assert_eq!(third.region.segment, SegmentId(1), "its slot is back");
    holder.check_invariants();
}

#[test]
fn bad_arguments_of_a_reservation_are_named() {
    let (mut holder, _) = holder(&[(4096, 2)]);
    let code = |holder: &mut TestHolder, spec| ServiceError::from(reserve(holder, at(0), spec).unwrap_err()).code;
    assert_eq!(code(&mut holder, reserve_spec(1, "k", 0)), ErrorCode::EmptyObject);
    assert_eq!(
        code(&mut holder, reserve_spec(1, "k", 1 << 40)),
        ErrorCode::ObjectTooLarge
    );
    for ttl_ms in [0, u32::MAX] {
        let ttl_ms = Some(ttl_ms);
        let spec = ReserveSpec {
            ttl_ms,
            ..reserve_spec(1, "k", 10)
        };
        assert_eq!(code(&mut holder, spec), ErrorCode::InvalidArgument);
    }
    let (mut empty, _) = crate::fixture::holder(&[]);
    assert_eq!(code(&mut empty, reserve_spec(1, "k", 10)), ErrorCode::NoSpace);
    assert_empty(&holder);
}

#[test]
fn a_reservation_expires_its_time_to_live_after_the_last_byte() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    write(&mut holder, at(20_000), region, 0, 10, 0);
    holder.expire(at(49_999));
    assert_eq!(holder.account().reservations, 1);
    holder.expire(at(50_000));
    assert_empty(&holder);
    let ended = holder.take_ended();
    assert_eq!(
        (ended.len(), ended[0].region, ended[0].reason),
        (1, region, EndReason::Expired)
    );
    assert_eq!(holder.begin_write(region, 0, 1).unwrap_err(), HoldError::Stale);
    assert_eq!(begin(&mut holder, 1, "k", 100).unwrap_err(), CommitError::UnknownPut);
}

#[test]
fn a_reservation_does_not_expire_while_bytes_arrive() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    let hold = holder.begin_write(region, 0, 100).unwrap();
    holder.expire(at(100_000));
    assert_eq!(holder.account().reservations, 1);
    holder.end_write(hold);
    holder.expire(at(129_999));
    assert_eq!(holder.account().reservations, 1);
    holder.expire(at(130_000));
    assert_empty(&holder);
}

#[test]
fn a_region_given_up_during_a_write_is_held_until_the_write_is_over() {
    let (mut holder, _) = holder(&[(4096, 1)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    let holds = [
        holder.begin_write(region, 0, 50).unwrap(),
        holder.begin_write(region, 50, 50).unwrap(),
    ];
    assert_eq!(holder.abort(put(1), &name("k"), owner(1).session), Ok(true));
    for hold in holds {
        assert_eq!(holder.account().held_bytes, 128);
        holder.check_invariants();
        let error = reserve(&mut holder, at(0), reserve_spec(2, "k", 100)).unwrap_err();
        let ReserveError::NoSpace(numbers) = error else {
            panic!("{error:?}")
        };
        assert_eq!((numbers.held_bytes, numbers.stop_reason.as_str()), (128, "slots"));
        holder.wrote(at(1), region, 0, 50, 0);
        holder.end_write(hold);
    }
    assert_empty(&holder);
}

#[test]
fn a_newly_accepted_object_takes_the_place_of_an_older_one() {
    let (mut holder, tables) = holder(&[(1 << 20, 4)]);
    store(&mut holder, 1, "k", 100);
    let old = holder.lookup(&name("k")).unwrap().replica;
    let read = holder.begin_read(old.segment, old.offset_bytes, 100).unwrap();
    fill(&mut holder, at(0), reserve_spec(2, "k", 200));
    let verified = verified(&mut holder, 2, "k", 200);
    let unreported = holder.seal(
        verified,
        Accepted {
            epoch: Epoch(2),
            degraded: false,
        },
        0,
    );
    holder.report(at(0), unreported);
    assert_eq!(holder.lookup(&name("k")).unwrap().len_bytes, 200);
    assert_eq!(tables[0].described().len(), 1);
    assert_eq!((holder.account().objects, holder.account().held_bytes), (1, 128));
    holder.end_read(read);
    assert_eq!(holder.account().held_bytes, 0);
    holder.check_invariants();
}

#[test]
fn a_removed_object_is_held_until_its_last_reader_is_done() {
    let (mut holder, tables) = holder(&[(1 << 20, 4)]);
    store(&mut holder, 1, "k", 1000);
    let replica = holder.lookup(&name("k")).unwrap().replica;
    let holds: Vec<_> = (0..2)
        .map(|at| {
            holder
                .begin_read(replica.segment, replica.offset_bytes + at, 999)
                .unwrap()
        })
        .collect();
    assert_eq!(holds[0].generation(), replica.generation);
    assert!(holder.remove(Time::ZERO, hash("k"), version(1)));
    assert!(
        tables[0].described().is_empty(),
        "readers elsewhere see it gone at once"
    );
    assert_eq!(
        holder.begin_read(replica.segment, replica.offset_bytes, 1).unwrap_err(),
        HoldError::Stale
    );
    for hold in holds {
        assert_eq!(holder.account().held_bytes, 1024);
        holder.end_read(hold);
    }
    assert_empty(&holder);
}

#[test]
fn only_ranges_inside_one_sealed_object_can_be_read() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    store(&mut holder, 1, "a", 100);
    let replica = holder.lookup(&name("a")).unwrap().replica;
    let reserved = reserve(&mut holder, at(0), reserve_spec(2, "b", 100)).unwrap().region;
    let mut error = |offset_bytes, len_bytes| holder.begin_read(replica.segment, offset_bytes, len_bytes).unwrap_err();
    let start = replica.offset_bytes;
    assert_eq!(error(start, 0), HoldError::OutOfRange);
    assert_eq!(error(start, 101), HoldError::OutOfRange);
    assert_eq!(error(start + 99, u64::MAX), HoldError::OutOfRange);
    assert_eq!(
        error(start + 100, 1),
        HoldError::Stale,
        "the rounding belongs to no object"
    );
    assert_eq!(
        error(reserved.offset_bytes, 1),
        HoldError::Stale,
        "what is not sealed is not read"
    );
    assert_eq!(error(1 << 19, 1), HoldError::Stale);
    assert_eq!(holder.begin_read(SegmentId(2), 0, 1).unwrap_err(), HoldError::Stale);
    assert_eq!(holder.begin_read(SegmentId(0), 0, 1).unwrap_err(), HoldError::Stale);
}

#[test]
fn writes_stay_inside_their_region() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    for (offset_bytes, len_bytes) in [(0, 0), (0, 101), (100, 1), (1, u64::MAX)] {
        assert_eq!(
            holder.begin_write(region, offset_bytes, len_bytes).unwrap_err(),
            HoldError::OutOfRange
        );
    }
    let other = RegionId {
        generation: region.generation.next(),
        ..region
    };
    assert_eq!(holder.begin_write(other, 0, 1).unwrap_err(), HoldError::Stale);
}

#[test]
fn listings_are_ordered_and_paged_by_prefix() {
    let (mut holder, _) = holder(&[(1 << 20, 16)]);
    for (put_id, key) in (1..).zip(["b/2", "a", "b/1", "b", "c", "b/3"]) {
        store(&mut holder, put_id, key, 10);
    }
    let namespace = Namespace::new(Namespace::DEFAULT).unwrap();
    let keys = |prefix: &str, after: Option<&str>, limit| {
        let page = holder.list(&namespace, prefix, after, limit);
        let keys: Vec<_> = page.entries.into_iter().map(|entry| entry.key).collect();
        (keys.join(" "), page.more)
    };
    assert_eq!(keys("", None, 10), ("a b b/1 b/2 b/3 c".into(), false));
    assert_eq!(keys("b/", None, 2), ("b/1 b/2".into(), true));
    assert_eq!(keys("b/", Some("b/2"), 2), ("b/3".into(), false));
    assert_eq!(
        keys("b", Some("a"), 1),
        ("b".into(), true),
        "a cursor before the prefix skips nothing"
    );
    assert_eq!(keys("b", Some("c"), 5), (String::new(), false));
    assert_eq!(keys("d", None, 5), (String::new(), false));
    let other = Namespace::new("other").unwrap();
    assert!(holder.list(&other, "", None, 5).entries.is_empty());
    assert_eq!(holder.list(&namespace, "a", None, 5).entries[0].holders, [NODE]);
}

//! What a commit refuses, and what is remembered of it.

use crate::fixture::*;
use crate::steps::*;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::member::HomeAnswer;
use tenon_protocol::message::PutOutcome;
use tenon_store_core::objects::*;
use tenon_store_core::time::Time;

#[test]
fn the_end_of_a_session_ends_its_reservations_but_not_those_being_committed() {
    let (mut holder, _) = holder(&[(1 << 20, 8)]);
    for (key, session) in [("a", 1), ("b", 1), ("c", 2)] {
        let spec = ReserveSpec {
            owner: owner(session),
            ..reserve_spec(1, key, 100)
        };
        fill(&mut holder, at(0), spec);
    }
    let committing = begin(&mut holder, 1, "b", 100).unwrap();
    holder.session_ended(owner(1));
    holder.expire(at(29_999));
    let ended: Vec<_> = holder.take_ended().iter().map(|ended| ended.key_hash).collect();
    assert_eq!(ended, [hash("a")]);
    holder.check_invariants();
    holder.session_ended(owner(2));
    holder.expire(at(1_000_000));
    assert_eq!(holder.account().reservations, 1);
    holder.abandon(committing);
    assert_empty(&holder);
}

#[test]
fn pieces_that_arrived_whole_need_not_be_read_and_are_compared() {
    const LEN: u64 = 2 * PIECE_BYTES + 5;
    let (mut holder, _) = holder(&[(16 << 20, 4)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", LEN)).unwrap().region;
    write(&mut holder, at(0), region, 0, PIECE_BYTES, piece_checksum(1, 0));
    write(&mut holder, at(0), region, 2 * PIECE_BYTES, 5, piece_checksum(1, 2));
    write(&mut holder, at(0), region, PIECE_BYTES, 1, 0);
    write(&mut holder, at(0), region, PIECE_BYTES + 1, PIECE_BYTES - 1, 0);
    let unverified = begin(&mut holder, 1, "k", LEN).unwrap();
    assert_eq!(unverified.unknown_pieces(), [1]);
    assert_eq!((unverified.region(), unverified.len_bytes()), (region, LEN));
    assert_eq!(holder.begin_write(region, 0, 1).unwrap_err(), HoldError::Committing);
    let error = holder.verify(unverified, &[12]).unwrap_err();
    assert!(matches!(
        error,
        CommitError::Mismatch {
            piece: 1,
            arrived: 12,
            ..
        }
    ));
    assert_empty(&holder);

    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", LEN)).unwrap().region;
    write(&mut holder, at(0), region, 0, LEN, 0);
    write(&mut holder, at(0), region, PIECE_BYTES, PIECE_BYTES, 12);
    let error = begin(&mut holder, 1, "k", LEN).unwrap_err();
    assert_eq!(ServiceError::from(error).code, ErrorCode::ChecksumMismatch);
    assert_empty(&holder);
}

#[test]
fn an_object_of_which_bytes_were_never_written_is_refused_whatever_the_memory_holds() {
    const LEN: u64 = 2 * PIECE_BYTES + 5;
    let (mut holder, _) = holder(&[(16 << 20, 4)]);
    for (written, missing) in [
        (&[][..], 0),
        (&[(0, PIECE_BYTES)], PIECE_BYTES),
        (&[(0, LEN - 1)], LEN - 1),
        (&[(1, LEN)], 0),
        (&[(0, PIECE_BYTES + 7), (PIECE_BYTES + 8, LEN)], PIECE_BYTES + 7),
    ] {
        let region = reserve(&mut holder, at(0), reserve_spec(1, "k", LEN)).unwrap().region;
        for &(start, end) in written {
            // Wrong bytes: that they are wrong is not said before all are there.
            write(&mut holder, at(0), region, start, end - start, 1);
        }
        // A write that broke off has brought nothing.
        let broken = holder.begin_write(region, 0, LEN).unwrap();
        holder.end_write(broken);
        let error = begin(&mut holder, 1, "k", LEN).unwrap_err();
        let expected = CommitError::Unwritten {
            offset_bytes: missing,
            len_bytes: LEN,
        };
        assert_eq!(error, expected);
        assert_eq!(ServiceError::from(error).code, ErrorCode::BytesMissing);
        assert_empty(&holder);
    }
}

#[test]
fn what_an_earlier_reservation_of_the_same_bytes_was_written_counts_for_that_one_alone() {
    let (mut holder, _) = holder(&[(1 << 20, 1)]);
    let earlier = fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    assert!(holder.abort(put(1), &name("k"), owner(1).session).unwrap());
    let later = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    assert_eq!(later.offset_bytes, earlier.offset_bytes);
    let error = begin(&mut holder, 1, "k", 100).unwrap_err();
    assert_eq!(ServiceError::from(error).code, ErrorCode::BytesMissing);
    assert_empty(&holder);
}

#[test]
fn a_commit_that_describes_no_such_object_fails_and_leaves_nothing() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let mut wrong_whole = commit_spec(1, "k", 100);
    wrong_whole.checksums.whole ^= 1;
    let mut no_pieces = commit_spec(1, "k", 100);
    no_pieces.checksums.pieces.clear();
    let long_fingerprint = CommitSpec {
        fingerprint: vec![0; 33],
        ..commit_spec(1, "k", 100)
    };
    for spec in [wrong_whole, no_pieces, long_fingerprint] {
        reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap();
        let error = holder.begin_commit(at(0), spec).unwrap_err();
        assert_eq!(ServiceError::from(error).code, ErrorCode::InvalidArgument);
        assert_empty(&holder);
    }
}

#[test]
fn a_second_commit_of_a_put_waits_for_the_first_and_gets_its_outcome() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let again = |holder: &mut TestHolder| holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
    let verified = verified(&mut holder, 1, "k", 100);
    assert!(matches!(again(&mut holder), CommitStep::Wait));
    assert_eq!(
        holder.abort(put(1), &name("k"), owner(1).session),
        Err(CommitInProgress)
    );
    let unreported = holder.seal(verified, ACCEPTED, 0);
    assert!(
        matches!(again(&mut holder), CommitStep::Wait),
        "the homes do not know it yet"
    );
    let outcome = holder.report(at(0), unreported);
    assert!(matches!(again(&mut holder), CommitStep::Done(done) if done == outcome));
    assert_eq!(holder.abort(put(1), &name("k"), owner(1).session), Ok(false));
}

#[test]
fn a_commit_waits_for_the_last_writes() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
    let hold = holder.begin_write(region, 0, 100).unwrap();
    assert!(matches!(
        holder.begin_commit(at(0), commit_spec(1, "k", 100)),
        Ok(CommitStep::Wait)
    ));
    holder.wrote(at(0), region, 0, 100, piece_checksum(1, 0));
    holder.end_write(hold);
    let unverified = begin(&mut holder, 1, "k", 100).unwrap();
    holder.abandon(unverified);
    assert_empty(&holder);
}

#[test]
fn a_retry_of_a_stored_put_is_told_so_and_its_second_region_is_freed() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let stored = store(&mut holder, 1, "k", 100);
    holder.take_ended();
    for removed in [false, true] {
        let region = reserve(&mut holder, at(0), reserve_spec(1, "k", 100)).unwrap().region;
        let step = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
        assert!(matches!(step, CommitStep::Done(done) if done == stored));
        let ended = holder.take_ended();
        assert_eq!((ended[0].region, ended[0].reason), (region, EndReason::NotNeeded));
        assert_eq!(holder.account().reservations, 0);
        assert_eq!(
            holder.remove(Time::ZERO, hash("k"), version(1)),
            !removed,
            "an outcome outlives its object"
        );
    }
    assert_empty(&holder);
}

#[test]
fn a_put_id_that_is_used_again_for_other_bytes_is_refused_and_changes_nothing() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    let stored = store(&mut holder, 1, "k", 100);
    for is_here in [true, false] {
        for reserved_bytes in [None, Some(100), Some(200)] {
            let len_bytes = reserved_bytes.unwrap_or(100);
            if let Some(len_bytes) = reserved_bytes {
                fill(&mut holder, at(0), reserve_spec(1, "k", len_bytes));
            }
            let other = CommitSpec {
                checksums: checksums(len_bytes, 7),
                ..commit_spec(1, "k", len_bytes)
            };
            let error = holder.begin_commit(at(0), other).unwrap_err();
            assert_eq!(ServiceError::from(error).code, ErrorCode::PutIdReused);
            assert_eq!(holder.account().reservations, 0);
            let same = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
            assert!(matches!(same, CommitStep::Done(done) if done == stored));
        }
        assert_eq!(holder.remove(at(0), hash("k"), version(1)), is_here);
    }
    assert_empty(&holder);
}

#[test]
fn a_put_yields_to_the_object_that_the_key_has() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    for (put_id, expected) in [(1, PutOutcome::AlreadyExists), (2, PutOutcome::Stored)] {
        fill(&mut holder, at(0), reserve_spec(put_id, "k", 100));
        let verified = verified(&mut holder, put_id, "k", 100);
        let outcome = holder.yield_to(at(0), verified, version(2), true);
        assert_eq!(
            (outcome.outcome, outcome.version, outcome.degraded),
            (expected, version(2), true)
        );
        let again = holder.begin_commit(at(0), commit_spec(put_id, "k", 100)).unwrap();
        assert!(matches!(again, CommitStep::Done(done) if done == outcome));
        assert_empty(&holder);
    }
}

#[test]
fn a_failed_put_is_not_remembered_and_can_be_tried_again() {
    let (mut holder, tables) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let verified = verified(&mut holder, 1, "k", 100);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    assert_eq!(unreported.version(), version(1));
    assert_eq!(holder.retract(at(0), unreported), None);
    assert_empty(&holder);
    assert!(tables[0].described().is_empty());
    assert_eq!(begin(&mut holder, 1, "k", 100).unwrap_err(), CommitError::UnknownPut);
    assert_eq!(store(&mut holder, 1, "k", 100).outcome, PutOutcome::Stored);
}

#[test]
fn an_object_whose_report_is_not_answered_stays_and_who_repeats_its_put_has_it_reported_again() {
    for asked in [false, true] {
        let (mut holder, _) = holder(&[(1 << 20, 4)]);
        fill(&mut holder, at(0), reserve_spec(1, "k", 100));
        let verified = verified(&mut holder, 1, "k", 100);
        let unreported = holder.seal(verified, ACCEPTED, 0);
        assert!(!holder.confirm(Time::ZERO, hash("k"), version(2)));
        if asked {
            assert!(holder.confirm(Time::ZERO, hash("k"), version(1)));
        }
        holder.keep_unanswered(unreported);
        assert!(holder.lookup(&name("k")).is_some());
        // The put is repeated, and what it reserved for that is not needed.
        fill(&mut holder, at(0), reserve_spec(1, "k", 100));
        let again = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
        assert_eq!(holder.account().reservations, 0);
        match again {
            CommitStep::Done(done) if asked => assert_eq!(done.outcome, PutOutcome::Stored),
            CommitStep::Report(unreported) if !asked => {
                let third = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
                assert!(matches!(third, CommitStep::Wait), "the second is under way: {third:?}");
                assert_eq!(holder.report(at(0), unreported).outcome, PutOutcome::Stored);
            }
            other => panic!("asked: {asked}, {other:?}"),
        }
        holder.check_invariants();
    }
}

#[test]
fn other_bytes_than_those_whose_report_was_not_answered_are_refused() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let verified = verified(&mut holder, 1, "k", 100);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    holder.keep_unanswered(unreported);
    let mut other = commit_spec(1, "k", 100);
    other.checksums = checksums(100, 2);
    assert_eq!(holder.begin_commit(at(0), other).unwrap_err(), CommitError::OtherBytes);
    let same = holder.begin_commit(at(0), commit_spec(1, "k", 100));
    assert!(matches!(same, Ok(CommitStep::Report(_))), "{same:?}");
}

#[test]
fn a_put_whose_object_a_home_has_had_dropped_before_its_report_is_known_to_be_stored() {
    for degraded in [false, true] {
        let (mut holder, _) = holder(&[(1 << 20, 4)]);
        fill(&mut holder, at(0), reserve_spec(1, "k", 100));
        let verified = verified(&mut holder, 1, "k", 100);
        let unreported = holder.seal(verified, Accepted { degraded, ..ACCEPTED }, 0);
        // The homes have the report, its answer is under way, and they remove the object.
        assert!(holder.remove(at(0), hash("k"), version(1)));
        let repeated = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
        let CommitStep::Done(repeated) = repeated else {
            panic!("{repeated:?}")
        };
        assert_eq!((repeated.outcome, repeated.version), (PutOutcome::Stored, version(1)));
        assert_eq!(holder.report(at(0), unreported), repeated);
        assert_empty(&holder);
    }
}

#[test]
fn a_put_whose_report_comes_to_nothing_is_stored_if_a_home_has_had_its_object_dropped() {
    for is_refused in [false, true] {
        let (mut holder, _) = holder(&[(1 << 20, 4)]);
        fill(&mut holder, at(0), reserve_spec(1, "k", 100));
        let verified = verified(&mut holder, 1, "k", 100);
        let unreported = holder.seal(verified, ACCEPTED, 0);
        assert!(holder.remove(at(0), hash("k"), version(1)));
        if is_refused {
            let stored = holder.retract(at(0), unreported).unwrap();
            assert_eq!((stored.outcome, stored.version), (PutOutcome::Stored, version(1)));
        } else {
            holder.keep_unanswered(unreported);
        }
        let again = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
        assert!(matches!(again, CommitStep::Done(done) if done.outcome == PutOutcome::Stored));
        assert_empty(&holder);
    }
}

#[test]
fn an_object_that_was_sealed_after_its_put_had_ended_otherwise_is_dropped_and_its_put_asked_for_anew() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let unreported = {
        let verified = verified(&mut holder, 1, "k", 100);
        holder.seal(verified, ACCEPTED, 0)
    };
    holder.keep_unanswered(unreported);
    assert!(holder.refuse(hash("k"), version(1)));
    assert_empty(&holder);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let again = holder.begin_commit(at(0), commit_spec(1, "k", 100)).unwrap();
    assert!(matches!(again, CommitStep::Verify(_)), "the homes say how it ended");
}

#[test]
fn an_object_that_the_homes_refuse_after_one_has_asked_for_it_is_dropped_and_its_put_forgotten() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let verified = verified(&mut holder, 1, "k", 100);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    assert!(holder.confirm(at(0), hash("k"), version(1)));
    assert_eq!(holder.retract(at(0), unreported), None);
    assert_eq!(begin(&mut holder, 1, "k", 100).unwrap_err(), CommitError::UnknownPut);
    assert_empty(&holder);
}

#[test]
fn an_acceptance_that_comes_late_takes_no_place_from_an_object_that_was_sealed_since() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    for put_id in [1, 2] {
        fill(&mut holder, at(0), reserve_spec(put_id, "k", 100));
    }
    let late = verified(&mut holder, 1, "k", 100);
    let accepted = |put_id| {
        Ok(HomeAnswer::Accepted {
            version: version(put_id),
            degraded: false,
        })
    };
    // The homes have given the first put up meanwhile, and the second is stored.
    let second = verified(&mut holder, 2, "k", 100);
    let Proposed::Sealed(unreported) = holder.proposed(at(0), second, accepted(2), 0) else {
        panic!("nothing speaks against it");
    };
    assert!(matches!(
        holder.reported(at(0), unreported, Ok(HomeAnswer::Done { changed: true })),
        Reported::Done(_)
    ));
    let Proposed::Failed { error, .. } = holder.proposed(at(0), late, accepted(1), 0) else {
        panic!("it would take the place of a stored object");
    };
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(holder.confirm(at(0), hash("k"), version(2)));
    holder.check_invariants();
}

#[test]
fn the_region_of_a_put_that_another_try_has_stored_elsewhere_is_freed() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let verified = verified(&mut holder, 1, "k", 100);
    let unreported = holder.seal(verified, ACCEPTED, 0);
    let elsewhere = Ok(HomeAnswer::AlreadyExists {
        version: version(1),
        degraded: false,
    });
    let Reported::Done(done) = holder.reported(at(0), unreported, elsewhere) else {
        panic!("it is stored");
    };
    assert_eq!((done.outcome, done.version), (PutOutcome::Stored, version(1)));
    assert_empty(&holder);
}

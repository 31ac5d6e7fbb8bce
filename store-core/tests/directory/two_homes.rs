//! What homes do when one of them does not answer.

use crate::cluster::*;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{Epoch, Generation, Version};
use tenon_protocol::member::{HomeAnswer, HomeEventKind, MirrorEntry};
use tenon_store_core::limits::{DIRECTORY_QUESTION_MS, PENDING_CHECK_MS};

fn version(epoch: u64, put_id: u64) -> Version {
    Version {
        epoch: Epoch(epoch),
        put_id: put(put_id),
    }
}

fn accepted(version: Version, degraded: bool) -> HomeAnswer {
    HomeAnswer::Accepted { version, degraded }
}

/// A cluster whose first home has begun a new life without its entries.
fn forget(cluster: &mut Cluster, home: usize) {
    cluster.directories[home] = directory(home);
}

#[test]
pub(crate) fn the_second_home_passes_decisions_on_to_the_first() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(SECOND, key(1), 1, 0);
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
    assert_eq!(cluster.call(SECOND, key(1), propose(2, 1, 1)), exists(stored, false));
    assert_eq!(cluster.call(SECOND, key(1), remove()), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), None);
}

#[test]
fn the_first_home_alone_marks_its_answers_degraded() {
    let mut cluster = Cluster::new(1);
    cluster.home_answers[SECOND] = false;
    for _ in 0..2 {
        assert_eq!(
            cluster.call(FIRST, key(1), propose(1, 0, 1)),
            Ok(accepted(version(1, 1), true))
        );
    }
    assert_eq!(cluster.call(FIRST, key(1), sealed(version(1, 1), 0)), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), Some(version(1, 1)));
}

#[test]
fn the_second_home_decides_when_the_first_does_not_answer() {
    let mut cluster = Cluster::new(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.home_answers[FIRST] = false;
    assert_eq!(cluster.located(SECOND, key(1)), Some(stored));
    assert_eq!(cluster.call(SECOND, key(1), propose(2, 1, 1)), exists(stored, true));
    assert_eq!(
        cluster.call(SECOND, key(2), propose(3, 1, 1)),
        Ok(accepted(version(1, 3), true))
    );
    assert_eq!(cluster.call(SECOND, key(2), sealed(version(1, 3), 1)), done(true));
    assert_eq!(cluster.call(SECOND, key(1), remove()), done(true));
    assert!(cluster.holders[0].sealed.is_empty());
}

#[test]
fn a_put_that_the_first_home_accepted_before_it_died_is_finished_at_the_second() {
    let mut cluster = Cluster::new(2);
    assert_eq!(
        cluster.call(FIRST, key(1), propose(1, 0, 1)),
        Ok(accepted(version(1, 1), false))
    );
    cluster.home_answers[FIRST] = false;
    let waiting = cluster.send(SECOND, key(1), propose(2, 1, 1));
    cluster.settle();
    assert!(cluster.answers.is_empty(), "the first home's decision stands");
    assert_eq!(
        cluster.call(SECOND, key(1), propose(1, 0, 1)),
        Ok(accepted(version(1, 1), false))
    );
    cluster.holders[0].sealed.insert(key(1), version(1, 1));
    assert_eq!(cluster.call(SECOND, key(1), sealed(version(1, 1), 0)), done(true));
    assert_eq!(cluster.answers[&waiting], exists(version(1, 1), true));
}

#[test]
fn a_partner_that_is_silent_costs_a_bounded_time() {
    let mut cluster = Cluster::new(1);
    let token = cluster.send(FIRST, key(1), propose(1, 0, 1));
    cluster.deliver(0);
    let to_partner = cluster.under_way.clone();
    cluster.under_way.clear();
    cluster.now = cluster.now.after_ms(DIRECTORY_QUESTION_MS);
    cluster.event(FIRST, tenon_store_core::directory::Event::Tick);
    assert_eq!(cluster.answers[&token], Ok(accepted(version(1, 1), true)));
    cluster.under_way = to_partner;
    cluster.settle();
    assert_eq!(cluster.answers.len(), 1, "an answer that comes late changes nothing");
}

#[test]
fn a_first_home_that_forgot_everything_learns_of_an_object_before_it_accepts_another() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    forget(&mut cluster, FIRST);
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(stored, false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
    assert_eq!(cluster.directories[FIRST].counts().pending, 0);
}

#[test]
fn a_first_home_that_forgot_everything_still_removes() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    forget(&mut cluster, FIRST);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert!(cluster.holders[0].sealed.is_empty());
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
fn a_stale_object_at_the_second_home_gives_way_once_its_holder_denies_it() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.home_answers[SECOND] = false;
    cluster.holders[0].sealed.clear();
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    cluster.home_answers[SECOND] = true;
    assert_eq!(
        cluster.call(FIRST, key(1), propose(2, 1, 1)),
        Ok(accepted(version(2, 2), false))
    );
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
fn only_the_first_home_tells_the_second() {
    let mut cluster = Cluster::new(1);
    let entry = MirrorEntry {
        epoch: 9,
        ..MirrorEntry::default()
    };
    let error = cluster.call(FIRST, key(1), HomeEventKind::Mirror(entry)).unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[test]
fn homes_that_accepted_apart_do_not_both_go_on() {
    let mut cluster = Cluster::new(2);
    cluster.home_answers[FIRST] = false;
    assert_eq!(
        cluster.call(SECOND, key(1), propose(1, 0, 1)),
        Ok(accepted(version(1, 1), true))
    );
    cluster.home_answers[FIRST] = true;
    let error = cluster.call(FIRST, key(1), propose(2, 1, 1)).unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(cluster.directories[FIRST].counts().pending, 0);
    // The one that was accepted goes on at the home that accepted it, and is found by the other.
    cluster.holders[0].sealed.insert(key(1), version(1, 1));
    cluster.pass(PENDING_CHECK_MS);
    cluster.settle();
    assert_eq!(
        cluster.call(FIRST, key(1), propose(2, 1, 1)),
        exists(version(1, 1), false)
    );
}

#[test]
fn what_the_second_home_accepted_alone_survives_a_word_of_the_first_that_is_about_nothing() {
    let mut cluster = Cluster::new(1);
    cluster.home_answers[FIRST] = false;
    assert_eq!(
        cluster.call(SECOND, key(1), propose(1, 0, 1)),
        Ok(accepted(version(1, 1), true))
    );
    cluster.home_answers[FIRST] = true;
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(false));
    cluster.home_answers[FIRST] = false;
    let sealed = sealed(version(1, 1), 0);
    assert_eq!(cluster.call(SECOND, key(1), sealed), done(true));
}

#[test]
fn an_object_that_both_homes_accepted_alone_is_pending_at_neither_once_it_is_sealed() {
    let mut cluster = Cluster::new(1);
    for (home, other) in [(SECOND, FIRST), (FIRST, SECOND)] {
        cluster.home_answers[other] = false;
        assert_eq!(
            cluster.call(home, key(1), propose(1, 0, 1)),
            Ok(accepted(version(1, 1), true))
        );
        cluster.home_answers[other] = true;
    }
    let sealed = sealed(version(1, 1), 0);
    assert_eq!(cluster.call(FIRST, key(1), sealed), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(version(1, 1)));
        assert_eq!(cluster.directories[home].counts().pending, 0);
    }
}

#[test]
fn a_request_that_waits_at_the_first_home_through_the_second_is_answered_in_time() {
    let mut cluster = Cluster::new(2);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    cluster.holders[0].sealed.insert(key(1), version(1, 1));
    let token = cluster.send(SECOND, key(1), propose(2, 1, 1));
    cluster.settle();
    cluster.now = cluster.now.after_ms(DEADLINE_MS);
    cluster.event(SECOND, tenon_store_core::directory::Event::Tick);
    let error = cluster.answers.remove(&token).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    cluster.event(FIRST, tenon_store_core::directory::Event::Tick);
    cluster.settle();
    for home in &cluster.directories {
        assert_eq!((home.counts().requests, home.counts().questions), (0, 0));
    }
}

#[test]
fn a_put_that_was_stored_is_told_so_also_after_another_has_taken_its_place() {
    let mut cluster = Cluster::new(3);
    let first = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    let second = cluster.store(FIRST, key(1), 2, 1);
    assert!(second.epoch > first.epoch);
    // Its client has lost the answer and repeats the put, on another holder.
    assert_eq!(
        cluster.call(FIRST, key(1), propose(1, 2, 1)),
        exists(first, false),
        "it has one outcome"
    );
    assert_eq!(cluster.located(FIRST, key(1)), Some(second));
}

#[test]
pub(crate) fn the_second_home_does_not_decide_only_because_the_callers_time_is_over() {
    let mut cluster = Cluster::new(1);
    let token = cluster.send(SECOND, key(1), propose(1, 0, 1));
    cluster.deliver(0);
    // It was passed on, and the first home is slow: the call ends with the caller's deadline, before the next tick.
    cluster.leave_or_give_up(0, true);
    cluster.now = cluster.now.after_ms(DEADLINE_MS);
    cluster.deliver(1);
    let error = cluster.answers.remove(&token).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    assert_eq!(cluster.directories[SECOND].counts().pending, 0);
}

#[test]
fn what_the_first_home_accepts_comes_after_what_the_second_has_removed_alone() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.home_answers[FIRST] = false;
    assert_eq!(cluster.call(SECOND, key(1), remove()), done(true));
    cluster.store(SECOND, key(1), 2, 0);
    assert_eq!(cluster.call(SECOND, key(1), remove()), done(true));
    // The first is back, and was not told yet.
    cluster.home_answers[FIRST] = true;
    let stored = cluster.store(FIRST, key(1), 3, 1);
    assert_eq!(stored, version(3, 3));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
}

#[test]
fn a_late_withdrawal_of_one_try_does_not_change_what_another_has_come_to() {
    let mut cluster = Cluster::new(3);
    let first = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(first, false));
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(2, 2)), done(false));
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(first, false));
}

#[test]
fn a_withdrawal_of_a_late_try_does_not_make_homes_forget_that_the_put_was_stored_and_removed() {
    let mut cluster = Cluster::new(3);
    let first = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    // A late try elsewhere was not answered in time, and its holder gives it up.
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 1)), done(false));
    cluster.store(FIRST, key(1), 2, 2);
    assert_eq!(cluster.call(FIRST, key(1), propose(1, 1, 1)), exists(first, false));
}

#[test]
fn a_withdrawal_of_a_late_try_does_not_make_homes_forget_a_stored_put_whose_holder_has_died() {
    let mut cluster = Cluster::new(3);
    let first = cluster.store(FIRST, key(1), 1, 0);
    cluster.restart(0);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), None);
    }
    // The second is asked while the first does not answer, and then the first.
    for (home, answers) in [(SECOND, false), (FIRST, true)] {
        cluster.home_answers[FIRST] = answers;
        assert_eq!(cluster.call(home, key(1), withdrawn(1, 1)), done(false));
    }
    cluster.store(FIRST, key(1), 2, 2);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), propose(1, 1, 1)), exists(first, false));
    }
}

#[test]
fn homes_and_holder_agree_on_a_put_whose_object_comes_to_light_when_it_is_beaten() {
    let mut cluster = Cluster::new(3);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    // Its holder stands still, and the homes give it up and take another.
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    let beaten = version(1, 1);
    cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    // Then it seals, and tells of its object, which it is to drop.
    cluster.holders[0].sealed.insert(key(1), beaten);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), publish(beaten, 0)), done(true));
    }
    assert!(!cluster.holders[0].sealed.contains_key(&key(1)));
    cluster.store(FIRST, key(1), 3, 1);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), propose(1, 2, 1)), exists(beaten, false));
    }
}

#[test]
fn a_holder_that_seals_after_its_put_has_ended_otherwise_is_not_told_that_it_is_stored() {
    let mut cluster = Cluster::new(3);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    // Its holder stands still, the homes take another, and another try of the put learns so.
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    let present = cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(cluster.call(FIRST, key(1), propose(1, 2, 1)), exists(present, false));
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    cluster.holders[0].sealed.insert(key(1), version(1, 1));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), publish(version(1, 1), 0)), done(true));
    }
    assert_eq!(cluster.holders[0].refused, [version(1, 1)]);
    assert!(cluster.holders[0].sealed.is_empty());
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), propose(1, 2, 1)), exists(present, false));
    }
}

#[test]
fn a_late_withdrawal_of_one_try_does_not_take_away_another_at_the_same_holder() {
    let mut cluster = Cluster::new(1);
    let again = HomeEventKind::Propose {
        put_id: put(1),
        len_bytes: 100,
        replicas: vec![replica(0, 1, 9)],
        replace: false,
    };
    let Ok(HomeAnswer::Accepted { version, .. }) = cluster.call(FIRST, key(1), again) else {
        panic!("nothing speaks against it");
    };
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(false));
    cluster.holders[0].sealed.insert(key(1), version);
    let again_sealed = HomeEventKind::Sealed {
        version,
        holder: holder_id(0),
        generation: Generation(9),
        replace: false,
    };
    assert_eq!(cluster.call(FIRST, key(1), again_sealed), done(true));
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(version));
}

#[test]
fn a_seal_of_another_try_of_the_put_learns_that_it_is_stored_elsewhere() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 1);
    // The first try was given up by the homes, and its holder did not know.
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), sealed(stored, 0)), exists(stored, false));
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
    assert_eq!(cluster.call(FIRST, key(1), sealed(stored, 1)), done(false));
}

#[test]
fn a_put_that_was_given_up_while_a_holder_was_asked_leaves_the_homes_in_agreement() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].sealed.clear();
    cluster.deadline_ms = DIRECTORY_QUESTION_MS / 2;
    let put = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.deliver(0);
    cluster.pass(cluster.deadline_ms);
    assert!(cluster.answers.remove(&put).expect("its time is over").is_err());
    cluster.settle();
    let found = [FIRST, SECOND].map(|home| cluster.located(home, key(1)));
    assert_eq!(found, [Some(stored); 2], "readers will find out that it is gone");
}

#[test]
fn what_is_stored_stays_though_the_partner_takes_for_sealed_late_what_was_lost_before() {
    let mut cluster = Cluster::new(3);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].sealed.clear();
    let lost = version(2, 2);
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), Ok(accepted(lost, false)));
    // The second home stands still, and is given up, with the word that this one is sealed on its way.
    let seal = cluster.send(FIRST, key(1), sealed(lost, 1));
    cluster.deliver(0);
    cluster.home_answers[SECOND] = false;
    cluster.leave_or_give_up(0, true);
    let late = cluster.under_way.remove(0);
    cluster.restart(1);
    cluster.hear(FIRST, holder_id(1));
    cluster.settle();
    assert!(cluster.answers.remove(&seal).expect("decided alone").is_err());
    let stored = cluster.store(FIRST, key(1), 3, 2);
    cluster.home_answers[SECOND] = true;
    cluster.under_way.push(late);
    cluster.settle();
    for home in [FIRST, SECOND] {
        cluster.meet(home);
        cluster.settle();
    }
    let found = [FIRST, SECOND].map(|home| cluster.located(home, key(1)));
    assert_eq!(found, [Some(stored); 2]);
}

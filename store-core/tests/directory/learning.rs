//! What homes do to come to know what they do not know, and to let others know what those missed.

use crate::cluster::*;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{Epoch, Incarnation, Version};
use tenon_protocol::member::{HomeAnswer, HomeEventKind};
use tenon_store_core::directory::Event;
use tenon_store_core::limits::{
    COLLECT_MS, LEARNING_PAUSE_MS, PAGE_STEP_KEYS_MAX, PENDING_CHECK_MS, RETRY_MS, UNTOLD_KEYS_MAX,
};
use tenon_store_core::time::Time;

pub(crate) fn version(epoch: u64, put_id: u64) -> Version {
    Version {
        epoch: Epoch(epoch),
        put_id: put(put_id),
    }
}

/// Two homes that know all members and each other.
pub(crate) fn met(holders: usize) -> Cluster {
    let mut cluster = Cluster::new(holders);
    for home in [FIRST, SECOND] {
        cluster.meet(home);
    }
    cluster.settle();
    assert!(cluster.directories.iter().all(|home| home.counts().is_settled()));
    cluster
}

/// A home begins a new life, and knows nothing.
pub(crate) fn restart(cluster: &mut Cluster, home: usize) {
    cluster.directories[home] = directory(home);
}

fn locate(cluster: &mut Cluster, home: usize) -> HomeAnswer {
    cluster.call(home, key(1), HomeEventKind::Locate).unwrap()
}

/// One home does not answer, and the other knows that.
pub(crate) fn lose(cluster: &mut Cluster, home: usize) {
    cluster.home_answers[home] = false;
    let node = home_id(home);
    cluster.event(1 - home, Event::Lost { node });
}

/// It answers again, and both hear of each other.
pub(crate) fn find(cluster: &mut Cluster, home: usize) {
    cluster.home_answers[home] = true;
    cluster.hear(1 - home, home_id(home));
    cluster.hear(home, home_id(1 - home));
}

#[test]
fn a_home_that_begins_anew_learns_from_its_partner_and_from_holders() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    restart(&mut cluster, FIRST);
    cluster.meet(FIRST);
    assert_eq!(
        cluster.directories[FIRST].counts().unannounced,
        3,
        "nobody has answered yet"
    );
    cluster.settle();
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
}

#[test]
fn both_homes_learn_from_holders_when_they_begin_anew_one_after_the_other() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 1);
    for home in [FIRST, SECOND] {
        restart(&mut cluster, home);
    }
    for home in [FIRST, SECOND] {
        cluster.meet(home);
    }
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert!(cluster.holders[1].sealed.is_empty());
}

#[test]
fn a_member_that_is_not_seen_is_not_waited_for_and_asked_once_it_is() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    for home in [FIRST, SECOND] {
        restart(&mut cluster, home);
    }
    for home in [FIRST, SECOND] {
        cluster.meet(home);
        cluster.event(home, Event::Lost { node: holder_id(0) });
    }
    cluster.settle();
    assert_eq!(locate(&mut cluster, FIRST), HomeAnswer::Miss);
    cluster.holders[0].answers = true;
    cluster.pass(RETRY_MS);
    cluster.hear(FIRST, holder_id(0));
    assert_eq!(
        cluster.directories[FIRST].counts().unannounced,
        1,
        "it is waited for from now on"
    );
    cluster.settle();
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
}

#[test]
fn a_put_at_a_home_that_does_not_know_all_is_decided_with_what_its_partner_knows() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    restart(&mut cluster, FIRST);
    let members = vec![home_id(FIRST), home_id(SECOND), holder_id(0), holder_id(1)];
    cluster.event(FIRST, Event::View { members });
    cluster.event(FIRST, heard(home_id(SECOND), Incarnation(1)));
    cluster.under_way.clear();
    assert!(!cluster.directories[FIRST].counts().is_settled());
    let put = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.settle();
    assert_eq!(cluster.answers.remove(&put), Some(exists(stored, false)));
}

#[test]
fn what_a_home_decided_alone_it_tells_its_partner_which_is_out_of_step_until_then() {
    let mut cluster = met(2);
    cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, FIRST);
    assert_eq!(cluster.call(SECOND, key(1), remove()), done(true));
    let stored = cluster.store(SECOND, key(1), 2, 1);
    assert_eq!(stored, version(2, 2));
    assert_eq!(cluster.directories[SECOND].counts().untold, 1);
    find(&mut cluster, FIRST);
    assert_eq!(
        cluster.directories[FIRST].counts().out_of_step,
        1,
        "it is told that something is withheld"
    );
    cluster.settle();
    assert_eq!(cluster.directories[SECOND].counts().untold, 0);
    cluster.hear(FIRST, home_id(SECOND));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
}

#[test]
fn a_partner_that_missed_more_than_is_remembered_takes_all() {
    let mut cluster = met(1);
    lose(&mut cluster, SECOND);
    let hash = |id: u64| tenon_protocol::ids::KeyHash::from_bytes(u128::from(id).to_be_bytes());
    let missed = UNTOLD_KEYS_MAX as u64 + 1;
    for id in 0..missed {
        cluster.store(FIRST, hash(id), id + 1, 0);
    }
    find(&mut cluster, SECOND);
    for _ in 0..=UNTOLD_KEYS_MAX / PAGE_STEP_KEYS_MAX {
        cluster.settle();
        cluster.pass(LEARNING_PAUSE_MS);
    }
    cluster.hear(SECOND, home_id(FIRST));
    let [first, second] = [FIRST, SECOND].map(|home| cluster.directories[home].counts());
    assert_eq!((first.keys as u64, second.keys as u64), (missed, missed));
    assert!(second.is_settled() && first.untold == 0);
}

#[test]
pub(crate) fn a_home_that_stood_still_believes_nothing_until_it_has_heard_from_its_partner() {
    let mut cluster = met(1);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.now = cluster.now.after_ms(PAUSE_MS);
    assert_eq!(locate(&mut cluster, FIRST), HomeAnswer::Unknown);
    let answer_from_before = Event::Heard {
        node: home_id(SECOND),
        incarnation: Incarnation(1),
        untold_keys: 0,
        asked_at: Some(Time::ZERO),
    };
    cluster.event(FIRST, answer_from_before);
    assert_eq!(locate(&mut cluster, FIRST), HomeAnswer::Unknown);
    cluster.hear(FIRST, home_id(SECOND));
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
}

#[test]
fn of_two_objects_accepted_apart_one_stays_and_the_other_is_dropped() {
    let mut cluster = met(2);
    cluster.event(FIRST, Event::Lost { node: home_id(SECOND) });
    cluster.event(SECOND, Event::Lost { node: home_id(FIRST) });
    cluster.home_answers[SECOND] = false;
    let low = cluster.store(FIRST, key(1), 1, 0);
    cluster.home_answers = [false, true];
    let high = cluster.store(SECOND, key(1), 2, 1);
    assert_eq!((low.epoch, high.epoch), (Epoch(1), Epoch(1)));
    cluster.home_answers = [true; 2];
    cluster.hear(FIRST, home_id(SECOND));
    cluster.hear(SECOND, home_id(FIRST));
    cluster.settle();
    for home in [FIRST, SECOND] {
        cluster.hear(home, home_id(1 - home));
        assert_eq!(cluster.located(home, key(1)), Some(low), "the lower put id wins");
    }
    assert!(cluster.holders[1].sealed.is_empty() && cluster.holders[0].sealed.len() == 1);
    let losers: u64 = cluster.directories.iter().map(|home| home.counts().losers).sum();
    assert!(losers >= 1);
}

#[test]
fn an_object_that_is_gone_does_not_win_over_one_that_is_there() {
    let mut cluster = met(2);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].sealed.clear();
    let there = version(1, 2);
    cluster.holders[1].sealed.insert(key(1), there);
    let share = publish(there, 1);
    assert_eq!(cluster.call(FIRST, key(1), share), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), Some(there));
    assert_eq!(cluster.holders[1].sealed.get(&key(1)), Some(&there));
}

#[test]
fn a_drop_that_a_holder_owes_is_asked_for_when_it_is_seen_again() {
    let mut cluster = met(1);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    let answer = cluster.call(FIRST, key(1), remove());
    assert_eq!(unavailable(answer), Some(holder_id(0)));
    assert_eq!(cluster.directories[FIRST].counts().owed, 1);
    cluster.holders[0].answers = true;
    cluster.pass(COLLECT_MS);
    cluster.settle();
    assert!(cluster.holders[0].sealed.is_empty());
    assert_eq!(cluster.directories[FIRST].counts().owed, 0);
}

#[test]
fn an_announcement_of_a_removed_object_does_not_bring_it_back() {
    let mut cluster = met(1);
    let removed = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    cluster.holders[0].sealed.insert(key(1), removed);
    let share = publish(removed, 0);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), share.clone()), done(true));
        assert_eq!(cluster.located(home, key(1)), None);
    }
    assert!(cluster.holders[0].sealed.is_empty(), "its holder is asked to drop it");
}

#[test]
pub(crate) fn an_object_that_a_reader_did_not_find_is_looked_for_at_its_holder() {
    let mut cluster = met(1);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let doubt = HomeEventKind::Doubt { version: stored };
    assert_eq!(cluster.call(FIRST, key(1), doubt.clone()), done(false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
    cluster.holders[0].sealed.clear();
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), doubt.clone()), done(true));
        assert_eq!(cluster.located(home, key(1)), None);
    }
}

#[test]
fn a_seal_that_is_reported_to_a_home_that_began_anew_is_taken() {
    let mut cluster = met(1);
    let accepted = match cluster.call(FIRST, key(1), propose(1, 0, 1)) {
        Ok(HomeAnswer::Accepted { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    restart(&mut cluster, FIRST);
    cluster.meet(FIRST);
    cluster.holders[0].sealed.insert(key(1), accepted);
    let answer = cluster.call(FIRST, key(1), sealed(accepted, 0));
    assert!(matches!(answer, Ok(HomeAnswer::Done { .. })), "{answer:?}");
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(accepted));
    }
}

#[test]
fn a_put_that_goes_on_after_its_home_stood_still_does_not_take_the_place_of_one_that_was_stored() {
    let mut cluster = met(2);
    let late = match cluster.call(FIRST, key(1), propose(1, 0, 1)) {
        Ok(HomeAnswer::Accepted { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    // The second home looks after it, its holder does not answer, and another put is stored.
    lose(&mut cluster, FIRST);
    cluster.holders[0].answers = false;
    for _ in 0..3 {
        cluster.pass(PENDING_CHECK_MS);
        cluster.settle();
    }
    let stored = cluster.store(SECOND, key(1), 2, 1);
    assert_eq!(stored.epoch, late.epoch);
    cluster.holders[0].answers = true;
    cluster.holders[0].sealed.insert(key(1), late);
    cluster.home_answers = [true; 2];
    cluster.hear(FIRST, home_id(SECOND));
    let report = sealed(late, 0);
    let error = cluster.call(FIRST, key(1), report).unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    cluster.hear(SECOND, home_id(FIRST));
    cluster.settle();
    cluster.hear(FIRST, home_id(SECOND));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
}

#[test]
fn a_home_that_stood_still_while_it_told_of_a_seal_learns_first_what_its_partner_has_decided() {
    let mut cluster = met(2);
    let late = match cluster.call(FIRST, key(1), propose(1, 0, 1)) {
        Ok(HomeAnswer::Accepted { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    cluster.holders[0].sealed.insert(key(1), late);
    cluster.deadline_ms = 10 * PENDING_CHECK_MS;
    let report = cluster.send(FIRST, key(1), sealed(late, 0));
    cluster.deliver(0);
    // It stands still, what it has sent is lost with it, and its partner stores another put.
    cluster.under_way.clear();
    lose(&mut cluster, FIRST);
    cluster.holders[0].answers = false;
    for _ in 0..3 {
        cluster.pass(PENDING_CHECK_MS);
        cluster.settle();
    }
    let stored = cluster.store(SECOND, key(1), 2, 1);
    assert_eq!(stored.epoch, late.epoch);
    // It goes on, and its question has run out long ago.
    cluster.home_answers = [true; 2];
    cluster.holders[0].answers = true;
    cluster.event(FIRST, Event::Tick);
    cluster.settle();
    for (home, other) in [(FIRST, SECOND), (SECOND, FIRST), (FIRST, SECOND)] {
        cluster.hear(home, home_id(other));
        cluster.settle();
    }
    let error = cluster.answers.remove(&report).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
}

#[test]
fn a_home_goes_on_alone_once_the_partner_that_does_not_answer_is_lost() {
    let mut cluster = met(1);
    // Its link breaks first.
    cluster.home_answers[SECOND] = false;
    let token = cluster.send(FIRST, key(1), propose(1, 0, 1));
    cluster.settle();
    assert_eq!(cluster.answers.get(&token), None);
    lose(&mut cluster, SECOND);
    cluster.settle();
    let answer = cluster.answers.remove(&token).unwrap();
    assert!(
        matches!(answer, Ok(HomeAnswer::Accepted { degraded: true, .. })),
        "{answer:?}"
    );
}

#[test]
pub(crate) fn a_home_asks_its_partner_again_where_only_the_link_broke() {
    let mut cluster = met(1);
    for (id, home, other) in [(1, FIRST, SECOND), (2, SECOND, FIRST)] {
        cluster.home_answers[other] = false;
        let token = cluster.send(home, key(id), propose(1, 0, 1));
        cluster.settle();
        cluster.home_answers[other] = true;
        cluster.pass(RETRY_MS);
        cluster.settle();
        let answer = cluster.answers.remove(&token).unwrap();
        assert!(
            matches!(answer, Ok(HomeAnswer::Accepted { degraded: false, .. })),
            "{answer:?}"
        );
    }
}

#[test]
pub(crate) fn a_home_does_not_decide_without_a_lost_partner_that_has_begun_a_new_life() {
    let mut cluster = met(1);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    restart(&mut cluster, SECOND);
    cluster.home_answers[SECOND] = true;
    let life = Event::Life {
        node: home_id(SECOND),
        incarnation: Incarnation(2),
    };
    cluster.event(FIRST, life);
    // It has reached us and knows all, and we have not reached it yet.
    cluster.meet(SECOND);
    cluster.settle();
    assert_eq!(cluster.located(SECOND, key(1)), Some(stored));
    let token = cluster.send(FIRST, key(1), remove());
    cluster.settle();
    assert_eq!(cluster.answers.get(&token), None);
    cluster.event(FIRST, heard(home_id(SECOND), Incarnation(2)));
    cluster.settle();
    assert_eq!(cluster.answers.remove(&token), Some(done(true)));
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
fn an_object_that_is_only_said_to_be_there_does_not_take_the_place_of_one_that_is() {
    let mut cluster = met(2);
    let there = cluster.store(FIRST, key(1), 2, 0);
    let gone = HomeEventKind::Share(told(version(1, 1), 1, 1));
    assert_eq!(cluster.call(FIRST, key(1), gone), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), Some(there));
    assert_eq!(cluster.holders[0].sealed.get(&key(1)), Some(&there));
}

#[test]
fn of_one_put_that_was_stored_at_two_holders_one_copy_stays() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 1);
    cluster.holders[0].sealed.insert(key(1), stored);
    let other = HomeEventKind::Share(told(stored, 0, 1));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.call(home, key(1), other.clone()), done(true));
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
    let held: Vec<bool> = cluster
        .holders
        .iter()
        .map(|holder| holder.sealed.contains_key(&key(1)))
        .collect();
    assert_eq!(held, [true, false]);
}

#[test]
fn a_seal_that_was_announced_before_it_is_reported_is_told_to_the_partner_too() {
    let mut cluster = met(1);
    let accepted = match cluster.call(FIRST, key(1), propose(1, 0, 1)) {
        Ok(HomeAnswer::Accepted { version, .. }) => version,
        other => panic!("{other:?}"),
    };
    cluster.holders[0].sealed.insert(key(1), accepted);
    let announced = publish(accepted, 0);
    assert_eq!(cluster.call(FIRST, key(1), announced), done(true));
    let report = sealed(accepted, 0);
    assert_eq!(cluster.call(FIRST, key(1), report), done(false));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(accepted));
    }
}

#[test]
fn what_a_holder_publishes_does_not_take_the_place_of_what_the_homes_have_accepted() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 2, 0);
    // It was refused, which its holder was not told in time. By its put id it would win.
    let refused = version(1, 1);
    for home in [FIRST, SECOND] {
        cluster.holders[1].sealed.insert(key(1), refused);
        assert_eq!(cluster.call(home, key(1), publish(refused, 1)), done(true));
        assert_eq!(cluster.located(home, key(1)), Some(stored));
        assert!(cluster.holders[1].sealed.is_empty(), "it is dropped");
    }
}

#[test]
fn what_a_holder_publishes_is_not_dropped_while_the_other_home_may_have_accepted_it() {
    let mut cluster = met(2);
    lose(&mut cluster, FIRST);
    let at_second = cluster.store(SECOND, key(1), 1, 1);
    cluster.home_answers = [true; 2];
    cluster.event(FIRST, Event::Lost { node: home_id(SECOND) });
    cluster.home_answers[SECOND] = false;
    let at_first = cluster.store(FIRST, key(1), 2, 0);
    let answer = cluster.call(FIRST, key(1), publish(at_second, 1));
    assert_eq!(answer.unwrap_err().code, ErrorCode::Overloaded);
    assert_eq!(cluster.holders[1].sealed.get(&key(1)), Some(&at_second));
    // They meet: one of the two wins, the same at both.
    find(&mut cluster, SECOND);
    cluster.settle();
    for home in [FIRST, SECOND] {
        cluster.hear(home, home_id(1 - home));
        cluster.settle();
    }
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(at_second), "its put id is lower");
    }
    assert!(at_first != at_second && cluster.holders[0].sealed.is_empty());
}

#[test]
fn a_put_that_is_repeated_ends_as_before_though_a_home_has_died_since() {
    for dead in [FIRST, SECOND] {
        let mut cluster = met(2);
        let stored = cluster.store(FIRST, key(1), 1, 0);
        assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(stored, false));
        assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
        // At the other home alone, and again when the one that died has come back.
        lose(&mut cluster, dead);
        for put_id in [1, 2] {
            assert_eq!(
                cluster.call(1 - dead, key(1), propose(put_id, 1, 1)),
                exists(stored, false)
            );
        }
        restart(&mut cluster, dead);
        cluster.home_answers[dead] = true;
        cluster.meet(dead);
        cluster.hear(1 - dead, home_id(dead));
        cluster.settle();
        for put_id in [1, 2] {
            assert_eq!(
                cluster.call(FIRST, key(1), propose(put_id, 1, 1)),
                exists(stored, false)
            );
        }
        assert_eq!(cluster.located(FIRST, key(1)), None);
    }
}

#[test]
fn a_put_that_is_repeated_before_its_home_has_learned_all_ends_as_the_partner_knows() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    restart(&mut cluster, FIRST);
    cluster.meet(FIRST);
    assert_eq!(cluster.call(FIRST, key(1), propose(1, 1, 1)), exists(stored, false));
}

#[test]
pub(crate) fn the_end_of_a_put_that_the_keys_object_stood_against_is_told_to_the_home_that_missed_it() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(stored, true));
    // The other home answers again, and hears how another put ends before it is told of the first one.
    cluster.home_answers[SECOND] = true;
    assert_eq!(cluster.call(FIRST, key(1), propose(3, 1, 1)), exists(stored, false));
    assert_eq!(cluster.directories[FIRST].untold_keys(home_id(SECOND)), 1);
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.directories[FIRST].untold_keys(home_id(SECOND)), 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    lose(&mut cluster, FIRST);
    for put_id in [1, 2, 3] {
        assert_eq!(
            cluster.call(SECOND, key(1), propose(put_id, 1, 1)),
            exists(stored, false)
        );
    }
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

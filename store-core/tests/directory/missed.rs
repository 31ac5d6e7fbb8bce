//! What a home missed does not come back through it, and does not stay unknown to it.

use crate::cluster::*;
use crate::learning::{find, lose, met, restart, version};
use tenon_protocol::ids::KeyHash;
use tenon_protocol::member::{HomeEvent, HomeEventKind, MirrorEntry};
use tenon_store_core::directory::Event;
use tenon_store_core::limits::{CONTESTED_CHECK_MS, RETOLD_AT_ONCE_MAX, RETRY_MS};

/// What the second home is being told later.
fn shared(message: &Message) -> Option<(KeyHash, &MirrorEntry)> {
    let Message::ToHome(SECOND, Event::Request { event, .. }) = message else {
        return None;
    };
    match event {
        HomeEvent {
            key_hash,
            kind: HomeEventKind::Share(entry),
            ..
        } => Some((*key_hash, entry)),
        _ => None,
    }
}

#[test]
pub(crate) fn a_home_that_begins_anew_takes_over_what_was_removed_and_not_dropped_yet() {
    let mut cluster = met(1);
    let removed = cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    let answer = cluster.call(FIRST, key(1), remove());
    assert_eq!(unavailable(answer), Some(holder_id(0)));
    restart(&mut cluster, FIRST);
    cluster.meet(FIRST);
    cluster.event(FIRST, Event::Lost { node: holder_id(0) });
    cluster.settle();
    cluster.holders[0].answers = true;
    assert_eq!(cluster.call(FIRST, key(1), publish(removed, 0)), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), None);
    assert!(cluster.holders[0].sealed.is_empty(), "its holder is asked to drop it");
}

#[test]
pub(crate) fn an_object_of_a_higher_epoch_takes_the_place_of_one_whose_removal_a_home_has_missed() {
    let mut cluster = met(2);
    cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    let stored = cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(stored, version(2, 2));
    // Its holder reaches the other home before the one that decided does.
    cluster.home_answers[SECOND] = true;
    assert_eq!(cluster.call(SECOND, key(1), publish(stored, 1)), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), Some(stored));
    assert_eq!(cluster.holders[1].sealed.get(&key(1)), Some(&stored));
}

#[test]
pub(crate) fn what_a_partner_did_not_take_when_it_was_told_later_is_told_again() {
    let mut cluster = met(1);
    cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    find(&mut cluster, SECOND);
    cluster.home_answers[SECOND] = false;
    cluster.settle();
    assert_eq!(cluster.directories[FIRST].untold_keys(home_id(SECOND)), 1);
    cluster.home_answers[SECOND] = true;
    cluster.pass(RETRY_MS);
    cluster.settle();
    assert_eq!(cluster.directories[FIRST].untold_keys(home_id(SECOND)), 0);
    cluster.hear(SECOND, home_id(FIRST));
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
pub(crate) fn all_ends_of_a_key_that_were_decided_alone_are_told_however_many_it_has() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    for put_id in 2..=5 {
        assert_eq!(
            cluster.call(FIRST, key(1), propose(put_id, 1, 1)),
            exists(stored, false)
        );
    }
    lose(&mut cluster, SECOND);
    let alone = 6..=12;
    for put_id in alone.clone() {
        assert_eq!(cluster.call(FIRST, key(1), propose(put_id, 1, 1)), exists(stored, true));
    }
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.directories[FIRST].untold_keys(home_id(SECOND)), 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    lose(&mut cluster, FIRST);
    for put_id in alone {
        assert_eq!(
            cluster.call(SECOND, key(1), propose(put_id, 1, 1)),
            exists(stored, false)
        );
    }
}

#[test]
fn an_end_that_comes_while_others_are_told_later_is_told_too() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    for put_id in 3..=12 {
        assert_eq!(cluster.call(FIRST, key(1), propose(put_id, 1, 1)), exists(stored, true));
    }
    find(&mut cluster, SECOND);
    // Some have been told when it is lost again.
    let is_second = |(_, told): (_, &MirrorEntry)| told.ended.iter().all(|end| end.put_id > put(3));
    while !cluster.under_way.iter().filter_map(shared).any(is_second) {
        cluster.deliver(0);
    }
    lose(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(stored, true));
    cluster.now = cluster.now.after_ms(RETRY_MS);
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    lose(&mut cluster, FIRST);
    for put_id in 1..=12 {
        assert_eq!(
            cluster.call(SECOND, key(1), propose(put_id, 1, 1)),
            exists(stored, false)
        );
    }
}

#[test]
fn a_put_that_was_stored_and_removed_alone_is_told_though_another_one_was_told_first() {
    let mut cluster = met(2);
    lose(&mut cluster, SECOND);
    let first = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    // The other home answers again, and is told of another put before it is told of this one.
    cluster.home_answers[SECOND] = true;
    let second = cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(second, version(2, 2));
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    lose(&mut cluster, FIRST);
    for (put_id, stored, degraded) in [(1, first, true), (2, second, false)] {
        assert_eq!(
            cluster.call(SECOND, key(1), propose(put_id, 1, 1)),
            exists(stored, degraded)
        );
    }
}

#[test]
fn a_home_that_has_learned_of_an_object_later_remembers_its_put_when_it_is_removed() {
    for is_new in [true, false] {
        let mut cluster = met(1);
        lose(&mut cluster, SECOND);
        let stored = cluster.store(FIRST, key(1), 1, 0);
        if is_new {
            restart(&mut cluster, SECOND);
            cluster.home_answers[SECOND] = true;
            cluster.meet(SECOND);
            cluster.hear(FIRST, home_id(SECOND));
        } else {
            find(&mut cluster, SECOND);
        }
        cluster.settle();
        cluster.hear(SECOND, home_id(FIRST));
        assert_eq!(cluster.located(SECOND, key(1)), Some(stored));
        assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
        lose(&mut cluster, FIRST);
        assert_eq!(cluster.call(SECOND, key(1), propose(1, 0, 1)), exists(stored, false));
    }
}

#[test]
fn two_objects_between_which_nothing_can_be_said_keep_no_other_key_from_being_found() {
    let mut cluster = met(2);
    let other = cluster.store(FIRST, key(2), 3, 1);
    cluster.event(FIRST, Event::Lost { node: home_id(SECOND) });
    cluster.event(SECOND, Event::Lost { node: home_id(FIRST) });
    cluster.home_answers = [true, false];
    cluster.store(FIRST, key(1), 1, 0);
    cluster.home_answers = [false, true];
    let alive = cluster.store(SECOND, key(1), 2, 1);
    // The holder of the one that would win is silent when the homes meet again.
    cluster.holders[0].answers = false;
    cluster.home_answers = [true; 2];
    find(&mut cluster, SECOND);
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.directories[home].untold_keys(home_id(1 - home)), 0);
        cluster.hear(home, home_id(1 - home));
        assert_eq!(cluster.located(home, key(2)), Some(other));
    }
    // It begins another life: what is left is the key's at both homes.
    cluster.holders[0].answers = true;
    cluster.restart(0);
    cluster.settle();
    cluster.pass(CONTESTED_CHECK_MS);
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(alive));
    }
    assert_eq!(cluster.holders[1].sealed.get(&key(1)), Some(&alive));
}

#[test]
fn keys_that_a_partner_does_not_take_keep_no_others_from_being_told_later() {
    let mut cluster = met(1);
    let hash = |id: usize| KeyHash::from_bytes((id as u128).to_be_bytes());
    lose(&mut cluster, SECOND);
    for id in 0..=RETOLD_AT_ONCE_MAX {
        cluster.store(FIRST, hash(id), id as u64 + 1, 0);
    }
    find(&mut cluster, SECOND);
    // What is told first is not taken.
    cluster.home_answers[SECOND] = false;
    cluster.settle();
    cluster.home_answers[SECOND] = true;
    cluster.pass(RETRY_MS);
    let mut told = cluster.under_way.iter().filter_map(shared);
    assert!(told.any(|(key_hash, _)| key_hash == hash(RETOLD_AT_ONCE_MAX)));
}

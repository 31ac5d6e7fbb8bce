//! What a home missed does not come back through it, and does not stay unknown to it.

use crate::cluster::*;
use crate::learning::{find, lose, met, restart, version};
use tenon_store_core::directory::Event;
use tenon_store_core::limits::RETRY_MS;

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

//! What homes do about objects that their holders evict.

use crate::cluster::*;
use crate::learning::{find, lose, met, version};
use tenon_protocol::ids::Generation;
use tenon_protocol::member::{HomeAnswer, HomeEventKind};

#[test]
fn an_evicted_object_is_a_miss_at_both_homes_and_its_put_stays_stored() {
    for home in [FIRST, SECOND] {
        let mut cluster = met(2);
        let stored = cluster.store(FIRST, key(1), 1, 0);
        let report = evicted(&mut cluster, stored, 0, 1);
        assert_eq!(cluster.call(home, key(1), report), done(true));
        for asked in [FIRST, SECOND] {
            assert_eq!(cluster.located(asked, key(1)), None);
        }
        // A try of the same put elsewhere is not needed any more.
        assert_eq!(cluster.call(home, key(1), propose(1, 1, 1)), exists(stored, false));
        let next = cluster.store(FIRST, key(1), 2, 1);
        assert_eq!(cluster.located(SECOND, key(1)), Some(next));
        // Whatever has the key since then: nothing of the first put.
        assert_eq!(cluster.call(home, key(1), propose(1, 1, 1)), exists(stored, false));
    }
}

#[test]
fn the_second_home_alone_answers_for_an_evicted_object_as_the_first_would() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    lose(&mut cluster, FIRST);
    assert_eq!(cluster.located(SECOND, key(1)), None);
    let answer = cluster.call(SECOND, key(1), propose(1, 1, 1));
    assert!(
        matches!(answer, Ok(HomeAnswer::AlreadyExists { version, .. }) if version == stored),
        "{answer:?}"
    );
}

#[test]
fn a_home_that_was_not_told_of_an_eviction_is_told_when_it_is_seen_again() {
    let mut cluster = met(1);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    find(&mut cluster, SECOND);
    cluster.settle();
    // The next heartbeat says that nothing is untold any more.
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
fn the_second_home_is_told_also_where_the_first_knows_nothing_of_the_object() {
    let mut cluster = met(1);
    let unknown = version(1, 9);
    cluster.holders[0].sealed.insert(key(1), unknown);
    assert_eq!(cluster.call(SECOND, key(1), publish(unknown, 0)), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), Some(unknown));
    let report = evicted(&mut cluster, unknown, 0, 9);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

#[test]
fn the_report_of_another_region_of_the_same_put_changes_nothing() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let report = HomeEventKind::Evicted {
        version: stored,
        holder: holder_id(1),
        generation: Generation(1),
    };
    assert_eq!(cluster.call(FIRST, key(1), report), done(false));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(stored));
    }
}

#[test]
fn an_eviction_that_is_told_late_leaves_what_was_put_since() {
    let mut cluster = met(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let report = evicted(&mut cluster, stored, 0, 1);
    // The holder says that it has it no longer, so the next put goes through.
    let next = cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(next, version(2, 2));
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(next));
    }
}

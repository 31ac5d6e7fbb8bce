//! Copies of an object at further holders, and objects that take the place of others.

use crate::cluster::*;
use crate::learning::{find, lose, met, version};
use tenon_protocol::ids::Version;
use tenon_protocol::member::{HomeAnswer, HomeEntry, HomeEventKind};
use tenon_protocol::message::Replica;

/// Has a holder take a copy of an object, in this region, and answers what it tells the homes.
fn copied(cluster: &mut Cluster, version: Version, holder: usize, generation: u64) -> HomeEventKind {
    cluster.holders[holder].sealed.insert(key(1), version);
    HomeEventKind::Publish(HomeEntry {
        version,
        len_bytes: 100,
        replicas: vec![Replica {
            is_copy: true,
            ..replica(holder, 1, generation)
        }],
    })
}

/// The holders that a home knows.
fn holders_at(cluster: &mut Cluster, home: usize) -> Vec<usize> {
    match cluster.call(home, key(1), HomeEventKind::Locate) {
        Ok(HomeAnswer::Hit(entry)) => {
            let at = |replica: &Replica| (0..9).find(|&holder| holder_id(holder) == replica.holder).unwrap();
            entry.replicas.iter().map(at).collect()
        }
        Ok(HomeAnswer::Miss) => Vec::new(),
        other => panic!("{other:?}"),
    }
}

fn replacing(put_id: u64, holder: usize) -> HomeEventKind {
    match propose(put_id, holder, 1) {
        HomeEventKind::Propose {
            put_id,
            len_bytes,
            replicas,
            ..
        } => HomeEventKind::Propose {
            put_id,
            len_bytes,
            replicas,
            replace: true,
        },
        other => other,
    }
}

fn sealed_instead(version: Version, holder: usize) -> HomeEventKind {
    match sealed(version, holder) {
        HomeEventKind::Sealed {
            version,
            holder,
            generation,
            ..
        } => HomeEventKind::Sealed {
            version,
            holder,
            generation,
            replace: true,
        },
        other => other,
    }
}

#[test]
fn a_copy_that_one_home_is_told_of_is_known_to_the_other() {
    for home in [FIRST, SECOND] {
        let mut cluster = met(3);
        let stored = cluster.store(FIRST, key(1), 1, 0);
        let copy = copied(&mut cluster, stored, 1, 8);
        assert_eq!(cluster.call(home, key(1), copy), done(true));
        assert_eq!(holders_at(&mut cluster, home), [0, 1]);
        if home == FIRST {
            assert_eq!(holders_at(&mut cluster, SECOND), [0, 1]);
        }
    }
}

#[test]
fn when_the_original_goes_the_copy_is_the_object() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    for home in [FIRST, SECOND] {
        let copy = copied(&mut cluster, stored, 1, 8);
        assert_eq!(cluster.call(home, key(1), copy), done(true));
    }
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(holders_at(&mut cluster, home), [1]);
    }
    assert_eq!(
        cluster.holders[1].sealed.get(&key(1)),
        Some(&stored),
        "nobody has the copy dropped"
    );
    // Back where it came from, as a copy of the copy.
    for home in [FIRST, SECOND] {
        let copy = copied(&mut cluster, stored, 0, 9);
        assert_eq!(cluster.call(home, key(1), copy), done(true));
    }
    let report = evicted(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(holders_at(&mut cluster, home), [0]);
    }
    assert_eq!(cluster.holders[0].sealed.get(&key(1)), Some(&stored));
}

#[test]
fn a_holder_that_comes_back_empty_leaves_the_copy() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    cluster.restart(0);
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(holders_at(&mut cluster, home), [1]);
    }
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 2, 1)), exists(stored, false));
}

#[test]
fn a_copy_of_what_was_removed_is_dropped() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    cluster.settle();
    assert_eq!(holders_at(&mut cluster, FIRST), []);
    assert!(cluster.holders[1].sealed.is_empty(), "the copy is to be dropped");
}

#[test]
fn a_removal_drops_every_copy() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    for holder in [1, 2] {
        let copy = copied(&mut cluster, stored, holder, 8);
        assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    }
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert!(cluster.holders.iter().all(|holder| holder.sealed.is_empty()));
}

#[test]
fn of_two_tries_of_one_put_that_are_no_copies_one_is_dropped_as_before() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[1].sealed.insert(key(1), stored);
    assert_eq!(cluster.call(FIRST, key(1), publish(stored, 1)), done(true));
    cluster.settle();
    assert_eq!(holders_at(&mut cluster, FIRST), [0]);
    assert!(cluster.holders[1].sealed.is_empty());
}

#[test]
pub(crate) fn a_copy_that_the_first_home_does_not_know_is_not_dropped_when_it_says_what_it_knows() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(SECOND, key(1), copy), done(true));
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 2, 1)), exists(stored, false));
    cluster.settle();
    assert_eq!(
        holders_at(&mut cluster, SECOND),
        [0, 1],
        "the first home has not heard of it yet"
    );
    assert_eq!(cluster.holders[1].sealed.get(&key(1)), Some(&stored));
}

#[test]
fn a_copy_that_only_the_second_home_knows_is_left_when_the_original_goes() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(SECOND, key(1), copy), done(true));
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(holders_at(&mut cluster, home), [1]);
    }
}

#[test]
fn a_late_word_of_the_second_home_does_not_bring_a_replica_back() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let late = HomeEventKind::Share(told(stored, 0, 1));
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    assert_eq!(cluster.call(FIRST, key(1), late), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(holders_at(&mut cluster, home), [1]);
    }
}

#[test]
fn no_more_copies_are_remembered_than_there_may_be() {
    let mut cluster = met(9);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    for holder in 1..9 {
        let copy = copied(&mut cluster, stored, holder, 8);
        assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    }
    assert_eq!(holders_at(&mut cluster, FIRST).len(), 8);
}

#[test]
pub(crate) fn a_replacing_put_takes_the_place_of_the_object_and_has_it_dropped() {
    for home in [FIRST, SECOND] {
        let mut cluster = met(2);
        let before = cluster.store(FIRST, key(1), 1, 0);
        let after = version(2, 2);
        let accepted = cluster.call(home, key(1), replacing(2, 1));
        let degraded = false;
        assert_eq!(
            accepted,
            Ok(HomeAnswer::Accepted {
                version: after,
                degraded
            })
        );
        assert_eq!(cluster.located(FIRST, key(1)), Some(before), "until it is sealed");
        cluster.holders[1].sealed.insert(key(1), after);
        assert_eq!(cluster.call(home, key(1), sealed_instead(after, 1)), done(true));
        assert!(cluster.holders[0].sealed.is_empty(), "the answer waits for that");
        for asked in [FIRST, SECOND] {
            assert_eq!(cluster.located(asked, key(1)), Some(after));
        }
        // Late words of what was replaced change nothing, and neither does an eviction bring it back.
        cluster.holders[0].sealed.insert(key(1), before);
        assert_eq!(cluster.call(FIRST, key(1), publish(before, 0)), done(true));
        assert_eq!(cluster.located(FIRST, key(1)), Some(after));
        let report = evicted(&mut cluster, after, 1, 2);
        assert_eq!(cluster.call(FIRST, key(1), report), done(true));
        for asked in [FIRST, SECOND] {
            cluster.holders[0].sealed.insert(key(1), before);
            assert_eq!(cluster.call(asked, key(1), publish(before, 0)), done(true));
            assert_eq!(cluster.located(asked, key(1)), None);
        }
        cluster.settle();
        assert!(cluster.holders[0].sealed.is_empty(), "it is to be dropped");
    }
}

#[test]
fn a_replacing_put_whose_old_holder_does_not_answer_is_unavailable_stands_and_is_completed_when_repeated() {
    let mut cluster = met(2);
    let before = cluster.store(FIRST, key(1), 1, 0);
    let after = version(2, 2);
    cluster.holders[0].answers = false;
    assert!(cluster.call(FIRST, key(1), replacing(2, 1)).is_ok());
    cluster.holders[1].sealed.insert(key(1), after);
    let answer = cluster.call(FIRST, key(1), sealed_instead(after, 1));
    assert_eq!(unavailable(answer), Some(holder_id(0)));
    for asked in [FIRST, SECOND] {
        assert_eq!(cluster.located(asked, key(1)), Some(after), "it stands");
    }
    cluster.holders[0].answers = true;
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 1)), done(true));
    assert_eq!(cluster.holders[0].sealed.get(&key(1)), None, "{before} is dropped");
}

#[test]
fn a_replacing_put_that_is_repeated_after_it_ended_ends_so_again() {
    let mut cluster = met(2);
    cluster.store(FIRST, key(1), 1, 0);
    let after = version(2, 2);
    assert!(cluster.call(FIRST, key(1), replacing(2, 1)).is_ok());
    cluster.holders[1].sealed.insert(key(1), after);
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 1)), done(true));
    assert_eq!(cluster.call(FIRST, key(1), replacing(2, 0)), exists(after, false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(after));
}

#[test]
fn a_home_that_was_away_learns_that_an_object_was_replaced() {
    let mut cluster = met(2);
    let before = cluster.store(FIRST, key(1), 1, 0);
    lose(&mut cluster, SECOND);
    let after = version(2, 2);
    assert!(cluster.call(FIRST, key(1), replacing(2, 1)).is_ok());
    cluster.holders[1].sealed.insert(key(1), after);
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 1)), done(true));
    find(&mut cluster, SECOND);
    cluster.settle();
    find(&mut cluster, SECOND);
    cluster.settle();
    assert_eq!(cluster.located(SECOND, key(1)), Some(after));
    let report = evicted(&mut cluster, after, 1, 2);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    lose(&mut cluster, FIRST);
    cluster.holders[0].sealed.insert(key(1), before);
    assert_eq!(cluster.call(SECOND, key(1), publish(before, 0)), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), None);
}

/// An object has taken the place of another one at the holder, which reports that later; with the doubt of a reader that does not find the one before.
fn replaced_and_not_reported() -> (Cluster, HomeEventKind, Version) {
    let mut cluster = met(2);
    let before = cluster.store(FIRST, key(1), 1, 0);
    let after = version(2, 2);
    assert!(cluster.call(FIRST, key(1), replacing(2, 0)).is_ok());
    cluster.holders[0].sealed.insert(key(1), after);
    (cluster, HomeEventKind::Doubt { version: before }, after)
}

#[test]
fn a_reader_that_finds_nothing_where_a_later_object_was_just_sealed_finds_that_one() {
    let (mut cluster, doubt, after) = replaced_and_not_reported();
    assert_eq!(cluster.call(FIRST, key(1), doubt), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(after));
    }
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 0)), done(false));
}

#[test]
fn the_second_home_too_learns_of_a_later_object_that_was_just_sealed_while_the_first_is_busy() {
    let (mut cluster, doubt, after) = replaced_and_not_reported();
    assert_eq!(cluster.call(SECOND, key(1), doubt), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), Some(after));
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 0)), done(true));
    cluster.settle();
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(after));
    }
    assert_eq!(cluster.holders[0].sealed.get(&key(1)), Some(&after));
}

#[test]
fn a_reader_that_finds_nothing_before_a_later_object_is_sealed_has_the_home_forget_it() {
    let mut cluster = met(2);
    let before = cluster.store(FIRST, key(1), 1, 0);
    assert!(cluster.call(FIRST, key(1), replacing(2, 1)).is_ok());
    cluster.holders[0].sealed.clear();
    let doubt = HomeEventKind::Doubt { version: before };
    assert_eq!(cluster.call(FIRST, key(1), doubt), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), None);
    let after = version(2, 2);
    cluster.holders[1].sealed.insert(key(1), after);
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 1)), done(true));
    assert_eq!(cluster.located(FIRST, key(1)), Some(after));
}

#[test]
fn what_comes_after_an_evicted_object_is_not_below_it() {
    let mut cluster = met(2);
    let before = cluster.store(FIRST, key(1), 1, 0);
    let after = version(2, 2);
    assert!(cluster.call(FIRST, key(1), replacing(2, 1)).is_ok());
    // What it was to replace has gone before it is sealed.
    let report = evicted(&mut cluster, before, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    cluster.holders[1].sealed.insert(key(1), after);
    assert_eq!(cluster.call(FIRST, key(1), sealed_instead(after, 1)), done(true));
    let report = evicted(&mut cluster, after, 1, 2);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    let degraded = false;
    let version = version(2, 3);
    assert_eq!(
        cluster.call(FIRST, key(1), propose(3, 0, 1)),
        Ok(HomeAnswer::Accepted { version, degraded })
    );
}

#[test]
fn the_second_home_keeps_a_copy_that_its_holder_could_not_tell_the_first() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    // The copy's holder does not reach the first home.
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(SECOND, key(1), copy), done(true));
    // The first home tells the second what it knows: another put is told that the key has an object.
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 2, 1)), exists(stored, false));
    assert_eq!(holders_at(&mut cluster, SECOND), [0, 1]);
    // The object was moved, so its first holder lets go of it.
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    assert_eq!(holders_at(&mut cluster, SECOND), [1]);
}

#[test]
fn the_second_home_is_told_of_an_original_that_the_first_learns_of_after_its_copy() {
    let mut cluster = met(3);
    let stored = version(1, 1);
    cluster.holders[0].sealed.insert(key(1), stored);
    assert_eq!(cluster.call(SECOND, key(1), publish(stored, 0)), done(true));
    let copy = copied(&mut cluster, stored, 1, 8);
    assert_eq!(cluster.call(FIRST, key(1), copy), done(true));
    // The first home says what it knows, and learns of the original then.
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 2, 1)), exists(stored, false));
    assert_eq!(cluster.call(FIRST, key(1), publish(stored, 0)), done(true));
    cluster.settle();
    for home in [FIRST, SECOND] {
        let mut known = holders_at(&mut cluster, home);
        known.sort_unstable();
        assert_eq!(known, [0, 1]);
    }
}

#[test]
fn a_copy_does_not_come_back_whose_object_was_evicted_before_it_was_removed() {
    let mut cluster = met(3);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    let report = evicted(&mut cluster, stored, 0, 1);
    assert_eq!(cluster.call(FIRST, key(1), report), done(true));
    let up_to = HomeEventKind::Remove { up_to: stored.epoch };
    assert_eq!(cluster.call(FIRST, key(1), up_to), done(false));
    for home in [FIRST, SECOND] {
        let copy = copied(&mut cluster, stored, 1, 8);
        assert_eq!(cluster.call(home, key(1), copy), done(true));
        cluster.settle();
        assert_eq!(holders_at(&mut cluster, home), []);
    }
    assert!(cluster.holders[1].sealed.is_empty(), "it is to be dropped");
}

//! What the first home does, with a partner that always answers.

use crate::cluster::*;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{Epoch, Incarnation, Version};
use tenon_protocol::member::{HomeAnswer, HomeEntry, HomeEvent, HomeEventKind, Homes, MirrorEntry};
use tenon_store_core::directory::{Action, Event, RequestToken};
use tenon_store_core::limits::{CONTESTED_CHECK_MS, DIRECTORY_REQUESTS_MAX, PENDING_CHECK_MS, WAITING_PER_KEY_MAX};
use tenon_store_core::time::Time;

fn version(epoch: u64, put_id: u64) -> Version {
    Version {
        epoch: Epoch(epoch),
        put_id: put(put_id),
    }
}

fn accepted(version: Version) -> HomeAnswer {
    let degraded = false;
    HomeAnswer::Accepted { version, degraded }
}

fn code(answer: Result<HomeAnswer, tenon_protocol::error::ServiceError>) -> ErrorCode {
    answer.unwrap_err().code
}

#[test]
pub(crate) fn an_object_is_found_at_both_homes_once_its_seal_is_reported() {
    let mut cluster = Cluster::new(1);
    let answer = cluster.call(FIRST, key(1), propose(1, 0, 1));
    assert_eq!(answer, Ok(accepted(version(1, 1))));
    assert_eq!(
        (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
        (None, None)
    );
    let sealed = sealed(version(1, 1), 0);
    assert_eq!(cluster.call(FIRST, key(1), sealed.clone()), done(true));
    for home in [FIRST, SECOND] {
        assert_eq!(cluster.located(home, key(1)), Some(version(1, 1)));
        assert_eq!(
            (
                cluster.directories[home].counts().keys,
                cluster.directories[home].counts().pending
            ),
            (1, 0)
        );
    }
    assert_eq!(
        cluster.call(FIRST, key(1), sealed),
        done(false),
        "a report may be repeated"
    );
}

#[test]
fn the_answer_waits_for_the_second_home() {
    let mut cluster = Cluster::new(1);
    let token = cluster.send(FIRST, key(1), propose(1, 0, 1));
    cluster.deliver(0);
    assert!(cluster.answers.is_empty());
    cluster.deliver(0);
    assert!(
        cluster.answers.is_empty(),
        "the second knows, the first has not heard of that"
    );
    assert_eq!(cluster.directories[SECOND].counts().pending, 1);
    cluster.deliver(0);
    assert!(cluster.answers.contains_key(&token));
}

#[test]
fn a_proposal_that_is_repeated_gets_the_same_answer() {
    let mut cluster = Cluster::new(1);
    for _ in 0..2 {
        assert_eq!(
            cluster.call(FIRST, key(1), propose(1, 0, 1)),
            Ok(accepted(version(1, 1)))
        );
    }
    assert_eq!(cluster.directories[FIRST].counts().pending, 1);
}

#[test]
fn a_second_put_keeps_the_object_that_its_holder_still_has() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), propose(2, 1, 1)), exists(stored, false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
}

#[test]
fn a_retry_of_a_stored_put_elsewhere_is_recognised() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), propose(1, 1, 1)), exists(stored, false));
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert_eq!(
        cluster.call(FIRST, key(1), propose(1, 1, 1)),
        exists(stored, false),
        "its outcome outlives the object"
    );
}

#[test]
fn an_object_that_its_holder_lost_gives_way() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].sealed.clear();
    assert_eq!(
        cluster.call(FIRST, key(1), propose(2, 1, 1)),
        Ok(accepted(version(2, 2)))
    );
    assert_eq!(
        (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
        (None, None)
    );
}

#[test]
fn a_put_of_a_key_whose_holder_does_not_answer_is_unavailable() {
    let mut cluster = Cluster::new(2);
    let stored = cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    let answer = cluster.call(FIRST, key(1), propose(2, 1, 1));
    assert_eq!(unavailable(answer), Some(holder_id(0)));
    assert_eq!(cluster.located(FIRST, key(1)), Some(stored));
}

#[test]
fn a_competing_put_waits_for_the_decision() {
    for is_sealed in [true, false] {
        let mut cluster = Cluster::new(2);
        assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
        let waiting = cluster.send(FIRST, key(1), propose(2, 1, 1));
        cluster.settle();
        assert!(cluster.answers.is_empty());
        if is_sealed {
            cluster.holders[0].sealed.insert(key(1), version(1, 1));
            assert!(cluster.call(FIRST, key(1), sealed(version(1, 1), 0)).is_ok());
            assert_eq!(cluster.answers[&waiting], exists(version(1, 1), false));
        } else {
            assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
            assert_eq!(cluster.answers[&waiting], Ok(accepted(version(1, 2))));
        }
    }
}

#[test]
fn waiting_puts_are_decided_in_their_order() {
    let mut cluster = Cluster::new(4);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    let waiting: Vec<_> = (1..4)
        .map(|holder| cluster.send(FIRST, key(1), propose(2 + holder as u64, holder, 1)))
        .collect();
    cluster.settle();
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    assert_eq!(cluster.answers.keys().collect::<Vec<_>>(), [&waiting[0]]);
}

#[test]
fn a_waiting_put_is_answered_at_its_deadline_and_not_decided_later() {
    let mut cluster = Cluster::new(2);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    cluster.holders[0].sealed.insert(key(1), version(1, 1));
    let waiting = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.settle();
    cluster.now = Time::from_ms(DEADLINE_MS - 1);
    cluster.event(FIRST, Event::Tick);
    assert!(!cluster.answers.contains_key(&waiting));
    cluster.pass(1);
    assert_eq!(
        code(cluster.answers.remove(&waiting).unwrap()),
        ErrorCode::DeadlineExceeded
    );
    cluster.settle();
    assert_eq!(cluster.located(FIRST, key(1)), Some(version(1, 1)));
    assert_eq!(cluster.directories[FIRST].counts().pending, 0);
}

#[test]
fn nothing_is_accepted_for_a_caller_whose_deadline_has_passed() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].sealed.clear();
    cluster.deadline_ms = 100;
    let late = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.deliver(0);
    cluster.pass(100);
    assert_eq!(
        code(cluster.answers.remove(&late).unwrap()),
        ErrorCode::DeadlineExceeded
    );
    cluster.settle();
    assert_eq!(cluster.directories[FIRST].counts().pending, 0);
}

#[test]
fn a_withdrawal_cancels_the_proposal_that_waits() {
    let mut cluster = Cluster::new(2);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    let waiting = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.settle();
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(2, 1)), done(false));
    assert_eq!(code(cluster.answers.remove(&waiting).unwrap()), ErrorCode::Conflict);
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    assert_eq!(
        cluster.directories[FIRST].counts(),
        tenon_store_core::directory::DirectoryCounts::default()
    );
}

#[test]
fn a_dropped_object_is_forgotten_at_both_homes() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(
        cluster.call(FIRST, key(1), withdrawn(1, 1)),
        done(false),
        "another holder's word"
    );
    assert_eq!(cluster.call(FIRST, key(1), withdrawn(1, 0)), done(true));
    assert_eq!(
        (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
        (None, None)
    );
    cluster.store(FIRST, key(1), 1, 1);
}

#[test]
fn a_pending_object_that_nobody_reports_is_looked_after() {
    // Sealed with a lost report, not sealed, and a holder that is gone.
    for (is_sealed, answers) in [(true, true), (false, true), (true, false)] {
        let mut cluster = Cluster::new(2);
        assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
        if is_sealed {
            cluster.holders[0].sealed.insert(key(1), version(1, 1));
        }
        cluster.holders[0].answers = answers;
        cluster.pass(PENDING_CHECK_MS);
        cluster.settle();
        let expected = (is_sealed && answers).then_some(version(1, 1));
        for home in [FIRST, SECOND] {
            assert_eq!(cluster.located(home, key(1)), expected);
            assert_eq!(cluster.directories[home].counts().pending, 0);
        }
        let late = cluster.call(FIRST, key(1), sealed(version(1, 1), 0));
        match expected {
            Some(_) => assert_eq!(late, done(false)),
            None => assert_eq!(code(late), ErrorCode::Conflict),
        }
    }
}

#[test]
fn a_put_that_waits_for_a_dead_holder_waits_not_long() {
    let mut cluster = Cluster::new(2);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    cluster.holders[0].answers = false;
    let waiting = cluster.send(FIRST, key(1), propose(2, 1, 1));
    cluster.settle();
    cluster.pass(CONTESTED_CHECK_MS);
    cluster.settle();
    assert_eq!(cluster.answers[&waiting], Ok(accepted(version(1, 2))));
}

#[test]
fn a_removed_object_is_dropped_by_its_holder_and_its_key_can_be_put_again() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert!(cluster.holders[0].sealed.is_empty());
    assert_eq!(
        (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
        (None, None)
    );
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(false));
    let again = cluster.store(FIRST, key(1), 2, 1);
    assert_eq!(again, version(2, 2), "it comes after what was removed");
}

#[test]
fn a_removal_whose_holder_does_not_answer_stands_and_is_completed_by_repeating_it() {
    let mut cluster = Cluster::new(1);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    for _ in 0..2 {
        assert_eq!(unavailable(cluster.call(FIRST, key(1), remove())), Some(holder_id(0)));
        assert_eq!(
            (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
            (None, None)
        );
    }
    cluster.holders[0].answers = true;
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(true));
    assert!(cluster.holders[0].sealed.is_empty());
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(false));
}

#[test]
fn a_removal_is_complete_when_the_holder_has_begun_a_new_life() {
    let mut cluster = Cluster::new(1);
    cluster.store(FIRST, key(1), 1, 0);
    cluster.holders[0].answers = false;
    assert_eq!(unavailable(cluster.call(FIRST, key(1), remove())), Some(holder_id(0)));
    cluster.restart(0);
    cluster.settle();
    assert_eq!(
        cluster.call(FIRST, key(1), remove()),
        done(false),
        "nothing is left to drop"
    );
}

#[test]
fn a_removal_comes_before_a_put_that_is_not_sealed_yet() {
    let mut cluster = Cluster::new(1);
    assert!(cluster.call(FIRST, key(1), propose(1, 0, 1)).is_ok());
    assert_eq!(cluster.call(FIRST, key(1), remove()), done(false));
    assert_eq!(cluster.call(FIRST, key(1), sealed(version(1, 1), 0)), done(true));
    assert_eq!(cluster.located(SECOND, key(1)), Some(version(1, 1)));
}

#[test]
pub(crate) fn what_lay_in_an_earlier_life_of_its_holder_is_gone() {
    let mut cluster = Cluster::new(2);
    cluster.store(FIRST, key(1), 1, 0);
    assert!(cluster.call(FIRST, key(2), propose(2, 0, 1)).is_ok());
    let waiting = cluster.send(FIRST, key(2), propose(3, 1, 1));
    cluster.settle();
    cluster.restart(0);
    cluster.settle();
    assert_eq!(
        (cluster.located(FIRST, key(1)), cluster.located(SECOND, key(1))),
        (None, None)
    );
    assert_eq!(cluster.answers[&waiting], Ok(accepted(version(1, 3))));
    assert_eq!(
        code(cluster.call(FIRST, key(1), propose(4, 0, 1))),
        ErrorCode::Conflict,
        "a word of the earlier life"
    );
    cluster.event(FIRST, heard(holder_id(0), Incarnation(1)));
    assert_eq!(cluster.store(FIRST, key(1), 5, 0), version(1, 5));
}

#[test]
fn entries_of_earlier_lives_are_swept() {
    let mut cluster = Cluster::new(1);
    for id in 0..200 {
        cluster.store(FIRST, key(id), u64::from(id) + 1, 0);
    }
    cluster.restart(0);
    cluster.settle();
    for _ in 0..2 {
        cluster.pass(1);
    }
    assert_eq!(
        cluster.directories.iter().map(|home| home.counts().keys).sum::<usize>(),
        0
    );
}

#[test]
fn bad_events_are_refused_by_name() {
    let mut cluster = Cluster::new(1);
    let no_replica = HomeEventKind::Propose {
        put_id: put(1),
        len_bytes: 1,
        replicas: Vec::new(),
        replace: false,
    };
    assert_eq!(
        code(cluster.call(FIRST, key(1), no_replica)),
        ErrorCode::InvalidArgument
    );
    assert_eq!(
        code(cluster.call(FIRST, key(1), sealed(version(1, 1), 0))),
        ErrorCode::Conflict
    );
    let event = HomeEvent {
        key_hash: key(1),
        homes: Homes {
            first: holder_id(0),
            second: None,
        },
        kind: HomeEventKind::Locate,
    };
    let (token, deadline) = (RequestToken(1), Time::MAX);
    let actions = cluster.directories[FIRST].handle(Time::ZERO, Event::Request { token, deadline, event });
    let [Action::Reply { answer, .. }] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(
        code(answer.clone()),
        ErrorCode::Conflict,
        "this node is no home of the key"
    );
}

#[test]
fn a_home_alone_by_its_view_is_not_degraded_and_asks_nobody() {
    let mut home = directory(FIRST);
    let homes = Homes {
        first: home_id(FIRST),
        second: None,
    };
    let kind = propose(1, 0, 1);
    let event = Event::Request {
        token: RequestToken(1),
        deadline: Time::MAX,
        event: HomeEvent {
            key_hash: key(1),
            homes,
            kind,
        },
    };
    let answer = Ok(accepted(version(1, 1)));
    let token = RequestToken(1);
    assert_eq!(home.handle(Time::ZERO, event), [Action::Reply { token, answer }]);
}

#[test]
pub(crate) fn an_unsettled_home_does_not_say_miss_and_lets_puts_wait() {
    let mut cluster = Cluster::new(1);
    let members = vec![home_id(FIRST), home_id(SECOND), holder_id(0)];
    cluster.event(FIRST, Event::View { members });
    let locate = |cluster: &mut Cluster| cluster.call(FIRST, key(1), HomeEventKind::Locate);
    assert_eq!(locate(&mut cluster), Ok(HomeAnswer::Unknown));
    let put = cluster.send(FIRST, key(1), propose(1, 0, 1));
    cluster.settle();
    assert!(cluster.answers.is_empty(), "nobody has told what is held");
    cluster.event(FIRST, Event::Lost { node: home_id(SECOND) });
    assert_eq!(locate(&mut cluster), Ok(HomeAnswer::Unknown));
    cluster.event(FIRST, Event::Lost { node: holder_id(0) });
    cluster.settle();
    assert_eq!(locate(&mut cluster), Ok(HomeAnswer::Miss));
    assert_eq!(cluster.answers.remove(&put), Some(Ok(accepted(version(1, 1)))));
}

#[test]
fn a_put_that_waits_too_long_for_an_unsettled_home_is_told_so() {
    let mut cluster = Cluster::new(1);
    let members = vec![home_id(FIRST), holder_id(0)];
    cluster.event(FIRST, Event::View { members });
    let put = cluster.send(FIRST, key(1), propose(1, 0, 1));
    cluster.settle();
    cluster.pass(DEADLINE_MS);
    let error = cluster.answers.remove(&put).unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    assert_eq!(cluster.directories[FIRST].counts().waiting, 0);
}

/// Proposals of distinct puts, on this many keys that each have a pending object.
fn flood(cluster: &mut Cluster, keys: u64, proposals: u64) -> Vec<Action> {
    let hash = |id: u64| tenon_protocol::ids::KeyHash::from_bytes(u128::from(id % keys).to_be_bytes());
    let mut last = Vec::new();
    for id in 0..proposals {
        let event = HomeEvent {
            key_hash: hash(id),
            homes: Homes {
                first: home_id(FIRST),
                second: None,
            },
            kind: propose(2 + id, 0, 1),
        };
        let (token, deadline) = (RequestToken(1_000 + id), Time::from_ms(DEADLINE_MS));
        last = cluster.directories[FIRST].handle(Time::ZERO, Event::Request { token, deadline, event });
    }
    last
}

#[test]
fn more_requests_than_the_limits_are_refused() {
    let limits = [(1, WAITING_PER_KEY_MAX as u64), (1_024, DIRECTORY_REQUESTS_MAX as u64)];
    for (keys, waiting) in limits {
        let mut cluster = Cluster::new(1);
        let last = flood(&mut cluster, keys, keys + waiting + 1);
        let [Action::Reply { answer, .. }] = &last[..] else {
            panic!("{last:?}")
        };
        assert_eq!(code(answer.clone()), ErrorCode::Overloaded);
        let answered = cluster.directories[FIRST].handle(Time::from_ms(DEADLINE_MS), Event::Tick);
        let replies = answered
            .iter()
            .filter(|action| matches!(action, Action::Reply { .. }))
            .count();
        assert_eq!(replies as u64, waiting);
    }
}

#[test]
pub(crate) fn a_removal_that_comes_late_or_twice_leaves_what_was_put_since() {
    let mut cluster = Cluster::new(1);
    let found = cluster.store(FIRST, key(1), 1, 0);
    let removal = HomeEventKind::Remove { up_to: found.epoch };
    assert_eq!(cluster.call(FIRST, key(1), removal.clone()), done(true));
    let since = cluster.store(FIRST, key(1), 2, 0);
    assert_eq!(cluster.call(FIRST, key(1), removal), done(false));
    let of_nothing = HomeEventKind::Remove { up_to: Epoch(0) };
    assert_eq!(cluster.call(FIRST, key(1), of_nothing), done(false));
    assert_eq!(cluster.located(FIRST, key(1)), Some(since));
}

#[test]
fn words_of_members_that_no_sound_member_says_are_refused_and_nothing_of_them_is_taken_in() {
    let mut cluster = Cluster::new(1);
    let sound = told(version(1, 1), 0, 1).sealed.unwrap();
    let entry = |change: fn(&mut HomeEntry)| {
        let mut entry = sound.clone();
        change(&mut entry);
        entry
    };
    let entries = [
        entry(|entry| entry.replicas.clear()),
        entry(|entry| entry.replicas = vec![entry.replicas[0]; 9]),
        entry(|entry| entry.version.epoch = Epoch(u64::MAX)),
        entry(|entry| entry.replicas[0].incarnation = Incarnation(u64::MAX)),
    ];
    for entry in entries {
        let [mut as_sealed, mut as_pending] = [(); 2].map(|()| MirrorEntry::default());
        as_sealed.sealed = Some(entry.clone());
        as_pending.pending = Some(entry.clone());
        for kind in [
            HomeEventKind::Mirror(as_sealed.clone()),
            HomeEventKind::Mirror(as_pending),
            HomeEventKind::Share(as_sealed),
            HomeEventKind::Publish(entry),
        ] {
            let answer = cluster.call(SECOND, key(1), kind);
            assert_eq!(code(answer), ErrorCode::InvalidArgument);
        }
    }
    let counts = cluster.directories[SECOND].counts();
    assert_eq!((counts.keys, counts.pending, counts.tombstones), (0, 0, 0));
}

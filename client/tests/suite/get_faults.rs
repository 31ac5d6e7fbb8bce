//! Gets of objects that move, vanish or are damaged, from holders that hang or are gone.

use crate::node::Part;
use crate::support::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tenon_client::{Check, ClientError, GetItem, GetOutcome, ReadFault};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{Generation, Incarnation};
use tenon_protocol::message::{Located, Request};
use tenon_transport::TransferError;
use tokio::time::Instant;

/// Answers the first `locate`s with these, one each, and the rest as it is.
fn located_first(agent: &Arc<FakeAgent>, answers: Vec<Located>) {
    let (mut answers, weak) = (answers.into_iter(), Arc::downgrade(agent));
    agent.fates(move |request| match request {
        Request::Locate(_) | Request::Relocate(_) => answers.next().map_or(Fate::Served, |located| {
            let agent = weak.upgrade().unwrap();
            Fate::Answered(agent.locate_reply(vec![Ok(Some(located))]))
        }),
        _ => Fate::Served,
    });
}

fn with_generation(mut located: Located, generation: u64) -> Located {
    located.replicas[0].generation = Generation(generation);
    located
}

#[tokio::test]
async fn a_stale_location_is_looked_up_afresh() {
    for script in [Script::guarded(), Script::one_sided()] {
        let bytes = payload(3 * MIB + 5, 1);
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let located = agent.store("k", &bytes);
        located_first(&agent, vec![with_generation(located, 99)]);
        let into = blank(bytes.len());
        assert!(is_hit(&get_into(&agent, "k", &into).await));
        assert!(into.to_vec() == bytes);
        assert_eq!(agent.count(is_locate), 2);
    }
}

#[tokio::test]
async fn a_freed_object_that_the_index_still_names_is_a_miss() {
    for script in [Script::guarded(), Script::one_sided()] {
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let located = agent.store("k", &payload(5000, 1));
        agent.nodes[0].free(&located.replicas[0]);
        assert_eq!(get_into(&agent, "k", &blank(5000)).await, Ok(GetOutcome::Miss));
        assert_eq!(agent.count(is_locate), 2, "only a second look makes it a miss");
        assert_eq!(agent.client().stat(&name("k"), soon()).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_stale_location_of_a_removed_object_is_a_miss() {
    let agent = agent_with("k", &payload(5000, 1));
    let located = agent.store("k", &payload(5000, 2));
    agent.forget("k");
    located_first(&agent, vec![with_generation(located, 99)]);
    assert_eq!(get_into(&agent, "k", &blank(5000)).await, Ok(GetOutcome::Miss));
}

#[tokio::test]
async fn an_object_that_moves_at_each_look_is_given_up_by_name() {
    let agent = agent_with("k", &payload(5000, 1));
    let located = agent.store("k", &payload(5000, 2));
    located_first(
        &agent,
        (100..200)
            .map(|generation| with_generation(located.clone(), generation))
            .collect(),
    );
    let error = get_into(&agent, "k", &blank(5000)).await.unwrap_err();
    assert!(matches!(error, ClientError::Restless { .. }), "{error}");
    assert!(agent.count(is_locate) < 10);
}

/// Between payload and table the region gets another object of the same key and length: what was read is neither.
#[tokio::test]
async fn an_object_replaced_between_payload_and_table_is_read_anew() {
    let (old, new) = (payload(3 * MIB, 1), payload(3 * MIB, 2));
    let (agent, script) = (FakeAgent::new(1, 1, 64 << 20), Script::one_sided());
    agent.wrap(script.wrap());
    let located = agent.store("k", &old);
    let (weak, new_bytes) = (Arc::downgrade(&agent), new.clone());
    script.after(move |number, _, _| {
        if number == 0 {
            let agent = weak.upgrade().unwrap();
            agent.replace_in_place("k", &located, &new_bytes);
        }
    });
    let into = blank(3 * MIB);
    assert!(is_hit(&get_into(&agent, "k", &into).await));
    assert!(into.to_vec() == new);
}

/// Who asks for no checksums is told of other objects, and of damage only by an engine that looks at the bytes anyway.
#[tokio::test]
async fn a_get_that_is_checked_by_generation_still_tells_objects_apart() {
    for (script, sees_damage) in [(Script::guarded(), true), (Script::one_sided(), false)] {
        let bytes = payload(3 * MIB, 1);
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let located = agent.store("k", &bytes);
        let get = async |into: &tenon_transport::Slice| {
            let item = GetItem::whole("k", into.clone()).checked_by(Check::Generation);
            let mut results = agent.client().get_batch(&namespace(), vec![item], soon()).await;
            results.pop().unwrap()
        };
        let into = blank(bytes.len());
        assert!(is_hit(&get(&into).await));
        assert!(into.to_vec() == bytes);
        agent.nodes[0].write(&located.replicas[0], MIB as u64 + 7, &[bytes[MIB + 7] ^ 1]);
        assert_eq!(is_hit(&get(&into).await), !sees_damage);
        agent.nodes[0].free(&located.replicas[0]);
        assert_eq!(get(&into).await, Ok(GetOutcome::Miss));
    }
}

#[tokio::test]
async fn damaged_payload_is_a_failed_read_and_reaches_no_destination() {
    for script in [Script::guarded(), Script::one_sided()] {
        let bytes = payload(3 * MIB, 1);
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let located = agent.store("k", &bytes);
        agent.nodes[0].write(&located.replicas[0], MIB as u64 + 7, &[bytes[MIB + 7] ^ 1]);
        let error = get_into(&agent, "k", &blank(bytes.len())).await.unwrap_err();
        let ClientError::FailedRead { node, fault } = &error else {
            panic!("{error}")
        };
        assert_eq!(*node, agent.nodes[0].id);
        assert!(matches!(fault, ReadFault::Piece { piece: 1, .. }), "{fault}");
        assert_eq!(agent.client().get(&name("k"), soon()).await.unwrap_err(), error);

        let into = blank(MIB);
        let range = MIB as u64 / 2..MIB as u64 * 3 / 2;
        let item = GetItem::part("k", range, into.clone());
        let outcome = agent
            .client()
            .get_batch(&namespace(), vec![item], soon())
            .await
            .pop()
            .unwrap();
        assert_eq!(outcome.unwrap_err().code(), ErrorCode::FailedRead);
        assert!(
            into.to_vec().iter().all(|&byte| byte == 0xee),
            "not a byte of a range with a bad piece"
        );
    }
}

#[tokio::test]
async fn damage_on_the_way_is_cured_by_reading_again() {
    let bytes = payload(2 * MIB, 1);
    let (agent, script) = (agent_with("k", &bytes), Script::guarded());
    script.after(|number, _, results| {
        if number == 0 {
            let done = results[0].as_mut().unwrap();
            done.crc64 = done.crc64.map(|crc| crc ^ 1);
        }
    });
    agent.wrap(script.wrap());
    let into = blank(bytes.len());
    assert!(is_hit(&get_into(&agent, "k", &into).await));
    assert_eq!(script.submits(), 2);
}

/// Whatever is wrong with the table entries of the right generation, nothing is delivered and the fault has a name.
#[tokio::test]
async fn damaged_or_foreign_table_entries_are_failed_reads() {
    let bytes = payload(2 * MIB + 3, 1);
    let fault_after = async |damage: &dyn Fn(&FakeAgent, &Located)| {
        let agent = agent_with("k", &bytes);
        let located = agent.store("k", &bytes);
        damage(&agent, &located);
        match get_into(&agent, "k", &blank(bytes.len())).await.unwrap_err() {
            ClientError::FailedRead { fault, .. } => fault,
            error => panic!("{error}"),
        }
    };
    let part =
        |part, at| move |agent: &FakeAgent, located: &Located| agent.nodes[0].damage(&located.replicas[0], part, at);
    assert!(matches!(
        fault_after(&part(Part::Row, 130)).await,
        ReadFault::Row { .. }
    ));
    assert!(matches!(fault_after(&part(Part::Row, 0)).await, ReadFault::Row { .. }));
    assert!(matches!(
        fault_after(&part(Part::Sums, 9)).await,
        ReadFault::Sums { .. }
    ));
    assert!(matches!(
        fault_after(&part(Part::Descriptor, 0)).await,
        ReadFault::Table(_)
    ));
    assert!(matches!(
        fault_after(&part(Part::Descriptor, 32)).await,
        ReadFault::Sums { .. }
    ));
    let field = async |at, expected: &str| {
        let fault = fault_after(&part(Part::Descriptor, at)).await;
        assert!(
            matches!(fault, ReadFault::Other { field, .. } if field == expected),
            "{fault}"
        );
    };
    field(8, "key hash").await;
    field(24, "length").await;
}

#[tokio::test]
async fn a_row_of_another_object_is_a_failed_read() {
    let bytes = payload(100, 1);
    let fault_after = async |change: &dyn Fn(&mut crate::node::Entries)| {
        let agent = FakeAgent::new(1, 1, 1 << 20);
        let (node, version) = (&agent.nodes[0], agent.next_version());
        let replica = node.replica(node.reserve(100));
        node.write(&replica, 0, &bytes);
        let mut entries = node.entries(&replica, &name("k"), version, &Checksums::of(&bytes), 100);
        change(&mut entries);
        node.seal(&replica, entries);
        let (len_bytes, replicas) = (100, vec![replica]);
        agent.index(
            "k",
            Located {
                version,
                len_bytes,
                replicas,
            },
        );
        match get_into(&agent, "k", &blank(100)).await.unwrap_err() {
            ClientError::FailedRead {
                fault: ReadFault::Other { field, .. },
                ..
            } => field,
            ClientError::FailedRead {
                fault: ReadFault::Sums { .. },
                ..
            } => "sums",
            error => panic!("{error}"),
        }
    };
    assert_eq!(fault_after(&|entries| entries.row.name = name("l")).await, "key");
    assert_eq!(
        fault_after(&|entries| entries.row.version.epoch.0 += 1).await,
        "version"
    );
    assert_eq!(
        fault_after(&|entries| entries.row.offset_bytes += 64).await,
        "row's offset"
    );
    assert_eq!(
        fault_after(&|entries| entries.row.generation.0 += 1).await,
        "row's generation"
    );
    assert_eq!(fault_after(&|entries| entries.row.tail_checksum ^= 1).await, "sums");
}

#[tokio::test]
async fn a_bad_replica_is_passed_over_for_a_good_one() {
    let bytes = payload(2 * MIB, 1);
    type Damage<'a> = &'a dyn Fn(&FakeAgent, &Located);
    let damages: [Damage<'_>; 3] = [
        &|agent, located| agent.nodes[0].write(&located.replicas[0], 0, &[bytes[0] ^ 1]),
        &|agent, located| agent.nodes[0].free(&located.replicas[0]),
        &|agent, _| assert!(agent.unreachable.lock().insert(agent.nodes[0].id)),
    ];
    for damage in damages {
        let agent = FakeAgent::new(2, 2, 64 << 20);
        let located = agent.store_on("k", &bytes, &[0, 1]);
        damage(&agent, &located);
        let into = blank(bytes.len());
        assert!(is_hit(&get_into(&agent, "k", &into).await));
        assert!(into.to_vec() == bytes);
        assert_eq!(agent.count(is_locate), 1);
    }
}

#[tokio::test]
async fn an_unreachable_holder_is_named_and_others_serve_on() {
    let agent = FakeAgent::new(2, 1, 64 << 20);
    agent.store_on("here", &payload(100, 1), &[0]);
    agent.store_on("there", &payload(100, 2), &[1]);
    let there = agent.nodes[1].id;
    agent.unreachable.lock().insert(there);
    let items = vec![GetItem::whole("here", blank(100)), GetItem::whole("there", blank(100))];
    let outcomes = agent.client().get_batch(&namespace(), items, soon()).await;
    assert!(is_hit(&outcomes[0]));
    let error = outcomes[1].as_ref().unwrap_err();
    assert!(
        matches!(error, ClientError::Unavailable { node, .. } if *node == Some(there)),
        "{error}"
    );
}

/// One replica is gone, the other cannot be asked: that is not a miss.
#[tokio::test]
async fn what_cannot_be_known_is_no_miss() {
    let agent = FakeAgent::new(2, 2, 64 << 20);
    let located = agent.store_on("k", &payload(100, 1), &[0, 1]);
    agent.unreachable.lock().insert(agent.nodes[0].id);
    agent.nodes[1].free(&located.replicas[1]);
    let error = get_into(&agent, "k", &blank(100)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert_eq!(error.node(), Some(agent.nodes[0].id));
}

#[tokio::test]
async fn a_lane_that_breaks_once_is_tried_again_and_twice_is_unavailable() {
    for (breaks, is_served) in [(1, true), (2, false)] {
        let bytes = payload(2 * MIB, 1);
        let (agent, script) = (agent_with("k", &bytes), Script::guarded());
        script.after(move |number, _, results| {
            if number < breaks {
                let reason = "the lane died".to_owned();
                results[1] = Err(TransferError::Disconnected { reason });
            }
        });
        agent.wrap(script.wrap());
        let outcome = get_into(&agent, "k", &blank(bytes.len())).await;
        assert_eq!(is_hit(&outcome), is_served);
        assert_eq!(agent.discards.load(Ordering::Relaxed), breaks);
        if let Err(error) = outcome {
            assert_eq!(
                (error.code(), error.node()),
                (ErrorCode::Unavailable, Some(agent.nodes[0].id))
            );
            assert!(error.to_string().contains("the lane died"), "{error}");
        }
    }
}

#[tokio::test]
async fn grants_that_were_taken_back_are_asked_for_anew() {
    let bytes = payload(100, 1);
    let agent = agent_with("k", &bytes);
    assert!(is_hit(&get_into(&agent, "k", &blank(100)).await));
    agent.nodes[0].change_keys();
    assert!(is_hit(&get_into(&agent, "k", &blank(100)).await));
    assert_eq!(agent.discards.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_a_restarted_holder_held_is_a_miss() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let mut located = agent.store("k", &payload(100, 1));
    located.replicas[0].incarnation = Incarnation(agent.nodes[0].incarnation().0 - 1);
    agent.index("k", located);
    assert_eq!(get_into(&agent, "k", &blank(100)).await, Ok(GetOutcome::Miss));
}

#[tokio::test]
async fn a_hanging_holder_leaves_time_for_the_other_replica() {
    let bytes = payload(100, 1);
    let agent = FakeAgent::new(2, 2, 1 << 20);
    agent.store_on("k", &bytes, &[0, 1]);
    agent.hanging.lock().insert(agent.nodes[0].id);
    let deadline = Instant::now() + Duration::from_millis(400);
    let item = GetItem::whole("k", blank(100));
    let outcome = agent
        .client()
        .get_batch(&namespace(), vec![item], deadline)
        .await
        .pop()
        .unwrap();
    assert!(is_hit(&outcome));
}

#[tokio::test(start_paused = true)]
async fn nothing_hangs_longer_than_the_deadline() {
    let agent = agent_with("k", &payload(100, 1));
    let get = async || {
        let start = Instant::now();
        let item = GetItem::whole("k", blank(100));
        let deadline = start + Duration::from_millis(300);
        let error = agent
            .client()
            .get_batch(&namespace(), vec![item], deadline)
            .await
            .pop()
            .unwrap()
            .unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{error}");
        assert_eq!(start.elapsed(), Duration::from_millis(300), "{error}");
    };
    agent.fates(|_| Fate::Hangs);
    get().await;
    agent.fates(|_| Fate::Served);
    agent.hanging.lock().insert(agent.nodes[0].id);
    get().await;
    agent.hanging.lock().clear();
    agent.wrap(Script::hanging().wrap());
    get().await;
}

#[tokio::test]
async fn a_dropped_get_lets_go_of_the_destination() {
    let agent = agent_with("k", &payload(100, 1));
    let script = Script::hanging();
    agent.wrap(script.wrap());
    let into = blank(100);
    let client = agent.client();
    let items = vec![GetItem::whole("k", into.clone())];
    let task = tokio::spawn(async move { client.get_batch(&namespace(), items, soon()).await });
    eventually("the transfer", || script.submits() == 1).await;
    assert!(Arc::strong_count(into.memory()) > 1);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(Arc::strong_count(into.memory()), 1);
}

#[tokio::test]
async fn an_answer_that_makes_no_sense_is_named() {
    let agent = agent_with("k", &payload(100, 1));
    let located = agent.store("k", &payload(100, 2));
    let error_for = async |change: fn(&mut Located)| {
        let mut changed = located.clone();
        change(&mut changed);
        located_first(&agent, vec![changed]);
        get_into(&agent, "k", &blank(100)).await.unwrap_err()
    };
    for change in [
        (|located| located.replicas.clear()) as fn(&mut Located),
        |located| located.len_bytes = 0,
        |located| located.len_bytes = u64::MAX,
        |located| located.replicas[0].holder = tenon_protocol::ids::NodeId::from_bytes([9; 16]),
    ] {
        let error = error_for(change).await;
        assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    }
    let other = agent.locate_reply(Vec::new());
    agent.fates(move |_| Fate::Answered(other.clone()));
    let error = get_into(&agent, "k", &blank(100)).await.unwrap_err();
    assert!(error.to_string().contains("0 results to locate of 1 keys"), "{error}");
}

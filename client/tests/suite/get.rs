//! Gets that go well, and those that are refused before anything is read.

use crate::support::*;
use std::time::Duration;
use tenon_client::limits::MARKS_EVERY_MS;
use tenon_client::{Check, ClientError, GetItem, GetOutcome};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Keep, KeepRequest, Request};

/// Both kinds of engine.
fn scripts() -> [std::sync::Arc<Script>; 2] {
    [Script::guarded(), Script::one_sided()]
}

#[tokio::test]
async fn objects_of_all_sizes_come_back_over_both_kinds_of_engine() {
    for script in scripts() {
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        for (at, len) in [1, 64 * 1024 - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 100, 20 * MIB + 5]
            .into_iter()
            .enumerate()
        {
            let (key, bytes) = (format!("object/{at}"), payload(len, at as u64));
            agent.store(&key, &bytes);
            let into = blank(len);
            let Ok(GetOutcome::Hit(info)) = get_into(&agent, &key, &into).await else {
                panic!("no hit for {len} bytes")
            };
            assert!(into.to_vec() == bytes, "other bytes for {len}");
            assert_eq!(info.checksums, Checksums::of(&bytes));
            assert_eq!(info.len_bytes, len as u64);
            let whole = agent.client().get(&name(&key), soon()).await.unwrap().unwrap();
            assert!(whole == bytes, "other bytes for {len}, at once");
        }
    }
}

#[tokio::test]
async fn a_batch_has_one_result_per_item_in_order() {
    let agent = FakeAgent::new(2, 1, 64 << 20);
    let len = |at: usize| at * 977 + 1;
    for at in (0..128).filter(|at| at % 3 != 0) {
        agent.store_on(&format!("k{at}"), &payload(len(at), at as u64), &[at % 2]);
    }
    let into: Vec<_> = (0..128).map(|at| blank(len(at))).collect();
    let items = into
        .iter()
        .enumerate()
        .map(|(at, into)| GetItem::whole(format!("k{at}"), into.clone()));
    let outcomes = agent.client().get_batch(&namespace(), items.collect(), soon()).await;
    assert_eq!(outcomes.len(), 128);
    for (at, outcome) in outcomes.iter().enumerate() {
        match outcome.as_ref().unwrap() {
            GetOutcome::Miss => assert_eq!(at % 3, 0, "{at}"),
            GetOutcome::Hit(info) => {
                assert_eq!(info.name, name(&format!("k{at}")));
                assert!(into[at].to_vec() == payload(len(at), at as u64), "{at}");
            }
        }
    }
    assert_eq!(agent.count(is_locate), 1, "one frame asks for a whole batch");
}

#[tokio::test]
async fn small_objects_of_one_holder_share_a_submission() {
    let (agent, script) = (FakeAgent::new(1, 1, 64 << 20), Script::guarded());
    agent.wrap(script.wrap());
    let mut items = Vec::new();
    for at in 0..100 {
        let key = format!("k{at}");
        agent.store(&key, &payload(64 * 1024, at));
        items.push(GetItem::whole(key, blank(64 * 1024)));
    }
    let outcomes = agent.client().get_batch(&namespace(), items, soon()).await;
    assert!(outcomes.iter().all(is_hit));
    assert_eq!(script.submits(), 1);
    assert_eq!(script.transfers(), 300, "payload, row and descriptor of each");
}

#[tokio::test]
async fn an_empty_batch_asks_nobody() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    assert!(
        agent
            .client()
            .get_batch(&namespace(), Vec::new(), soon())
            .await
            .is_empty()
    );
    assert_eq!(agent.calls(|_| Some(())).len(), 0);
}

#[tokio::test]
async fn a_key_may_stand_twice_and_a_bad_name_fails_alone() {
    let bytes = payload(5000, 1);
    let agent = agent_with("k", &bytes);
    let (a, b) = (blank(5000), blank(5000));
    let long = "x".repeat(1025);
    let items = vec![
        GetItem::whole("k", a.clone()),
        GetItem::whole("", blank(1)),
        GetItem::whole("tab\there", blank(1)),
        GetItem::whole("k", b.clone()),
        GetItem::whole(long, blank(1)),
    ];
    let outcomes = agent.client().get_batch(&namespace(), items, soon()).await;
    assert!(is_hit(&outcomes[0]) && is_hit(&outcomes[3]));
    assert!(a.to_vec() == bytes && b.to_vec() == bytes);
    for at in [1, 2, 4] {
        assert_eq!(
            outcomes[at].as_ref().unwrap_err().code(),
            ErrorCode::InvalidName,
            "{at}"
        );
    }
}

#[tokio::test]
async fn ranges_get_exactly_their_bytes_and_whole_pieces_are_verified() {
    for script in scripts() {
        let bytes = payload(5 * MIB + 77, 9);
        let agent = agent_with("k", &bytes);
        agent.wrap(script.wrap());
        let len = bytes.len();
        for (start, end) in [
            (0, 1),
            (10, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB - 1, 3 * MIB + 1),
            (5 * MIB, len),
            (len - 1, len),
            (0, len),
        ] {
            let into = blank(end - start);
            let item = GetItem::part("k", start as u64..end as u64, into.clone());
            let outcome = agent
                .client()
                .get_batch(&namespace(), vec![item], soon())
                .await
                .pop()
                .unwrap();
            assert!(is_hit(&outcome), "{start}..{end}: {outcome:?}");
            assert!(into.to_vec() == bytes[start..end], "{start}..{end}");
        }
    }
}

/// A range that begins and ends inside pieces, so that its first and last land in other memory than the rest.
#[tokio::test]
async fn pieces_that_nobody_checks_one_by_one_are_read_together() {
    for (script, transfers) in [(Script::guarded(), 21), (Script::one_sided(), 3)] {
        let bytes = payload(20 * MIB + 5, 3);
        let agent = agent_with("k", &bytes);
        agent.wrap(script.wrap());
        let range = MIB / 2..20 * MIB + 2;
        let into = blank(range.len());
        let item = GetItem::part("k", range.start as u64..range.end as u64, into.clone());
        let items = vec![item.checked_by(Check::Generation)];
        let outcomes = agent.client().get_batch(&namespace(), items, soon()).await;
        assert!(is_hit(&outcomes[0]), "{outcomes:?}");
        assert!(into.to_vec() == bytes[range]);
        let entries = 3;
        assert_eq!(
            script.transfers(),
            transfers + entries,
            "payload, sums, row and descriptor"
        );
    }
}

#[tokio::test]
async fn a_range_outside_the_object_is_refused_with_the_numbers() {
    let agent = agent_with("k", &payload(100, 1));
    for (start, end) in [(0, 101), (100, 101), (50, 50)] {
        let item = GetItem::part("k", start..end, blank(1));
        let error = agent
            .client()
            .get_batch(&namespace(), vec![item], soon())
            .await
            .pop()
            .unwrap()
            .unwrap_err();
        let object_bytes = 100;
        assert_eq!(
            error,
            ClientError::Range {
                start,
                end,
                object_bytes
            }
        );
    }
}

#[tokio::test]
async fn a_destination_of_another_size_is_refused_with_both_numbers_and_nothing_is_read() {
    let (agent, script) = (agent_with("k", &payload(5000, 1)), Script::guarded());
    agent.wrap(script.wrap());
    for destination_bytes in [4999, 5001, 6000] {
        let into = blank(destination_bytes);
        let error = get_into(&agent, "k", &into).await.unwrap_err();
        let (asked_bytes, destination_bytes) = (5000, destination_bytes as u64);
        assert_eq!(
            error,
            ClientError::SizeMismatch {
                asked_bytes,
                destination_bytes
            }
        );
        assert!(into.to_vec().iter().all(|&byte| byte == 0xee));
    }
    assert_eq!(script.submits(), 0);
}

#[tokio::test]
async fn another_fingerprint_is_a_miss() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let options = tenon_client::PutOptions {
        fingerprint: vec![1, 2, 3],
        ..Default::default()
    };
    agent
        .client()
        .put(&name("k"), vec![7; 10], &options, soon())
        .await
        .unwrap();
    let get = async |fingerprint: Option<Vec<u8>>| {
        let mut item = GetItem::whole("k", blank(10));
        item.fingerprint = fingerprint;
        agent
            .client()
            .get_batch(&namespace(), vec![item], soon())
            .await
            .pop()
            .unwrap()
    };
    assert!(is_hit(&get(None).await));
    assert!(is_hit(&get(Some(vec![1, 2, 3])).await));
    assert_eq!(get(Some(vec![1, 2])).await, Ok(GetOutcome::Miss));
}

#[tokio::test]
async fn stat_reads_the_table_alone() {
    let (bytes, script) = (payload(3 * MIB, 4), Script::guarded());
    let agent = agent_with("k", &bytes);
    agent.wrap(script.wrap());
    let info = agent.client().stat(&name("k"), soon()).await.unwrap().unwrap();
    assert_eq!(
        (info.len_bytes, info.sealed_unix_ms),
        (3 * PIECE_BYTES, 1_700_000_000_000)
    );
    assert_eq!(info.checksums, Checksums::of(&bytes));
    assert_eq!(info.replicas.len(), 1);
    assert_eq!((script.submits(), script.transfers()), (1, 3));
    assert_eq!(agent.client().stat(&name("nothing"), soon()).await.unwrap(), None);
}

#[tokio::test]
async fn reads_past_their_owner_are_told_as_uses_in_one_batch_and_guarded_ones_are_not() {
    for (script, are_told) in scripts().into_iter().zip([false, true]) {
        let agent = FakeAgent::new(1, 1, 64 << 20);
        agent.wrap(script.wrap());
        let keys: Vec<String> = (0..10).map(|at| format!("k{at}")).collect();
        for key in &keys {
            agent.store(key, &payload(100, 1));
        }
        let client = agent.client();
        for key in keys.iter().chain(&keys) {
            assert!(client.get(&name(key), soon()).await.unwrap().is_some());
        }
        // Looking at an object is no use of it, and neither is missing one.
        agent.store("looked at", &payload(100, 1));
        assert!(client.stat(&name("looked at"), soon()).await.unwrap().is_some());
        assert!(client.get(&name("not there"), soon()).await.unwrap().is_none());
        let told = || {
            agent.calls(|call| match call {
                Request::Keep(request) => Some(request.clone()),
                _ => None,
            })
        };
        tokio::time::sleep(Duration::from_millis(3 * MARKS_EVERY_MS)).await;
        let expected = KeepRequest {
            namespace: namespace().to_string(),
            keys,
            keep: Keep::Touch,
        };
        assert_eq!(told(), if are_told { vec![expected] } else { Vec::new() });
    }
}

//! Puts that go well, and those that are refused before anything is written.

use crate::support::*;
use tenon_client::{ClientError, PutItem, PutOptions};
use tenon_protocol::error::ErrorCode;
use tenon_protocol::limits::BATCH_KEYS_MAX;
use tenon_protocol::message::{PutOutcome, Request};

fn item(key: &str, bytes: &[u8]) -> PutItem {
    PutItem {
        key: key.to_owned(),
        source: source(bytes),
    }
}

#[tokio::test]
async fn what_was_put_is_got_from_every_replica() {
    let agent = FakeAgent::new(2, 2, 64 << 20);
    let options = PutOptions::default();
    for (at, len) in [1, 64 * 1024 - 1, MIB, 5 * MIB + 3].into_iter().enumerate() {
        let (key, bytes) = (format!("k{at}"), payload(len, at as u64));
        let committed = agent
            .client()
            .put(&name(&key), bytes.clone(), &options, soon())
            .await
            .unwrap();
        assert_eq!(committed.outcome, PutOutcome::Stored);
        for holder in 0..2 {
            agent.unreachable.lock().insert(agent.nodes[holder].id);
            assert!(
                agent.client().get(&name(&key), soon()).await.unwrap().unwrap() == bytes,
                "{len}"
            );
            agent.unreachable.lock().clear();
        }
    }
    assert_eq!(agent.pending(), 0);
}

#[tokio::test]
async fn a_second_put_keeps_the_first_object() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let options = PutOptions::default();
    let first = agent
        .client()
        .put(&name("k"), b"first".as_slice(), &options, soon())
        .await
        .unwrap();
    let second = agent
        .client()
        .put(&name("k"), b"second".as_slice(), &options, soon())
        .await
        .unwrap();
    assert_eq!(
        (second.outcome, second.version),
        (PutOutcome::AlreadyExists, first.version)
    );
    assert_eq!(
        agent.client().get(&name("k"), soon()).await.unwrap().unwrap(),
        b"first".as_slice()
    );
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_result() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let empty = PutItem {
        key: "empty".into(),
        source: source(b"x").subslice(0..0).unwrap(),
    };
    let items = vec![
        item("a", b"1"),
        item("", b"2"),
        empty,
        item("b", b"3"),
        item("a", b"4"),
        item("\u{7f}", b"5"),
    ];
    let results = agent
        .client()
        .put_batch(&namespace(), items, &PutOptions::default(), soon())
        .await;
    assert!(results[0].is_ok() && results[3].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().code(), ErrorCode::InvalidName);
    assert_eq!(results[2], Err(ClientError::Empty));
    let duplicate = ClientError::DuplicateKey {
        key: "a".into(),
        first: 0,
        again: 4,
    };
    assert_eq!(results[4], Err(duplicate));
    assert_eq!(results[5].as_ref().unwrap_err().code(), ErrorCode::InvalidName);
    assert_eq!(
        agent.client().get(&name("a"), soon()).await.unwrap().unwrap(),
        b"1".as_slice()
    );
    assert_eq!(agent.pending(), 0);
}

#[tokio::test]
async fn an_empty_batch_asks_nobody() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let results = agent
        .client()
        .put_batch(&namespace(), Vec::new(), &PutOptions::default(), soon())
        .await;
    assert!(results.is_empty());
    assert_eq!(agent.calls(|_| Some(())).len(), 0);
}

#[tokio::test]
async fn a_large_batch_takes_few_frames_and_few_submissions_under_one_put_id() {
    let (agent, script) = (FakeAgent::new(1, 1, 64 << 20), Script::guarded());
    agent.wrap(script.wrap());
    let keys = BATCH_KEYS_MAX + 500;
    let items = (0..keys)
        .map(|at| item(&format!("k{at}"), &payload(1000, at as u64)))
        .collect();
    let results = agent
        .client()
        .put_batch(&namespace(), items, &PutOptions::default(), soon())
        .await;
    assert!(results.iter().all(Result::is_ok));
    let mut put_ids = agent.calls(|request| match request {
        Request::Reserve(request) => Some(request.put_id),
        Request::Commit(request) => Some(request.put_id),
        other => panic!("{other:?}"),
    });
    assert_eq!(put_ids.len(), 4);
    put_ids.dedup();
    assert_eq!(put_ids.len(), 1);
    assert_eq!(script.submits(), 2);
}

#[tokio::test]
async fn a_fingerprint_that_is_too_long_is_refused_at_once() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let options = PutOptions {
        fingerprint: vec![0; 33],
        ..PutOptions::default()
    };
    let error = agent
        .client()
        .put(&name("k"), vec![1], &options, soon())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("33"), "{error}");
    assert_eq!(agent.calls(|_| Some(())).len(), 0);
}

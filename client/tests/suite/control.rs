//! The operations that are one question.

use crate::support::*;
use std::time::Duration;
use tenon_client::ClientError;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::limits::BATCH_KEYS_MAX;
use tenon_protocol::message::{ListReply, NodesReply, Reply, Request};
use tenon_protocol::segments::SegmentsReply;
use tokio::time::Instant;

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("k{at}")).collect()
}

#[tokio::test]
async fn exists_answers_each_key_over_many_frames() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    agent.store("k7", b"7");
    agent.store("k1500", b"1500");
    let mut asked = keys(BATCH_KEYS_MAX + 600);
    asked[3].clear();
    let hits = agent.client().exists(&namespace(), asked, soon()).await;
    assert_eq!(hits.len(), BATCH_KEYS_MAX + 600);
    for (at, hit) in hits.into_iter().enumerate() {
        match at {
            3 => assert_eq!(hit.unwrap_err().code(), ErrorCode::InvalidName),
            at => assert_eq!(hit, Ok(at == 7 || at == 1500)),
        }
    }
}

#[tokio::test]
async fn the_leading_run_crosses_frames_and_stops_at_the_first_gap() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let run = async |count| {
        agent
            .client()
            .exists_leading_run(&namespace(), keys(count), soon())
            .await
    };
    assert_eq!(run(5).await, Ok(0));
    for key in keys(BATCH_KEYS_MAX + 10) {
        agent.store(&key, b"x");
    }
    assert_eq!(run(5).await, Ok(5));
    assert_eq!(run(BATCH_KEYS_MAX + 100).await, Ok(BATCH_KEYS_MAX + 10));
    agent.forget("k2");
    let before = agent.calls(|_| Some(())).len();
    assert_eq!(run(3 * BATCH_KEYS_MAX).await, Ok(2));
    assert_eq!(
        agent.calls(|_| Some(())).len() - before,
        1,
        "nothing is asked beyond the gap"
    );
}

#[tokio::test]
async fn remove_and_locate_answer_each_key() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let located = agent.store("k1", b"1");
    let found = agent.client().locate(&namespace(), keys(3), soon()).await;
    assert_eq!(found, [Ok(None), Ok(Some(located)), Ok(None)]);
    let removed = agent.client().remove(&namespace(), keys(3), soon()).await;
    assert_eq!(removed, [Ok(false), Ok(true), Ok(false)]);
    let hits = agent.client().exists(&namespace(), keys(3), soon()).await;
    assert_eq!(hits, [Ok(false), Ok(false), Ok(false)]);
}

#[tokio::test]
async fn overviews_are_passed_on() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let list = ListReply {
        entries: Vec::new(),
        more: true,
        complete: false,
        missing: vec![agent.nodes[0].id],
    };
    let nodes = NodesReply {
        view_source: "static".into(),
        view_revision: 3,
        nodes: Vec::new(),
        index: Box::default(),
        alarms: Vec::new(),
    };
    let segments = SegmentsReply {
        segments: Vec::new(),
        missing: Vec::new(),
    };
    let answers = (list.clone(), nodes.clone(), segments.clone());
    agent.fates(move |request| {
        Fate::Answered(match request {
            Request::List(asked) => {
                assert_eq!(
                    (asked.prefix.as_str(), asked.after.as_deref(), asked.limit),
                    ("p/", Some("p/a"), 7)
                );
                Reply::List(answers.0.clone())
            }
            Request::Nodes => Reply::Nodes(answers.1.clone()),
            Request::Segments { .. } => Reply::Segments(answers.2.clone()),
            other => panic!("{other:?}"),
        })
    });
    let client = agent.client();
    assert_eq!(
        client.list(&namespace(), "p/", Some("p/a".into()), 7, soon()).await,
        Ok(list)
    );
    assert_eq!(client.nodes(soon()).await, Ok(nodes));
    assert_eq!(client.segments(None, soon()).await, Ok(segments));
}

#[tokio::test]
async fn a_frame_that_fails_as_a_whole_fails_for_each_of_its_keys() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let error = ServiceError::new(ErrorCode::Overloaded, "too many calls");
    let reply = Reply::Failed(error.clone());
    agent.fates(move |_| Fate::Answered(reply.clone()));
    let results = agent.client().exists(&namespace(), keys(3), soon()).await;
    assert_eq!(results, vec![Err(ClientError::Service(error)); 3]);
}

#[tokio::test]
async fn an_answer_of_another_kind_is_named() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    agent.fates(|_| Fate::Answered(Reply::Remove(vec![Ok(true)])));
    let error = agent.client().nodes(soon()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the agent's answer makes no sense: the reply to nodes is of kind Remove"
    );
}

#[tokio::test(start_paused = true)]
async fn a_control_that_hangs_is_left_at_the_deadline() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    agent.fates(|_| Fate::Hangs);
    let (client, span) = (agent.client(), Duration::from_millis(200));
    let mut errors = Vec::new();
    let start = Instant::now();
    errors.push(client.nodes(start + span).await.unwrap_err());
    errors.extend(
        client
            .remove(&namespace(), keys(1), start + span)
            .await
            .pop()
            .unwrap()
            .err(),
    );
    errors.extend(
        client
            .locate(&namespace(), keys(1), start + span)
            .await
            .pop()
            .unwrap()
            .err(),
    );
    errors.push(
        client
            .exists_leading_run(&namespace(), keys(1), start + span)
            .await
            .unwrap_err(),
    );
    assert_eq!(start.elapsed(), span);
    for error in errors {
        assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    }
}

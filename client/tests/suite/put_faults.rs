//! Puts whose answers are lost, whose holders are gone, and whose bytes are damaged.

use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tenon_client::{ClientError, PutItem, PutOptions, new_put_id};
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::message::{Committed, PutOutcome, Reply, Request};
use tenon_transport::TransferError;
use tokio::time::Instant;

async fn put(agent: &Arc<FakeAgent>, bytes: &[u8]) -> Result<Committed, ClientError> {
    agent
        .client()
        .put(&name("k"), bytes, &PutOptions::default(), soon())
        .await
}

/// Gives the first commit this fate.
fn first_commit(agent: &FakeAgent, fate: Fate) {
    let mut fate = Some(fate);
    agent.fates(move |request| match request {
        Request::Commit(_) => fate.take().unwrap_or(Fate::Served),
        _ => Fate::Served,
    });
}

#[tokio::test]
async fn a_lost_commit_answer_is_asked_for_again_and_is_the_same() {
    let timed_out = ServiceError::new(ErrorCode::DeadlineExceeded, "not all were answered");
    let unavailable = ServiceError::unavailable(new_node(), "commit");
    for fate in [
        Fate::AnswerLost,
        Fate::Lost,
        Fate::Answered(Reply::Failed(timed_out.clone())),
        Fate::Answered(Reply::Commit(vec![Err(timed_out)])),
        Fate::Answered(Reply::Commit(vec![Err(unavailable)])),
    ] {
        let agent = FakeAgent::new(1, 1, 1 << 20);
        first_commit(&agent, fate);
        let committed = put(&agent, b"bytes").await.unwrap();
        assert_eq!(
            committed.outcome,
            PutOutcome::Stored,
            "a repeated commit is no second put"
        );
        let ids = agent.calls(|request| match request {
            Request::Commit(request) => Some(request.put_id),
            _ => None,
        });
        assert_eq!(ids, [committed.version.put_id; 2]);
        assert_eq!(agent.count(is_abort), 0);
    }
}

#[tokio::test]
async fn what_failed_first_is_told_when_the_put_is_not_known_afterwards() {
    let unknown = ServiceError::new(ErrorCode::UnknownPut, "never reserved");
    let unavailable = ServiceError::unavailable(new_node(), "commit");
    let timed_out = ServiceError::new(ErrorCode::DeadlineExceeded, "not all were answered");
    for (earlier, code) in [
        (vec![unavailable.clone()], ErrorCode::Unavailable),
        (vec![timed_out.clone()], ErrorCode::DeadlineExceeded),
        (vec![timed_out, unavailable], ErrorCode::Unavailable),
        (vec![], ErrorCode::UnknownPut),
    ] {
        let agent = FakeAgent::new(1, 1, 1 << 20);
        let mut errors = earlier.into_iter().chain([unknown.clone()]);
        agent.fates(move |request| match request {
            Request::Commit(_) => {
                let error = errors.next().expect("nobody asks on once the put is not known");
                Fate::Answered(Reply::Commit(vec![Err(error)]))
            }
            _ => Fate::Served,
        });
        let error = put(&agent, b"bytes").await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
}

fn new_node() -> tenon_protocol::ids::NodeId {
    tenon_protocol::ids::NodeId::from_bytes([9; 16])
}

#[tokio::test]
async fn a_put_repeated_under_its_id_has_its_outcome() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let options = PutOptions {
        put_id: Some(new_put_id()),
        ..PutOptions::default()
    };
    let first = agent
        .client()
        .put(&name("k"), b"bytes".as_slice(), &options, soon())
        .await
        .unwrap();
    let again = agent
        .client()
        .put(&name("k"), b"bytes".as_slice(), &options, soon())
        .await
        .unwrap();
    assert_eq!(first, again);
    assert_eq!(first.outcome, PutOutcome::Stored);
}

#[tokio::test(start_paused = true)]
async fn a_commit_without_any_answer_ends_at_the_deadline_by_name() {
    for hangs in [true, false] {
        let agent = FakeAgent::new(1, 1, 1 << 20);
        agent.fates(move |request| match request {
            Request::Commit(_) if hangs => Fate::Hangs,
            Request::Commit(_) => Fate::Lost,
            _ => Fate::Served,
        });
        let (start, span) = (Instant::now(), Duration::from_secs(4));
        let put = agent
            .client()
            .put(&name("k"), vec![1], &PutOptions::default(), start + span)
            .await;
        let error = put.unwrap_err();
        let expected = if hangs {
            ErrorCode::DeadlineExceeded
        } else {
            ErrorCode::Unavailable
        };
        assert_eq!(error.code(), expected, "{error}");
        assert!(
            start.elapsed() <= span && start.elapsed() > span / 2,
            "{:?}",
            start.elapsed()
        );
        assert!(agent.count(is_commit) > 1);
        assert_eq!(agent.count(is_abort), 0, "a commit of unknown fate is not given back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_dies_before_the_commit_does_not_cost_the_whole_deadline() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let unavailable = ServiceError::unavailable(new_node(), "commit");
    agent.fates(move |request| match request {
        Request::Commit(_) => Fate::Answered(Reply::Commit(vec![Err(unavailable.clone())])),
        _ => Fate::Served,
    });
    let start = Instant::now();
    let error = put(&agent, b"bytes").await.unwrap_err();
    assert!(
        matches!(error, ClientError::Unavailable { node, .. } if node == Some(new_node())),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn an_unreachable_holder_is_named_and_nothing_stays_reserved() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    agent.unreachable.lock().insert(agent.nodes[0].id);
    let error = put(&agent, b"bytes").await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Unavailable { node, .. } if *node == Some(agent.nodes[0].id)),
        "{error}"
    );
    assert_eq!((agent.pending(), agent.count(is_commit)), (0, 0));
}

#[tokio::test]
async fn bytes_damaged_on_the_way_are_sent_again_and_then_given_up() {
    for (damages, is_stored) in [(1, true), (9, false)] {
        let (agent, script) = (FakeAgent::new(1, 1, 8 << 20), Script::guarded());
        script.after(move |number, _, results| {
            if number < damages {
                let done = results[0].as_mut().unwrap();
                done.crc64 = done.crc64.map(|crc| crc ^ 1);
            }
        });
        agent.wrap(script.wrap());
        let result = put(&agent, &payload(2 * MIB, 1)).await;
        assert_eq!(result.is_ok(), is_stored);
        assert_eq!(script.transfers(), 3, "only the damaged piece is sent again");
        assert_eq!(agent.pending(), 0);
        if let Err(error) = result {
            assert_eq!(error.code(), ErrorCode::ChecksumMismatch);
        }
    }
}

#[tokio::test]
async fn a_holder_that_finds_other_bytes_refuses_the_put() {
    let (agent, script) = (FakeAgent::new(1, 1, 1 << 20), Script::guarded());
    let weak = Arc::downgrade(&agent);
    script.after(move |_, _, _| {
        let agent = weak.upgrade().unwrap();
        let mut replica = agent.nodes[0].replica(0);
        replica.offset_bytes = 0;
        agent.nodes[0].write(&replica, 3, &[0xff]);
    });
    agent.wrap(script.wrap());
    let error = put(&agent, b"bytes").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ChecksumMismatch);
    assert_eq!(agent.client().get(&name("k"), soon()).await.unwrap(), None);
}

#[tokio::test]
async fn a_broken_lane_is_tried_again_and_a_refused_grant_is_named() {
    let (agent, script) = (FakeAgent::new(1, 1, 8 << 20), Script::guarded());
    script.after(|number, _, results| {
        if number == 0 {
            let reason = "the lane died".to_owned();
            results[0] = Err(TransferError::Disconnected { reason });
        }
    });
    agent.wrap(script.wrap());
    put(&agent, b"bytes").await.unwrap();
    assert_eq!(script.submits(), 2);

    let (agent, script) = (FakeAgent::new(1, 1, 8 << 20), Script::guarded());
    script.after(|_, _, results| results[0] = Err(TransferError::Revoked));
    agent.wrap(script.wrap());
    let error = put(&agent, b"bytes").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::GrantRefused, "{error}");
    assert_eq!((script.submits(), agent.pending()), (1, 0));
}

#[tokio::test]
async fn no_space_for_one_key_leaves_the_others() {
    let agent = FakeAgent::new(1, 1, 1 << 20);
    let numbers = NoSpace {
        asked_bytes: 5,
        free_bytes: 4,
        largest_free_bytes: 3,
        evictable_bytes: 2,
        held_bytes: 1,
        largest_segment_bytes: 6,
        entries_looked_at: 1,
        stop_reason: "all looked at".into(),
    };
    let full = ServiceError::no_space(numbers.clone());
    agent.fates(move |request| match request {
        Request::Reserve(request) if request.items.len() == 1 && request.items[0].key == "full" => {
            let nodes = Vec::new();
            let items = vec![Err(full.clone())];
            Fate::Answered(Reply::Reserve(tenon_protocol::message::ReserveReply { nodes, items }))
        }
        _ => Fate::Served,
    });
    let error = agent
        .client()
        .put(&name("full"), vec![1], &PutOptions::default(), soon())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, ClientError::NoSpace { numbers: found, .. } if **found == numbers),
        "{error}"
    );
    assert!(put(&agent, b"bytes").await.is_ok());
}

#[tokio::test]
async fn a_dropped_put_lets_go_of_its_source_and_gives_back_what_it_reserved() {
    let (agent, script) = (FakeAgent::new(1, 1, 1 << 20), Script::hanging());
    agent.wrap(script.wrap());
    let bytes = source(b"bytes");
    let item = PutItem {
        key: "k".into(),
        source: bytes.clone(),
    };
    let client = agent.client();
    let task = tokio::spawn(async move {
        client
            .put_batch(&namespace(), vec![item], &PutOptions::default(), soon())
            .await
    });
    eventually("the transfer", || script.submits() == 1).await;
    assert_eq!(agent.pending(), 1);
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(Arc::strong_count(bytes.memory()), 1);
    eventually("the abort", || agent.pending() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_put_comes_back_by_its_deadline_wherever_it_hangs() {
    let put_within = async |agent: &Arc<FakeAgent>| {
        let (start, span) = (Instant::now(), Duration::from_millis(300));
        let put = agent
            .client()
            .put(&name("k"), vec![1], &PutOptions::default(), start + span)
            .await;
        assert_eq!(put.unwrap_err().code(), ErrorCode::DeadlineExceeded);
        assert_eq!(start.elapsed(), span);
    };
    let agent = FakeAgent::new(1, 1, 1 << 20);
    agent.fates(|_| Fate::Hangs);
    put_within(&agent).await;
    agent.fates(|_| Fate::Served);
    agent.hanging.lock().insert(agent.nodes[0].id);
    put_within(&agent).await;
    agent.hanging.lock().clear();
    agent.wrap(Script::hanging().wrap());
    put_within(&agent).await;
}

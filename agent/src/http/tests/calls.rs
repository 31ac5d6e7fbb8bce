//! The verbs, and the puts that are made of them.

use serde_json::{Value, json};
use tenon_client::RemovedPage;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, Generation, Incarnation, NodeId, PutId, SegmentId, Slot, Version};
use tenon_protocol::message::{
    Committed, ExistsReply, ListReply, ListRequest, LocateReply, Located, NodeRef, PutOutcome, Replica, Reply, Request,
    Reservation, ReserveReply, ReservedRegion,
};

use super::client::Answer;
use super::{Served, payload};

const MIB: usize = 1 << 20;
pub(super) const PUT: PutId = PutId::from_bytes([1; 16]);
const HOLDER: NodeId = NodeId::from_bytes([2; 16]);
const VERSION: Version = Version {
    epoch: Epoch(3),
    put_id: PUT,
};

pub(super) async fn answered(front: &Served, path: &str, body: &Value, reply: Reply) -> Answer {
    front.node.replies.lock().push_back(reply);
    front.post(path, &body.to_string()).await
}

fn last_call(front: &Served) -> Request {
    front.node.calls.lock().last().unwrap().clone()
}

fn node_ref() -> NodeRef {
    NodeRef {
        node: HOLDER,
        incarnation: Incarnation(5),
        endpoint: "127.0.0.1:7601".into(),
    }
}

pub(super) fn reserved(write_key: u64) -> Reply {
    Reply::Reserve(ReserveReply {
        nodes: vec![node_ref()],
        items: vec![
            Ok(Reservation {
                replicas: vec![ReservedRegion {
                    holder: HOLDER,
                    segment: SegmentId(1),
                    offset_bytes: 64,
                    write_key,
                    ttl_ms: 30_000,
                }],
            }),
            Err(ServiceError::new(ErrorCode::InvalidName, "the key is empty")),
        ],
    })
}

pub(super) fn reserve_body(len_bytes: usize) -> Value {
    json!({
        "namespace": "default", "put_id": PUT,
        "items": [{"key": "a b", "len_bytes": len_bytes}, {"key": "", "len_bytes": 1}],
    })
}

#[tokio::test]
async fn results_of_items_are_ok_or_error() {
    let front = Served::start().await;
    let answer = answered(&front, "/v1/reserve", &reserve_body(10), reserved(77)).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.json(),
        json!({
            "nodes": [{"node": HOLDER, "incarnation": 5, "endpoint": "127.0.0.1:7601"}],
            "items": [
                {"ok": {"replicas": [{"holder": HOLDER, "segment": 1, "offset_bytes": 64, "ttl_ms": 30_000}]}},
                {"error": {"code": "invalid_name", "message": "the key is empty"}},
            ],
        })
    );
}

#[tokio::test]
async fn a_put_can_be_made_verb_by_verb() {
    let front = Served::start().await;
    let bytes = payload(2 * MIB + 9);
    answered(&front, "/v1/reserve", &reserve_body(bytes.len()), reserved(77)).await;
    // The second part first; both bodies are cut by the network as it likes.
    for (offset, part) in [(MIB, &bytes[MIB..]), (0, &bytes[..MIB])] {
        let put = front.put(&format!("/v1/puts/{PUT}/a%20b?offset={offset}"), part).await;
        assert_eq!((put.status, put.json()), (200, json!({"received_bytes": part.len()})));
    }
    let mut written = front.node.written.lock().clone();
    written.sort_by_key(|(_, piece, _)| *piece);
    assert!(written.iter().all(|(key, _, _)| key.0 == 77));
    assert!(
        written
            .into_iter()
            .flat_map(|(_, _, bytes)| bytes)
            .eq(bytes.iter().copied())
    );

    let committed = Committed {
        outcome: PutOutcome::Stored,
        version: VERSION,
        degraded: true,
        copies: 0,
    };
    let body = json!({"namespace": "default", "put_id": PUT, "items": [{"key": "nobody's"}, {"key": "a b"}]});
    let answer = answered(&front, "/v1/commit", &body, Reply::Commit(vec![Ok(committed)])).await;
    let items = &answer.json()["items"];
    assert_eq!(items[0]["error"]["code"], "unknown_put");
    assert_eq!(
        items[1]["ok"],
        json!({"outcome": "stored", "version": {"epoch": 3, "put_id": PUT}, "degraded": true, "copies": 0})
    );
    let Request::Commit(call) = last_call(&front) else {
        panic!("a commit was called")
    };
    assert_eq!(call.items.len(), 1);
    assert_eq!(
        (call.items[0].key.as_str(), call.items[0].holders.as_slice()),
        ("a b", &[HOLDER][..])
    );
    assert_eq!(call.items[0].checksums, Checksums::of(&bytes));
}

#[tokio::test]
async fn uploads_that_fit_no_reservation_are_refused() {
    let front = Served::start().await;
    answered(&front, "/v1/reserve", &reserve_body(2 * MIB), reserved(77)).await;
    let path = |rest: &str| format!("/v1/puts/{PUT}/{rest}");
    for (path, len_bytes, status, code) in [
        (path("other"), 1, 404, "unknown_put"),
        (path("a%20b?namespace=other"), 1, 404, "unknown_put"),
        ("/v1/puts/12/a".to_owned(), 1, 400, "invalid_argument"),
        (path("a%20b?offset=1"), MIB, 400, "invalid_argument"),
        (path("a%20b?offset=-1"), MIB, 400, "invalid_argument"),
        (path("a%20b"), 2 * MIB + 1, 400, "length_mismatch"),
        (path("a%20b"), 0, 400, "invalid_argument"),
    ] {
        front.put(&path, &payload(len_bytes)).await.expect_error(status, code);
    }
    assert!(front.node.written.lock().is_empty());
}

#[tokio::test]
async fn an_abort_needs_no_holders() {
    let front = Served::start().await;
    answered(&front, "/v1/reserve", &reserve_body(10), reserved(77)).await;
    let body = json!({"namespace": "default", "put_id": PUT, "items": [{"key": "a b"}]});
    let answer = answered(&front, "/v1/abort", &body, Reply::Abort(vec![Ok(true)])).await;
    assert_eq!(answer.json(), json!({"items": [{"ok": true}]}));
    let Request::Abort(call) = last_call(&front) else {
        panic!("an abort was called")
    };
    assert_eq!(call.items[0].holders, [HOLDER]);
}

#[tokio::test]
async fn hits_and_misses_are_told_apart() {
    let front = Served::start().await;
    let located = Located {
        version: VERSION,
        len_bytes: 10,
        replicas: vec![Replica {
            holder: HOLDER,
            incarnation: Incarnation(5),
            segment: SegmentId(1),
            offset_bytes: 64,
            slot: Slot(2),
            generation: Generation(9),
            is_copy: false,
        }],
    };
    let reply = Reply::Locate(LocateReply {
        nodes: vec![node_ref()],
        items: vec![
            Ok(Some(located)),
            Ok(None),
            Err(ServiceError::unavailable(HOLDER, "asking")),
        ],
    });
    let body = json!({"namespace": "default", "keys": ["a", "b", "c"]});
    let items = answered(&front, "/v1/locate", &body, reply).await.json()["items"].clone();
    assert_eq!(items[0]["ok"]["replicas"][0]["generation"], 9);
    assert_eq!(items[1], json!({"ok": null}));
    assert_eq!(
        (&items[2]["error"]["code"], &items[2]["error"]["node"]),
        (&json!("unavailable"), &json!(HOLDER))
    );
}

#[tokio::test]
async fn existence_is_told_per_key_or_as_a_run() {
    let front = Served::start().await;
    let each = Reply::Exists(ExistsReply::Each(vec![Ok(true), Ok(false)]));
    let body = json!({"namespace": "default", "keys": ["a", "b"]});
    assert_eq!(
        answered(&front, "/v1/exists", &body, each).await.json(),
        json!({"items": [{"ok": true}, {"ok": false}]})
    );
    let body = json!({"namespace": "default", "keys": ["a", "b"], "mode": "leading_run"});
    let run = answered(&front, "/v1/exists", &body, Reply::Exists(ExistsReply::LeadingRun(1))).await;
    assert_eq!(run.json(), json!({"leading_run": 1}));
}

#[tokio::test]
async fn many_keys_can_be_removed_at_once() {
    let front = Served::start().await;
    front.put("/v1/objects/a", b"x").await;
    let removed = front
        .post("/v1/remove", r#"{"namespace":"default","keys":["a","b"]}"#)
        .await;
    assert_eq!(removed.json(), json!({"items": [{"ok": true}, {"ok": false}]}));
}

#[tokio::test]
async fn a_page_of_what_begins_with_a_prefix_can_be_removed() {
    let front = Served::start().await;
    let unavailable = ServiceError::unavailable(HOLDER, "it holds the object");
    *front.node.removed_page.lock() = RemovedPage {
        removed: 2,
        failed: vec![("a/3".into(), unavailable.into())],
        next: Some("a/3".into()),
        missing: vec![HOLDER],
    };
    let path = "/v1/namespaces/n/objects?prefix=a%2F&after=a%2F0&limit=3";
    let page = front.ask("DELETE", path, &[], b"").await;
    let (status, page) = (page.status, page.json());
    assert_eq!(
        (status, &page["removed"], &page["next"]),
        (200, &json!(2), &json!("a/3")),
        "{page}"
    );
    assert_eq!(
        (&page["complete"], &page["missing"]),
        (&json!(false), &json!([HOLDER])),
        "{page}"
    );
    let failed = &page["failed"][0];
    assert_eq!(
        (&failed["key"], &failed["error"]["code"]),
        (&json!("a/3"), &json!("unavailable")),
        "{page}"
    );
    let asked = ListRequest {
        namespace: "n".into(),
        prefix: "a/".into(),
        after: Some("a/0".into()),
        limit: 3,
    };
    assert_eq!(*front.node.asked_page.lock(), Some(asked));
}

#[tokio::test]
async fn a_removal_without_a_prefix_is_refused() {
    let front = Served::start().await;
    for path in ["/v1/objects", "/v1/objects?after=a", "/v1/objects?prefix=a&what=b"] {
        front
            .ask("DELETE", path, &[], b"")
            .await
            .expect_error(400, "invalid_argument");
    }
}

#[tokio::test]
async fn listings_take_prefix_cursor_and_limit() {
    let front = Served::start().await;
    let reply = ListReply {
        entries: Vec::new(),
        more: false,
        complete: false,
        missing: vec![HOLDER],
    };
    front.node.replies.lock().push_back(Reply::List(reply));
    let path = "/v1/namespaces/n/objects?prefix=a%2Fb&after=a%2Fb%20c&limit=7";
    let listed = front.get(path).await;
    let expected = json!({"entries": [], "more": false, "complete": false, "missing": [HOLDER]});
    assert_eq!((listed.status, listed.json()), (200, expected));
    let Request::List(call) = last_call(&front) else {
        panic!("a listing was called")
    };
    assert_eq!(
        (
            call.namespace.as_str(),
            call.prefix.as_str(),
            call.after.as_deref(),
            call.limit
        ),
        ("n", "a/b", Some("a/b c"), 7)
    );
    for query in [
        "limit=x",
        "limit=-1",
        "pefix=a",
        "limit=4294967296",
        "prefix=%FF",
        "after=a%",
    ] {
        front
            .get(&format!("/v1/objects?{query}"))
            .await
            .expect_error(400, "invalid_argument");
    }
}

#[tokio::test]
async fn nodes_and_segments_are_listed() {
    let front = Served::start().await;
    assert_eq!(front.get("/v1/nodes").await.json()["view_source"], "standalone");
    front.get(&format!("/v1/segments?node={HOLDER}")).await;
    assert_eq!(last_call(&front), Request::Segments { node: Some(HOLDER) });
    front.get("/v1/segments").await;
    assert_eq!(last_call(&front), Request::Segments { node: None });
    front
        .get("/v1/segments?node=x")
        .await
        .expect_error(400, "invalid_argument");
}

#[tokio::test]
async fn a_call_that_fails_as_a_whole_is_an_error() {
    let front = Served::start().await;
    let failed = Reply::Failed(ServiceError::new(ErrorCode::Overloaded, "too much"));
    let body = json!({"namespace": "default", "keys": ["a"]});
    answered(&front, "/v1/locate", &body, failed)
        .await
        .expect_error(503, "overloaded");
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused() {
    let front = Served::start().await;
    for path in ["reserve", "commit", "abort", "locate", "exists", "remove"] {
        for body in [
            "",
            "{",
            "null",
            "[]",
            "{}",
            r#"{"namespace":"default","keys":["a"],"items":[],"colour":1}"#,
        ] {
            let answer = front.post(&format!("/v1/{path}"), body).await;
            answer.expect_error(400, "malformed_request");
        }
        let endless = front.post(&format!("/v1/{path}"), &" ".repeat(5 * MIB)).await;
        endless.expect_error(413, "invalid_argument");
        let answer = front.post(&format!("/v1/{path}?timeout_ms=0"), "{}").await;
        answer.expect_error(400, "invalid_argument");
    }
    assert!(front.node.calls.lock().is_empty());
}

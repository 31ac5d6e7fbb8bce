//! One script of control calls through both fronts: the link and HTTP give the same answers.

use serde_json::{Value, json};
use tenon_integration::account::{assert_accounts, assert_empty};
use tenon_integration::cluster::Cluster;
use tenon_integration::http::Http;
use tenon_integration::payload::payload;
use tenon_integration::raw::{RawClient, new_put_id};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::message::{
    AbortItem, AbortRequest, CommitItem, CommitRequest, ExistsMode, ExistsReply, ExistsRequest, KeyResult, KeysRequest,
    ListRequest, PutOptions, Reply, Request, ReserveItem, ReserveRequest,
};
use tenon_protocol::name::Namespace;

/// A way to the control service. Answers are compared in the form that HTTP gives them.
enum Front {
    Link(RawClient),
    Http(Http),
}

impl Front {
    async fn call(&self, request: &Request) -> Value {
        match self {
            Self::Link(client) => as_over_http(client.call(request).await),
            Self::Http(http) => over_http(http, request),
        }
    }

    /// A whole put: reserve, write, commit.
    async fn put(&self, put_id: PutId, key: &str, bytes: &[u8], node: NodeId) -> Value {
        match self {
            Self::Link(client) => {
                let put = client.reserve_one(put_id, key, bytes.len() as u64, Some(node)).await;
                put.write(0, bytes).await.expect("the bytes can be written");
            }
            Self::Http(http) => {
                over_http(http, &reserve(put_id, &[(key, bytes.len() as u64)], Some(node)));
                http.put(&format!("/v1/puts/{put_id}/{key}"), bytes).expect(200);
            }
        }
        self.call(&commit(put_id, key, node, bytes)).await
    }
}

fn json<T: serde::Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("a message has a JSON form")
}

/// An error as HTTP shows it: without the fields that say nothing.
fn error(error: &ServiceError) -> Value {
    let mut shown = json(error);
    if let Value::Object(fields) = &mut shown {
        fields.retain(|_, field| !field.is_null());
    }
    json!({ "error": shown })
}

fn items<T: serde::Serialize>(results: Vec<KeyResult<T>>) -> Value {
    let item = |result: KeyResult<T>| result.map_or_else(|refused| error(&refused), |value| json!({ "ok": value }));
    results.into_iter().map(item).collect()
}

/// A reply of the link in the form that HTTP gives it.
fn as_over_http(reply: Reply) -> Value {
    match reply {
        Reply::Reserve(reply) => json!({ "nodes": reply.nodes, "items": items(reply.items) }),
        Reply::Locate(reply) => json!({ "nodes": reply.nodes, "items": items(reply.items) }),
        Reply::Commit(results) => json!({ "items": items(results) }),
        Reply::Abort(results) | Reply::Remove(results) => json!({ "items": items(results) }),
        Reply::Exists(ExistsReply::Each(results)) => json!({ "items": items(results) }),
        Reply::Exists(ExistsReply::LeadingRun(hits)) => json!({ "leading_run": hits }),
        Reply::List(reply) => json(&reply),
        Reply::Nodes(reply) => json(&reply),
        Reply::Segments(reply) => json(&reply),
        Reply::Failed(refused) => error(&refused),
        Reply::Attach(_) | Reply::Token(_) | Reply::Member(_) => panic!("{reply:?} has no place in HTTP"),
    }
}

fn over_http(http: &Http, request: &Request) -> Value {
    let answer = match request {
        Request::Reserve(request) => http.post("/v1/reserve", &json(request)),
        Request::Commit(request) => http.post("/v1/commit", &json(request)),
        Request::Abort(request) => http.post("/v1/abort", &json(request)),
        Request::Locate(request) => http.post("/v1/locate", &json(request)),
        Request::Exists(request) => http.post("/v1/exists", &json(request)),
        Request::Remove(request) => http.post("/v1/remove", &json(request)),
        Request::List(request) => {
            let after = request.after.as_deref();
            let after = after
                .map(|after| format!("&after={}", Http::query_text(after)))
                .unwrap_or_default();
            let prefix = Http::query_text(&request.prefix);
            http.get(&format!("/v1/objects?prefix={prefix}&limit={}{after}", request.limit))
        }
        Request::Nodes => http.get("/v1/nodes"),
        Request::Segments { node: Some(node) } => http.get(&format!("/v1/segments?node={node}")),
        Request::Segments { node: None } => http.get("/v1/segments"),
        Request::Attach | Request::Token | Request::Member(_) => panic!("{request:?} has no place in HTTP"),
    };
    answer.json()
}

fn namespace() -> String {
    Namespace::DEFAULT.to_owned()
}

fn keys(keys: &[&str]) -> KeysRequest {
    KeysRequest {
        namespace: namespace(),
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
    }
}

fn reserve(put_id: PutId, items: &[(&str, u64)], node: Option<NodeId>) -> Request {
    Request::Reserve(ReserveRequest {
        namespace: namespace(),
        put_id,
        items: items
            .iter()
            .map(|&(key, len_bytes)| ReserveItem {
                key: key.to_owned(),
                len_bytes,
            })
            .collect(),
        options: PutOptions { node, ttl_ms: None },
    })
}

fn commit(put_id: PutId, key: &str, holder: NodeId, bytes: &[u8]) -> Request {
    Request::Commit(CommitRequest {
        namespace: namespace(),
        put_id,
        items: vec![CommitItem {
            key: key.to_owned(),
            holders: vec![holder],
            checksums: Checksums::of(bytes),
            fingerprint: Vec::new(),
        }],
    })
}

fn abort(put_id: PutId, key: &str, holder: NodeId) -> Request {
    Request::Abort(AbortRequest {
        namespace: namespace(),
        put_id,
        items: vec![AbortItem {
            key: key.to_owned(),
            holders: vec![holder],
        }],
    })
}

fn exists(names: &[&str], mode: ExistsMode) -> Request {
    let KeysRequest { namespace, keys } = keys(names);
    Request::Exists(ExistsRequest { namespace, keys, mode })
}

fn list(prefix: &str, after: Option<&str>, limit: u32) -> Request {
    Request::List(ListRequest {
        namespace: namespace(),
        prefix: prefix.to_owned(),
        after: after.map(str::to_owned),
        limit,
    })
}

/// Values that differ from run to run although the answers are the same: counters, and what heartbeats last told.
const CHANCE: [&str; 7] = [
    "generation",
    "sealed_unix_ms",
    "offset_bytes",
    "slot",
    "space",
    "put_id",
    "epoch",
];

/// Leaves out those, and what only the link tells.
fn without_chance(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            fields.remove("write_key");
            // The message has the checksums.
            let by_chance = fields.get("code").is_some_and(|code| code == "checksum_mismatch");
            for (name, field) in fields.iter_mut() {
                *field = match CHANCE.contains(&name.as_str()) || (by_chance && name == "message") {
                    true => Value::from("…"),
                    false => without_chance(field.take()),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_chance(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// The script. Between its calls the cluster changes only by them, so each front meets the same state.
async fn script(cluster: &Cluster, front: &Front) -> Vec<(&'static str, Value)> {
    let (near, far) = (cluster[0].id(), cluster[1].id());
    let unknown_node = NodeId::from_bytes([0xee; 16]);
    // Memory that was used before may hold the other front's bytes still: they must not be these.
    let bytes = payload(rand::random(), 1000);
    let mut said = Vec::new();
    let mut step = async |what, request: Request| {
        let answer = front.call(&request).await;
        said.push((what, without_chance(answer.clone())));
        answer
    };

    // Failures are not remembered, so both fronts can use one put id for them.
    let put_id = PutId::from_bytes([7; 16]);
    let first = step("reserve far", reserve(put_id, &[("a", 1000)], Some(far))).await;
    let again = step("reserve again", reserve(put_id, &[("a", 1000)], Some(far))).await;
    assert_eq!(first, again, "the same reservation");
    step("commit what was not written", commit(put_id, "a", far, &bytes)).await;
    step("commit after the failure", commit(put_id, "a", far, &bytes)).await;
    step("reserve near", reserve(put_id, &[("b", 1000)], None)).await;
    step("abort", abort(put_id, "b", near)).await;
    step("abort again", abort(put_id, "b", near)).await;
    step("commit what was aborted", commit(put_id, "b", near, &bytes)).await;
    step("abort at an unknown node", abort(put_id, "b", unknown_node)).await;
    step(
        "reserve at an unknown node",
        reserve(put_id, &[("c", 10)], Some(unknown_node)),
    )
    .await;
    let long = "x".repeat(1025);
    let bad = [
        ("", 10),
        (long.as_str(), 10),
        ("a\u{7}b", 10),
        ("zero", 0),
        ("huge", 1 << 40),
        ("larger", 80 << 20),
    ];
    step("reserve bad items", reserve(put_id, &bad, None)).await;
    step("reserve nothing", reserve(put_id, &[], None)).await;
    step("locate a miss and a bad key", Request::Locate(keys(&["a", ""]))).await;

    for key in ["run/1", "run/2", "run/4"] {
        said.push(("put", without_chance(front.put(new_put_id(), key, &bytes, far).await)));
    }
    said.push((
        "put again",
        without_chance(front.put(new_put_id(), "run/1", &bytes, near).await),
    ));
    let mut step = async |what, request: Request| {
        said.push((what, without_chance(front.call(&request).await)));
    };
    step("locate", Request::Locate(keys(&["run/1", "run/3"]))).await;
    step(
        "exists each",
        exists(&["run/1", "run/3", "", "run/4"], ExistsMode::Each),
    )
    .await;
    step(
        "leading run",
        exists(&["run/1", "run/2", "run/3", "run/4"], ExistsMode::LeadingRun),
    )
    .await;
    step("list", list("run/", None, 2)).await;
    step("list on", list("run/", Some("run/2"), 2)).await;
    step("list nothing", list("nothing/", None, 2)).await;
    step("list without limit", list("run/", None, 0)).await;
    step("nodes", Request::Nodes).await;
    step("segments of one", Request::Segments { node: Some(far) }).await;
    step("segments of all", Request::Segments { node: None }).await;
    step(
        "segments of nobody",
        Request::Segments {
            node: Some(unknown_node),
        },
    )
    .await;
    step(
        "remove",
        Request::Remove(keys(&["run/1", "run/2", "run/3", "", "run/4"])),
    )
    .await;
    step("exists no more", exists(&["run/1"], ExistsMode::Each)).await;
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn both_fronts_answer_one_script_alike() {
    let cluster = Cluster::start(3);
    let link = script(&cluster, &Front::Link(RawClient::dial(cluster[0].link_address()).await)).await;
    assert_empty(&cluster);
    let http = script(&cluster, &Front::Http(cluster[0].http())).await;
    assert_empty(&cluster);
    for ((what, by_link), (_, by_http)) in link.iter().zip(&http) {
        assert_eq!(by_link, by_http, "{what}");
    }
    let codes = |what: &str| -> Vec<String> {
        let (_, answer) = link
            .iter()
            .find(|(name, _)| *name == what)
            .expect("a step of the script");
        let mut found = Vec::new();
        collect_codes(answer, &mut found);
        found
    };
    assert_eq!(codes("commit what was not written"), ["checksum_mismatch"]);
    assert_eq!(codes("commit after the failure"), ["unknown_put"]);
    assert_eq!(codes("commit what was aborted"), ["unknown_put"]);
    assert_eq!(codes("abort at an unknown node"), ["unknown_node"]);
    assert_eq!(codes("reserve at an unknown node"), ["unknown_node"]);
    let bad_items = [
        "invalid_name",
        "invalid_name",
        "invalid_name",
        "empty_object",
        "object_too_large",
        "object_too_large",
    ];
    assert_eq!(codes("reserve bad items"), bad_items);
    assert_eq!(codes("reserve nothing"), ["invalid_argument"]);
    assert_eq!(codes("locate a miss and a bad key"), ["invalid_name"]);
    assert_eq!(codes("segments of nobody"), ["unknown_node"]);
    assert_accounts(&cluster);
}

fn collect_codes(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("code").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| collect_codes(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_codes(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

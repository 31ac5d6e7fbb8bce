//! One script of control calls through both fronts: the link and HTTP give the same answers.

use serde_json::{Value, json};
use tenon_integration::account::{assert_accounts, assert_empty};
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Answer, Http};
use tenon_integration::payload::payload;
use tenon_integration::raw::{RawClient, new_put_id};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, PutId, SegmentId};
use tenon_protocol::message::{
    AbortItem, AbortRequest, CommitItem, CommitRequest, ExistsMode, ExistsReply, ExistsRequest, Keep, KeepRequest,
    KeyResult, KeysRequest, ListRequest, Pin, PutOptions, Reply, Request, ReserveItem, ReserveRequest,
};
use tenon_protocol::name::Namespace;
use tenon_protocol::placement::{DryRunAnswer, DryRunItem, DryRunReply, DryRunRequest, DryRunStep, SegmentMapRequest};
use tenon_protocol::segments::{MountSpec, SegmentCall, SegmentChange};

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

fn dry_run(reply: DryRunReply) -> Value {
    let answer = |answer: &DryRunAnswer| match &answer.refusal {
        Some(refusal) => json!({ "item": answer.item, "refusal": error(refusal)["error"] }),
        None => json!({ "item": answer.item, "place": answer.place }),
    };
    let step = |step: &DryRunStep| {
        let answers: Vec<Value> = step.answers.iter().map(answer).collect();
        json!({ "node": step.node, "because": step.because, "answers": answers })
    };
    json!({
        "policy": reply.policy,
        "nodes": reply.nodes,
        "steps": reply.steps.iter().map(step).collect::<Vec<_>>(),
        "items": items(reply.items),
    })
}

/// A reply of the link in the form that HTTP gives it.
fn as_over_http(reply: Reply) -> Value {
    match reply {
        Reply::Reserve(reply) => json!({ "nodes": reply.nodes, "items": items(reply.items) }),
        Reply::Locate(reply) => json!({ "nodes": reply.nodes, "items": items(reply.items) }),
        Reply::Commit(results) => json!({ "items": items(results) }),
        Reply::Abort(results) | Reply::Remove(results) | Reply::Keep(results) => json!({ "items": items(results) }),
        Reply::Exists(ExistsReply::Each(results)) => json!({ "items": items(results) }),
        Reply::Exists(ExistsReply::LeadingRun(hits)) => json!({ "leading_run": hits }),
        Reply::List(reply) => json(&reply),
        Reply::Nodes(reply) => json(&reply),
        Reply::Segments(reply) => json(&reply),
        Reply::DryRun(reply) => dry_run(*reply),
        Reply::SegmentMap(reply) => json(&reply),
        Reply::Segment(info) => json(&*info),
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
        Request::Keep(request) => http.post("/v1/keep", &json(request)),
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
        Request::DryRun(request) => http.post("/v1/placement/dry-run", &json(request)),
        Request::SegmentMap(request) => {
            let SegmentMapRequest {
                node,
                segment,
                from_bytes,
                limit,
            } = request;
            let node = node.map(|node| format!("&node={node}")).unwrap_or_default();
            http.get(&format!(
                "/v1/segments/{segment}/map?from_bytes={from_bytes}&limit={limit}{node}"
            ))
        }
        Request::Segment(call) => change_segment(http, call),
        Request::Attach | Request::Token | Request::Relocate(_) | Request::Member(_) => {
            panic!("{request:?} has no place in HTTP")
        }
    };
    answer.json()
}

fn change_segment(http: &Http, call: &SegmentCall) -> Answer {
    let node = call.node.map(|node| format!("node={node}&")).unwrap_or_default();
    match &call.change {
        SegmentChange::Mount(spec) => {
            let mut body = json(spec);
            body["node"] = json(&call.node);
            http.post("/v1/segments", &body)
        }
        SegmentChange::Drain { segment } => http.post(&format!("/v1/segments/{segment}/drain?{node}"), &Value::Null),
        SegmentChange::Unmount {
            segment,
            graceful_ms,
            force,
        } => http.delete(&format!(
            "/v1/segments/{segment}?{node}graceful_ms={graceful_ms}&force={force}"
        )),
    }
}

fn namespace() -> String {
    Namespace::DEFAULT.to_owned()
}

fn keep(keys: &[&str], keep: Keep) -> Request {
    Request::Keep(KeepRequest {
        namespace: namespace(),
        keys: keys.iter().map(|&key| key.to_owned()).collect(),
        keep,
    })
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
        options: PutOptions {
            node,
            ..PutOptions::default()
        },
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
const CHANCE: [&str; 8] = [
    "hint",
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
            for (name, field) in fields.iter_mut() {
                let counts_changes = name == "version" && field.is_number();
                *field = match counts_changes || CHANCE.contains(&name.as_str()) {
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

/// One front at the script, and what it was answered so far.
struct Script<'a> {
    front: &'a Front,
    near: NodeId,
    far: NodeId,
    said: Vec<(&'static str, Value)>,
}

const NOBODY: NodeId = NodeId::from_bytes([0xee; 16]);

impl Script<'_> {
    async fn step(&mut self, what: &'static str, request: Request) {
        let answer = self.front.call(&request).await;
        self.said.push((what, without_chance(answer)));
    }

    async fn put(&mut self, what: &'static str, key: &str, bytes: &[u8], node: NodeId) {
        let answer = self.front.put(new_put_id(), key, bytes, node).await;
        self.said.push((what, without_chance(answer)));
    }

    async fn puts_that_come_to_nothing(&mut self) {
        // Failures are not remembered, so both fronts can use one put id for them.
        let put_id = PutId::from_bytes([7; 16]);
        let (near, far) = (self.near, self.far);
        // Memory that was used before may hold the other front's bytes still: they must not be these.
        let bytes = payload(rand::random(), 1000);
        self.step("reserve far", reserve(put_id, &[("a", 1000)], Some(far)))
            .await;
        self.step("reserve again", reserve(put_id, &[("a", 1000)], Some(far)))
            .await;
        self.step("commit what was not written", commit(put_id, "a", far, &bytes))
            .await;
        self.step("commit after the failure", commit(put_id, "a", far, &bytes))
            .await;
        self.step("reserve near", reserve(put_id, &[("b", 1000)], Some(near)))
            .await;
        self.step("abort", abort(put_id, "b", near)).await;
        self.step("abort again", abort(put_id, "b", near)).await;
        self.step("commit what was aborted", commit(put_id, "b", near, &bytes))
            .await;
        self.step("abort at an unknown node", abort(put_id, "b", NOBODY)).await;
        self.step(
            "reserve at an unknown node",
            reserve(put_id, &[("c", 10)], Some(NOBODY)),
        )
        .await;
        let long = "x".repeat(1025);
        let names = [("", 10), (long.as_str(), 10), ("a\u{7}b", 10)];
        let lengths = [("zero", 0), ("huge", 1 << 40), ("larger", 80 << 20)];
        self.step("reserve bad names", reserve(put_id, &names, None)).await;
        self.step("reserve bad lengths", reserve(put_id, &lengths, None)).await;
        self.step("reserve nothing", reserve(put_id, &[], None)).await;
        self.step("locate a miss and a bad key", Request::Locate(keys(&["a", ""])))
            .await;
    }

    async fn objects_from_put_to_removal(&mut self) {
        let bytes = payload(rand::random(), 1000);
        for key in ["run/1", "run/2", "run/4"] {
            self.put("put", key, &bytes, self.far).await;
        }
        self.put("put again", "run/1", &bytes, self.near).await;
        self.step("locate", Request::Locate(keys(&["run/1", "run/3"]))).await;
        let (each, leading_run) = (ExistsMode::Each, ExistsMode::LeadingRun);
        self.step("exists each", exists(&["run/1", "run/3", "", "run/4"], each))
            .await;
        self.step(
            "leading run",
            exists(&["run/1", "run/2", "run/3", "run/4"], leading_run),
        )
        .await;
        self.step("list", list("run/", None, 2)).await;
        self.step("list on", list("run/", Some("run/2"), 2)).await;
        self.step("list nothing", list("nothing/", None, 2)).await;
        self.step("list without limit", list("run/", None, 0)).await;
        for (what, how) in [
            ("touch", Keep::Touch),
            ("pin", Keep::Pin(Pin::Hard)),
            ("pin softly", Keep::Pin(Pin::Soft { for_ms: 1000 })),
            ("pin for no time", Keep::Pin(Pin::Soft { for_ms: 0 })),
            ("unpin", Keep::Pin(Pin::None)),
        ] {
            self.step(what, keep(&["run/1", "run/3", "", "run/4"], how)).await;
        }
        let remove = keys(&["run/1", "run/2", "run/3", "", "run/4"]);
        self.step("remove", Request::Remove(remove)).await;
        self.step("exists no more", exists(&["run/1"], each)).await;
    }

    async fn nodes_and_segments(&mut self) {
        self.step("nodes", Request::Nodes).await;
        self.step("segments of one", Request::Segments { node: Some(self.far) })
            .await;
        self.step("segments of all", Request::Segments { node: None }).await;
        self.step("segments of nobody", Request::Segments { node: Some(NOBODY) })
            .await;
        for (what, node) in [
            ("dry run", None),
            ("dry run far", Some(self.far)),
            ("dry run nowhere", Some(NOBODY)),
        ] {
            let items = [1000, 60 << 20, 80 << 20].map(|len_bytes| DryRunItem { len_bytes });
            let items = items.to_vec();
            self.step(what, Request::DryRun(DryRunRequest { items, node })).await;
        }
        for (what, node, segment, limit) in [
            ("map", None, 1, 10),
            ("map far", Some(self.far), 1, 10),
            ("map of no segment", None, 7, 10),
            ("map of nobody", Some(NOBODY), 1, 10),
            ("map without runs", None, 1, 0),
        ] {
            let request = SegmentMapRequest {
                node,
                segment: SegmentId(segment),
                from_bytes: 0,
                limit,
            };
            self.step(what, Request::SegmentMap(request)).await;
        }
    }
}

/// What comes and goes has a new id each time, so only what fails is compared here; the rest is in `segments.rs`.
impl Script<'_> {
    async fn segments_that_cannot_change(&mut self) {
        let unmount = |graceful_ms| SegmentChange::Unmount {
            segment: SegmentId(77),
            graceful_ms,
            force: false,
        };
        let mount = |len_bytes| {
            SegmentChange::Mount(MountSpec {
                len_bytes,
                slots: None,
                huge_pages: None,
                file: None,
            })
        };
        for (what, node, change) in [
            ("mount too little", None, mount(1)),
            ("mount broken pages", Some(self.far), mount((1 << 20) + 1)),
            ("mount nowhere", Some(NOBODY), mount(1 << 20)),
            (
                "drain no segment",
                Some(self.far),
                SegmentChange::Drain { segment: SegmentId(77) },
            ),
            ("unmount no segment", None, unmount(0)),
            ("unmount for too long", None, unmount(u64::MAX)),
        ] {
            self.step(what, Request::Segment(SegmentCall { node, change })).await;
        }
    }
}

/// The script. Between its calls the cluster changes only by them, so each front meets the same state.
async fn script(cluster: &Cluster, front: &Front) -> Vec<(&'static str, Value)> {
    let (near, far) = (cluster[0].id(), cluster[1].id());
    let mut script = Script {
        front,
        near,
        far,
        said: Vec::new(),
    };
    script.puts_that_come_to_nothing().await;
    script.objects_from_put_to_removal().await;
    script.nodes_and_segments().await;
    script.segments_that_cannot_change().await;
    script.said
}

#[tokio::test(flavor = "multi_thread")]
async fn both_fronts_answer_one_script_alike() {
    let cluster = Cluster::start(3);
    let link = script(&cluster, &Front::Link(RawClient::dial(cluster[0].link_address()).await)).await;
    assert_empty(&cluster);
    let http = script(&cluster, &Front::Http(cluster[0].http())).await;
    assert_empty(&cluster);
    assert_eq!(link.len(), http.len());
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
    let (reserved, again) = (&link[0].1, &link[1].1);
    assert_eq!(reserved, again, "the same put id and key have the same reservation");
    assert_eq!(codes("commit what was not written"), ["bytes_missing"]);
    assert_eq!(codes("commit after the failure"), ["unknown_put"]);
    assert_eq!(codes("commit what was aborted"), ["unknown_put"]);
    assert_eq!(codes("abort at an unknown node"), ["unknown_node"]);
    assert_eq!(codes("reserve at an unknown node"), ["unknown_node"]);
    assert_eq!(codes("reserve bad names"), ["invalid_name"; 3]);
    assert_eq!(
        codes("reserve bad lengths"),
        ["empty_object", "object_too_large", "object_too_large"]
    );
    assert_eq!(codes("reserve nothing"), ["invalid_argument"]);
    assert_eq!(codes("locate a miss and a bad key"), ["invalid_name"]);
    assert_eq!(codes("segments of nobody"), ["unknown_node"]);
    assert_eq!(codes("dry run nowhere"), ["unknown_node"]);
    assert_eq!(codes("map of no segment"), ["unknown_segment"]);
    assert_eq!(codes("mount too little"), ["invalid_argument"]);
    assert_eq!(codes("mount broken pages"), ["invalid_argument"]);
    assert_eq!(codes("mount nowhere"), ["unknown_node"]);
    assert_eq!(codes("drain no segment"), ["unknown_segment"]);
    assert_eq!(codes("unmount no segment"), ["unknown_segment"]);
    assert_eq!(codes("unmount for too long"), ["invalid_argument"]);
    assert_eq!(codes("map of nobody"), ["unknown_node"]);
    assert_eq!(codes("map without runs"), ["invalid_argument"]);
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

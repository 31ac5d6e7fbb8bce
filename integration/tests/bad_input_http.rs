//! What HTTP answers to what it cannot do: a status and a stable code in a JSON body; nothing stored, nothing reserved, and the agent goes on.

use std::io::Write as _;

use serde_json::json;
use tenon_integration::account::assert_empty;
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Http, code_in};
use tenon_integration::node::Node;
use tenon_integration::payload::{assert_same, payload};

const SEGMENT: u64 = 64 << 20;

/// The node takes no harm: nothing is stored or reserved anywhere, and it works.
fn assert_unharmed(cluster: &Cluster) {
    assert_empty(cluster);
    let (bytes, path) = (payload(1, 100_000), Http::object_path("after all that"));
    cluster[0].http().put_object("after all that", &bytes);
    assert_same(cluster[1].http().get(&path).expect(200).bytes(), &bytes, "the object");
    cluster[1].http().delete(&path);
    assert_empty(cluster);
}

#[test]
fn bad_keys_and_namespaces_are_refused_by_every_verb() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    let paths = [
        Http::object_path(""),
        Http::object_path(&"x".repeat(1025)),
        Http::object_path(&"é".repeat(513)),
        Http::object_path("line\nbreak"),
        Http::object_path("bell\u{7}"),
        Http::object_path("\u{85}"),
        "/v1/objects/%FF%FE".to_owned(),
        "/v1/namespaces/no%20spaces/objects/key".to_owned(),
        format!("/v1/namespaces/{}/objects/key", "n".repeat(64)),
    ];
    for path in &paths {
        for answer in [http.put(path, b"bytes"), http.get(path), http.delete(path)] {
            answer.expect_error(400, "invalid_name");
        }
        assert_eq!(http.head(path).status, 400, "{path}");
    }
    assert_unharmed(&cluster);
}

#[test]
fn objects_of_no_bytes_and_larger_than_any_segment_are_refused() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    http.put(&Http::object_path("empty"), b"")
        .expect_error(400, "empty_object");
    let raw = |len_bytes: u64| {
        let head = format!("PUT /v1/objects/large HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len_bytes}\r\n\r\n");
        http.raw(head.as_bytes())
    };
    for len_bytes in [SEGMENT + 1, 1 << 45] {
        let answer = raw(len_bytes);
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert_eq!(code_in(&answer), "object_too_large");
    }
    assert_unharmed(&cluster);
}

#[test]
fn an_object_that_fits_no_hole_is_refused_in_numbers() {
    let cluster = Cluster::start_without_eviction(2);
    let http = cluster[0].http();
    for node in cluster.nodes() {
        http.put_object_on(&format!("filler/{}", node.id()), &payload(1, 40 << 20), node.id());
    }
    let answer = http
        .put(&Http::object_path("too much"), &payload(2, 40 << 20))
        .expect_error(507, "no_space");
    let body = answer.json();
    let numbers = &body["error"]["no_space"];
    assert_eq!(numbers["asked_bytes"], 40 << 20, "{body}");
    // One hole of 24 MiB on each node.
    for (field, expected) in [("free_bytes", 48 << 20), ("largest_free_bytes", 24 << 20)] {
        assert_eq!(numbers[field], expected, "{field} in {body}");
    }
    assert_eq!(
        (&numbers["entries_looked_at"], &numbers["stop_reason"]),
        (&2.into(), &"nothing_fits".into())
    );
    for node in cluster.nodes() {
        let filler = Http::object_path(&format!("filler/{}", node.id()));
        assert_eq!(http.delete(&filler).status / 100, 2);
    }
    assert_unharmed(&cluster);
}

#[test]
fn a_body_that_is_shorter_or_longer_than_announced_stores_nothing() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    for (holder, announced, sent) in [(0, 3 << 20, (3 << 20) - 1), (1, 3 << 20, 1000), (0, 10, 0)] {
        let node = cluster[holder].id();
        let mut request = format!(
            "PUT /v1/objects/short?node={node} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {announced}\r\n\r\n"
        )
        .into_bytes();
        request.extend(payload(1, sent));
        let answer = http.raw(&request);
        assert!(answer.is_empty() || code_in(&answer) == "length_mismatch", "{answer}");
        assert_empty(&cluster);
    }
    // More bytes than were announced.
    let mut request =
        b"PUT /v1/objects/long HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nConnection: close\r\n\r\n".to_vec();
    request.extend(payload(2, 1000));
    assert_eq!(code_in(&http.raw(&request)), "length_mismatch");
    http.get_object("long").expect_error(404, "not_found");
    http.get_object("short").expect_error(404, "not_found");
    assert_unharmed(&cluster);
}

#[test]
fn a_body_without_a_length_is_refused() {
    let cluster = Cluster::start(2);
    let request = "PUT /v1/objects/chunked HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let answer = cluster[0].http().raw(request.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 411"), "{answer}");
    assert_eq!(code_in(&answer), "length_required");
    assert_unharmed(&cluster);
}

#[test]
fn unknown_nodes_segments_and_puts_are_named() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    let nobody = "ee".repeat(16);
    let put = http.put(&format!("/v1/objects/key?node={nobody}"), b"bytes");
    put.expect_error(404, "unknown_node");
    http.get(&format!("/v1/segments?node={nobody}"))
        .expect_error(404, "unknown_node");
    http.get("/v1/segments?node=xyz").expect_error(400, "invalid_argument");
    let commit = json!({
        "namespace": "default",
        "put_id": nobody,
        "items": [{"key": "key", "holders": [cluster[1].id()], "checksums": {"whole": 0, "pieces": [0]}}],
    });
    let answer = http.post("/v1/commit", &commit).expect(200).json();
    assert!(answer.to_string().contains("unknown_put"), "{answer}");
    let abort = json!({
        "namespace": "default",
        "put_id": nobody,
        "items": [{"key": "key", "holders": [nobody]}],
    });
    let answer = http.post("/v1/abort", &abort).expect(200).json();
    assert!(answer.to_string().contains("unknown_node"), "{answer}");
    assert_unharmed(&cluster);
}

#[test]
fn what_is_no_request_is_refused_as_malformed() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    for path in ["/v1/reserve", "/v1/commit", "/v1/abort", "/v1/locate", "/v1/exists"] {
        for body in [
            json!(null),
            json!([]),
            json!({"namespace": 7}),
            json!({"unknown": "field"}),
        ] {
            http.post(path, &body).expect_error(400, "malformed_request");
        }
    }
    let not_json = "POST /v1/locate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3\r\nConnection: close\r\n\r\n{{{";
    assert_eq!(code_in(&http.raw(not_json.as_bytes())), "malformed_request");
    for query in ["limit=x", "limit=0", "limit=1001", "limit=-1", "unknown=1"] {
        let answer = http.get(&format!("/v1/objects?{query}"));
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(
            ["invalid_argument", "malformed_request"].contains(&answer.code().as_str()),
            "{query}"
        );
    }
    http.get("/v1/nothing/here").expect_error(404, "malformed_request");
    assert_unharmed(&cluster);
}

#[test]
fn bytes_that_are_not_http_end_their_connection_alone() {
    let cluster = Cluster::start(2);
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"TENONLNK\x01\0\x01\0\r\n\r\n",
        &[0xff; 70_000],
    ] {
        let answer = cluster[0].http().raw(garbage);
        assert!(answer.starts_with("HTTP/1.1 4"), "{garbage:?}: {answer}");
        assert!(
            ["malformed_request", "invalid_argument"].contains(&code_in(&answer).as_str()),
            "{answer}"
        );
    }
    assert_unharmed(&cluster);
}

#[test]
fn heads_that_cannot_be_read_are_refused_with_a_code() {
    let cluster = Cluster::start(2);
    let head =
        |fields: &str| format!("PUT /v1/objects/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n");
    let heads = [
        (
            head("Content-Length: 5\r\nContent-Length: 6\r\n"),
            400,
            "malformed_request",
        ),
        (head("Content-Length: five\r\n"), 400, "malformed_request"),
        (
            head("Content-Length: 18446744073709551615\r\n"),
            413,
            "invalid_argument",
        ),
        (
            head("Content-Length: 5\r\nHost: evil.example\r\n"),
            400,
            "malformed_request",
        ),
        (head("Content-Length: 5\r\nBad Name: x\r\n"), 400, "malformed_request"),
        (head(&"X: y\r\n".repeat(200)), 431, "invalid_argument"),
        (
            head(&format!("X: {}\r\n", "y".repeat(100_000))),
            431,
            "invalid_argument",
        ),
        (
            head("").replace("/v1/objects/x", "/v1/objects/\u{1}"),
            400,
            "malformed_request",
        ),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505, "malformed_request"),
    ];
    for (head, status, code) in heads {
        let answer = cluster[0].http().raw(head.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(code_in(&answer), code, "{answer}");
    }
    assert_unharmed(&cluster);
}

/// Half a head, and silence.
fn stall(node: &Node) -> std::net::TcpStream {
    let mut stream = node.http().connect();
    stream
        .write_all(b"PUT /v1/objects/x HTTP/1.1\r\nHost:")
        .expect("half a head can be sent");
    stream
}

#[test]
fn connections_that_say_nothing_keep_nobody_from_being_served() {
    let cluster = Cluster::start(2);
    let stalled: Vec<_> = (0..100).map(|_| stall(&cluster[0])).collect();
    assert_unharmed(&cluster);
    drop(stalled);
}

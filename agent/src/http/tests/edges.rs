//! What is no request of a well-behaved local client, health, and stopping.

use std::time::Duration;

use serde_json::{Value, json};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Alarm, AlarmKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::client::{answer, request};
use super::{Served, payload};
use crate::limits::{HTTP_IDLE_MS_MAX, HTTP_STALL_MS_MAX, HTTP_TRANSFERS_MAX};

#[tokio::test]
async fn foreign_hosts_and_pages_are_refused_before_anything_happens() {
    let front = Served::start().await;
    for headers in [
        [("Host", "evil.example"), ("Accept", "*/*")],
        [("Host", "localhost"), ("Origin", "http://evil.example")],
        [("Host", "localhost"), ("Sec-Fetch-Site", "cross-site")],
    ] {
        let refused = front.ask("PUT", "/v1/objects/a", &headers, &[7; 4 << 20]).await;
        refused.expect_error(403, "forbidden");
    }
    assert!(front.node.objects.lock().is_empty());
    let read = front.ask("GET", "/v1/nodes", &[("Host", "evil.example")], b"").await;
    read.expect_error(403, "forbidden");
    let health = front.ask("GET", "/livez", &[("Host", "127.0.0.1:7600")], b"").await;
    assert_eq!(health.status, 200);
}

#[tokio::test]
async fn what_leads_nowhere_is_an_error_of_its_own_kind() {
    let front = Served::start().await;
    for path in ["/", "/v1", "/v1/object/a", "/v2/nodes"] {
        // A missing object is `not_found`; a path that a program got wrong must not look like one.
        front.get(path).await.expect_error(404, "malformed_request");
    }
    for path in ["/v1/objects/", "/v1/namespaces/n/objects/"] {
        for method in ["GET", "PUT", "DELETE"] {
            front
                .ask(method, path, &[], b"x")
                .await
                .expect_error(400, "invalid_name");
        }
    }
    for (method, path, allowed) in [
        ("POST", "/v1/objects/a", "GET, HEAD, PUT, DELETE"),
        ("POST", "/v1/namespaces/n/objects/a/b", "GET, HEAD, PUT, DELETE"),
        ("DELETE", "/v1/nodes", "GET, HEAD"),
        ("GET", "/v1/reserve", "POST"),
        ("BREW", "/livez", "GET, HEAD"),
    ] {
        let refused = front.ask(method, path, &[], b"").await;
        refused.expect_error(405, "malformed_request");
        assert_eq!(refused.header("allow"), Some(allowed), "{method} {path}");
    }
}

#[tokio::test]
async fn health_is_told_with_reasons() {
    let front = Served::start().await;
    assert_eq!(front.get("/livez").await.json(), json!({"live": true}));
    let ready = front.get("/readyz").await;
    assert_eq!(
        (ready.status, ready.json()),
        (200, json!({"ready": true, "reasons": [], "alarms": []}))
    );
    front.node.faults.lock().unready = vec!["a member has another list".into()];
    let unready = front.get("/readyz").await;
    let expected = json!({"ready": false, "reasons": ["a member has another list"], "alarms": []});
    assert_eq!((unready.status, unready.json()), (503, expected));
    assert_eq!(front.get("/livez").await.status, 200);
}

#[tokio::test]
async fn alarms_are_told_and_do_not_make_a_node_unready() {
    let front = Served::start().await;
    front.node.faults.lock().alarms = vec![Alarm {
        kind: AlarmKind::MembersSilent,
        nodes: vec![NodeId::from_bytes([2; 16])],
        message: "2 of 3 members".into(),
    }];
    let ready = front.get("/readyz").await;
    let alarm =
        json!({"kind": "members_silent", "nodes": ["02020202020202020202020202020202"], "message": "2 of 3 members"});
    let expected = json!({"ready": true, "reasons": [], "alarms": [alarm]});
    assert_eq!((ready.status, ready.json()), (200, expected));
}

#[tokio::test]
async fn metrics_and_the_document_are_served_by_their_types() {
    let front = Served::start().await;
    front.put("/v1/objects/a", &payload(100)).await;
    front.get("/v1/objects/a").await;
    front.get("/v1/objects/b").await;
    front.get("/nowhere").await;
    let metrics = front.get("/metrics").await;
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain"));
    let text = String::from_utf8(metrics.body).unwrap();
    for line in [
        "tenon_gets_total{outcome=\"hit\"} 1",
        "tenon_gets_total{outcome=\"miss\"} 1",
        "tenon_received_bytes_total{place=\"http\"} 100",
        "tenon_sent_bytes_total{place=\"http\"} 100",
        "tenon_http_requests_total{method=\"GET\",route=\"/v1/objects/{*key}\",status=\"404\"} 1",
        "tenon_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"} 1",
    ] {
        assert!(
            text.lines().any(|shown| shown == line),
            "{line:?} is missing in:\n{text}"
        );
    }
    let document = front.get("/openapi.json").await;
    assert_eq!(document.header("content-type"), Some("application/json"));
    assert_eq!(
        document.json()["openapi"].as_str().map(|version| &version[..2]),
        Some("3.")
    );
}

#[tokio::test]
async fn transfers_beyond_the_bound_wait_for_their_turn() {
    let front = Served::start().await;
    let mut held = Vec::new();
    for _ in 0..HTTP_TRANSFERS_MAX {
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        let headers = [("Content-Length", "10")];
        stream
            .write_all(&request("PUT", "/v1/objects/held", &headers, b"half "))
            .await
            .unwrap();
        held.push(stream);
    }
    while front.node.open_puts() < HTTP_TRANSFERS_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = front.put("/v1/objects/b?timeout_ms=50", b"x").await;
    refused.expect_error(503, "overloaded");
    // Health and calls have their own turns.
    assert_eq!(front.get("/livez").await.status, 200);
    assert_eq!(front.get("/v1/nodes").await.status, 200);
    let waiting = front.put("/v1/objects/b", b"x");
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        held.pop();
    };
    let (put, ()) = tokio::join!(waiting, release);
    assert_eq!(put.status, 201);
    drop(held);
    front.assert_nothing_reserved().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_ends_the_put() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    let headers = [("Content-Length", "10")];
    stream
        .write_all(&request("PUT", "/v1/objects/a?timeout_ms=60000", &headers, b"half "))
        .await
        .unwrap();
    let mut received = Vec::new();
    // The answer comes at once; the connection is kept for the rest of the body a while longer.
    while !received.ends_with(b"}}") {
        assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
    }
    let text = String::from_utf8(received).unwrap();
    assert!(
        text.starts_with("HTTP/1.1 408") && text.contains(&HTTP_STALL_MS_MAX.to_string()),
        "{text}"
    );
    front.assert_nothing_reserved().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed() {
    let front = Served::start().await;
    for sent in ["", "GET /livez HTTP/1.1\r\nHost: local"] {
        let start = Instant::now();
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        assert!(
            start.elapsed() >= Duration::from_millis(HTTP_IDLE_MS_MAX),
            "{:?}",
            start.elapsed()
        );
        assert!(
            start.elapsed() < Duration::from_millis(2 * HTTP_IDLE_MS_MAX),
            "{:?}",
            start.elapsed()
        );
    }
}

#[tokio::test]
async fn stopping_lets_requests_under_way_end_and_takes_no_more() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    let headers = [("Content-Length", "10")];
    stream
        .write_all(&request("PUT", "/v1/objects/a", &headers, b"half "))
        .await
        .unwrap();
    let idle = TcpStream::connect(front.address).await.unwrap();
    while front.node.open_puts() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    front.stop.send_replace(true);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!front.serving.is_finished());
    assert!(TcpStream::connect(front.address).await.is_err());
    stream.write_all(b"whole").await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 201);
    tokio::time::timeout(Duration::from_secs(5), front.serving)
        .await
        .unwrap()
        .unwrap();
    drop(idle);
}

#[tokio::test]
async fn errors_of_every_route_are_json() {
    let front = Served::start().await;
    for path in ["/livez?x=1", "/v1/nodes?x=1", "/v1/objects/a?x=1", "/v1/objects?x=1"] {
        let answer = front.get(path).await;
        if answer.status != 200 {
            assert_eq!(answer.header("content-type"), Some("application/json"), "{path}");
            let _: Value = answer.expect_error(400, "invalid_argument");
        }
    }
}

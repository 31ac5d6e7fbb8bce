//! Whole objects.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::NodeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::client::{Answer, answer, request, send};
use super::{Served, payload};

const MIB: usize = 1 << 20;

#[tokio::test]
async fn what_was_put_is_got() {
    let front = Served::start().await;
    for (path, len_bytes) in [
        ("/v1/objects/a", 1),
        ("/v1/objects/a/b%2Fc", MIB),
        ("/v1/objects/100%25%20of%20%C3%A9", 3 * MIB + 7),
        ("/v1/namespaces/other/objects/a", MIB - 1),
    ] {
        let bytes = payload(len_bytes);
        let put = front.put(path, &bytes).await;
        assert_eq!(put.status, 201, "{path}: {put:?}");
        assert_eq!(put.json()["outcome"], "stored");
        let got = front.get(path).await;
        assert_eq!(
            (got.status, got.header("content-length")),
            (200, Some(len_bytes.to_string().as_str()))
        );
        assert_eq!(got.header("content-type"), Some("application/octet-stream"));
        assert!(got.body == bytes, "{path}");
        let head = front.ask("HEAD", path, &[], b"").await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        for name in [
            "content-length",
            "etag",
            "accept-ranges",
            "content-type",
            "tenon-crc64nvme",
        ] {
            assert!(head.header(name).is_some(), "{name}");
            assert_eq!(head.header(name), got.header(name), "{name}");
        }
    }
    let names: Vec<_> = front.node.objects.lock().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["default/100% of é", "default/a", "default/a/b/c", "other/a"]);
}

#[tokio::test]
async fn a_second_put_of_a_key_keeps_the_first() {
    let front = Served::start().await;
    front.put("/v1/objects/a", b"first").await;
    let put_id = "0123456789abcdef0123456789abcdef";
    let node = NodeId::from_bytes([7; 16]);
    let second = front
        .put(&format!("/v1/objects/a?put_id={put_id}&node={node}"), b"second")
        .await;
    assert_eq!(
        (second.status, second.json()["outcome"].as_str()),
        (200, Some("already_exists"))
    );
    assert_eq!(front.get("/v1/objects/a").await.body, b"first");
    let options = front.node.put_options.lock().clone();
    assert_eq!(
        (options.put_id, options.node),
        (Some(put_id.parse().unwrap()), Some(node))
    );
}

#[tokio::test]
async fn one_range_is_served() {
    let front = Served::start().await;
    let bytes = payload(2 * MIB + 100);
    front.put("/v1/objects/a", &bytes).await;
    let last = bytes.len() - 1;
    for (range, start, end) in [
        ("bytes=0-0".to_owned(), 0, 0),
        (format!("bytes={}-{}", MIB - 1, MIB), MIB - 1, MIB),
        (format!("bytes={}-", 2 * MIB), 2 * MIB, last),
        ("bytes=-5".to_owned(), last - 4, last),
        ("bytes=10-99999999999".to_owned(), 10, last),
    ] {
        let got = front.ask("GET", "/v1/objects/a", &[("Range", &range)], b"").await;
        assert_eq!(got.status, 206, "{range}");
        let told = format!("bytes {start}-{end}/{}", bytes.len());
        assert_eq!(got.header("content-range"), Some(told.as_str()));
        assert!(got.body == bytes[start..=end], "{range}");
    }
}

#[tokio::test]
async fn ranges_that_cannot_be_served_are_told_apart() {
    let front = Served::start().await;
    front.put("/v1/objects/a", b"0123456789").await;
    let beyond = front.ask("GET", "/v1/objects/a", &[("Range", "bytes=10-")], b"").await;
    beyond.expect_error(416, "range_not_satisfiable");
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    for range in ["bytes=0-1,3-4", "bytes=x", "lines=0-1"] {
        let whole = front.ask("GET", "/v1/objects/a", &[("Range", range)], b"").await;
        assert_eq!(
            (whole.status, whole.body.as_slice()),
            (200, &b"0123456789"[..]),
            "{range}"
        );
    }
}

#[tokio::test]
async fn a_range_of_another_version_gets_the_whole() {
    let front = Served::start().await;
    front.put("/v1/objects/a", b"0123456789").await;
    let etag = front.get("/v1/objects/a").await.header("etag").unwrap().to_owned();
    for (condition, status) in [(etag.as_str(), 206), ("\"1.00000000000000000000000000000000\"", 200)] {
        let headers = [("Range", "bytes=1-2"), ("If-Range", condition)];
        assert_eq!(
            front.ask("GET", "/v1/objects/a", &headers, b"").await.status,
            status,
            "{condition}"
        );
    }
}

#[tokio::test]
async fn what_is_not_there_is_a_miss() {
    let front = Served::start().await;
    front.get("/v1/objects/a").await.expect_error(404, "not_found");
    assert_eq!(front.ask("HEAD", "/v1/objects/a", &[], b"").await.status, 404);
    front.put("/v1/objects/a", b"x").await;
    let deleted = front.ask("DELETE", "/v1/objects/a", &[], b"").await;
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    front
        .ask("DELETE", "/v1/objects/a", &[], b"")
        .await
        .expect_error(404, "not_found");
}

#[tokio::test]
async fn bodies_without_length_or_bytes_are_refused() {
    let front = Served::start().await;
    let chunked = "PUT /v1/objects/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
    send(front.address, chunked.as_bytes())
        .await
        .expect_error(411, "length_required");
    front.put("/v1/objects/a", b"").await.expect_error(400, "empty_object");
    assert!(front.node.objects.lock().is_empty());
}

#[tokio::test]
async fn a_body_that_is_shorter_than_announced_stores_nothing() {
    let front = Served::start().await;
    for (announced, sent) in [(10, 0), (10, 9), (3 * MIB, 2 * MIB + 1)] {
        let announced = announced.to_string();
        let bytes = request(
            "PUT",
            "/v1/objects/a",
            &[("Content-Length", &announced)],
            &payload(sent),
        );
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let error = answer(&mut stream).await.expect_error(400, "length_mismatch");
        assert!(error["message"].as_str().unwrap().contains(&announced), "{error}");
        front.assert_nothing_reserved().await;
    }
    assert!(front.node.objects.lock().is_empty());
}

#[tokio::test]
async fn a_body_that_is_longer_than_announced_stores_nothing() {
    let front = Served::start().await;
    for (announced, sent) in [(1, 2), (10, 1000), (2 * MIB, 2 * MIB + 1)] {
        let headers = [("Content-Length", &*announced.to_string())];
        let bytes = request("PUT", "/v1/objects/a", &headers, &payload(sent));
        send(front.address, &bytes).await.expect_error(400, "length_mismatch");
        front.assert_nothing_reserved().await;
    }
    assert!(front.node.objects.lock().is_empty());
}

#[tokio::test]
async fn one_connection_serves_one_request_after_another() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    for round in 0..3 {
        let put = format!("PUT /v1/objects/{round} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nbytes");
        stream.write_all(put.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let taken = stream.read(&mut answer).await.unwrap();
        assert!(
            answer[..taken].starts_with(b"HTTP/1.1 201"),
            "{}",
            String::from_utf8_lossy(&answer[..taken])
        );
    }
    // On the same connection a body that is too long is still noticed.
    let put = "PUT /v1/objects/long HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nConnection: close\r\n\r\n\
        bytes and more";
    stream.write_all(put.as_bytes()).await.unwrap();
    answer(&mut stream).await.expect_error(400, "length_mismatch");
    assert_eq!(front.node.objects.lock().len(), 3);
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_nothing_reserved() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    let length = (8 * MIB).to_string();
    let bytes = request("PUT", "/v1/objects/a", &[("Content-Length", &length)], &payload(MIB));
    stream.write_all(&bytes).await.unwrap();
    while front.node.open_puts() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(stream);
    front.assert_nothing_reserved().await;
    assert!(front.node.objects.lock().is_empty());
}

#[tokio::test]
async fn a_sender_that_does_not_listen_while_it_sends_gets_to_read_why_it_was_refused() {
    let front = Served::start().await;
    let numbers = NoSpace {
        asked_bytes: 1,
        free_bytes: 2,
        largest_free_bytes: 3,
        evictable_bytes: 4,
        held_bytes: 5,
        largest_segment_bytes: 10,
        entries_looked_at: 6,
        stop_reason: "pool_exhausted".into(),
    };
    front.node.faults.lock().put = Some(ServiceError::no_space(numbers));
    let error = front
        .put("/v1/objects/a", &vec![7; 32 * MIB])
        .await
        .expect_error(507, "no_space");
    assert_eq!(error["no_space"]["largest_free_bytes"], 3);
    let too_large = front.put("/v1/objects/%FF", &vec![7; 32 * MIB]).await;
    too_large.expect_error(400, "invalid_name");
}

#[tokio::test]
async fn an_unavailable_holder_is_named() {
    let front = Served::start().await;
    let holder = NodeId::from_bytes([9; 16]);
    front.put("/v1/objects/a", &payload(10)).await;
    front.node.faults.lock().piece = Some((0, ServiceError::unavailable(holder, "reading")));
    let error = front.get("/v1/objects/a").await.expect_error(503, "unavailable");
    assert_eq!(error["node"], json!(holder));
}

fn failed_read(piece: u64) -> Option<(u64, ServiceError)> {
    Some((piece, ServiceError::new(ErrorCode::FailedRead, "wrong bytes")))
}

#[tokio::test]
async fn a_piece_that_cannot_be_verified_is_never_sent() {
    let front = Served::start().await;
    let bytes = payload(4 * MIB);
    front.put("/v1/objects/a", &bytes).await;
    front.node.faults.lock().piece = failed_read(0);
    front.get("/v1/objects/a").await.expect_error(502, "failed_read");
    // Later, only the connection can say so.
    front.node.faults.lock().piece = failed_read(2);
    let broken = front.get("/v1/objects/a").await;
    assert_eq!((broken.status, broken.header("content-length")), (200, Some("4194304")));
    assert!(broken.body.len() <= 2 * MIB && broken.body == bytes[..broken.body.len()]);
    let metrics = front.get("/metrics").await;
    let text = String::from_utf8(metrics.body).unwrap();
    assert!(text.contains("tenon_gets_total{outcome=\"failed_read\"} 2"), "{text}");
}

#[tokio::test]
async fn only_the_pieces_of_a_range_are_read() {
    let front = Served::start().await;
    front.put("/v1/objects/a", &payload(8 * MIB)).await;
    let range = format!("bytes={}-{}", 3 * MIB - 1, 3 * MIB);
    front.ask("GET", "/v1/objects/a", &[("Range", &range)], b"").await;
    assert_eq!(front.node.pieces_read.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_not_read_ahead_for() {
    let front = Served::start().await;
    front.put("/v1/objects/a", &vec![7; 64 * MIB]).await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    stream
        .write_all(&request("GET", "/v1/objects/a", &[], b""))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let read = front.node.pieces_read.load(Ordering::SeqCst);
    // What the sockets' buffers hold, and little more.
    assert!(read < 24, "{read} pieces were read for a reader that takes none");
    assert_eq!(answer(&mut stream).await.body.len(), 64 * MIB);
}

#[tokio::test]
async fn a_client_that_has_said_all_may_close_its_side() {
    let front = Served::start().await;
    let bytes = vec![7; 16 * MIB];
    front.put("/v1/objects/a", &bytes).await;
    for path in ["/v1/objects/a", "/livez"] {
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        stream.write_all(&request("GET", path, &[], b"")).await.unwrap();
        stream.shutdown().await.unwrap();
        let got: Answer = answer(&mut stream).await;
        assert_eq!(got.status, 200);
        assert!(path == "/livez" || got.body == bytes);
    }
}

#[tokio::test]
async fn a_caller_that_asks_to_go_on_is_told_to() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    let head = "PUT /v1/objects/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
        Content-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"bytes").await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 201);
}

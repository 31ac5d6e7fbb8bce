//! Heads of requests that are refused before there is a request.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::client::{Answer, answer, request, send};
use super::{Served, payload};
use crate::limits::{HTTP_HEAD_FIELDS_MAX, HTTP_IDLE_MS_MAX};

#[tokio::test]
async fn heads_have_a_longest() {
    let front = Served::start().await;
    let long = "x".repeat(20_000);
    front
        .get(&format!("/v1/objects/{long}"))
        .await
        .expect_error(431, "invalid_argument");
    front
        .ask("GET", "/livez", &[("X-Long", &long)], b"")
        .await
        .expect_error(431, "invalid_argument");
    let key = "%C3%A9".repeat(512);
    front
        .get(&format!("/v1/objects/{key}"))
        .await
        .expect_error(404, "not_found");
}

/// A request with these header fields.
fn with_fields(fields: &str) -> Vec<u8> {
    format!("PUT /v1/objects/a HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n").into_bytes()
}

fn bad_heads() -> Vec<(Vec<u8>, u16, &'static str)> {
    let malformed = |head: &[u8]| (head.to_vec(), 400, "malformed_request");
    vec![
        malformed(b"\0\0\0\0\r\n\r\n"),
        malformed(b"GET\r\n\r\n"),
        malformed(b"GET /livez\r\n\r\n"),
        malformed(b"GET /livez HTTP/3.7\r\nHost: localhost\r\n\r\n"),
        malformed(b"GET /li\x01vez HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        malformed(b"GET / livez HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        malformed(&[0xff; 70_000]),
        malformed(&with_fields("No Name: x\r\n")),
        malformed(&with_fields("X: a\x01b\r\n")),
        malformed(&with_fields("X: folded\r\n over two lines\r\n")),
        malformed(&with_fields("Content-Length: 5\r\nContent-Length: 6\r\n")),
        malformed(&with_fields("Content-Length: many\r\n")),
        malformed(&with_fields("Content-Length: -1\r\n")),
        malformed(&with_fields("Content-Length: 18446744073709551616\r\n")),
        malformed(&with_fields("Transfer-Encoding: gzip\r\n")),
        malformed(&with_fields(
            "Connection: close\r\nContent-Length: 0\r\nHost: localhost\r\n",
        )),
        malformed(&with_fields(
            "Connection: close\r\nContent-Length: 0\r\nHost: evil.example\r\n",
        )),
        (
            with_fields("Content-Length: 18446744073709551615\r\n"),
            413,
            "invalid_argument",
        ),
        (
            with_fields(&"X: y\r\n".repeat(HTTP_HEAD_FIELDS_MAX)),
            431,
            "invalid_argument",
        ),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000)).into_bytes(),
            431,
            "invalid_argument",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), 505, "malformed_request"),
    ]
}

#[tokio::test]
async fn every_bad_head_is_refused_with_a_code() {
    let front = Served::start().await;
    for (head, status, code) in bad_heads() {
        let text = String::from_utf8_lossy(&head[..head.len().min(100)]).into_owned();
        // A body after it does not keep its sender from reading the answer.
        for body in [vec![], vec![7; 1 << 20]] {
            let refused = send(front.address, &[head.as_slice(), &body].concat()).await;
            assert_eq!(refused.status, status, "{text:?}");
            refused.expect_error(status, code);
            assert_eq!(refused.header("content-type"), Some("application/json"), "{text:?}");
        }
    }
    assert_eq!(front.get("/livez").await.status, 200);
}

#[tokio::test]
async fn a_bad_head_in_pieces_is_refused_like_one_at_once() {
    let front = Served::start().await;
    let head = with_fields("Content-Length: many\r\n");
    for cut in [1, 20, head.len() - 1] {
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        for part in [&head[..cut], &head[cut..]] {
            stream.write_all(part).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        answer(&mut stream).await.expect_error(400, "malformed_request");
    }
}

#[tokio::test]
async fn a_bad_head_after_a_good_request_is_refused_with_a_code() {
    let front = Served::start().await;
    let put = &b"PUT /v1/objects/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nbytes"[..];
    // Where this ends only the library knows, so it alone refuses what comes then.
    let chunked = b"POST /v1/locate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let after_put = bad_heads().into_iter().filter(|(_, status, _)| *status != 505);
    let after_chunked = bad_heads().into_iter().filter(|(_, status, _)| *status == 400);
    let cases = after_put
        .map(|bad| (put, bad))
        .chain(after_chunked.map(|bad| (&chunked[..], bad)));
    for (first, (head, status, code)) in cases {
        let mut stream = TcpStream::connect(front.address).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        }
        stream.write_all(&head).await.unwrap();
        answer(&mut stream).await.expect_error(status, code);
    }
}

#[tokio::test]
async fn a_bad_head_that_comes_together_with_a_good_one_costs_its_answer_nothing() {
    let front = Served::start().await;
    let mut both = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    both.extend(with_fields("No Name: x\r\n"));
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    stream.write_all(&both).await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    let text = String::from_utf8(received).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert!(text.contains("{\"live\":true}HTTP/1.1 400"), "{text}");
    assert!(text.ends_with("}}") && text.contains("malformed_request"), "{text}");
}

#[tokio::test]
async fn a_bad_head_that_comes_during_an_answer_puts_no_other_bytes_into_it() {
    let front = Served::start().await;
    let bytes = payload(16 << 20);
    front.put("/v1/objects/a", &bytes).await;
    for head in [vec![b'x'; 20_000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut stream = socket.connect(front.address).await.unwrap();
        let get = b"GET /v1/objects/a HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(get).await.unwrap();
        let mut received = Vec::new();
        while received.len() < 1 << 20 {
            stream.read_buf(&mut received).await.unwrap();
        }
        stream.write_all(&head).await.unwrap();
        while stream.read_buf(&mut received).await.is_ok_and(|taken| taken > 0) {}
        let body = Answer::parse(&received).body;
        let same = body.iter().zip(&bytes).take_while(|(got, sent)| got == sent).count();
        assert_eq!(same, body.len().min(bytes.len()), "other bytes came from {same} on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_empty_lines_is_closed() {
    let front = Served::start().await;
    let start = Instant::now();
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    stream.write_all(b"\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert!(
        start.elapsed() < Duration::from_millis(2 * HTTP_IDLE_MS_MAX),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn empty_lines_before_a_request_do_not_count() {
    let front = Served::start().await;
    let put = request("PUT", "/v1/objects/a", &[], b"bytes");
    let answer = send(front.address, &[b"\r\n\r\n", put.as_slice()].concat()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

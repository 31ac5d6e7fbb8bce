//! Transfers whose other end is slow: they end by their deadline, and give back what they held.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tenon_protocol::ids::{Epoch, PutId, Version};
use tenon_protocol::message::{ListEntry, ListReply, Reply};
use tenon_protocol::name::{Namespace, ObjectName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::Served;
use super::calls::{PUT, answered, reserve_body, reserved};
use super::client::{Answer, answer, request};
use crate::limits::HTTP_TRANSFERS_MAX;

const MIB: usize = 1 << 20;
/// More than the buffers of two sockets hold.
const LARGE: usize = 64 * MIB;
/// 5 s and 1 s per 8 MiB.
const LARGE_DEADLINE: Duration = Duration::from_secs(13);

/// Sends a head, then a byte every second until that fails; the answer comes from the task.
async fn trickle(front: &Served, head: Vec<u8>, byte: &'static [u8]) -> JoinHandle<Answer> {
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    stream.write_all(&head).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let sending = tokio::spawn(async move {
        while to.write_all(byte).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    tokio::spawn(async move {
        let mut received = Vec::new();
        while !received.ends_with(b"}}") && from.read_buf(&mut received).await.unwrap() > 0 {}
        sending.abort();
        Answer::parse(&received)
    })
}

fn store(front: &Served, len_bytes: usize) {
    let name = ObjectName::new(&Namespace::new(Namespace::DEFAULT).unwrap(), "large").unwrap();
    let version = Version {
        epoch: Epoch(1),
        put_id: PutId::from_bytes([1; 16]),
    };
    let bytes = Bytes::from(vec![7; len_bytes]);
    front.node.objects.lock().insert(name, (version, bytes));
}

/// Asks for an answer, of which the sockets hold little until it is taken.
async fn ask(front: &Served, path: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut stream = socket.connect(front.address).await.unwrap();
    stream.write_all(&request("GET", path, &[], b"")).await.unwrap();
    stream
}

/// The time until a transfer finds a place, which there is none now.
async fn time_until_a_place_is_free(front: &Served) -> Duration {
    let start = Instant::now();
    front
        .put("/v1/objects/refused?timeout_ms=50", b"x")
        .await
        .expect_error(503, "overloaded");
    let put = front.put("/v1/objects/next?timeout_ms=60000", b"x").await;
    assert!([200, 201].contains(&put.status), "{put:?}");
    start.elapsed()
}

#[track_caller]
fn assert_about(elapsed: Duration, expected: Duration) {
    let tolerance = Duration::from_millis(1_500);
    assert!(
        elapsed + tolerance > expected && elapsed < expected + tolerance,
        "{elapsed:?} instead of {expected:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn bodies_that_trickle_end_by_their_deadline_and_give_their_places_back() {
    let front = Served::start().await;
    for (wish, expected) in [
        ("", LARGE_DEADLINE),
        ("?timeout_ms=3000", Duration::from_secs(3)),
        ("?timeout_ms=30000", Duration::from_secs(30)),
    ] {
        let mut trickling = Vec::new();
        for index in 0..HTTP_TRANSFERS_MAX {
            let path = format!("/v1/objects/{index}{wish}");
            let head = request("PUT", &path, &[("Content-Length", &LARGE.to_string())], b"");
            trickling.push(trickle(&front, head, b"x").await);
        }
        while front.node.open_puts() < HTTP_TRANSFERS_MAX {
            sleep(Duration::from_millis(1)).await;
        }
        assert_about(time_until_a_place_is_free(&front).await, expected);
        for answer in trickling {
            answer.await.unwrap().expect_error(408, "deadline_exceeded");
        }
        front.assert_nothing_reserved().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_trickles_ends_by_the_deadline_of_its_own_length() {
    let front = Served::start().await;
    answered(&front, "/v1/reserve", &reserve_body(LARGE), reserved(77)).await;
    for (len_bytes, expected) in [(LARGE, LARGE_DEADLINE), (24 * MIB, Duration::from_secs(8))] {
        let start = Instant::now();
        let path = format!("/v1/puts/{PUT}/a%20b");
        let head = request("PUT", &path, &[("Content-Length", &len_bytes.to_string())], b"");
        let answer = trickle(&front, head, b"x").await.await.unwrap();
        answer.expect_error(408, "deadline_exceeded");
        assert_about(start.elapsed(), expected);
    }
    assert!(front.node.written.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn calls_that_trickle_end_by_their_deadline_whether_or_not_their_length_is_known() {
    let front = Served::start().await;
    for (length, byte) in [
        ("Content-Length: 1000", &b" "[..]),
        ("Transfer-Encoding: chunked", b"1\r\n \r\n"),
    ] {
        let start = Instant::now();
        let head = format!("POST /v1/locate HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n");
        let answer = trickle(&front, head.into_bytes(), byte).await.await.unwrap();
        answer.expect_error(408, "deadline_exceeded");
        assert_about(start.elapsed(), Duration::from_secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn readers_that_never_read_end_by_their_deadline_and_give_their_places_back() {
    let front = Served::start().await;
    // Shorter than the time after which a peer that takes nothing is given up anyway.
    store(&front, LARGE / 2);
    for (wish, expected) in [
        ("", Duration::from_secs(9)),
        ("?timeout_ms=2000", Duration::from_secs(2)),
    ] {
        let mut held = Vec::new();
        for _ in 0..HTTP_TRANSFERS_MAX {
            held.push(ask(&front, &format!("/v1/objects/large{wish}")).await);
        }
        while front.node.open_sources() < HTTP_TRANSFERS_MAX {
            sleep(Duration::from_millis(1)).await;
        }
        assert_about(time_until_a_place_is_free(&front).await, expected);
        assert_eq!(front.node.open_sources(), 0);
        for mut stream in held {
            let broken = stream.read_to_end(&mut Vec::new()).await;
            assert!(broken.is_err(), "{broken:?}");
        }
    }
}

/// Takes a little of an answer every second, and says how much there was when it broke.
async fn sip(stream: &mut TcpStream) -> usize {
    let mut taken = 0;
    let mut buffer = vec![0; MIB / 4];
    loop {
        match stream.read_exact(&mut buffer).await {
            Ok(bytes) => taken += bytes,
            Err(_) => return taken,
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_sips_loses_its_answer_at_its_deadline() {
    let front = Served::start().await;
    store(&front, LARGE);
    let entry = ListEntry {
        key: "k".repeat(LARGE),
        len_bytes: 1,
        version: Version {
            epoch: Epoch(1),
            put_id: PutId::from_bytes([1; 16]),
        },
        holders: Vec::new(),
        sealed_unix_ms: 0,
        pin: tenon_protocol::message::Pin::None,
    };
    let list = ListReply {
        entries: vec![entry],
        more: false,
        complete: true,
        missing: Vec::new(),
    };
    front.node.replies.lock().push_back(Reply::List(list));
    for path in ["/v1/objects/large", "/v1/objects"] {
        let start = Instant::now();
        let taken = sip(&mut ask(&front, path).await).await;
        assert_about(start.elapsed(), LARGE_DEADLINE);
        assert!(taken < LARGE / 2, "{taken}");
        assert_eq!(front.node.open_sources(), 0);
    }
    // The connection of the next has the whole time again.
    let read = front.get("/livez").await;
    assert_eq!((read.status, read.json()), (200, json!({"live": true})));
}

#[tokio::test(start_paused = true)]
async fn answers_on_one_connection_have_a_deadline_each() {
    let front = Served::start().await;
    let mut stream = TcpStream::connect(front.address).await.unwrap();
    for _ in 0..3 {
        let get = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(get).await.unwrap();
        let mut received = Vec::new();
        while !received.ends_with(b"}") {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        }
        sleep(Duration::from_secs(7)).await;
    }
    stream.write_all(&request("GET", "/livez", &[], b"")).await.unwrap();
    assert_eq!(answer(&mut stream).await.status, 200);
}

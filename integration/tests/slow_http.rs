//! The other end of a transfer over HTTP is slow: it ends by its deadline, and its place and its bytes come back.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use tenon_integration::account::assert_empty;
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Http, code_in};
use tenon_integration::payload::payload;
use tenon_integration::wait::{self, SOON};

/// Transfers that a node serves over HTTP at once.
const PLACES: usize = 32;

/// Sends a request and nothing more.
fn begin(http: &Http, head: &str) -> TcpStream {
    let mut stream = http.connect();
    let head = format!("{head} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    stream.write_all(head.as_bytes()).expect("a head can be sent");
    stream
}

/// Sends a body byte by byte until that fails.
fn trickle(mut stream: TcpStream) {
    while stream.write_all(b"x").is_ok() {
        thread::sleep(Duration::from_millis(200));
    }
}

/// All that comes back on a connection on which a body trickles meanwhile.
fn trickle_and_listen(mut stream: TcpStream) -> String {
    let sender = stream.try_clone().expect("a socket has two ends");
    let sending = thread::spawn(move || trickle(sender));
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    while !received.ends_with(b"}}") {
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(bytes) => received.extend_from_slice(&chunk[..bytes]),
        }
    }
    let _ = stream.shutdown(std::net::Shutdown::Both);
    sending.join().expect("the sender ends with its connection");
    String::from_utf8_lossy(&received).into_owned()
}

/// Waits until every place is taken, then until a transfer gets one; returns how long that took.
fn wait_for_a_place(http: &Http) -> Duration {
    let start = Instant::now();
    while http.put("/v1/objects/refused?timeout_ms=100", b"x").status != 503 {
        http.delete("/v1/objects/refused");
        assert!(start.elapsed() < Duration::from_secs(3), "not all places are taken");
    }
    let waited = http.put("/v1/objects/waited?timeout_ms=30000", b"x");
    assert_eq!(waited.status, 201, "{waited:?}");
    assert_eq!(http.delete("/v1/objects/waited").status, 204);
    start.elapsed()
}

#[test]
fn bodies_that_trickle_end_by_their_deadline_and_their_places_and_bytes_come_back() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    for (wish, deadline) in [
        ("", Duration::from_millis(5_125)),
        ("&timeout_ms=3000", Duration::from_secs(3)),
    ] {
        let holders = [cluster[0].id(), cluster[1].id()];
        let trickling: Vec<_> = (0..PLACES)
            .map(|index| {
                let holder = holders[index % 2];
                let mut stream = begin(&http, &format!("PUT /v1/objects/{index}?node={holder}{wish}"));
                stream
                    .write_all(b"Content-Length: 1048576\r\n\r\n")
                    .expect("a head can be sent");
                thread::spawn(move || trickle_and_listen(stream))
            })
            .collect();
        let waited = wait_for_a_place(&http);
        assert!(waited < deadline + Duration::from_secs(5), "{waited:?}");
        for answer in trickling {
            let answer = answer.join().expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
            assert_eq!(code_in(&answer), "deadline_exceeded");
        }
        assert_empty(&cluster);
    }
}

fn gets_ended(http: &Http) -> usize {
    let metrics = http.get("/metrics").expect(200);
    let text = String::from_utf8_lossy(metrics.bytes());
    let counts = text.lines().filter(|line| line.starts_with("tenon_gets_total{"));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok())
        .sum()
}

#[test]
fn readers_that_never_read_end_by_their_deadline_and_their_places_and_bytes_come_back() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    for (index, node) in [cluster[0].id(), cluster[1].id()].into_iter().enumerate() {
        http.put_object_on(&format!("large{index}"), &payload(1, 32 << 20), node);
    }
    let readers: Vec<_> = (0..PLACES)
        .map(|index| {
            let mut stream = begin(&http, &format!("GET /v1/objects/large{}?timeout_ms=3000", index % 2));
            stream.write_all(b"\r\n").expect("a head can be sent");
            stream
        })
        .collect();
    let waited = wait_for_a_place(&http);
    assert!(waited < Duration::from_secs(7), "{waited:?}");
    // Whoever is read from before its deadline is served.
    wait::until(SOON, "every get has ended", || match gets_ended(&http) {
        PLACES => Ok(()),
        ended => Err(ended),
    });
    for mut reader in readers {
        let broken = reader.read_to_end(&mut Vec::new());
        assert!(broken.is_err(), "an answer that was cut off looks whole: {broken:?}");
    }
    for index in 0..2 {
        assert_eq!(http.delete(&format!("/v1/objects/large{index}")).status, 204);
    }
    assert_empty(&cluster);
}

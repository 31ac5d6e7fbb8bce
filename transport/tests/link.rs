//! Calls over a link: in any number and order, bounded in time, size and number.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use support::*;
use tenon_transport::limits::{MAX_LINK_CALLS, MAX_LINK_FRAME_BYTES};
use tenon_transport::link::{BoxFuture, Endpoint, Link, LinkError, NoSecret, Service, Serving, Session};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

async fn dial(endpoint: &Endpoint) -> Arc<Link> {
    Link::dial(endpoint, &client_identity(), &NoSecret, Some(SERVER), soon())
        .await
        .unwrap()
}

#[tokio::test]
async fn answers_come_in_any_order_to_their_own_calls() {
    let server = Server::start(&loopback(), serving()).await;
    let link = dial(&server.endpoint).await;
    let slow = link.call(Bytes::from_static(b"300"), soon());
    let fast = async {
        let answer = link.call(Bytes::from_static(b"fast"), soon()).await.unwrap();
        (answer, Instant::now())
    };
    let timed_slow = async { (slow.await.unwrap(), Instant::now()) };
    let (slow, fast) = tokio::join!(timed_slow, fast);
    assert_eq!((&slow.0[..], &fast.0[..]), (&b"300"[..], &b"fast"[..]));
    assert!(fast.1 < slow.1, "the fast answer did not wait for the slow one");
}

#[tokio::test]
async fn frames_of_every_size_come_back_whole() {
    for endpoint in [loopback(), unix("sizes")] {
        let server = Server::start(&endpoint, serving()).await;
        let link = dial(&server.endpoint).await;
        for len in [
            0,
            1,
            4_095,
            16 << 10,
            (16 << 10) + 1,
            1 << 20,
            MAX_LINK_FRAME_BYTES as usize,
        ] {
            let request: Bytes = (0..len)
                .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
                .collect::<Vec<_>>()
                .into();
            assert!(
                link.call(request.clone(), soon()).await.unwrap() == request,
                "{len} bytes"
            );
        }
    }
}

#[tokio::test]
async fn what_is_longer_than_a_frame_fails_alone() {
    let server = Server::start(&loopback(), serving()).await;
    let link = dial(&server.endpoint).await;
    let request = Bytes::from(vec![0; MAX_LINK_FRAME_BYTES as usize + 1]);
    assert!(matches!(
        link.call(request, soon()).await,
        Err(LinkError::TooLarge { .. })
    ));
    let error = link.call(Bytes::from_static(b"too much"), soon()).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Protocol { reason } if reason.contains("longer")),
        "{error}"
    );
    let error = link.call(Bytes::from_static(b"panic"), soon()).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Protocol { reason } if reason.contains("failed")),
        "{error}"
    );
    assert_eq!(link.call(Bytes::from_static(b"on"), soon()).await.unwrap(), "on");
}

#[tokio::test]
async fn a_deadline_ends_one_call_and_leaves_the_link() {
    let server = Server::start(&loopback(), serving()).await;
    let link = dial(&server.endpoint).await;
    let begun = Instant::now();
    let error = link
        .call(Bytes::from_static(b"60000"), begun + Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(error, LinkError::Deadline { during: "a call" }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(link.call(Bytes::from_static(b"on"), soon()).await.unwrap(), "on");
}

#[tokio::test]
async fn the_death_of_the_link_wakes_all_callers_at_once() {
    let server = Server::start(&loopback(), serving()).await;
    let link = dial(&server.endpoint).await;
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let link = Arc::clone(&link);
            tokio::spawn(async move { link.call(Bytes::from_static(b"60000"), soon()).await })
        })
        .collect();
    link.call(Bytes::from_static(b"they are there"), soon()).await.unwrap();
    server.task.abort();
    for call in calls {
        let error = timeout(Duration::from_secs(5), call)
            .await
            .expect("at once")
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, LinkError::Closed { .. }), "{error}");
    }
    assert!(!link.closed().await.is_empty());
    assert!(link.is_closed());
    assert!(matches!(
        link.call(Bytes::new(), soon()).await,
        Err(LinkError::Closed { .. })
    ));
}

#[tokio::test]
async fn closing_our_side_wakes_our_callers_and_ends_the_session() {
    let echo = Arc::new(Echo::default());
    let server = Server::start(
        &loopback(),
        Serving {
            service: echo.clone(),
            ..serving()
        },
    )
    .await;
    let link = dial(&server.endpoint).await;
    let calling = {
        let link = Arc::clone(&link);
        tokio::spawn(async move { link.call(Bytes::from_static(b"60000"), soon()).await })
    };
    link.call(Bytes::from_static(b"it is there"), soon()).await.unwrap();
    link.close();
    let error = timeout(Duration::from_secs(5), calling)
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(&error, LinkError::Closed { reason } if reason.contains("this side")),
        "{error}"
    );
    eventually("the session closes", || echo.closed.lock().len() == 1).await;
}

/// Holds every call until it is let go, and counts.
struct Gate {
    running: AtomicUsize,
    most: AtomicUsize,
    open: Semaphore,
}

struct GateService(Arc<Gate>);

impl Service for GateService {
    fn call(&self, _session: Arc<Session>, _deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        let gate = Arc::clone(&self.0);
        Box::pin(async move {
            let running = gate.running.fetch_add(1, Ordering::SeqCst) + 1;
            gate.most.fetch_max(running, Ordering::SeqCst);
            gate.open.acquire().await.unwrap().forget();
            gate.running.fetch_sub(1, Ordering::SeqCst);
            request
        })
    }
}

#[tokio::test]
async fn calls_beyond_the_limit_wait_their_turn_inside_their_deadline() {
    let gate = Arc::new(Gate {
        running: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        open: Semaphore::new(0),
    });
    let service = Arc::new(GateService(Arc::clone(&gate)));
    let server = Server::start(&loopback(), Serving { service, ..serving() }).await;
    let link = dial(&server.endpoint).await;
    let calls: Vec<_> = (0..MAX_LINK_CALLS + 40)
        .map(|i| {
            let link = Arc::clone(&link);
            tokio::spawn(async move { link.call(Bytes::from(i.to_string()), soon()).await })
        })
        .collect();
    eventually("the limit is reached", || {
        gate.running.load(Ordering::SeqCst) == MAX_LINK_CALLS
    })
    .await;
    let error = link
        .call(Bytes::new(), Instant::now() + Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(error, LinkError::Deadline { .. }),
        "it waited for its turn: {error}"
    );
    gate.open.add_permits(MAX_LINK_CALLS + 40);
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().unwrap(), i.to_string());
    }
    assert_eq!(gate.most.load(Ordering::SeqCst), MAX_LINK_CALLS);
}

#[tokio::test]
async fn a_shutdown_is_announced_and_lets_running_calls_finish() {
    let echo = Arc::new(Echo::default());
    let server = Server::start(
        &loopback(),
        Serving {
            service: echo.clone(),
            ..serving()
        },
    )
    .await;
    let link = dial(&server.endpoint).await;
    let running = {
        let link = Arc::clone(&link);
        tokio::spawn(async move { link.call(Bytes::from_static(b"300"), soon()).await })
    };
    link.call(Bytes::from_static(b"it is there"), soon()).await.unwrap();
    server.shutdown.send_replace(true);
    assert_eq!(running.await.unwrap().unwrap(), "300");
    assert!(link.closed().await.contains("shutting down"));
    timeout(SOON, server.task).await.unwrap().unwrap();
    assert_eq!(echo.closed.lock().len(), 1);
    let error = Link::dial(&server.endpoint, &client_identity(), &NoSecret, None, soon())
        .await
        .unwrap_err();
    assert!(matches!(error, LinkError::Connect { .. }), "{error}");
}

/// Passes bytes on both ways; flips one bit of what the acceptor says once `flip_after` bytes have passed.
async fn flipping_proxy(to: &Endpoint, flip_after: usize) -> Endpoint {
    let Endpoint::Tcp(to) = *to else {
        panic!("a TCP endpoint")
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (dialler, _) = listener.accept().await.unwrap();
        let (mut from_dialler, mut to_dialler) = dialler.into_split();
        let (mut from_server, mut to_server) = TcpStream::connect(to).await.unwrap().into_split();
        tokio::spawn(async move { _ = tokio::io::copy(&mut from_dialler, &mut to_server).await });
        let mut passed = 0;
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if (passed..passed + read).contains(&flip_after) {
                buffer[flip_after - passed] ^= 0x10;
            }
            passed += read;
            if to_dialler.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    });
    endpoint
}

#[tokio::test]
async fn a_flipped_bit_ends_the_link_and_reaches_no_caller() {
    let server = Server::start(&loopback(), serving()).await;
    // Beyond the handshake; inside the payload of the first answer.
    let endpoint = flipping_proxy(&server.endpoint, 1_000).await;
    let link = dial(&endpoint).await;
    let error = link.call(Bytes::from(vec![7; 4_096]), soon()).await.unwrap_err();
    assert!(
        matches!(&error, LinkError::Closed { reason } if reason.contains("damaged")),
        "{error}"
    );
}

#[tokio::test]
async fn a_link_is_silent_since_the_last_frame_that_came() {
    let server = Server::start(&loopback(), serving()).await;
    let link = dial(&server.endpoint).await;
    let asked_at = Instant::now();
    let late = link
        .call(Bytes::from_static(b"2000"), Instant::now() + Duration::from_millis(50))
        .await;
    assert!(matches!(late, Err(LinkError::Deadline { .. })), "{late:?}");
    assert!(link.is_silent_since(asked_at), "the answer has not come");
    link.call(Bytes::from_static(b"quick"), soon()).await.unwrap();
    assert!(!link.is_silent_since(asked_at));
}

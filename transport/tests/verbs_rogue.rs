//! Peers that keep to nothing, and what they cost those that do; skipped where the environment names no devices. What rogues may write
//! to is in verbs_push.rs.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hosts::{Hosts, pattern, read_well};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::{SERVER, SESSION, Server, client_identity, eventually, loopback, serving, soon};
use tenon_transport::limits::{MAX_LINK_CALLS, VERBS_CONNECT_TIMEOUT, VERBS_PATHS_MAX, VERBS_SLICE_BYTES};
use tenon_transport::link::{BoxFuture, Identity, NoSecret, Service, Serving, Session};
use tenon_transport::verbs::engine::{OpenError, PushPolicy, RdmaConnection, Rogue};
use tenon_transport::{Memory, Op, Rights, SessionId, TransferError};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

async fn rogue(hosts: &Hosts, session: SessionId) -> Rogue {
    let identity = Identity {
        session,
        ..client_identity()
    };
    Rogue::connect(&hosts.ours, &hosts.server.endpoint, &identity, &NoSecret, soon()).await
}

/// What is answered to a request, if anything is.
type Answer = dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync;

/// An owner of RDMA that says what it likes.
struct Liar {
    says: Box<Answer>,
}

impl Liar {
    fn new(says: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { says: Box::new(says) })
    }
}

impl Service for Liar {
    fn call(&self, _session: Arc<Session>, _deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        let said = (self.says)(&request);
        Box::pin(async move {
            match said {
                Some(answer) => answer.into(),
                None => std::future::pending().await,
            }
        })
    }
}

async fn open_to(hosts: &Hosts, liar: Arc<Liar>) -> Result<(), OpenError> {
    let serving = Serving {
        rdma: Some(liar),
        ..serving()
    };
    let server = Server::start(&loopback(), serving).await;
    let (endpoint, identity) = (&server.endpoint, client_identity());
    let opened = RdmaConnection::open(&hosts.ours, endpoint, &identity, &NoSecret, Some(SERVER), soon()).await;
    opened.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_answers_or_answers_nonsense_costs_a_bounded_time_and_no_queue_pair() {
    let Some(hosts) = Hosts::new(1).await else { return };
    drop(hosts.open(SESSION).await.unwrap());
    let before = hosts::settled_resources().await;
    let started = Instant::now();
    let opened = open_to(&hosts, Liar::new(|_| None)).await;
    assert!(matches!(opened, Err(OpenError::NoPath { .. })), "{opened:?}");
    assert!(
        started.elapsed() < VERBS_CONNECT_TIMEOUT + Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );

    // Anything behind the first byte that makes it an answer to that question: counts, numbers, addresses, keys.
    let random = Mutex::new(StdRng::seed_from_u64(7603));
    let nonsense = Liar::new(move |request| {
        let mut random = random.lock();
        let len = random.random_range(0..120);
        let mut answer = vec![request[0]];
        answer.extend((0..len).map(|_| random.random::<u8>()));
        Some(answer)
    });
    for _ in 0..20 {
        let opened = open_to(&hosts, Arc::clone(&nonsense)).await;
        assert!(matches!(opened, Err(OpenError::NoPath { .. })), "{opened:?}");
    }
    hosts::are_again(&before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_on_the_link_ends_nothing_and_leaves_nothing() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let (_owner, key) = hosts.export(pattern(100_000), Rights::Read);
    drop(hosts.open(SESSION).await.unwrap());
    let before = hosts::settled_resources().await;
    let honest = hosts.open(SESSION).await.unwrap();
    let writer = rogue(&hosts, SessionId([2; 16])).await;
    let mut random = StdRng::seed_from_u64(7604);
    for round in 0..400_u32 {
        let len = random.random_range(0..200);
        let mut bytes: Vec<u8> = (0..len).map(|_| random.random()).collect();
        // Every kind of question in turn, and what is none.
        if let Some(first) = bytes.first_mut() {
            *first = u8::try_from(round % 11).unwrap();
        }
        // Nobody waits for what is answered late on purpose.
        let deadline = Instant::now() + Duration::from_millis(20);
        writer.say(&bytes, deadline).await;
    }
    read_well(&honest, key, 100_000).await;
    let (sink, write_key) = hosts.export(vec![0; 100_000], Rights::Write);
    let from = Arc::new(Memory::from_vec(pattern(100_000))).whole();
    let batch = vec![hosts::transfer(Op::Write, write_key, &from)];
    assert!(honest.submit(batch, soon()).await[0].is_ok());
    assert!(sink.to_vec() == pattern(100_000));
    drop((honest, writer));
    hosts::are_again(&before).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_peer_takes_no_more_queue_pairs_than_its_paths_however_often_it_asks() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let greedy = rogue(&hosts, SessionId([2; 16])).await;
    let mut taken = 0;
    for number in 0..=u8::MAX {
        taken += usize::from(greedy.takes_path(number, soon()).await);
    }
    assert_eq!(taken, VERBS_PATHS_MAX);
    let taken = hosts::settled_resources().await;
    // At once, and over and over.
    for _ in 0..4 {
        let asks = (0..32_u8).map(|number| greedy.takes_path(number % 16, soon()));
        join_all(asks).await;
    }
    hosts::are_again(&taken).await;
    let (_owner, key) = hosts.export(pattern(100_000), Rights::Read);
    let honest = hosts.open(SESSION).await.unwrap();
    read_well(&honest, key, 100_000).await;
    drop((greedy, honest));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_answer_nobody_waits_for_are_worked_on_in_bounded_number() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let flood = rogue(&hosts, SessionId([2; 16])).await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..10 {
        join_all((0..MAX_LINK_CALLS).map(|_| listen_in_vain(&flood))).await;
    }
    let most = before + 2 * MAX_LINK_CALLS + 50;
    assert!(tasks() < most, "{} tasks, {before} before", tasks());
    let (_owner, key) = hosts.export(pattern(100_000), Rights::Read);
    let honest = hosts.open(SESSION).await.unwrap();
    read_well(&honest, key, 100_000).await;
    drop(flood);
    eventually("they end with the link", || tasks() < before + 50).await;
}

/// A call that is worked on for half a minute, and waited for less.
async fn listen_in_vain(flood: &Rogue) {
    let deadline = Instant::now() + Duration::from_millis(30);
    flood.say(&Rogue::listening(), deadline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_answers_at_once_and_again_is_not_asked_without_end() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let (real, listening) = (hosts.target.clone(), Rogue::listening());
    let asked = Arc::new(Mutex::new(0_usize));
    let hasty = Hasty {
        real,
        listening,
        asked: Arc::clone(&asked),
    };
    let serving = Serving {
        exports: Arc::clone(&hosts.exports),
        rdma: Some(Arc::new(hasty)),
        ..serving()
    };
    let server = Server::start(&loopback(), serving).await;
    let (endpoint, identity) = (&server.endpoint, client_identity());
    let opened = RdmaConnection::open(&hosts.ours, endpoint, &identity, &NoSecret, Some(SERVER), soon()).await;
    let connection = opened.unwrap();
    sleep(Duration::from_secs(1)).await;
    let asked = *asked.lock();
    assert!((1..=25).contains(&asked), "asked {asked} times in a second");
    drop(connection);
}

/// The real target, which answers who listens at once that there is nothing.
struct Hasty {
    real: Arc<dyn Service>,
    listening: Vec<u8>,
    asked: Arc<Mutex<usize>>,
}

impl Service for Hasty {
    fn call(&self, session: Arc<Session>, deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        if request[..] == self.listening[..] {
            *self.asked.lock() += 1;
            // No paths, for no time, and no keys.
            let mut nothing = self.listening.clone();
            nothing.extend([0; 7]);
            return Box::pin(async move { nothing.into() });
        }
        self.real.call(session, deadline, request)
    }

    fn session_opened(&self, session: &Arc<Session>) {
        self.real.session_opened(session);
    }

    fn session_closed(&self, session: &Arc<Session>) {
        self.real.session_closed(session);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_is_given_for_more_than_a_slice_nor_twice_taken_back() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let len = usize::try_from(VERBS_SLICE_BYTES).unwrap() + 1;
    let (_sink, key) = hosts.export(vec![0; len], Rights::Write);
    let writer = rogue(&hosts, SESSION).await;
    for len_bytes in [0, VERBS_SLICE_BYTES + 1, u64::MAX] {
        let granted = writer.grant(key, 0, len_bytes, soon()).await;
        assert!(
            matches!(granted, Err(TransferError::Refused { .. })),
            "{len_bytes}: {granted:?}"
        );
    }
    let grant = writer.grant(key, 1, VERBS_SLICE_BYTES, soon()).await.unwrap().unwrap();
    assert!(writer.settle(grant, true, soon()).await.unwrap().is_some());
    assert_eq!(writer.settle(grant, true, soon()).await, Ok(None), "it was settled");
}

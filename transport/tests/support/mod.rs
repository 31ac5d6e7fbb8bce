//! What the tests of this crate share: identities, a service that echoes, and a listener that runs until dropped.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

pub mod proxy;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tenon_transport::link::{
    Admission, AdmitAll, Authenticator, BoxFuture, Endpoint, Hello, Identity, LinkError, Listener, ListenerOptions,
    NoSecret, Refusal, Role, Service, Serving, Session,
};
use tenon_transport::tcp::TcpOptions;
use tenon_transport::{ClusterId, Connection, Exports, Memory, PeerId, SessionId, Slice, Transfer, TransferResult};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

pub const CLUSTER: ClusterId = ClusterId([0xc1; 16]);
pub const SERVER: PeerId = PeerId([0x5e; 16]);
pub const CLIENT: PeerId = PeerId([0xc0; 16]);
pub const SESSION: SessionId = SessionId([0x51; 16]);
pub const SECRET: &[u8] = b"a secret of some length";

/// No test waits longer than this for something that should happen.
pub const SOON: Duration = Duration::from_secs(20);

pub fn soon() -> Instant {
    Instant::now() + SOON
}

pub fn server_identity() -> Identity {
    Identity {
        cluster: CLUSTER,
        role: Role::Member,
        peer: SERVER,
        incarnation: 7,
        session: SessionId([0; 16]),
        features: 0b101,
        context: [8; 32],
    }
}

pub fn client_identity() -> Identity {
    Identity {
        cluster: CLUSTER,
        role: Role::Client,
        peer: CLIENT,
        incarnation: 3,
        session: SESSION,
        features: 0b011,
        context: [9; 32],
    }
}

/// A TCP endpoint on loopback with a port that the system chooses.
pub fn loopback() -> Endpoint {
    "127.0.0.1:0".parse().unwrap()
}

/// A unix endpoint that no other test uses.
pub fn unix(name: &str) -> Endpoint {
    Endpoint::Unix(std::env::temp_dir().join(format!("tenon-{}-{name}.sock", std::process::id())))
}

/// Answers with the request. A request of digits alone is answered after so many milliseconds.
#[derive(Default)]
pub struct Echo {
    pub opened: Mutex<Vec<Arc<Session>>>,
    pub closed: Mutex<Vec<Arc<Session>>>,
}

impl Service for Echo {
    fn call(&self, _session: Arc<Session>, _deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(async move {
            assert!(&request[..] != b"panic", "asked to");
            if let Some(delay_ms) = std::str::from_utf8(&request).ok().and_then(|text| text.parse().ok()) {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            if &request[..] == b"too much" {
                Bytes::from(vec![0; 5 << 20])
            } else {
                request
            }
        })
    }

    fn session_opened(&self, session: &Arc<Session>) {
        self.opened.lock().push(Arc::clone(session));
    }

    fn session_closed(&self, session: &Arc<Session>) {
        self.closed.lock().push(Arc::clone(session));
    }
}

/// Admits all, and keeps the names of the errors of failed handshakes.
#[derive(Default)]
pub struct Witness {
    pub errors: Mutex<Vec<String>>,
    pub refusal: Option<Refusal>,
}

impl Admission for Witness {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        self.refusal.clone().map_or(Ok(()), Err)
    }

    fn handshake_failed(&self, _from: &Endpoint, error: &LinkError) {
        self.errors.lock().push(format!("{error:?}"));
    }
}

/// What a test's listener serves with; change what matters.
pub fn serving() -> Serving {
    Serving {
        identity: Arc::new(server_identity()),
        auth: Arc::new(NoSecret),
        admission: Arc::new(AdmitAll),
        service: Arc::new(Echo::default()),
        exports: Arc::new(Exports::new()),
        rdma: None,
        data_runtime: Handle::current(),
    }
}

/// A listener that serves in the background until this is dropped.
pub struct Server {
    pub endpoint: Endpoint,
    pub shutdown: watch::Sender<bool>,
    pub task: JoinHandle<()>,
}

impl Server {
    pub async fn start(endpoint: &Endpoint, serving: Serving) -> Self {
        Self::start_with(endpoint, serving, ListenerOptions::default()).await
    }

    pub async fn start_with(endpoint: &Endpoint, serving: Serving, options: ListenerOptions) -> Self {
        let listener = Listener::bind_with(endpoint, options).await.unwrap();
        let endpoint = listener.local_endpoint().clone();
        let (shutdown, receiver) = watch::channel(false);
        Self {
            endpoint,
            shutdown,
            task: tokio::spawn(listener.serve(serving, receiver)),
        }
    }

    pub async fn with_auth(auth: impl Authenticator + 'static) -> Self {
        Self::start(
            &loopback(),
            Serving {
                auth: Arc::new(auth),
                ..serving()
            },
        )
        .await
    }
}

/// Waits until `done`, or fails.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline, "{what}: did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Private memory to read into or write from.
pub fn local(len: usize) -> Slice {
    Arc::new(Memory::from_vec(vec![0xab; len])).whole()
}

pub fn one_lane() -> TcpOptions {
    TcpOptions {
        lanes: 1,
        ..TcpOptions::default()
    }
}

/// Submits one transfer and waits for it.
pub async fn one(connection: &Arc<dyn Connection>, transfer: Transfer) -> TransferResult {
    timeout(SOON, connection.submit(vec![transfer], soon()))
        .await
        .unwrap()
        .remove(0)
}

//! Two hosts in one process, on the devices that the environment names, and small things to do between them.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tenon_transport::conformance::{Fixture, export_guarded};
use tenon_transport::link::{Identity, NoSecret, Serving};
use tenon_transport::verbs::engine::{OpenError, PushPolicy, Rails, RailsOptions, RdmaConnection, RdmaTarget};
use tenon_transport::{
    Connection, Exports, Guard, Memory, Op, RemoteKey, Rights, SessionId, Slice, Transfer, Unguarded,
};
use tokio::runtime::Handle;

use crate::devices;
use crate::support::{CLUSTER, SERVER, Server, client_identity, loopback, serving, soon};

/// Two hosts with a rail or two between them.
pub struct Hosts {
    pub ours: Arc<Rails>,
    pub theirs: Arc<Rails>,
    pub server: Server,
    pub target: Arc<RdmaTarget>,
    pub exports: Arc<Exports>,
}

/// What a host has: every second of the named devices, from the first or from the second on.
pub fn devices_of(is_server: bool, rails_max: usize) -> Option<RailsOptions> {
    let named = devices::named_devices()?;
    let own = named
        .into_iter()
        .skip(usize::from(is_server))
        .step_by(2)
        .take(rails_max);
    Some(RailsOptions {
        devices: Some(own.map(|named| named.device).collect()),
        ..RailsOptions::default()
    })
}

impl Hosts {
    pub async fn new(rails_max: usize) -> Option<Self> {
        Some(Self::with(devices_of(false, rails_max)?, devices_of(true, rails_max)?).await)
    }

    /// Hosts of which the server, theirs, lets its peers write so.
    pub async fn pushing(rails_max: usize, push: PushPolicy) -> Option<Self> {
        let theirs = RailsOptions {
            push,
            ..devices_of(true, rails_max)?
        };
        Some(Self::with(devices_of(false, rails_max)?, theirs).await)
    }

    pub async fn with(ours: RailsOptions, theirs: RailsOptions) -> Self {
        let [ours, theirs] = [ours, theirs].map(|options| Rails::open(options, &Handle::current()).unwrap());
        let exports = Arc::new(Exports::new());
        let target = RdmaTarget::new(Arc::clone(&theirs), Arc::clone(&exports), Handle::current()).unwrap();
        let target = Arc::new(target);
        let serving = Serving {
            exports: Arc::clone(&exports),
            rdma: Some(Arc::clone(&target) as _),
            ..serving()
        };
        let server = Server::start(&loopback(), serving).await;
        Self {
            ours,
            theirs,
            server,
            target,
            exports,
        }
    }

    pub async fn open(&self, session: SessionId) -> Result<Arc<dyn Connection>, OpenError> {
        let identity = Identity {
            session,
            cluster: CLUSTER,
            ..client_identity()
        };
        let endpoint = &self.server.endpoint;
        RdmaConnection::open(&self.ours, endpoint, &identity, &NoSecret, Some(SERVER), soon()).await
    }

    pub fn export(&self, bytes: Vec<u8>, rights: Rights) -> (Slice, RemoteKey) {
        self.export_guarded(bytes, rights, Arc::new(Unguarded))
    }

    pub fn export_guarded(&self, bytes: Vec<u8>, rights: Rights, guard: Arc<dyn Guard>) -> (Slice, RemoteKey) {
        export_guarded(self, bytes, rights, guard)
    }
}

impl Fixture for Hosts {
    fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    async fn connect(&self, session: SessionId) -> Arc<dyn Connection> {
        self.open(session).await.unwrap()
    }
}

pub fn transfer(op: Op, key: RemoteKey, local: &Slice) -> Transfer {
    Transfer {
        op,
        key,
        remote_offset_bytes: 0,
        local: vec![local.clone()],
        group: 0,
    }
}

pub fn run(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).output().unwrap();
    assert!(output.status.success(), "{command} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Fills memory with one byte.
pub fn fill(slice: &Slice, byte: u8) {
    let len = usize::try_from(slice.len_bytes()).unwrap();
    slice.copy_in(0, &vec![byte; len]).unwrap();
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 7 + at / 251) % 256).to_le_bytes()[0])
        .collect()
}

/// Takes the link of A's first rail down or up.
pub async fn set_link(state: &'static str) {
    let set = tokio::task::spawn_blocking(move || run("ip", &["link", "set", "rail1a", state]));
    set.await.unwrap();
}

pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = soon();
    while !is_so() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub fn paths_up(connection: &Arc<dyn Connection>) -> usize {
    let shown = format!("{connection:?}");
    let (_, rest) = shown.split_once("paths_up: ").unwrap();
    rest.split_once(',').unwrap().0.parse().unwrap()
}

/// Reads an export whose bytes are a pattern.
pub async fn read_well(connection: &Arc<dyn Connection>, key: RemoteKey, len: usize) {
    let into = Arc::new(Memory::from_vec(vec![0; len])).whole();
    let results = connection.submit(vec![transfer(Op::Read, key, &into)], soon()).await;
    assert_eq!(results[0].as_ref().unwrap().bytes, len as u64);
    assert!(into.to_vec() == pattern(len));
}

pub fn is_native() -> bool {
    std::env::var("TENON_RDMA").is_ok_and(|value| value == "native")
}

/// Queue pairs, regions and completion queues, as the kernel counts them.
pub fn resources() -> String {
    run("rdma", &["resource"])
}

/// What it counts once that does not change any more.
pub async fn settled_resources() -> String {
    let mut last = resources();
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = resources();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// It counts what it did before, in time.
pub async fn are_again(before: &str) {
    let deadline = soon();
    let mut after = settled_resources().await;
    while after != before && tokio::time::Instant::now() < deadline {
        after = settled_resources().await;
    }
    assert_eq!(before, after);
}

//! The engine over RDMA, between two ends of one process on the devices that the environment names; skipped where it
//! names none.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
mod support;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use support::{CLUSTER, SERVER, SESSION, Server, client_identity, loopback, serving, soon};
use tenon_transport::conformance::{Fixture, one_sided_conformance};
use tenon_transport::link::{Identity, NoSecret, Serving};
use tenon_transport::verbs::engine::{OpenError, Rails, RailsOptions, RdmaConnection, RdmaTarget};
use tenon_transport::{
    Connection, Export, Exports, Memory, Op, RemoteKey, Rights, Scope, SessionId, Slice, Transfer, TransferError,
    Unguarded,
};
use tokio::runtime::Handle;

/// Two hosts with a rail or two between them.
struct Hosts {
    ours: Arc<Rails>,
    server: Server,
    exports: Arc<Exports>,
}

/// The rails of a host: it has every second of the named devices, from the first or from the second on.
fn rails(is_server: bool, rails_max: usize) -> Option<Arc<Rails>> {
    let named = devices::named_devices()?;
    let own = named
        .into_iter()
        .skip(usize::from(is_server))
        .step_by(2)
        .take(rails_max);
    let options = RailsOptions {
        devices: Some(own.map(|named| named.device).collect()),
        ..RailsOptions::default()
    };
    Some(Rails::open(options, &Handle::current()).unwrap())
}

impl Hosts {
    async fn new(rails_max: usize) -> Option<Self> {
        let (ours, theirs) = (rails(false, rails_max)?, rails(true, rails_max)?);
        let exports = Arc::new(Exports::new());
        let target = RdmaTarget::new(theirs, Arc::clone(&exports), Handle::current()).unwrap();
        let serving = Serving {
            exports: Arc::clone(&exports),
            rdma: Some(Arc::new(target)),
            ..serving()
        };
        let server = Server::start(&loopback(), serving).await;
        Some(Self { ours, server, exports })
    }

    async fn open(&self, session: SessionId) -> Result<Arc<dyn Connection>, OpenError> {
        let identity = Identity {
            session,
            cluster: CLUSTER,
            ..client_identity()
        };
        let endpoint = &self.server.endpoint;
        RdmaConnection::open(&self.ours, endpoint, &identity, &NoSecret, Some(SERVER), soon()).await
    }

    fn export(&self, bytes: Vec<u8>, rights: Rights) -> (Slice, RemoteKey) {
        let memory = Arc::new(Memory::from_vec(bytes)).whole();
        let export = Export {
            memory: memory.clone(),
            rights,
            scope: Scope::AnySession,
            guard: Arc::new(Unguarded),
        };
        (memory, self.exports.add(export).unwrap())
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

fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 7 + at / 251) % 256).to_le_bytes()[0])
        .collect()
}

fn transfer(op: Op, key: RemoteKey, local: &Slice) -> Transfer {
    Transfer {
        op,
        key,
        remote_offset_bytes: 0,
        local: vec![local.clone()],
        group: 0,
    }
}

fn run(command: &str, args: &[&str]) -> String {
    let output = Command::new(command).args(args).output().unwrap();
    assert!(output.status.success(), "{command} {args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_passes_the_suite_of_one_sided_engines() {
    let Some(hosts) = Hosts::new(1).await else { return };
    one_sided_conformance(&hosts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_go_over_both_rails_and_lose_nothing_when_one_goes_down_and_comes_back() {
    let Some(hosts) = Hosts::new(2).await else { return };
    let bytes = pattern(8 << 20);
    let (_owner, read_key) = hosts.export(bytes.clone(), Rights::Read);
    let (sink, write_key) = hosts.export(vec![0; 8 << 20], Rights::Write);
    let connection = hosts.open(SESSION).await.unwrap();
    assert!(format!("{connection:?}").contains("paths_up: 2"), "{connection:?}");
    for state in ["up", "down", "up"] {
        let set = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(30));
            run("ip", &["link", "set", "rail1a", state])
        });
        for _ in 0..3 {
            let (into, from) = (
                Arc::new(Memory::from_vec(vec![0; 8 << 20])).whole(),
                Arc::new(Memory::from_vec(bytes.clone())).whole(),
            );
            let batch = vec![
                transfer(Op::Read, read_key, &into),
                transfer(Op::Write, write_key, &from),
            ];
            for result in connection.submit(batch, soon()).await {
                assert_eq!(result.unwrap().bytes, 8 << 20, "rail 1 goes {state}");
            }
            assert!(into.to_vec() == bytes && sink.to_vec() == bytes);
            sink.copy_in(0, &vec![0; 8 << 20]).unwrap();
        }
        set.await.unwrap();
        if state == "down" {
            assert!(format!("{connection:?}").contains("paths_up: 1"), "{connection:?}");
        }
    }
    let deadline = soon();
    while !format!("{connection:?}").contains("paths_up: 2") {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the rail comes back: {connection:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_without_rails_is_told_apart_and_one_that_goes_ends_its_transfers() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let plain = Server::start(&loopback(), serving()).await;
    let endpoint = &plain.endpoint;
    let opened = RdmaConnection::open(
        &hosts.ours,
        endpoint,
        &client_identity(),
        &NoSecret,
        Some(SERVER),
        soon(),
    )
    .await;
    assert!(opened.unwrap_err().to_string().contains("no RDMA device"));

    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    let connection = hosts.open(SESSION).await.unwrap();
    let into = Arc::new(Memory::from_vec(vec![0; 1 << 20])).whole();
    let read = || vec![transfer(Op::Read, key, &into)];
    assert!(connection.submit(read(), soon()).await[0].is_ok());
    drop(hosts.server);
    let deadline = soon();
    while !connection.is_closed() {
        assert!(tokio::time::Instant::now() < deadline, "the connection notices");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let results = connection.submit(read(), soon()).await;
    assert!(
        matches!(results[0], Err(TransferError::Disconnected { .. })),
        "{results:?}"
    );
}

/// Queue pairs, regions and completion queues, as the kernel counts them.
fn counts() -> String {
    run("rdma", &["resource"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_failures_leave_nothing_behind() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    drop(hosts.open(SESSION).await.unwrap());
    let settled = async || {
        let mut last = counts();
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = counts();
            if now == last {
                return now;
            }
            last = now;
        }
    };
    let before = settled().await;
    let mut failed = 0;
    while failed < 1_000 {
        let connection = hosts.open(SESSION).await.unwrap();
        let into = Arc::new(Memory::from_vec(vec![0; 1 << 20])).whole();
        for round in 0..50 {
            let deadline = tokio::time::Instant::now() + Duration::from_micros(100 * (round % 10));
            let results = connection.submit(vec![transfer(Op::Read, key, &into)], deadline).await;
            failed += u64::from(results[0].is_err());
        }
        let in_full = connection.submit(vec![transfer(Op::Read, key, &into)], soon()).await;
        assert!(in_full[0].is_ok(), "{in_full:?}");
        assert!(into.to_vec() == pattern(1 << 20));
    }
    let mut after = settled().await;
    let deadline = soon();
    while after != before && tokio::time::Instant::now() < deadline {
        after = settled().await;
    }
    assert_eq!(before, after);
    assert_eq!(tenon_transport::verbs::failed_releases(), 0);
}

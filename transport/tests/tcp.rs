//! What the tcp engine does when the network or the peer misbehaves.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::proxy::Proxy;
use support::*;
use tenon_transport::link::{Identity, ListenerOptions, NoSecret, Serving};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::{
    Connection, Export, Exports, Guard, Hold, Memory, Op, PeerId, Refused, RemoteKey, Rights, Scope, Slice, Transfer,
    TransferError, checksum,
};
use tokio::time::Instant;

const MIB: usize = 1 << 20;
/// Enough bytes for the handshake to pass, and no data frame of a mebibyte.
const IN_THE_FIRST_FRAME: u64 = 500_000;

/// Counts holds that are out and frames that were written.
#[derive(Default)]
struct Holds {
    out: Arc<AtomicUsize>,
    begun: AtomicUsize,
    wrote: AtomicUsize,
}

impl Holds {
    fn hold(&self) -> Hold {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.out.fetch_add(1, Ordering::SeqCst);
        let out = Arc::clone(&self.out);
        Hold::with_release(5, move || _ = out.fetch_sub(1, Ordering::SeqCst))
    }

    fn out(&self) -> usize {
        self.out.load(Ordering::SeqCst)
    }
}

impl Guard for Holds {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.hold())
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.hold())
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {
        self.wrote.fetch_add(1, Ordering::SeqCst);
    }
}

/// A listener behind a proxy, with one export in each direction.
struct Scene {
    server: Server,
    exports: Arc<Exports>,
    proxy: Proxy,
    owner: Slice,
    read_key: RemoteKey,
    write_key: RemoteKey,
    holds: Arc<Holds>,
}

const OWNER_BYTES: usize = 32 * MIB;

impl Scene {
    async fn new(listener_progress: Duration) -> Self {
        let exports = Arc::new(Exports::new());
        let options = ListenerOptions {
            progress_timeout: listener_progress,
            ..ListenerOptions::default()
        };
        let serving = Serving {
            exports: Arc::clone(&exports),
            ..serving()
        };
        let server = Server::start_with(&loopback(), serving, options).await;
        let proxy = Proxy::start(&server.endpoint).await;
        let bytes: Vec<u8> = (0..OWNER_BYTES)
            .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
            .collect();
        let owner = Arc::new(Memory::from_vec(bytes)).whole();
        let holds = Arc::new(Holds::default());
        let export = |rights| Export {
            memory: owner.clone(),
            rights,
            scope: Scope::AnySession,
            guard: holds.clone(),
        };
        let read_key = exports.add(export(Rights::Read)).unwrap();
        let write_key = exports.add(export(Rights::Write)).unwrap();
        Self {
            server,
            exports,
            proxy,
            owner,
            read_key,
            write_key,
            holds,
        }
    }

    async fn connect(&self, options: TcpOptions) -> Arc<dyn Connection> {
        let identity = client_identity();
        TcpConnection::open(
            &self.proxy.endpoint,
            &identity,
            Arc::new(NoSecret),
            None,
            options,
            soon(),
        )
        .await
        .unwrap()
    }

    fn read(&self, into: &Slice) -> Transfer {
        Transfer {
            op: Op::Read,
            key: self.read_key,
            remote_offset_bytes: 0,
            local: vec![into.clone()],
            group: 0,
        }
    }

    fn write(&self, from: &Slice) -> Transfer {
        Transfer {
            op: Op::Write,
            key: self.write_key,
            remote_offset_bytes: 0,
            local: vec![from.clone()],
            group: 0,
        }
    }
}

/// Repeats a small read until the lanes are back.
async fn recovers(scene: &Scene, connection: &Arc<dyn Connection>) {
    let deadline = soon();
    while let Err(error) = one(connection, scene.read(&local(100))).await {
        assert!(matches!(error, TransferError::Disconnected { .. }), "{error}");
        assert!(Instant::now() < deadline, "the lanes do not come back: {error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_flipped_bit_of_a_payload_shows_in_the_checksum() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.down.flip(IN_THE_FIRST_FRAME);
    let into = local(2 * MIB);
    let done = one(&connection, scene.read(&into)).await.unwrap();
    let sent = checksum::crc64(&scene.owner.to_vec()[..2 * MIB]);
    assert_ne!(done.crc64, Some(sent));
    assert_eq!(done.crc64, Some(into.crc64()), "it is the checksum of what landed");

    scene.proxy.up.flip(IN_THE_FIRST_FRAME);
    let from = local(2 * MIB);
    let done = one(&connection, scene.write(&from)).await.unwrap();
    assert_ne!(done.crc64, Some(from.crc64()));
    assert_eq!(done.crc64, Some(checksum::crc64(&scene.owner.to_vec()[..2 * MIB])));
}

#[tokio::test]
async fn a_flipped_bit_of_a_header_costs_the_lane_and_delivers_nothing() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    let handshake_bytes = scene.proxy.down.passed.load(Ordering::SeqCst);
    scene.proxy.down.flip(handshake_bytes + 20);
    let error = one(&connection, scene.read(&local(MIB))).await.unwrap_err();
    assert!(
        matches!(&error, TransferError::Disconnected { reason } if reason.contains("damaged")),
        "{error}"
    );
    recovers(&scene, &connection).await;
}

#[tokio::test]
async fn a_deadline_leaves_the_connection_and_late_bytes_go_nowhere() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let into = local(8 * MIB);
    let begun = Instant::now();
    let results = connection
        .submit(vec![scene.read(&into)], begun + Duration::from_millis(200))
        .await;
    assert!(
        matches!(results[0], Err(TransferError::Deadline { moved_bytes: 0, .. })),
        "{results:?}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
    into.copy_in(0, &vec![0xcd; 8 * MIB]).unwrap();
    scene.proxy.down.allow_all();
    let other = local(3 * MIB);
    assert!(
        one(&connection, scene.read(&other)).await.is_ok(),
        "the same lane goes on"
    );
    assert!(
        into.to_vec().iter().all(|byte| *byte == 0xcd),
        "late bytes are thrown away"
    );
    assert!(other.to_vec() == scene.owner.to_vec()[..3 * MIB]);
    eventually("holds are given back", || scene.holds.out() == 0).await;
}

#[tokio::test]
async fn a_cancelled_read_stops_at_the_owner() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let batch: Vec<Transfer> = (0..100).map(|_| scene.read(&local(OWNER_BYTES))).collect();
    let brief = Instant::now() + Duration::from_millis(200);
    let results = connection.submit(batch, brief).await;
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(TransferError::Deadline { .. })))
    );
    scene.proxy.down.allow_all();
    assert!(one(&connection, scene.read(&local(100))).await.is_ok());
    let passed = scene.proxy.down.passed.load(Ordering::SeqCst);
    assert!(
        passed < 40 * MIB as u64,
        "{passed} bytes of a cancelled batch of 3.2 GB passed"
    );
}

#[tokio::test]
async fn a_peer_that_stops_sending_costs_the_progress_timeout_once() {
    let scene = Scene::new(SOON).await;
    let progress_timeout = Duration::from_millis(400);
    let connection = scene
        .connect(TcpOptions {
            progress_timeout,
            ..one_lane()
        })
        .await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let begun = Instant::now();
    let error = one(&connection, scene.read(&local(8 * MIB))).await.unwrap_err();
    assert!(
        matches!(&error, TransferError::Disconnected { reason } if reason.contains("no byte moved")),
        "{error}"
    );
    assert!(
        (progress_timeout..Duration::from_secs(8)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    let error = one(&connection, scene.read(&local(100))).await.unwrap_err();
    assert!(matches!(error, TransferError::Disconnected { .. }), "{error}");
    assert!(
        begun.elapsed() < progress_timeout,
        "the next request does not wait for it again"
    );
    assert!(!connection.is_closed());
    scene.proxy.down.allow_all();
    recovers(&scene, &connection).await;
}

#[tokio::test]
async fn a_peer_that_stops_reading_costs_the_progress_timeout() {
    let scene = Scene::new(SOON).await;
    let progress_timeout = Duration::from_millis(400);
    let connection = scene
        .connect(TcpOptions {
            progress_timeout,
            ..one_lane()
        })
        .await;
    scene.proxy.up.allow(IN_THE_FIRST_FRAME);
    let error = one(&connection, scene.write(&local(OWNER_BYTES))).await.unwrap_err();
    assert!(
        matches!(&error, TransferError::Disconnected { reason } if reason.contains("no byte moved")),
        "{error}"
    );
    scene.proxy.up.allow_all();
    recovers(&scene, &connection).await;
}

#[tokio::test]
async fn an_idle_lane_outlives_the_progress_timeout() {
    let scene = Scene::new(Duration::from_millis(100)).await;
    let connection = scene
        .connect(TcpOptions {
            progress_timeout: Duration::from_millis(100),
            ..one_lane()
        })
        .await;
    let before = scene.proxy.down.passed.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(one(&connection, scene.read(&local(100))).await.is_ok());
    let passed = scene.proxy.down.passed.load(Ordering::SeqCst) - before;
    assert!(passed < 300, "no second handshake among {passed} bytes");
}

#[tokio::test]
async fn the_owner_gives_up_an_initiator_that_stops_in_the_middle_of_a_write() {
    let scene = Scene::new(Duration::from_millis(300)).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.up.allow(IN_THE_FIRST_FRAME);
    let writing = {
        let (connection, transfer) = (Arc::clone(&connection), scene.write(&local(MIB)));
        tokio::spawn(async move { one(&connection, transfer).await })
    };
    eventually("the write begins", || scene.holds.out() == 1).await;
    eventually("its hold is given back", || scene.holds.out() == 0).await;
    assert_eq!(
        scene.holds.wrote.load(Ordering::SeqCst),
        0,
        "half a frame is not told as written"
    );
    let error = writing.await.unwrap().unwrap_err();
    assert!(matches!(error, TransferError::Disconnected { .. }), "{error}");
}

#[tokio::test]
async fn the_owner_gives_up_an_initiator_that_stops_reading() {
    let scene = Scene::new(Duration::from_millis(300)).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let reading = {
        let (connection, transfer) = (Arc::clone(&connection), scene.read(&local(OWNER_BYTES)));
        tokio::spawn(async move { one(&connection, Transfer { group: 1, ..transfer }).await })
    };
    eventually("the read begins", || scene.holds.out() == 1).await;
    eventually("its hold is given back", || scene.holds.out() == 0).await;
    scene.proxy.down.allow_all();
    let error = reading.await.unwrap().unwrap_err();
    assert!(matches!(error, TransferError::Disconnected { .. }), "{error}");
}

#[tokio::test]
async fn revoking_in_the_middle_of_a_write_keeps_late_bytes_out() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.up.allow(IN_THE_FIRST_FRAME);
    let writing = {
        let (connection, transfer) = (Arc::clone(&connection), scene.write(&local(4 * MIB)));
        tokio::spawn(async move { one(&connection, transfer).await })
    };
    eventually("some bytes land", || {
        scene.owner.subslice(0..100).unwrap().to_vec() == [0xab; 100]
    })
    .await;
    assert!(scene.exports.revoke(scene.write_key));
    let fresh = vec![0x11; OWNER_BYTES];
    scene.owner.copy_in(0, &fresh).unwrap();
    scene.proxy.up.allow_all();
    assert_eq!(writing.await.unwrap(), Err(TransferError::Revoked));
    assert!(
        scene.owner.to_vec() == fresh,
        "nothing landed after the export was revoked"
    );
    assert_eq!((scene.holds.out(), scene.holds.wrote.load(Ordering::SeqCst)), (0, 0));
    assert!(
        one(&connection, scene.read(&local(100))).await.is_ok(),
        "the same lane goes on"
    );
}

#[tokio::test]
async fn revoking_in_the_middle_of_a_read_fails_it_and_gives_its_hold_back() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(one_lane()).await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let reading = {
        let (connection, transfer) = (Arc::clone(&connection), scene.read(&local(OWNER_BYTES)));
        tokio::spawn(async move { one(&connection, Transfer { group: 1, ..transfer }).await })
    };
    eventually("the read begins", || scene.holds.out() == 1).await;
    assert!(scene.exports.revoke(scene.read_key));
    scene.proxy.down.allow_all();
    assert_eq!(reading.await.unwrap(), Err(TransferError::Revoked));
    eventually("its hold is given back", || scene.holds.out() == 0).await;
    assert!(
        one(&connection, scene.write(&local(100))).await.is_ok(),
        "the same lane goes on"
    );
}

#[tokio::test]
async fn a_cut_in_the_middle_fails_what_was_under_way_and_lanes_are_reopened() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(TcpOptions::default()).await;
    scene.proxy.down.allow(IN_THE_FIRST_FRAME);
    let submission = connection.submit(vec![scene.read(&local(8 * MIB)), scene.write(&local(MIB))], soon());
    let cutting = async {
        eventually("the reads begin", || scene.holds.begun.load(Ordering::SeqCst) > 0).await;
        scene.proxy.cut();
        scene.proxy.down.allow_all();
    };
    let (results, ()) = tokio::join!(submission, cutting);
    assert!(
        matches!(results[0], Err(TransferError::Disconnected { .. })),
        "{results:?}"
    );
    assert!(!connection.is_closed());
    recovers(&scene, &connection).await;
    eventually("holds are given back", || scene.holds.out() == 0).await;
}

#[tokio::test]
async fn a_restarted_owner_is_found_again_and_a_stranger_at_its_address_is_not_taken_for_it() {
    let scene = Scene::new(SOON).await;
    let connection = scene.connect(TcpOptions::default()).await;
    let address = scene.server.endpoint.clone();
    let Scene {
        server,
        exports,
        proxy,
        owner,
        read_key,
        write_key,
        holds,
    } = scene;
    server.shutdown.send_replace(true);
    server.task.await.unwrap();
    let again = Server::start(
        &address,
        Serving {
            exports: Arc::clone(&exports),
            ..serving()
        },
    )
    .await;
    let scene = Scene {
        server: again,
        exports,
        proxy,
        owner,
        read_key,
        write_key,
        holds,
    };
    recovers(&scene, &connection).await;

    let Scene { server, .. } = scene;
    server.shutdown.send_replace(true);
    server.task.await.unwrap();
    let stranger = Identity {
        peer: PeerId([0x99; 16]),
        ..server_identity()
    };
    let _stranger = Server::start(
        &address,
        Serving {
            identity: Arc::new(stranger),
            ..serving()
        },
    )
    .await;
    eventually("the connection is closed for good", || connection.is_closed()).await;
    let result = connection
        .submit(
            vec![Transfer {
                local: vec![local(1)],
                op: Op::Read,
                key: read_key,
                remote_offset_bytes: 0,
                group: 0,
            }],
            soon(),
        )
        .await
        .remove(0);
    assert!(
        matches!(&result, Err(TransferError::Disconnected { reason }) if reason.contains("expected peer")),
        "{result:?}"
    );
}

#[tokio::test]
async fn more_than_the_window_holds_passes_in_turns() {
    let scene = Scene::new(SOON).await;
    let connection = scene
        .connect(TcpOptions {
            lanes: 3,
            ..TcpOptions::default()
        })
        .await;
    let into = local(OWNER_BYTES);
    // 640 MiB in two submissions at once, with the same destination: only the accounting is looked at.
    let batch = || (0..10).map(|_| scene.read(&into)).collect::<Vec<_>>();
    let (first, second) = tokio::join!(connection.submit(batch(), soon()), connection.submit(batch(), soon()));
    let done = first
        .iter()
        .chain(&second)
        .filter(|result| result.as_ref().is_ok_and(|done| done.bytes == OWNER_BYTES as u64));
    assert_eq!(done.count(), 20);
}

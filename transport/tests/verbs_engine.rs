//! The engine over RDMA, between two ends of one process on the devices that the environment names; skipped where it
//! names none.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosts::{
    Hosts, are_again, devices_of, is_native, paths_up, pattern, read_well, run, settled_resources, transfer, until,
};
use support::{SERVER, SESSION, Server, client_identity, loopback, serving, soon};
use tenon_transport::conformance::one_sided_conformance;
use tenon_transport::link::NoSecret;
use tenon_transport::verbs::engine::{OpenError, PushPolicy, RdmaConnection};
use tenon_transport::verbs::{FailedReleases, failed_releases};
use tenon_transport::{Guard, Hold, Memory, Op, Refused, RemoteKey, Rights, SessionId, Slice, Transfer, TransferError};
use tokio::time::{Instant, sleep};

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
        assert!(Instant::now() < deadline, "the rail comes back: {connection:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// For what takes seconds on an emulated processor.
const LONG: Duration = Duration::from_secs(60);

/// So many transfers of an export as a whole into the same memory.
fn many(key: RemoteKey, into: &Slice, count: usize) -> Vec<Transfer> {
    vec![transfer(Op::Read, key, into); count]
}

fn paths_lost(hosts: &Hosts) -> u64 {
    hosts.ours.losses().paths.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_only_waits_for_its_turn_ends_alone_at_its_deadline() {
    const MIB: usize = 1 << 20;
    if is_native() {
        println!("skipped: real devices leave nothing waiting for so long");
        return;
    }
    let Some(hosts) = Hosts::new(1).await else { return };
    let (_owner, key) = hosts.export(pattern(MIB), Rights::Read);
    let memory = Arc::new(Memory::from_vec(vec![0; MIB]));
    let _registered = hosts.ours.register(&memory).unwrap();
    let connection = hosts.open(SESSION).await.unwrap();
    // What the path takes at once, and as many again that wait for their turn each.
    let batches = std::iter::once(128).chain([1; 128]);
    let others: Vec<_> = batches
        .map(|count| {
            let (connection, batch) = (Arc::clone(&connection), many(key, &memory.whole(), count));
            tokio::spawn(async move { connection.submit(batch, Instant::now() + LONG).await })
        })
        .collect();
    sleep(Duration::from_millis(100)).await;
    let late = Arc::new(Memory::from_vec(vec![0; MIB])).whole();
    let deadline = Instant::now() + Duration::from_millis(50);
    let late = connection.submit(many(key, &late, 1), deadline).await.remove(0);
    assert!(matches!(late, Err(TransferError::Deadline { .. })), "{late:?}");
    assert!(
        others.iter().any(|other| !other.is_finished()),
        "the path is full until here"
    );
    for other in others {
        assert!(other.await.unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(paths_lost(&hosts), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_comes_to_its_end_however_often_the_deadlines_of_others_end_its_path() {
    const MIB: usize = 1 << 20;
    const TIMES: u64 = 6;
    if is_native() {
        println!("skipped: real devices are done before any deadline");
        return;
    }
    let Some(hosts) = Hosts::new(1).await else { return };
    let bytes = pattern(120 * MIB);
    let (_owner, key) = hosts.export(bytes.clone(), Rights::Read);
    let memory = Arc::new(Memory::from_vec(vec![0; bytes.len()]));
    let _registered = hosts.ours.register(&memory).unwrap();
    let connection = hosts.open(SESSION).await.unwrap();
    let long = tokio::spawn({
        let (connection, batch) = (Arc::clone(&connection), many(key, &memory.whole(), 1));
        async move { connection.submit(batch, Instant::now() + LONG).await }
    });
    let short = Arc::new(Memory::from_vec(vec![0; MIB]));
    let _registered = hosts.ours.register(&short).unwrap();
    while paths_lost(&hosts) < TIMES {
        assert!(!long.is_finished(), "it is longer than all this takes");
        until("the path is there", || paths_up(&connection) == 1).await;
        // What is left of the long read is posted by then, and is more than lands before the deadline: it goes with the path.
        sleep(Duration::from_millis(10)).await;
        let deadline = Instant::now() + Duration::from_millis(20);
        _ = connection.submit(many(key, &short.whole(), 1), deadline).await;
    }
    assert_eq!(long.await.unwrap().remove(0).unwrap().bytes, bytes.len() as u64);
    assert!(memory.whole().to_vec() == bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_are_not_used_make_room_for_others_on_either_side_and_are_connected_again_when_wanted() {
    const ROOM: u32 = 3;
    for is_ours_small in [true, false] {
        let (Some(mut ours), Some(mut theirs)) = (devices_of(false, 1), devices_of(true, 1)) else {
            return;
        };
        let small = if is_ours_small { &mut ours } else { &mut theirs };
        small.queue_pairs_max = ROOM;
        let hosts = Hosts::with(ours, theirs).await;
        let (_owner, read_key) = hosts.export(pattern(100_000), Rights::Read);
        let (sink, write_key) = hosts.export(vec![0; 100_000], Rights::Write);
        let mut connections = Vec::new();
        for number in 0..=ROOM {
            // What was used a moment ago makes no room.
            sleep(Duration::from_millis(1_100)).await;
            let session = SessionId([u8::try_from(number + 1).unwrap(); 16]);
            let connection = hosts.open(session).await.unwrap();
            read_well(&connection, read_key, 100_000).await;
            connections.push(connection);
        }
        let up = connections.iter().map(paths_up).sum::<usize>();
        assert!(
            up <= ROOM as usize && paths_up(&connections[ROOM as usize]) == 1,
            "{up} paths are up"
        );
        for connection in &connections {
            sleep(Duration::from_millis(1_100)).await;
            let from = Arc::new(Memory::from_vec(pattern(100_000))).whole();
            let results = connection
                .submit(vec![transfer(Op::Write, write_key, &from)], soon())
                .await;
            assert!(results[0].is_ok(), "{results:?}");
            assert!(sink.to_vec() == pattern(100_000));
            read_well(connection, read_key, 100_000).await;
            sink.copy_in(0, &vec![0; 100_000]).unwrap();
        }
    }
}

/// Lets writes begin while it is open.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    is_waited_for: AtomicBool,
}

impl Gate {
    fn set_open(&self, is_open: bool) {
        self.is_waited_for.store(false, Ordering::SeqCst);
        self.is_open.store(is_open, Ordering::SeqCst);
    }
}

impl Guard for Gate {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        tokio::task::block_in_place(|| {
            // A test that fails opens it no more.
            let deadline = soon();
            while !self.is_open.load(Ordering::SeqCst) && Instant::now() < deadline {
                self.is_waited_for.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Ok(Hold::new(0))
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_over_which_a_peer_pulls_a_write_or_lets_it_in_is_not_closed_to_make_room() {
    for push in [PushPolicy::Off, PushPolicy::Trusted] {
        path_under_a_write_is_kept(push).await;
    }
}

async fn path_under_a_write_is_kept(push: PushPolicy) {
    let (Some(mut ours), Some(mut theirs)) = (devices_of(false, 1), devices_of(true, 1)) else {
        return;
    };
    (ours.queue_pairs_max, theirs.push) = (1, push);
    let hosts = Hosts::with(ours, theirs).await;
    let gate = Arc::new(Gate::default());
    let guard = Arc::clone(&gate);
    let (sink, key) = hosts.export_guarded(vec![0; 100_000], Rights::Write, guard);
    let connection = hosts.open(SESSION).await.unwrap();
    let from = Arc::new(Memory::from_vec(pattern(100_000))).whole();
    let writing = tokio::spawn(connection.submit(vec![transfer(Op::Write, key, &from)], soon()));
    until("the owner begins", || gate.is_waited_for.load(Ordering::SeqCst)).await;
    sleep(Duration::from_millis(1_100)).await;
    let other = SessionId([2; 16]);
    let refused = hosts.open(other).await;
    assert!(matches!(refused, Err(OpenError::NoPath { .. })), "{refused:?}");
    assert_eq!(paths_up(&connection), 1);
    gate.set_open(true);
    let results = writing.await.unwrap();
    assert!(results[0].is_ok(), "{results:?}");
    assert!(sink.to_vec() == pattern(100_000));
    // It makes room when nothing goes over it any more.
    sleep(Duration::from_millis(1_100)).await;
    hosts.open(other).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rails_that_are_full_are_waited_for_together() {
    let (Some(ours), Some(mut theirs)) = (devices_of(false, 2), devices_of(true, 2)) else {
        return;
    };
    theirs.queue_pairs_max = 1;
    let rails = theirs.devices.clone().unwrap();
    let hosts = Hosts::with(ours, theirs).await;
    let gate = Arc::new(Gate::default());
    let guard = Arc::clone(&gate);
    let (_sink, key) = hosts.export_guarded(vec![0; 100_000], Rights::Write, guard);
    let connection = hosts.open(SESSION).await.unwrap();
    let from = Arc::new(Memory::from_vec(pattern(100_000))).whole();
    // While it is written to, none of its paths makes room.
    let writing = tokio::spawn(connection.submit(vec![transfer(Op::Write, key, &from)], soon()));
    until("the owner begins", || gate.is_waited_for.load(Ordering::SeqCst)).await;
    let refused = hosts.open(SessionId([2; 16])).await.unwrap_err().to_string();
    // One after the other, they would take longer than connecting may.
    for rail in rails {
        assert!(refused.contains(&format!("{rail}:1: ")), "{refused}");
    }
    gate.set_open(true);
    assert!(writing.await.unwrap()[0].is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_ends_at_the_owner_alone_is_connected_again_for_whatever_comes_next() {
    for push in [PushPolicy::Off, PushPolicy::Trusted] {
        path_that_ended_at_the_owner_is_replaced(push).await;
    }
}

async fn path_that_ended_at_the_owner_is_replaced(push: PushPolicy) {
    let Some(hosts) = Hosts::pushing(1, push).await else {
        return;
    };
    let gate = Arc::new(Gate::default());
    let guard = Arc::clone(&gate);
    let (sink, key) = hosts.export_guarded(vec![0; 1 << 20], Rights::Write, guard);
    let connection = hosts.open(SESSION).await.unwrap();
    let from = Arc::new(Memory::from_vec(pattern(1 << 20))).whole();
    let write = || vec![transfer(Op::Write, key, &from)];
    for is_read_first in [false, true] {
        // The owner ends its path when it comes to read what it should have read before.
        gate.set_open(false);
        let deadline = Instant::now() + Duration::from_millis(500);
        let late = connection.submit(write(), deadline).await;
        assert!(matches!(late[0], Err(TransferError::Deadline { .. })), "{late:?}");
        until("the owner begins", || gate.is_waited_for.load(Ordering::SeqCst)).await;
        gate.set_open(true);
        let (_owner, read_key) = hosts.export(pattern(100_000), Rights::Read);
        if is_read_first {
            read_well(&connection, read_key, 100_000).await;
        }
        let results = connection.submit(write(), soon()).await;
        assert!(results[0].is_ok(), "{results:?}");
        assert!(sink.to_vec() == pattern(1 << 20));
        read_well(&connection, read_key, 100_000).await;
        sink.copy_in(0, &vec![0; 1 << 20]).unwrap();
    }
    assert!(!format!("{connection:?}").contains("paths_lost: 0"), "{connection:?}");
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
        assert!(Instant::now() < deadline, "the connection notices");
        sleep(Duration::from_millis(10)).await;
    }
    let results = connection.submit(read(), soon()).await;
    assert!(
        matches!(results[0], Err(TransferError::Disconnected { .. })),
        "{results:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_reads_into_memory_that_nobody_registered_give_the_slots_back_that_they_land_in() {
    let Some(hosts) = Hosts::new(1).await else { return };
    const READS: u64 = 600;
    let bytes = pattern(usize::try_from(READS).unwrap() * 64);
    let (_owner, key) = hosts.export(bytes.clone(), Rights::Read);
    let connection = hosts.open(SESSION).await.unwrap();
    let free = format!("free_slots: [{}]", tenon_transport::limits::VERBS_POOL_SLOTS);
    for round in 0..4 {
        let into = Arc::new(Memory::from_vec(vec![0; bytes.len()])).whole();
        let read = |at: u64| Transfer {
            remote_offset_bytes: at * 64,
            ..transfer(Op::Read, key, &into.subslice(at * 64..(at + 1) * 64).unwrap())
        };
        let reading = connection.submit((0..READS).map(read).collect(), soon());
        if round % 2 == 0 {
            for result in reading.await {
                result.unwrap();
            }
            assert!(into.to_vec() == bytes, "round {round}");
        } else {
            // Dropped while it is under way.
            let ended = tokio::time::timeout(Duration::from_millis(2), reading).await;
            assert!(ended.is_err(), "reads end in no time");
        }
    }
    until("all slots are given back", || {
        format!("{:?}", hosts.ours).contains(&free)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_whose_memory_is_not_exported_any_more_is_unknown_and_costs_others_nothing() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let (_gone, gone_key) = hosts.export(pattern(100_000), Rights::Read);
    let (_kept, kept_key) = hosts.export(pattern(1 << 20), Rights::Read);
    let connection = hosts.open(SESSION).await.unwrap();
    for (key, len) in [(gone_key, 100_000), (kept_key, 1 << 20)] {
        read_well(&connection, key, len).await;
    }
    // The connection knows where it lay, and reads there until it has forgotten that.
    assert!(hosts.exports.revoke(gone_key));
    let deadline = soon();
    let mut unknown = 0;
    while unknown < 3 {
        assert!(Instant::now() < deadline, "it is read without end");
        let into = [100_000, 1 << 20].map(|len| Arc::new(Memory::from_vec(vec![0; len])).whole());
        let batch = vec![
            transfer(Op::Read, gone_key, &into[0]),
            transfer(Op::Read, kept_key, &into[1]),
        ];
        let results = connection.submit(batch, soon()).await;
        assert!(results[1].is_ok(), "{results:?}");
        assert!(into[1].to_vec() == pattern(1 << 20));
        if results[0].is_ok() {
            assert!(unknown == 0 && into[0].to_vec() == pattern(100_000), "it was forgotten");
            continue;
        }
        assert_eq!(results[0], Err(TransferError::UnknownKey { key: gone_key }));
        unknown += 1;
    }
    assert_eq!(hosts.ours.losses().refused.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_failures_leave_nothing_behind() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let (_owner, key) = hosts.export(pattern(1 << 20), Rights::Read);
    drop(hosts.open(SESSION).await.unwrap());
    let before = settled_resources().await;
    let mut failed = 0;
    while failed < 1_000 {
        let connection = hosts.open(SESSION).await.unwrap();
        let into = Arc::new(Memory::from_vec(vec![0; 1 << 20])).whole();
        for round in 0..50 {
            let deadline = Instant::now() + Duration::from_micros(100 * (round % 10));
            let results = connection.submit(vec![transfer(Op::Read, key, &into)], deadline).await;
            failed += u64::from(results[0].is_err());
        }
        let in_full = connection.submit(vec![transfer(Op::Read, key, &into)], soon()).await;
        assert!(in_full[0].is_ok(), "{in_full:?}");
        assert!(into.to_vec() == pattern(1 << 20));
    }
    are_again(&before).await;
    assert_eq!(failed_releases(), FailedReleases::default());
}

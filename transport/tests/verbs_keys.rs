//! Keys to memory that its owner takes back, between two ends of one process on the devices that the environment names; skipped where it names none.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hosts::{Hosts, pattern, read_well, transfer, until};
use support::{SESSION, client_identity, soon};
use tenon_transport::limits::VERBS_FORGET_TIMEOUT;
use tenon_transport::link::{Identity, NoSecret};
use tenon_transport::verbs::Status;
use tenon_transport::verbs::engine::Rogue;
use tenon_transport::{Connection, Memory, Op, RemoteKey, Rights, SessionId, Slice, TransferError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const LEN: usize = 2 << 20;

/// Nobody but the test has the memory.
fn is_let_go(memory: &Slice) -> bool {
    Arc::strong_count(memory.memory()) == 1
}

/// No queue pair was ended because of a key that is not good any more, nor so that memory could go.
fn assert_no_path_is_lost_for_keys(hosts: &Hosts) {
    assert_eq!(hosts.ours.losses().refused.load(Ordering::SeqCst), 0);
    assert_eq!(hosts.theirs.losses().cut_off.load(Ordering::SeqCst), 0);
}

async fn rogue(hosts: &Hosts) -> Rogue {
    let identity = Identity {
        session: SessionId([2; 16]),
        ..client_identity()
    };
    Rogue::connect(&hosts.ours, &hosts.server.endpoint, &identity, &NoSecret, soon()).await
}

/// Reads again and again, in one piece or in small ones, until the key is not known any more. What is read until then are the bytes. Between two reads it leaves the
/// processor to others for a moment: where there is but one, readers without any pause keep soft-RoCE's own threads from theirs, so that a long read may be under way for
/// longer than keys have for being forgotten.
fn read_on(connection: &Arc<dyn Connection>, key: RemoteKey, len: usize, reads: &Arc<AtomicU64>) -> JoinHandle<()> {
    let (connection, reads) = (Arc::clone(connection), Arc::clone(reads));
    tokio::spawn(async move {
        loop {
            let into = Arc::new(Memory::from_vec(vec![0; len])).whole();
            match &connection.submit(vec![transfer(Op::Read, key, &into)], soon()).await[0] {
                Ok(_) => assert!(into.to_vec() == pattern(LEN)[..len], "other bytes"),
                Err(error) => return assert_eq!(*error, TransferError::UnknownKey { key }),
            }
            reads.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_millis(1)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_in_full_flight_lose_no_path_when_an_export_is_revoked_and_its_memory_is_let_go() {
    for rails_max in [1, 2] {
        let Some(hosts) = Hosts::new(rails_max).await else {
            return;
        };
        let (_kept, kept_key) = hosts.export(pattern(100_000), Rights::Read);
        for is_registered in [true, false] {
            let (owner, key) = hosts.export(pattern(LEN), Rights::Read);
            let registration = is_registered.then(|| hosts.theirs.register(owner.memory()).unwrap());
            let connection = hosts.open(SESSION).await.unwrap();
            let reads = Arc::new(AtomicU64::new(0));
            let readers = [LEN, LEN / 3, 4096, 64].map(|len| read_on(&connection, key, len, &reads));
            until("all read", || reads.load(Ordering::SeqCst) > 20).await;
            hosts.exports.revoke(key);
            let revoked = Instant::now();
            drop(registration);
            for reader in readers {
                reader.await.unwrap();
            }
            until("its memory is let go", || is_let_go(&owner)).await;
            println!(
                "{rails_max} rails, registered {is_registered}: let go after {:?}",
                revoked.elapsed()
            );
            assert!(revoked.elapsed() < VERBS_FORGET_TIMEOUT, "{:?}", revoked.elapsed());
            read_well(&connection, kept_key, 100_000).await;
            assert_no_path_is_lost_for_keys(&hosts);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_does_not_forget_in_time_is_cut_off_and_others_are_not() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let (kept, kept_key) = hosts.export(pattern(100_000), Rights::Read);
    let (owner, key) = hosts.export(pattern(LEN), Rights::Read);
    let honest = hosts.open(SESSION).await.unwrap();
    read_well(&honest, key, LEN).await;
    let deaf = rogue(&hosts).await;
    let (place, kept_place) = (
        deaf.resolve(key, soon()).await.unwrap(),
        deaf.resolve(kept_key, soon()).await.unwrap(),
    );
    let into = Arc::new(Memory::from_vec(vec![0; 64])).whole();
    hosts.exports.revoke(key);
    let revoked = Instant::now();
    // Its queue pair carries, and its key is good, until its time is over.
    while revoked.elapsed() < VERBS_FORGET_TIMEOUT / 2 {
        assert_eq!(deaf.read(place, &into).await, Status::Success);
        assert!(!is_let_go(&owner));
        sleep(Duration::from_millis(100)).await;
    }
    until("its memory is let go", || is_let_go(&owner)).await;
    let took = revoked.elapsed();
    assert!(
        took >= VERBS_FORGET_TIMEOUT && took < VERBS_FORGET_TIMEOUT + Duration::from_secs(2),
        "{took:?}"
    );
    into.copy_in(0, &[9; 64]).unwrap();
    for from in [place, kept_place] {
        assert_ne!(deaf.read(from, &into).await, Status::Success);
    }
    assert_eq!(into.to_vec(), [9; 64]);
    read_well(&honest, kept_key, 100_000).await;
    assert_eq!(hosts.theirs.losses().cut_off.load(Ordering::SeqCst), 1);
    // What it says late changes nothing, nor what it was not asked for.
    deaf.forgot(vec![key, kept_key], soon()).await;
    assert!(!is_let_go(&kept));
    read_well(&honest, kept_key, 100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_let_go_when_the_last_peer_has_forgotten_it_or_has_left() {
    let Some(hosts) = Hosts::new(1).await else { return };
    for is_leaving in [false, true] {
        let (owner, key) = hosts.export(pattern(LEN), Rights::Read);
        let slow = rogue(&hosts).await;
        let place = slow.resolve(key, soon()).await.unwrap();
        hosts.exports.revoke(key);
        let revoked = Instant::now();
        assert_eq!(slow.listen_for_keys(soon()).await, [key]);
        sleep(Duration::from_millis(300)).await;
        assert!(!is_let_go(&owner));
        if is_leaving {
            drop(slow);
        } else {
            slow.forgot(vec![key], soon()).await;
            let into = Arc::new(Memory::from_vec(vec![0; 64])).whole();
            until("its memory is let go", || is_let_go(&owner)).await;
            // It is as it was told: the key is no good.
            assert_eq!(slow.read(place, &into).await, Status::RemoteAccess);
        }
        until("its memory is let go", || is_let_go(&owner)).await;
        assert!(revoked.elapsed() < VERBS_FORGET_TIMEOUT, "{:?}", revoked.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_exports_are_revoked_at_once_at_the_cost_of_a_few_messages() {
    const EXPORTS: usize = 1_000;
    let Some(hosts) = Hosts::new(1).await else { return };
    let (_kept, kept_key) = hosts.export(pattern(100_000), Rights::Read);
    let connection = hosts.open(SESSION).await.unwrap();
    let exports: Vec<(Slice, RemoteKey)> = (0..EXPORTS)
        .map(|_| hosts.export(pattern(4096), Rights::Read))
        .collect();
    for (_, key) in &exports {
        read_well(&connection, *key, 4096).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let others = tokio::spawn({
        let (connection, stop) = (Arc::clone(&connection), Arc::clone(&stop));
        async move {
            while !stop.load(Ordering::SeqCst) {
                read_well(&connection, kept_key, 100_000).await;
            }
        }
    });
    let begun = Instant::now();
    for (_, key) in &exports {
        hosts.exports.revoke(*key);
    }
    let revoked = begun.elapsed();
    until("all memory is let go", || {
        exports.iter().all(|(memory, _)| is_let_go(memory))
    })
    .await;
    println!(
        "{EXPORTS} exports: revoked in {revoked:?}, let go after {:?}",
        begun.elapsed()
    );
    assert!(begun.elapsed() < VERBS_FORGET_TIMEOUT, "{:?}", begun.elapsed());
    stop.store(true, Ordering::SeqCst);
    others.await.unwrap();
    assert_no_path_is_lost_for_keys(&hosts);
}

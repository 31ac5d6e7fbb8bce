//! Each fault of the simulated network shows as what the contract says, and comes back with its seed.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use support::{SERVER, SESSION};
use tenon_transport::sim::{SimFaults, SimNetwork};
use tenon_transport::{
    Connection, Export, Exports, Memory, Op, RemoteKey, Rights, Scope, Slice, Transfer, TransferError, TransferResult,
    Unguarded,
};
use tokio::time::Instant;

const LEN: usize = 3 << 20;

struct Scene {
    connection: Arc<dyn Connection>,
    owner: Slice,
    key: RemoteKey,
}

impl Scene {
    fn new(seed: u64, faults: SimFaults) -> Self {
        let exports = Arc::new(Exports::new());
        let owner = Arc::new(Memory::from_vec(vec![3; LEN])).whole();
        let guard = Arc::new(Unguarded);
        let export = Export {
            memory: owner.clone(),
            rights: Rights::Read,
            scope: Scope::AnySession,
            guard,
        };
        let key = exports.add(export).unwrap();
        Self {
            connection: SimNetwork::new(seed, faults).connect(exports, SESSION, SERVER),
            owner,
            key,
        }
    }

    fn read(&self, into: &Slice) -> Transfer {
        Transfer {
            op: Op::Read,
            key: self.key,
            remote_offset_bytes: 0,
            local: vec![into.clone()],
            group: 0,
        }
    }

    async fn reads(&self, count: usize) -> Vec<TransferResult> {
        let batch = (0..count).map(|_| self.read(&local())).collect();
        self.connection
            .submit(batch, Instant::now() + Duration::from_secs(5))
            .await
    }
}

fn is_late(result: &TransferResult) -> bool {
    let Err(TransferError::Deadline { moved_bytes, .. }) = result else {
        return false;
    };
    *moved_bytes < LEN as u64
}

fn local() -> Slice {
    Arc::new(Memory::from_vec(vec![0; LEN])).whole()
}

#[tokio::test(start_paused = true)]
async fn a_lost_piece_ends_its_transfer_at_the_deadline() {
    let scene = Scene::new(
        1,
        SimFaults {
            loss: 0.2,
            ..SimFaults::default()
        },
    );
    let begun = Instant::now();
    let results = scene.reads(20).await;
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert!(results.iter().any(Result::is_ok));
    assert_eq!(
        results.iter().filter(|result| is_late(result)).count(),
        results.iter().filter(|result| result.is_err()).count()
    );
    assert!(results.iter().any(|result| result.is_err()));
    assert!(!scene.connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_transfer_that_breaks_off_leaves_the_connection() {
    let scene = Scene::new(
        1,
        SimFaults {
            partial: 0.2,
            ..SimFaults::default()
        },
    );
    let results = scene.reads(20).await;
    assert!(results.iter().any(Result::is_ok));
    assert!(
        results
            .iter()
            .any(|result| matches!(result, Err(TransferError::Disconnected { .. })))
    );
    assert!(!scene.connection.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_fails_what_is_open_and_what_comes() {
    let scene = Scene::new(
        1,
        SimFaults {
            disconnect: 0.1,
            ..SimFaults::default()
        },
    );
    let results = scene.reads(30).await;
    assert!(
        results
            .iter()
            .any(|result| matches!(result, Err(TransferError::Disconnected { .. })))
    );
    assert!(scene.connection.is_closed());
    let later = scene.reads(1).await;
    assert!(matches!(later[0], Err(TransferError::Disconnected { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_shows_in_the_checksum() {
    let scene = Scene::new(
        1,
        SimFaults {
            flip_bit: 1.0,
            ..SimFaults::default()
        },
    );
    let into = local();
    let done = scene
        .connection
        .submit(vec![scene.read(&into)], Instant::now() + Duration::from_secs(5))
        .await
        .remove(0);
    let done = done.unwrap();
    assert_ne!(done.crc64, Some(scene.owner.crc64()));
    assert_eq!(done.crc64, Some(into.crc64()));
    let wrong = into.to_vec().iter().filter(|byte| **byte != 3).count();
    assert_eq!(wrong, 3, "one byte in each piece");
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_story() {
    let faults = SimFaults {
        loss: 0.02,
        delay: 0.5,
        reorder: 0.5,
        partial: 0.05,
        flip_bit: 0.1,
        ..SimFaults::default()
    };
    let mut stories = Vec::new();
    for seed in [7, 7, 8] {
        let scene = Scene::new(seed, faults);
        let begun = Instant::now();
        let mut story = Vec::new();
        for _ in 0..5 {
            story.push((scene.reads(10).await, begun.elapsed()));
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
    assert_ne!(stories[0], stories[2]);
}

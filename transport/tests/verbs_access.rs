//! Accesses that a device must refuse: nothing of them arrives, both ends are told, and new queue pairs work. On the devices of
//! TENON_RDMA_DEVICES; skipped without.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod support;

use std::sync::Arc;

use support::{End, MEMORY_BYTES, named_devices, pair, post};
use tenon_transport::Memory;
use tenon_transport::verbs::{
    Access, FailedReleases, MemoryRegion, Payload, QueuePairState, RegionKey, Remote, SendRequest, Status, Timing,
    failed_releases,
};

fn two_ends() -> Option<(End, End)> {
    let named = named_devices()?;
    Some((End::new(&named[0]), End::new(&named[1])))
}

/// New queue pairs between the ends carry.
async fn assert_in_service(a: &mut End, b: &mut End) {
    let (queue_pair, _peer) = pair(a, b, Timing::default());
    post(&queue_pair, SendRequest::read(b.remote(0), vec![a.part(0, 64)], 99));
    a.success(99).await;
    b.nothing_more();
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test]
async fn a_wrong_key_ends_both_queue_pairs_and_new_ones_work() {
    let Some((mut a, mut b)) = two_ends() else { return };
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    a.memory.copy_in(0, &[1; 64]).unwrap();
    let wrong = Remote {
        key: RegionKey(b.region.key().0 ^ 0x5500),
        ..b.remote(0)
    };
    post(
        &queue_pair,
        SendRequest::write(wrong, Payload::Parts(vec![a.part(0, 64)]), 1),
    );
    post(
        &queue_pair,
        SendRequest::write(b.remote(0), Payload::Parts(vec![a.part(0, 64)]), 2),
    );
    assert_eq!(a.next().await.status, Status::RemoteAccess);
    assert_eq!(a.next().await.status, Status::Flushed);
    for ended in [&queue_pair, &peer] {
        assert_eq!(ended.state().unwrap(), QueuePairState::Error);
    }
    // What is posted afterwards is flushed, and nothing of it arrived.
    post(
        &queue_pair,
        SendRequest::write(b.remote(0), Payload::Parts(vec![a.part(0, 64)]), 3),
    );
    assert_eq!(a.next().await.status, Status::Flushed);
    let mut landed = [9; 64];
    b.memory.copy_out(0, &mut landed).unwrap();
    assert_eq!(landed, [0; 64]);
    drop((queue_pair, peer));
    assert_in_service(&mut a, &mut b).await;
}

#[tokio::test]
async fn reads_and_writes_beyond_a_region_are_refused_by_the_byte_and_nothing_arrives() {
    let Some((mut a, mut b)) = two_ends() else { return };
    a.memory.copy_in(0, &[7; 64]).unwrap();
    let last = b.remote(MEMORY_BYTES - 63);
    let before = Remote {
        address: b.region.address() - 1,
        ..b.remote(0)
    };
    for (number, place) in (0..).zip([last, before]) {
        let requests = [
            SendRequest::read(place, vec![a.part(128, 64)], number),
            SendRequest::write(place, Payload::Parts(vec![a.part(0, 64)]), number),
        ];
        for request in requests {
            let (queue_pair, _peer) = pair(&a, &b, Timing::default());
            post(&queue_pair, request);
            assert_eq!(a.next().await.status, Status::RemoteAccess);
        }
    }
    for (offset_bytes, len) in [(0, 64), (MEMORY_BYTES - 64, 64)] {
        let mut found = vec![9; len];
        b.memory.copy_out(offset_bytes, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0), "{found:?} at {offset_bytes}");
    }
    assert_in_service(&mut a, &mut b).await;
}

#[tokio::test]
async fn a_key_is_no_good_when_its_region_is_gone_nor_for_what_it_was_not_made_for() {
    let Some((mut a, mut b)) = two_ends() else { return };
    a.memory.copy_in(0, &[7; 64]).unwrap();
    let memory = Arc::new(Memory::anonymous(8192).unwrap());
    let region = MemoryRegion::register(&b.domain, memory.whole(), Access::REMOTE_READ).unwrap();
    let place = Remote {
        address: region.address(),
        key: region.key(),
    };
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    post(&queue_pair, SendRequest::read(place, vec![a.part(128, 64)], 1));
    a.success(1).await;
    // It may be read and not written.
    post(
        &queue_pair,
        SendRequest::write(place, Payload::Parts(vec![a.part(0, 64)]), 2),
    );
    assert_eq!(a.next().await.status, Status::RemoteAccess);
    drop((queue_pair, peer, region));
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    post(&queue_pair, SendRequest::read(place, vec![a.part(128, 64)], 3));
    assert_eq!(a.next().await.status, Status::RemoteAccess);
    drop((queue_pair, peer));
    let mut found = [9; 64];
    memory.copy_out(0, &mut found).unwrap();
    assert_eq!(found, [0; 64]);
    assert_in_service(&mut a, &mut b).await;
}

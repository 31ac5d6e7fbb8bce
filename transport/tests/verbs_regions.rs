//! Memory that is registered in many parts, between two ends of one process on the devices that the environment names; skipped where it names none.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hosts::{Hosts, devices_of, pattern};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::{SESSION, soon};
use tenon_transport::verbs::engine::{PushPolicy, RailsOptions};
use tenon_transport::{Export, Memory, Op, Rights, Scope, Transfer, Unguarded};

/// No whole page, and much less than what one request moves.
const REGION_BYTES: u64 = 400_003;
/// Several times what one request moves, so that regions end inside.
const LEN: usize = (12 << 20) + 17;
/// Where exports begin, in the middle of a part.
const SKIPPED: u64 = 250_001;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_to_and_from_memory_in_many_parts_are_those_of_one() {
    // Over one path requests are longer.
    for (push, rails) in [(PushPolicy::Off, 2), (PushPolicy::Trusted, 2), (PushPolicy::Off, 1)] {
        let (Some(ours), Some(theirs)) = (devices_of(false, rails), devices_of(true, rails)) else {
            return;
        };
        let small = |options| RailsOptions {
            region_bytes: REGION_BYTES,
            push,
            ..options
        };
        random_batches(Hosts::with(small(ours), small(theirs)).await).await;
    }
}

async fn random_batches(hosts: Hosts) {
    let [source, sink, local] =
        [pattern(LEN), vec![0; LEN], vec![0; LEN]].map(|bytes| Arc::new(Memory::from_vec(bytes)));
    let told = AtomicU64::new(0);
    let tell = |bytes: u64| _ = told.fetch_add(bytes, Ordering::SeqCst);
    let _theirs = [&source, &sink].map(|memory| hosts.theirs.register_telling(memory, &tell).unwrap());
    let _ours = hosts.ours.register(&local).unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 2 * LEN as u64);
    let export = |memory: &Arc<Memory>, rights| {
        let memory = memory.slice(SKIPPED..LEN as u64).unwrap();
        let (scope, guard) = (Scope::AnySession, Arc::new(Unguarded));
        hosts
            .exports
            .add(Export {
                memory,
                rights,
                scope,
                guard,
            })
            .unwrap()
    };
    let (read_key, write_key) = (export(&source, Rights::Read), export(&sink, Rights::Write));
    let connection = hosts.open(SESSION).await.unwrap();
    let (mut random, bytes) = (StdRng::seed_from_u64(7605), pattern(LEN));
    let mut model = vec![0; LEN];
    for round in 0..60 {
        local.copy_in(0, &bytes).unwrap();
        let is_read = round % 2 == 0;
        let exported = LEN - usize::try_from(SKIPPED).unwrap();
        let len = random.random_range(1..if round % 3 == 0 { 5_000 } else { exported / 2 });
        let (remote, at) = (
            random.random_range(0..=exported - len),
            random.random_range(0..=LEN - len),
        );
        let transfer = Transfer {
            op: if is_read { Op::Read } else { Op::Write },
            key: if is_read { read_key } else { write_key },
            remote_offset_bytes: remote as u64,
            local: vec![local.slice(at as u64..(at + len) as u64).unwrap()],
            group: 0,
        };
        connection.submit(vec![transfer], soon()).await.remove(0).unwrap();
        let start = remote + usize::try_from(SKIPPED).unwrap();
        if is_read {
            let mut expected = bytes.clone();
            expected[at..at + len].copy_from_slice(&bytes[start..start + len]);
            assert!(
                local.whole().to_vec() == expected,
                "round {round}: {len} bytes from {start} to {at}"
            );
        } else {
            model[start..start + len].copy_from_slice(&bytes[at..at + len]);
            assert!(
                sink.whole().to_vec() == model,
                "round {round}: {len} bytes from {at} to {start}"
            );
        }
    }
    assert_eq!(hosts.ours.losses().paths.load(Ordering::SeqCst), 0);
}

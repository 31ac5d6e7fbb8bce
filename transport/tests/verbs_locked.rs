//! Transfers of more memory than may be locked at once, between two ends of one process on the devices that the environment names; skipped where it
//! names none, and where so much may be locked.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;

use hosts::{Hosts, pattern, read_well, transfer};
use support::{SESSION, soon};
use tenon_transport::{Memory, Op, Rights, Slice};

const MIB: usize = 1 << 20;
/// Together three times what may be locked where this is to be seen.
const COUNT: usize = 36;

/// Memory of its own for each transfer, which nobody registered.
fn apart(bytes: &[u8]) -> Vec<Slice> {
    let memory = || Arc::new(Memory::from_vec(bytes.to_vec())).whole();
    (0..COUNT).map(|_| memory()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_may_be_locked_at_once_is_read_and_written_in_turns() {
    let Some(hosts) = Hosts::new(1).await else { return };
    let whole = Arc::new(Memory::from_vec(vec![0; COUNT * MIB]));
    if hosts.ours.register(&whole).is_ok() {
        println!("skipped: so much may be locked here");
        return;
    }
    drop(whole);
    let (source, read_key) = hosts.export(pattern(MIB), Rights::Read);
    let (sink, write_key) = hosts.export(vec![0; MIB], Rights::Write);
    // An owner has registered what it exports, and does not wait for what its peer, here the same process, has locked.
    let _registered = [&source, &sink].map(|slice| hosts.theirs.register(slice.memory()).unwrap());
    let connection = hosts.open(SESSION).await.unwrap();
    let other = hosts.open(SESSION).await.unwrap();
    let into = apart(&vec![0; MIB]);
    let reads: Vec<_> = into.iter().map(|into| transfer(Op::Read, read_key, into)).collect();
    // Two that do not know of each other.
    let (some, rest) = reads.split_at(COUNT / 2);
    let (some, rest) = tokio::join!(
        connection.submit(some.to_vec(), soon()),
        other.submit(rest.to_vec(), soon())
    );
    for result in some.into_iter().chain(rest) {
        assert_eq!(result.unwrap().bytes, MIB as u64);
    }
    assert!(into.iter().all(|into| into.to_vec() == pattern(MIB)));
    let from = apart(&pattern(MIB));
    let writes = from.iter().map(|from| transfer(Op::Write, write_key, from)).collect();
    for result in connection.submit(writes, soon()).await {
        assert_eq!(result.unwrap().bytes, MIB as u64);
    }
    assert!(sink.to_vec() == pattern(MIB));
    read_well(&connection, read_key, MIB).await;
}

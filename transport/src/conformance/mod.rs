//! One suite for every engine: what the contract of [`Connection`] promises, as checks that each can fail.
//!
//! An engine gives a [`Fixture`] and gets one test per check from [`conformance_tests!`](crate::conformance_tests). All
//! waiting is by tokio's clock, so engines that are simulated can run it paused.

mod access;
mod endings;
mod holds;
mod model;
mod moves;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::{Connection, Done, Op, Transfer, TransferResult};
use crate::exports::{Export, Exports, Guard, Rights, Scope, Unguarded};
use crate::ids::{RemoteKey, SessionId};
use crate::memory::{Memory, Slice};

pub use access::*;
pub use endings::*;
pub use holds::*;
pub use model::*;
pub use moves::*;

/// What an engine under test must provide.
pub trait Fixture: Send + Sync {
    /// The exports of the owner.
    fn exports(&self) -> &Arc<Exports>;

    /// A new connection to the owner, in this session.
    fn connect(&self, session: SessionId) -> impl Future<Output = Arc<dyn Connection>> + Send;
}

/// The session that checks use unless they need another.
pub const SESSION: SessionId = SessionId([0xa5; 16]);

/// Nothing in the suite takes this long unless it hangs.
const SOON: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + SOON
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Memory of an owner with `bytes` in it, exported whole.
fn export(fixture: &impl Fixture, bytes: Vec<u8>, rights: Rights) -> (Slice, RemoteKey) {
    export_guarded(fixture, bytes, rights, Arc::new(Unguarded))
}

/// The same memory, behind a guard.
pub fn export_guarded(
    fixture: &impl Fixture,
    bytes: Vec<u8>,
    rights: Rights,
    guard: Arc<dyn Guard>,
) -> (Slice, RemoteKey) {
    let memory = Arc::new(Memory::from_vec(bytes)).whole();
    let export = Export {
        memory: memory.clone(),
        rights,
        scope: Scope::AnySession,
        guard,
    };
    let key = fixture.exports().add(export).expect("there is room for an export");
    (memory, key)
}

/// Local memory with `bytes` in it.
fn local(bytes: Vec<u8>) -> Slice {
    Arc::new(Memory::from_vec(bytes)).whole()
}

fn read(key: RemoteKey, remote_offset_bytes: u64, into: &Slice) -> Transfer {
    Transfer {
        op: Op::Read,
        key,
        remote_offset_bytes,
        local: vec![into.clone()],
        group: 0,
    }
}

fn write(key: RemoteKey, remote_offset_bytes: u64, from: &Slice) -> Transfer {
    Transfer {
        op: Op::Write,
        key,
        remote_offset_bytes,
        local: vec![from.clone()],
        group: 0,
    }
}

/// Submits one transfer and waits for it.
async fn one(connection: &Arc<dyn Connection>, transfer: Transfer) -> TransferResult {
    let mut results = connection.submit(vec![transfer], soon()).await;
    assert_eq!(results.len(), 1, "one result per transfer");
    results.remove(0)
}

/// The only thing that a completed transfer of `bytes` may say, but for the stamp.
fn assert_done(result: &TransferResult, bytes: &[u8]) {
    let Done {
        bytes: moved,
        crc64,
        sent_crc64,
        ..
    } = *result.as_ref().expect("the transfer succeeds");
    assert_eq!(moved, bytes.len() as u64);
    for crc64 in [crc64, sent_crc64].into_iter().flatten() {
        assert_eq!(
            crc64,
            crate::checksum::crc64(bytes),
            "the checksum is that of the bytes"
        );
    }
}

/// Waits until `done`, or fails.
async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(Instant::now() < deadline, "{what}: did not happen");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// All checks that an engine without guarded reads passes, one after the other. `connect` anew for each.
pub async fn one_sided_conformance(fixture: &impl Fixture) {
    macro_rules! run {
        ($($check:ident)*) => {
            $(
                let begun = std::time::Instant::now();
                $check(fixture).await;
                println!("{}: {:?}", stringify!($check), begun.elapsed());
            )*
        };
    }
    run!(
        reads_land_in_scattered_memory_and_nowhere_else
        writes_reach_the_owner_before_they_complete
        results_stand_in_the_order_of_the_batch
        groups_are_carried_out_in_order
        malformed_transfers_fail_alone
        many_submissions_at_once_do_not_mix
        bad_keys_sessions_directions_and_ranges_are_named
        a_refusal_reaches_the_initiator_with_its_code
        revoking_inside_an_access_keeps_its_bytes_out
        nothing_is_held_once_a_submission_has_ended
        a_dropped_submission_lets_go_of_its_memory_at_once
        a_closed_connection_fails_everything_at_once
        random_batches_match_a_naive_model
    );
}

/// Makes one test of each check of the suite. `$test` is the attribute of the tests, `$fixture` an expression that
/// awaits nothing or is a future of a [`Fixture`]. An engine whose owner takes no part in reads passes all but the checks
/// of read holds: see [`one_sided_conformance`](crate::conformance::one_sided_conformance).
#[macro_export]
macro_rules! conformance_tests {
    ($test:meta, $fixture:expr) => {
        $crate::conformance_tests!(@each $test, $fixture;
            reads_land_in_scattered_memory_and_nowhere_else
            writes_reach_the_owner_before_they_complete
            results_stand_in_the_order_of_the_batch
            groups_are_carried_out_in_order
            malformed_transfers_fail_alone
            many_submissions_at_once_do_not_mix
            bad_keys_sessions_directions_and_ranges_are_named
            a_refusal_reaches_the_initiator_with_its_code
            revoking_inside_an_access_keeps_its_bytes_out
            holds_of_a_group_are_all_taken_before_one_is_released
            every_hold_is_released_and_stamps_are_exact
            a_read_whose_parts_carry_different_stamps_is_torn
            nothing_is_held_once_a_submission_has_ended
            a_dropped_submission_lets_go_of_its_memory_at_once
            a_closed_connection_fails_everything_at_once
            random_batches_match_a_naive_model
        );
    };
    (@each $test:meta, $fixture:expr; $($check:ident)*) => {
        $(
            #[$test]
            async fn $check() {
                let fixture = $fixture.await;
                $crate::conformance::$check(&fixture).await;
            }
        )*
    };
}

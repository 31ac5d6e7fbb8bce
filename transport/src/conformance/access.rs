//! Who may touch what.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::{Fixture, SESSION, assert_done, export, export_guarded, local, one, read, soon, write};
use crate::engine::{Connection, Op, TransferError};
use crate::exports::{Export, Exports, Guard, Hold, Refused, Rights, Scope, Unguarded};
use crate::ids::{RemoteKey, SessionId};

/// Each wrong request gets its own error, touches nothing, and leaves the connection usable.
pub async fn bad_keys_sessions_directions_and_ranges_are_named(fixture: &impl Fixture) {
    let (owner, key) = export(fixture, vec![1; 100], Rights::Read);
    let theirs = local(vec![2; 100]);
    let scope = Scope::Session(SessionId([9; 16]));
    let export = Export {
        memory: theirs.clone(),
        rights: Rights::Write,
        scope,
        guard: Arc::new(Unguarded),
    };
    let their_key = fixture.exports().add(export).expect("there is room for an export");
    let connection = fixture.connect(SESSION).await;
    let ten = local(vec![3; 10]);

    let unknown = RemoteKey(key.0 ^ 1);
    let result = one(&connection, read(unknown, 0, &ten)).await;
    assert_eq!(result, Err(TransferError::UnknownKey { key: unknown }));
    let result = one(&connection, write(unknown, 0, &ten)).await;
    assert_eq!(result, Err(TransferError::UnknownKey { key: unknown }));
    let result = one(&connection, write(their_key, 0, &ten)).await;
    assert_eq!(
        result,
        Err(TransferError::Forbidden {
            key: their_key,
            op: Op::Write
        }),
        "another session's"
    );
    let result = one(&connection, write(key, 0, &ten)).await;
    assert_eq!(
        result,
        Err(TransferError::Forbidden { key, op: Op::Write }),
        "the other direction"
    );
    let result = one(&connection, read(key, 91, &ten)).await;
    let beyond = TransferError::OutOfRange {
        offset_bytes: 91,
        len_bytes: 10,
        export_bytes: 100,
    };
    assert_eq!(result, Err(beyond));
    fixture.exports().revoke(key);
    if !connection.guards_reads() {
        unknown_once_it_is_forgotten(&connection, key, &[1; 10]).await;
    }
    let result = one(&connection, read(key, 0, &ten)).await;
    assert_eq!(result, Err(TransferError::UnknownKey { key }), "revoked");

    assert_eq!(ten.to_vec(), [3; 10]);
    assert!(owner.to_vec() == [1; 100] && theirs.to_vec() == [2; 100]);
    assert!(!connection.is_closed());
    let its_owner = fixture.connect(SessionId([9; 16])).await;
    assert_done(&one(&its_owner, write(their_key, 0, &ten)).await, &[3; 10]);
}

/// A connection that reads by itself may do so until it has forgotten where a revoked export lies, and gets its bytes until then.
async fn unknown_once_it_is_forgotten(connection: &Arc<dyn Connection>, key: RemoteKey, bytes: &[u8]) {
    let deadline = soon();
    loop {
        let into = local(vec![0; bytes.len()]);
        match one(connection, read(key, 0, &into)).await {
            Err(error) => return assert_eq!(error, TransferError::UnknownKey { key }),
            Ok(_) => assert_eq!(into.to_vec(), bytes),
        }
        assert!(Instant::now() < deadline, "it is read without end");
    }
}

/// A guard that refuses.
struct Refusing;

impl Guard for Refusing {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Err(Refused {
            code: 41,
            message: "moved away",
        })
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Err(Refused {
            code: 42,
            message: "sealed",
        })
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {
        panic!("nothing was written");
    }
}

/// What a guard refuses fails with the guard's code, and touches nothing.
pub async fn a_refusal_reaches_the_initiator_with_its_code(fixture: &impl Fixture) {
    let (_owner, read_key) = export_guarded(fixture, vec![1; 3 << 20], Rights::Read, Arc::new(Refusing));
    let (sink, write_key) = export_guarded(fixture, vec![1; 3 << 20], Rights::Write, Arc::new(Refusing));
    let connection = fixture.connect(SESSION).await;
    for len in [10, 3 << 20] {
        let ours = local(vec![5; len]);
        let refused = TransferError::Refused {
            code: 41,
            message: "moved away".to_owned(),
        };
        if connection.guards_reads() {
            assert_eq!(one(&connection, read(read_key, 0, &ours)).await, Err(refused));
        }
        let refused = TransferError::Refused {
            code: 42,
            message: "sealed".to_owned(),
        };
        assert_eq!(one(&connection, write(write_key, 0, &ours)).await, Err(refused));
        assert!(ours.to_vec().iter().all(|byte| *byte == 5));
    }
    assert!(sink.to_vec().iter().all(|byte| *byte == 1));
}

/// A guard that revokes its own export when an access begins.
#[derive(Default)]
struct Revoking {
    target: OnceLock<(Arc<Exports>, RemoteKey)>,
    released: Arc<AtomicUsize>,
}

impl Revoking {
    fn revoke(&self) -> Hold {
        let (exports, key) = self.target.get().expect("it knows its export");
        exports.revoke(*key);
        let released = Arc::clone(&self.released);
        Hold::with_release(0, move || _ = released.fetch_add(1, Ordering::SeqCst))
    }
}

impl Guard for Revoking {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.revoke())
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.revoke())
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {
        panic!("nothing was written");
    }
}

/// Once an export is revoked, an access that has begun moves no byte, fails, and lets go of its hold.
pub async fn revoking_inside_an_access_keeps_its_bytes_out(fixture: &impl Fixture) {
    let connection = fixture.connect(SESSION).await;
    for (rights, len) in [
        (Rights::Read, 10),
        (Rights::Read, 700_000),
        (Rights::Write, 10),
        (Rights::Write, 700_000),
    ] {
        if rights == Rights::Read && !connection.guards_reads() {
            continue;
        }
        let guard = Arc::new(Revoking::default());
        let (owner, key) = export_guarded(fixture, vec![1; len], rights, guard.clone());
        _ = guard.target.set((Arc::clone(fixture.exports()), key));
        let ours = local(vec![2; len]);
        let transfer = if rights == Rights::Read {
            read(key, 0, &ours)
        } else {
            write(key, 0, &ours)
        };
        assert_eq!(one(&connection, transfer).await, Err(TransferError::Revoked));
        assert!(
            owner.to_vec().iter().all(|byte| *byte == 1),
            "no byte of a revoked write lands"
        );
        super::eventually("the hold is released", || guard.released.load(Ordering::SeqCst) == 1).await;
    }
    assert!(!connection.is_closed());
}

//! The table of exports by itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const OURS: SessionId = SessionId([1; 16]);
const OTHER: SessionId = SessionId([2; 16]);

fn export(rights: Rights, scope: Scope) -> Export {
    let memory = Arc::new(Memory::from_vec(vec![0; 100])).whole();
    Export {
        memory,
        rights,
        scope,
        guard: Arc::new(Unguarded),
    }
}

fn wanted(op: Op, key: RemoteKey, offset_bytes: u64, len_bytes: u64) -> Wanted {
    Wanted {
        op,
        key,
        offset_bytes,
        len_bytes,
    }
}

#[test]
fn key_session_direction_and_range_are_checked() {
    let exports = Exports::new();
    let key = exports.add(export(Rights::Read, Scope::Session(OURS))).unwrap();
    assert!(exports.begin(OURS, &wanted(Op::Read, key, 90, 10)).is_ok());
    let unknown = RemoteKey(key.0 ^ 1);
    assert_eq!(
        exports.begin(OURS, &wanted(Op::Read, unknown, 0, 1)).unwrap_err(),
        TransferError::UnknownKey { key: unknown }
    );
    assert_eq!(
        exports.begin(OTHER, &wanted(Op::Read, key, 0, 1)).unwrap_err(),
        TransferError::Forbidden { key, op: Op::Read }
    );
    assert_eq!(
        exports.begin(OURS, &wanted(Op::Write, key, 0, 1)).unwrap_err(),
        TransferError::Forbidden { key, op: Op::Write }
    );
    for (offset_bytes, len_bytes) in [(91, 10), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(
            exports
                .begin(OURS, &wanted(Op::Read, key, offset_bytes, len_bytes))
                .unwrap_err(),
            TransferError::OutOfRange {
                offset_bytes,
                len_bytes,
                export_bytes: 100
            }
        );
    }
}

#[test]
fn after_revoking_nothing_begins_and_nothing_under_way_touches() {
    let exports = Exports::new();
    let key = exports.add(export(Rights::Write, Scope::AnySession)).unwrap();
    let access = exports.begin(OTHER, &wanted(Op::Write, key, 0, 10)).unwrap();
    assert_eq!(access.touch(3, |_, offset_bytes| offset_bytes), Ok(3));
    assert!(exports.revoke(key));
    assert!(!exports.revoke(key));
    assert_eq!(access.touch(0, |_, _| ()), Err(TransferError::Revoked));
    assert!(matches!(
        exports.begin(OTHER, &wanted(Op::Write, key, 0, 1)),
        Err(TransferError::UnknownKey { .. })
    ));
    assert!(exports.is_empty());
}

#[test]
fn the_hold_of_a_read_is_released_when_its_export_is_revoked_though_its_access_goes_on() {
    struct Counting(Arc<AtomicUsize>);
    impl Guard for Counting {
        fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
            let released = Arc::clone(&self.0);
            Ok(Hold::with_release(7, move || {
                _ = released.fetch_add(1, Ordering::Relaxed)
            }))
        }
        fn begin_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused> {
            self.begin_read(offset_bytes, len_bytes)
        }
        fn wrote(&self, _: u64, _: u64, _: u64) {}
    }
    for (op, rights, released_by_revoking) in [(Op::Read, Rights::Read, 1), (Op::Write, Rights::Write, 0)] {
        let (exports, released) = (Exports::new(), Arc::new(AtomicUsize::new(0)));
        let guard = Arc::new(Counting(Arc::clone(&released)));
        let key = exports
            .add(Export {
                guard,
                ..export(rights, Scope::AnySession)
            })
            .unwrap();
        let access = exports.begin(OURS, &wanted(op, key, 0, 10)).unwrap();
        assert_eq!(access.stamp(), 7);
        assert!(exports.revoke(key));
        assert_eq!(released.load(Ordering::Relaxed), released_by_revoking, "{op:?}");
        assert_eq!(access.touch(0, |_, _| ()), Err(TransferError::Revoked));
        drop(access);
        assert_eq!(released.load(Ordering::Relaxed), 1, "{op:?}");
    }
}

#[test]
fn a_hold_is_released_once_when_its_access_ends() {
    struct Counting(Arc<AtomicUsize>);
    impl Guard for Counting {
        fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
            let released = Arc::clone(&self.0);
            Ok(Hold::with_release(9, move || {
                _ = released.fetch_add(1, Ordering::Relaxed)
            }))
        }
        fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
            Err(Refused {
                code: 4,
                message: "sealed",
            })
        }
        fn wrote(&self, _: u64, _: u64, _: u64) {}
    }
    let released = Arc::new(AtomicUsize::new(0));
    let exports = Exports::new();
    let guard = Arc::new(Counting(Arc::clone(&released)));
    let key = exports
        .add(Export {
            guard: guard.clone(),
            ..export(Rights::Read, Scope::AnySession)
        })
        .unwrap();
    let access = exports.begin(OURS, &wanted(Op::Read, key, 0, 1)).unwrap();
    assert_eq!((access.stamp(), released.load(Ordering::Relaxed)), (9, 0));
    drop(access);
    assert_eq!(released.load(Ordering::Relaxed), 1);
    let key = exports
        .add(Export {
            guard,
            ..export(Rights::Write, Scope::AnySession)
        })
        .unwrap();
    let refused = exports.begin(OURS, &wanted(Op::Write, key, 0, 1)).unwrap_err();
    assert_eq!(
        refused,
        TransferError::Refused {
            code: 4,
            message: "sealed".to_owned()
        }
    );
}

#[test]
fn an_empty_range_is_not_exported() {
    let empty = Arc::new(Memory::from_vec(Vec::new())).whole();
    let export = Export {
        memory: empty,
        ..export(Rights::Read, Scope::AnySession)
    };
    assert_eq!(Exports::new().add(export), Err(ExportsError::Empty));
}

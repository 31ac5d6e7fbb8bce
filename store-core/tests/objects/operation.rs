//! What may be done to a holder, at random.

use crate::model::Put;
use proptest::prelude::*;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::Pin;

/// One call of the holder. Numbers choose among what there is, modulo.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Reserve {
        put: Put,
        len_class: usize,
        session: u8,
    },
    BeginWrite {
        put: Put,
        start: usize,
        end: usize,
    },
    EndWrite {
        which: usize,
        arrives: bool,
        is_damaged: bool,
    },
    WriteAll {
        put: Put,
        step: u64,
    },
    BeginCommit {
        put: Put,
    },
    AdvanceCommit {
        which: usize,
        how: Advance,
    },
    Abort {
        put: Put,
        session: u8,
    },
    EndSession {
        session: u8,
    },
    Sleep {
        ms: u64,
    },
    Expire,
    BeginRead {
        key: u8,
        start: u64,
        len_bytes: u64,
    },
    EndRead {
        which: usize,
    },
    Confirm {
        key: u8,
        put_id: u8,
    },
    Remove {
        key: u8,
        put_id: u8,
    },
    Pin {
        key: u8,
        pin: Pin,
    },
    EvictSome,
    MakeRoom {
        len_class: usize,
    },
    Mount {
        like: usize,
    },
    Drain {
        which: usize,
    },
    DropSome {
        which: usize,
    },
    Unmount {
        which: usize,
    },
    MoveAway {
        key: u8,
        put_id: u8,
    },
}

/// How a commit goes on, whatever its step.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Advance {
    Well { epoch: u64 },
    DamagedPiece,
    Yield { to: u8 },
    Abandon,
    Unanswered,
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    let puts = || (0u8..2, 0u8..2).prop_map(|(put_id, key)| Put { put_id, key });
    let advance = prop_oneof![
        6 => (1u64..4).prop_map(|epoch| Advance::Well { epoch }),
        1 => Just(Advance::DamagedPiece),
        1 => (0u8..2).prop_map(|to| Advance::Yield { to }),
        1 => Just(Advance::Abandon),
        2 => Just(Advance::Unanswered),
    ];
    prop_oneof![
        6 => (puts(), any::<usize>(), 0u8..2)
            .prop_map(|(put, len_class, session)| Operation::Reserve { put, len_class, session }),
        9 => (puts(), any::<usize>(), any::<usize>())
            .prop_map(|(put, start, end)| Operation::BeginWrite { put, start, end }),
        9 => (any::<usize>(), prop::bool::weighted(0.9), prop::bool::weighted(0.1))
            .prop_map(|(which, arrives, is_damaged)| Operation::EndWrite { which, arrives, is_damaged }),
        6 => (puts(), prop::sample::select(vec![PIECE_BYTES, PIECE_BYTES / 4 + 1, 16 * PIECE_BYTES]))
            .prop_map(|(put, step)| Operation::WriteAll { put, step }),
        5 => puts().prop_map(|put| Operation::BeginCommit { put }),
        9 => (any::<usize>(), advance).prop_map(|(which, how)| Operation::AdvanceCommit { which, how }),
        1 => (puts(), 0u8..2).prop_map(|(put, session)| Operation::Abort { put, session }),
        1 => (0u8..2).prop_map(|session| Operation::EndSession { session }),
        2 => prop_oneof![1u64..20_000, 290_000u64..310_000].prop_map(|ms| Operation::Sleep { ms }),
        2 => Just(Operation::Expire),
        3 => (0u8..2, 0u64..2000, 0u64..2000)
            .prop_map(|(key, start, len_bytes)| Operation::BeginRead { key, start, len_bytes }),
        3 => any::<usize>().prop_map(|which| Operation::EndRead { which }),
        3 => (0u8..2, 0u8..2).prop_map(|(key, put_id)| Operation::Confirm { key, put_id }),
        2 => (0u8..2, 0u8..2).prop_map(|(key, put_id)| Operation::Remove { key, put_id }),
        2 => (0u8..2, prop::sample::select(vec![Pin::None, Pin::Hard, Pin::Soft { for_ms: 5_000 }]))
            .prop_map(|(key, pin)| Operation::Pin { key, pin }),
        2 => Just(Operation::EvictSome),
        2 => any::<usize>().prop_map(|len_class| Operation::MakeRoom { len_class }),
        2 => any::<usize>().prop_map(|like| Operation::Mount { like }),
        1 => any::<usize>().prop_map(|which| Operation::Drain { which }),
        1 => any::<usize>().prop_map(|which| Operation::DropSome { which }),
        2 => any::<usize>().prop_map(|which| Operation::Unmount { which }),
        1 => (0u8..2, 0u8..2).prop_map(|(key, put_id)| Operation::MoveAway { key, put_id }),
    ]
}

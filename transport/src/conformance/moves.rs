//! Bytes arrive where they should, and nowhere else.

use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::{Fixture, SESSION, assert_done, export, export_guarded, local, one, pattern, read, soon, write};
use crate::checksum::crc64;
use crate::engine::{Op, Transfer, TransferError};
use crate::exports::{Guard, Hold, Refused, Rights};
use crate::limits::MAX_BATCH_TRANSFERS;
use crate::memory::{Memory, Slice};

/// Lengths around every boundary that an engine may have.
const LENGTHS: [usize; 11] = [
    1,
    63,
    4_096,
    8_192,
    8_193,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (3 << 20) + 17,
    4 << 20,
    (5 << 20) + 1,
];

/// A scatter list over one new memory with gaps between the pieces.
fn scattered(len: usize) -> (Arc<Memory>, Vec<Slice>) {
    const GAP: usize = 5;
    let lens = [len / 3, 1, len - len / 3 - 1];
    let lens = lens.iter().copied().filter(|piece| *piece > 0 && len > 2);
    let lens: Vec<usize> = if len > 2 { lens.collect() } else { vec![len] };
    let whole = lens.iter().map(|piece| piece + GAP).sum::<usize>() + GAP;
    let memory = Arc::new(Memory::from_vec(vec![0xee; whole]));
    let mut start = GAP as u64;
    let slice = |piece: &usize| {
        let end = start + *piece as u64;
        let slice = memory.slice(start..end).expect("a piece lies inside");
        start = end + GAP as u64;
        slice
    };
    let slices = lens.iter().map(slice).collect();
    (memory, slices)
}

/// Reads of every length, from the middle of an export into scatter lists.
pub async fn reads_land_in_scattered_memory_and_nowhere_else(fixture: &impl Fixture) {
    let bytes = pattern(6 << 20, 1);
    let (_owner, key) = export(fixture, bytes.clone(), Rights::Read);
    let connection = fixture.connect(SESSION).await;
    for len in LENGTHS {
        for group in [0, 1] {
            let (memory, slices) = scattered(len);
            let transfer = Transfer {
                op: Op::Read,
                key,
                remote_offset_bytes: 33,
                local: slices.clone(),
                group,
            };
            assert_done(&one(&connection, transfer).await, &bytes[33..33 + len]);
            let landed: Vec<u8> = slices.iter().flat_map(Slice::to_vec).collect();
            assert!(landed == bytes[33..33 + len], "{len} bytes land in order");
            let gaps = memory.whole().to_vec().iter().filter(|byte| **byte == 0xee).count();
            let expected = bytes[33..33 + len].iter().filter(|byte| **byte == 0xee).count() + 5 * (slices.len() + 1);
            assert_eq!(gaps, expected, "{len} bytes: what lies between is untouched");
        }
    }
}

/// What a guard heard of writes.
#[derive(Default)]
struct Ledger {
    wrote: Mutex<Vec<(u64, u64, u64)>>,
}

impl Guard for Ledger {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn wrote(&self, offset_bytes: u64, len_bytes: u64, crc64: u64) {
        self.wrote.lock().push((offset_bytes, len_bytes, crc64));
    }
}

/// When a write has completed, the bytes are there and the guard was told of every frame with its checksum.
pub async fn writes_reach_the_owner_before_they_complete(fixture: &impl Fixture) {
    let connection = fixture.connect(SESSION).await;
    for len in LENGTHS {
        let ledger = Arc::new(Ledger::default());
        let (owner, key) = export_guarded(fixture, vec![0; 6 << 20], Rights::Write, ledger.clone());
        let bytes = pattern(len, len as u64);
        let (_memory, slices) = scattered(len);
        let mut filled = 0;
        for slice in &slices {
            let end = filled + slice.to_vec().len();
            slice.copy_in(0, &bytes[filled..end]).expect("it fits");
            filled = end;
        }
        let transfer = Transfer {
            op: Op::Write,
            key,
            remote_offset_bytes: 77,
            local: slices,
            group: 0,
        };
        let result = one(&connection, transfer).await;
        let now = owner.to_vec();
        assert_done(&result, &bytes);
        assert!(now[77..77 + len] == bytes, "{len} bytes are there");
        assert!(
            now[..77].iter().chain(&now[77 + len..]).all(|byte| *byte == 0),
            "{len} bytes and no other"
        );
        let mut wrote = ledger.wrote.lock().clone();
        wrote.sort_unstable();
        let mut next = 77;
        for (offset_bytes, len_bytes, crc) in wrote {
            assert_eq!(offset_bytes, next, "frames lie side by side");
            let start = usize::try_from(offset_bytes - 77).expect("it is small");
            let end = usize::try_from(offset_bytes + len_bytes - 77).expect("it is small");
            assert!(
                start == 0 || start % 4_096 == 0,
                "frames are cut from the transfer's start"
            );
            assert_eq!(crc, crc64(&bytes[start..end]));
            next += len_bytes;
        }
        assert_eq!(next, 77 + len as u64, "the guard heard of every byte");
        fixture.exports().revoke(key);
    }
}

/// Failures stand where their transfers stood, and the others are carried out.
pub async fn results_stand_in_the_order_of_the_batch(fixture: &impl Fixture) {
    let bytes = pattern(100_000, 2);
    let (_owner, key) = export(fixture, bytes.clone(), Rights::Read);
    let (_sink, sink_key) = export(fixture, vec![0; 10], Rights::Write);
    let connection = fixture.connect(SESSION).await;
    let into: Vec<Slice> = (1..=5).map(|i| local(vec![0; i * 1_000])).collect();
    let batch = vec![
        read(key, 0, &into[0]),
        read(key, 100_000, &into[1]),
        read(key, 1, &into[2]),
        write(sink_key, 0, &into[3]),
        read(key, 2, &into[4]),
    ];
    let results = connection.submit(batch, soon()).await;
    assert_done(&results[0], &bytes[..1_000]);
    assert!(matches!(results[1], Err(TransferError::OutOfRange { .. })));
    assert_done(&results[2], &bytes[1..3_001]);
    assert!(matches!(
        results[3],
        Err(TransferError::OutOfRange { export_bytes: 10, .. })
    ));
    assert_done(&results[4], &bytes[2..5_002]);
    assert!(connection.submit(Vec::new(), soon()).await.is_empty());
}

/// The last of several overlapping writes of a group stays.
pub async fn groups_are_carried_out_in_order(fixture: &impl Fixture) {
    let (owner, key) = export(fixture, vec![0; 3 << 20], Rights::Write);
    let connection = fixture.connect(SESSION).await;
    for round in 0..5 {
        let batch: Vec<Transfer> = (1..=8)
            .map(|i: u8| Transfer {
                group: 6,
                ..write(key, u64::from(i), &local(vec![i + round; 2 << 20]))
            })
            .collect();
        let results = connection.submit(batch, soon()).await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        let now = owner.to_vec();
        assert_eq!(
            now[..9],
            [
                0,
                1 + round,
                2 + round,
                3 + round,
                4 + round,
                5 + round,
                6 + round,
                7 + round,
                8 + round
            ]
        );
        assert!(now[8..8 + (2 << 20)].iter().all(|byte| *byte == 8 + round));
    }
}

/// Requests that cannot be carried out are told from those that can.
pub async fn malformed_transfers_fail_alone(fixture: &impl Fixture) {
    let (_owner, key) = export(fixture, vec![7; 100], Rights::Read);
    let (_sink, sink_key) = export(fixture, vec![0; 100], Rights::Write);
    let connection = fixture.connect(SESSION).await;
    let ten = local(vec![0; 10]);
    let empty = Transfer {
        op: Op::Read,
        key,
        remote_offset_bytes: 0,
        local: Vec::new(),
        group: 0,
    };
    let batch = vec![
        empty,
        read(key, 0, &ten),
        Transfer {
            group: 3,
            ..read(key, 0, &local(vec![0; 10]))
        },
        Transfer {
            group: 3,
            ..write(sink_key, 0, &local(vec![0; 10]))
        },
    ];
    let results = connection.submit(batch, soon()).await;
    assert!(matches!(results[0], Err(TransferError::Invalid { .. })));
    assert_done(&results[1], &[7; 10]);
    assert!(
        matches!(results[2], Err(TransferError::Invalid { .. })),
        "a group has one direction"
    );
    assert!(matches!(results[3], Err(TransferError::Invalid { .. })));
    let too_many = vec![read(key, 0, &ten); MAX_BATCH_TRANSFERS + 1];
    let results = connection.submit(too_many, soon()).await;
    assert_eq!(results.len(), MAX_BATCH_TRANSFERS + 1);
    assert!(
        results
            .iter()
            .all(|result| matches!(result, Err(TransferError::Invalid { .. })))
    );
    let beyond = one(&connection, read(key, u64::MAX, &ten)).await;
    assert!(matches!(beyond, Err(TransferError::OutOfRange { .. })), "{beyond:?}");
}

/// Submissions from many tasks, in both directions, all get their own bytes.
pub async fn many_submissions_at_once_do_not_mix(fixture: &impl Fixture) {
    const EACH: usize = 50_000;
    let bytes = pattern(20 * EACH, 3);
    let (_owner, key) = export(fixture, bytes.clone(), Rights::Read);
    let (sink, sink_key) = export(fixture, vec![0; 20 * EACH], Rights::Write);
    let connection = fixture.connect(SESSION).await;
    let submissions = (0..20).map(|i| {
        let (connection, bytes) = (Arc::clone(&connection), &bytes);
        async move {
            let range = i * EACH..(i + 1) * EACH;
            let into = local(vec![0; EACH]);
            let from = local(bytes[range.clone()].to_vec());
            let offset_bytes = range.start as u64;
            let batch = vec![read(key, offset_bytes, &into), write(sink_key, offset_bytes, &from)];
            let results = connection.submit(batch, soon()).await;
            assert_done(&results[0], &bytes[range.clone()]);
            assert_done(&results[1], &bytes[range.clone()]);
            assert!(into.to_vec() == bytes[range]);
        }
    });
    join_all(submissions).await;
    assert!(sink.to_vec() == bytes);
}

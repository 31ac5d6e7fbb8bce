//! One submitted batch: its memory, which can be closed at any moment, and the tally of its parts.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::checksum;
use crate::engine::{Done, Op, Transfer, TransferError, TransferResult, faults};
use crate::memory::{Memory, Slice};
use crate::tcp::initiator::plan::PartPlan;
use crate::tcp::lane::Span;

/// A batch, shared by its submission and the lanes that carry parts of it.
#[derive(Debug)]
pub(super) struct Batch {
    /// The transfers with their memory; `None` once nothing may touch it any more. Read-locked around every touch, so
    /// that closing waits for touches under way.
    memory: RwLock<Option<Vec<Transfer>>>,
    tally: Mutex<Tally>,
    finished: Notify,
}

#[derive(Debug)]
struct Tally {
    open_parts: usize,
    transfers: Vec<TransferTally>,
}

#[derive(Debug)]
struct TransferTally {
    op: Op,
    len_bytes: u64,
    open_parts: usize,
    moved_bytes: u64,
    stamp: Option<u64>,
    failure: Option<TransferError>,
    /// Of each part, in order.
    sums: Vec<PartSums>,
}

#[derive(Clone, Copy, Debug)]
struct PartSums {
    len_bytes: u64,
    landed: u64,
    sent: Option<u64>,
}

/// How a part ended well.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartDone {
    /// Of the bytes where they landed.
    pub(super) crc64: u64,
    /// Of reads.
    pub(super) stamp: Option<u64>,
    /// Of the bytes of a write when they were sent.
    pub(super) sent_crc64: Option<u64>,
}

impl Batch {
    pub(super) fn new(transfers: Vec<Transfer>) -> Arc<Self> {
        let tally = |(transfer, fault): (&Transfer, _)| TransferTally {
            op: transfer.op,
            len_bytes: transfer.len_bytes(),
            open_parts: 0,
            moved_bytes: 0,
            stamp: None,
            failure: fault,
            sums: Vec::new(),
        };
        let tallies = transfers.iter().zip(faults(&transfers)).map(tally).collect();
        Arc::new(Self {
            memory: RwLock::new(Some(transfers)),
            tally: Mutex::new(Tally {
                open_parts: 0,
                transfers: tallies,
            }),
            finished: Notify::new(),
        })
    }

    /// Runs `plan` over the transfers that have no fault; called once, before anything is sent. `plan` returns all
    /// parts.
    pub(super) fn plan(
        &self,
        plan: impl FnOnce(&mut dyn Iterator<Item = (u32, &Transfer)>) -> Vec<PartPlan>,
    ) -> Vec<PartPlan> {
        let memory = self.memory.read();
        let mut tally = self.tally.lock();
        let sound = memory.iter().flatten().zip(&tally.transfers).zip(0..);
        let mut sound = sound
            .filter(|((_, tally), _)| tally.failure.is_none())
            .map(|((transfer, _), index)| (index, transfer));
        let parts = plan(&mut sound);
        tally.open_parts = parts.len();
        for part in &parts {
            let transfer = &mut tally.transfers[part.transfer as usize];
            transfer.open_parts += 1;
            transfer.sums.push(PartSums {
                len_bytes: part.len_bytes,
                landed: 0,
                sent: None,
            });
        }
        parts
    }

    /// One part has ended.
    pub(super) fn part_ended(&self, part: &PartPlan, outcome: Result<PartDone, TransferError>) {
        let mut tally = self.tally.lock();
        let transfer = &mut tally.transfers[part.transfer as usize];
        transfer.open_parts -= 1;
        match outcome {
            Ok(done) => transfer.part_done(part, done),
            Err(error) => _ = transfer.failure.get_or_insert(error),
        }
        tally.open_parts -= 1;
        if tally.open_parts == 0 {
            self.finished.notify_one();
        }
    }

    /// Waits until all parts have ended.
    pub(super) async fn finished(&self) {
        while !self.is_finished() {
            self.finished.notified().await;
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        self.tally.lock().open_parts == 0
    }

    /// From here on nothing touches the memory; it is let go of.
    pub(super) fn close(&self) {
        let transfers = self.memory.write().take();
        drop(transfers);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.memory.read().is_none()
    }

    /// What became of each transfer; those that are not complete ran into the deadline.
    pub(super) fn results(&self) -> Vec<TransferResult> {
        self.tally.lock().transfers.iter().map(TransferTally::result).collect()
    }
}

impl TransferTally {
    fn part_done(&mut self, part: &PartPlan, done: PartDone) {
        self.moved_bytes += part.len_bytes;
        let sums = &mut self.sums[part.index as usize];
        sums.landed = done.crc64;
        sums.sent = done.sent_crc64;
        if let Some(stamp) = done.stamp {
            let first = *self.stamp.get_or_insert(stamp);
            if first != stamp {
                self.failure.get_or_insert(TransferError::Torn { first, other: stamp });
            }
        }
    }

    fn result(&self) -> TransferResult {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.open_parts > 0 {
            return Err(TransferError::Deadline {
                moved_bytes: self.moved_bytes,
                len_bytes: self.len_bytes,
            });
        }
        let combined = self.sums.iter().copied().reduce(PartSums::then);
        let stamp = self.stamp.filter(|_| self.op == Op::Read);
        Ok(Done {
            bytes: self.moved_bytes,
            stamp,
            crc64: combined.map(|sums| sums.landed),
            sent_crc64: combined.and_then(|sums| sums.sent),
        })
    }
}

impl PartSums {
    /// Of both parts put together.
    fn then(self, next: Self) -> Self {
        let combine = |first, second| checksum::combine(first, second, next.len_bytes);
        Self {
            len_bytes: self.len_bytes + next.len_bytes,
            landed: combine(self.landed, next.landed),
            sent: self.sent.zip(next.sent).map(|(first, second)| combine(first, second)),
        }
    }
}

/// Part of one transfer's memory, from `start_bytes` of the transfer on.
pub(super) struct BatchSpan<'a> {
    pub(super) batch: &'a Batch,
    pub(super) transfer: u32,
    pub(super) start_bytes: u64,
}

impl Span for BatchSpan<'_> {
    fn touch<T>(&self, offset_bytes: u64, touch: impl FnOnce(&Memory, u64, u64) -> T) -> Option<T> {
        let memory = self.batch.memory.read();
        let local = &memory.as_ref()?.get(self.transfer as usize)?.local;
        let (slice, offset_bytes) = find(local, self.start_bytes + offset_bytes)?;
        Some(touch(
            slice.memory(),
            slice.offset_bytes() + offset_bytes,
            slice.len_bytes() - offset_bytes,
        ))
    }
}

/// The slice that holds byte `offset_bytes` of a scatter list, and the place of that byte in it.
fn find(local: &[Slice], mut offset_bytes: u64) -> Option<(&Slice, u64)> {
    for slice in local {
        if offset_bytes < slice.len_bytes() {
            return Some((slice, offset_bytes));
        }
        offset_bytes -= slice.len_bytes();
    }
    None
}

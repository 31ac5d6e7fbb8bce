//! Carrying out batches inside one process, piece by piece, over a way that may be imperfect. Shared by the local and
//! the sim engine.

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::checksum::{self, Crc64};
use crate::engine::{Done, Op, Submission, Transfer, TransferError, TransferResult, faults};
use crate::exports::{Access, Exports, Wanted};
use crate::ids::SessionId;
use crate::memory::{Memory, MemoryError};

/// Transfers are carried in pieces of this size, counted from their start, each guarded on its own.
const PIECE_BYTES: u64 = 1 << 20;

/// What happens to a piece on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives; the bit with this number (modulo its length) is flipped, if one is named.
    Arrives { flipped_bit: Option<u64> },
    /// It never arrives.
    Lost,
    /// Its transfer breaks off.
    BreaksTransfer,
    /// The whole connection breaks.
    BreaksConnection,
}

/// The way between initiator and owner.
pub(crate) trait Way: Send + Sync {
    fn fate(&self) -> Fate {
        Fate::Arrives { flipped_bit: None }
    }

    fn delay(&self) -> Option<Duration> {
        None
    }

    /// Changes the order in which things without an order of their own are carried out.
    fn reorder(&self, _order: &mut [usize]) {}
}

/// A perfect way.
#[derive(Debug)]
pub(crate) struct Direct;

impl Way for Direct {}

/// The inside of a connection to exports of this process.
pub(crate) struct Carrier {
    exports: Arc<Exports>,
    session: SessionId,
    way: Arc<dyn Way>,
    /// Why it is closed, once it is.
    closed: watch::Sender<Option<String>>,
}

impl Carrier {
    pub(crate) fn new(exports: Arc<Exports>, session: SessionId, way: Arc<dyn Way>) -> Arc<Self> {
        Arc::new(Self {
            exports,
            session,
            way,
            closed: watch::Sender::new(None),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.borrow().is_some()
    }

    pub(crate) fn close(&self, reason: &str) {
        self.closed.send_if_modified(|closed| {
            let open = closed.is_none();
            closed.get_or_insert_with(|| reason.to_owned());
            open
        });
    }

    pub(crate) fn submit(self: &Arc<Self>, batch: Vec<Transfer>, deadline: Instant) -> Submission {
        let carrier = Arc::clone(self);
        Submission::new(async move { carrier.carry_out(&batch, deadline).await })
    }

    async fn carry_out(&self, batch: &[Transfer], deadline: Instant) -> Vec<TransferResult> {
        let tallies: Vec<Tally> = batch
            .iter()
            .zip(faults(batch))
            .map(|(transfer, fault)| Tally::new(transfer, fault))
            .collect();
        let mut closed = self.closed.subscribe();
        let units = units(batch, &tallies);
        let mut order: Vec<usize> = (0..units.len()).collect();
        self.way.reorder(&mut order);
        let carrying = join_all(order.iter().map(|unit| self.unit(&units[*unit], batch, &tallies)));
        let ending = async {
            tokio::select! {
                biased;
                reason = closed.wait_for(Option::is_some) => {
                    let reason = reason.ok().and_then(|reason| reason.clone()).unwrap_or_default();
                    for tally in &tallies {
                        tally.fail_if_open(TransferError::Disconnected { reason: reason.clone() });
                    }
                }
                _ = carrying => {}
            }
        };
        // What is not complete by then is told apart in the results.
        _ = timeout_at(deadline, ending).await;
        tallies.iter().map(Tally::result).collect()
    }

    /// Carries out what must be carried out together and in order.
    async fn unit(&self, unit: &[usize], batch: &[Transfer], tallies: &[Tally]) {
        let grouped = batch[unit[0]].group != 0;
        let mut accesses: Vec<Option<Access>> = Vec::new();
        if grouped && batch[unit[0]].op == Op::Read {
            for &index in unit {
                let transfer = &batch[index];
                accesses.push(
                    self.begin(transfer, 0, transfer.len_bytes())
                        .map_err(|e| tallies[index].fail(e))
                        .ok(),
                );
            }
        }
        for (place, &index) in unit.iter().enumerate() {
            let (transfer, tally) = (&batch[index], &tallies[index]);
            let common = accesses.get(place);
            if common.is_some_and(Option::is_none) {
                continue;
            }
            let mut pieces: Vec<usize> = (0..tally.pieces()).collect();
            if !grouped {
                self.way.reorder(&mut pieces);
            }
            for piece in pieces {
                if let Err(error) = self
                    .piece(transfer, tally, piece, common.and_then(Option::as_ref))
                    .await
                {
                    tally.fail(error);
                    break;
                }
            }
        }
    }

    fn begin(&self, transfer: &Transfer, start_bytes: u64, len_bytes: u64) -> Result<Access, TransferError> {
        let offset_bytes = transfer.remote_offset_bytes.saturating_add(start_bytes);
        self.exports.begin(
            self.session,
            &Wanted {
                op: transfer.op,
                key: transfer.key,
                offset_bytes,
                len_bytes,
            },
        )
    }

    /// Carries one piece, under the common access of its group or one of its own.
    async fn piece(
        &self,
        transfer: &Transfer,
        tally: &Tally,
        piece: usize,
        common: Option<&Access>,
    ) -> Result<(), TransferError> {
        let (start_bytes, len_bytes) = tally.piece(piece);
        let own = match common {
            Some(_) => None,
            None => Some(self.begin(transfer, start_bytes, len_bytes)?),
        };
        if let Some(delay) = self.way.delay() {
            sleep(delay).await;
        }
        tokio::task::yield_now().await;
        let flipped_bit = match self.way.fate() {
            Fate::Arrives { flipped_bit } => flipped_bit,
            Fate::Lost => pending().await,
            Fate::BreaksTransfer => {
                return Err(TransferError::Disconnected {
                    reason: "the transfer broke off".to_owned(),
                });
            }
            Fate::BreaksConnection => {
                self.close("the connection broke");
                return Err(TransferError::Disconnected {
                    reason: "the connection broke".to_owned(),
                });
            }
        };
        let (access, offset_bytes) = match (common, &own) {
            (Some(access), _) => (access, start_bytes),
            (None, Some(access)) => (access, 0),
            (None, None) => unreachable!("a piece has the access of its group or one of its own"),
        };
        let crc64 = copy(transfer, start_bytes, access, offset_bytes, len_bytes, flipped_bit)?;
        if transfer.op == Op::Write {
            access.wrote(crc64);
        }
        tally.moved(piece, crc64, (transfer.op == Op::Read).then(|| access.stamp()))
    }
}

/// Indices of transfers that must be carried out together: groups, and each independent transfer for itself.
fn units(batch: &[Transfer], tallies: &[Tally]) -> Vec<Vec<usize>> {
    let mut units: Vec<Vec<usize>> = Vec::new();
    let mut groups = HashMap::new();
    for (index, transfer) in batch
        .iter()
        .enumerate()
        .filter(|(index, _)| !tallies[*index].has_failed())
    {
        if transfer.group == 0 {
            units.push(vec![index]);
            continue;
        }
        let unit = *groups.entry(transfer.group).or_insert_with(|| {
            units.push(Vec::new());
            units.len() - 1
        });
        units[unit].push(index);
    }
    units
}

/// Copies one piece between the local slices, from `start_bytes` of the transfer on, and the access, from
/// `offset_bytes` on. Returns the checksum of what landed.
fn copy(
    transfer: &Transfer,
    start_bytes: u64,
    access: &Access,
    offset_bytes: u64,
    len_bytes: u64,
    flipped_bit: Option<u64>,
) -> Result<u64, TransferError> {
    let mut crc = Crc64::new();
    let flipped = flipped_bit.map(|bit| (bit / 8 % len_bytes, 1 << (bit % 8)));
    let mut skip = start_bytes;
    let mut copied = 0;
    for slice in &transfer.local {
        if skip >= slice.len_bytes() {
            skip -= slice.len_bytes();
            continue;
        }
        let here = (slice.len_bytes() - skip).min(len_bytes - copied);
        let local_at = slice.offset_bytes() + skip;
        skip = 0;
        let flip = flipped
            .filter(|(at, _)| (copied..copied + here).contains(at))
            .map(|(at, mask)| (at - copied, mask));
        let done = access.touch(offset_bytes + copied, |memory, at| match transfer.op {
            Op::Read => land((memory, at), (slice.memory(), local_at), here, flip, &mut crc),
            Op::Write => land((slice.memory(), local_at), (memory, at), here, flip, &mut crc),
        })?;
        done.expect("slices and accesses lie inside their memory");
        copied += here;
        if copied == len_bytes {
            break;
        }
    }
    Ok(crc.value())
}

fn land(
    from: (&Memory, u64),
    to: (&Memory, u64),
    len_bytes: u64,
    flip: Option<(u64, u8)>,
    crc: &mut Crc64,
) -> Result<(), MemoryError> {
    from.0.copy_within(from.1..from.1 + len_bytes, to.0, to.1)?;
    if let Some((at, mask)) = flip {
        let mut byte = [0];
        to.0.copy_out(to.1 + at, &mut byte)?;
        to.0.copy_in(to.1 + at, &[byte[0] ^ mask])?;
    }
    to.0.crc64_into(crc, to.1..to.1 + len_bytes)
}

/// What is known of one transfer.
struct Tally {
    len_bytes: u64,
    state: Mutex<TallyState>,
}

#[derive(Default)]
struct TallyState {
    /// Checksums of the pieces that were moved.
    crcs: Vec<Option<u64>>,
    moved_bytes: u64,
    stamp: Option<u64>,
    failure: Option<TransferError>,
}

impl Tally {
    fn new(transfer: &Transfer, fault: Option<TransferError>) -> Self {
        let len_bytes = transfer.len_bytes();
        let pieces = usize::try_from(len_bytes.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX);
        let state = TallyState {
            crcs: vec![None; pieces],
            failure: fault,
            ..TallyState::default()
        };
        Self {
            len_bytes,
            state: Mutex::new(state),
        }
    }

    fn pieces(&self) -> usize {
        self.state.lock().crcs.len()
    }

    /// Start and length of a piece.
    fn piece(&self, piece: usize) -> (u64, u64) {
        let start_bytes = piece as u64 * PIECE_BYTES;
        (start_bytes, PIECE_BYTES.min(self.len_bytes - start_bytes))
    }

    fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    fn fail(&self, error: TransferError) {
        self.state.lock().failure.get_or_insert(error);
    }

    fn fail_if_open(&self, error: TransferError) {
        let mut state = self.state.lock();
        if state.moved_bytes < self.len_bytes {
            state.failure.get_or_insert(error);
        }
    }

    fn moved(&self, piece: usize, crc64: u64, stamp: Option<u64>) -> Result<(), TransferError> {
        let (_, piece_bytes) = self.piece(piece);
        let mut state = self.state.lock();
        state.crcs[piece] = Some(crc64);
        state.moved_bytes += piece_bytes;
        if let Some(other) = stamp {
            let first = *state.stamp.get_or_insert(other);
            if first != other {
                return Err(TransferError::Torn { first, other });
            }
        }
        Ok(())
    }

    fn result(&self) -> TransferResult {
        let state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        let crcs: Option<Vec<u64>> = state.crcs.iter().copied().collect();
        let Some(crcs) = crcs else {
            return Err(TransferError::Deadline {
                moved_bytes: state.moved_bytes,
                len_bytes: self.len_bytes,
            });
        };
        let pieces = crcs
            .iter()
            .enumerate()
            .map(|(piece, crc64)| (*crc64, self.piece(piece).1));
        let whole = pieces.reduce(|(first, first_bytes), (second, second_bytes)| {
            (
                checksum::combine(first, second, second_bytes),
                first_bytes + second_bytes,
            )
        });
        Ok(Done {
            bytes: self.len_bytes,
            stamp: state.stamp,
            crc64: whole.map(|(crc64, _)| crc64),
            sent_crc64: None,
        })
    }
}

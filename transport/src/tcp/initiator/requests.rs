//! The requests of one lane: queued, under way, and what becomes of them when the lane dies.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::checksum::Crc64;
use crate::engine::{Op, TransferError};
use crate::limits::MAX_BATCH_TRANSFERS;
use crate::tcp::initiator::batch::{Batch, BatchSpan, PartDone};
use crate::tcp::initiator::plan::PartPlan;
use crate::tcp::initiator::window::Ticket;
use crate::tcp::wire::ReadEntry;

/// The requests of one lane, across its reopenings.
#[derive(Debug)]
pub(super) struct Requests {
    state: Mutex<State>,
    work: Notify,
    /// Bytes of all requests that have not ended: the lane with the fewest gets the next.
    open_bytes: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Why no request is taken, if none is.
    dead: Option<String>,
    queue: VecDeque<Outgoing>,
    under_way: HashMap<u64, Part>,
    next_request: u64,
}

/// What the writer of a lane has to send.
#[derive(Debug)]
pub(super) enum Outgoing {
    Reads { first: u64, entries: Vec<ReadEntry> },
    Write { request: u64 },
    Cancel { requests: Range<u64> },
}

impl Requests {
    pub(super) fn new() -> Arc<Self> {
        let state = State {
            dead: Some("not open yet".to_owned()),
            queue: VecDeque::new(),
            under_way: HashMap::new(),
            next_request: 1,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            work: Notify::new(),
            open_bytes: AtomicU64::new(0),
        })
    }

    pub(super) fn is_live(&self) -> bool {
        self.state.lock().dead.is_none()
    }

    pub(super) fn open_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.state.lock().under_way.is_empty()
    }

    pub(super) fn come_alive(&self) {
        self.state.lock().dead = None;
    }

    /// Fails all requests and takes no new ones.
    pub(super) fn die(&self, reason: &str) {
        let mut state = self.state.lock();
        state.dead = Some(reason.to_owned());
        state.queue.clear();
        let orphans = std::mem::take(&mut state.under_way);
        drop(state);
        // Outside of the lock: each part asks for the reason.
        drop(orphans);
    }

    fn death(&self) -> TransferError {
        let reason = self.state.lock().dead.clone();
        TransferError::Disconnected {
            reason: reason.unwrap_or_else(|| "the lane was lost".to_owned()),
        }
    }

    /// Queues parts of a batch in order; returns their request numbers. On a dead lane they fail.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        batch: &Arc<Batch>,
        parts: impl Iterator<Item = (PartPlan, Ticket)>,
    ) -> Range<u64> {
        let mut rejected = Vec::new();
        let mut outgoing = VecDeque::new();
        let mut state = self.state.lock();
        let first = state.next_request;
        for (plan, ticket) in parts {
            self.open_bytes.fetch_add(plan.len_bytes, Ordering::Relaxed);
            let part = Part {
                batch: Arc::clone(batch),
                plan,
                requests: Arc::clone(self),
                _ticket: ticket,
                received_bytes: 0,
                crc: Crc64::new(),
                sent: None,
                wrote: None,
                ended: false,
            };
            if state.dead.is_some() {
                rejected.push(part);
                continue;
            }
            let request = state.next_request;
            state.next_request += 1;
            push(&mut outgoing, request, &plan);
            state.under_way.insert(request, part);
        }
        let requests = first..state.next_request;
        state.queue.append(&mut outgoing);
        drop(state);
        // Outside of the lock: each part asks for the reason.
        drop(rejected);
        self.work.notify_one();
        requests
    }

    /// Nobody waits for these any more: what is not sent yet is not sent, and the target is told of the rest.
    pub(super) fn cancel(&self, requests: Range<u64>) {
        let mut state = self.state.lock();
        let State { queue, under_way, .. } = &mut *state;
        let mut unsent = Vec::new();
        queue.retain(|outgoing| {
            let queued = outgoing.requests();
            let keep = queued.start < requests.start || queued.end > requests.end;
            if !keep && !matches!(outgoing, Outgoing::Cancel { .. }) {
                unsent.extend(queued.filter_map(|request| under_way.remove(&request)));
            }
            keep
        });
        if under_way.keys().any(|request| requests.contains(request)) {
            queue.push_front(Outgoing::Cancel { requests });
            self.work.notify_one();
        }
        drop(state);
        // Outside of the lock: each part asks for the reason.
        drop(unsent);
    }

    /// What to send next.
    pub(super) fn next(&self) -> Option<Outgoing> {
        self.state.lock().queue.pop_front()
    }

    pub(super) async fn wait_for_work(&self) {
        self.work.notified().await;
    }

    /// The batch and plan of a write, unless it has ended.
    pub(super) fn write(&self, request: u64) -> Option<(Arc<Batch>, PartPlan)> {
        let state = self.state.lock();
        state
            .under_way
            .get(&request)
            .map(|part| (Arc::clone(&part.batch), part.plan))
    }

    /// The payload of a write has been sent, with this checksum.
    pub(super) fn sent(&self, request: u64, crc64: u64) {
        self.half_done(request, |part| part.sent = Some(crc64));
    }

    /// The owner has the payload of a write, with this checksum. Returns false if there is no such request under way.
    #[must_use]
    pub(super) fn wrote(&self, request: u64, crc64: u64) -> bool {
        self.half_done(request, |part| part.wrote = Some(crc64))
    }

    /// Both have to be known of a write before it is done, in whatever order they come.
    fn half_done(&self, request: u64, note: impl FnOnce(&mut Part)) -> bool {
        let mut state = self.state.lock();
        let Some(part) = state
            .under_way
            .get_mut(&request)
            .filter(|part| part.plan.op == Op::Write)
        else {
            return false;
        };
        note(part);
        let done = part.sent.zip(part.wrote);
        let ended = done.and_then(|done| Some((state.under_way.remove(&request)?, done)));
        drop(state);
        if let Some((part, (sent, wrote))) = ended {
            part.end(Ok(PartDone {
                crc64: wrote,
                stamp: None,
                sent_crc64: Some(sent),
            }));
        }
        true
    }

    /// Takes a request out.
    pub(super) fn take(&self, request: u64) -> Option<Part> {
        self.state.lock().under_way.remove(&request)
    }

    /// Puts back a request that was taken out and is not done. On a lane that has died meanwhile it fails.
    pub(super) fn put_back(&self, request: u64, part: Part) {
        let mut state = self.state.lock();
        let rejected = if state.dead.is_some() {
            Some(part)
        } else {
            state.under_way.insert(request, part)
        };
        drop(state);
        // Outside of the lock: the part asks for the reason.
        drop(rejected);
    }
}

/// Queues a request behind those of the same batch; reads that follow each other are asked for together.
fn push(queue: &mut VecDeque<Outgoing>, request: u64, plan: &PartPlan) {
    if plan.op == Op::Write {
        queue.push_back(Outgoing::Write { request });
        return;
    }
    let entry = ReadEntry {
        key: plan.key,
        offset_bytes: plan.remote_offset_bytes,
        len_bytes: plan.len_bytes,
    };
    match queue.back_mut() {
        Some(Outgoing::Reads { entries, .. }) if entries.len() < MAX_BATCH_TRANSFERS => entries.push(entry),
        _ => queue.push_back(Outgoing::Reads {
            first: request,
            entries: vec![entry],
        }),
    }
}

impl Outgoing {
    fn requests(&self) -> Range<u64> {
        match self {
            Self::Reads { first, entries } => *first..*first + entries.len() as u64,
            Self::Write { request } => *request..*request + 1,
            Self::Cancel { requests } => requests.clone(),
        }
    }
}

/// A request that has not ended. Dropped without having ended, it fails with the lane's reason: no part is ever
/// forgotten.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) batch: Arc<Batch>,
    pub(super) plan: PartPlan,
    requests: Arc<Requests>,
    _ticket: Ticket,
    pub(super) received_bytes: u64,
    pub(super) crc: Crc64,
    /// Of a write: the checksum of what was sent, and of what arrived.
    sent: Option<u64>,
    wrote: Option<u64>,
    ended: bool,
}

impl Part {
    /// Where the next bytes of a read land, beside the checksum that they are added to.
    pub(super) fn landing(&mut self) -> (BatchSpan<'_>, &mut Crc64) {
        let start_bytes = self.plan.start_bytes + self.received_bytes;
        (
            BatchSpan {
                batch: &self.batch,
                transfer: self.plan.transfer,
                start_bytes,
            },
            &mut self.crc,
        )
    }

    pub(super) fn end(mut self, outcome: Result<PartDone, TransferError>) {
        self.ended = true;
        self.batch.part_ended(&self.plan, outcome);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.requests
            .open_bytes
            .fetch_sub(self.plan.len_bytes, Ordering::Relaxed);
        if !self.ended {
            self.batch.part_ended(&self.plan, Err(self.requests.death()));
        }
    }
}

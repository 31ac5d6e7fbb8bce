//! Completion queues: what became of posted requests.

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::device::Device;
use super::error::VerbsError;
use super::posted::{Posted, Side, parse};
use super::raw;
use super::request::{Completion, Done, Payload, ReceiveRequest, SendRequest, Status};

/// One work completion, as the device gives it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkCompletion {
    pub(super) request: u64,
    pub(super) status: u32,
    pub(super) len_bytes: u32,
    pub(super) vendor_error: u32,
}

/// A completion queue, for any number of queue pairs that fit. Every signalled request posted to them gives exactly one
/// [`Completion`] here, whatever happens to its queue pair; an unsignalled one gives one if it fails, and else none.
pub struct CompletionQueue<T> {
    raw: raw::Cq,
    device: Arc<Device>,
    entries: u32,
    state: Mutex<State<T>>,
    /// Requests that are posted, or about to be, and were not released.
    posted: AtomicUsize,
    /// An event was asked for, and the events there are were not taken since.
    armed: Mutex<bool>,
    /// Notified when the reaper is to look: somebody else put completions into the inbox, or leaves the rest to it.
    woken: Notify,
}

struct State<T> {
    /// Queue pairs by registration.
    queue_pairs: HashMap<u32, Registered<T>>,
    next_registration: u32,
    reserved: u32,
    /// Taken from the device, and not yet by the reaper.
    inbox: Vec<Completion<T>>,
    /// Completions of nothing that is posted: of queue pairs that are gone.
    stale: u64,
    found: Vec<WorkCompletion>,
}

struct Registered<T> {
    posted: Arc<Posted<T>>,
    queue_pair: u32,
    entries: u32,
}

/// Requests that are over and not told of. Dropped outside of the lock: contexts and regions may do anything then.
struct Swept<T>(#[expect(dead_code, reason = "to be dropped")] Vec<SendRequest<T>>);

impl<T: Send + 'static> CompletionQueue<T> {
    /// A queue with room for `entries` requests: the sum of what its queue pairs may have under way. Clamped to what the
    /// device has; [`CompletionQueue::free`] tells.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let entries = entries.clamp(1, device.attributes().max_completions.max(1));
        let channel = raw::Channel::new(device.raw());
        let channel = channel.map_err(|source| device.failed("create a completion channel", source))?;
        let raw = raw::Cq::new(Arc::new(channel), device.raw(), entries);
        let raw = raw.map_err(|source| device.failed("create a completion queue", source))?;
        Ok(Arc::new(Self {
            raw,
            device: Arc::clone(device),
            entries,
            state: Mutex::new(State {
                queue_pairs: HashMap::new(),
                next_registration: 1,
                reserved: 0,
                inbox: Vec::new(),
                stale: 0,
                found: Vec::new(),
            }),
            posted: AtomicUsize::new(0),
            armed: Mutex::new(false),
            woken: Notify::new(),
        }))
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Entries that further queue pairs may take.
    #[must_use]
    pub fn free(&self) -> u32 {
        self.entries - self.state.lock().reserved
    }

    /// Appends what is complete, without waiting; returns how many were added. At most one batch of the device's is
    /// taken: ask again until there is nothing.
    ///
    /// # Errors
    /// [`VerbsError::System`] if the device cannot be asked any more: it failed, or the queue overran.
    pub fn poll(&self, into: &mut Vec<Completion<T>>) -> Result<usize, VerbsError> {
        let before = into.len();
        let mut swept = Vec::new();
        let polled = {
            let mut state = self.state.lock();
            let polled = self.poll_device(&mut state, &mut swept);
            into.append(&mut state.inbox);
            polled
        };
        drop(Swept(swept));
        polled?;
        Ok(into.len() - before)
    }

    /// Sees to it that there is an event once something completes from here on; who asks polls after that, for what
    /// completed before. One event wakes the reaper for all, so that nobody asks while one is awaited: whoever posts says so
    /// first ([`CompletionQueue::expect`]) and then looks whether one is, and the reaper takes the events first and then looks
    /// whether anything is posted. One of the two finds the other.
    pub(super) fn arm(&self) -> Result<(), VerbsError> {
        // Whoever finds that an event is awaited polls at once: so the device was asked for it by then, and not just about to be.
        let mut armed = self.armed.lock();
        if !*armed {
            let asked = self.raw.arm();
            asked.map_err(|source| self.device.failed("arm a completion queue", source))?;
            *armed = true;
        }
        Ok(())
    }

    /// All events that are there were taken.
    pub(super) fn disarmed(&self) {
        *self.armed.lock() = false;
    }

    /// So many requests are about to be posted.
    pub(super) fn expect(&self, requests: usize) {
        self.posted.fetch_add(requests, Ordering::SeqCst);
    }

    /// So many requests were released, or not posted.
    pub(super) fn released(&self, requests: usize) {
        self.posted.fetch_sub(requests, Ordering::SeqCst);
    }

    /// Whether anything may complete.
    pub(super) fn has_posted(&self) -> bool {
        self.posted.load(Ordering::SeqCst) > 0
    }

    /// Has the reaper look what is complete, and ask for an event if something is still posted.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Resolves when the reaper is to look.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }

    pub(super) fn raw(&self) -> &raw::Cq {
        &self.raw
    }

    /// Takes room for a queue pair, and a number that no other will have.
    pub(super) fn reserve(&self, entries: u32) -> Result<u32, VerbsError> {
        let mut state = self.state.lock();
        let free = self.entries - state.reserved;
        if entries > free {
            return Err(VerbsError::CompletionQueueFull { wanted: entries, free });
        }
        state.reserved += entries;
        let registration = state.next_registration;
        state.next_registration = registration
            .checked_add(1)
            .expect("four thousand million queue pairs are out of reach");
        Ok(registration)
    }

    /// Gives back room that no queue pair came to use.
    pub(super) fn unreserve(&self, entries: u32) {
        self.state.lock().reserved -= entries;
    }

    /// Lets completions of a queue pair find its requests.
    pub(super) fn register(&self, posted: &Arc<Posted<T>>, queue_pair: u32, entries: u32) {
        let registered = Registered {
            posted: Arc::clone(posted),
            queue_pair,
            entries,
        };
        self.state.lock().queue_pairs.insert(posted.registration(), registered);
    }

    /// Takes everything that is complete into the inbox. So no completion of a queue pair that was just destroyed takes
    /// an entry that another could need.
    pub(super) fn absorb(&self) {
        let mut swept = Vec::new();
        let mut state = self.state.lock();
        let mut left = self.entries;
        let delivered = loop {
            match self.poll_device(&mut state, &mut swept) {
                Ok(taken) if taken > 0 && left > 0 => left = left.saturating_sub(taken),
                // A queue that cannot be asked is the reaper's to report.
                Ok(_) | Err(_) => break !state.inbox.is_empty(),
            }
        };
        drop(state);
        if delivered {
            self.wake();
        }
        drop(Swept(swept));
    }

    /// Ends a queue pair that the device does not know any more: what is still posted counts as flushed.
    pub(super) fn retire(&self, posted: &Arc<Posted<T>>) {
        let (sent, received) = (posted.send.lock().take_all(), posted.receive.lock().take_all());
        self.released(sent.len() + received.len());
        let mut state = self.state.lock();
        let Some(ended) = state.queue_pairs.remove(&posted.registration()) else {
            return;
        };
        state.reserved -= ended.entries;
        let flushed = WorkCompletion {
            request: 0,
            status: rdma_sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
            len_bytes: 0,
            vendor_error: 0,
        };
        let sent = sent
            .into_iter()
            .map(|request| of_send(request, &flushed, ended.queue_pair));
        let received = received
            .into_iter()
            .map(|request| of_receive(request, &flushed, ended.queue_pair));
        state.inbox.extend(sent.chain(received));
        let delivered = !state.inbox.is_empty();
        drop(state);
        if delivered {
            self.wake();
        }
        ended.posted.emptied.notify_waiters();
    }

    /// Takes one batch of completions from the device into the inbox; returns how many the device gave.
    fn poll_device(&self, state: &mut State<T>, swept: &mut Vec<SendRequest<T>>) -> Result<u32, VerbsError> {
        let mut found = mem::take(&mut state.found);
        found.clear();
        let polled = self.raw.poll(&mut found);
        let released: usize = found.iter().map(|completion| state.complete(completion, swept)).sum();
        self.released(released);
        state.found = found;
        let taken = polled.map_err(|source| self.device.failed("poll a completion queue", source))?;
        Ok(u32::try_from(taken).unwrap_or(u32::MAX))
    }
}

impl<T> State<T> {
    /// Finds the request of a completion, releases it and those it stands for, and tells of it where that is wanted. Returns
    /// how many it released.
    fn complete(&mut self, completion: &WorkCompletion, swept: &mut Vec<SendRequest<T>>) -> usize {
        let (registration, side, sequence) = parse(completion.request);
        let Some(registered) = self.queue_pairs.get(&registration) else {
            self.stale += 1;
            return 0;
        };
        let (posted, queue_pair) = (&registered.posted, registered.queue_pair);
        let (mut released, swept_before) = (0, swept.len());
        let (told, emptied) = match side {
            Side::Send => {
                let mut ring = posted.send.lock();
                let complete = ring.complete(sequence, swept);
                released += usize::from(complete.is_some()) + swept.len() - swept_before;
                let emptied = ring.is_empty();
                drop(ring);
                let failed = completion.status != rdma_sys::ibv_wc_status::IBV_WC_SUCCESS;
                let told = complete.map(|complete| {
                    if complete.wanted || failed {
                        Some(of_send(complete.request, completion, queue_pair))
                    } else {
                        swept.push(complete.request);
                        None
                    }
                });
                (told, emptied)
            }
            Side::Receive => {
                let mut ring = posted.receive.lock();
                let complete = ring.complete(sequence, &mut Vec::new());
                released += usize::from(complete.is_some());
                let emptied = ring.is_empty();
                drop(ring);
                let told = complete.map(|complete| Some(of_receive(complete.request, completion, queue_pair)));
                (told, emptied)
            }
        };
        match told {
            Some(told) => self.inbox.extend(told),
            None => self.stale += 1,
        }
        if emptied && posted.len() == 0 {
            posted.emptied.notify_waiters();
        }
        released
    }
}

fn of_send<T>(request: SendRequest<T>, completion: &WorkCompletion, queue_pair: u32) -> Completion<T> {
    let done = request.done();
    let parts = match request.payload {
        Payload::Parts(parts) => parts,
        Payload::Inline(_) => Vec::new(),
    };
    told(request.context, done, parts, completion, queue_pair)
}

fn of_receive<T>(request: ReceiveRequest<T>, completion: &WorkCompletion, queue_pair: u32) -> Completion<T> {
    told(request.context, Done::Receive, request.parts, completion, queue_pair)
}

fn told<T>(
    context: T,
    done: Done,
    parts: Vec<super::Local>,
    completion: &WorkCompletion,
    queue_pair: u32,
) -> Completion<T> {
    let status = Status::from(completion.status);
    let counts_bytes = matches!(done, Done::Read | Done::Receive) && status == Status::Success;
    Completion {
        context,
        done,
        status,
        len_bytes: if counts_bytes { completion.len_bytes } else { 0 },
        vendor_error: completion.vendor_error,
        parts,
        queue_pair,
    }
}

impl<T> fmt::Debug for CompletionQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("CompletionQueue")
            .field("device", &self.device.name())
            .field("entries", &self.entries)
            .field("reserved", &state.reserved)
            .field("queue_pairs", &state.queue_pairs.len())
            .field("posted", &self.posted)
            .field("stale", &state.stale)
            .finish_non_exhaustive()
    }
}

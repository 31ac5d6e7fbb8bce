//! A connected queue pair to a peer: what is posted on it, how much it is used, and how it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{spawn_blocking, yield_now};
use tokio::time::{Instant, timeout};

use super::flight::{Flight, Ticket};
use super::places::Place;
use super::pool::Slot;
use super::reaping::{Unwatched, deliver_complete};
use crate::exports::Access as Granted;
use crate::limits::{VERBS_FLUSH_TIMEOUT, VERBS_SLICE_BYTES};
use crate::verbs::{
    Endpoint, GidEntry, Local, MemoryWindow, Payload, PostError, PostFailure, QueuePair, Remote, SendRequest, Status,
    Timing, VerbsError,
};

/// One queue pair, connected over one rail.
#[derive(Debug)]
pub(super) struct Path {
    /// How both ends name it.
    pub(super) number: u8,
    /// Which of this process's rails.
    pub(super) rail: usize,
    /// The owner lets the initiator write over it, under windows.
    pub(super) pushes: bool,
    /// Windows that are not bound. They go before their queue pair.
    windows: Mutex<Vec<MemoryWindow<Ticket>>>,
    queue_pair: QueuePair<Ticket>,
    /// Places of the send queue, of which long reads take several.
    places: Arc<Semaphore>,
    usage: Usage,
    /// It was ended on this side.
    has_failed: AtomicBool,
}

/// How much a path is used, or since when it is not.
#[derive(Debug)]
struct Usage {
    open_bytes: AtomicU64,
    uses: Mutex<Uses>,
}

#[derive(Debug)]
struct Uses {
    open: usize,
    /// When the last one ended, if none is open.
    since: Instant,
}

impl Usage {
    fn new() -> Self {
        Self {
            open_bytes: AtomicU64::new(0),
            uses: Mutex::new(Uses {
                open: 0,
                since: Instant::now(),
            }),
        }
    }

    fn begin(&self, bytes: u64) {
        self.open_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.uses.lock().open += 1;
    }

    fn end(&self, bytes: u64) {
        self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut uses = self.uses.lock();
        uses.open -= 1;
        uses.since = Instant::now();
    }

    /// It can be used from now on.
    fn start(&self) {
        self.uses.lock().since = Instant::now();
    }

    fn idle(&self) -> Option<Duration> {
        let uses = self.uses.lock();
        (uses.open == 0).then(|| uses.since.elapsed())
    }
}

/// A read to be posted.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// Its place in its flight.
    pub(super) request: usize,
    pub(super) from: Remote,
    /// What is known of where that is, if the peer may want it forgotten.
    pub(super) place: Option<Arc<Place>>,
    pub(super) into: Vec<Local>,
    /// Slots of the rail's among them.
    pub(super) slots: Vec<Arc<Slot>>,
    /// What keeps the memory that it lands in from being used for anything else.
    pub(super) access: Option<Arc<Granted>>,
}

impl ReadRequest {
    /// What it takes of a send queue with so many places.
    fn places(&self, all: u32) -> u32 {
        places_of(self.into.iter().map(|part| u64::from(part.len_bytes())).sum(), all)
    }
}

/// One place per [`VERBS_SLICE_BYTES`]. So no more bytes are under way on a path where reads are long than where they are short, and a peer
/// that wants its memory back waits no longer for them.
fn places_of(len_bytes: u64, all: u32) -> u32 {
    let slices = u32::try_from(len_bytes.div_ceil(VERBS_SLICE_BYTES)).unwrap_or(u32::MAX);
    slices.clamp(1, all)
}

/// A write to be posted.
#[derive(Debug)]
pub(super) struct WriteRequest {
    /// Its place in its flight.
    pub(super) request: usize,
    pub(super) to: Remote,
    pub(super) from: Vec<Local>,
}

impl Path {
    pub(super) fn new(number: u8, rail: usize, pushes: bool, queue_pair: QueuePair<Ticket>) -> Arc<Self> {
        let places = queue_pair.options().send_requests as usize;
        Arc::new(Self {
            number,
            rail,
            pushes,
            windows: Mutex::default(),
            queue_pair,
            places: Arc::new(Semaphore::new(places)),
            usage: Usage::new(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// What a peer must know of it, as it is told anew.
    #[cfg(feature = "conformance")]
    pub(super) fn endpoint(&self, gid: &GidEntry) -> Result<Endpoint, VerbsError> {
        self.queue_pair.endpoint(gid, rand::random())
    }

    pub(super) fn queue_pair_number(&self) -> u32 {
        self.queue_pair.number()
    }

    /// Posts reads in order, as the queue has room for them. Each lands in its flight; as [`Status::LocalOperation`] without being
    /// posted if the peer wants its place forgotten by now.
    pub(super) async fn post(&self, flight: &Arc<Flight>, reads: Vec<ReadRequest>) {
        let mut reads = reads.into_iter().peekable();
        let all = self.queue_pair.options().send_requests;
        while let Some(first) = reads.peek() {
            // The semaphore is never closed.
            let Ok(places) = Arc::clone(&self.places).acquire_many_owned(first.places(all)).await else {
                return;
            };
            let mut next = Some(places);
            let mut requests = Vec::new();
            while let Some(places) = next.take()
                && let Some(read) = reads.next()
            {
                if read.place.is_some_and(|of| of.is_withdrawn()) {
                    flight.land(read.request, Status::LocalOperation);
                } else {
                    let ticket = Ticket::new(flight, read.request, places, read.slots, read.access);
                    requests.push(SendRequest::read(read.from, read.into, ticket));
                }
                next = reads
                    .peek()
                    .and_then(|read| Arc::clone(&self.places).try_acquire_many_owned(read.places(all)).ok());
            }
            self.post_now(requests);
        }
    }

    /// Posts writes, one after the other, as the queue has room for them. Each lands in its flight.
    pub(super) async fn post_writes(&self, flight: &Arc<Flight>, writes: Vec<WriteRequest>) {
        for write in writes {
            let Some(ticket) = self.ticket(flight, write.request).await else {
                return;
            };
            self.post_now(vec![SendRequest::write(write.to, Payload::Parts(write.from), ticket)]);
        }
    }

    /// Places in the queue for so many requests; `None` if there are not as many now.
    pub(super) fn places(&self, requests: usize) -> Option<OwnedSemaphorePermit> {
        let requests = u32::try_from(requests).ok()?;
        Arc::clone(&self.places).try_acquire_many_owned(requests).ok()
    }

    /// A place in the queue for one request, when there is one.
    pub(super) async fn ticket(&self, flight: &Arc<Flight>, request: usize) -> Option<Ticket> {
        // The semaphore is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(Ticket::new(flight, request, place, Vec::new(), None))
    }

    /// A window that is not bound; `None` if the device has no more.
    pub(super) fn spare_window(&self) -> Option<MemoryWindow<Ticket>> {
        if let Some(window) = self.windows.lock().pop() {
            return Some(window);
        }
        let made = MemoryWindow::new(&self.queue_pair);
        made.inspect_err(|error| tracing::debug!(path = self.number, %error, "no window can be made"))
            .ok()
    }

    /// Keeps a window that is not bound any more for the next time.
    pub(super) fn keep_window(&self, window: MemoryWindow<Ticket>) {
        self.windows.lock().push(window);
    }

    /// Posts reads that all have their places, and waits until they have landed. What is so small is complete soon: so it is
    /// polled for, `spin` long and at least once, before an event is asked for. Without a processor to spin on, the thread gives
    /// its own away between two polls.
    pub(super) async fn post_small(&self, flight: &Flight, requests: Vec<SendRequest<Ticket>>, spin: Duration) {
        let queue = self.queue_pair.completions();
        let unwatched = Unwatched::new(queue);
        self.posted(self.queue_pair.post_send_unwatched(requests));
        let begun = Instant::now();
        deliver_complete(queue);
        if !flight.is_landed() && spin.is_zero() {
            // Whoever works at it shares the processor: it goes first, once.
            thread::yield_now();
            deliver_complete(queue);
        }
        while !flight.is_landed() && begun.elapsed() < spin {
            yield_now().await;
            deliver_complete(queue);
        }
        if flight.is_landed() {
            return unwatched.end();
        }
        unwatched.watch();
        flight.landed().await;
    }

    fn post_now(&self, requests: Vec<SendRequest<Ticket>>) {
        self.posted(self.queue_pair.post_send(requests));
    }

    /// What was not posted has ended.
    fn posted(&self, posted: Result<(), PostError<SendRequest<Ticket>>>) {
        let Err(error) = posted else {
            return;
        };
        let status = match error.failure {
            // The request itself is at fault: another queue pair would not take it either.
            PostFailure::TooManyParts { .. } | PostFailure::TooLong { .. } | PostFailure::OtherDomain => {
                Status::LocalOperation
            }
            _ if self.has_failed.load(Ordering::Relaxed) => Status::Flushed,
            // For no other's sake.
            _ => Status::Fatal,
        };
        tracing::debug!(path = self.number, %error, "requests were not posted");
        for request in error.rejected {
            // Its parts go before its owner hears of it.
            let ticket = request.into_context();
            ticket.complete(status);
        }
    }

    /// It can be used from now on.
    pub(super) fn start(&self) {
        self.usage.start();
    }

    /// Counts bytes that are to move over it, and that it is in use, until what is returned is dropped.
    pub(super) fn load(self: &Arc<Self>, bytes: u64) -> Load {
        self.usage.begin(bytes);
        Load {
            path: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn open_bytes(&self) -> u64 {
        self.usage.open_bytes.load(Ordering::Relaxed)
    }

    /// For how long nothing has moved over it on this side's behalf; `None` while something does.
    pub(super) fn idle(&self) -> Option<Duration> {
        let all = self.queue_pair.options().send_requests as usize;
        let idle = self.usage.idle()?;
        (self.places.available_permits() == all).then_some(idle)
    }

    /// Ends it: whatever is posted is flushed.
    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
        if let Err(error) = self.queue_pair.fail() {
            tracing::error!(path = self.number, %error, "a queue pair cannot be moved to ERR");
        }
    }

    /// Waits until nothing of a flight is under way, after the path has failed: then no memory of it is touched any more.
    pub(super) async fn flushed(&self, flight: &Flight) {
        if timeout(VERBS_FLUSH_TIMEOUT, flight.settled()).await.is_err() {
            tracing::error!(
                path = self.number,
                "a device does not flush a queue pair; its memory stays registered"
            );
        }
    }
}

/// Connects a queue pair. The kernel waits up to a second for the hardware address of a peer that does not answer, and whoever
/// else has work for this thread would wait too: so it is done on one of its own.
pub(super) async fn connect(
    queue_pair: QueuePair<Ticket>,
    own: Endpoint,
    gid: GidEntry,
    peer: Endpoint,
    timing: Timing,
) -> Result<QueuePair<Ticket>, VerbsError> {
    let device = queue_pair.completions().device().name().to_owned();
    let connecting = spawn_blocking(move || {
        queue_pair.connect(&own, &gid, &peer, timing)?;
        Ok(queue_pair)
    });
    connecting.await.unwrap_or_else(|error| {
        Err(VerbsError::System {
            operation: "connect a queue pair",
            device,
            source: io::Error::other(error),
        })
    })
}

/// See [`Path::load`].
#[derive(Debug)]
pub(super) struct Load {
    path: Arc<Path>,
    bytes: u64,
}

impl Load {
    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.path.usage.end(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[test]
    fn a_read_takes_as_many_places_as_it_would_take_in_slices_and_never_more_than_there_are() {
        let lens = [
            0,
            1,
            VERBS_SLICE_BYTES,
            VERBS_SLICE_BYTES + 1,
            4 * VERBS_SLICE_BYTES,
            u64::MAX,
        ];
        assert_eq!(lens.map(|len_bytes| places_of(len_bytes, 128)), [1, 1, 1, 2, 4, 128]);
        assert_eq!(places_of(4 * VERBS_SLICE_BYTES, 2), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_path_is_idle_from_the_end_of_its_last_use_and_in_use_without_a_byte() {
        let usage = Usage::new();
        advance(Duration::from_secs(5)).await;
        usage.start();
        assert_eq!(usage.idle(), Some(Duration::ZERO));
        usage.begin(100);
        usage.begin(0);
        advance(Duration::from_secs(2)).await;
        usage.end(100);
        assert_eq!((usage.idle(), usage.open_bytes.load(Ordering::Relaxed)), (None, 0));
        advance(Duration::from_secs(3)).await;
        usage.end(0);
        assert_eq!(usage.idle(), Some(Duration::ZERO));
        advance(Duration::from_secs(1)).await;
        assert_eq!(usage.idle(), Some(Duration::from_secs(1)));
    }
}

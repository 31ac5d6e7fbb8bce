//! Connected queue pairs to one peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::flight::{Flight, Ticket};
use crate::limits::VERBS_FLUSH_TIMEOUT;
use crate::verbs::{Local, PostFailure, QueuePair, Remote, SendRequest, Status};

/// One queue pair, connected over one rail.
#[derive(Debug)]
pub(super) struct Path {
    /// How both ends name it.
    pub(super) number: u8,
    /// Which of this process's rails.
    pub(super) rail: usize,
    queue_pair: QueuePair<Ticket>,
    /// Places of the send queue.
    places: Arc<Semaphore>,
    open_bytes: AtomicU64,
}

/// A read to be posted.
#[derive(Debug)]
pub(super) struct ReadRequest {
    /// Its place in its flight.
    pub(super) request: usize,
    pub(super) from: Remote,
    pub(super) into: Vec<Local>,
}

impl Path {
    pub(super) fn new(number: u8, rail: usize, queue_pair: QueuePair<Ticket>) -> Arc<Self> {
        let places = queue_pair.options().send_requests as usize;
        Arc::new(Self {
            number,
            rail,
            queue_pair,
            places: Arc::new(Semaphore::new(places)),
            open_bytes: AtomicU64::new(0),
        })
    }

    /// Posts reads in order, as the queue has room for them. Each lands in its flight.
    pub(super) async fn post(&self, flight: &Arc<Flight>, reads: Vec<ReadRequest>) {
        let mut reads = reads.into_iter().peekable();
        while reads.peek().is_some() {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                return;
            };
            let mut next = Some(place);
            let mut requests = Vec::new();
            while let Some(place) = next.take()
                && let Some(read) = reads.next()
            {
                let ticket = Ticket::new(flight, read.request, place);
                requests.push(SendRequest::read(read.from, read.into, ticket));
                next = Arc::clone(&self.places).try_acquire_owned().ok();
            }
            self.post_now(requests);
        }
    }

    fn post_now(&self, requests: Vec<SendRequest<Ticket>>) {
        let Err(error) = self.queue_pair.post_send(requests) else {
            return;
        };
        let status = match error.failure {
            // The request itself is at fault: another queue pair would not take it either.
            PostFailure::TooManyParts { .. } | PostFailure::TooLong { .. } | PostFailure::OtherDomain => {
                Status::LocalOperation
            }
            _ => Status::Flushed,
        };
        tracing::debug!(path = self.number, %error, "requests were not posted");
        for request in error.rejected {
            // Its parts go before its owner hears of it.
            let ticket = request.into_context();
            ticket.complete(status);
        }
    }

    /// Counts bytes that are to move over it until what is returned is dropped.
    pub(super) fn load(self: &Arc<Self>, bytes: u64) -> Load {
        self.open_bytes.fetch_add(bytes, Ordering::Relaxed);
        Load {
            path: Arc::clone(self),
            bytes,
        }
    }

    pub(super) fn open_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Relaxed)
    }

    /// Ends it: whatever is posted is flushed.
    pub(super) fn fail(&self) {
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

/// See [`Path::load`].
#[derive(Debug)]
pub(super) struct Load {
    path: Arc<Path>,
    bytes: u64,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.path.open_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The paths to one peer: those that are up, until all is closed.
#[derive(Debug)]
pub(super) struct Paths {
    state: watch::Sender<State>,
    /// Paths that were lost, since the beginning.
    lost: Mutex<u64>,
}

#[derive(Clone, Debug, Default)]
struct State {
    up: Vec<Arc<Path>>,
    closed: Option<String>,
}

impl Paths {
    pub(super) fn new() -> Self {
        Self {
            state: watch::Sender::new(State::default()),
            lost: Mutex::new(0),
        }
    }

    /// A path is up, in the place of one of the same number.
    pub(super) fn add(&self, path: Arc<Path>) {
        self.state.send_modify(|state| {
            let place = state.up.iter().position(|other| other.number == path.number);
            if let Some(place) = place {
                state.up.swap_remove(place).fail();
            }
            match state.closed {
                Some(_) => path.fail(),
                None => state.up.push(path),
            }
            state.up.sort_by_key(|path| path.number);
        });
    }

    pub(super) fn up(&self) -> Vec<Arc<Path>> {
        self.state.borrow().up.clone()
    }

    /// The paths that are up, once one is. Why there will be none, if all is closed.
    pub(super) async fn some_up(&self) -> Result<Vec<Arc<Path>>, String> {
        let mut state = self.state.subscribe();
        let state = state
            .wait_for(|state| !state.up.is_empty() || state.closed.is_some())
            .await;
        match state {
            Ok(state) => match &state.closed {
                Some(reason) => Err(reason.clone()),
                None => Ok(state.up.clone()),
            },
            Err(_) => Err("it is gone".to_owned()),
        }
    }

    /// A path does not carry any more.
    pub(super) fn lose(&self, path: &Arc<Path>) {
        path.fail();
        let removed = self.state.send_if_modified(|state| {
            let before = state.up.len();
            state.up.retain(|other| !Arc::ptr_eq(other, path));
            state.up.len() != before
        });
        if removed {
            *self.lost.lock() += 1;
        }
    }

    /// Resolves when a path with one of these numbers is not up.
    pub(super) async fn missing(&self, numbers: &[u8]) -> Vec<u8> {
        let missing = |state: &State| {
            let is_up = |number: &u8| state.up.iter().any(|path| path.number == *number);
            numbers
                .iter()
                .copied()
                .filter(|number| !is_up(number))
                .collect::<Vec<u8>>()
        };
        let mut state = self.state.subscribe();
        match state
            .wait_for(|state| !missing(state).is_empty() || state.closed.is_some())
            .await
        {
            Ok(state) => missing(&state),
            Err(_) => Vec::new(),
        }
    }

    /// Ends all; nothing comes up any more.
    pub(super) fn close(&self, reason: &str) {
        self.state.send_modify(|state| {
            state.closed.get_or_insert_with(|| reason.to_owned());
            for path in state.up.drain(..) {
                path.fail();
            }
        });
    }

    pub(super) fn closed(&self) -> Option<String> {
        self.state.borrow().closed.clone()
    }

    /// How many were lost so far.
    pub(super) fn lost(&self) -> u64 {
        *self.lost.lock()
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        self.close("it is not used any more");
    }
}

/// The pause before a lost path is tried again: `failures` tries have failed in a row.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = crate::limits::BACKOFF_MIN.saturating_mul(1 << failures.min(16));
    doubled.min(crate::limits::BACKOFF_MAX)
}

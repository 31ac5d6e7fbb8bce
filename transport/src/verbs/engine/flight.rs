//! Requests under way together, and what came of each.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use super::pool::Slot;
use crate::exports::Access as Granted;
use crate::verbs::Status;

/// A number of requests that somebody waits for.
#[derive(Debug)]
pub(super) struct Flight {
    state: Mutex<State>,
    landed: Notify,
}

#[derive(Debug)]
struct State {
    statuses: Vec<Option<Status>>,
    open: usize,
    /// Posted, and not ended.
    posted: usize,
}

impl Flight {
    /// One for `requests` requests, none of them posted yet.
    pub(super) fn new(requests: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                statuses: vec![None; requests],
                open: requests,
                posted: 0,
            }),
            landed: Notify::new(),
        })
    }

    /// A request will not be posted.
    pub(super) fn land(&self, request: usize, status: Status) {
        self.end(request, status, 0);
    }

    /// Requests are about to be posted.
    fn begin(&self) {
        self.state.lock().posted += 1;
    }

    fn end(&self, request: usize, status: Status, posted: usize) {
        let mut state = self.state.lock();
        state.posted -= posted;
        if state.statuses[request].replace(status).is_none() {
            state.open -= 1;
        }
        if state.open == 0 || state.posted == 0 {
            self.landed.notify_one();
        }
    }

    /// Waits until nothing that was posted is under way: then its memory is let go of.
    pub(super) async fn settled(&self) {
        while self.state.lock().posted > 0 {
            self.landed.notified().await;
        }
    }

    /// Waits until all have ended.
    pub(super) async fn landed(&self) {
        while !self.is_landed() {
            self.landed.notified().await;
        }
    }

    pub(super) fn is_landed(&self) -> bool {
        self.state.lock().open == 0
    }

    /// Whether a device may be at work at any of them. What only waits for its turn ends without any device.
    pub(super) fn is_under_way(&self) -> bool {
        self.state.lock().posted > 0
    }

    /// What failed first, of those that have ended; what was flushed says less than what made the queue pair fail.
    pub(super) fn failure(&self) -> Option<Status> {
        let state = self.state.lock();
        let mut failures = state
            .statuses
            .iter()
            .flatten()
            .filter(|status| **status != Status::Success);
        let flushed = failures.clone().next();
        failures.find(|status| **status != Status::Flushed).or(flushed).copied()
    }

    /// What came of each; `None` where that is not known yet.
    pub(super) fn statuses(&self) -> Vec<Option<Status>> {
        self.state.lock().statuses.clone()
    }
}

/// Travels with a request: whose it is, and its place in the queue.
#[derive(Debug)]
pub(super) struct Ticket {
    flight: Arc<Flight>,
    request: usize,
    /// Its places, given back when the request is complete.
    place: OwnedSemaphorePermit,
    /// Where it lands: nobody else's until then.
    slots: Vec<Arc<Slot>>,
    /// What keeps the memory that it touches from being used for anything else.
    access: Option<Arc<Granted>>,
}

impl Ticket {
    /// For a request that is about to be posted.
    pub(super) fn new(
        flight: &Arc<Flight>,
        request: usize,
        place: OwnedSemaphorePermit,
        slots: Vec<Arc<Slot>>,
        access: Option<Arc<Granted>>,
    ) -> Self {
        flight.begin();
        Self {
            flight: Arc::clone(flight),
            request,
            place,
            slots,
            access,
        }
    }

    /// The request has ended, and its memory was let go of.
    pub(super) fn complete(self, status: Status) {
        drop((self.place, self.slots, self.access));
        self.flight.end(self.request, status, 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_flight_has_landed_when_its_last_request_has() {
        let flight = Flight::new(2);
        flight.land(1, Status::Success);
        flight.land(1, Status::Flushed);
        assert!(!flight.is_landed());
        assert_eq!(flight.statuses(), [None, Some(Status::Flushed)]);
        flight.land(0, Status::Success);
        flight.landed().await;
        assert!(flight.is_landed());
    }

    #[tokio::test]
    async fn a_flight_is_under_way_from_when_one_of_it_is_posted_until_none_is() {
        let (flight, queue) = (Flight::new(2), Arc::new(Semaphore::new(1)));
        assert!(!flight.is_under_way() && !flight.is_landed());
        let place = Arc::clone(&queue).try_acquire_owned().unwrap();
        let ticket = Ticket::new(&flight, 0, place, Vec::new(), None);
        assert!(flight.is_under_way());
        ticket.complete(Status::Success);
        assert!(!flight.is_under_way() && !flight.is_landed());
        assert_eq!(queue.available_permits(), 1);
    }

    #[tokio::test]
    async fn a_flight_of_nothing_has_landed() {
        Flight::new(0).landed().await;
    }
}

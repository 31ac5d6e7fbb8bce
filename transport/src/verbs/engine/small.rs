//! Small reads: batches that one queue takes as they are, and that are over sooner than dealing them out would take. They are posted
//! at once over one path, and polled for before an event is asked for. Whatever else may become of them, they are read as large ones
//! are: [`carry`](super::carry::carry) tries again what fails.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::connection::Shared;
use super::flight::{Flight, Ticket};
use super::path::{Load, Path};
use super::paths::Paths;
use super::places::Place;
use super::pool::Slot;
use crate::engine::{Done, Op, Transfer, TransferError, TransferResult};
use crate::limits::{VERBS_READ_PARTS_MAX, VERBS_SMALL_BYTES, VERBS_SMALL_READS};
use crate::memory::Slice;
use crate::verbs::{SendRequest, Status};

/// A batch that is ready to be posted.
struct Small {
    load: Load,
    flight: Arc<Flight>,
    requests: Vec<SendRequest<Ticket>>,
    /// Kept until they have landed.
    places: Vec<Arc<Place>>,
    /// Where the content of slots goes when they have landed.
    slots: Vec<(Arc<Slot>, Slice)>,
}

impl Shared {
    /// Reads a batch that is small; `None` if it is not, or was not read and is to be read in the other way.
    pub(super) async fn read_small(&self, batch: &[Transfer], deadline: Instant) -> Option<Vec<TransferResult>> {
        let Small {
            load,
            flight,
            requests,
            places,
            slots,
        } = self.small(batch)?;
        let path = load.path();
        let under_way = UnderWay {
            paths: &self.paths,
            path,
            flight: &flight,
        };
        let reading = path.post_small(&flight, requests, self.rails.spin());
        if timeout_at(deadline, reading).await.is_err() {
            drop(under_way);
            path.flushed(&flight).await;
            let late = |transfer: &Transfer| {
                Err(TransferError::Deadline {
                    moved_bytes: 0,
                    len_bytes: transfer.len_bytes(),
                })
            };
            return Some(batch.iter().map(late).collect());
        }
        drop((under_way, places));
        if let Some(failure) = flight.failure() {
            tracing::info!(path = path.number, status = %failure, "a path is lost");
            self.paths.lose_as(path, failure);
            if failure == Status::RemoteAccess {
                // Some key is not good any more.
                self.places.clear();
            }
            return None;
        }
        for (slot, into) in slots {
            slot.copy_to(&into);
        }
        let done = |transfer: &Transfer| {
            Ok(Done {
                bytes: transfer.len_bytes(),
                stamp: None,
                crc64: None,
                sent_crc64: None,
            })
        };
        Some(batch.iter().map(done).collect())
    }

    /// What is to be posted, if all of it can be now.
    fn small(&self, batch: &[Transfer]) -> Option<Small> {
        let fits = |transfer: &Transfer| transfer.op == Op::Read && transfer.local.len() <= VERBS_READ_PARTS_MAX;
        if batch.len() > VERBS_SMALL_READS || !batch.iter().all(fits) {
            return None;
        }
        let mut lens_bytes = batch.iter().map(Transfer::len_bytes);
        let all_bytes = lens_bytes.try_fold(0_u64, |all, len| (len > 0).then(|| all + len))?;
        if all_bytes > VERBS_SMALL_BYTES {
            return None;
        }
        let load = self.paths.least_used()?.load(all_bytes);
        let path = load.path();
        let mut queued = path.places(batch.len())?;
        let flight = Flight::new(batch.len());
        let (mut requests, mut places, mut slots) = (Vec::with_capacity(batch.len()), Vec::new(), Vec::new());
        for (request, transfer) in batch.iter().enumerate() {
            let (place, from) = self.known_place(path, transfer)?;
            if !places.last().is_some_and(|last| Arc::ptr_eq(last, &place)) {
                places.push(place);
            }
            let landing = self.rails.landing(path.rail, &transfer.local).ok()?;
            let counted = landing.slots.iter().map(|(slot, _)| Arc::clone(slot)).collect();
            slots.extend(landing.slots);
            let ticket = Ticket::new(&flight, request, queued.split(1)?, counted, None);
            requests.push(SendRequest::read(from, landing.parts, ticket));
        }
        Some(Small {
            load,
            flight,
            requests,
            places,
            slots,
        })
    }
}

/// Reads under way. If they are dropped before they have ended, their path ends: the device flushes on its own, and keeps the
/// memory until it has.
struct UnderWay<'a> {
    paths: &'a Paths,
    path: &'a Arc<Path>,
    flight: &'a Flight,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.flight.is_under_way() {
            self.paths.lose(self.path);
        }
    }
}

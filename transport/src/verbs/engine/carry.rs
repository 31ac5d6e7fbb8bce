//! Carrying out reads over the paths to a peer: in slices, striped, again over another path where one fails, and ended
//! at the deadline without anything left that touches memory.

use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout_at};

use super::flight::Flight;
use super::path::{Load, Path, ReadRequest};
use super::paths::Paths;
use super::places::Place;
use super::rails::{Landing, Rails};
use crate::exports::Access as Granted;
use crate::limits::{VERBS_ATTEMPTS_MAX, VERBS_LOCK_POLL, VERBS_LOCK_TIMEOUT};
use crate::memory::Slice;
use crate::verbs::{Remote, Status, VerbsError};

/// One read request: a range of the peer's memory, as it is named on each path, and where it goes.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// By the number of the path.
    pub(super) from: Vec<(u8, Remote)>,
    pub(super) into: Vec<Slice>,
    pub(super) len_bytes: u64,
    /// Pieces of one group that is not zero are carried out in order.
    pub(super) group: u64,
    /// What is known of where it lies, if the peer may want that forgotten.
    pub(super) place: Option<Arc<Place>>,
    /// What keeps the memory that it goes to from being used for anything else, if this process granted that to a peer.
    pub(super) access: Option<Arc<Granted>>,
}

/// Why a piece was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PieceError {
    /// The peer does not let it be read: its key is not good any more.
    Access,
    /// None of the paths that are up is one on which its place is known.
    Unnamed,
    /// The deadline passed first.
    Deadline,
    /// There was no path, or each that was tried failed.
    Lost(String),
    /// The memory that it was to go to cannot be used.
    Local(String),
}

impl Piece {
    fn remote(&self, path: &Path) -> Option<Remote> {
        let from = self.from.iter().find(|(number, _)| *number == path.number);
        from.map(|(_, remote)| *remote)
    }

    /// Whether it ends with another one whose key is not good any more: it has the same key, or comes after it in order.
    fn ends_with(&self, other: &Self) -> bool {
        let is_of = |place: &Arc<Place>| other.place.as_ref().is_some_and(|of| Arc::ptr_eq(of, place));
        (self.group != 0 && self.group == other.group) || self.place.as_ref().is_some_and(is_of)
    }

    fn is_withdrawn(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_withdrawn())
    }
}

/// Reads all pieces; one result each. When it returns, or soon after it was dropped, nothing touches their memory.
pub(super) async fn carry(
    rails: &Arc<Rails>,
    paths: &Paths,
    pieces: &[Piece],
    deadline: Instant,
) -> Vec<Result<(), PieceError>> {
    let run = Run {
        rails,
        paths,
        pieces,
        results: Mutex::new(vec![None; pieces.len()]),
        flights: Mutex::default(),
    };
    if timeout_at(deadline, run.all()).await.is_err() {
        run.cut_short().await;
    }
    let results = std::mem::take(&mut *run.results.lock());
    results
        .into_iter()
        .map(|result| result.unwrap_or(Err(PieceError::Deadline)))
        .collect()
}

struct Run<'a> {
    rails: &'a Arc<Rails>,
    paths: &'a Paths,
    pieces: &'a [Piece],
    results: Mutex<Vec<Option<Result<(), PieceError>>>>,
    /// What is under way, over which path.
    flights: Mutex<Vec<(Arc<Path>, Arc<Flight>)>>,
}

/// Pieces that go over one path together.
struct Share {
    path: Arc<Path>,
    pieces: Vec<usize>,
    _load: Load,
}

impl Run<'_> {
    async fn all(&self) {
        let mut left: Vec<usize> = (0..self.pieces.len()).collect();
        let mut last = "no path was tried".to_owned();
        let mut tries = 0;
        while tries < VERBS_ATTEMPTS_MAX {
            if left.is_empty() {
                return;
            }
            let up = match self.paths.some_up().await {
                Ok(up) => up,
                Err(reason) => return self.end_all(&left, &PieceError::Lost(reason)),
            };
            let shares = self.share(&up, &left);
            let tried = join_all(shares.into_iter().map(|share| self.over(share))).await;
            // What was flushed alone was ended for somebody else's sake: that says nothing against a further try.
            let is_own = |status: &Option<Status>| status.is_some_and(|status| status != Status::Flushed);
            tries += usize::from(tried.iter().any(|(_, status)| is_own(status)));
            left.clear();
            for (failed, status) in tried {
                left.extend(failed);
                if let Some(status) = status {
                    last = status.to_string();
                }
            }
            left.sort_unstable();
        }
        self.end_all(&left, &PieceError::Lost(last));
    }

    fn end(&self, piece: usize, result: Result<(), PieceError>) {
        self.results.lock()[piece] = Some(result);
    }

    fn end_all(&self, pieces: &[usize], error: &PieceError) {
        for piece in pieces {
            self.end(*piece, Err(error.clone()));
        }
    }

    /// Deals pieces out: each group, or piece of none, to the path with the least to do.
    fn share(&self, up: &[Arc<Path>], left: &[usize]) -> Vec<Share> {
        let mut dealt: Vec<(u64, Vec<usize>)> = up.iter().map(|path| (path.open_bytes(), Vec::new())).collect();
        let mut bytes = vec![0; up.len()];
        for unit in left.chunk_by(|a, b| self.pieces[*a].group != 0 && self.pieces[*a].group == self.pieces[*b].group) {
            let named = |path: &Arc<Path>| unit.iter().all(|piece| self.pieces[*piece].remote(path).is_some());
            let candidates = (0..up.len()).filter(|&at| named(&up[at]));
            let Some(at) = candidates.min_by_key(|&at| dealt[at].0) else {
                self.end_all(unit, &PieceError::Unnamed);
                continue;
            };
            let unit_bytes: u64 = unit.iter().map(|piece| self.pieces[*piece].len_bytes).sum();
            dealt[at].0 += unit_bytes;
            bytes[at] += unit_bytes;
            dealt[at].1.extend_from_slice(unit);
        }
        let dealt = up.iter().zip(dealt).zip(bytes);
        let used = dealt.filter(|((_, (_, pieces)), _)| !pieces.is_empty());
        let shares = used.map(|((path, (_, pieces)), bytes)| Share {
            path: Arc::clone(path),
            pieces,
            _load: path.load(bytes),
        });
        shares.collect()
    }

    /// Reads the pieces of one share. Returns those that are to be tried again, and why the path is lost.
    async fn over(&self, share: Share) -> (Vec<usize>, Option<Status>) {
        let Share { path, pieces, _load } = share;
        let flight = Flight::new(pieces.len());
        let (mut reads, mut slots) = (Vec::with_capacity(pieces.len()), Vec::new());
        let mut give_up = Instant::now() + VERBS_LOCK_TIMEOUT;
        self.flights.lock().push((Arc::clone(&path), Arc::clone(&flight)));
        for (request, piece) in pieces.iter().enumerate() {
            let wanted = &self.pieces[*piece];
            let Some(from) = wanted.remote(&path) else {
                flight.land(request, Status::LocalOperation);
                continue;
            };
            match self
                .landing(&path, &wanted.into, &flight, &mut reads, &mut give_up)
                .await
            {
                Ok(landing) => {
                    reads.push(ReadRequest {
                        request,
                        from,
                        place: wanted.place.clone(),
                        into: landing.parts,
                        slots: landing.slots.iter().map(|(slot, _)| Arc::clone(slot)).collect(),
                        access: wanted.access.clone(),
                    });
                    slots.extend(landing.slots.into_iter().map(|(slot, into)| (request, slot, into)));
                }
                // The device is gone, and so is the path: another may carry it.
                Err(VerbsError::Gone { .. }) => flight.land(request, Status::Flushed),
                Err(error) => {
                    self.end(*piece, Err(PieceError::Local(error.to_string())));
                    flight.land(request, Status::LocalProtection);
                }
            }
        }
        path.post(&flight, reads).await;
        flight.landed().await;
        // A path that is lost gives its room back as soon as nobody needs it.
        self.flights.lock().retain(|(_, open)| !Arc::ptr_eq(open, &flight));
        let statuses = flight.statuses();
        for (request, slot, into) in slots {
            if statuses[request] == Some(Status::Success) {
                slot.copy_to(&into);
            }
        }
        self.judge(&path, &pieces, statuses)
    }

    /// Where a piece is to land. If its memory may not be locked now, what is ready is posted, and it is tried again until it is time to give up: what lands
    /// lets go of memory.
    async fn landing(
        &self,
        path: &Path,
        into: &[Slice],
        flight: &Arc<Flight>,
        ready: &mut Vec<ReadRequest>,
        give_up: &mut Instant,
    ) -> Result<Landing, VerbsError> {
        loop {
            let landing = self.rails.landing(path.rail, into);
            if !landing.as_ref().is_err_and(VerbsError::may_lock_later) {
                return landing;
            }
            if !ready.is_empty() {
                path.post(flight, std::mem::take(ready)).await;
            } else if !flight.is_under_way() && Instant::now() >= *give_up {
                return landing;
            }
            if flight.is_under_way() {
                // How long its own reads take is bounded by their deadline alone.
                *give_up = Instant::now() + VERBS_LOCK_TIMEOUT;
            }
            sleep(VERBS_LOCK_POLL).await;
        }
    }

    fn judge(&self, path: &Arc<Path>, pieces: &[usize], statuses: Vec<Option<Status>>) -> (Vec<usize>, Option<Status>) {
        let refused = pieces.iter().zip(&statuses);
        let refused = refused.filter(|(_, status)| **status == Some(Status::RemoteAccess));
        let refused: Vec<&Piece> = refused.map(|(piece, _)| &self.pieces[*piece]).collect();
        let (mut again, mut failure) = (Vec::new(), None);
        for (piece, status) in pieces.iter().zip(statuses) {
            match status {
                Some(Status::Success) => self.end(*piece, Ok(())),
                // Not posted: the peer wants its place forgotten.
                Some(Status::LocalOperation) if self.pieces[*piece].is_withdrawn() => {
                    self.end(*piece, Err(PieceError::Access));
                }
                Some(Status::RemoteAccess) => {
                    self.end(*piece, Err(PieceError::Access));
                    failure = Some(Status::RemoteAccess);
                }
                // The next path would end by it too.
                Some(Status::Flushed) if refused.iter().any(|of| self.pieces[*piece].ends_with(of)) => {
                    self.end(*piece, Err(PieceError::Access));
                }
                Some(status @ (Status::LocalProtection | Status::LocalOperation | Status::LocalLength)) => {
                    let mut results = self.results.lock();
                    results[*piece].get_or_insert(Err(PieceError::Local(status.to_string())));
                }
                status => {
                    again.push(*piece);
                    // What was flushed says less than what made the queue pair fail.
                    failure = failure.or(status);
                }
            }
        }
        if let Some(status) = failure {
            tracing::info!(path = path.number, %status, "a path is lost");
            self.paths.lose_as(path, status);
        }
        // A group is carried out in order, so from its first piece again.
        let groups: Vec<u64> = again
            .iter()
            .map(|piece| self.pieces[*piece].group)
            .filter(|group| *group != 0)
            .collect();
        let torn = |piece: &&usize| groups.contains(&self.pieces[**piece].group) && !again.contains(piece);
        let torn: Vec<usize> = pieces.iter().filter(torn).copied().collect();
        let mut results = self.results.lock();
        for piece in &torn {
            results[*piece] = None;
        }
        again.extend(torn);
        (again, failure)
    }

    /// The deadline has passed: what is under way is ended with its paths.
    async fn cut_short(&self) {
        let flights = std::mem::take(&mut *self.flights.lock());
        // What only waits for its turn costs others nothing.
        let open: Vec<_> = flights
            .into_iter()
            .filter(|(_, flight)| flight.is_under_way())
            .collect();
        for (path, _) in &open {
            self.paths.lose(path);
        }
        for (path, flight) in open {
            path.flushed(&flight).await;
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // Cancelled: the device flushes on its own, and keeps the memory until it has.
        for (path, flight) in self.flights.get_mut().drain(..) {
            if flight.is_under_way() {
                self.paths.lose(&path);
            }
        }
    }
}

//! The initiator's side: a connection of several lanes, and batches that travel over them.

mod batch;
mod io;
mod plan;
mod requests;
mod supervisor;
mod window;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::try_join_all;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::engine::{Connection, Submission, Transfer, TransferResult};
use crate::ids::PeerId;
use crate::limits::{MAX_DATA_FRAME_BYTES, MAX_LANES, MIN_DATA_FRAME_BYTES};
use crate::link::{Authenticator, Endpoint, Identity, LinkError};
use crate::tcp::TcpOptions;

use batch::Batch;
use plan::PartPlan;
use requests::Requests;
use supervisor::{Closed, Dialler, close, supervise};
use window::{Ticket, Window};

/// An initiator's connection: persistent lanes, reopened in the background when one dies. Dropping the last reference
/// closes it.
pub struct TcpConnection {
    lanes: Arc<Lanes>,
}

/// What submissions under way share with their connection.
struct Lanes {
    peer: PeerId,
    options: TcpOptions,
    lanes: Vec<Arc<Requests>>,
    /// Where the search for the least busy lane starts, so that idle lanes take turns.
    turn: AtomicUsize,
    window: Arc<Window>,
    closed: Arc<Closed>,
}

impl TcpConnection {
    /// Dials all lanes and shakes hands on each. Tasks run on the runtime this is called on; give bulk data a runtime
    /// of its own. `identity.session` is the session whose exports can be reached. Options beyond their limits are
    /// brought back to them.
    ///
    /// # Errors
    /// As for [`Link::dial`](crate::link::Link::dial), of the first lane that fails.
    pub async fn open(
        endpoint: &Endpoint,
        identity: &Identity,
        auth: Arc<dyn Authenticator>,
        expect: Option<PeerId>,
        options: TcpOptions,
        deadline: Instant,
    ) -> Result<Arc<dyn Connection>, LinkError> {
        let options = TcpOptions {
            lanes: options.lanes.clamp(1, MAX_LANES),
            frame_bytes: options.frame_bytes.clamp(MIN_DATA_FRAME_BYTES, MAX_DATA_FRAME_BYTES),
            ..options
        };
        let dialler = Dialler {
            endpoint: endpoint.clone(),
            identity: identity.clone(),
            auth,
            options,
        };
        let (first, remote) = dialler.dial(expect, deadline).await?;
        let peer = remote.peer;
        let others = try_join_all((1..options.lanes).map(|_| dialler.dial(Some(peer), deadline))).await?;
        let closed = Arc::new(watch::Sender::new(None));
        let streams = std::iter::once(first).chain(others.into_iter().map(|(stream, _)| stream));
        let open = |stream| {
            let requests = Requests::new();
            requests.come_alive();
            let supervising = supervise(
                dialler.clone(),
                peer,
                stream,
                Arc::clone(&requests),
                Arc::clone(&closed),
            );
            tokio::spawn(supervising);
            requests
        };
        let lanes = streams.map(open).collect();
        let lanes = Lanes {
            peer,
            options,
            lanes,
            turn: AtomicUsize::new(0),
            window: Window::new(),
            closed,
        };
        Ok(Arc::new(Self { lanes: Arc::new(lanes) }))
    }
}

impl Connection for TcpConnection {
    fn peer(&self) -> PeerId {
        self.lanes.peer
    }

    fn submit(&self, batch: Vec<Transfer>, deadline: Instant) -> Submission {
        Submission::new(Arc::clone(&self.lanes).carry_out(batch, deadline))
    }

    fn guards_reads(&self) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        self.lanes.closed.borrow().is_some()
    }

    fn close(&self) {
        self.lanes.close();
    }
}

impl Drop for TcpConnection {
    fn drop(&mut self) {
        self.lanes.close();
    }
}

impl fmt::Debug for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lanes.lanes.iter().filter(|lane| lane.is_live()).count();
        f.debug_struct("TcpConnection")
            .field("peer", &self.lanes.peer)
            .field("live_lanes", &live)
            .field("closed", &*self.lanes.closed.borrow())
            .finish_non_exhaustive()
    }
}

impl Lanes {
    fn close(&self) {
        if close(&self.closed, "closed by this side".to_owned()) {
            for lane in &self.lanes {
                lane.die("closed by this side");
            }
        }
    }

    async fn carry_out(self: Arc<Self>, transfers: Vec<Transfer>, deadline: Instant) -> Vec<TransferResult> {
        let mut sent = Sent {
            batch: Batch::new(transfers),
            lanes: &self,
            requests: Vec::new(),
        };
        let frame_bytes = u64::from(self.options.frame_bytes);
        let parts = sent.batch.plan(|transfers| plan::parts(transfers, frame_bytes));
        let carrying = async {
            for step in plan::steps(&parts) {
                let lens_bytes: Vec<u64> = parts[step.clone()].iter().map(|part| part.len_bytes).collect();
                let tickets = self.window.enter(&lens_bytes).await;
                self.dispatch(&mut sent, &parts, step, tickets);
            }
            sent.batch.finished().await;
        };
        // What is not complete by then is told apart in the results.
        _ = timeout_at(deadline, carrying).await;
        sent.batch.close();
        sent.batch.results()
    }

    /// Hands the parts of one step to lanes: each group or independent part to the lane with the least to do.
    fn dispatch(&self, sent: &mut Sent<'_>, parts: &[PartPlan], step: Range<usize>, tickets: Vec<Ticket>) {
        let mut shares: Vec<Vec<PartPlan>> = vec![Vec::new(); self.lanes.len()];
        let mut loads: Vec<Option<u64>> = self
            .lanes
            .iter()
            .map(|lane| lane.is_live().then(|| lane.open_bytes()))
            .collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for unit in plan::units(parts, step) {
            let parts = &parts[unit];
            let candidates = (0..self.lanes.len()).map(|i| (i + turn) % self.lanes.len());
            let least = candidates
                .filter_map(|i| loads[i].map(|load| (load, i)))
                .min_by_key(|(load, _)| *load);
            // Without a live lane any will do: it fails the parts with its reason.
            let (load, lane) = least.unwrap_or((0, 0));
            loads[lane] = loads[lane].map(|_| load.saturating_add(plan::bytes(parts)));
            shares[lane].extend_from_slice(parts);
        }
        let mut tickets = tickets.into_iter();
        for (lane, share) in shares.into_iter().enumerate().filter(|(_, share)| !share.is_empty()) {
            let requests = self.lanes[lane].enqueue(&sent.batch, share.into_iter().zip(&mut tickets));
            sent.requests.push((lane, requests));
        }
    }
}

/// A batch with its requests on the lanes. Dropped before it is finished, it cancels.
struct Sent<'a> {
    batch: Arc<Batch>,
    lanes: &'a Lanes,
    requests: Vec<(usize, Range<u64>)>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.batch.close();
        if self.batch.is_finished() {
            return;
        }
        for (lane, requests) in self.requests.drain(..) {
            self.lanes.lanes[lane].cancel(requests);
        }
    }
}

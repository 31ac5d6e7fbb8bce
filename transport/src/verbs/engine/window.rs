//! A memory window on a path: write access for its peer, to one part of memory, until it is taken back.

use std::sync::Arc;

use tokio::time::{Instant, timeout, timeout_at};

use super::flight::{Flight, Ticket};
use super::path::Path;
use super::paths::Paths;
use crate::limits::VERBS_FLUSH_TIMEOUT;
use crate::verbs::{Access, Local, MemoryWindow, Remote, Status};

/// A window that is bound. Its part may be written to until [`Opened::close`] has returned: whoever keeps the part for
/// something else waits for that.
#[derive(Debug)]
pub(super) struct Opened {
    window: MemoryWindow<Ticket>,
    path: Arc<Path>,
    remote: Remote,
}

impl Opened {
    /// Lets the peer of a path write to a part; `None` if that did not come about, and then it cannot.
    pub(super) async fn new(paths: &Paths, path: &Arc<Path>, part: Local, deadline: Instant) -> Option<Self> {
        let window = path.spare_window()?;
        let address = part.address();
        let flight = Flight::new(1);
        let ticket = timeout_at(deadline, path.ticket(&flight, 0)).await.ok()??;
        let key = match window.bind(part, Access::REMOTE_WRITE, ticket) {
            Ok(key) => key,
            Err(error) => {
                tracing::debug!(path = path.number, %error, "a window is not bound");
                error
                    .rejected
                    .into_iter()
                    .for_each(|ticket| ticket.complete(Status::Flushed));
                return None;
            }
        };
        let is_in_time = timeout_at(deadline, flight.landed()).await.is_ok();
        if is_in_time && flight.statuses()[0] == Some(Status::Success) {
            let remote = Remote { address, key };
            let path = Arc::clone(path);
            return Some(Self { window, path, remote });
        }
        end(paths, path, &flight).await;
        None
    }

    /// What the peer names it by.
    pub(super) fn remote(&self) -> Remote {
        self.remote
    }

    /// Whose peer may write.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the access back. When it returns, no byte of the peer lands any more, and those that had landed before it was
    /// called can be seen: the device completes the request behind them. A queue pair on which that fails is ended; then
    /// nothing lands because it is in ERR.
    pub(super) async fn close(self, paths: &Paths) {
        let Self { window, path, .. } = self;
        let flight = Flight::new(1);
        let invalidating = async {
            let ticket = path.ticket(&flight, 0).await?;
            if let Err(error) = window.invalidate(ticket) {
                error
                    .rejected
                    .into_iter()
                    .for_each(|ticket| ticket.complete(Status::Flushed));
            }
            flight.landed().await;
            flight.statuses()[0]
        };
        match timeout(VERBS_FLUSH_TIMEOUT, invalidating).await.ok().flatten() {
            Some(Status::Success) => {
                window.invalidated();
                path.keep_window(window);
            }
            _ => end(paths, &path, &flight).await,
        }
    }
}

/// Moves the queue pair to ERR, from where on nothing of its peer lands, and waits until it is flushed, for ever if need
/// be: what is told to be over must be.
async fn end(paths: &Paths, path: &Arc<Path>, flight: &Flight) {
    paths.lose(path);
    path.flushed(flight).await;
    flight.settled().await;
}

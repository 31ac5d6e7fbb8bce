//! The engine inside one process: the same contract by memcpy.

use std::fmt;
use std::sync::Arc;

use tokio::time::Instant;

use crate::carry::{Carrier, Direct};
use crate::engine::{Connection, Submission, Transfer};
use crate::exports::Exports;
use crate::ids::{PeerId, SessionId};

/// A connection to exports of this same process. Copies inside the polls of its submissions, a piece at a time.
pub struct LocalConnection {
    peer: PeerId,
    carrier: Arc<Carrier>,
}

impl LocalConnection {
    /// Connects to `exports` as `session`; `peer` is the owner's id, ours.
    #[must_use]
    pub fn new(exports: Arc<Exports>, session: SessionId, peer: PeerId) -> Arc<Self> {
        Arc::new(Self {
            peer,
            carrier: Carrier::new(exports, session, Arc::new(Direct)),
        })
    }
}

impl Connection for LocalConnection {
    fn peer(&self) -> PeerId {
        self.peer
    }

    fn submit(&self, batch: Vec<Transfer>, deadline: Instant) -> Submission {
        self.carrier.submit(batch, deadline)
    }

    fn guards_reads(&self) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        self.carrier.is_closed()
    }

    fn close(&self) {
        self.carrier.close("closed by this side");
    }
}

impl Drop for LocalConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for LocalConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalConnection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

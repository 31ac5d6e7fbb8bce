//! A simulated network between connections and exports of one process, with seeded faults. Reproducible from its seed
//! when tokio's clock is paused and one thread drives it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use crate::carry::{Carrier, Fate, Way};
use crate::engine::{Connection, Submission, Transfer};
use crate::exports::Exports;
use crate::ids::{PeerId, SessionId};

/// How often each fault happens, as probabilities from 0 to 1. Default: none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimFaults {
    /// A piece never arrives: its transfer ends at the deadline.
    pub loss: f64,
    /// A piece is delayed by up to `delay_max`.
    pub delay: f64,
    /// Longest delay of a piece.
    pub delay_max: Duration,
    /// Pieces and groups are carried out in another order than they were submitted in (never within a group).
    pub reorder: f64,
    /// A transfer ends with [`Disconnected`](crate::TransferError::Disconnected) after some of its pieces were moved.
    pub partial: f64,
    /// A piece breaks the whole connection.
    pub disconnect: f64,
    /// One bit of a piece is flipped on its way.
    pub flip_bit: f64,
}

impl Default for SimFaults {
    fn default() -> Self {
        Self {
            loss: 0.0,
            delay: 0.0,
            delay_max: Duration::from_millis(10),
            reorder: 0.0,
            partial: 0.0,
            disconnect: 0.0,
            flip_bit: 0.0,
        }
    }
}

/// The network: one source of chance for all its connections.
#[derive(Debug)]
pub struct SimNetwork {
    way: Arc<SimWay>,
}

impl SimNetwork {
    /// A network whose faults follow from `seed`.
    #[must_use]
    pub fn new(seed: u64, faults: SimFaults) -> Self {
        Self {
            way: Arc::new(SimWay {
                faults,
                chance: Mutex::new(StdRng::seed_from_u64(seed)),
            }),
        }
    }

    /// Connects to `exports` as `session`; `peer` is the owner's id.
    #[must_use]
    pub fn connect(&self, exports: Arc<Exports>, session: SessionId, peer: PeerId) -> Arc<dyn Connection> {
        Arc::new(SimConnection {
            peer,
            carrier: Carrier::new(exports, session, Arc::clone(&self.way) as Arc<dyn Way>),
        })
    }
}

#[derive(Debug)]
struct SimWay {
    faults: SimFaults,
    chance: Mutex<StdRng>,
}

impl Way for SimWay {
    fn fate(&self) -> Fate {
        let SimFaults {
            loss,
            partial,
            disconnect,
            flip_bit,
            ..
        } = self.faults;
        let mut chance = self.chance.lock();
        if chance.random_bool(disconnect) {
            Fate::BreaksConnection
        } else if chance.random_bool(partial) {
            Fate::BreaksTransfer
        } else if chance.random_bool(loss) {
            Fate::Lost
        } else {
            Fate::Arrives {
                flipped_bit: chance.random_bool(flip_bit).then(|| chance.random()),
            }
        }
    }

    fn delay(&self) -> Option<Duration> {
        let mut chance = self.chance.lock();
        chance
            .random_bool(self.faults.delay)
            .then(|| self.faults.delay_max.mul_f64(chance.random()))
    }

    fn reorder(&self, order: &mut [usize]) {
        let mut chance = self.chance.lock();
        if chance.random_bool(self.faults.reorder) {
            order.shuffle(&mut *chance);
        }
    }
}

struct SimConnection {
    peer: PeerId,
    carrier: Arc<Carrier>,
}

impl Connection for SimConnection {
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

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for SimConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimConnection")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

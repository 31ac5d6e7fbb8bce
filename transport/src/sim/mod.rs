//! A simulated network between connections and exports of one process, with seeded faults. Reproducible from its seed when
//! tokio's clock is paused and one thread drives it.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::Connection;
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
pub struct SimNetwork {}

impl SimNetwork {
    /// A network whose faults follow from `seed`.
    #[must_use]
    pub fn new(_seed: u64, _faults: SimFaults) -> Self {
        unimplemented!()
    }

    /// Connects to `exports` as `session`; `peer` is the owner's id.
    #[must_use]
    pub fn connect(&self, _exports: Arc<Exports>, _session: SessionId, _peer: PeerId) -> Arc<dyn Connection> {
        unimplemented!()
    }
}

//! The engine over TCP and unix stream sockets.
//!
//! A connection has several *lanes*, each a socket with a handshake of its own. Transfers are cut in frames and spread
//! over the lanes; payloads go straight from and to registered memory.

mod initiator;
mod lane;
mod target;
mod wire;

use std::time::Duration;

use crate::limits::PROGRESS_TIMEOUT;

pub use initiator::TcpConnection;
pub(crate) use target::{LaneContext, serve_lane};

/// How a connection is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Parallel sockets, 1 to [`MAX_LANES`](crate::limits::MAX_LANES).
    pub lanes: usize,
    /// Transfers are cut in frames of at most this many bytes,
    /// [`MIN_DATA_FRAME_BYTES`](crate::limits::MIN_DATA_FRAME_BYTES) to
    /// [`MAX_DATA_FRAME_BYTES`](crate::limits::MAX_DATA_FRAME_BYTES).
    pub frame_bytes: u32,
    /// A lane on which something is under way and no byte moves for this long is given up.
    pub progress_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            lanes: 2,
            frame_bytes: 1 << 20,
            progress_timeout: PROGRESS_TIMEOUT,
        }
    }
}

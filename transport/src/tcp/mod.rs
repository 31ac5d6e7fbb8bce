//! The engine over TCP and unix stream sockets.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::Connection;
use crate::exports::Exports;
use crate::ids::{PeerId, SessionId};
use crate::link::{Authenticator, Endpoint, Identity, LinkError};
use crate::stream::{DetachedStream, Stream};

/// How a connection is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOptions {
    /// Parallel sockets, 1 to [`MAX_LANES`](crate::limits::MAX_LANES).
    pub lanes: usize,
    /// Transfers are cut in frames of at most this many bytes, 64 KiB to [`MAX_DATA_FRAME_BYTES`](crate::limits::MAX_DATA_FRAME_BYTES).
    pub frame_bytes: u32,
    /// A lane on which something is under way and no byte moves for this long is given up.
    pub progress_timeout: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            lanes: 2,
            frame_bytes: 1 << 20,
            progress_timeout: Duration::from_secs(10),
        }
    }
}

/// An initiator's connection: persistent lanes, reopened in the background when one dies.
#[derive(Debug)]
pub struct TcpConnection {}

impl TcpConnection {
    /// Dials all lanes and shakes hands on each. Tasks run on the runtime this is called on; give bulk data a runtime of its own.
    /// `identity.session` is the session whose exports can be reached.
    ///
    /// # Errors
    /// As for [`Link::dial`](crate::link::Link::dial), of the first lane that fails.
    pub async fn open(
        _endpoint: &Endpoint,
        _identity: &Identity,
        _auth: Arc<dyn Authenticator>,
        _expect: Option<PeerId>,
        _options: TcpOptions,
        _deadline: Instant,
    ) -> Result<Arc<dyn Connection>, LinkError> {
        unimplemented!()
    }
}

/// What a lane's target side works with.
#[derive(Debug)]
pub(crate) struct LaneContext {
    pub(crate) session: SessionId,
    pub(crate) exports: Arc<Exports>,
    pub(crate) progress_timeout: Duration,
}

pub(crate) async fn serve_lane(_stream: DetachedStream, _lane: LaneContext, _shutdown: watch::Receiver<bool>) {
    unimplemented!()
}

//! The dialler's end of a control link.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::ids::{PeerId, SessionId};
use crate::link::auth::Authenticator;
use crate::link::endpoint::Endpoint;
use crate::link::hello::{Identity, LinkError, Role};

/// The acceptor at the other end, as proven by the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its identity.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u64,
    /// The session: ours.
    pub session: SessionId,
    /// What it is.
    pub role: Role,
    /// Its feature bits.
    pub features: u64,
    /// Its opaque context.
    pub context: [u8; 32],
}

/// An authenticated control link: calls go out in any number, answers come back in any order. Dropping the last reference closes
/// it.
#[derive(Debug)]
pub struct Link {}

impl Link {
    /// Connects and shakes hands. Tasks of the link run on the runtime this is called on.
    ///
    /// # Errors
    /// Each way to fail by its name; [`LinkError::WrongPeer`] if `expect` is given and another peer answers.
    pub async fn dial(
        _endpoint: &Endpoint,
        _identity: &Identity,
        _auth: &dyn Authenticator,
        _expect: Option<PeerId>,
        _deadline: Instant,
    ) -> Result<Arc<Self>, LinkError> {
        unimplemented!()
    }

    /// Sends a request and waits for its answer. The peer is told how much time is left. Beyond
    /// [`MAX_LINK_CALLS`](crate::limits::MAX_LINK_CALLS) calls under way it waits its turn, inside the deadline.
    ///
    /// # Errors
    /// [`LinkError::Deadline`], [`LinkError::Closed`], [`LinkError::TooLarge`].
    pub async fn call(&self, _request: Bytes, _deadline: Instant) -> Result<Bytes, LinkError> {
        unimplemented!()
    }

    /// Who is at the other end.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        unimplemented!()
    }

    /// True if calls fail at once.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        unimplemented!()
    }

    /// Waits until the link is closed, and says why.
    pub async fn closed(&self) -> String {
        unimplemented!()
    }

    /// Closes it: calls under way get [`LinkError::Closed`]. Does not wait.
    pub fn close(&self) {
        unimplemented!()
    }
}

//! The acceptor's end of a control link.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use crate::ids::{PeerId, SessionId};
use crate::link::endpoint::Endpoint;
use crate::link::hello::{Hello, Refusal, Role};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The acceptor's policy: asked after the dialler has proven who it is, for control and data channels alike.
pub trait Admission: Send + Sync {
    /// Lets a peer in or not.
    ///
    /// # Errors
    /// The refusal reaches the dialler as [`LinkError::Refused`](crate::link::LinkError::Refused).
    fn admit(&self, hello: &Hello) -> Result<(), Refusal>;
}

/// Lets in whoever has proven itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        Ok(())
    }
}

/// One accepted control link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The dialler's identity.
    pub peer: PeerId,
    /// The session it named.
    pub session: SessionId,
    /// What it is.
    pub role: Role,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its feature bits.
    pub features: u64,
    /// Its opaque context.
    pub context: [u8; 32],
    /// The scope of the token it came with; `None` if it holds the secret itself (or none is asked for).
    pub scope: Option<u8>,
    /// Where it comes from; for a unix socket, our own path.
    pub endpoint: Endpoint,
}

/// Answers calls.
pub trait Service: Send + Sync {
    /// Answers one call. The future is dropped at `deadline`, the caller's. It runs on after the link has closed.
    fn call(&self, session: Arc<Session>, deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// A control link is up. The same `Arc` comes with each of its calls and with its end.
    fn session_opened(&self, _session: &Arc<Session>) {}

    /// A control link has ended. Calls of it may still be running.
    fn session_closed(&self, _session: &Arc<Session>) {}
}

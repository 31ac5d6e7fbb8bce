//! Accepts connections, shakes hands and hands them to the service or to the target side of the tcp engine.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::exports::Exports;
use crate::link::auth::Authenticator;
use crate::link::endpoint::Endpoint;
use crate::link::hello::Identity;
use crate::link::server::{Admission, Service};

/// What a listener may be told otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Time a dialler has for its whole handshake.
    pub handshake_timeout: Duration,
    /// A data lane on which something is under way and no byte moves for this long is closed.
    pub progress_timeout: Duration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(10),
        }
    }
}

/// Everything a listener serves with.
#[derive(Clone)]
pub struct Serving {
    /// Who we are.
    pub identity: Arc<Identity>,
    /// Keys for proofs.
    pub auth: Arc<dyn Authenticator>,
    /// Policy.
    pub admission: Arc<dyn Admission>,
    /// Answers the calls of control links.
    pub service: Arc<dyn Service>,
    /// What data lanes may touch.
    pub exports: Arc<Exports>,
    /// Where data lanes run. Give bulk data a runtime of its own, apart from control calls.
    pub data_runtime: Handle,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// An endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {endpoint}: {source}")]
pub struct BindError {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What the system said.
    pub source: io::Error,
}

/// A bound endpoint. Serves control links and data lanes alike.
#[derive(Debug)]
pub struct Listener {}

impl Listener {
    /// Binds an endpoint with the default options. A unix socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind(endpoint: &Endpoint) -> Result<Self, BindError> {
        Self::bind_with(endpoint, ListenerOptions::default()).await
    }

    /// Binds an endpoint.
    ///
    /// # Errors
    /// [`BindError`].
    pub async fn bind_with(_endpoint: &Endpoint, _options: ListenerOptions) -> Result<Self, BindError> {
        unimplemented!()
    }

    /// What it is bound to, with the port that the system chose where 0 was asked for.
    #[must_use]
    pub fn local_endpoint(&self) -> &Endpoint {
        unimplemented!()
    }

    /// Serves until `shutdown` becomes true or its sender is dropped; then stops accepting, tells every peer, lets calls under way
    /// finish for a short time, closes all, and returns.
    pub async fn serve(self, _serving: Serving, _shutdown: watch::Receiver<bool>) {
        unimplemented!()
    }
}

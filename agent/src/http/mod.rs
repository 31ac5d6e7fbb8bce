//! The HTTP front: for operators and for programs in any language. The same verbs as the link's as `POST` of JSON,
//! whole objects as `PUT`, `GET`, `HEAD` and `DELETE`, listings, metrics and health. It is served on loopback alone.
//!
//! [`routes`] is the table of what there is; [`guard`] stands before every handler; [`error`] is the one place where
//! errors become answers; [`connection`] bounds connections in number and time, by what [`progress`] knows of them, and
//! says by a [`refusal`] what is wrong with bytes that become no request. The node behind is known by the trait
//! [`backend::Backend`].
//!
//! Architecture invariant: bodies pass through in pieces; memory per request does not depend on the object's length.

pub(crate) mod backend;
mod body;
mod calls;
mod connection;
mod error;
mod extract;
mod guard;
mod health;
pub(crate) mod node;
mod objects;
mod path;
mod placement;
mod progress;
mod puts;
mod range;
mod refusal;
mod routes;
mod segments;
mod strict;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{NodesReply, Reply, Request};
use tenon_protocol::segments::SegmentsReply;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use crate::limits::{HTTP_CALLS_MAX, HTTP_TRANSFERS_MAX};
use crate::metrics::Metrics;
use backend::Backend;
use connection::{BoundedListener, ConnectionHandle};
use error::ApiError;
use puts::Puts;

/// What handlers share.
#[derive(Debug, Clone)]
struct Front {
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    puts: Arc<Puts>,
    transfers: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

impl Front {
    fn new(backend: Arc<dyn Backend>, metrics: Arc<Metrics>) -> Self {
        Self {
            backend,
            metrics,
            puts: Arc::default(),
            transfers: Arc::new(Semaphore::new(HTTP_TRANSFERS_MAX)),
            calls: Arc::new(Semaphore::new(HTTP_CALLS_MAX)),
        }
    }

    /// Waits for its turn to move an object.
    async fn admit_transfer(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, ApiError> {
        admit(&self.transfers, HTTP_TRANSFERS_MAX, "transfers", deadline).await
    }

    /// Waits for its turn to be served a call with a body.
    async fn admit_call(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, ApiError> {
        admit(&self.calls, HTTP_CALLS_MAX, "calls", deadline).await
    }

    async fn call(&self, deadline: Instant, request: Request) -> Result<Reply, ApiError> {
        match self.backend.call(deadline, request).await {
            Reply::Failed(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    async fn nodes(&self, deadline: Instant) -> Result<NodesReply, ApiError> {
        match self.call(deadline, Request::Nodes).await? {
            Reply::Nodes(reply) => Ok(reply),
            _ => Err(ApiError::unexpected_reply()),
        }
    }

    async fn segments(&self, node: Option<NodeId>, deadline: Instant) -> Result<SegmentsReply, ApiError> {
        match self.call(deadline, Request::Segments { node }).await? {
            Reply::Segments(reply) => Ok(reply),
            _ => Err(ApiError::unexpected_reply()),
        }
    }
}

async fn admit(
    turns: &Arc<Semaphore>,
    most: usize,
    what: &str,
    deadline: Instant,
) -> Result<OwnedSemaphorePermit, ApiError> {
    match timeout_at(deadline, Arc::clone(turns).acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_)) | Err(_) => {
            let message = format!("{most} {what} are under way over HTTP and none has ended in time; try again later");
            Err(ApiError::new(ErrorCode::Overloaded, message))
        }
    }
}

/// Serves HTTP on `listener` until `stop` says so, and then until the requests under way have been answered.
pub(crate) async fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    metrics: Arc<Metrics>,
    mut stop: watch::Receiver<bool>,
) {
    let router = routes::router(Front::new(backend, metrics));
    let service = router.into_make_service_with_connect_info::<ConnectionHandle>();
    let stopped = async move {
        // An error means that nobody can say stop any more.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let served = axum::serve(BoundedListener::new(listener), service).with_graceful_shutdown(stopped);
    if let Err(error) = served.await {
        tracing::error!(%error, "HTTP is not served any more");
    }
}

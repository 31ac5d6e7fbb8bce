//! The control service over a link.

use crate::control::Control;
use crate::limits::DIAL_TIMEOUT_MS;
use crate::slot::{Slot, Usable};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Reply, Request};
use tenon_transport::ClusterId;
use tenon_transport::link::{Authenticator, Endpoint, Identity, Link, LinkError, RefusalCode};
use tokio::time::Instant;

impl Usable for Link {
    fn is_usable(&self) -> bool {
        !self.is_closed()
    }
}

/// A link to one agent, dialled again with back-off when it broke.
pub struct LinkControl {
    endpoint: Endpoint,
    identity: Identity,
    auth: Arc<dyn Authenticator>,
    slot: Arc<Slot<Link>>,
    /// The cluster of the agent that answered first; no other is taken later.
    cluster: OnceLock<ClusterId>,
}

impl fmt::Debug for LinkControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkControl")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl LinkControl {
    /// Dials the agent at `endpoint`.
    ///
    /// # Errors
    /// `unavailable` if none answers there, `forbidden` if it refuses us, with the reason in words.
    pub async fn connect(
        endpoint: Endpoint,
        identity: Identity,
        auth: Arc<dyn Authenticator>,
        deadline: Instant,
    ) -> Result<Arc<Self>, ServiceError> {
        let control = Arc::new(Self {
            endpoint,
            identity,
            auth,
            slot: Slot::new(),
            cluster: OnceLock::new(),
        });
        control.link(deadline).await?;
        Ok(control)
    }

    /// Where the agent is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Who we are, in the agent's cluster.
    pub fn identity(&self) -> Identity {
        Identity {
            cluster: self.cluster(),
            ..self.identity.clone()
        }
    }

    /// The agent's cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster.get().copied().unwrap_or(self.identity.cluster)
    }

    /// How we prove ourselves to the agent.
    pub(crate) fn auth(&self) -> &Arc<dyn Authenticator> {
        &self.auth
    }

    /// The agent that answered last.
    pub(crate) fn node(&self) -> Option<NodeId> {
        self.slot.peek().map(|link| NodeId::from_bytes(link.remote().peer.0))
    }

    /// The link, dialled if there is none.
    pub(crate) async fn link(&self, deadline: Instant) -> Result<Arc<Link>, ServiceError> {
        let dial = || {
            let (endpoint, identity, auth) = (self.endpoint.clone(), self.identity(), Arc::clone(&self.auth));
            async move {
                let deadline = Instant::now() + Duration::from_millis(DIAL_TIMEOUT_MS);
                let dialled = Link::dial(&endpoint, &identity, &*auth, None, deadline).await;
                dialled.map_err(|error| dial_error(&error, &Peer::Agent(endpoint)))
            }
        };
        let link = self.slot.get(dial, deadline).await.map_err(|error| match error.code {
            ErrorCode::DeadlineExceeded => {
                let message = format!("no agent has answered at {}: {}", self.endpoint, error.message);
                ServiceError::new(error.code, message)
            }
            _ => error,
        })?;
        self.cluster.get_or_init(|| link.remote().cluster);
        Ok(link)
    }

    async fn ask(&self, request: Request, deadline: Instant) -> Result<Reply, ServiceError> {
        let unsendable = |error: codec::CodecError| ServiceError::new(ErrorCode::InvalidArgument, error.to_string());
        let is_repeatable = is_repeatable(&request);
        let bytes = Bytes::from(codec::encode(&request).map_err(unsendable)?);
        let mut answer = self.link(deadline).await?.call(bytes.clone(), deadline).await;
        if matches!(answer, Err(LinkError::Closed { .. })) && is_repeatable {
            // The agent may have restarted while nobody asked; a new link tells.
            answer = self.link(deadline).await?.call(bytes, deadline).await;
        }
        let answer = answer.map_err(|error| call_error(&error, &Peer::Agent(self.endpoint.clone())))?;
        codec::decode(&answer).map_err(|error| ServiceError::new(ErrorCode::Internal, error.to_string()))
    }
}

impl Control for LinkControl {
    fn call(&self, request: Request, deadline: Instant) -> BoxFuture<'_, Result<Reply, ServiceError>> {
        Box::pin(self.ask(request, deadline))
    }
}

/// Whether carrying a request out twice gives the same answer as once.
fn is_repeatable(request: &Request) -> bool {
    !matches!(request, Request::Remove(_) | Request::Abort(_) | Request::Member(_))
}

/// Who was called.
#[derive(Debug)]
pub(crate) enum Peer {
    /// The agent that the client is connected to.
    Agent(Endpoint),
    /// A node that holds objects.
    Holder(NodeId),
}

/// What a failed call means for the operation.
pub(crate) fn call_error(error: &LinkError, peer: &Peer) -> ServiceError {
    match error {
        LinkError::Deadline { .. } => refused(ErrorCode::DeadlineExceeded, peer, error),
        error => dial_error(error, peer),
    }
}

/// What a failed dial means for the operation.
pub(crate) fn dial_error(error: &LinkError, peer: &Peer) -> ServiceError {
    match error {
        LinkError::Connect { source, .. } | LinkError::Io { source, .. } => unavailable(peer, &source.to_string()),
        // Another node lives where this one was: it is not there.
        LinkError::Closed { .. } | LinkError::WrongPeer { .. } => unavailable(peer, &error.to_string()),
        LinkError::Refused { code, .. } if *code == RefusalCode::Busy as u16 => {
            refused(ErrorCode::Overloaded, peer, error)
        }
        LinkError::Refused { code, .. } if *code == RefusalCode::ShuttingDown as u16 => {
            unavailable(peer, &error.to_string())
        }
        LinkError::Deadline { .. } => unavailable(peer, &error.to_string()),
        LinkError::TooLarge { .. } => refused(ErrorCode::InvalidArgument, peer, error),
        LinkError::Protocol { .. } => refused(ErrorCode::Internal, peer, error),
        _ => refused(ErrorCode::Forbidden, peer, error),
    }
}

fn unavailable(peer: &Peer, reason: &str) -> ServiceError {
    match peer {
        Peer::Agent(endpoint) => {
            let message = format!("no agent answers at {endpoint}: {reason}");
            ServiceError::new(ErrorCode::Unavailable, message)
        }
        Peer::Holder(node) => ServiceError::unavailable(*node, reason),
    }
}

fn refused(code: ErrorCode, peer: &Peer, error: &LinkError) -> ServiceError {
    let message = match peer {
        Peer::Agent(endpoint) => format!("the agent at {endpoint}: {error}"),
        Peer::Holder(node) => format!("node {node}: {error}"),
    };
    ServiceError::new(code, message)
}

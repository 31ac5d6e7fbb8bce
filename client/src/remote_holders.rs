//! Holders over the network.

use crate::control::Service;
use crate::credentials::Credentials;
use crate::holders::{HolderAccess, Holders};
use crate::limits::{DIAL_TIMEOUT_MS, HOLDERS_MAX};
use crate::link_control::{LinkControl, Peer, call_error, dial_error};
use crate::rdma::{Dial, Transports};
use crate::rdma_failures::RdmaFailures;
use crate::slot::{Slot, Usable};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::message::{AttachReply, NodeRef, Reply, Request};
use tenon_transport::PeerId;
use tenon_transport::link::{Authenticator, Endpoint, Identity, Link};
use tokio::time::Instant;

impl Usable for HolderAccess {
    fn is_usable(&self) -> bool {
        Self::is_usable(self)
    }
}

/// Dials holders, asks them for access, and remembers it for as long as their life lasts.
pub struct RemoteHolders {
    dialler: Arc<Dialler>,
    slots: Mutex<HashMap<NodeId, Entry>>,
}

#[derive(Debug)]
struct Dialler {
    us: Us,
    credentials: Credentials,
    transports: Transports,
    failures: RdmaFailures,
}

/// Who dials.
#[derive(Debug)]
enum Us {
    /// A client of an agent: that agent is reached the way the client reached it.
    ClientOf(Arc<LinkControl>),
    /// A member of the cluster.
    Member(Box<Identity>),
}

#[derive(Debug)]
struct Entry {
    incarnation: Incarnation,
    endpoint: String,
    slot: Arc<Slot<HolderAccess>>,
}

impl fmt::Debug for RemoteHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteHolders")
            .field("dialler", &self.dialler)
            .finish_non_exhaustive()
    }
}

impl RemoteHolders {
    /// For the client of an agent. Without `secret` it shows other holders tokens that the agent gives.
    pub fn for_client(agent: Arc<LinkControl>, secret: Option<Arc<dyn Authenticator>>, transports: Transports) -> Self {
        let credentials = match secret {
            Some(secret) => Credentials::Own(secret),
            None => Credentials::from_agent(Service::new(Arc::clone(&agent) as _)),
        };
        Self::new(Us::ClientOf(agent), credentials, transports)
    }

    /// For a member, which dials as itself.
    pub fn for_member(identity: Identity, auth: Arc<dyn Authenticator>, transports: Transports) -> Self {
        Self::new(Us::Member(Box::new(identity)), Credentials::Own(auth), transports)
    }

    fn new(us: Us, credentials: Credentials, transports: Transports) -> Self {
        Self {
            dialler: Arc::new(Dialler {
                us,
                credentials,
                transports,
                failures: RdmaFailures::default(),
            }),
            slots: Mutex::default(),
        }
    }

    /// The slot of a holder. One that lives a new life or somewhere else starts afresh: earlier failures say nothing of it.
    fn slot(&self, node: &NodeRef) -> Arc<Slot<HolderAccess>> {
        let mut slots = self.slots.lock();
        if !slots.contains_key(&node.node) && slots.len() >= HOLDERS_MAX {
            slots.retain(|_, entry| entry.slot.peek().is_some_and(|access| access.is_usable()));
            if slots.len() >= HOLDERS_MAX {
                slots.clear();
            }
        }
        let fresh = || Entry {
            incarnation: node.incarnation,
            endpoint: node.endpoint.clone(),
            slot: Slot::new(),
        };
        let entry = slots.entry(node.node).or_insert_with(fresh);
        if node.incarnation > entry.incarnation
            || (node.incarnation == entry.incarnation && node.endpoint != entry.endpoint)
        {
            let reached = entry
                .slot
                .peek()
                .is_some_and(|access| access.is_usable() && access.incarnation >= node.incarnation);
            if reached {
                entry.incarnation = node.incarnation;
                entry.endpoint.clone_from(&node.endpoint);
            } else {
                *entry = fresh();
            }
        }
        Arc::clone(&entry.slot)
    }
}

impl Holders for RemoteHolders {
    fn open<'a>(
        &'a self,
        node: &'a NodeRef,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Arc<HolderAccess>, ServiceError>> {
        Box::pin(async move {
            let make = || {
                let (dialler, node) = (Arc::clone(&self.dialler), node.clone());
                async move { dialler.open(&node).await.map(Arc::new) }
            };
            self.slot(node).get(make, deadline).await
        })
    }

    fn discard(&self, access: &Arc<HolderAccess>) {
        if let Some(entry) = self.slots.lock().get(&access.node) {
            entry.slot.discard(access);
        }
    }
}

impl Dialler {
    /// Dials a holder's link, asks for access and connects for transfers.
    async fn open(&self, node: &NodeRef) -> Result<HolderAccess, ServiceError> {
        let deadline = Instant::now() + Duration::from_millis(DIAL_TIMEOUT_MS);
        let way = self.way_to(node, deadline).await?;
        let attached = attach(&way.link, node.node, deadline).await?;
        let dial = Dial {
            node: node.node,
            endpoint: &way.endpoint,
            identity: &way.identity,
            auth: &way.auth,
            features: way.link.remote().features,
        };
        let connected = self.transports.connect(&dial, &self.failures, deadline).await?;
        let access = HolderAccess::new(node.node, connected.connection, attached);
        Ok(access.with_link(way.link).until(connected.retry))
    }

    async fn way_to(&self, node: &NodeRef, deadline: Instant) -> Result<Way, ServiceError> {
        let identity = match &self.us {
            Us::ClientOf(agent) if agent.node() == Some(node.node) => {
                return Ok(Way {
                    link: agent.link(deadline).await?,
                    endpoint: agent.endpoint().clone(),
                    identity: agent.identity(),
                    auth: Arc::clone(agent.auth()),
                });
            }
            Us::ClientOf(agent) => agent.identity(),
            Us::Member(identity) => identity.as_ref().clone(),
        };
        let malformed = |error| {
            ServiceError::new(
                ErrorCode::Internal,
                format!("the address of node {}: {error}", node.node),
            )
        };
        let endpoint: Endpoint = node.endpoint.parse().map_err(malformed)?;
        let auth = self.credentials.towards(&endpoint, deadline).await?;
        let peer = Some(PeerId(node.node.to_bytes()));
        let link = Link::dial(&endpoint, &identity, &*auth, peer, deadline).await;
        Ok(Way {
            link: link.map_err(|error| dial_error(&error, &Peer::Holder(node.node)))?,
            endpoint,
            identity,
            auth,
        })
    }
}

/// A control link to a holder, and what it takes to connect for transfers beside it.
struct Way {
    link: Arc<Link>,
    endpoint: Endpoint,
    identity: Identity,
    auth: Arc<dyn Authenticator>,
}

/// Asks a holder for the grants to read its segments.
pub(crate) async fn attach(link: &Link, node: NodeId, deadline: Instant) -> Result<AttachReply, ServiceError> {
    let internal = |error: codec::CodecError| ServiceError::new(ErrorCode::Internal, format!("node {node}: {error}"));
    let request = Bytes::from(codec::encode(&Request::Attach).map_err(internal)?);
    let answer = link
        .call(request, deadline)
        .await
        .map_err(|error| match call_error(&error, &Peer::Holder(node)) {
            // The holder was given all the time that an attempt has.
            late if late.code == ErrorCode::DeadlineExceeded => ServiceError::unavailable(node, &late.message),
            error => error,
        })?;
    match codec::decode::<Reply>(&answer).map_err(internal)? {
        Reply::Attach(attached) => Ok(attached),
        Reply::Failed(error) => Err(error),
        _ => Err(ServiceError::new(
            ErrorCode::Internal,
            format!("node {node} answered attach with another reply"),
        )),
    }
}

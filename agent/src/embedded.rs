//! The agent as its own client: whole objects over HTTP are put and read by the same code that programs use, with calls
//! in process and, for this
//! node's own memory, transfers by memcpy.

use crate::holder::HolderDriver;
use crate::node::{Node, NodeIdentity};
use crate::peers::Dialler;
use crate::service::Caller;
use futures_util::future::BoxFuture;
use std::sync::{Arc, Weak};
use tenon_client::{Client, Control, HolderAccess, Holders, RemoteHolders, Transports};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::message::{NodeRef, Reply, Request};
use tenon_transport::local::LocalConnection;
use tenon_transport::{Exports, PeerId, SessionId};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// The client of an agent that is being put together; it works once the agent is.
pub(crate) fn client(
    node: &Weak<Node>,
    identity: &NodeIdentity,
    holder: &Arc<HolderDriver>,
    exports: Arc<Exports>,
    dialler: &Dialler,
    (transports, data): (Transports, Handle),
) -> Client {
    let session = SessionId(identity.session.to_bytes());
    let connection = LocalConnection::new(exports, session, PeerId(identity.node.to_bytes()));
    let own = Arc::clone(holder);
    let segments = Box::new(move |segment| own.segments().attached_one(segment));
    let others = RemoteHolders::for_member((*dialler.identity).clone(), Arc::clone(&dialler.auth), transports);
    let holders = OwnAndOthers {
        own: Arc::new(HolderAccess::own(
            identity.node,
            identity.incarnation,
            connection,
            segments,
        )),
        others: Arc::new(others),
        data,
    };
    Client::new(
        identity.cluster,
        Arc::new(InProcess(Weak::clone(node))),
        Arc::new(holders),
    )
}

/// Calls without a link.
#[derive(Debug)]
struct InProcess(Weak<Node>);

impl Control for InProcess {
    fn call(&self, request: Request, deadline: Instant) -> BoxFuture<'_, Result<Reply, ServiceError>> {
        let node = self.0.upgrade();
        Box::pin(async move {
            let stopping = || ServiceError::new(ErrorCode::Draining, "the agent is stopping");
            Ok(node.ok_or_else(stopping)?.call(Caller::Http, deadline, request).await)
        })
    }
}

/// This node's own memory, and other holders as any member reaches them.
struct OwnAndOthers {
    own: Arc<HolderAccess>,
    others: Arc<RemoteHolders>,
    data: Handle,
}

impl Holders for OwnAndOthers {
    fn open<'a>(
        &'a self,
        node: &'a NodeRef,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Arc<HolderAccess>, ServiceError>> {
        if node.node == self.own.node {
            let own = Arc::clone(&self.own);
            return Box::pin(async move { Ok(own) });
        }
        // The tasks of a link run where it is dialled: bulk data must not.
        let (others, node) = (Arc::clone(&self.others), node.clone());
        let opening = self.data.spawn(async move { others.open(&node, deadline).await });
        Box::pin(async move {
            let failed = |error| ServiceError::new(ErrorCode::Internal, format!("opening a holder failed: {error}"));
            opening.await.map_err(failed)?
        })
    }

    fn discard(&self, access: &Arc<HolderAccess>) {
        if access.node != self.own.node {
            self.others.discard(access);
        }
    }
}

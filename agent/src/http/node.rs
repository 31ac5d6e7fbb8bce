//! The node as the HTTP front sees it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tenon_client::{ClientError, ObjectInfo, ObjectReader, PutOptions, PutStream, RemovedPage};
use tenon_protocol::error::{NoSpace, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Alarm, Committed, NodeRef, Reply, Request};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_store_core::placement::PlacementCounters;
use tenon_transport::link::BoxFuture;
use tenon_transport::{RemoteKey, Slice};
use tokio::time::Instant;

use super::backend::{Backend, ObjectSink, ObjectSource};
use crate::lives::Lives;
use crate::node::Node;
use crate::service::Caller;

/// A node that answers for its health before it is put together.
pub(crate) struct NodeBackend {
    id: NodeId,
    node: OnceLock<Arc<Node>>,
    /// The segments that are being mounted.
    lives: Arc<Lives>,
}

impl NodeBackend {
    /// A node that is being put together.
    pub(crate) fn new(id: NodeId, lives: Arc<Lives>) -> Self {
        Self {
            id,
            lives,
            node: OnceLock::new(),
        }
    }

    /// The node is put together.
    pub(crate) fn started(&self, node: Arc<Node>) {
        // Whoever starts it does so once.
        let _ = self.node.set(node);
    }

    fn node(&self) -> Result<&Arc<Node>, ServiceError> {
        let node = self.node.get();
        node.ok_or_else(|| ServiceError::unavailable(self.id, "it is starting; see /readyz"))
    }
}

impl fmt::Debug for NodeBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeBackend")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The client's errors in the service's form, which HTTP shows.
fn service_error(error: ClientError) -> ServiceError {
    let (code, node, message) = (error.code(), error.node(), error.to_string());
    let no_space: Option<Box<NoSpace>> = match error {
        ClientError::Service(error) => return error,
        ClientError::NoSpace { numbers, .. } => Some(numbers),
        _ => None,
    };
    ServiceError {
        node,
        no_space,
        ..ServiceError::new(code, message)
    }
}

impl Backend for NodeBackend {
    fn id(&self) -> NodeId {
        self.id
    }

    fn call(&self, deadline: Instant, request: Request) -> BoxFuture<'_, Reply> {
        Box::pin(async move {
            match self.node() {
                Ok(node) => node.call(Caller::Http, deadline, request).await,
                Err(error) => Reply::Failed(error),
            }
        })
    }

    fn remove_page<'a>(
        &'a self,
        namespace: &'a Namespace,
        prefix: &'a str,
        after: Option<String>,
        limit: u32,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<RemovedPage, ServiceError>> {
        Box::pin(async move {
            let client = self.node()?.client();
            let removed = client.remove_page(namespace, prefix, after, limit, deadline);
            removed.await.map_err(service_error)
        })
    }

    fn open<'a>(
        &'a self,
        name: &'a ObjectName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Box<dyn ObjectSource>>, ServiceError>> {
        Box::pin(async move {
            let found = self
                .node()?
                .client()
                .open(name, deadline)
                .await
                .map_err(service_error)?;
            Ok(found.map(|reader| Box::new(reader) as _))
        })
    }

    fn put<'a>(
        &'a self,
        name: &'a ObjectName,
        len_bytes: u64,
        options: &'a PutOptions,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Box<dyn ObjectSink>, ServiceError>> {
        Box::pin(async move {
            let opened = self
                .node()?
                .client()
                .put_stream(name, len_bytes, options, deadline)
                .await;
            Ok(Box::new(opened.map_err(service_error)?) as _)
        })
    }

    fn write<'a>(
        &'a self,
        holder: &'a NodeRef,
        write_key: RemoteKey,
        piece: u64,
        slice: Slice,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), ServiceError>> {
        Box::pin(async move {
            let written = self
                .node()?
                .client()
                .write_piece(holder, write_key, piece, slice, deadline);
            written.await.map_err(service_error)
        })
    }

    fn placement_counters(&self) -> PlacementCounters {
        let node = self.node.get();
        node.map(|node| node.holder().placement_counters()).unwrap_or_default()
    }

    fn unready(&self) -> Vec<String> {
        let starting = || match self.lives.mounting_text() {
            Some(text) => vec![format!("the node is starting: {text}")],
            None => vec!["the node is starting".to_owned()],
        };
        self.node.get().map_or_else(starting, |node| node.unready())
    }

    fn alarms(&self) -> Vec<Alarm> {
        self.node.get().map(|node| node.alarms()).unwrap_or_default()
    }
}

impl ObjectSource for ObjectReader {
    fn info(&self) -> &ObjectInfo {
        Self::info(self)
    }

    fn read_ahead_until(&mut self, piece_end: u64) {
        Self::read_ahead_until(self, piece_end);
    }

    fn read_piece(&mut self, piece: u64, deadline: Instant) -> BoxFuture<'_, Result<Bytes, ServiceError>> {
        Box::pin(async move { Self::read_piece(self, piece, deadline).await.map_err(service_error) })
    }
}

impl ObjectSink for PutStream {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), ServiceError>> {
        Box::pin(async move { Self::write(self, bytes).await.map_err(service_error) })
    }

    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Committed, ServiceError>> {
        Box::pin(async move { Self::finish(*self).await.map_err(service_error) })
    }

    fn abort(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(Self::abort(*self))
    }
}

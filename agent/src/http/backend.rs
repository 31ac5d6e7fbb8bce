//! What the HTTP front needs of the node behind it.

use std::fmt;

use bytes::Bytes;
use tenon_client::{ObjectInfo, PutOptions, RemovedPage};
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Alarm, Committed, NodeRef, Reply, Request};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_store_core::placement::PlacementCounters;
use tenon_transport::link::BoxFuture;
use tenon_transport::{RemoteKey, Slice};
use tokio::time::Instant;

/// The node behind the HTTP front. Every call is back by its deadline.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// This node.
    fn id(&self) -> NodeId;

    /// One call of the control service.
    fn call(&self, deadline: Instant, request: Request) -> BoxFuture<'_, Reply>;

    /// Removes the first keys of a namespace that begin with a prefix and come after another one, at most `limit`.
    fn remove_page<'a>(
        &'a self,
        namespace: &'a Namespace,
        prefix: &'a str,
        after: Option<String>,
        limit: u32,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<RemovedPage, ServiceError>>;

    /// Finds an object and verifies what its table says; `None` is a miss.
    fn open<'a>(
        &'a self,
        name: &'a ObjectName,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Box<dyn ObjectSource>>, ServiceError>>;

    /// Reserves room for an object of exactly `len_bytes`. The deadline is that of the whole put.
    fn put<'a>(
        &'a self,
        name: &'a ObjectName,
        len_bytes: u64,
        options: &'a PutOptions,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Box<dyn ObjectSink>, ServiceError>>;

    /// Writes one piece into a region that this node itself has reserved, at its holder. All bytes are there when this
    /// returns.
    fn write<'a>(
        &'a self,
        holder: &'a NodeRef,
        write_key: RemoteKey,
        piece: u64,
        slice: Slice,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<(), ServiceError>>;

    /// What placement in this node's segments has cost so far.
    fn placement_counters(&self) -> PlacementCounters;

    /// Why the node should not be given work; empty if it is ready.
    fn unready(&self) -> Vec<String>;

    /// What an operator should look at.
    fn alarms(&self) -> Vec<Alarm>;
}

/// An object being read.
pub(crate) trait ObjectSource: Send {
    /// What its table says.
    fn info(&self) -> &ObjectInfo;

    /// Pieces from `piece_end` on will not be asked for.
    fn read_ahead_until(&mut self, piece_end: u64);

    /// One piece, verified.
    fn read_piece(&mut self, piece: u64, deadline: Instant) -> BoxFuture<'_, Result<Bytes, ServiceError>>;
}

/// An object being put. Dropping it before [`ObjectSink::finish`] gives the reservation back.
pub(crate) trait ObjectSink: Send {
    /// Takes the next bytes; waits while too much is under way.
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), ServiceError>>;

    /// Seals the object.
    fn finish(self: Box<Self>) -> BoxFuture<'static, Result<Committed, ServiceError>>;

    /// Gives the reservation back and waits until that is done.
    fn abort(self: Box<Self>) -> BoxFuture<'static, ()>;
}

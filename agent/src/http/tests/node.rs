//! A made-up node: objects in a map, answers by script, faults on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tenon_client::{ObjectInfo, PutOptions, RemovedPage};
use tenon_protocol::checksum::{Checksums, piece_len_bytes};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, NodeId, PutId, Version};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Alarm, Committed, ListRequest, NodeRef, NodesReply, PutOutcome, Reply, Request};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_protocol::segments::SegmentsReply;
use tenon_store_core::placement::PlacementCounters;
use tenon_transport::link::BoxFuture;
use tenon_transport::{RemoteKey, Slice};
use tokio::time::Instant;

use crate::http::backend::{Backend, ObjectSink, ObjectSource};

pub(super) const NODE: NodeId = NodeId::from_bytes([0xAA; 16]);

/// What goes wrong.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Opening a put fails.
    pub(super) put: Option<ServiceError>,
    /// Reading this piece fails.
    pub(super) piece: Option<(u64, ServiceError)>,
    /// Why the node is not ready.
    pub(super) unready: Vec<String>,
    /// What an operator should look at.
    pub(super) alarms: Vec<Alarm>,
}

type Objects = Arc<Mutex<BTreeMap<ObjectName, (Version, Bytes)>>>;

#[derive(Debug, Default)]
pub(super) struct FakeNode {
    pub(super) objects: Objects,
    pub(super) faults: Mutex<Faults>,
    /// What the next calls are answered.
    pub(super) replies: Mutex<VecDeque<Reply>>,
    /// What was called.
    pub(super) calls: Mutex<Vec<Request>>,
    /// What comes of the next removal of a page, and which page it was asked for.
    pub(super) removed_page: Mutex<RemovedPage>,
    pub(super) asked_page: Mutex<Option<ListRequest>>,
    /// Options of the last put.
    pub(super) put_options: Mutex<PutOptions>,
    /// Pieces written to reserved regions.
    pub(super) written: Mutex<Vec<(RemoteKey, u64, Vec<u8>)>>,
    pub(super) pieces_read: Arc<AtomicUsize>,
    open_puts: Arc<AtomicUsize>,
    /// Each object being read has a reference to it.
    open_sources: Arc<()>,
}

impl FakeNode {
    pub(super) fn open_sources(&self) -> usize {
        Arc::strong_count(&self.open_sources) - 1
    }

    pub(super) fn open_puts(&self) -> usize {
        self.open_puts.load(Ordering::SeqCst)
    }

    fn answer(&self, request: &Request) -> Reply {
        if let Some(reply) = self.replies.lock().pop_front() {
            return reply;
        }
        match request {
            Request::Remove(request) => {
                let mut objects = self.objects.lock();
                let namespace = Namespace::new(&request.namespace).unwrap();
                let remove = |key: &String| Ok(objects.remove(&ObjectName::new(&namespace, key)?).is_some());
                Reply::Remove(request.keys.iter().map(remove).collect())
            }
            Request::Nodes => Reply::Nodes(NodesReply {
                view_source: "standalone".into(),
                view_revision: 1,
                nodes: Vec::new(),
                index: Box::default(),
                alarms: Vec::new(),
            }),
            Request::Segments { .. } => Reply::Segments(SegmentsReply {
                segments: Vec::new(),
                missing: Vec::new(),
            }),
            request => Reply::Failed(ServiceError::new(
                ErrorCode::Internal,
                format!("no answer to {request:?}"),
            )),
        }
    }
}

impl Backend for FakeNode {
    fn id(&self) -> NodeId {
        NODE
    }

    fn call(&self, _deadline: Instant, request: Request) -> BoxFuture<'_, Reply> {
        let reply = self.answer(&request);
        self.calls.lock().push(request);
        Box::pin(async move { reply })
    }

    fn remove_page<'a>(
        &'a self,
        namespace: &'a Namespace,
        prefix: &'a str,
        after: Option<String>,
        limit: u32,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<RemovedPage, ServiceError>> {
        *self.asked_page.lock() = Some(ListRequest {
            namespace: namespace.to_string(),
            prefix: prefix.to_owned(),
            after,
            limit,
        });
        let page = std::mem::take(&mut *self.removed_page.lock());
        Box::pin(async move { Ok(page) })
    }

    fn open<'a>(
        &'a self,
        name: &'a ObjectName,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Option<Box<dyn ObjectSource>>, ServiceError>> {
        let found = self.objects.lock().get(name).cloned();
        let source = found.map(|(version, bytes)| FakeSource {
            info: ObjectInfo {
                name: name.clone(),
                len_bytes: bytes.len() as u64,
                version,
                sealed_unix_ms: 0,
                fingerprint: Vec::new(),
                checksums: Checksums::of(&bytes),
                replicas: Vec::new(),
            },
            bytes,
            piece_end: u64::MAX,
            fault: self.faults.lock().piece.clone(),
            pieces_read: Arc::clone(&self.pieces_read),
            _open: Arc::clone(&self.open_sources),
        });
        Box::pin(async move { Ok(source.map(|source| Box::new(source) as _)) })
    }

    fn put<'a>(
        &'a self,
        name: &'a ObjectName,
        len_bytes: u64,
        options: &'a PutOptions,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Box<dyn ObjectSink>, ServiceError>> {
        *self.put_options.lock() = options.clone();
        Box::pin(async move {
            if let Some(error) = self.faults.lock().put.clone() {
                return Err(error);
            }
            self.open_puts.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(FakeSink {
                name: name.clone(),
                len_bytes,
                bytes: Vec::new(),
                put_id: options.put_id.unwrap_or(PutId::from_bytes([1; 16])),
                objects: Arc::clone(&self.objects),
                open_puts: Arc::clone(&self.open_puts),
            }) as _)
        })
    }

    fn write<'a>(
        &'a self,
        _holder: &'a NodeRef,
        write_key: RemoteKey,
        piece: u64,
        slice: Slice,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<(), ServiceError>> {
        self.written.lock().push((write_key, piece, slice.to_vec()));
        Box::pin(async { Ok(()) })
    }

    fn placement_counters(&self) -> PlacementCounters {
        PlacementCounters::default()
    }

    fn unready(&self) -> Vec<String> {
        self.faults.lock().unready.clone()
    }

    fn alarms(&self) -> Vec<Alarm> {
        self.faults.lock().alarms.clone()
    }
}

struct FakeSource {
    info: ObjectInfo,
    bytes: Bytes,
    piece_end: u64,
    fault: Option<(u64, ServiceError)>,
    pieces_read: Arc<AtomicUsize>,
    _open: Arc<()>,
}

impl ObjectSource for FakeSource {
    fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn read_ahead_until(&mut self, piece_end: u64) {
        self.piece_end = piece_end;
    }

    fn read_piece(&mut self, piece: u64, _deadline: Instant) -> BoxFuture<'_, Result<Bytes, ServiceError>> {
        assert!(piece < self.piece_end, "piece {piece} is beyond what was announced");
        self.pieces_read.fetch_add(1, Ordering::SeqCst);
        let start = piece * PIECE_BYTES;
        let end = start + piece_len_bytes(self.info.len_bytes, piece);
        let at = |offset: u64| usize::try_from(offset).unwrap();
        let bytes = match &self.fault {
            Some((at, error)) if *at == piece => Err(error.clone()),
            _ => Ok(self.bytes.slice(at(start)..at(end))),
        };
        Box::pin(async move { bytes })
    }
}

struct FakeSink {
    name: ObjectName,
    len_bytes: u64,
    bytes: Vec<u8>,
    put_id: PutId,
    objects: Objects,
    open_puts: Arc<AtomicUsize>,
}

impl Drop for FakeSink {
    fn drop(&mut self) {
        self.open_puts.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ObjectSink for FakeSink {
    fn write(&mut self, bytes: Bytes) -> BoxFuture<'_, Result<(), ServiceError>> {
        self.bytes.extend_from_slice(&bytes);
        Box::pin(async { Ok(()) })
    }

    fn finish(mut self: Box<Self>) -> BoxFuture<'static, Result<Committed, ServiceError>> {
        assert_eq!(self.bytes.len() as u64, self.len_bytes);
        let version = Version {
            epoch: Epoch(1),
            put_id: self.put_id,
        };
        let bytes = std::mem::take(&mut self.bytes);
        let mut outcome = PutOutcome::AlreadyExists;
        let kept = self
            .objects
            .lock()
            .entry(self.name.clone())
            .or_insert_with(|| {
                outcome = PutOutcome::Stored;
                (version, bytes.into())
            })
            .0;
        let committed = Committed {
            outcome,
            version: kept,
            degraded: false,
            copies: 0,
        };
        Box::pin(async move { Ok(committed) })
    }

    fn abort(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

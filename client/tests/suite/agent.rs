//! A control service in this process, over any number of fake nodes, that can be told to misbehave.

use crate::node::{CLUSTER, FakeNode, SESSION};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tenon_client::{Client, Control, HolderAccess, Holders};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, NodeId, PutId, Version};
use tenon_protocol::message::*;
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_transport::{Connection, SessionId};
use tokio::time::Instant;

/// What is done with one call.
pub enum Fate {
    /// It is served.
    Served,
    /// It is served, and the answer is lost.
    AnswerLost,
    /// It is lost.
    Lost,
    /// Nobody answers.
    Hangs,
    /// This is answered and nothing is done.
    Answered(Reply),
}

type Fates = Box<dyn FnMut(&Request) -> Fate + Send>;
type Wrap = Box<dyn Fn(Arc<dyn Connection>) -> Arc<dyn Connection> + Send + Sync>;

struct Pending {
    name: ObjectName,
    len_bytes: u64,
    offsets: Vec<(NodeId, u64)>,
}

#[derive(Default)]
struct State {
    index: BTreeMap<ObjectName, Located>,
    pending: HashMap<(PutId, String), Pending>,
    outcomes: HashMap<(PutId, String), Committed>,
}

pub struct FakeAgent {
    pub nodes: Vec<Arc<FakeNode>>,
    replicas: usize,
    state: Mutex<State>,
    fates: Mutex<Fates>,
    calls: Mutex<Vec<Request>>,
    epoch: AtomicU64,
    /// Whose lanes may write.
    pub session: Mutex<SessionId>,
    wrap: Mutex<Wrap>,
    open: Mutex<HashMap<NodeId, Arc<HolderAccess>>>,
    pub unreachable: Mutex<HashSet<NodeId>>,
    pub hanging: Mutex<HashSet<NodeId>>,
    pub discards: AtomicUsize,
}

pub fn namespace() -> Namespace {
    Namespace::new("tests").unwrap()
}

pub fn name(key: &str) -> ObjectName {
    ObjectName::new(&namespace(), key).unwrap()
}

/// Bytes that differ from place to place and from seed to seed.
pub fn payload(len_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

impl FakeAgent {
    /// Puts place `replicas` replicas on the first nodes.
    pub fn new(nodes: u8, replicas: usize, segment_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            nodes: (1..=nodes).map(|number| FakeNode::new(number, segment_bytes)).collect(),
            replicas,
            state: Mutex::default(),
            fates: Mutex::new(Box::new(|_| Fate::Served)),
            calls: Mutex::default(),
            epoch: AtomicU64::new(1),
            session: Mutex::new(SESSION),
            wrap: Mutex::new(Box::new(|connection| connection)),
            open: Mutex::default(),
            unreachable: Mutex::default(),
            hanging: Mutex::default(),
            discards: AtomicUsize::new(0),
        })
    }

    pub fn client(self: &Arc<Self>) -> Client {
        Client::new(CLUSTER, Arc::clone(self) as _, Arc::clone(self) as _)
    }

    /// Each call's fate from now on.
    pub fn fates(&self, fates: impl FnMut(&Request) -> Fate + Send + 'static) {
        *self.fates.lock() = Box::new(fates);
    }

    /// Every connection opened from now on goes through this.
    pub fn wrap(&self, wrap: impl Fn(Arc<dyn Connection>) -> Arc<dyn Connection> + Send + Sync + 'static) {
        *self.wrap.lock() = Box::new(wrap);
        self.open.lock().clear();
    }

    /// The calls that `which` picks, in order.
    pub fn calls<T>(&self, which: impl FnMut(&Request) -> Option<T>) -> Vec<T> {
        self.calls.lock().iter().filter_map(which).collect()
    }

    pub fn count(&self, which: fn(&Request) -> bool) -> usize {
        self.calls.lock().iter().filter(|call| which(call)).count()
    }

    /// Reservations that were neither committed nor given back.
    pub fn pending(&self) -> usize {
        self.state.lock().pending.len()
    }

    pub fn next_version(&self) -> Version {
        let epoch = Epoch(self.epoch.fetch_add(1, Ordering::Relaxed));
        let put_id = PutId::from_bytes([0xbb; 16]);
        Version { epoch, put_id }
    }

    /// Stores an object on the given nodes and tells the index.
    pub fn store_on(&self, key: &str, bytes: &[u8], nodes: &[usize]) -> Located {
        let version = self.next_version();
        let replicas = nodes
            .iter()
            .map(|&at| self.nodes[at].store(&name(key), version, bytes))
            .collect();
        let located = Located {
            version,
            len_bytes: bytes.len() as u64,
            replicas,
        };
        self.index(key, located.clone());
        located
    }

    pub fn store(&self, key: &str, bytes: &[u8]) -> Located {
        self.store_on(key, bytes, &[0])
    }

    /// Another object of the same key and length takes the region and the slot of one that is dropped.
    pub fn replace_in_place(&self, key: &str, located: &Located, bytes: &[u8]) {
        let (node, mut replica) = (&self.nodes[0], located.replicas[0]);
        node.free(&replica);
        replica.generation.0 += 1_000;
        node.write(&replica, 0, bytes);
        let version = self.next_version();
        let entries = node.entries(&replica, &name(key), version, &Checksums::of(bytes), bytes.len() as u64);
        node.seal(&replica, entries);
        let located = Located {
            version,
            len_bytes: located.len_bytes,
            replicas: vec![replica],
        };
        self.index(key, located);
    }

    /// What locate answers from now on.
    pub fn index(&self, key: &str, located: Located) {
        self.state.lock().index.insert(name(key), located);
    }

    pub fn forget(&self, key: &str) {
        self.state.lock().index.remove(&name(key));
    }

    fn node(&self, id: NodeId) -> Option<&Arc<FakeNode>> {
        self.nodes.iter().find(|node| node.id == id)
    }

    pub fn locate_reply(&self, located: Vec<KeyResult<Option<Located>>>) -> Reply {
        Reply::Locate(LocateReply {
            nodes: self.nodes.iter().map(|node| node.node_ref()).collect(),
            items: located,
        })
    }

    pub fn serve(&self, request: Request) -> Reply {
        match request {
            Request::Reserve(request) => self.reserve(&request),
            Request::Commit(request) => {
                let commit = |item| self.commit(request.put_id, item);
                Reply::Commit(request.items.iter().map(commit).collect())
            }
            Request::Abort(request) => {
                let mut state = self.state.lock();
                let abort = |item: &AbortItem| Ok(state.pending.remove(&(request.put_id, item.key.clone())).is_some());
                Reply::Abort(request.items.iter().map(abort).collect())
            }
            Request::Locate(request) => {
                let state = self.state.lock();
                let find = |key: &String| Ok(state.index.get(&checked(key)?).cloned());
                self.locate_reply(request.keys.iter().map(find).collect())
            }
            Request::Relocate(request) => {
                let state = self.state.lock();
                let find = |missed: &MissedKey| Ok(state.index.get(&checked(&missed.key)?).cloned());
                self.locate_reply(request.keys.iter().map(find).collect())
            }
            Request::Exists(request) => {
                let state = self.state.lock();
                let hits = request
                    .keys
                    .iter()
                    .map(|key| Ok(state.index.contains_key(&checked(key)?)));
                Reply::Exists(match request.mode {
                    ExistsMode::Each => ExistsReply::Each(hits.collect()),
                    ExistsMode::LeadingRun => {
                        let run = hits.take_while(|hit| matches!(hit, Ok(true))).count();
                        ExistsReply::LeadingRun(u32::try_from(run).unwrap())
                    }
                })
            }
            Request::Remove(request) => {
                let mut state = self.state.lock();
                let remove = |key: &String| Ok(state.index.remove(&checked(key)?).is_some());
                Reply::Remove(request.keys.iter().map(remove).collect())
            }
            Request::Keep(request) => Reply::Keep(vec![Ok(true); request.keys.len()]),
            other => Reply::Failed(ServiceError::new(ErrorCode::Internal, format!("not faked: {other:?}"))),
        }
    }

    fn reserve(&self, request: &ReserveRequest) -> Reply {
        let nodes: Vec<_> = match request.options.node {
            Some(id) => self.node(id).into_iter().collect(),
            None => self.nodes.iter().take(self.replicas).collect(),
        };
        let reserve = |item: &ReserveItem| {
            let mut regions = Vec::new();
            let mut offsets = Vec::new();
            for node in &nodes {
                let offset_bytes = node.reserve(item.len_bytes);
                offsets.push((node.id, offset_bytes));
                regions.push(ReservedRegion {
                    holder: node.id,
                    segment: tenon_protocol::ids::SegmentId(1),
                    offset_bytes,
                    write_key: node.grant(offset_bytes, item.len_bytes, *self.session.lock()).0,
                    ttl_ms: 30_000,
                });
            }
            let pending = Pending {
                name: checked(&item.key)?,
                len_bytes: item.len_bytes,
                offsets,
            };
            let key = (request.put_id, item.key.clone());
            self.state.lock().pending.insert(key, pending);
            Ok(Reservation { replicas: regions })
        };
        Reply::Reserve(ReserveReply {
            items: request.items.iter().map(reserve).collect(),
            nodes: self.nodes.iter().map(|node| node.node_ref()).collect(),
        })
    }

    fn commit(&self, put_id: PutId, item: &CommitItem) -> KeyResult<Committed> {
        let mut state = self.state.lock();
        let key = (put_id, item.key.clone());
        if let Some(committed) = state.outcomes.get(&key) {
            return Ok(*committed);
        }
        let unknown = || ServiceError::new(ErrorCode::UnknownPut, "never reserved, given back, or expired");
        let pending = state.pending.remove(&key).ok_or_else(unknown)?;
        let version = Version {
            epoch: Epoch(1),
            put_id,
        };
        let mut committed = Committed {
            outcome: PutOutcome::Stored,
            version,
            degraded: false,
            copies: 0,
        };
        if let Some(there) = state.index.get(&pending.name) {
            committed.outcome = PutOutcome::AlreadyExists;
            committed.version = there.version;
        } else {
            let replicas = self.seal(&pending, item, version)?;
            let located = Located {
                version,
                len_bytes: pending.len_bytes,
                replicas,
            };
            state.index.insert(pending.name, located);
        }
        state.outcomes.insert(key, committed);
        Ok(committed)
    }

    fn seal(&self, pending: &Pending, item: &CommitItem, version: Version) -> Result<Vec<Replica>, ServiceError> {
        let mut replicas = Vec::new();
        for &(id, offset_bytes) in &pending.offsets {
            let node = self.node(id).unwrap();
            if Checksums::of(&node.bytes(offset_bytes, pending.len_bytes)) != item.checksums {
                return Err(ServiceError::new(ErrorCode::ChecksumMismatch, "other bytes arrived"));
            }
            let replica = node.replica(offset_bytes);
            let mut entries = node.entries(&replica, &pending.name, version, &item.checksums, pending.len_bytes);
            entries.row.fingerprint.clone_from(&item.fingerprint);
            node.seal(&replica, entries);
            replicas.push(replica);
        }
        Ok(replicas)
    }
}

fn checked(key: &str) -> Result<ObjectName, ServiceError> {
    Ok(ObjectName::new(&namespace(), key)?)
}

fn lost() -> ServiceError {
    ServiceError::new(ErrorCode::Unavailable, "the link broke")
}

impl Control for FakeAgent {
    fn call(&self, request: Request, _deadline: Instant) -> BoxFuture<'_, Result<Reply, ServiceError>> {
        Box::pin(async move {
            self.calls.lock().push(request.clone());
            let fate = (self.fates.lock())(&request);
            match fate {
                Fate::Served => Ok(self.serve(request)),
                Fate::AnswerLost => {
                    self.serve(request);
                    Err(lost())
                }
                Fate::Lost => Err(lost()),
                Fate::Hangs => std::future::pending().await,
                Fate::Answered(reply) => Ok(reply),
            }
        })
    }
}

impl Holders for FakeAgent {
    fn open<'a>(
        &'a self,
        node: &'a NodeRef,
        _deadline: Instant,
    ) -> BoxFuture<'a, Result<Arc<HolderAccess>, ServiceError>> {
        Box::pin(async move {
            if self.hanging.lock().contains(&node.node) {
                std::future::pending().await
            }
            if self.unreachable.lock().contains(&node.node) {
                return Err(ServiceError::unavailable(node.node, "connecting"));
            }
            let there = self.node(node.node).expect("only fake nodes are named");
            let mut open = self.open.lock();
            let access = open
                .entry(node.node)
                .or_insert_with(|| there.access((self.wrap.lock())(there.connection())));
            Ok(Arc::clone(access))
        })
    }

    fn discard(&self, access: &Arc<HolderAccess>) {
        self.discards.fetch_add(1, Ordering::Relaxed);
        self.open.lock().remove(&access.node);
    }
}

//! A client of the link that does exactly what it is told, right or wrong: what a program could send, the client crate would not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::codec;
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::message::{
    AbortItem, AbortRequest, CommitItem, CommitRequest, Committed, KeyResult, KeysRequest, LocateReply, PutOptions,
    Reply, Request, Reservation, ReserveItem, ReserveReply, ReserveRequest,
};
use tenon_protocol::name::Namespace;
use tenon_transport::link::{Authenticator, Endpoint, Identity, Link, LinkError, Role, SharedSecret};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::{
    ClusterId, Connection, Memory, Op, PeerId, RemoteKey, SessionId, Slice, Transfer, TransferError,
};
use tokio::time::Instant;

use crate::cluster::{CLUSTER_NAME, SECRET};

/// No call of a test needs longer; one that does has hung.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The deadline of a call that is made now.
pub fn deadline() -> Instant {
    Instant::now() + CALL_TIMEOUT
}

/// A put id that nobody else has.
pub fn new_put_id() -> PutId {
    PutId::from_bytes(rand::random())
}

/// Who a client of the clusters under test is, in a session of its own.
pub fn identity() -> Identity {
    Identity {
        cluster: ClusterId(tenon_protocol::ids::ClusterId::of_name(CLUSTER_NAME).to_bytes()),
        role: Role::Client,
        peer: PeerId(rand::random()),
        incarnation: 1,
        session: SessionId(rand::random()),
        features: 0,
        context: [0; 32],
    }
}

/// The secret of the clusters under test.
pub fn secret() -> Arc<SharedSecret> {
    Arc::new(SharedSecret::new(SECRET.as_bytes()).expect("the secret is long enough"))
}

/// A session with one node as its coordinator.
#[derive(Debug)]
pub struct RawClient {
    identity: Identity,
    link: Arc<Link>,
}

impl RawClient {
    /// Dials a node with the cluster's secret, in a new session.
    pub async fn dial(address: SocketAddr) -> Self {
        let identity = identity();
        match Self::dial_as(address, &identity, &*secret()).await {
            Ok(client) => client,
            Err(error) => panic!("cannot dial {address}: {error}"),
        }
    }

    /// Dials a node as somebody.
    pub async fn dial_as(
        address: SocketAddr,
        identity: &Identity,
        auth: &dyn Authenticator,
    ) -> Result<Self, LinkError> {
        let link = Link::dial(&Endpoint::Tcp(address), identity, auth, None, deadline()).await?;
        Ok(Self {
            identity: identity.clone(),
            link,
        })
    }

    /// The control link.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Who this client is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Makes a call.
    pub async fn call(&self, request: &Request) -> Reply {
        self.try_call(request)
            .await
            .unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    /// Makes a call, without a panic when no answer comes.
    pub async fn try_call(&self, request: &Request) -> Result<Reply, LinkError> {
        let bytes = codec::encode(request).expect("the request can be encoded");
        let answer = self.link.call(Bytes::from(bytes), deadline()).await?;
        Ok(codec::decode(&answer).expect("the answer can be decoded"))
    }

    /// Reserves regions for keys of the default namespace on one node.
    pub async fn reserve(&self, put_id: PutId, items: &[(&str, u64)], node: Option<NodeId>) -> ReserveReply {
        let items = items.iter().map(|&(key, len_bytes)| ReserveItem {
            key: key.to_owned(),
            len_bytes,
        });
        let request = Request::Reserve(ReserveRequest {
            namespace: Namespace::DEFAULT.to_owned(),
            put_id,
            items: items.collect(),
            options: PutOptions {
                node,
                ..PutOptions::default()
            },
        });
        match self.call(&request).await {
            Reply::Reserve(reply) => reply,
            other => panic!("{request:?} was answered {other:?}"),
        }
    }

    /// Reserves a region for one key and opens lanes to its holder.
    pub async fn reserve_one(&self, put_id: PutId, key: &str, len_bytes: u64, node: Option<NodeId>) -> OpenPut {
        let reply = self.reserve(put_id, &[(key, len_bytes)], node).await;
        let reservation = match &reply.items[..] {
            [Ok(reservation)] => reservation.clone(),
            other => panic!("reserving {key:?} was answered {other:?}"),
        };
        let holder = &reply.nodes[0];
        let endpoint: Endpoint = holder.endpoint.parse().expect("a holder's endpoint");
        let connection = TcpConnection::open(
            &endpoint,
            &self.identity,
            secret(),
            Some(PeerId(holder.node.to_bytes())),
            TcpOptions::default(),
            deadline(),
        )
        .await
        .unwrap_or_else(|error| panic!("cannot open lanes to {endpoint}: {error}"));
        OpenPut {
            put_id,
            key: key.to_owned(),
            reservation,
            connection,
        }
    }

    /// Reserves a region for another key of a put, where the first one has its own. They share the lanes.
    pub async fn reserve_also(&self, first: &OpenPut, key: &str, len_bytes: u64) -> OpenPut {
        let holder = first.holders().first().copied();
        let reply = self.reserve(first.put_id, &[(key, len_bytes)], holder).await;
        OpenPut {
            put_id: first.put_id,
            key: key.to_owned(),
            reservation: reply.items[0].clone().expect("a region"),
            connection: Arc::clone(&first.connection),
        }
    }

    /// Commits one key of the default namespace.
    pub async fn commit_one(&self, put: &OpenPut, checksums: Checksums) -> KeyResult<Committed> {
        let request = put.commit_request(checksums);
        match self.call(&request).await {
            Reply::Commit(mut items) if items.len() == 1 => items.remove(0),
            other => panic!("{request:?} was answered {other:?}"),
        }
    }

    /// Aborts one key of the default namespace.
    pub async fn abort_one(&self, put_id: PutId, key: &str, holders: &[NodeId]) -> KeyResult<bool> {
        let request = Request::Abort(AbortRequest {
            namespace: Namespace::DEFAULT.to_owned(),
            put_id,
            items: vec![AbortItem {
                key: key.to_owned(),
                holders: holders.to_vec(),
            }],
        });
        match self.call(&request).await {
            Reply::Abort(mut items) if items.len() == 1 => items.remove(0),
            other => panic!("{request:?} was answered {other:?}"),
        }
    }

    /// Where keys of the default namespace lie.
    pub async fn locate(&self, keys: &[&str]) -> LocateReply {
        let request = Request::Locate(KeysRequest {
            namespace: Namespace::DEFAULT.to_owned(),
            keys: keys.iter().map(|&key| key.to_owned()).collect(),
        });
        match self.call(&request).await {
            Reply::Locate(reply) => reply,
            other => panic!("{request:?} was answered {other:?}"),
        }
    }
}

/// A put that has a region and lanes to its holder, and is not committed.
#[derive(Debug)]
pub struct OpenPut {
    /// The attempt.
    pub put_id: PutId,
    /// The key.
    pub key: String,
    /// What was reserved.
    pub reservation: Reservation,
    /// Lanes to the holder.
    pub connection: Arc<dyn Connection>,
}

impl OpenPut {
    /// Its holders.
    pub fn holders(&self) -> Vec<NodeId> {
        self.reservation.replicas.iter().map(|region| region.holder).collect()
    }

    /// Writes bytes at an offset of its region.
    pub async fn write(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), TransferError> {
        write(
            &*self.connection,
            self.reservation.replicas[0].write_key,
            offset_bytes,
            bytes,
        )
        .await
    }

    /// The call that commits it.
    pub fn commit_request(&self, checksums: Checksums) -> Request {
        Request::Commit(CommitRequest {
            namespace: Namespace::DEFAULT.to_owned(),
            put_id: self.put_id,
            items: vec![CommitItem {
                key: self.key.clone(),
                holders: self.holders(),
                checksums,
                fingerprint: Vec::new(),
            }],
        })
    }
}

/// All of some private memory that holds `bytes`.
pub fn memory_of(bytes: Vec<u8>) -> Slice {
    Arc::new(Memory::from_vec(bytes)).whole()
}

/// Writes bytes under a key, whosever it is.
pub async fn write(
    connection: &dyn Connection,
    key: u64,
    offset_bytes: u64,
    bytes: &[u8],
) -> Result<(), TransferError> {
    let transfer = Transfer {
        op: Op::Write,
        key: RemoteKey(key),
        remote_offset_bytes: offset_bytes,
        local: vec![memory_of(bytes.to_vec())],
        group: 0,
    };
    let mut results = connection.submit(vec![transfer], deadline()).await;
    results.remove(0).map(|_| ())
}

/// Reads bytes under a key, whosever it is.
pub async fn read(
    connection: &dyn Connection,
    key: u64,
    offset_bytes: u64,
    len: usize,
) -> Result<Vec<u8>, TransferError> {
    let local = memory_of(vec![0; len]);
    let transfer = Transfer {
        op: Op::Read,
        key: RemoteKey(key),
        remote_offset_bytes: offset_bytes,
        local: vec![local.clone()],
        group: 0,
    };
    let mut results = connection.submit(vec![transfer], deadline()).await;
    results.remove(0).map(|_| local.to_vec())
}

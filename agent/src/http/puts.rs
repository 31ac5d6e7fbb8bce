//! Puts that programs make over HTTP verb by verb: reserve, upload, commit. The regions belong to this agent's own
//! session, so the front keeps what is needed to write into them, and the checksums of what was written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::HeaderMap;
use axum::http::Uri;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenon_protocol::checksum::{Checksums, piece_count, piece_len_bytes};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{AbortItem, CommitItem, KeyResult, NodeRef, Reservation, ReserveReply, ReserveRequest};
use tenon_protocol::name::Namespace;
use tenon_transport::{Memory, RemoteKey, Slice};
use tokio::time::Instant;

use super::Front;
use super::body::{Incoming, content_length};
use super::connection::ConnectionHandle;
use super::error::ApiError;
use super::extract::{Patience, query};
use super::objects::refuse_surplus;
use super::path;
use crate::limits::HTTP_PUTS_MAX;
use crate::metrics;

/// An entry outlives its reservation by so much: the holder's clock decides, not ours.
const GRACE: Duration = Duration::from_secs(5);

/// [`CommitRequest`](tenon_protocol::message::CommitRequest) in which what the front knows may be left out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommitBody {
    pub(super) namespace: String,
    pub(super) put_id: PutId,
    items: Vec<CommitBodyItem>,
}

#[derive(Debug, Serialize, Deserialize)]
struct CommitBodyItem {
    key: String,
    #[serde(default)]
    holders: Option<Vec<NodeId>>,
    #[serde(default)]
    checksums: Option<Checksums>,
    #[serde(default)]
    fingerprint: Vec<u8>,
}

/// [`AbortRequest`](tenon_protocol::message::AbortRequest) in which what the front knows may be left out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AbortBody {
    pub(super) namespace: String,
    pub(super) put_id: PutId,
    items: Vec<AbortBodyItem>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AbortBodyItem {
    key: String,
    #[serde(default)]
    holders: Option<Vec<NodeId>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PutKey {
    namespace: String,
    put_id: PutId,
    key: String,
}

impl PutKey {
    fn new(namespace: &str, put_id: PutId, key: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            put_id,
            key: key.to_owned(),
        }
    }
}

/// A region to write into.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Region {
    holder: NodeRef,
    write_key: RemoteKey,
}

#[derive(Debug)]
struct Entry {
    len_bytes: u64,
    regions: Arc<[Region]>,
    /// One per piece that has been written.
    sums: Vec<Option<u64>>,
    ttl: Duration,
    used: Instant,
}

impl Entry {
    fn new(len_bytes: u64, reservation: &Reservation, nodes: &[NodeRef]) -> Option<Self> {
        let region = |region: &tenon_protocol::message::ReservedRegion| {
            let holder = nodes.iter().find(|node| node.node == region.holder)?.clone();
            Some(Region {
                holder,
                write_key: RemoteKey(region.write_key),
            })
        };
        let regions: Option<Vec<_>> = reservation.replicas.iter().map(region).collect();
        let ttl_ms = reservation.replicas.iter().map(|region| region.ttl_ms).max()?;
        Some(Self {
            len_bytes,
            regions: regions?.into(),
            sums: vec![None; usize::try_from(piece_count(len_bytes)).ok()?],
            ttl: Duration::from_millis(ttl_ms.into()),
            used: Instant::now(),
        })
    }

    fn holders(&self) -> Vec<NodeId> {
        self.regions.iter().map(|region| region.holder.node).collect()
    }

    fn checksums(&self) -> Result<Checksums, ServiceError> {
        let sums: Option<Vec<u64>> = self.sums.iter().copied().collect();
        sums.map(|sums| Checksums::from_pieces(self.len_bytes, sums))
            .ok_or_else(|| {
                let missing = self.sums.iter().position(Option::is_none).unwrap_or(0) as u64 * PIECE_BYTES;
                let message =
                    format!("the bytes from {missing} on were not uploaded: upload them, or give the checksums");
                ServiceError::new(ErrorCode::LengthMismatch, message)
            })
    }
}

/// The puts under way. Entries end when their reservation must have ended.
#[derive(Debug, Default)]
pub(super) struct Puts(Mutex<HashMap<PutKey, Entry>>);

impl Puts {
    /// Refuses more puts than are kept.
    pub(super) fn check_room(&self, more: usize) -> Result<(), ApiError> {
        let mut puts = self.0.lock();
        if puts.len() + more <= HTTP_PUTS_MAX {
            return Ok(());
        }
        let now = Instant::now();
        puts.retain(|_, entry| entry.used + entry.ttl + GRACE > now);
        if puts.len() + more <= HTTP_PUTS_MAX {
            return Ok(());
        }
        let message = format!(
            "{} puts are under way over HTTP: commit or abort some, or wait for them to run out",
            puts.len()
        );
        Err(ApiError::new(ErrorCode::Overloaded, message))
    }

    /// Notes what was reserved. A reservation that was answered again keeps what was written to it.
    pub(super) fn remember(&self, request: &ReserveRequest, reply: &ReserveReply) {
        let mut puts = self.0.lock();
        for (item, result) in request.items.iter().zip(&reply.items) {
            let entry = result
                .as_ref()
                .ok()
                .and_then(|reservation| Entry::new(item.len_bytes, reservation, &reply.nodes));
            let Some(mut entry) = entry else { continue };
            let key = PutKey::new(&request.namespace, request.put_id, &item.key);
            if let Some(known) = puts.remove(&key)
                && known.regions == entry.regions
            {
                entry.sums = known.sums;
            }
            puts.insert(key, entry);
        }
    }

    fn regions(&self, key: &PutKey) -> Result<(u64, Arc<[Region]>), ServiceError> {
        let mut puts = self.0.lock();
        let entry = puts.get_mut(key).ok_or_else(|| unknown_put(key))?;
        entry.used = Instant::now();
        Ok((entry.len_bytes, Arc::clone(&entry.regions)))
    }

    fn written(&self, key: &PutKey, piece: u64, sum: u64) {
        let mut puts = self.0.lock();
        let place = puts.get_mut(key).map(|entry| {
            entry.used = Instant::now();
            &mut entry.sums
        });
        let place = place.and_then(|sums| sums.get_mut(usize::try_from(piece).ok()?));
        if let Some(place) = place {
            *place = Some(sum);
        }
    }

    /// Completes the items of a commit.
    pub(super) fn fill_commit(&self, body: CommitBody) -> Vec<KeyResult<CommitItem>> {
        let puts = self.0.lock();
        let fill = |item: CommitBodyItem| {
            let key = PutKey::new(&body.namespace, body.put_id, &item.key);
            let entry = || puts.get(&key).ok_or_else(|| unknown_put(&key));
            Ok(CommitItem {
                holders: item.holders.map_or_else(|| entry().map(Entry::holders), Ok)?,
                checksums: item.checksums.map_or_else(|| entry()?.checksums(), Ok)?,
                key: item.key,
                fingerprint: item.fingerprint,
            })
        };
        body.items.into_iter().map(fill).collect()
    }

    /// Completes the items of an abort. What is aborted is forgotten: if the answer is lost, so is nothing.
    pub(super) fn fill_abort(&self, body: AbortBody) -> Vec<KeyResult<AbortItem>> {
        let mut puts = self.0.lock();
        let mut fill = |item: AbortBodyItem| {
            let key = PutKey::new(&body.namespace, body.put_id, &item.key);
            let known = puts.remove(&key).map(|entry| entry.holders());
            let holders = item.holders.or(known).ok_or_else(|| unknown_put(&key))?;
            Ok(AbortItem { key: item.key, holders })
        };
        body.items.into_iter().map(&mut fill).collect()
    }
}

fn unknown_put(key: &PutKey) -> ServiceError {
    let message = format!(
        "no put {} of {}/{} was reserved over HTTP here, or it has run out",
        key.put_id, key.namespace, key.key
    );
    ServiceError::new(ErrorCode::UnknownPut, message)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadQuery {
    namespace: Option<String>,
    #[serde(default)]
    offset: u64,
    timeout_ms: Option<u64>,
}

/// The answer to an upload.
#[derive(Debug, Serialize)]
pub(super) struct Uploaded {
    received_bytes: u64,
}

/// `PUT /v1/puts/{put_id}/{key}`: bytes of a reserved object, whole pieces but for the object's last.
pub(super) async fn upload(
    State(front): State<Front>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    request: Request,
) -> Result<Json<Uploaded>, ApiError> {
    let (parts, mut incoming) = Incoming::of(request);
    let uploaded = write(&front, &connection, &parts.uri, &parts.headers, &mut incoming).await;
    incoming.discard();
    uploaded.map(|received_bytes| Json(Uploaded { received_bytes }))
}

async fn write(
    front: &Front,
    connection: &ConnectionHandle,
    uri: &Uri,
    headers: &HeaderMap,
    incoming: &mut Incoming,
) -> Result<u64, ApiError> {
    let (put_id, key) = path::put_and_key(uri)?;
    let asked: UploadQuery = query(uri)?;
    let len_bytes = content_length(headers)?;
    let patience = Patience::new(asked.timeout_ms)?;
    let key = PutKey::new(asked.namespace.as_deref().unwrap_or(Namespace::DEFAULT), put_id, &key);
    let (object_bytes, regions) = front.puts.regions(&key)?;
    check_part(asked.offset, len_bytes, object_bytes)?;
    let _permit = front.admit_transfer(patience.deadline(0)).await?;
    let deadline = patience.deadline(len_bytes);
    let mut left_over = bytes::Bytes::new();
    let end = asked.offset + len_bytes;
    for piece in asked.offset / PIECE_BYTES..end.div_ceil(PIECE_BYTES) {
        let piece_bytes = piece_len_bytes(object_bytes, piece);
        let slice = gather(front, incoming, &mut left_over, piece_bytes, deadline).await?;
        let sum = slice.crc64();
        let writes = regions.iter().map(|region| {
            let to = (&region.holder, region.write_key);
            front.backend.write(to.0, to.1, piece, slice.clone(), deadline)
        });
        for written in join_all(writes).await {
            written?;
        }
        front.puts.written(&key, piece, sum);
    }
    refuse_surplus(connection)?;
    Ok(len_bytes)
}

/// Parts are whole pieces, so that each piece has one checksum.
fn check_part(offset: u64, len_bytes: u64, object_bytes: u64) -> Result<(), ApiError> {
    let refuse = |code, reason: String| Err(ApiError::new(code, reason));
    if len_bytes == 0 {
        return refuse(ErrorCode::InvalidArgument, "an upload has at least one byte".to_owned());
    }
    let Some(end) = offset.checked_add(len_bytes).filter(|end| *end <= object_bytes) else {
        let message = format!("{len_bytes} bytes at {offset} do not lie inside the reserved {object_bytes}");
        return refuse(ErrorCode::LengthMismatch, message);
    };
    if !offset.is_multiple_of(PIECE_BYTES) || !(end == object_bytes || end.is_multiple_of(PIECE_BYTES)) {
        let message =
            format!("an upload begins at a multiple of {PIECE_BYTES}, and ends at one or at the object's end");
        return refuse(ErrorCode::InvalidArgument, message);
    }
    Ok(())
}

/// The next `piece_bytes` of a body, as memory of their own.
async fn gather(
    front: &Front,
    incoming: &mut Incoming,
    left_over: &mut bytes::Bytes,
    piece_bytes: u64,
    deadline: Instant,
) -> Result<Slice, ApiError> {
    let piece_bytes = usize::try_from(piece_bytes).expect("a piece fits in memory");
    let mut piece = Vec::with_capacity(piece_bytes);
    while piece.len() < piece_bytes {
        if left_over.is_empty() {
            let next = incoming.next(deadline).await?;
            *left_over = next.ok_or_else(|| ApiError::new(ErrorCode::LengthMismatch, "the body is too short"))?;
            front.metrics.received(metrics::Place::Http, left_over.len() as u64);
        }
        let taken = left_over.split_to(left_over.len().min(piece_bytes - piece.len()));
        piece.extend_from_slice(&taken);
    }
    Ok(Arc::new(Memory::from_vec(piece)).whole())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::{Incarnation, SegmentId};
    use tenon_protocol::message::{PutOptions, ReserveItem, ReservedRegion};

    const PUT: PutId = PutId::from_bytes([1; 16]);
    const HOLDER: NodeId = NodeId::from_bytes([2; 16]);
    const LEN_BYTES: u64 = 2 * PIECE_BYTES + 5;

    fn reserve(puts: &Puts, key: &str, write_key: u64) {
        let request = ReserveRequest {
            namespace: "default".into(),
            put_id: PUT,
            items: vec![ReserveItem {
                key: key.into(),
                len_bytes: LEN_BYTES,
            }],
            options: PutOptions::default(),
        };
        let region = ReservedRegion {
            holder: HOLDER,
            segment: SegmentId(1),
            offset_bytes: 0,
            write_key,
            ttl_ms: 1000,
        };
        let node = NodeRef {
            node: HOLDER,
            incarnation: Incarnation(1),
            endpoint: "127.0.0.1:1".into(),
        };
        let reply = ReserveReply {
            nodes: vec![node],
            items: vec![Ok(Reservation { replicas: vec![region] })],
        };
        puts.remember(&request, &reply);
    }

    fn commit(puts: &Puts, key: &str) -> KeyResult<CommitItem> {
        let body = format!(r#"{{"namespace":"default","put_id":"{PUT}","items":[{{"key":"{key}"}}]}}"#);
        puts.fill_commit(serde_json::from_str(&body).unwrap()).pop().unwrap()
    }

    fn put_key(key: &str) -> PutKey {
        PutKey::new("default", PUT, key)
    }

    #[tokio::test]
    async fn a_commit_gets_holders_and_checksums_of_what_was_uploaded() {
        let puts = Puts::default();
        reserve(&puts, "a", 7);
        for piece in 0..2 {
            puts.written(&put_key("a"), piece, piece + 10);
        }
        let missing = commit(&puts, "a").unwrap_err();
        assert_eq!(missing.code, ErrorCode::LengthMismatch);
        assert!(missing.message.contains(&(2 * PIECE_BYTES).to_string()), "{missing}");
        puts.written(&put_key("a"), 2, 12);
        let item = commit(&puts, "a").unwrap();
        assert_eq!(item.holders, [HOLDER]);
        assert_eq!(item.checksums, Checksums::from_pieces(LEN_BYTES, vec![10, 11, 12]));
        assert_eq!(commit(&puts, "b").unwrap_err().code, ErrorCode::UnknownPut);
    }

    #[tokio::test]
    async fn what_a_commit_says_itself_needs_no_upload() {
        let puts = Puts::default();
        let item = format!(r#"{{"key":"a","holders":["{HOLDER}"],"checksums":{{"whole":1,"pieces":[1]}}}}"#);
        let body = format!(r#"{{"namespace":"default","put_id":"{PUT}","items":[{item}]}}"#);
        let item = puts
            .fill_commit(serde_json::from_str(&body).unwrap())
            .pop()
            .unwrap()
            .unwrap();
        assert_eq!((item.holders, item.checksums.whole), (vec![HOLDER], 1));
    }

    #[tokio::test]
    async fn only_the_same_region_keeps_what_was_written() {
        let puts = Puts::default();
        reserve(&puts, "a", 7);
        for piece in 0..3 {
            puts.written(&put_key("a"), piece, piece);
        }
        reserve(&puts, "a", 7);
        assert!(commit(&puts, "a").is_ok());
        reserve(&puts, "a", 8);
        assert_eq!(commit(&puts, "a").unwrap_err().code, ErrorCode::LengthMismatch);
    }

    #[tokio::test]
    async fn an_aborted_put_is_forgotten() {
        let puts = Puts::default();
        reserve(&puts, "a", 7);
        let body = format!(r#"{{"namespace":"default","put_id":"{PUT}","items":[{{"key":"a"}},{{"key":"b"}}]}}"#);
        let items = puts.fill_abort(serde_json::from_str(&body).unwrap());
        assert_eq!(items[0].as_ref().unwrap().holders, [HOLDER]);
        assert_eq!(items[1].as_ref().unwrap_err().code, ErrorCode::UnknownPut);
        assert_eq!(puts.regions(&put_key("a")).unwrap_err().code, ErrorCode::UnknownPut);
    }

    #[tokio::test(start_paused = true)]
    async fn puts_that_ran_out_make_room() {
        let puts = Puts::default();
        for index in 0..HTTP_PUTS_MAX {
            reserve(&puts, &index.to_string(), 7);
        }
        assert_eq!(puts.check_room(1).unwrap_err().code(), ErrorCode::Overloaded);
        tokio::time::advance(Duration::from_secs(1) + GRACE).await;
        puts.check_room(1).unwrap();
        assert_eq!(puts.regions(&put_key("0")).unwrap_err().code, ErrorCode::UnknownPut);
    }

    #[test]
    fn parts_are_whole_pieces_inside_the_object() {
        for (offset, len_bytes) in [
            (0, LEN_BYTES),
            (0, PIECE_BYTES),
            (PIECE_BYTES, PIECE_BYTES),
            (2 * PIECE_BYTES, 5),
        ] {
            check_part(offset, len_bytes, LEN_BYTES).unwrap();
        }
        for (offset, len_bytes, code) in [
            (0, 0, ErrorCode::InvalidArgument),
            (1, PIECE_BYTES, ErrorCode::InvalidArgument),
            (0, 1, ErrorCode::InvalidArgument),
            (2 * PIECE_BYTES, 4, ErrorCode::InvalidArgument),
            (0, LEN_BYTES + 1, ErrorCode::LengthMismatch),
            (u64::MAX - 1, 5, ErrorCode::LengthMismatch),
        ] {
            assert_eq!(
                check_part(offset, len_bytes, LEN_BYTES).unwrap_err().code(),
                code,
                "{offset} {len_bytes}"
            );
        }
    }
}

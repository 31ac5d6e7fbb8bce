//! Moving what a draining segment holds to other nodes: each gets a copy by the way of any put, and then the object here goes.
//!
//! It goes only by the word of another holder that it has the object where nothing drains. Homes say whom to ask; what they know may be old.

use super::batch::NamedKey;
use super::checks::unexpected;
use crate::limits::{
    MOVE_NODES_MAX, MOVE_PAUSE_MAX, MOVE_PAUSE_MIN, MOVE_PIECES_AT_ONCE_MAX, MOVES_AT_ONCE_MAX, MOVES_LISTED_MAX,
};
use crate::lives::Leaving;
use crate::node::Node;
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_client::default_deadline;
use tenon_protocol::checksum::{Checksums, piece_count, piece_len_bytes};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Generation, NodeId, SegmentId};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::member::{CopiesRequest, CopyItem, HomeEntry};
use tenon_protocol::message::{
    AbortItem, AbortRequest, KeyResult, NodeRef, PutOptions, Replica, Reply, Request, ReserveItem, ReserveRequest,
    ReservedRegion,
};
use tenon_protocol::placement::FitVerdict;
use tenon_store_core::objects::Movable;
use tenon_transport::{RemoteKey, Slice};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep};

/// Whether a node refuses an object for reasons that another one may not have.
fn has_no_room(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NoSpace | ErrorCode::ObjectTooLarge | ErrorCode::Draining
    )
}

/// What has become of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Another node holds it now.
    Moved,
    /// Another node held it anyway.
    Elsewhere,
    /// It was removed or evicted meanwhile.
    Gone,
    /// No other node has room.
    NoRoom,
    /// Something else came between. It is tried again.
    Failed,
}

/// Room at another node for an object that moves. Dropped before it is used, as when the segment is unmounted in the middle of that, it is given back.
struct SetAside {
    node: Arc<Node>,
    target: NodeId,
    /// Goes on when nobody waits for it any more: what it sets aside can be given back only then.
    reserving: Option<JoinHandle<KeyResult<ReservedRegion>>>,
    release: Option<AbortRequest>,
}

impl SetAside {
    fn begin(node: &Arc<Node>, target: NodeId, object: &Movable, deadline: Instant) -> Self {
        let (me, moved) = (Arc::clone(node), object.clone());
        let reserving = tokio::spawn(async move { me.reserve_at(target, &moved, deadline).await });
        let (key, holders) = (object.name.key().to_owned(), vec![target]);
        Self {
            node: Arc::clone(node),
            target,
            reserving: Some(reserving),
            release: Some(AbortRequest {
                namespace: object.name.namespace().to_string(),
                put_id: object.version.put_id,
                items: vec![AbortItem { key, holders }],
            }),
        }
    }

    async fn region(&mut self) -> KeyResult<ReservedRegion> {
        let reserving = self.reserving.as_mut().expect("it goes when this is dropped");
        let failed = |error: JoinError| Err(ServiceError::new(ErrorCode::Internal, error.to_string()));
        reserving.await.unwrap_or_else(failed)
    }

    /// The object is there.
    fn used(mut self) {
        self.release = None;
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        let (Some(request), Some(reserving)) = (self.release.take(), self.reserving.take()) else {
            return;
        };
        let (node, target) = (Arc::clone(&self.node), self.target);
        tokio::spawn(async move {
            if !reserving.is_finished() {
                let _ = reserving.await;
            }
            node.release_at(target, node.own_session(), request);
        });
    }
}

impl Node {
    /// Moves what a draining segment holds, again and again, until it is not mounted any more. Whoever drops this leaves each object where it is, or at both
    /// places.
    pub(crate) async fn move_away(self: Arc<Self>, segment: SegmentId, leaving: Arc<Leaving>) {
        let mut pause = MOVE_PAUSE_MIN;
        while let Some((seen, away)) = self.move_pass(segment, &leaving).await {
            // Nobody else may hold anything, or nothing is left, or nothing moves now.
            leaving.is_stuck.send_replace(away == 0);
            pause = match (seen, away) {
                (0, _) => MOVE_PAUSE_MAX,
                (_, 0) => (2 * pause).min(MOVE_PAUSE_MAX),
                _ => MOVE_PAUSE_MIN,
            };
            sleep(pause).await;
        }
    }

    /// Tries each object once. How many there were, and how many of them are here no more; `None` if the segment is not mounted.
    async fn move_pass(self: &Arc<Self>, segment: SegmentId, leaving: &Leaving) -> Option<(u64, u64)> {
        let (mut seen, mut away, mut no_room, mut no_room_bytes) = (0, 0, 0, 0);
        let mut from_bytes = Some(0);
        while let Some(from) = from_bytes {
            let (listed, next) = self.holder().movable(segment, from, MOVES_LISTED_MAX)?;
            from_bytes = next;
            let moves = stream::iter(listed).map(async |object| (object.len_bytes, self.move_object(object).await));
            let mut moves = moves.buffer_unordered(MOVES_AT_ONCE_MAX);
            while let Some((len_bytes, fate)) = moves.next().await {
                seen += 1;
                match fate {
                    Fate::Moved | Fate::Elsewhere => {
                        leaving.moved(len_bytes);
                        away += 1;
                    }
                    Fate::Gone => away += 1,
                    Fate::NoRoom => {
                        no_room += 1;
                        no_room_bytes += len_bytes;
                    }
                    Fate::Failed => {}
                }
            }
            self.report_evictions();
        }
        leaving.without_room(no_room, no_room_bytes);
        Some((seen, away))
    }

    async fn move_object(self: &Arc<Self>, object: Movable) -> Fate {
        let deadline = default_deadline(object.len_bytes);
        let name = &object.name;
        let key = NamedKey {
            index: 0,
            name: (**name).clone(),
            hash: object.key_hash,
            homes: self.index_nodes(name.namespace()).homes(object.key_hash),
        };
        let found = self.find(vec![key], false, deadline).await.pop();
        let others = match found {
            Some((_, Ok(found))) => self.others_of(&object, found),
            Some((_, Err(_))) | None => return Fate::Failed,
        };
        for replica in others {
            if self.stays_at(replica.holder, &object, deadline).await == Some(replica.generation) {
                return self.let_go(&object, Fate::Elsewhere);
            }
        }
        match self.copy_elsewhere(&object, deadline).await {
            Fate::Moved => self.let_go(&object, Fate::Moved),
            fate => fate,
        }
    }

    fn let_go(&self, object: &Movable, fate: Fate) -> Fate {
        match self.holder().moved(object) {
            true => fate,
            false => Fate::Gone,
        }
    }

    /// The other replicas of an object, if a home knows them beside the one here, of nodes that may stay.
    fn others_of(&self, object: &Movable, found: Option<HomeEntry>) -> Vec<Replica> {
        let entry = found.filter(|entry| entry.version == object.version);
        let replicas = entry.map_or_else(Vec::new, |entry| entry.replicas);
        let is_here = |replica: &Replica| (replica.holder, replica.generation) == (self.id(), object.region.generation);
        if !replicas.iter().any(is_here) {
            return Vec::new();
        }
        let others = replicas.into_iter().filter(|replica| replica.holder != self.id());
        others.filter(|replica| self.may_stay(replica.holder)).collect()
    }

    /// Whether it is worth asking a node: it answers, and not all of its segments are known to drain.
    fn may_stay(&self, node: NodeId) -> bool {
        let known = self.rooms().describe(0);
        let known = known.iter().find(|known| known.node == node);
        self.is_reachable(node) && known.is_some_and(|known| known.hint.is_some_and(|hint| hint.capacity_bytes > 0))
    }

    /// The region in which another node has the object, if it keeps it whoever else lets go. No answer is none.
    async fn stays_at(self: &Arc<Self>, node: NodeId, object: &Movable, deadline: Instant) -> Option<Generation> {
        let asked = vec![(object.key_hash, object.version)];
        self.which_stay(node, asked, deadline).await.ok()?.pop().flatten()
    }

    async fn copy_elsewhere(self: &Arc<Self>, object: &Movable, deadline: Instant) -> Fate {
        let mut fate = Fate::NoRoom;
        for target in self.targets(object.len_bytes) {
            match self.copy_object_to(target, object, deadline).await {
                Ok(true) if self.stays_at(target, object, deadline).await.is_some() => return Fate::Moved,
                // It is there and drains, or does not answer any more.
                Ok(true) => fate = Fate::Failed,
                Ok(false) => return Fate::Gone,
                Err(error) if has_no_room(error.code) => {}
                Err(error) => {
                    let key = object.name.key();
                    tracing::info!(key, node = %target, %error, "an object was not moved; it is tried again");
                    fate = Fate::Failed;
                }
            }
        }
        fate
    }

    /// The object's bytes, and their checksums, unless they are not what was put.
    async fn read_pieces(&self, object: &Movable) -> KeyResult<(Vec<Slice>, Checksums)> {
        let internal = |reason: String| ServiceError::new(ErrorCode::Internal, reason);
        let memory = self.holder().memory_of(object);
        let memory = memory.ok_or_else(|| internal("its segment is gone".to_owned()))?;
        let piece = |piece| {
            let start = piece * PIECE_BYTES;
            memory.subslice(start..start + piece_len_bytes(object.len_bytes, piece))
        };
        let pieces: Result<Vec<Slice>, _> = (0..piece_count(object.len_bytes)).map(piece).collect();
        let pieces = pieces.map_err(|error| internal(error.to_string()))?;
        let read = pieces.clone();
        let sums = tokio::task::spawn_blocking(move || read.iter().map(Slice::crc64).collect::<Vec<u64>>());
        let sums = sums.await.map_err(|error| internal(error.to_string()))?;
        let checksums = Checksums::from_pieces(object.len_bytes, sums);
        if checksums.whole != object.checksum {
            let message = "its bytes are not those that were put";
            return Err(ServiceError::new(ErrorCode::ChecksumMismatch, message));
        }
        Ok((pieces, checksums))
    }

    /// The nodes that may hold it, those first whose hints say so, drawn by their capacity.
    fn targets(&self, len_bytes: u64) -> Vec<NodeId> {
        let known = self.rooms().describe(len_bytes);
        let others = self
            .rooms()
            .drawn_by_capacity()
            .into_iter()
            .filter(|node| *node != self.id());
        let has_no_room = |node: &NodeId| {
            let known = known.iter().find(|known| known.node == *node);
            known.is_some_and(|known| known.fit == FitVerdict::NoFit)
        };
        let (full, mut targets): (Vec<NodeId>, Vec<NodeId>) = others.partition(has_no_room);
        targets.extend(full);
        targets.truncate(MOVE_NODES_MAX);
        targets
    }

    /// Has another node hold a copy, if it has room. False if the object is not here any more.
    async fn copy_object_to(self: &Arc<Self>, target: NodeId, object: &Movable, deadline: Instant) -> KeyResult<bool> {
        let mut set_aside = SetAside::begin(self, target, object, deadline);
        let region = set_aside.region().await?;
        // While it is read it does not change; it may be dropped meanwhile.
        let Some(_held) = self.holder().hold(object) else {
            return Ok(false);
        };
        self.fill(target, object, &region, deadline).await?;
        set_aside.used();
        Ok(true)
    }

    /// Writes an object to a region at another node, and has it committed as a copy.
    async fn fill(
        self: &Arc<Self>,
        target: NodeId,
        object: &Movable,
        region: &ReservedRegion,
        deadline: Instant,
    ) -> KeyResult<()> {
        let node = self.node_refs(BTreeSet::from([target])).pop();
        let node = node.ok_or_else(|| ServiceError::unavailable(target, "it is not known where it is"))?;
        let (pieces, checksums) = self.read_pieces(object).await?;
        self.write_pieces_to(&node, region, &pieces, deadline).await?;
        let item = CopyItem {
            key: object.name.key().to_owned(),
            version: object.version,
            checksums,
            fingerprint: object.fingerprint.to_vec(),
        };
        let request = CopiesRequest {
            namespace: object.name.namespace().to_string(),
            items: vec![item],
        };
        let mut answers = self.copy_to(target, request, deadline).await?;
        answers.pop().unwrap_or_else(|| Err(crate::peers::other_answer()))
    }

    /// Sets a region aside at another node, which evicts nothing for it.
    async fn reserve_at(
        self: &Arc<Self>,
        target: NodeId,
        object: &Movable,
        deadline: Instant,
    ) -> KeyResult<ReservedRegion> {
        let request = ReserveRequest {
            namespace: object.name.namespace().to_string(),
            put_id: object.version.put_id,
            items: vec![ReserveItem {
                key: object.name.key().to_owned(),
                len_bytes: object.len_bytes,
            }],
            options: PutOptions {
                pin: object.pin,
                ..PutOptions::default()
            },
        };
        let session = Some(self.own_session());
        match self
            .on_behalf(target, session, Request::Reserve(request), deadline)
            .await?
        {
            Reply::Reserve(mut reply) => {
                let reserved = reply.items.pop().unwrap_or_else(|| Err(crate::peers::other_answer()))?;
                let region = reserved.replicas.into_iter().next();
                region.ok_or_else(crate::peers::other_answer)
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn write_pieces_to(
        &self,
        node: &NodeRef,
        region: &ReservedRegion,
        pieces: &[Slice],
        deadline: Instant,
    ) -> KeyResult<()> {
        let writes = stream::iter((0..).zip(pieces.iter().cloned()).map(Ok));
        let written = writes.try_for_each_concurrent(MOVE_PIECES_AT_ONCE_MAX, async |(piece, slice)| {
            let key = RemoteKey(region.write_key);
            self.client().write_piece(node, key, piece, slice, deadline).await
        });
        written
            .await
            .map_err(|error| ServiceError::new(error.code(), error.to_string()))
    }
}

//! Writing the bytes of many objects to their holders: each holder gets few submissions, several under way at once. The checksum of each piece is
//! that of the bytes as they were sent; a holder that has others is sent the piece again.

use crate::client::{Client, Core};
use crate::error::ClientError;
use crate::holders::HolderAccess;
use crate::limits::{PIECE_WRITES_MAX, PUT_SUBMIT_BYTES_MAX, PUT_SUBMITS_IN_FLIGHT_MAX, SUBMIT_TRANSFERS_MAX};
use crate::put::Upload;
use crate::put::reserve::Region;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::NodeRef;
use tenon_transport::{Op, RemoteKey, Slice, Transfer, TransferError, TransferResult};
use tokio::time::{Instant, timeout_at};

/// One piece to write to one region.
#[derive(Debug, Clone)]
pub(crate) struct PieceWrite {
    pub(crate) write_key: RemoteKey,
    pub(crate) piece: u64,
    pub(crate) slice: Slice,
}

/// What one holder gets: objects with the grants for their regions.
struct Share<'a> {
    node: &'a NodeRef,
    regions: Vec<(usize, RemoteKey)>,
}

impl Core {
    /// Writes all objects to all their regions; for each object the holders to which not all of it has come, with the reason.
    pub(crate) async fn write(&self, uploads: &[Upload], deadline: Instant) -> Vec<HashMap<NodeId, ClientError>> {
        let mut shares: HashMap<NodeId, Share<'_>> = HashMap::new();
        for (at, upload) in uploads.iter().enumerate() {
            for Region { node, write_key } in &upload.reserved.regions {
                let empty = || Share {
                    node,
                    regions: Vec::new(),
                };
                shares
                    .entry(node.node)
                    .or_insert_with(empty)
                    .regions
                    .push((at, *write_key));
            }
        }
        let writes = shares
            .into_values()
            .map(async |share| (share.node.node, self.write_share(uploads, share, deadline).await));
        let mut failures = vec![HashMap::new(); uploads.len()];
        for (node, failed) in join_all(writes).await {
            for (at, error) in failed {
                failures[at].entry(node).or_insert(error);
            }
        }
        failures
    }

    /// Writes all that one holder gets; the objects that failed, with the reason.
    async fn write_share(&self, uploads: &[Upload], share: Share<'_>, deadline: Instant) -> Vec<(usize, ClientError)> {
        let Share { node, regions } = share;
        let access = match self.open_for_writing(node, deadline).await {
            Ok(access) => access,
            Err(error) => return regions.into_iter().map(|(at, _)| (at, error.clone())).collect(),
        };
        let mut under_way = stream::iter(submits(uploads, &regions))
            .map(|pieces| {
                let access = &access;
                async move {
                    let writes = pieces.iter().map(|&(at, write_key, piece)| PieceWrite {
                        write_key,
                        piece,
                        slice: uploads[at].piece(piece),
                    });
                    let results = self.write_pieces(access, writes.collect(), deadline).await;
                    let note = |((at, _, piece), sum): ((usize, _, _), Result<u64, ClientError>)| {
                        (at, sum.and_then(|sum| uploads[at].note_sum(piece, sum)))
                    };
                    pieces.into_iter().zip(results).map(note).collect::<Vec<_>>()
                }
            })
            .buffer_unordered(PUT_SUBMITS_IN_FLIGHT_MAX);
        let mut failures = Vec::new();
        while let Some(results) = under_way.next().await {
            failures.extend(results.into_iter().filter_map(|(at, result)| Some((at, result.err()?))));
        }
        failures
    }

    /// Access to a holder in the life in which it made a reservation.
    pub(crate) async fn open_for_writing(
        &self,
        node: &NodeRef,
        deadline: Instant,
    ) -> Result<Arc<HolderAccess>, ClientError> {
        let access = match timeout_at(deadline, self.holders.open(node, deadline)).await {
            Ok(access) => access?,
            Err(_) => return Err(ClientError::deadline(format!("connecting to node {}", node.node))),
        };
        match access.incarnation.cmp(&node.incarnation) {
            Ordering::Equal => Ok(access),
            _ => Err(ClientError::unavailable(
                node.node,
                "it has restarted since it reserved room for the object",
            )),
        }
    }

    /// Writes pieces to one holder, again where a lane broke or other bytes arrived; one result per piece: the checksum of what was sent.
    pub(crate) async fn write_pieces(
        &self,
        access: &Arc<HolderAccess>,
        pieces: Vec<PieceWrite>,
        deadline: Instant,
    ) -> Vec<Result<u64, ClientError>> {
        let mut results: Vec<Result<u64, ClientError>> = vec![Ok(0); pieces.len()];
        let mut left: Vec<(usize, PieceWrite)> = pieces.into_iter().enumerate().collect();
        let mut is_broken = false;
        for _ in 0..PIECE_WRITES_MAX {
            let transfers = left.iter().map(|(_, piece)| transfer(piece)).collect();
            let done = access.connection.submit(transfers, deadline).await;
            assert_eq!(done.len(), left.len(), "an engine gives one result per transfer");
            let mut again = Vec::new();
            for ((at, piece), done) in left.into_iter().zip(done) {
                is_broken |= matches!(done, Err(TransferError::Disconnected { .. }));
                match check(access.node, &piece, done) {
                    Written::Yes(sum) => results[at] = Ok(sum),
                    Written::No(error) => results[at] = Err(error),
                    Written::Again(error) => {
                        results[at] = Err(error);
                        again.push((at, piece));
                    }
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
        if is_broken && !left.is_empty() {
            self.holders.discard(access);
        }
        results
    }
}

impl Client {
    /// Writes one piece of an object whose room was reserved by a call of the caller's own, and who will commit it: for agents that put on behalf of
    /// programs without this library. `write_key` is what the reservation names for `holder`.
    pub async fn write_piece(
        &self,
        holder: &NodeRef,
        write_key: RemoteKey,
        piece: u64,
        slice: Slice,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let access = self.core.open_for_writing(holder, deadline).await?;
        let write = PieceWrite {
            write_key,
            piece,
            slice,
        };
        let mut written = self.core.write_pieces(&access, vec![write], deadline).await;
        written
            .pop()
            .unwrap_or_else(|| Err(ClientError::protocol("a write without a result")))
            .map(drop)
    }
}

/// Cuts the pieces of all objects into submissions: (object, grant, piece).
fn submits(uploads: &[Upload], regions: &[(usize, RemoteKey)]) -> Vec<Vec<(usize, RemoteKey, u64)>> {
    let mut submits: Vec<Vec<(usize, RemoteKey, u64)>> = Vec::new();
    let mut filled_bytes = 0;
    for &(at, write_key) in regions {
        for piece in 0..uploads[at].pieces() {
            let piece_bytes = uploads[at].piece(piece).len_bytes();
            let fits = filled_bytes + piece_bytes <= PUT_SUBMIT_BYTES_MAX;
            match submits.last_mut() {
                Some(last) if fits && last.len() < SUBMIT_TRANSFERS_MAX => last.push((at, write_key, piece)),
                _ => {
                    filled_bytes = 0;
                    submits.push(vec![(at, write_key, piece)]);
                }
            }
            filled_bytes += piece_bytes;
        }
    }
    submits
}

fn transfer(piece: &PieceWrite) -> Transfer {
    Transfer {
        op: Op::Write,
        key: piece.write_key,
        remote_offset_bytes: piece.piece * PIECE_BYTES,
        local: vec![piece.slice.clone()],
        group: 0,
    }
}

enum Written {
    /// With the checksum of what was sent.
    Yes(u64),
    No(ClientError),
    Again(ClientError),
}

fn check(node: NodeId, piece: &PieceWrite, done: TransferResult) -> Written {
    let error = match done {
        // An engine that looks at all bytes anyway has the checksum for nothing.
        Ok(done) => match (done.crc64, done.sent_crc64.unwrap_or_else(|| piece.slice.crc64())) {
            (Some(found), sum) if found != sum => {
                let at = piece.piece;
                let message =
                    format!("piece {at} arrived at node {node} with checksum {found:#018x}, {sum:#018x} was sent");
                return Written::Again(ServiceError::new(ErrorCode::ChecksumMismatch, message).into());
            }
            (_, sum) => return Written::Yes(sum),
        },
        Err(error) => error,
    };
    match error {
        TransferError::Deadline { .. } => Written::No(ClientError::deadline(format!("writing to node {node}"))),
        TransferError::Disconnected { reason } => {
            Written::Again(ClientError::unavailable(node, &format!("writing an object, {reason}")))
        }
        error => {
            let message = format!("node {node} did not take piece {}: {error}", piece.piece);
            Written::No(ServiceError::new(ErrorCode::GrantRefused, message).into())
        }
    }
}

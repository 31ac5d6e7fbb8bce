//! Putting one object whose bytes come one after the other.

use crate::client::{Client, Core};
use crate::error::ClientError;
use crate::holders::HolderAccess;
use crate::limits::STREAM_PUT_PIECES_MAX;
use crate::put::commit::Sealing;
use crate::put::reserve::Reservations;
use crate::put::write::PieceWrite;
use crate::put::{Attempt, PutOptions, check_object};
use crate::read::plan::{allocate, part};
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenon_protocol::checksum::{Checksums, piece_count, piece_len_bytes};
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::message::Committed;
use tenon_protocol::name::ObjectName;
use tenon_transport::{Memory, RemoteKey, Slice};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One object being put piece by piece, with a bounded number of pieces under way. Dropping it before [`PutStream::finish`] gives the reservation
/// back.
///
/// [`PutStream::write`] is not to be repeated after its future was dropped: some of the bytes may have been taken.
#[derive(Debug)]
pub struct PutStream {
    core: Arc<Core>,
    attempt: Attempt,
    reservations: Reservations,
    key: String,
    targets: Arc<[Target]>,
    /// Targets that have not taken a piece. The object goes to the others, as long as there are any.
    failed: BTreeMap<NodeId, ClientError>,
    len_bytes: u64,
    written_bytes: u64,
    /// The piece that is being filled, and how far.
    filling: Option<(Slice, u64)>,
    piece_sums: Vec<u64>,
    under_way: JoinSet<Sent>,
    failure: Option<ClientError>,
}

/// A piece that was sent to all targets: its checksum, and those that have not taken it.
#[derive(Debug)]
struct Sent {
    piece: usize,
    sum: Option<u64>,
    failed: Vec<(NodeId, ClientError)>,
}

#[derive(Debug)]
struct Target {
    access: Arc<HolderAccess>,
    write_key: RemoteKey,
}

impl Client {
    /// Reserves room for an object of exactly `len_bytes` and opens its holders. `deadline` is that of the whole put.
    pub async fn put_stream(
        &self,
        name: &ObjectName,
        len_bytes: u64,
        options: &PutOptions,
        deadline: Instant,
    ) -> Result<PutStream, ClientError> {
        let attempt = Attempt::new(name.namespace(), options, deadline);
        check_object(&attempt, name.key(), len_bytes)?;
        let reservations = Reservations::new(&self.core, &attempt);
        let reserved = reservations.reserve(vec![(name.key().to_owned(), len_bytes)]).await;
        let reserved = reserved
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(ClientError::protocol("no reservation")))?;
        let mut targets = Vec::with_capacity(reserved.regions.len());
        let mut failed = BTreeMap::new();
        let opened = reserved.regions.iter().map(async |region| {
            let access = self.core.open_for_writing(&region.node, deadline).await;
            (region, access)
        });
        for (region, access) in join_all(opened).await {
            match access {
                Ok(access) => targets.push(Target {
                    access,
                    write_key: region.write_key,
                }),
                Err(error) => drop(failed.insert(region.node.node, error)),
            }
        }
        if targets.is_empty() {
            return Err(no_target(failed));
        }
        let pieces = usize::try_from(piece_count(len_bytes)).map_err(|_| ClientError::TooLarge { len_bytes })?;
        Ok(PutStream {
            core: Arc::clone(&self.core),
            attempt,
            reservations,
            key: name.key().to_owned(),
            targets: targets.into(),
            failed,
            len_bytes,
            written_bytes: 0,
            filling: None,
            piece_sums: vec![0; pieces],
            under_way: JoinSet::new(),
            failure: None,
        })
    }
}

impl PutStream {
    /// The attempt's id: a put that is repeated under it has the outcome of this one.
    pub fn put_id(&self) -> PutId {
        self.attempt.put_id
    }

    /// The nodes that the object is written to.
    pub fn holders(&self) -> Vec<NodeId> {
        let nodes = self.targets.iter().map(|target| target.access.node);
        nodes.filter(|node| !self.failed.contains_key(node)).collect()
    }

    /// Bytes taken so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Moves the deadline of the whole put, for those whose source is slow. Pieces under way keep theirs.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.attempt.deadline = deadline;
    }

    /// Takes the next bytes; waits while too much is under way. Whole pieces that nobody else refers to are sent without a copy. After an error
    /// the stream is of no use: the reservation has been given back.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), ClientError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        match self.take(bytes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error).await),
        }
    }

    async fn take(&mut self, mut bytes: Bytes) -> Result<(), ClientError> {
        let written_bytes = self.written_bytes + bytes.len() as u64;
        if written_bytes > self.len_bytes {
            return Err(self.length_mismatch(written_bytes));
        }
        while !bytes.is_empty() {
            let rest = to_usize(self.piece_rest_bytes()).min(bytes.len());
            let taken = bytes.split_to(rest);
            let at = self.piece_at();
            self.written_bytes += taken.len() as u64;
            if let Some(piece) = self.fill(at, taken)? {
                self.send(at, piece).await?;
            }
        }
        Ok(())
    }

    /// The piece that the next byte belongs to.
    fn piece_at(&self) -> u64 {
        self.written_bytes / tenon_protocol::limits::PIECE_BYTES
    }

    /// Bytes that this piece still lacks.
    fn piece_rest_bytes(&self) -> u64 {
        let filled = self.written_bytes % tenon_protocol::limits::PIECE_BYTES;
        piece_len_bytes(self.len_bytes, self.piece_at()) - filled
    }

    /// Adds bytes to piece `at`; the piece, if it is complete.
    fn fill(&mut self, at: u64, bytes: Bytes) -> Result<Option<Slice>, ClientError> {
        let piece_bytes = piece_len_bytes(self.len_bytes, at);
        let (slice, filled) = match self.filling.take() {
            None if bytes.len() as u64 == piece_bytes => {
                // Without a copy if these bytes are a whole vector that nobody else refers to.
                return Ok(Some(Arc::new(Memory::from_vec(bytes.into())).whole()));
            }
            None => (allocate(piece_bytes)?, 0),
            Some(filling) => filling,
        };
        let end = filled + bytes.len() as u64;
        part(&slice, filled..end)
            .copy_in(0, &bytes)
            .expect("the bytes fit in the piece");
        if end == piece_bytes {
            return Ok(Some(slice));
        }
        self.filling = Some((slice, end));
        Ok(None)
    }

    async fn send(&mut self, piece: u64, slice: Slice) -> Result<(), ClientError> {
        while self.under_way.len() >= STREAM_PUT_PIECES_MAX {
            self.reap().await?;
        }
        let (core, targets, deadline) = (Arc::clone(&self.core), Arc::clone(&self.targets), self.attempt.deadline);
        let holders = self.holders();
        self.under_way.spawn(async move {
            let living = targets.iter().filter(|target| holders.contains(&target.access.node));
            let writes = living.map(async |target| {
                let write = PieceWrite {
                    write_key: target.write_key,
                    piece,
                    slice: slice.clone(),
                };
                let written = core.write_pieces(&target.access, vec![write], deadline).await;
                (target.access.node, written.into_iter().next())
            });
            let (mut sum, mut failed) = (None, Vec::new());
            for (node, written) in join_all(writes).await {
                match written {
                    // The slice is the stream's own: whoever got it got the same bytes.
                    Some(Ok(found)) => sum = Some(found),
                    Some(Err(error)) => failed.push((node, error)),
                    None => failed.push((node, ClientError::protocol("a write without a result"))),
                }
            }
            let piece = to_usize(piece);
            Sent { piece, sum, failed }
        });
        Ok(())
    }

    /// Waits for one piece to arrive.
    async fn reap(&mut self) -> Result<(), ClientError> {
        match self.under_way.join_next().await {
            None => Ok(()),
            Some(Ok(Sent { piece, sum, failed })) => {
                self.failed.extend(failed);
                if self.holders().is_empty() {
                    return Err(no_target(std::mem::take(&mut self.failed)));
                }
                if let Some(sum) = sum {
                    self.piece_sums[piece] = sum;
                }
                Ok(())
            }
            Some(Err(error)) => Err(ClientError::protocol(format!(
                "the task that sent a piece failed: {error}"
            ))),
        }
    }

    /// Waits for all pieces and seals the object.
    pub async fn finish(mut self) -> Result<Committed, ClientError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if let Err(error) = self.arrive().await {
            return Err(self.fail(error).await);
        }
        self.reservations.release_but(&self.key, self.failed.keys());
        let sealing = Sealing {
            at: 0,
            key: self.key.clone(),
            holders: self.holders(),
            checksums: Checksums::from_pieces(self.len_bytes, std::mem::take(&mut self.piece_sums)),
        };
        let mut committed = self.core.commit(&self.attempt, vec![sealing]).await;
        committed.pop().map_or_else(
            || Err(ClientError::protocol("a commit without a result")),
            |(_, result)| result,
        )
    }

    async fn arrive(&mut self) -> Result<(), ClientError> {
        if self.written_bytes != self.len_bytes {
            return Err(self.length_mismatch(self.written_bytes));
        }
        while !self.under_way.is_empty() {
            self.reap().await?;
        }
        Ok(())
    }

    /// Gives the reservation back, as dropping does, and waits until that is done.
    pub async fn abort(mut self) {
        self.under_way.shutdown().await;
        self.reservations.abort().await;
    }

    async fn fail(&mut self, error: ClientError) -> ClientError {
        self.failure = Some(error.clone());
        self.filling = None;
        self.under_way.shutdown().await;
        self.reservations.abort().await;
        error
    }

    fn length_mismatch(&self, written_bytes: u64) -> ClientError {
        ClientError::LengthMismatch {
            announced_bytes: self.len_bytes,
            written_bytes,
        }
    }
}

/// Why nobody has taken the object.
fn no_target(failed: BTreeMap<NodeId, ClientError>) -> ClientError {
    let first = failed.into_values().next();
    first.unwrap_or_else(|| ClientError::protocol("a reservation without a region"))
}

/// Offsets within a piece and indices of pieces, which fit.
fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("a piece's length and the number of pieces fit in a usize")
}

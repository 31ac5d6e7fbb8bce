//! Reading one object piece by piece.

use crate::client::{Client, Core};
use crate::error::ClientError;
use crate::get::Check;
use crate::limits::STREAM_READ_AHEAD_PIECES;
use crate::read::plan::{Target, allocate};
use crate::read::{Known, ObjectInfo, ReadDone, ReadJob};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use tenon_protocol::checksum::{piece_count, piece_len_bytes};
use tenon_protocol::error::ErrorCode;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::name::ObjectName;
use tenon_transport::Slice;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// An object that was found, to be read in pieces of [`PIECE_BYTES`]. Whatever happens to its key meanwhile, all pieces are of this very object
/// or the read fails.
#[derive(Debug)]
pub struct ObjectReader {
    core: Arc<Core>,
    known: Known,
    /// Pieces from here on are not read ahead.
    ahead_end: u64,
    ahead: VecDeque<Ahead>,
}

/// A piece being read ahead; dropping it cancels.
#[derive(Debug)]
struct Ahead {
    piece: u64,
    task: JoinHandle<Result<ReadDone, ClientError>>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Finds an object and verifies its table entries; `None` is a miss.
    pub async fn open(&self, name: &ObjectName, deadline: Instant) -> Result<Option<ObjectReader>, ClientError> {
        let done = self.read_one(name, Target::Table, deadline).await?;
        Ok(done.map(|ReadDone { known, .. }| ObjectReader {
            core: Arc::clone(&self.core),
            ahead_end: piece_count(known.info.len_bytes),
            known,
            ahead: VecDeque::new(),
        }))
    }
}

impl ObjectReader {
    /// What the table says of the object.
    pub fn info(&self) -> &ObjectInfo {
        &self.known.info
    }

    /// How many pieces it has.
    pub fn pieces(&self) -> u64 {
        piece_count(self.known.info.len_bytes)
    }

    /// Nothing from this piece on is wanted, so it is not read ahead.
    pub fn read_ahead_until(&mut self, piece_end: u64) {
        self.ahead_end = piece_end.min(self.pieces());
    }

    /// Reads one piece, verified, and starts reading those that follow it. The deadline is this piece's.
    pub async fn read_piece(&mut self, piece: u64, deadline: Instant) -> Result<Bytes, ClientError> {
        let object_bytes = self.known.info.len_bytes;
        let piece_bytes = piece_len_bytes(object_bytes, piece);
        if piece_bytes == 0 {
            let start = piece.saturating_mul(PIECE_BYTES);
            return Err(ClientError::Range {
                start,
                end: start.saturating_add(PIECE_BYTES),
                object_bytes,
            });
        }
        if self.ahead.front().is_none_or(|ahead| ahead.piece != piece) {
            self.ahead.clear();
            self.start(piece, deadline)?;
        }
        self.top_up(piece, deadline)?;
        let done = match self.next(deadline).await {
            // It was started under the deadline of an earlier piece.
            Err(error) if error.code() == ErrorCode::DeadlineExceeded && Instant::now() < deadline => {
                self.read(piece, deadline)?.await?
            }
            done => done?,
        };
        self.known = done.known;
        let data = done.data.ok_or_else(|| ClientError::protocol("a read without data"))?;
        Ok(into_bytes(data))
    }

    async fn next(&mut self, deadline: Instant) -> Result<ReadDone, ClientError> {
        let Some(mut ahead) = self.ahead.pop_front() else {
            return Err(ClientError::protocol("no piece is being read"));
        };
        match tokio::time::timeout_at(deadline, &mut ahead.task).await {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => Err(ClientError::protocol(format!(
                "the task that read a piece failed: {error}"
            ))),
            Err(_) => Err(ClientError::deadline(format!("reading piece {}", ahead.piece))),
        }
    }

    fn top_up(&mut self, piece: u64, deadline: Instant) -> Result<(), ClientError> {
        let end = self.ahead_end.min(piece + 1 + STREAM_READ_AHEAD_PIECES);
        let next = self.ahead.back().map_or(piece, |last| last.piece + 1);
        for piece in next..end {
            self.start(piece, deadline)?;
        }
        Ok(())
    }

    fn start(&mut self, piece: u64, deadline: Instant) -> Result<(), ClientError> {
        let task = tokio::spawn(self.read(piece, deadline)?);
        self.ahead.push_back(Ahead { piece, task });
        Ok(())
    }

    fn read(
        &self,
        piece: u64,
        deadline: Instant,
    ) -> Result<impl Future<Output = Result<ReadDone, ClientError>> + use<>, ClientError> {
        let (core, known) = (Arc::clone(&self.core), self.known.clone());
        let name = known.info.name.clone();
        let start = piece * PIECE_BYTES;
        let piece_bytes = piece_len_bytes(known.info.len_bytes, piece);
        let target = Target::Into {
            range: Some(start..start + piece_bytes),
            slice: allocate(piece_bytes)?,
        };
        Ok(async move {
            let namespace = name.namespace().clone();
            let job = ReadJob {
                name,
                target,
                fingerprint: None,
                known: Some(known),
                check: Check::Checksums,
            };
            let result = core.read(&namespace, vec![job], deadline).await.pop();
            let result = result.unwrap_or_else(|| Err(ClientError::protocol("a read without a result")))?;
            result.ok_or_else(|| ClientError::protocol("a known object was answered as a miss"))
        })
    }
}

/// Without a copy: the memory was allocated for this piece alone.
fn into_bytes(data: Slice) -> Bytes {
    data.into_bytes().unwrap_or_else(|shared| shared.to_vec().into())
}

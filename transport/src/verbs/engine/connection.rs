//! The initiator's side of a connection.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use super::carry::{Piece, PieceError, carry};
use super::message::{Ask, Tell};
use super::offer::another_question;
use super::path::{Load, Path};
use super::paths::Paths;
use super::places::{Place, Places};
use super::plan::{Cut, cuts, read_bytes};
use super::rails::Rails;
use super::supervisor::{forget, listen, supervise};
use crate::engine::{Connection, Done, Op, Submission, Transfer, TransferError, TransferResult, faults};
use crate::ids::{PeerId, RemoteKey};
use crate::limits::{VERBS_ATTEMPTS_MAX, VERBS_CONNECT_TIMEOUT};
use crate::link::{Authenticator, Channel, Endpoint, Identity, Link, LinkError};
use crate::memory::Slice;
use crate::task::OwnedTask;
use crate::verbs::{Access, MemoryRegion, Remote, VerbsError};

/// Why a connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The link beside it could not be made; [`RefusalCode::NoRdma`](crate::link::RefusalCode) if the peer uses no
    /// device.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No rail of this host reaches one of the peer's.
    #[error("no path to the peer over RDMA: {}", reasons.join("; "))]
    NoPath {
        /// Why, rail by rail.
        reasons: Vec<String>,
    },
}

/// An initiator's connection over RDMA: one path per rail, connected again in the background when one fails. Dropping
/// the last reference closes it.
pub struct RdmaConnection {
    shared: Arc<Shared>,
    _supervisor: OwnedTask,
}

/// What submissions under way share with their connection.
pub(super) struct Shared {
    pub(super) peer: PeerId,
    pub(super) rails: Arc<Rails>,
    pub(super) link: Arc<Link>,
    pub(super) paths: Arc<Paths>,
    /// Where exports lie, as far as that was asked.
    pub(super) places: Places,
}

impl RdmaConnection {
    /// Dials the peer, connects a path per rail, and tries each with a few bytes. Tasks run on the runtime this is called
    /// on.
    ///
    /// # Errors
    /// [`OpenError`]. A path that fails beside others that do not is tried again in the background.
    pub async fn open(
        rails: &Arc<Rails>,
        endpoint: &Endpoint,
        identity: &Identity,
        auth: &dyn Authenticator,
        expect: Option<PeerId>,
        deadline: Instant,
    ) -> Result<Arc<dyn Connection>, OpenError> {
        let link = Link::dial_for(Channel::Rdma, endpoint, identity, auth, expect, deadline).await?;
        let shared = Arc::new(Shared::new(rails, link));
        let numbers = shared.usable();
        let deadline = deadline.min(Instant::now() + VERBS_CONNECT_TIMEOUT);
        let mut reasons = shared.connect(&numbers, false, deadline).await;
        let mut any_subnet = false;
        if shared.paths.up().is_empty() {
            any_subnet = true;
            reasons = shared.connect(&numbers, any_subnet, deadline).await;
        }
        if shared.paths.up().is_empty() {
            reasons.extend(rails.unused());
            return Err(OpenError::NoPath { reasons });
        }
        let [supervised, listening, forgetting] = std::array::from_fn(|_| Arc::clone(&shared));
        let supervisor = OwnedTask::spawn(async move {
            tokio::join!(supervise(supervised, any_subnet), listen(listening), forget(forgetting));
        });
        Ok(Arc::new(Self {
            shared,
            _supervisor: supervisor,
        }))
    }
}

impl Connection for RdmaConnection {
    fn peer(&self) -> PeerId {
        self.shared.peer
    }

    fn submit(&self, batch: Vec<Transfer>, deadline: Instant) -> Submission {
        Submission::new(Arc::clone(&self.shared).carry_out(batch, deadline))
    }

    fn guards_reads(&self) -> bool {
        false
    }

    fn is_closed(&self) -> bool {
        self.shared.paths.closed().is_some()
    }

    fn close(&self) {
        self.shared.close("closed by this side");
    }
}

impl Drop for RdmaConnection {
    fn drop(&mut self) {
        self.shared.close("closed by this side");
    }
}

impl fmt::Debug for RdmaConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaConnection")
            .field("peer", &self.shared.peer)
            .field("paths_up", &self.shared.paths.up().len())
            .field("paths_lost", &self.shared.paths.lost())
            .field("closed", &self.shared.paths.closed())
            .finish_non_exhaustive()
    }
}

/// Memory that the peer may read while the regions live, and how each path names it.
pub(super) struct Lent {
    pub(super) regions: Vec<Arc<MemoryRegion>>,
    pub(super) named: Vec<(u8, Remote)>,
}

/// A transfer that is carried out, cut in pieces.
struct Reading {
    transfer: usize,
    key: RemoteKey,
    len_bytes: u64,
    pieces: Range<usize>,
}

impl Shared {
    /// Of a link over which nothing was asked yet.
    pub(super) fn new(rails: &Arc<Rails>, link: Arc<Link>) -> Self {
        Self {
            peer: link.remote().peer,
            rails: Arc::clone(rails),
            link,
            paths: rails.paths(true),
            places: Places::default(),
        }
    }

    pub(super) fn close(&self, reason: &str) {
        self.paths.close(reason);
        self.link.close();
    }

    /// Asks the peer over the link.
    pub(super) async fn ask(&self, ask: &Ask, deadline: Instant) -> Result<Tell, TransferError> {
        let answer = self.link.call(ask.encode().into(), deadline).await;
        let answer = answer.map_err(|error| TransferError::Disconnected {
            reason: error.to_string(),
        })?;
        match Tell::decode(&answer) {
            Some(Tell::Failed(error)) => Err(error),
            Some(tell) => Ok(tell),
            None => Err(TransferError::Disconnected {
                reason: "the peer's answer cannot be understood".to_owned(),
            }),
        }
    }

    async fn carry_out(self: Arc<Self>, batch: Vec<Transfer>, deadline: Instant) -> Vec<TransferResult> {
        if let Some(results) = self.read_small(&batch, deadline).await {
            return results;
        }
        let mut results: Vec<Option<TransferResult>> = faults(&batch).into_iter().map(|fault| fault.map(Err)).collect();
        if let Some(reason) = self.paths.closed() {
            for result in &mut results {
                let reason = reason.clone();
                result.get_or_insert(Err(TransferError::Disconnected { reason }));
            }
        }
        // Paths that rest, or are connected again, name memory only when they are up.
        _ = timeout_at(deadline, self.paths.some_up()).await;
        let sound = |op: Op| {
            let indices = (0..batch.len()).filter(|&at| results[at].is_none() && batch[at].op == op);
            indices.collect::<Vec<usize>>()
        };
        let (reads, writes) = (sound(Op::Read), sound(Op::Write));
        let (read, written) = tokio::join!(
            self.read(&batch, &reads, deadline),
            self.write(&batch, &writes, deadline)
        );
        for (at, result) in reads.into_iter().zip(read).chain(writes.into_iter().zip(written)) {
            results[at] = Some(result);
        }
        let unanswered = |result: Option<TransferResult>| {
            result.unwrap_or_else(|| {
                Err(TransferError::Disconnected {
                    reason: "it was not carried out".to_owned(),
                })
            })
        };
        results.into_iter().map(unanswered).collect()
    }

    /// Where a transfer reads over a path, if that was asked and the range lies inside.
    pub(super) fn known_place(&self, path: &Path, transfer: &Transfer) -> Option<(Arc<Place>, Remote)> {
        self.places.known(transfer.key, |place| {
            let end_bytes = transfer.remote_offset_bytes.checked_add(transfer.len_bytes())?;
            let remote = place.on(path.number, transfer.remote_offset_bytes)?;
            (end_bytes <= place.len_bytes).then(|| (Arc::clone(place), remote))
        })
    }

    /// Where an export lies: asked for until it is named on some path that is up at both ends.
    async fn place(&self, key: RemoteKey, deadline: Instant) -> Result<Arc<Place>, TransferError> {
        if let Some(place) = self.places.known(key, |place| Some(Arc::clone(place))) {
            return Ok(place);
        }
        for _ in 0..VERBS_ATTEMPTS_MAX {
            let up = self.paths.some_up().await;
            let up = up.map_err(|reason| TransferError::Disconnected { reason })?;
            let asked = self.places.ask();
            let Tell::Resolved { len_bytes, at } = self.ask(&Ask::Resolve { key }, deadline).await? else {
                return Err(another_question());
            };
            let is_named = |path: &Arc<Path>| at.iter().any(|named| named.path == path.number);
            self.lose(up.iter().filter(|path| !is_named(path)));
            if at.is_empty() {
                continue;
            }
            if let Some(place) = self.places.learn(asked, key, len_bytes, at) {
                return Ok(place);
            }
        }
        Err(TransferError::Disconnected {
            reason: "no path is up at the peer, or it takes memory back again and again".to_owned(),
        })
    }

    /// The peer says that these paths are not up there: they are connected again.
    pub(super) fn lose<'a>(&self, paths: impl Iterator<Item = &'a Arc<Path>>) {
        for path in paths {
            tracing::info!(peer = %self.peer, path = path.number, "a path is lost at the peer");
            self.paths.lose(path);
        }
    }

    /// Carries out reads; one result each, in the order of `indices`.
    async fn read(&self, batch: &[Transfer], indices: &[usize], deadline: Instant) -> Vec<TransferResult> {
        let mut results: Vec<Option<TransferResult>> = vec![None; indices.len()];
        // A key that is not good any more, or lies on none of the paths that are up now, is asked for once more.
        for is_last in [false, true] {
            let open: Vec<usize> = (0..indices.len()).filter(|&at| results[at].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let slice_bytes = read_bytes(self.paths.up().len());
            let (mut readings, mut pieces) = (Vec::new(), Vec::new());
            for at in open {
                let transfer = &batch[indices[at]];
                match self.cut(transfer, slice_bytes, deadline).await {
                    Ok(mut cut) => {
                        let start = pieces.len();
                        pieces.append(&mut cut);
                        readings.push(Reading {
                            transfer: at,
                            key: transfer.key,
                            len_bytes: transfer.len_bytes(),
                            pieces: start..pieces.len(),
                        });
                    }
                    Err(error) => results[at] = Some(Err(error)),
                }
            }
            let mut order: Vec<usize> = (0..pieces.len()).collect();
            order.sort_by_key(|piece| pieces[*piece].group);
            let ordered: Vec<Piece> = order.iter().map(|piece| pieces[*piece].clone()).collect();
            let carried = carry(&self.rails, &self.paths, &ordered, deadline).await;
            let mut ended = vec![Ok(()); pieces.len()];
            for (piece, result) in order.into_iter().zip(carried) {
                ended[piece] = result;
            }
            for reading in readings {
                let lens = pieces[reading.pieces.clone()].iter().map(|piece| piece.len_bytes);
                let result = judge(&reading, lens, &ended[reading.pieces.clone()]);
                let is_old =
                    |piece: &Result<(), PieceError>| matches!(piece, Err(PieceError::Access | PieceError::Unnamed));
                if ended[reading.pieces.clone()]
                    .iter()
                    .find(|piece| piece.is_err())
                    .is_some_and(is_old)
                {
                    self.places.remove(reading.key);
                    if !is_last {
                        continue;
                    }
                }
                results[reading.transfer] = Some(result);
            }
        }
        results.into_iter().flatten().collect()
    }

    /// The pieces of a read.
    async fn cut(&self, transfer: &Transfer, slice_bytes: u64, deadline: Instant) -> Result<Vec<Piece>, TransferError> {
        let len_bytes = transfer.len_bytes();
        let late = |_| TransferError::Deadline {
            moved_bytes: 0,
            len_bytes,
        };
        let place = timeout_at(deadline, self.place(transfer.key, deadline))
            .await
            .map_err(late)??;
        let offset_bytes = transfer.remote_offset_bytes;
        if offset_bytes
            .checked_add(len_bytes)
            .is_none_or(|end| end > place.len_bytes)
        {
            return Err(TransferError::OutOfRange {
                offset_bytes,
                len_bytes,
                export_bytes: place.len_bytes,
            });
        }
        let piece = |cut: Cut| Piece {
            from: place.on_all(offset_bytes + cut.offset_bytes),
            into: cut.local,
            len_bytes: cut.len_bytes,
            group: transfer.group.into(),
            place: Some(Arc::clone(&place)),
            access: None,
        };
        Ok(cuts(&transfer.local, slice_bytes).into_iter().map(piece).collect())
    }

    /// Lets the peer read memory, on each of these paths: what its owner has registered for peers to read as it is, other
    /// memory in this range and for as long as the regions live.
    pub(super) fn lend(&self, slice: &Slice, paths: &[Load]) -> Result<Lent, VerbsError> {
        let (mut regions, mut named) = (Vec::new(), Vec::new());
        for path in paths.iter().map(Load::path) {
            let region = match self.rails.region(path.rail, slice) {
                Some(region) => region,
                None => match self.rails.lend(path.rail, slice, Access::REMOTE_READ) {
                    // Its paths end too.
                    Err(VerbsError::Gone { .. }) => continue,
                    lent => lent?,
                },
            };
            let remote = Remote {
                address: region.address() + (slice.offset_bytes() - region.slice().offset_bytes()),
                key: region.key(),
            };
            named.push((path.number, remote));
            regions.push(region);
        }
        Ok(Lent { regions, named })
    }
}

/// What became of a read whose pieces ended so.
fn judge(
    reading: &Reading,
    lens_bytes: impl Iterator<Item = u64>,
    pieces: &[Result<(), PieceError>],
) -> TransferResult {
    let moved = lens_bytes.zip(pieces).filter(|(_, piece)| piece.is_ok());
    let moved_bytes = moved.map(|(len_bytes, _)| len_bytes).sum();
    let Some(error) = pieces.iter().find_map(|piece| piece.as_ref().err()) else {
        return Ok(Done {
            bytes: moved_bytes,
            stamp: None,
            crc64: None,
            sent_crc64: None,
        });
    };
    Err(match error {
        PieceError::Access => TransferError::UnknownKey { key: reading.key },
        PieceError::Deadline => TransferError::Deadline {
            moved_bytes,
            len_bytes: reading.len_bytes,
        },
        PieceError::Unnamed => TransferError::Disconnected {
            reason: "the peer's memory is not registered with a device in reach".to_owned(),
        },
        PieceError::Lost(reason) => TransferError::Disconnected { reason: reason.clone() },
        PieceError::Local(reason) => TransferError::Invalid { reason: reason.clone() },
    })
}

//! Putting objects: reserve, write, commit.

mod commit;
mod reserve;
pub(crate) mod stream;
mod write;

use crate::client::{Client, Core};
use crate::error::ClientError;
use commit::Sealing;
use reserve::{Reservations, Reserved};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tenon_protocol::checksum::{Checksums, piece_count, piece_len_bytes};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::limits::{FINGERPRINT_LEN_BYTES_MAX, OBJECT_LEN_BYTES_MAX, PIECE_BYTES};
use tenon_protocol::message::{Committed, Pin};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_transport::{Memory, Slice};
use tokio::time::Instant;

/// One object of a batch to put.
#[derive(Debug, Clone)]
pub struct PutItem {
    /// Its key.
    pub key: String,
    /// Its bytes, lent until the operation ends; nobody may write to them meanwhile.
    pub source: Slice,
}

/// How to put.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// Place on this node only.
    pub node: Option<NodeId>,
    /// Reservations end this long after the last byte arrived; the holder's default if not given.
    pub ttl_ms: Option<u32>,
    /// What keeps the objects from being evicted.
    pub pin: Pin,
    /// On how many nodes each object is to lie; one if not given. As many as have room get it: see [`Committed::copies`].
    pub replicas: Option<u8>,
    /// Take the place of the object that the key has.
    pub replace: bool,
    /// Opaque bytes that are stored with each object, at most [`FINGERPRINT_LEN_BYTES_MAX`].
    pub fingerprint: Vec<u8>,
    /// The attempt that this call belongs to: given to repeat a put whose outcome was not learned, which then has the same outcome. A new
    /// attempt if not given.
    pub put_id: Option<PutId>,
}

/// A put id that nobody else has.
pub fn new_put_id() -> PutId {
    PutId::from_bytes(rand::random())
}

/// What all objects of one call share.
#[derive(Debug, Clone)]
pub(crate) struct Attempt {
    pub(crate) namespace: Namespace,
    pub(crate) put_id: PutId,
    pub(crate) options: PutOptions,
    pub(crate) deadline: Instant,
}

impl Attempt {
    pub(crate) fn new(namespace: &Namespace, options: &PutOptions, deadline: Instant) -> Self {
        Self {
            namespace: namespace.clone(),
            put_id: options.put_id.unwrap_or_else(new_put_id),
            options: options.clone(),
            deadline,
        }
    }
}

/// One object on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Its index in the caller's batch.
    at: usize,
    key: String,
    source: Slice,
    /// Of each piece as it was sent, noted when the first holder has it.
    piece_sums: Vec<OnceLock<u64>>,
    reserved: Reserved,
}

impl Upload {
    fn new(at: usize, item: PutItem) -> Self {
        let pieces = piece_count(item.source.len_bytes());
        Self {
            at,
            key: item.key,
            source: item.source,
            piece_sums: (0..pieces).map(|_| OnceLock::new()).collect(),
            reserved: Reserved::default(),
        }
    }

    fn pieces(&self) -> u64 {
        self.piece_sums.len() as u64
    }

    fn piece(&self, piece: u64) -> Slice {
        let start = piece * PIECE_BYTES;
        crate::read::plan::part(
            &self.source,
            start..start + piece_len_bytes(self.source.len_bytes(), piece),
        )
    }

    /// A holder has a piece with this checksum; all must have the same bytes.
    fn note_sum(&self, piece: u64, sum: u64) -> Result<(), ClientError> {
        let noted = usize::try_from(piece).ok().and_then(|at| self.piece_sums.get(at));
        match noted.map(|noted| *noted.get_or_init(|| sum)) {
            Some(noted) if noted == sum => Ok(()),
            _ => {
                let message = format!("piece {piece} was written to while it was being put");
                Err(ServiceError::new(ErrorCode::ChecksumMismatch, message).into())
            }
        }
    }

    fn sealing(&self) -> Sealing {
        let sums = self.piece_sums.iter().enumerate();
        let sums = sums.map(|(piece, sum)| *sum.get_or_init(|| self.piece(piece as u64).crc64()));
        Sealing {
            at: self.at,
            key: self.key.clone(),
            holders: self.reserved.holders(),
            checksums: Checksums::from_pieces(self.source.len_bytes(), sums.collect()),
        }
    }
}

impl Client {
    /// Puts many objects into one namespace; one result per item. A key that has an object already keeps it: see [`Committed::outcome`].
    pub async fn put_batch(
        &self,
        namespace: &Namespace,
        items: Vec<PutItem>,
        options: &PutOptions,
        deadline: Instant,
    ) -> Vec<Result<Committed, ClientError>> {
        let attempt = Attempt::new(namespace, options, deadline);
        let mut results: Vec<Option<Result<Committed, ClientError>>> = vec![None; items.len()];
        let uploads = admit(&attempt, items, &mut results);
        put_all(&self.core, &attempt, uploads, &mut results).await;
        let undecided = || Err(ClientError::protocol("a put ended undecided"));
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(undecided))
            .collect()
    }

    /// Puts one object. A `Vec` is taken over without a copy.
    pub async fn put(
        &self,
        name: &ObjectName,
        bytes: impl Into<Vec<u8>>,
        options: &PutOptions,
        deadline: Instant,
    ) -> Result<Committed, ClientError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(ClientError::Empty);
        }
        let item = PutItem {
            key: name.key().to_owned(),
            source: Arc::new(Memory::from_vec(bytes)).whole(),
        };
        let mut results = self.put_batch(name.namespace(), vec![item], options, deadline).await;
        results
            .pop()
            .unwrap_or_else(|| Err(ClientError::protocol("a put without a result")))
    }
}

/// The items that make sense; the others get their errors.
fn admit(
    attempt: &Attempt,
    items: Vec<PutItem>,
    results: &mut [Option<Result<Committed, ClientError>>],
) -> Vec<Upload> {
    let mut first_of: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut uploads = Vec::with_capacity(items.len());
    for (at, item) in items.into_iter().enumerate() {
        let checked = check_object(attempt, &item.key, item.source.len_bytes());
        let checked = checked.and_then(|_| match first_of.get(&item.key) {
            None => Ok(()),
            Some(&first) => Err(ClientError::DuplicateKey {
                key: item.key.clone(),
                first,
                again: at,
            }),
        });
        match checked {
            Ok(()) => {
                first_of.insert(item.key.clone(), at);
                uploads.push(Upload::new(at, item));
            }
            Err(error) => results[at] = Some(Err(error)),
        }
    }
    uploads
}

/// What can be said of an object before anyone is asked.
pub(crate) fn check_object(attempt: &Attempt, key: &str, len_bytes: u64) -> Result<ObjectName, ClientError> {
    let name = ObjectName::new(&attempt.namespace, key)?;
    if len_bytes == 0 {
        return Err(ClientError::Empty);
    }
    if len_bytes > OBJECT_LEN_BYTES_MAX {
        return Err(ClientError::TooLarge { len_bytes });
    }
    let fingerprint_bytes = attempt.options.fingerprint.len();
    if fingerprint_bytes > FINGERPRINT_LEN_BYTES_MAX {
        let message =
            format!("a fingerprint of {fingerprint_bytes} bytes: at most {FINGERPRINT_LEN_BYTES_MAX} are allowed");
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message).into());
    }
    Ok(name)
}

async fn put_all(
    core: &Arc<Core>,
    attempt: &Attempt,
    uploads: Vec<Upload>,
    results: &mut [Option<Result<Committed, ClientError>>],
) {
    // Whatever ends this function early gives back what was reserved by then.
    let reservations = Reservations::new(core, attempt);
    let asked = uploads
        .iter()
        .map(|upload| (upload.key.clone(), upload.source.len_bytes()))
        .collect();
    let reserved = reservations.reserve(asked).await;
    let mut placed = Vec::with_capacity(uploads.len());
    for (mut upload, reserved) in uploads.into_iter().zip(reserved) {
        match reserved {
            Ok(reserved) => {
                upload.reserved = reserved;
                placed.push(upload);
            }
            Err(error) => results[upload.at] = Some(Err(error)),
        }
    }
    let failures = core.write(&placed, attempt.deadline).await;
    let mut written = Vec::with_capacity(placed.len());
    for (mut upload, failures) in placed.into_iter().zip(failures) {
        upload
            .reserved
            .regions
            .retain(|region| !failures.contains_key(&region.node.node));
        let has_arrived = !upload.reserved.regions.is_empty();
        match failures.values().next() {
            Some(error) if !has_arrived => results[upload.at] = Some(Err(error.clone())),
            _ => {
                reservations.release_but(&upload.key, failures.keys());
                written.push(upload.sealing());
            }
        }
    }
    let ((), committed) = tokio::join!(reservations.abort(), core.commit(attempt, written));
    for (at, result) in committed {
        results[at] = Some(result);
    }
}

//! Getting whole objects and ranges.

use crate::client::Client;
use crate::error::ClientError;
use crate::limits::GET_WHOLE_BYTES_MAX;
use crate::read::plan::Target;
use crate::read::{ObjectInfo, ReadDone, ReadJob};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_transport::Slice;
use tokio::time::Instant;

/// By what a reader knows that what it read is the object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Check {
    /// By the checksums of all its pieces: damage on the way or in the holder's memory is found.
    #[default]
    Checksums,
    /// By its generation: the bytes were read from the object's region while that was the object's. Damage is found only where the engine computes
    /// checksums anyway. For networks that guard what they carry, where computing them costs more than it finds.
    Generation,
}

/// One object of a batch to get.
#[derive(Debug, Clone)]
pub struct GetItem {
    /// Its key.
    pub key: String,
    /// Which bytes of it; `None` for all. Whole pieces are read and verified whatever the range.
    pub range: Option<Range<u64>>,
    /// Where they go: memory of exactly that many bytes, lent until the operation ends. Its content is undefined unless the outcome is a hit.
    /// Destinations of one batch must not overlap.
    pub into: Slice,
    /// If given, an object with another fingerprint is a miss.
    pub fingerprint: Option<Vec<u8>>,
    /// By what it is checked.
    pub check: Check,
}

impl GetItem {
    /// All of the object under `key` into `into`.
    pub fn whole(key: impl Into<String>, into: Slice) -> Self {
        Self {
            key: key.into(),
            range: None,
            into,
            fingerprint: None,
            check: Check::default(),
        }
    }

    /// `range` of the object under `key` into `into`.
    pub fn part(key: impl Into<String>, range: Range<u64>, into: Slice) -> Self {
        Self {
            range: Some(range),
            ..Self::whole(key, into)
        }
    }

    /// The same, checked so.
    #[must_use]
    pub fn checked_by(self, check: Check) -> Self {
        Self { check, ..self }
    }
}

/// What a get found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GetOutcome {
    /// The object; what was asked of it is in the destination, checked as its item says.
    Hit(Arc<ObjectInfo>),
    /// There is no such object.
    Miss,
}

impl Client {
    /// Gets many objects of one namespace; one result per item. The same key may stand more than once.
    pub async fn get_batch(
        &self,
        namespace: &Namespace,
        items: Vec<GetItem>,
        deadline: Instant,
    ) -> Vec<Result<GetOutcome, ClientError>> {
        let mut jobs = Vec::with_capacity(items.len());
        let mut refused = Vec::with_capacity(items.len());
        for item in items {
            match ObjectName::new(namespace, &item.key) {
                Ok(name) => {
                    jobs.push(job(name, item));
                    refused.push(None);
                }
                Err(error) => refused.push(Some(ClientError::from(error))),
            }
        }
        let mut results = self.core.read(namespace, jobs, deadline).await.into_iter();
        let mut outcome = |refused: Option<ClientError>| {
            let ran = || {
                results
                    .next()
                    .unwrap_or_else(|| Err(ClientError::protocol("a read without a result")))
            };
            let result = refused.map_or_else(ran, Err)?;
            Ok(result.map_or(GetOutcome::Miss, |done| GetOutcome::Hit(done.known.info)))
        };
        refused.into_iter().map(&mut outcome).collect()
    }

    /// Gets one object into memory that is allocated for it; `None` is a miss. At most [`GET_WHOLE_BYTES_MAX`] bytes; read larger ones
    /// through [`Client::open`].
    pub async fn get(&self, name: &ObjectName, deadline: Instant) -> Result<Option<Bytes>, ClientError> {
        let limit_bytes = GET_WHOLE_BYTES_MAX;
        let done = self.read_one(name, Target::Fresh { limit_bytes }, deadline).await?;
        let data = done.and_then(|done| done.data);
        // The memory was allocated for this read alone, so only an engine that breaks its contract could still refer to it.
        Ok(data.map(|data| data.into_bytes().unwrap_or_else(|shared| shared.to_vec().into())))
    }

    /// What a holder's table says of an object, verified; `None` is a miss.
    pub async fn stat(&self, name: &ObjectName, deadline: Instant) -> Result<Option<Arc<ObjectInfo>>, ClientError> {
        let done = self.read_one(name, Target::Table, deadline).await?;
        Ok(done.map(|done| done.known.info))
    }

    pub(crate) async fn read_one(
        &self,
        name: &ObjectName,
        target: Target,
        deadline: Instant,
    ) -> Result<Option<ReadDone>, ClientError> {
        let job = ReadJob {
            name: name.clone(),
            target,
            fingerprint: None,
            known: None,
            check: Check::Checksums,
        };
        let mut results = self.core.read(name.namespace(), vec![job], deadline).await;
        results
            .pop()
            .unwrap_or_else(|| Err(ClientError::protocol("a read without a result")))
    }
}

fn job(name: ObjectName, item: GetItem) -> ReadJob {
    let GetItem {
        range,
        into: slice,
        fingerprint,
        check,
        ..
    } = item;
    ReadJob {
        name,
        target: Target::Into { range, slice },
        fingerprint,
        known: None,
        check,
    }
}

//! Batches stay batches: the keys of one call, grouped by the node that must be asked, one frame per node, results back
//! in the call's order.

use crate::holder::CommitKey;
use crate::node::Node;
use std::collections::BTreeMap;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::KeyHash;
use tenon_protocol::limits::FINGERPRINT_LEN_BYTES_MAX;
use tenon_protocol::member::Homes;
use tenon_protocol::message::KeyResult;
use tenon_protocol::name::{Namespace, ObjectName};

/// A valid key of a batch.
#[derive(Debug, Clone)]
pub(super) struct NamedKey {
    /// Where it stands in the batch.
    pub index: usize,
    /// The key.
    pub name: ObjectName,
    /// Its hash in this cluster.
    pub hash: KeyHash,
    /// Who keeps its entry.
    pub homes: Homes,
}

/// The results of a batch, filled in any order.
#[derive(Debug)]
pub(super) struct Results<T>(Vec<Option<KeyResult<T>>>);

impl<T> Results<T> {
    /// None known yet.
    pub(super) fn new(keys: usize) -> Self {
        Self((0..keys).map(|_| None).collect())
    }

    /// Sets the result of one key.
    pub(super) fn set(&mut self, index: usize, result: KeyResult<T>) {
        self.0[index] = Some(result);
    }

    /// Sets the results of some keys, by their indices.
    pub(super) fn extend(&mut self, results: impl IntoIterator<Item = (usize, KeyResult<T>)>) {
        for (index, result) in results {
            self.set(index, result);
        }
    }

    /// All results in order. A key without one is a fault of ours and says so.
    pub(super) fn finish(self) -> Vec<KeyResult<T>> {
        let forgotten = || Err(ServiceError::new(ErrorCode::Internal, "the key was not answered"));
        self.0
            .into_iter()
            .map(|result| result.unwrap_or_else(forgotten))
            .collect()
    }
}

/// Items by the node to ask, in the order of node ids.
pub(crate) fn group_by<K: Ord, T>(
    items: impl IntoIterator<Item = T>,
    node_of: impl Fn(&T) -> K,
) -> BTreeMap<K, Vec<T>> {
    let mut groups: BTreeMap<K, Vec<T>> = BTreeMap::new();
    for item in items {
        groups.entry(node_of(&item)).or_default().push(item);
    }
    groups
}

/// One result per asked key from a node's answer: the answer's own, or its failure as a whole for each. A node that
/// answers for another number of
/// keys than it was asked for is not believed.
pub(super) fn per_key<T>(answer: Result<Vec<KeyResult<T>>, ServiceError>, keys: usize) -> Vec<KeyResult<T>> {
    match answer {
        Ok(results) if results.len() == keys => results,
        Ok(results) => {
            let message = format!("a member answered {} keys when asked for {keys}", results.len());
            all_failed(&ServiceError::new(ErrorCode::Internal, message), keys)
        }
        Err(error) => all_failed(&error, keys),
    }
}

/// Does work to its end, in a task of its own: a caller that goes away, or whose deadline passes, leaves nothing half done.
pub(super) async fn to_its_end<T: Send + 'static>(
    doing: &str,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, ServiceError> {
    let failed = |error| ServiceError::new(ErrorCode::Internal, format!("the {doing} task failed: {error}"));
    tokio::spawn(work).await.map_err(failed)
}

fn all_failed<T>(error: &ServiceError, keys: usize) -> Vec<KeyResult<T>> {
    (0..keys).map(|_| Err(error.clone())).collect()
}

impl NamedKey {
    /// A commit of what was written under this key.
    pub(super) fn into_commit(self, checksums: Checksums, fingerprint: Vec<u8>) -> KeyResult<CommitKey> {
        if fingerprint.len() > FINGERPRINT_LEN_BYTES_MAX {
            let len_bytes = fingerprint.len();
            let message =
                format!("a fingerprint of {len_bytes} bytes: at most {FINGERPRINT_LEN_BYTES_MAX} are allowed");
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        Ok(CommitKey {
            index: self.index,
            name: self.name,
            hash: self.hash,
            homes: self.homes,
            checksums,
            fingerprint,
        })
    }
}

impl Node {
    /// Checks the keys of a batch. Invalid ones get their result at once; a bad namespace fails the whole call.
    pub(super) fn named_keys<'a, T>(
        &self,
        namespace: &str,
        keys: impl Iterator<Item = &'a str>,
        results: &mut Results<T>,
    ) -> Result<Vec<NamedKey>, ServiceError> {
        let namespace = Namespace::new(namespace)?;
        let index_nodes = self.index_nodes(&namespace);
        let mut named = Vec::with_capacity(keys.size_hint().0);
        for (index, key) in keys.enumerate() {
            match ObjectName::new(&namespace, key) {
                Ok(name) => {
                    let hash = name.hash(self.cluster());
                    let homes = index_nodes.homes(hash);
                    named.push(NamedKey {
                        index,
                        name,
                        hash,
                        homes,
                    });
                }
                Err(error) => results.set(index, Err(error.into())),
            }
        }
        Ok(named)
    }
}

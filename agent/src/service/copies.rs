//! Copies at the coordinator, which has the further holders of a put commit what the first has committed, and at the holders, which serve that.

use super::batch::{Results, group_by, per_key, to_its_end};
use super::checks::check_batch;
use super::checks::invalid;
use crate::node::Node;
use crate::peers::other_answer;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, PutId, SessionId};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::{CopiesRequest, CopyItem, MemberReply, MemberRequest};
use tenon_protocol::message::{AbortItem, AbortRequest, CommitItem, Committed, KeyResult, PutOutcome};
use tokio::time::Instant;

/// The further holders of one object of a put.
#[derive(Debug)]
pub(super) struct Further {
    /// Where it stands in the batch.
    index: usize,
    item: CommitItem,
}

/// Takes the further holders out of the items of a commit: the first of each commits the object, the others commit copies of it then.
pub(super) fn take_further(items: &mut [CommitItem]) -> Vec<Further> {
    let mut further = Vec::new();
    for (index, item) in items.iter_mut().enumerate() {
        // More than there may be are refused later.
        if (2..=REPLICAS_MAX.into()).contains(&item.holders.len()) {
            let mut others = item.holders.split_off(1);
            let mut seen = BTreeSet::from([item.holders[0]]);
            others.retain(|&holder| seen.insert(holder));
            let mut item = item.clone();
            item.holders = others;
            further.push(Further { index, item });
        }
    }
    further
}

impl Node {
    /// Has further holders commit copies of what was stored, and gives their regions back where there is nothing to copy. Those that fail are not
    /// counted.
    pub(super) async fn commit_further(
        self: &Arc<Self>,
        session: SessionId,
        (namespace, put_id): (&str, PutId),
        further: Vec<Further>,
        committed: &mut [KeyResult<Committed>],
        deadline: Instant,
    ) {
        let (mut copies, mut needless) = (Vec::new(), Vec::new());
        for Further { index, item } in further {
            let stored = match &committed[index] {
                Ok(known) if known.outcome == PutOutcome::Stored && known.version.put_id == put_id => {
                    Some(known.version)
                }
                // It may have been stored: whoever repeats the commit has the copies committed too.
                Err(error) if error.code == ErrorCode::Unavailable || error.code == ErrorCode::DeadlineExceeded => {
                    continue;
                }
                _ => None,
            };
            for holder in item.holders {
                let key = item.key.clone();
                match stored {
                    Some(version) => {
                        let (checksums, fingerprint) = (item.checksums.clone(), item.fingerprint.clone());
                        let copy = CopyItem {
                            key,
                            version,
                            checksums,
                            fingerprint,
                        };
                        copies.push((holder, index, copy));
                    }
                    None => needless.push((holder, key)),
                }
            }
        }
        self.abort_further(session, namespace, put_id, needless);
        let asks = group_by(copies, |(holder, ..)| *holder)
            .into_iter()
            .map(async |(holder, copies)| {
                let (indices, items): (Vec<usize>, Vec<CopyItem>) =
                    copies.into_iter().map(|(_, index, copy)| (index, copy)).unzip();
                let namespace = namespace.to_owned();
                let answers = self.copy_to(holder, CopiesRequest { namespace, items }, deadline).await;
                let answers = per_key(answers, indices.len());
                indices.into_iter().zip(answers).collect::<Vec<_>>()
            });
        for (index, answer) in join_all(asks).await.into_iter().flatten() {
            match (answer, &mut committed[index]) {
                (Ok(()), Ok(known)) => known.copies = known.copies.saturating_add(1),
                (Err(error), _) => tracing::info!(%error, "a copy was not taken"),
                (Ok(()), Err(_)) => {}
            }
        }
    }

    /// Has one holder commit copies.
    pub(crate) async fn copy_to(
        self: &Arc<Self>,
        holder: NodeId,
        request: CopiesRequest,
        deadline: Instant,
    ) -> Result<Vec<KeyResult<()>>, ServiceError> {
        if holder == self.id() {
            return self.commit_copies_own(request, deadline).await;
        }
        let call = MemberRequest::CommitCopies(request);
        match self.peers().call(holder, call, deadline, "committing copies").await? {
            MemberReply::CommitCopies(results) => Ok(results),
            _ => Err(other_answer()),
        }
    }

    /// Commits copies whose bytes lie in this node's own memory, to its end.
    pub(super) async fn commit_copies_own(
        self: &Arc<Self>,
        request: CopiesRequest,
        deadline: Instant,
    ) -> Result<Vec<KeyResult<()>>, ServiceError> {
        check_batch(request.items.len())?;
        let mut results = Results::new(request.items.len());
        let keys = request.items.iter().map(|item| item.key.as_str());
        let named = self.named_keys(&request.namespace, keys, &mut results)?;
        let mut items: Vec<Option<CopyItem>> = request.items.into_iter().map(Some).collect();
        let mut copies = Vec::with_capacity(named.len());
        for key in named {
            let index = key.index;
            let Some(item) = items[index].take() else { continue };
            let checked = item.check().map_err(invalid);
            match checked.and_then(|()| key.into_commit(item.checksums, item.fingerprint)) {
                Ok(key) => copies.push((key, item.version)),
                Err(error) => results.set(index, Err(error)),
            }
        }
        let node = Arc::clone(self);
        let committing = async move { node.commit_copies(copies, deadline).await };
        results.extend(to_its_end("commit", committing).await?);
        Ok(results.finish())
    }

    /// Gives regions back of which nothing is copied. Nobody waits for it.
    fn abort_further(
        self: &Arc<Self>,
        session: SessionId,
        namespace: &str,
        put_id: PutId,
        needless: Vec<(NodeId, String)>,
    ) {
        for (holder, items) in group_by(needless, |(holder, _)| *holder) {
            let item = |(holder, key)| AbortItem {
                key,
                holders: vec![holder],
            };
            let request = AbortRequest {
                namespace: namespace.to_owned(),
                put_id,
                items: items.into_iter().map(item).collect(),
            };
            self.release_at(holder, session, request);
        }
    }
}

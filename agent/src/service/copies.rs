//! Copies at the coordinator, which has the further holders of a put commit what the first has committed, and at the holders, which serve that.

use super::batch::{Results, group_by, per_key, to_its_end};
use super::checks::{check_batch, invalid};
use crate::node::Node;
use crate::peers::other_answer;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, PutId, SessionId, Version};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::{CopiesRequest, CopyItem, MemberReply, MemberRequest};
use tenon_protocol::message::{AbortItem, AbortRequest, CommitItem, Committed, KeyResult, PutOutcome};
use tokio::time::Instant;

/// The further holders of one object of a put.
#[derive(Debug)]
pub(super) struct Further {
    /// Where it stands in the batch.
    index: usize,
    /// Who is to commit it.
    first: NodeId,
    item: CommitItem,
}

impl Further {
    /// The put's object, if it was stored.
    fn stored(&self, put_id: PutId, committed: &[KeyResult<Committed>]) -> Option<Version> {
        let known = committed[self.index].as_ref().ok()?;
        let is_of_the_put = known.outcome == PutOutcome::Stored && known.version.put_id == put_id;
        is_of_the_put.then_some(known.version)
    }
}

/// Takes the further holders out of the items of a commit: the first of each commits the object, the others commit copies of it then.
pub(super) fn take_further(items: &mut [CommitItem]) -> Vec<Further> {
    let mut further = Vec::new();
    for (index, item) in items.iter_mut().enumerate() {
        // More than there may be are refused later.
        if (2..=REPLICAS_MAX.into()).contains(&item.holders.len()) {
            let mut others = item.holders.split_off(1);
            let first = item.holders[0];
            let mut seen = BTreeSet::from([first]);
            others.retain(|&holder| seen.insert(holder));
            let mut item = item.clone();
            item.holders = others;
            further.push(Further { index, first, item });
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
        let gone = self.gone_since(namespace, put_id, &further, committed, deadline).await;
        let (mut copies, mut needless) = (Vec::new(), Vec::new());
        for known in further {
            // It may have been stored: whoever repeats the commit has the copies committed too.
            if matches!(&committed[known.index], Err(error) if error.leaves_open()) {
                continue;
            }
            let stored = known.stored(put_id, committed);
            let stored = stored.filter(|_| !gone.contains(&known.index));
            let Further { index, item, .. } = known;
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

    /// Which objects, by their places in the batch, their first holders do not keep. A put may be repeated after its object was evicted: nothing brings that
    /// back.
    async fn gone_since(
        self: &Arc<Self>,
        namespace: &str,
        put_id: PutId,
        further: &[Further],
        committed: &[KeyResult<Committed>],
        deadline: Instant,
    ) -> BTreeSet<usize> {
        let stored = further
            .iter()
            .filter_map(|one| Some((one, one.stored(put_id, committed)?)));
        let stored: Vec<(&Further, Version)> = stored.collect();
        let keys = stored.iter().map(|(one, _)| one.item.key.as_str());
        let named = self.named_keys(namespace, keys, &mut Results::<()>::new(stored.len()));
        let asked = named.unwrap_or_default().into_iter().map(|key| {
            let (one, version) = stored[key.index];
            (one.first, one.index, (key.hash, version))
        });
        let asks = group_by(asked, |(first, ..)| *first)
            .into_iter()
            .map(async |(first, asked)| {
                let (indices, objects): (Vec<usize>, Vec<_>) =
                    asked.into_iter().map(|(_, index, object)| (index, object)).unzip();
                // One that does not answer may have them.
                let stay = self.which_stay(first, objects, deadline).await.unwrap_or_default();
                let gone = indices.into_iter().zip(stay).filter(|(_, stays)| stays.is_none());
                gone.map(|(index, _)| index).collect::<Vec<_>>()
            });
        join_all(asks).await.into_iter().flatten().collect()
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

//! Reserve, commit and abort at the coordinator: each key goes to the node that holds, or is to hold, its region.

use super::Caller;
use super::batch::{Results, group_by, per_key, to_its_end};
use super::checks::{check_batch, check_len, check_options, unexpected};
use super::copies::take_further;
use crate::holder::{Owner, ReserveKey};
use crate::metrics;
use crate::node::Node;
use futures_util::future::join_all;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::MemberRequest;
use tenon_protocol::message::{
    AbortItem, AbortRequest, CommitItem, CommitRequest, Committed, KeyResult, PutOutcome, Reply, Request, Reservation,
    ReserveItem, ReserveReply, ReserveRequest, ReservedRegion,
};
use tokio::time::Instant;

impl Node {
    pub(super) async fn reserve(
        self: &Arc<Self>,
        caller: Caller,
        deadline: Instant,
        request: ReserveRequest,
    ) -> Result<ReserveReply, ServiceError> {
        check_batch(request.items.len())?;
        check_options(&request.options)?;
        let session = self.session_of(caller);
        let Some(holder) = request.options.node else {
            return self.reserve_anywhere(session, deadline, request).await;
        };
        if !self.view().contains(holder) {
            return Err(self.unknown_node(holder));
        }
        let items = if holder == self.id() {
            let coordinator = self.id();
            self.reserve_own(Owner { coordinator, session }, &request, true)?
        } else {
            self.sessions().note_holder(session, holder);
            let asked = request.items.len();
            // The put may be nowhere else.
            let call = MemberRequest::ReserveEvicting { session, request };
            let reply = self.served(holder, call, deadline).await;
            per_key(
                reply.and_then(|(reply, _)| match reply {
                    Reply::Reserve(reply) => Ok(reply.items),
                    other => Err(unexpected(&other)),
                }),
                asked,
            )
        };
        for result in &items {
            self.metrics().placed(self.id(), result);
        }
        Ok(ReserveReply {
            nodes: self.node_refs(BTreeSet::from([holder])),
            items,
        })
    }

    /// Sets regions aside in this node's own memory, and lets objects go for that if it may.
    pub(super) fn reserve_own(
        &self,
        owner: Owner,
        request: &ReserveRequest,
        may_evict: bool,
    ) -> Result<Vec<KeyResult<Reservation>>, ServiceError> {
        self.check_not_draining()?;
        let mut results = Results::new(request.items.len());
        let named = self.named_keys(
            &request.namespace,
            request.items.iter().map(|item| item.key.as_str()),
            &mut results,
        )?;
        for key in named {
            let ReserveItem { len_bytes, .. } = request.items[key.index];
            let result = check_len(len_bytes).and_then(|()| {
                let asked = ReserveKey {
                    put_id: request.put_id,
                    name: key.name,
                    len_bytes,
                    ttl_ms: request.options.ttl_ms,
                    pin: request.options.pin,
                    replace: request.options.replace,
                };
                self.holder().reserve(owner, asked, may_evict)
            });
            results.set(
                key.index,
                result.map(|region: ReservedRegion| Reservation { replicas: vec![region] }),
            );
        }
        Ok(results.finish())
    }

    pub(super) fn check_not_draining(&self) -> Result<(), ServiceError> {
        if self.is_draining() {
            let message = format!("node {} is draining and takes no puts; name another node", self.id());
            return Err(ServiceError::new(ErrorCode::Draining, message));
        }
        Ok(())
    }

    pub(super) async fn commit(
        self: &Arc<Self>,
        caller: Caller,
        deadline: Instant,
        request: CommitRequest,
    ) -> Result<Vec<KeyResult<Committed>>, ServiceError> {
        check_batch(request.items.len())?;
        let session = self.session_of(caller);
        let CommitRequest {
            namespace,
            put_id,
            mut items,
        } = request;
        let further = take_further(&mut items);
        let (mut results, placed) = by_holder(self, items, |item: &CommitItem| &item.holders);
        let commit = |holder, items| {
            let (node, namespace) = (Arc::clone(self), namespace.clone());
            async move {
                let request = CommitRequest {
                    namespace,
                    put_id,
                    items,
                };
                if holder == node.id() {
                    return node.commit_own(deadline, request).await;
                }
                let committing = node.on_behalf(holder, Some(session), Request::Commit(request), deadline);
                match committing.await {
                    Ok(Reply::Commit(items)) => Ok(items),
                    Ok(other) => Err(unexpected(&other)),
                    Err(error) if error.leaves_open() => Err(error.of_unknown_put(put_id)),
                    Err(error) => Err(error),
                }
            }
        };
        at_holders(placed, &mut results, commit).await;
        let mut committed = results.finish();
        self.commit_further(session, (&namespace, put_id), further, &mut committed, deadline)
            .await;
        for result in &committed {
            self.metrics().put(match result {
                Ok(Committed {
                    outcome: PutOutcome::Stored,
                    ..
                }) => metrics::PutOutcome::Stored,
                Ok(Committed {
                    outcome: PutOutcome::AlreadyExists,
                    ..
                }) => metrics::PutOutcome::AlreadyExists,
                Err(error) => metrics::PutOutcome::of_error(error.code),
            });
        }
        Ok(committed)
    }

    /// Commits what lies in this node's own memory, to its end.
    pub(super) async fn commit_own(
        self: &Arc<Self>,
        deadline: Instant,
        request: CommitRequest,
    ) -> Result<Vec<KeyResult<Committed>>, ServiceError> {
        let mut results = Results::new(request.items.len());
        let named = self.named_keys(
            &request.namespace,
            request.items.iter().map(|item| item.key.as_str()),
            &mut results,
        )?;
        let mut items: Vec<Option<CommitItem>> = request.items.into_iter().map(Some).collect();
        let mut keys = Vec::with_capacity(named.len());
        let mut seen = HashSet::with_capacity(named.len());
        for key in named {
            let index = key.index;
            let Some(item) = items[index].take() else { continue };
            if !seen.insert(key.hash) {
                // Two commits of one put would wait for each other.
                let error = ServiceError::new(ErrorCode::InvalidArgument, "the key stands in the batch twice");
                results.set(index, Err(error));
                continue;
            }
            match key.into_commit(item.checksums, item.fingerprint) {
                Ok(key) => keys.push(key),
                Err(error) => results.set(index, Err(error)),
            }
        }
        let node = Arc::clone(self);
        let committing = async move { node.commit_keys(request.put_id, keys, deadline).await };
        results.extend(to_its_end("commit", committing).await?);
        Ok(results.finish())
    }

    pub(super) async fn abort(
        self: &Arc<Self>,
        caller: Caller,
        deadline: Instant,
        request: AbortRequest,
    ) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        check_batch(request.items.len())?;
        let (session, asked) = (self.session_of(caller), request.items.len());
        let AbortRequest {
            namespace,
            put_id,
            items,
        } = request;
        // Each holder gives its own region back.
        let (items, of): (Vec<AbortItem>, Vec<usize>) = one_each(items).unzip();
        let (mut results, placed) = by_holder(self, items, |item: &AbortItem| &item.holders);
        let abort = |holder, items| {
            let (node, namespace) = (Arc::clone(self), namespace.clone());
            async move {
                let request = AbortRequest {
                    namespace,
                    put_id,
                    items,
                };
                if holder == node.id() {
                    return node.abort_own(session, &request);
                }
                match node
                    .on_behalf(holder, Some(session), Request::Abort(request), deadline)
                    .await?
                {
                    Reply::Abort(items) => Ok(items),
                    other => Err(unexpected(&other)),
                }
            }
        };
        at_holders(placed, &mut results, abort).await;
        let mut joined: Vec<KeyResult<bool>> = vec![Ok(false); asked];
        for (index, result) in of.into_iter().zip(results.finish()) {
            join_aborted(&mut joined[index], result);
        }
        Ok(joined)
    }

    /// Gives back what lies in this node's own memory.
    pub(super) fn abort_own(
        &self,
        session: SessionId,
        request: &AbortRequest,
    ) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        let mut results = Results::new(request.items.len());
        let named = self.named_keys(
            &request.namespace,
            request.items.iter().map(|item| item.key.as_str()),
            &mut results,
        )?;
        for key in named {
            results.set(key.index, self.holder().abort(request.put_id, &key.name, session));
        }
        Ok(results.finish())
    }

    /// The session whose lanes may write: the caller's, or this agent's own for puts over HTTP.
    fn session_of(&self, caller: Caller) -> SessionId {
        match caller {
            Caller::Client { session, .. } => session,
            Caller::Member { .. } | Caller::Http => self.own_session(),
        }
    }
}

/// Items with their places in the batch.
type ByHolder<I> = BTreeMap<NodeId, Vec<(usize, I)>>;

/// Items by the node that holds them. An item that names no member gets its result at once.
fn by_holder<I, R>(node: &Node, items: Vec<I>, holders_of: impl Fn(&I) -> &Vec<NodeId>) -> (Results<R>, ByHolder<I>) {
    let mut results = Results::new(items.len());
    let mut placed = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        match holders_of(&item).as_slice() {
            [holder] if node.view().contains(*holder) => placed.push((*holder, (index, item))),
            [holder] => results.set(index, Err(node.unknown_node(*holder))),
            holders => {
                let message = format!("{} holders are named: 1 to {REPLICAS_MAX} are allowed", holders.len());
                results.set(index, Err(ServiceError::new(ErrorCode::InvalidArgument, message)));
            }
        }
    }
    let groups = group_by(placed, |(holder, _)| *holder);
    let groups = groups
        .into_iter()
        .map(|(holder, group)| (holder, group.into_iter().map(|(_, item)| item).collect()));
    (results, groups.collect())
}

/// The items of an abort, one per holder, each with its place in the batch. One that names none stands there once, to be refused.
fn one_each(items: Vec<AbortItem>) -> impl Iterator<Item = (AbortItem, usize)> {
    items.into_iter().enumerate().flat_map(|(index, item)| {
        let holders: Vec<Vec<NodeId>> = match item.holders.len() {
            0 | 1 => vec![item.holders],
            _ => item.holders.into_iter().map(|holder| vec![holder]).collect(),
        };
        let key = item.key;
        holders.into_iter().map(move |holders| {
            let key = key.clone();
            (AbortItem { key, holders }, index)
        })
    })
}

/// Something was given back if any holder did so; a failure stands.
fn join_aborted(joined: &mut KeyResult<bool>, result: KeyResult<bool>) {
    *joined = match (std::mem::replace(joined, Ok(false)), result) {
        (Ok(one), Ok(other)) => Ok(one || other),
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
}

/// Has each holder serve its items, all at the same time, and puts the results where they belong.
async fn at_holders<I, R, F>(placed: ByHolder<I>, results: &mut Results<R>, serve: impl Fn(NodeId, Vec<I>) -> F)
where
    F: Future<Output = Result<Vec<KeyResult<R>>, ServiceError>>,
{
    let served = placed.into_iter().map(|(holder, group)| {
        let (indices, items): (Vec<usize>, Vec<I>) = group.into_iter().unzip();
        let answers = serve(holder, items);
        async move {
            let answers = per_key(answers.await, indices.len());
            indices.into_iter().zip(answers).collect::<Vec<_>>()
        }
    });
    for (index, result) in join_all(served).await.into_iter().flatten() {
        results.set(index, result);
    }
}

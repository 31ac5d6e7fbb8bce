//! Touch, pin and unpin: the homes say who holds each object, and the holders do it.

use super::batch::{NamedKey, Results, group_by, per_key};
use super::checks::{check_batch, check_pin, unexpected};
use crate::node::Node;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Keep, KeepRequest, KeyResult, Reply, Request};
use tokio::time::Instant;

impl Node {
    /// Has the holders of objects keep them, or not any more; whether there was one of each key.
    pub(super) async fn keep(
        self: &Arc<Self>,
        deadline: Instant,
        request: KeepRequest,
    ) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        check_batch(request.keys.len())?;
        check_keep(request.keep)?;
        let mut results = Results::new(request.keys.len());
        let keys = request.keys.iter().map(String::as_str);
        let named = self.named_keys(&request.namespace, keys, &mut results)?;
        let mut held: Vec<(NodeId, NamedKey)> = Vec::new();
        let mut kept: BTreeMap<usize, KeyResult<bool>> = BTreeMap::new();
        for (key, found) in self.find(named, false, deadline).await {
            match found.and_then(|entry| entry.map_or(Ok(None), |entry| self.located(entry))) {
                Ok(Some(located)) => {
                    let holders = located.replicas.iter().map(|replica| replica.holder);
                    held.extend(holders.map(|holder| (holder, key.clone())));
                }
                Ok(None) => drop(kept.insert(key.index, Ok(false))),
                Err(error) => drop(kept.insert(key.index, Err(error))),
            }
        }
        let asked = group_by(held, |(holder, _)| *holder).into_iter();
        let asked = asked.map(async |(holder, keys)| {
            let request = KeepRequest {
                namespace: request.namespace.clone(),
                keys: keys.iter().map(|(_, key)| key.name.key().to_owned()).collect(),
                keep: request.keep,
            };
            let answers = per_key(self.keep_at(holder, request, deadline).await, keys.len());
            keys.into_iter()
                .zip(answers)
                .map(|((_, key), answer)| (key.index, answer))
                .collect::<Vec<_>>()
        });
        for (index, answer) in join_all(asked).await.into_iter().flatten() {
            let all = match kept.remove(&index) {
                None => answer,
                Some(before) => before.and_then(|before| Ok(answer? || before)),
            };
            kept.insert(index, all);
        }
        for (index, result) in kept {
            results.set(index, result);
        }
        Ok(results.finish())
    }

    async fn keep_at(
        self: &Arc<Self>,
        holder: NodeId,
        request: KeepRequest,
        deadline: Instant,
    ) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        if holder == self.id() {
            return self.keep_own(&request);
        }
        match self.on_behalf(holder, None, Request::Keep(request), deadline).await? {
            Reply::Keep(kept) => Ok(kept),
            other => Err(unexpected(&other)),
        }
    }

    /// The same of what this node holds itself.
    pub(super) fn keep_own(&self, request: &KeepRequest) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        check_keep(request.keep)?;
        let mut results = Results::new(request.keys.len());
        let keys = request.keys.iter().map(String::as_str);
        for key in self.named_keys(&request.namespace, keys, &mut results)? {
            results.set(key.index, Ok(self.holder().keep(&key.name, request.keep)));
        }
        Ok(results.finish())
    }
}

fn check_keep(keep: Keep) -> Result<(), ServiceError> {
    match keep {
        Keep::Touch => Ok(()),
        Keep::Pin(pin) => check_pin(pin),
    }
}

//! Locate and exists: ask one home of each key, the other one where the first does not answer or does not have it.

use super::batch::{NamedKey, Results, group_by};
use super::check_batch;
use crate::metrics::ReadOutcome;
use crate::node::Node;
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::member::{HomeAnswer, HomeEntry, HomeEvent, HomeEventKind};
use tenon_protocol::message::{ExistsMode, ExistsReply, ExistsRequest, KeyResult, KeysRequest, LocateReply, Located};
use tokio::time::Instant;

/// What the homes of a key said so far.
#[derive(Debug)]
struct Asked {
    key: NamedKey,
    first: Option<KeyResult<HomeAnswer>>,
}

impl Node {
    pub(super) async fn locate(
        self: &Arc<Self>,
        deadline: Instant,
        request: &KeysRequest,
    ) -> Result<LocateReply, ServiceError> {
        check_batch(request.keys.len())?;
        let mut results = Results::new(request.keys.len());
        let named = self.named_keys(
            &request.namespace,
            request.keys.iter().map(String::as_str),
            &mut results,
        )?;
        self.locate_named(named, deadline, &mut results).await;
        let items = results.finish();
        for item in &items {
            self.metrics().located(match item {
                Ok(Some(_)) => ReadOutcome::Hit,
                Ok(None) => ReadOutcome::Miss,
                Err(error) => ReadOutcome::of_error(error.code),
            });
        }
        let holders: BTreeSet<NodeId> = items
            .iter()
            .filter_map(|item: &KeyResult<Option<Located>>| item.as_ref().ok()?.as_ref())
            .flat_map(|located| located.replicas.iter().map(|replica| replica.holder))
            .collect();
        Ok(LocateReply {
            nodes: self.node_refs(holders),
            items,
        })
    }

    /// First one home of each key; then, for the keys that it did not find, the other one.
    async fn locate_named(
        self: &Arc<Self>,
        named: Vec<NamedKey>,
        deadline: Instant,
        results: &mut Results<Option<Located>>,
    ) {
        let asked = named.into_iter().map(|key| Asked { key, first: None }).collect();
        let mut open = Vec::new();
        for (asked, answer) in self
            .ask_homes(asked, deadline, |asked| Some(asked.key.homes.first))
            .await
        {
            match answer {
                Ok(HomeAnswer::Hit(entry)) => results.set(asked.key.index, self.located(entry)),
                other if asked.key.homes.second.is_none() => results.set(asked.key.index, not_found(other, None)),
                other => open.push(Asked {
                    first: Some(other),
                    ..asked
                }),
            }
        }
        for (asked, answer) in self.ask_homes(open, deadline, |asked| asked.key.homes.second).await {
            let result = match answer {
                Ok(HomeAnswer::Hit(entry)) => self.located(entry),
                other => match asked.first {
                    Some(first) => not_found(first, Some(other)),
                    None => not_found(other, None),
                },
            };
            results.set(asked.key.index, result);
        }
    }

    async fn ask_homes(
        self: &Arc<Self>,
        keys: Vec<Asked>,
        deadline: Instant,
        home: impl Fn(&Asked) -> Option<NodeId>,
    ) -> Vec<(Asked, KeyResult<HomeAnswer>)> {
        let asks = group_by(keys, |asked| home(asked))
            .into_iter()
            .filter_map(|(home, keys)| Some((home?, keys)));
        let asks = asks.map(async |(home, keys)| {
            let events = keys
                .iter()
                .map(|asked| HomeEvent {
                    key_hash: asked.key.hash,
                    homes: asked.key.homes,
                    kind: HomeEventKind::Locate,
                })
                .collect();
            let answers = self.ask_home(home, events, deadline).await;
            keys.into_iter().zip(answers).collect::<Vec<_>>()
        });
        join_all(asks).await.into_iter().flatten().collect()
    }

    /// The replicas that can be read now. An object whose holders are all in a later life is gone with them.
    fn located(&self, entry: HomeEntry) -> KeyResult<Option<Located>> {
        let (mut replicas, mut silent) = (Vec::new(), None);
        for replica in entry.replicas {
            match self.known_incarnation(replica.holder) {
                Some(incarnation) if incarnation > replica.incarnation => {}
                _ if self.is_reachable(replica.holder) => replicas.push(replica),
                _ => silent = Some(replica.holder),
            }
        }
        match (replicas.is_empty(), silent) {
            (false, _) => Ok(Some(Located {
                version: entry.version,
                len_bytes: entry.len_bytes,
                replicas,
            })),
            (true, Some(node)) => Err(ServiceError::unavailable(node, "it holds the object")),
            (true, None) => Ok(None),
        }
    }

    pub(super) async fn exists(
        self: &Arc<Self>,
        deadline: Instant,
        request: ExistsRequest,
    ) -> Result<ExistsReply, ServiceError> {
        let ExistsRequest { namespace, keys, mode } = request;
        let located = self.locate(deadline, &KeysRequest { namespace, keys }).await?;
        let found = located
            .items
            .into_iter()
            .map(|item| item.map(|located| located.is_some()));
        Ok(match mode {
            ExistsMode::Each => ExistsReply::Each(found.collect()),
            ExistsMode::LeadingRun => {
                let run = found.take_while(|found| matches!(found, Ok(true))).count();
                ExistsReply::LeadingRun(u32::try_from(run).unwrap_or(u32::MAX))
            }
        })
    }
}

/// What two homes say together when neither has the key: a miss if one of them knows that there is none; otherwise why
/// it cannot be said.
fn not_found(first: KeyResult<HomeAnswer>, second: Option<KeyResult<HomeAnswer>>) -> KeyResult<Option<Located>> {
    let mut why = None;
    for answer in [Some(first), second].into_iter().flatten() {
        match answer {
            Ok(HomeAnswer::Miss) => return Ok(None),
            Ok(HomeAnswer::Unknown) => {
                let unsettled = ServiceError::new(
                    ErrorCode::Overloaded,
                    "the homes of the key are still learning what is held; try again",
                );
                why = why.or(Some(unsettled));
            }
            Ok(other) => {
                why = why.or(Some(ServiceError::new(
                    ErrorCode::Internal,
                    format!("a home answered a look-up with {other:?}"),
                )))
            }
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(why.unwrap_or_else(|| ServiceError::new(ErrorCode::Internal, "no home was asked")))
}

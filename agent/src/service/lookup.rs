//! Locate and exists: ask one home of each key, the other one where the first does not answer or does not have it.

use super::batch::{NamedKey, Results, group_by};
use super::checks::check_batch;
use crate::deciding::Decision;
use crate::limits::{REFUSED_WAIT_MAX, UNKNOWN_PAUSE_MAX, UNKNOWN_PAUSE_MIN, UNKNOWN_WAIT_MAX};
use crate::metrics::ReadOutcome;
use crate::node::Node;
use futures_util::future::join_all;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::member::{HomeEntry, HomeEvent, HomeEventKind};
use tenon_protocol::message::{
    ExistsMode, ExistsReply, ExistsRequest, KeyResult, KeysRequest, LocateReply, Located, RelocateRequest,
};
use tenon_store_core::coordinator::{Found, HolderState, LookUp, readable, relocated};
use tokio::time::Instant;

/// A key whose homes are being asked.
#[derive(Debug)]
struct Asked {
    key: NamedKey,
    look_up: LookUp,
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
        for (key, found) in self.find(named, false, deadline).await {
            results.set(key.index, self.told(found));
        }
        Ok(self.located_items(results))
    }

    /// Has the homes look whether objects are there that a reader did not find, and then believes no home alone.
    pub(super) async fn relocate(
        self: &Arc<Self>,
        deadline: Instant,
        request: RelocateRequest,
    ) -> Result<LocateReply, ServiceError> {
        check_batch(request.keys.len())?;
        let mut results = Results::new(request.keys.len());
        let keys = request.keys.iter().map(|missed| missed.key.as_str());
        let named = self.named_keys(&request.namespace, keys, &mut results)?;
        let doubts: Vec<Decision> = named
            .iter()
            .map(|key| Decision {
                key_hash: key.hash,
                homes: key.homes,
                kind: HomeEventKind::Doubt {
                    version: request.keys[key.index].version,
                },
            })
            .collect();
        let mut looked = HashMap::with_capacity(named.len());
        for (key, answers) in named.iter().zip(self.tell_both(&doubts, deadline).await) {
            looked.insert(key.index, answers);
        }
        for (key, found) in self.find(named, true, deadline).await {
            let (missed, looked) = (request.keys[key.index].version, looked.remove(&key.index));
            let told = self
                .told(found)
                .and_then(|found| relocated(key.homes, missed, looked.unwrap_or_default(), found));
            results.set(key.index, told);
        }
        Ok(self.located_items(results))
    }

    fn located_items(&self, results: Results<Option<Located>>) -> LocateReply {
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
        LocateReply {
            nodes: self.node_refs(holders),
            items,
        }
    }

    /// Which object each key has, as its homes know it. Asks them again after a while where they do not know yet.
    pub(super) async fn find(
        self: &Arc<Self>,
        named: Vec<NamedKey>,
        asks_both: bool,
        deadline: Instant,
    ) -> Vec<(NamedKey, KeyResult<Option<HomeEntry>>)> {
        let began = Instant::now();
        let mut pause = UNKNOWN_PAUSE_MIN;
        let mut found = Vec::with_capacity(named.len());
        let mut open = named;
        loop {
            open = self.look_up(open, asks_both, deadline, &mut found).await;
            // A member that refuses another one is not told something else soon.
            let is_refused = self.peers().refusals().next().is_some();
            let wait = if is_refused { REFUSED_WAIT_MAX } else { UNKNOWN_WAIT_MAX };
            if open.is_empty() || Instant::now() + pause >= deadline.min(began + wait) {
                break;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(UNKNOWN_PAUSE_MAX);
        }
        let unknown = || Err(self.nobody_knows());
        found.extend(open.into_iter().map(|key| (key, unknown())));
        found
    }

    /// Why homes do not say what a key has: they learn still, or can't while members have different lists.
    fn nobody_knows(&self) -> ServiceError {
        match self.peers().refusals().next() {
            None => {
                let message = "the homes of the key are still learning what is held; try again";
                ServiceError::new(ErrorCode::Overloaded, message)
            }
            Some((node, refusal)) => ServiceError {
                node: Some(node),
                ..ServiceError::new(
                    ErrorCode::Unavailable,
                    format!("the homes of the key do not learn what is held while {refusal}"),
                )
            },
        }
    }

    /// Asks the homes of each key once; gives back the keys of which they do not know yet.
    async fn look_up(
        self: &Arc<Self>,
        named: Vec<NamedKey>,
        asks_both: bool,
        deadline: Instant,
        found: &mut Vec<(NamedKey, KeyResult<Option<HomeEntry>>)>,
    ) -> Vec<NamedKey> {
        let mut unknown = Vec::new();
        let mut open: Vec<Asked> = named
            .into_iter()
            .map(|key| Asked {
                look_up: LookUp::new(key.homes, asks_both),
                key,
            })
            .collect();
        while !open.is_empty() {
            let (asking, over): (Vec<_>, Vec<_>) = open.into_iter().partition(|asked| asked.look_up.home().is_some());
            for Asked { key, look_up } in over {
                match look_up.found() {
                    Found::Hit(entry) => found.push((key, Ok(Some(entry)))),
                    Found::Miss => found.push((key, Ok(None))),
                    Found::Failed(error) => found.push((key, Err(error))),
                    Found::Unknown => unknown.push(key),
                }
            }
            open = self.ask_homes(asking, deadline).await;
        }
        unknown
    }

    async fn ask_homes(self: &Arc<Self>, keys: Vec<Asked>, deadline: Instant) -> Vec<Asked> {
        let asks = group_by(keys, |asked| asked.look_up.home())
            .into_iter()
            .filter_map(|(home, keys)| Some((home?, keys)));
        let asks = asks.map(async |(home, mut keys)| {
            let events = keys
                .iter()
                .map(|asked| HomeEvent {
                    key_hash: asked.key.hash,
                    homes: asked.key.homes,
                    kind: HomeEventKind::Locate,
                })
                .collect();
            let answers = self.ask_home(home, events, deadline).await;
            for (asked, answer) in keys.iter_mut().zip(answers) {
                asked.look_up.answered(answer);
            }
            keys
        });
        join_all(asks).await.into_iter().flatten().collect()
    }

    /// Where what was found lies.
    fn told(&self, found: KeyResult<Option<HomeEntry>>) -> KeyResult<Option<Located>> {
        found?.map_or(Ok(None), |entry| self.located(entry))
    }

    /// Where an object lies that can be read; `None` if it is gone.
    pub(super) fn located(&self, entry: HomeEntry) -> KeyResult<Option<Located>> {
        readable(entry, |replica| match self.known_incarnation(replica.holder) {
            Some(incarnation) if incarnation > replica.incarnation => HolderState::LaterLife,
            _ if self.is_reachable(replica.holder) => HolderState::Reachable,
            _ => HolderState::Silent,
        })
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

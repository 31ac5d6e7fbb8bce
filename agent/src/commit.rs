//! A put's commit at its holder: check the bytes, ask the homes, seal, tell the homes, and only then answer.
//!
//! It runs in a task that nobody cancels, so each of its steps has the caller's deadline and ends.

use crate::holder::{Begun, CommitKey};
use crate::home::Decision;
use crate::limits::WITHDRAW_TIMEOUT;
use crate::node::Node;
use futures_util::future::join_all;
use std::sync::Arc;
use tenon_protocol::ids::{KeyHash, PutId};
use tenon_protocol::member::{HomeEventKind, Homes};
use tenon_protocol::message::{Committed, KeyResult};
use tenon_store_core::objects::{Proposed, Reported, Unreported, Verified};
use tokio::time::Instant;

/// A key on its way through the steps.
#[derive(Debug)]
struct Step<T> {
    index: usize,
    hash: KeyHash,
    homes: Homes,
    state: T,
}

type Outcomes = Vec<(usize, KeyResult<Committed>)>;

impl Node {
    /// Commits keys of one put that lie in this node's own memory. Answers one outcome per key, by its index.
    pub(crate) async fn commit_keys(
        self: &Arc<Self>,
        put_id: PutId,
        keys: Vec<CommitKey>,
        deadline: Instant,
    ) -> Outcomes {
        let mut outcomes = Vec::with_capacity(keys.len());
        let verified = self.verify_keys(put_id, keys, deadline, &mut outcomes).await;
        let sealed = self.propose_keys(verified, deadline, &mut outcomes).await;
        self.report_keys(sealed, deadline, &mut outcomes).await;
        outcomes
    }

    async fn verify_keys(
        &self,
        put_id: PutId,
        keys: Vec<CommitKey>,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) -> Vec<Step<Verified>> {
        let begun = keys.into_iter().map(async |key| {
            let begun = self.holder().begin_commit(put_id, &key, deadline).await;
            (key, begun)
        });
        let mut verified = Vec::new();
        for (key, begun) in join_all(begun).await {
            let CommitKey { index, hash, homes, .. } = key;
            match begun {
                Ok(Begun::Verified(state)) => verified.push(Step {
                    index,
                    hash,
                    homes,
                    state,
                }),
                Ok(Begun::Done(outcome)) => outcomes.push((index, Ok(outcome))),
                Err(error) => outcomes.push((index, Err(error))),
            }
        }
        verified
    }

    async fn propose_keys(
        self: &Arc<Self>,
        verified: Vec<Step<Verified>>,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) -> Vec<Step<Unreported>> {
        let proposals = verified
            .iter()
            .map(|step| step.decision(step.state.proposal()))
            .collect();
        let (mut sealed, mut withdrawn) = (Vec::new(), Vec::new());
        for (step, answer) in verified.into_iter().zip(self.decide(proposals, deadline).await) {
            let Step {
                index,
                hash,
                homes,
                state,
            } = step;
            match self.holder().proposed(state, answer) {
                Proposed::Sealed(state) => sealed.push(Step {
                    index,
                    hash,
                    homes,
                    state,
                }),
                Proposed::Over(outcome) => outcomes.push((index, Ok(outcome))),
                Proposed::Failed { error, withdrawal } => {
                    withdrawn.push(Decision {
                        key_hash: hash,
                        homes,
                        kind: HomeEventKind::Withdrawn(withdrawal),
                    });
                    outcomes.push((index, Err(error)));
                }
            }
        }
        self.withdraw(withdrawn);
        sealed
    }

    async fn report_keys(self: &Arc<Self>, sealed: Vec<Step<Unreported>>, deadline: Instant, outcomes: &mut Outcomes) {
        let reports = sealed
            .iter()
            .map(|step| step.decision(step.state.report(self.id())))
            .collect();
        let mut withdrawn = Vec::new();
        for (step, answer) in sealed.into_iter().zip(self.decide(reports, deadline).await) {
            match self.holder().reported(step.state, answer) {
                Reported::Done(outcome) => {
                    if outcome.degraded {
                        self.metrics().degraded();
                        self.publish(step.hash, step.homes);
                    }
                    outcomes.push((step.index, Ok(outcome)));
                }
                Reported::Failed { error, withdrawal } => {
                    match withdrawal {
                        Some(withdrawal) => {
                            withdrawn.push(Decision {
                                key_hash: step.hash,
                                homes: step.homes,
                                kind: HomeEventKind::Withdrawn(withdrawal),
                            });
                        }
                        // A home has asked for the object and may have given its question up: the object stays.
                        None => self.publish(step.hash, step.homes),
                    }
                    outcomes.push((step.index, Err(error)));
                }
            }
        }
        self.withdraw(withdrawn);
    }

    /// Tells the homes that proposals are given up, so that nobody waits for them. The answer to the put does not wait
    /// for it.
    fn withdraw(self: &Arc<Self>, withdrawals: Vec<Decision>) {
        if withdrawals.is_empty() {
            return;
        }
        let node = Arc::clone(self);
        tokio::spawn(async move {
            for answer in node.decide(withdrawals, Instant::now() + WITHDRAW_TIMEOUT).await {
                if let Err(error) = answer {
                    tracing::info!(%error, "a withdrawal did not reach the homes; they will ask the holder");
                }
            }
        });
    }
}

impl<T> Step<T> {
    fn decision(&self, kind: HomeEventKind) -> Decision {
        Decision {
            key_hash: self.hash,
            homes: self.homes,
            kind,
        }
    }
}

//! A put's commit at its holder: check the bytes, ask the homes, seal, tell the homes, and only then answer.
//!
//! It runs in a task that nobody cancels, so each of its steps has the caller's deadline and ends.

use crate::deciding::{Deciding, Decision};
use crate::holder::{Begun, CommitKey};
use crate::limits::WITHDRAW_TIMEOUT;
use crate::node::Node;
use futures_util::future::join_all;
use std::sync::Arc;
use tenon_protocol::ids::{KeyHash, NodeId, PutId};
use tenon_protocol::member::{HomeAnswer, HomeEventKind, Homes};
use tenon_protocol::message::{Committed, KeyResult};
use tenon_store_core::objects::{Proposed, Reported, Unreported, Verified};
use tokio::time::Instant;

/// A key of the batch.
#[derive(Debug, Clone, Copy)]
struct Key {
    index: usize,
    hash: KeyHash,
    homes: Homes,
}

/// What the homes are asked about a key.
enum Asked {
    /// Whether its object may become the key's.
    Proposed(Verified),
    /// To take in that it has.
    Sealed(Unreported),
}

impl Asked {
    /// What they are asked. `holder` is this node.
    fn event(&self, holder: NodeId) -> HomeEventKind {
        match self {
            Self::Proposed(verified) => verified.proposal(),
            Self::Sealed(sealed) => sealed.report(holder),
        }
    }
}

type Outcomes = Vec<(usize, KeyResult<Committed>)>;

impl Node {
    /// Commits keys of one put that lie in this node's own memory. Answers one outcome per key, by its index. Each key
    /// goes on as soon as its homes have answered for it, whatever the others wait for.
    pub(crate) async fn commit_keys(
        self: &Arc<Self>,
        put_id: PutId,
        keys: Vec<CommitKey>,
        deadline: Instant,
    ) -> Outcomes {
        let mut outcomes = Vec::with_capacity(keys.len());
        let begun = self.begin_keys(put_id, keys, deadline, &mut outcomes).await;
        let mut deciding = Deciding::new(self, deadline);
        deciding.ask(
            begun
                .into_iter()
                .map(|(key, asked)| (key.decision(asked.event(self.id())), (key, asked))),
        );
        while let Some(answered) = deciding.next().await {
            let (mut reports, mut withdrawn) = (Vec::new(), Vec::new());
            for ((key, asked), answer) in answered {
                match asked {
                    Asked::Proposed(verified) => match self.holder().proposed(verified, answer) {
                        Proposed::Sealed(sealed) => {
                            let asked = Asked::Sealed(sealed);
                            reports.push((key.decision(asked.event(self.id())), (key, asked)));
                        }
                        Proposed::Over(outcome) => outcomes.push((key.index, Ok(outcome))),
                        Proposed::Failed { error, withdrawal } => {
                            withdrawn.push(key.decision(HomeEventKind::Withdrawn(withdrawal)));
                            outcomes.push((key.index, Err(error)));
                        }
                    },
                    Asked::Sealed(sealed) => {
                        let outcome = self.reported(key, sealed, answer, &mut withdrawn);
                        outcomes.push((key.index, outcome));
                    }
                }
            }
            deciding.ask(reports);
            self.withdraw(withdrawn);
        }
        outcomes
    }

    async fn begin_keys(
        &self,
        put_id: PutId,
        keys: Vec<CommitKey>,
        deadline: Instant,
        outcomes: &mut Outcomes,
    ) -> Vec<(Key, Asked)> {
        let begun = keys.into_iter().map(async |key| {
            let begun = self.holder().begin_commit(put_id, &key, deadline).await;
            (key, begun)
        });
        let mut asked = Vec::new();
        for (key, begun) in join_all(begun).await {
            let CommitKey { index, hash, homes, .. } = key;
            let key = Key { index, hash, homes };
            match begun {
                Ok(Begun::Verified(verified)) => asked.push((key, Asked::Proposed(verified))),
                Ok(Begun::Sealed(sealed)) => asked.push((key, Asked::Sealed(sealed))),
                Ok(Begun::Done(outcome)) => outcomes.push((index, Ok(outcome))),
                Err(error) => outcomes.push((index, Err(error))),
            }
        }
        asked
    }

    /// The homes have answered to the report of a seal.
    fn reported(
        self: &Arc<Self>,
        key: Key,
        sealed: Unreported,
        answer: KeyResult<HomeAnswer>,
        withdrawn: &mut Vec<Decision>,
    ) -> KeyResult<Committed> {
        match self.holder().reported(sealed, answer) {
            Reported::Done(outcome) => {
                if outcome.degraded {
                    self.metrics().degraded();
                    self.publish(key.hash, key.homes);
                }
                Ok(outcome)
            }
            Reported::Failed { error, withdrawal } => {
                match withdrawal {
                    Some(withdrawal) => withdrawn.push(key.decision(HomeEventKind::Withdrawn(withdrawal))),
                    // The homes may not know of the object, which stays.
                    None => self.publish(key.hash, key.homes),
                }
                Err(error)
            }
        }
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

impl Key {
    fn decision(self, kind: HomeEventKind) -> Decision {
        Decision {
            key_hash: self.hash,
            homes: self.homes,
            kind,
        }
    }
}

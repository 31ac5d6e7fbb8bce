//! Copies: further replicas of objects that were committed at another holder. Their bytes are checked as those of any put; whether the object is the
//! key's still the homes say when they are told of the copy, and have it dropped if it is not.

use crate::deciding::Decision;
use crate::holder::{Begun, CommitKey};
use crate::node::Node;
use crate::peers::other_answer;
use futures_util::future::join_all;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Generation, KeyHash, NodeId, Version};
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HolderQuestionKind, HomeEventKind, Homes, MemberReply, MemberRequest,
};
use tenon_protocol::message::KeyResult;
use tokio::time::Instant;

/// A copy that is here.
#[derive(Debug, Clone, Copy)]
struct Copied {
    index: usize,
    hash: KeyHash,
    homes: Homes,
}

impl Node {
    /// Commits copies of these versions whose bytes lie in this node's own memory; one result per key, by its index. Beyond the deadline nobody waits, but what was sealed stays, and
    /// its homes are told of it.
    pub(crate) async fn commit_copies(
        self: &Arc<Self>,
        keys: Vec<(CommitKey, Version)>,
        deadline: Instant,
    ) -> Vec<(usize, KeyResult<()>)> {
        let begun = keys.into_iter().map(async |(key, version)| {
            let CommitKey { index, hash, homes, .. } = key;
            let sealed = self.seal_copy(&key, version, deadline).await;
            (Copied { index, hash, homes }, sealed)
        });
        let (mut results, mut copied) = (Vec::new(), Vec::new());
        for (copy, sealed) in join_all(begun).await {
            match sealed {
                Ok(()) => copied.push(copy),
                Err(error) => results.push((copy.index, Err(error))),
            }
        }
        results.extend(self.tell_of_copies(copied, deadline).await);
        results
    }

    /// For each object the region in which a node has it, if it is there to stay: not in a segment that drains.
    pub(crate) async fn which_stay(
        self: &Arc<Self>,
        node: NodeId,
        objects: Vec<(KeyHash, Version)>,
        deadline: Instant,
    ) -> Result<Vec<Option<Generation>>, ServiceError> {
        let ask = |(key_hash, version)| HolderQuestion {
            key_hash,
            version,
            kind: HolderQuestionKind::Stay,
        };
        let asked = objects.len();
        let questions = objects.into_iter().map(ask);
        let answers: Vec<KeyResult<HolderAnswer>> = if node == self.id() {
            questions.map(|question| self.holder().answer(&question)).collect()
        } else {
            let call = MemberRequest::Holder(questions.collect());
            match self.peers().call(node, call, deadline, "it holds the object").await? {
                MemberReply::Holder(answers) if answers.len() == asked => answers,
                _ => return Err(other_answer()),
            }
        };
        let generation = |answer| match answer {
            Ok(HolderAnswer::Stays { generation }) => generation,
            _ => None,
        };
        Ok(answers.into_iter().map(generation).collect())
    }

    async fn seal_copy(&self, key: &CommitKey, version: Version, deadline: Instant) -> KeyResult<()> {
        match self.holder().begin_commit(version.put_id, key, deadline).await? {
            Begun::Verified(verified) => match self.holder().seal_copy(verified, version.epoch) {
                true => Ok(()),
                false => Err(superseded(version)),
            },
            Begun::Done(known) if known.version == version => Ok(()),
            Begun::Done(_) => Err(superseded(version)),
            Begun::Sealed(unreported) => {
                // The put itself has sealed it here, and its homes have not said yet whether they know.
                let message = "the homes have not answered yet to the put itself";
                let error = ServiceError::new(ErrorCode::Overloaded, message);
                let _ = self.holder().reported(unreported, Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Tells homes of copies, and leaves what they have not taken to be told later.
    async fn tell_of_copies(self: &Arc<Self>, copied: Vec<Copied>, deadline: Instant) -> Vec<(usize, KeyResult<()>)> {
        let mut results = Vec::with_capacity(copied.len());
        let (mut told, mut decisions) = (Vec::new(), Vec::new());
        for copy in copied {
            let Some(entry) = self.holder().held(copy.hash) else {
                let message = "the copy was dropped at once: the object is not its key's any more";
                results.push((copy.index, Err(ServiceError::new(ErrorCode::Conflict, message))));
                continue;
            };
            told.push(copy);
            decisions.push(Decision {
                key_hash: copy.hash,
                homes: copy.homes,
                kind: HomeEventKind::Publish(entry),
            });
        }
        for (copy, answers) in told.into_iter().zip(self.tell_both(&decisions, deadline).await) {
            if answers.iter().any(Result::is_err) {
                self.publish(copy.hash, copy.homes);
            }
            // One home is enough: the other one learns of it.
            let taken = answers.into_iter().map(|answer| answer.map(drop));
            let taken = taken.reduce(|one, other| one.or(other));
            results.push((copy.index, taken.unwrap_or(Ok(()))));
        }
        results
    }
}

fn superseded(version: Version) -> ServiceError {
    let message = format!("version {version} is not the key's object any more, or was not asked for here");
    ServiceError::new(ErrorCode::Conflict, message)
}

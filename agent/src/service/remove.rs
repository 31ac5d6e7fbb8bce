//! Remove: what the homes of each key are found to know is removed by them.
//!
//! The removal names the epoch of what was found. So one that is delayed, or done again by the other home, does not
//! remove what was put under the key in between.

use super::batch::{NamedKey, Results};
use super::checks::check_batch;
use crate::deciding::Decision;
use crate::node::Node;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::Epoch;
use tenon_protocol::member::{HomeAnswer, HomeEntry, HomeEventKind};
use tenon_protocol::message::{KeyResult, KeysRequest};
use tokio::time::Instant;

impl Node {
    pub(super) async fn remove(
        self: &Arc<Self>,
        deadline: Instant,
        request: &KeysRequest,
    ) -> Result<Vec<KeyResult<bool>>, ServiceError> {
        check_batch(request.keys.len())?;
        let mut results = Results::new(request.keys.len());
        let named = self.named_keys(
            &request.namespace,
            request.keys.iter().map(String::as_str),
            &mut results,
        )?;
        let (mut indices, mut decisions) = (Vec::new(), Vec::new());
        for (key, found) in self.find(named, false, deadline).await {
            match found {
                Ok(entry) => {
                    indices.push(key.index);
                    decisions.push(removal(&key, entry.as_ref()));
                }
                Err(error) => results.set(key.index, Err(error)),
            }
        }
        for (index, answer) in indices.into_iter().zip(self.decide(decisions, deadline).await) {
            results.set(index, answer.and_then(removed));
        }
        Ok(results.finish())
    }
}

/// The removal of what a key was found to have. Also where nothing was found: it completes earlier ones.
fn removal(key: &NamedKey, found: Option<&HomeEntry>) -> Decision {
    let up_to = found.map_or(Epoch(0), |entry| entry.version.epoch);
    Decision {
        key_hash: key.hash,
        homes: key.homes,
        kind: HomeEventKind::Remove { up_to },
    }
}

fn removed(answer: HomeAnswer) -> KeyResult<bool> {
    match answer {
        HomeAnswer::Done { changed } => Ok(changed),
        other => Err(ServiceError::new(
            ErrorCode::Internal,
            format!("a home answered a removal with {other:?}"),
        )),
    }
}

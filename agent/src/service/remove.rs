//! Remove: decided by the homes of each key.

use super::batch::Results;
use super::check_batch;
use crate::home::Decision;
use crate::node::Node;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::member::{HomeAnswer, HomeEventKind};
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
        let (indices, decisions): (Vec<usize>, Vec<Decision>) = named
            .into_iter()
            .map(|key| {
                (
                    key.index,
                    Decision {
                        key_hash: key.hash,
                        homes: key.homes,
                        kind: HomeEventKind::Remove,
                    },
                )
            })
            .unzip();
        for (index, answer) in indices.into_iter().zip(self.decide(decisions, deadline).await) {
            results.set(index, answer.and_then(removed));
        }
        Ok(results.finish())
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

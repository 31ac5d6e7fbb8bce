//! Committing, until there is an answer or the time is over.

use crate::batch;
use crate::client::Core;
use crate::control::{Answer, check_count, unexpected};
use crate::error::ClientError;
use crate::limits::{COMMIT_RETRY_PAUSE_MS, COMMIT_UNAVAILABLE_TRIES_MAX};
use crate::put::Attempt;
use std::collections::HashMap;
use std::time::Duration;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{CommitItem, CommitRequest, Committed, KeyResult, Reply, Request};
use tokio::time::{Instant, sleep_until};

/// One object that was written and is to be sealed.
#[derive(Debug, Clone)]
pub(crate) struct Sealing {
    /// Its index in the caller's batch.
    pub(crate) at: usize,
    pub(crate) key: String,
    pub(crate) holders: Vec<NodeId>,
    pub(crate) checksums: Checksums,
}

impl Sealing {
    fn len_bytes(&self) -> usize {
        // 10 bytes are the longest encoding of a 64-bit number.
        self.key.len() + 16 * self.holders.len() + 10 * self.checksums.pieces.len() + 64
    }

    fn item(&self, attempt: &Attempt) -> CommitItem {
        CommitItem {
            key: self.key.clone(),
            holders: self.holders.clone(),
            checksums: self.checksums.clone(),
            fingerprint: attempt.options.fingerprint.clone(),
        }
    }
}

/// The result of one object with its index in the caller's batch.
pub(crate) type Sealed = (usize, Result<Committed, ClientError>);

/// What one try left of one object: decided, or why it has to be asked again.
enum Tried {
    Decided(Result<Committed, ClientError>),
    Open(ClientError),
}

impl Core {
    /// Commits what was written. A lost answer is asked for again under the same put id, which gets the outcome of the first: the put is
    /// wholly there or wholly gone, and this learns which if the time allows.
    pub(crate) async fn commit(&self, attempt: &Attempt, written: Vec<Sealing>) -> Vec<Sealed> {
        let frames = batch::frames(written, Sealing::len_bytes);
        batch::send_all(frames, |frame| self.commit_frame(attempt, frame)).await
    }

    async fn commit_frame(&self, attempt: &Attempt, mut open: Vec<Sealing>) -> Vec<Sealed> {
        let mut sealed = Vec::with_capacity(open.len());
        let mut earlier: HashMap<usize, ClientError> = HashMap::new();
        let mut unavailable_tries = 0;
        loop {
            let tried = self.try_commit(attempt, &open).await;
            let mut again = Vec::new();
            let mut still_open = Vec::new();
            for (sealing, tried) in open.into_iter().zip(tried) {
                match tried {
                    // What failed earlier has left nothing behind: that is why the put is not known now.
                    Tried::Decided(Err(error)) if error.code() == ErrorCode::UnknownPut => {
                        let error = earlier.remove(&sealing.at).unwrap_or(error);
                        sealed.push((sealing.at, Err(error)));
                    }
                    Tried::Decided(result) => sealed.push((sealing.at, result)),
                    Tried::Open(error) => {
                        earlier.insert(sealing.at, error.clone());
                        again.push((sealing.at, Err(error)));
                        still_open.push(sealing);
                    }
                }
            }
            unavailable_tries += 1;
            let pause_end = Instant::now() + Duration::from_millis(COMMIT_RETRY_PAUSE_MS);
            let holder_is_gone =
                unavailable_tries >= COMMIT_UNAVAILABLE_TRIES_MAX && again.iter().all(is_holder_unavailable);
            if still_open.is_empty() || holder_is_gone || pause_end >= attempt.deadline {
                sealed.extend(again);
                return sealed;
            }
            sleep_until(pause_end).await;
            open = still_open;
        }
    }

    async fn try_commit(&self, attempt: &Attempt, open: &[Sealing]) -> Vec<Tried> {
        let request = Request::Commit(CommitRequest {
            namespace: attempt.namespace.to_string(),
            put_id: attempt.put_id,
            items: open.iter().map(|sealing| sealing.item(attempt)).collect(),
        });
        // Most of the time that is left: a broken link says so at once, and a holder that waits for a home which does not
        // answer needs its time to go on without it. The rest is for asking again after a lost answer.
        let left = attempt.deadline.saturating_duration_since(Instant::now());
        let try_deadline = attempt.deadline - left / 8;
        let all =
            |tried: fn(ClientError) -> Tried, error: ClientError| open.iter().map(|_| tried(error.clone())).collect();
        let failed = |error| Tried::Decided(Err(error));
        match self.service.ask(request, try_deadline).await {
            Answer::Reply(Reply::Commit(items)) => match check_count("commit", open.len(), items.len()) {
                Ok(()) => items.into_iter().map(tried).collect(),
                Err(error) => all(failed, error),
            },
            Answer::Reply(other) => all(failed, unexpected("commit", &other)),
            Answer::Failed(error) if error.leaves_open() => all(Tried::Open, error.into()),
            Answer::Lost(error) if error.leaves_open() => all(Tried::Open, error.of_unknown_put(attempt.put_id).into()),
            Answer::Failed(error) | Answer::Lost(error) => all(failed, error.into()),
            Answer::TimedOut => {
                let put_id = attempt.put_id;
                let during = format!("waiting for the outcome of put {put_id}, which is wholly there or wholly gone");
                all(Tried::Open, ClientError::deadline(during))
            }
        }
    }
}

fn tried(item: KeyResult<Committed>) -> Tried {
    match item {
        Err(error) if error.leaves_open() => Tried::Open(error.into()),
        item => Tried::Decided(item.map_err(ClientError::from)),
    }
}

/// Whether the agent has answered that a holder does not answer.
fn is_holder_unavailable((_, result): &Sealed) -> bool {
    matches!(result, Err(ClientError::Unavailable { node: Some(_), .. }))
}

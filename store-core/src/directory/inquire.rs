//! Whether an object is still there: its holders are asked one after the other, until one has it.

use super::entry::Object;
use super::{Directory, is_gone, wrong_answer};
use std::collections::VecDeque;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{KeyHash, Version};
use tenon_protocol::member::{HolderAnswer, HolderQuestionKind};
use tenon_protocol::message::{KeyResult, Replica};

/// How far the asking has come.
#[derive(Debug)]
pub(super) struct Inquiry {
    pub(super) version: Version,
    /// Whose answer is waited for.
    asked: Option<Replica>,
    /// To be asked after it.
    left: VecDeque<Replica>,
    /// Why it could not be said of one of them.
    failure: Option<ServiceError>,
}

/// What the holders said together.
#[derive(Debug)]
pub(super) enum Verdict {
    /// One of them has it.
    Held,
    /// None of them has it.
    NotHeld,
    /// None is known to have it, and one could not say.
    Failed(ServiceError),
}

impl Inquiry {
    pub(super) fn of(object: &Object) -> Self {
        Self {
            version: object.version,
            asked: None,
            left: object.replicas.iter().copied().collect(),
            failure: None,
        }
    }
}

impl Directory {
    /// Asks the next holder. `None` says that its answer is to be waited for.
    pub(super) fn inquire(&mut self, key: KeyHash, inquiry: &mut Inquiry) -> Option<Verdict> {
        if let Some(replica) = inquiry.left.pop_front() {
            inquiry.asked = Some(replica);
            self.ask_holder(key, replica.holder, inquiry.version, HolderQuestionKind::Confirm);
            return None;
        }
        Some(inquiry.failure.take().map_or(Verdict::NotHeld, Verdict::Failed))
    }

    /// A holder has answered, or not: the verdict, or the next is asked.
    pub(super) fn inquired(
        &mut self,
        key: KeyHash,
        inquiry: &mut Inquiry,
        answer: Option<KeyResult<HolderAnswer>>,
    ) -> Option<Verdict> {
        let failure = match (answer, inquiry.asked) {
            (Some(Ok(HolderAnswer::Confirmed { held: true })), _) => return Some(Verdict::Held),
            (Some(Ok(HolderAnswer::Confirmed { held: false })), _) => None,
            (Some(Ok(HolderAnswer::Dropped | HolderAnswer::Stays { .. })), _) => Some(wrong_answer()),
            (Some(Err(error)), _) => Some(error),
            (None, Some(asked)) if !is_gone(&self.lives, &asked) => Some(ServiceError::unavailable(
                asked.holder,
                "it holds the object that the key has",
            )),
            (None, _) => None,
        };
        inquiry.failure = inquiry.failure.take().or(failure);
        self.inquire(key, inquiry)
    }
}

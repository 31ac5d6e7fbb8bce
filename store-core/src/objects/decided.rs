//! What the homes' answers make of a commit.

use super::{Accepted, Holder, SegmentTable, Unreported, Verified};
use crate::planted::{Bug, is_planted};
use crate::time::Time;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::Epoch;
use tenon_protocol::member::{HomeAnswer, Withdrawal};
use tenon_protocol::message::{Committed, KeyResult};

/// A commit after the homes were asked.
#[derive(Debug)]
#[must_use = "the commit stays in progress"]
pub enum Proposed {
    /// They have accepted, and the object is sealed: now they are to be told.
    Sealed(Unreported),
    /// The key has an object already.
    Over(Committed),
    /// The put has failed.
    Failed {
        /// Why.
        error: ServiceError,
        /// What the homes are to be told, which may wait for it.
        withdrawal: Withdrawal,
    },
}

/// A commit after the homes were told of its seal.
#[derive(Debug)]
pub enum Reported {
    /// The put is done.
    Done(Committed),
    /// The put has failed, or is not known to be done.
    Failed {
        /// Why.
        error: ServiceError,
        /// The object was dropped, and the homes are to be told. `None`: it stays, and the homes are to be told of it
        /// until they have taken it in.
        withdrawal: Option<Withdrawal>,
    },
}

impl<T: SegmentTable> Holder<T> {
    /// The homes have answered to [`Verified::proposal`].
    pub fn proposed(
        &mut self,
        now: Time,
        verified: Verified,
        answer: KeyResult<HomeAnswer>,
        sealed_unix_ms: u64,
    ) -> Proposed {
        let withdrawal = verified.withdrawal();
        match answer {
            Ok(HomeAnswer::Accepted { version, degraded }) => match self.present(&verified) {
                // Another region of the same put.
                Some(present) if present == version => Proposed::Over(self.yield_to(now, verified, version, degraded)),
                // What the homes accept comes after what they know of: they have decided for the one that is here since
                // then, and the answer is late.
                Some(present) if present.epoch >= version.epoch => {
                    self.abandon(verified);
                    let message = "another object of the key was sealed here since the homes accepted this one";
                    let error = ServiceError::new(ErrorCode::Conflict, message);
                    Proposed::Failed { error, withdrawal }
                }
                _ => {
                    let epoch = version.epoch;
                    Proposed::Sealed(self.seal(verified, Accepted { epoch, degraded }, sealed_unix_ms))
                }
            },
            Ok(HomeAnswer::AlreadyExists { version, degraded }) => {
                Proposed::Over(self.yield_to(now, verified, version, degraded))
            }
            Ok(other) => {
                self.abandon(verified);
                let error = unexpected(&other);
                Proposed::Failed { error, withdrawal }
            }
            Err(_) if is_planted(Bug::SealsUnaccepted) => {
                let accepted = Accepted {
                    epoch: Epoch(1),
                    degraded: true,
                };
                Proposed::Sealed(self.seal(verified, accepted, sealed_unix_ms))
            }
            Err(error) => {
                self.abandon(verified);
                Proposed::Failed { error, withdrawal }
            }
        }
    }

    /// The homes have answered to the report of [`Unreported::version`].
    pub fn reported(&mut self, now: Time, unreported: Unreported, answer: KeyResult<HomeAnswer>) -> Reported {
        let error = match answer {
            Ok(HomeAnswer::Done { .. }) => return Reported::Done(self.report(now, unreported)),
            // Another try of the put, elsewhere, has become the key's object.
            Ok(HomeAnswer::AlreadyExists { version, .. }) if version == unreported.version() => {
                return Reported::Done(self.retract_for_another_try(now, unreported));
            }
            Ok(other) => unexpected(&other),
            Err(error) => error,
        };
        if error.code != ErrorCode::Conflict {
            let put_id = unreported.version().put_id;
            self.keep_unanswered(unreported);
            return Reported::Failed {
                error: error.of_unknown_put(put_id),
                withdrawal: None,
            };
        }
        let withdrawal = Some(unreported.withdrawal(self.config.node));
        // A home that had the object dropped meanwhile had taken the seal: the put was stored, and then removed.
        match self.retract(now, unreported) {
            Some(stored) => Reported::Done(stored),
            None => Reported::Failed { error, withdrawal },
        }
    }
}

fn unexpected(answer: &HomeAnswer) -> ServiceError {
    ServiceError::new(ErrorCode::Internal, format!("a home answered a commit with {answer:?}"))
}

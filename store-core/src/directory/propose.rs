//! Proposals: which put's object becomes the key's.

use super::entry::{Object, Pending};
use super::work::{Asker, Confirm, Decision, Job, JobKind, Mirrored, Proposal, Step};
use super::{Directory, is_gone, wrong_answer};
use crate::limits::{DIRECTORY_KEYS_MAX, PENDING_CHECK_MS};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, KeyHash, NodeId, PutId, Version};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::{HolderAnswer, HolderQuestionKind, HomeAnswer};
use tenon_protocol::message::{Committed, KeyResult, PutOutcome};

impl Directory {
    /// A holder proposes an object.
    pub(super) fn propose(&mut self, key: KeyHash, asker: Asker, proposal: Proposal) {
        if let Err(error) = self.check_proposal(&proposal) {
            return self.reply(asker.token, Err(error));
        }
        if let Some(pending) = self.entries.pending(key) {
            if !proposal.is_for(&pending.object) {
                let kind = JobKind::Propose(proposal);
                self.work.entry(key).or_default().parked.push_back(Job { asker, kind });
                return self.hasten_check(key);
            }
            let answer = HomeAnswer::Accepted {
                version: pending.object.version,
                degraded: pending.degraded,
            };
            return self.reply(asker.token, Ok(answer));
        }
        if let Some(object) = self.entries.sealed(key) {
            let confirm = Confirm {
                version: object.version,
                left: object.replicas.iter().copied().collect(),
                asked: None,
                failure: None,
            };
            return self.confirm(key, asker, proposal, confirm);
        }
        match self.outcomes.get(self.now, proposal.put_id, key) {
            // It has ended before, and what the key had then was removed since.
            Some(known) => {
                let answer = HomeAnswer::AlreadyExists {
                    version: known.version,
                    degraded: known.degraded,
                };
                self.reply(asker.token, Ok(answer));
            }
            None => self.accept(key, asker, proposal),
        }
    }

    fn check_proposal(&mut self, proposal: &Proposal) -> Result<(), ServiceError> {
        let replicas = &proposal.replicas;
        if replicas.is_empty() || replicas.len() > REPLICAS_MAX.into() {
            let message = format!(
                "an object with {} replicas: 1 to {REPLICAS_MAX} are allowed",
                replicas.len()
            );
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        match replicas.iter().find(|replica| is_gone(&self.lives, replica)) {
            Some(gone) => {
                let message = format!("node {} has begun another life since", gone.holder);
                Err(ServiceError::new(ErrorCode::Conflict, message))
            }
            None => Ok(()),
        }
    }

    /// The key has an object: asks its holders one after the other whether they have it still. If none of them has, the
    /// proposal goes on.
    fn confirm(&mut self, key: KeyHash, asker: Asker, mut proposal: Proposal, mut confirm: Confirm) {
        if let Some(replica) = confirm.left.pop_front() {
            confirm.asked = Some(replica);
            self.ask_holder(key, replica.holder, confirm.version, HolderQuestionKind::Confirm);
            return self.wait(key, asker, Step::Confirm(proposal, confirm));
        }
        if let Some(failure) = confirm.failure {
            return self.reply(asker.token, Err(failure));
        }
        proposal.epoch_min = proposal.epoch_min.max(confirm.version.epoch.0 + 1);
        self.outcomes.forget(proposal.put_id, key);
        self.entries.change(key, |entry| entry.sealed = None);
        self.accept(key, asker, proposal);
    }

    /// A holder has answered, or not, whether it has the key's object still.
    pub(super) fn confirmed(
        &mut self,
        key: KeyHash,
        asker: Asker,
        proposal: Proposal,
        mut confirm: Confirm,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let failure = match (answer, confirm.asked) {
            (Some(Ok(HolderAnswer::Confirmed { held: true })), _) => {
                return self.exists(key, asker, proposal.put_id, confirm.version);
            }
            (Some(Ok(HolderAnswer::Confirmed { held: false })), _) => None,
            (Some(Ok(HolderAnswer::Dropped)), _) => Some(wrong_answer()),
            (Some(Err(error)), _) => Some(error),
            (None, Some(asked)) if !is_gone(&self.lives, &asked) => Some(ServiceError::unavailable(
                asked.holder,
                "it holds the object that the key has",
            )),
            (None, _) => None,
        };
        confirm.failure = confirm.failure.or(failure);
        self.confirm(key, asker, proposal, confirm);
    }

    fn exists(&mut self, key: KeyHash, asker: Asker, put_id: PutId, version: Version) {
        let degraded = asker.homes.first != self.node;
        let outcome = if version.put_id == put_id {
            PutOutcome::Stored
        } else {
            PutOutcome::AlreadyExists
        };
        let known = Committed {
            outcome,
            version,
            degraded,
        };
        self.outcomes.remember(self.now, put_id, key, known);
        self.reply(asker.token, Ok(HomeAnswer::AlreadyExists { version, degraded }));
    }

    /// Accepts a proposal for a key that has no object, and tells the partner.
    fn accept(&mut self, key: KeyHash, asker: Asker, proposal: Proposal) {
        if asker.token.is_none() {
            return;
        }
        if self.entries.len() >= DIRECTORY_KEYS_MAX {
            let message = format!("this home keeps entries of {DIRECTORY_KEYS_MAX} keys; more are not allowed");
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Overloaded, message)));
        }
        let version = Version {
            epoch: Epoch(proposal.epoch_min.max(self.tombstones.epoch(key))),
            put_id: proposal.put_id,
        };
        let pending = Pending {
            object: Object {
                version,
                len_bytes: proposal.len_bytes,
                replicas: proposal.replicas.clone(),
            },
            homes: asker.homes,
            is_own: true,
            degraded: false,
            check_at: self.now.after_ms(PENDING_CHECK_MS),
        };
        self.set_pending(key, Some(pending));
        self.mirror(key, asker, Decision::Accepted(proposal));
    }

    /// The partner has been told of an accepted object: now the holder may seal it.
    pub(super) fn accepted(&mut self, key: KeyHash, asker: Asker, mut proposal: Proposal, mirrored: Mirrored) {
        let accepted = self.entries.change(key, |entry| {
            let pending = entry
                .pending
                .as_mut()
                .filter(|pending| proposal.is_for(&pending.object));
            pending.map(|pending| {
                pending.degraded = matches!(mirrored, Mirrored::Alone { degraded: true });
                (pending.object.version, pending.degraded)
            })
        });
        let Some((version, degraded)) = accepted else {
            let message = "the holder has begun another life since it proposed";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        };
        match mirrored {
            Mirrored::Told | Mirrored::Alone { .. } => {
                self.reply(asker.token, Ok(HomeAnswer::Accepted { version, degraded }));
            }
            Mirrored::Refused(error) => {
                self.set_pending(key, None);
                self.reply(asker.token, Err(error));
            }
            Mirrored::Objected(_) if proposal.was_objected => {
                self.set_pending(key, None);
                let message = "the homes of the key do not agree on its object";
                self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
            }
            Mirrored::Objected(object) => {
                proposal.was_objected = true;
                proposal.epoch_min = object.version.epoch.0 + 1;
                self.set_pending(key, None);
                self.entries.change(key, |entry| entry.sealed = Some(object));
                self.lose_the_dead(key);
                self.propose(key, asker, proposal);
            }
        }
    }

    /// A holder has given a put up: what it proposed and is not begun yet is not begun.
    pub(super) fn cancel_proposals(&mut self, key: KeyHash, put_id: PutId, holder: NodeId) {
        let Some(work) = self.work.get_mut(&key) else { return };
        let mut cancelled = Vec::new();
        for jobs in [&mut work.queue, &mut work.parked] {
            jobs.retain(|job| {
                let is_cancelled = matches!(&job.kind, JobKind::Propose(proposal)
                    if proposal.put_id == put_id && proposal.replicas.iter().any(|replica| replica.holder == holder));
                if is_cancelled {
                    cancelled.push(job.asker.token);
                }
                !is_cancelled
            });
        }
        for token in cancelled {
            let message = "the holder has withdrawn its proposal";
            self.reply(token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
    }

    /// Sets or takes away what is accepted and not sealed; answers what was.
    pub(super) fn set_pending(&mut self, key: KeyHash, pending: Option<Pending>) -> Option<Box<Pending>> {
        let check_at = pending.as_ref().map(|pending| pending.check_at);
        let before = self.entries.change(key, |entry| {
            std::mem::replace(&mut entry.pending, pending.map(Box::new))
        });
        if let Some(before) = &before {
            self.checks.remove(&(before.check_at, key));
        }
        if let Some(check_at) = check_at {
            self.checks.insert((check_at, key));
        }
        before
    }
}

impl Proposal {
    /// Whether this very region was accepted already.
    fn is_for(&self, object: &Object) -> bool {
        object.version.put_id == self.put_id && object.replicas == self.replicas
    }
}

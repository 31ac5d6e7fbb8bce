//! Proposals: which put's object becomes the key's.

use super::entry::{Object, Pending, is_region_of};
use super::inquire::{Inquiry, Verdict};
use super::work::{Asker, Decision, Job, JobKind, Mirrored, Proposal, Step};
use super::{Directory, is_gone};
use crate::limits::{DIRECTORY_KEYS_MAX, PENDING_CHECK_MS};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, KeyHash, PutId, Version};
use tenon_protocol::limits::REPLICAS_MAX;
use tenon_protocol::member::{HolderAnswer, HomeAnswer, PutEnd, Withdrawal};
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
                self.work.entry(key).or_default().parked.push_back(Job::of(asker, kind));
                return self.hasten_check(key);
            }
            let answer = HomeAnswer::Accepted {
                version: pending.object.version,
                degraded: pending.degraded,
            };
            return self.reply(asker.token, Ok(answer));
        }
        if let Some(known) = self.outcomes.get(self.now, proposal.put_id, key) {
            // It has ended before, whatever became of the key since.
            let answer = HomeAnswer::AlreadyExists {
                version: known.version,
                degraded: known.degraded,
            };
            return self.reply(asker.token, Ok(answer));
        }
        match self.entries.sealed(key) {
            Some(object) if proposal.replace && object.version.put_id != proposal.put_id => {
                let epoch_min = proposal.epoch_min.max(object.version.epoch.0 + 1);
                self.accept(key, asker, Proposal { epoch_min, ..proposal });
            }
            Some(object) => {
                let mut inquiry = Inquiry::of(&object);
                let verdict = self.inquire(key, &mut inquiry);
                self.decide_proposal(key, asker, proposal, inquiry, verdict);
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

    /// A holder has answered, or not, whether it has the key's object still.
    pub(super) fn confirmed(
        &mut self,
        key: KeyHash,
        asker: Asker,
        proposal: Proposal,
        mut inquiry: Inquiry,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let verdict = self.inquired(key, &mut inquiry, answer);
        self.decide_proposal(key, asker, proposal, inquiry, verdict);
    }

    /// The key has an object: if a holder has it still, it stays; if none has it, the proposal goes on.
    fn decide_proposal(
        &mut self,
        key: KeyHash,
        asker: Asker,
        mut proposal: Proposal,
        inquiry: Inquiry,
        verdict: Option<Verdict>,
    ) {
        let version = inquiry.version;
        match verdict {
            None => self.wait(key, asker, Step::Confirm(proposal, inquiry)),
            Some(Verdict::Held) => self.exists(key, asker, proposal.put_id, version),
            Some(Verdict::Failed(failure)) => self.reply(asker.token, Err(failure)),
            // Nobody waits any more: the partner would not be told that the object is gone.
            Some(Verdict::NotHeld) if asker.token.is_none() => {}
            Some(Verdict::NotHeld) => {
                proposal.epoch_min = proposal.epoch_min.max(version.epoch.0 + 1);
                proposal.gone = Some(version);
                self.entries.change(key, |entry| entry.sealed = None);
                self.accept(key, asker, proposal);
            }
        }
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
            copies: 0,
        };
        self.outcomes.remember(self.now, put_id, key, known);
        let end = PutEnd { put_id, outcome: known };
        self.mirror(key, asker, Decision::Exists(end));
    }

    /// The partner has been told, or not, how a put has ended. It stands in any case.
    pub(super) fn end_told(&mut self, key: KeyHash, asker: Asker, end: PutEnd, mirrored: &Mirrored) {
        if let Mirrored::Objected(object) = mirrored
            && self.entries.sealed(key).is_none()
        {
            let object = Object::new(asker.homes, object.clone());
            self.entries.change(key, |entry| entry.sealed = Some(object));
        }
        let (version, degraded) = match mirrored {
            // It knows of an earlier try.
            Mirrored::Ended { version, degraded } => {
                self.outcomes.forget(end.put_id, key);
                (*version, *degraded)
            }
            _ => {
                let alone = matches!(mirrored, Mirrored::Alone { degraded: true });
                (end.outcome.version, end.outcome.degraded || alone)
            }
        };
        self.reply(asker.token, Ok(HomeAnswer::AlreadyExists { version, degraded }));
    }

    /// The put of a sealed object has ended well.
    pub(super) fn remember_stored(&mut self, key: KeyHash, version: Version) {
        let stored = Committed {
            outcome: PutOutcome::Stored,
            version,
            degraded: false,
            copies: 0,
        };
        self.outcomes.remember(self.now, version.put_id, key, stored);
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
        if version.epoch > Epoch(1) && self.entries.sealed(key).is_none() {
            // The partner may take it for sealed when it is lost here already: what comes after must not be below it.
            self.tombstones.raise(self.now, key, asker.homes, version.epoch.0, []);
        }
        let pending = Pending {
            object: Object {
                homes: asker.homes,
                version,
                len_bytes: proposal.len_bytes,
                replicas: proposal.replicas.clone(),
            },
            is_own: true,
            degraded: false,
            check_at: self.now.after_ms(PENDING_CHECK_MS),
        };
        self.set_pending(key, Some(pending));
        self.mirror(key, asker, Decision::Accepted(proposal));
    }

    /// The partner has been told of an accepted object: now the holder may seal it.
    pub(super) fn accepted(&mut self, key: KeyHash, asker: Asker, mut proposal: Proposal, mirrored: Mirrored) {
        if let Mirrored::Behind(_) = mirrored {
            if proposal.was_objected {
                return self.disagree(asker);
            }
            proposal.was_objected = true;
            return self.propose(key, asker, proposal);
        }
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
                self.disagree(asker);
            }
            Mirrored::Behind(_) => unreachable!("it was handled before"),
            Mirrored::Ended { version, degraded } => {
                self.set_pending(key, None);
                self.reply(asker.token, Ok(HomeAnswer::AlreadyExists { version, degraded }));
            }
            Mirrored::Objected(object) => {
                proposal.was_objected = true;
                proposal.epoch_min = object.version.epoch.0 + 1;
                self.set_pending(key, None);
                self.set_sealed(key, Object::new(asker.homes, object));
                self.lose_the_dead(key);
                self.propose(key, asker, proposal);
            }
        }
    }

    fn disagree(&mut self, asker: Asker) {
        let message = "the homes of the key do not agree on its object";
        self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
    }

    /// A holder has given a put up: what it proposed and is not begun yet is not begun.
    pub(super) fn cancel_proposals(&mut self, key: KeyHash, withdrawal: Withdrawal) {
        let mut cancelled = Vec::new();
        let mut is_cancelled = |job: &Job| {
            let is_meant = matches!(&job.kind, JobKind::Propose(proposal)
                if proposal.put_id == withdrawal.put_id
                    && proposal.replicas.iter().any(|replica| is_region_of(replica, &withdrawal)));
            if is_meant {
                cancelled.push(job.asker.token);
            }
            is_meant
        };
        self.waiting.retain(|(other, job)| *other != key || !is_cancelled(job));
        if let Some(work) = self.work.get_mut(&key) {
            for jobs in [&mut work.queue, &mut work.parked] {
                jobs.retain(|job| !is_cancelled(job));
            }
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

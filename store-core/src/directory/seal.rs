//! After a proposal was accepted: its seal, its withdrawal, and what is done if neither is reported.

use super::Directory;
use super::work::{Asker, Decision, Job, JobKind, Mirrored, Step};
use crate::limits::PENDING_CHECK_MS;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{KeyHash, NodeId, PutId, Version};
use tenon_protocol::member::{HolderAnswer, HolderQuestionKind, HomeAnswer};
use tenon_protocol::message::{Committed, KeyResult, PutOutcome};

impl Directory {
    /// The holder has sealed what was accepted.
    pub(super) fn sealed(&mut self, key: KeyHash, asker: Asker, version: Version) {
        if self.entries.sealed(key).is_some_and(|object| object.version == version) {
            return self.reply(asker.token, Ok(HomeAnswer::Done { changed: false }));
        }
        if !self.promote(key, version) {
            let message = format!("version {version} is not accepted for the key, or not any more");
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        self.mirror(key, asker, Decision::Sealed(version), 0);
    }

    /// Makes the accepted object of this version the key's. False if there is none.
    fn promote(&mut self, key: KeyHash, version: Version) -> bool {
        if self
            .entries
            .pending(key)
            .is_none_or(|pending| pending.object.version != version)
        {
            return false;
        }
        let pending = self.set_pending(key, None).expect("it was just seen");
        self.entries.change(key, |entry| entry.sealed = Some(pending.object));
        true
    }

    /// The partner has been told of a sealed object.
    pub(super) fn seal_told(&mut self, key: KeyHash, asker: Asker, version: Version, mirrored: Mirrored) {
        if let Mirrored::Objected(object) = mirrored {
            self.entries.change(key, |entry| entry.sealed = Some(object));
            let message = "the second home had accepted another object while it did not reach the first";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        let degraded = matches!(mirrored, Mirrored::Alone { degraded: true });
        let stored = Committed {
            outcome: PutOutcome::Stored,
            version,
            degraded,
        };
        self.outcomes.remember(self.now, version.put_id, key, stored);
        self.reply(asker.token, Ok(HomeAnswer::Done { changed: true }));
    }

    /// A holder has given up a put's proposal, or dropped its object.
    pub(super) fn withdrawn(&mut self, key: KeyHash, asker: Asker, put_id: PutId, holder: NodeId) {
        self.outcomes.forget(put_id, key);
        let is_pending = self
            .entries
            .pending(key)
            .is_some_and(|pending| pending.object.version.put_id == put_id && pending.object.is_on(holder));
        if is_pending {
            self.set_pending(key, None);
        }
        let lost = self.entries.change(key, |entry| {
            let object = entry.sealed.as_mut()?;
            let version = object.version;
            if version.put_id != put_id || !object.is_on(holder) {
                return None;
            }
            if object.lose(|replica| replica.holder == holder) {
                entry.sealed = None;
                return Some(version.epoch.0 + 1);
            }
            Some(0)
        });
        match lost {
            None if !is_pending => self.reply(asker.token, Ok(HomeAnswer::Done { changed: false })),
            lost => self.mirror(key, asker, Decision::Withdrawn, lost.unwrap_or(0)),
        }
    }

    /// An accepted object was not heard of for too long: its holder is to be asked.
    pub(super) fn check_pending(&mut self, key: KeyHash) {
        let Some(pending) = self.entries.pending(key) else {
            unreachable!("only pending objects are checked");
        };
        let asker = Asker {
            token: None,
            homes: pending.homes,
        };
        self.postpone_check(key);
        let kind = JobKind::Check;
        self.submit(key, Job { asker, kind });
    }

    fn postpone_check(&mut self, key: KeyHash) {
        if let Some(mut pending) = self.set_pending(key, None) {
            pending.check_at = self.now.after_ms(PENDING_CHECK_MS);
            self.set_pending(key, Some(*pending));
        }
    }

    pub(super) fn check(&mut self, key: KeyHash, asker: Asker) {
        if let Some(pending) = self.entries.pending(key) {
            let (holder, version) = (pending.object.replicas[0].holder, pending.object.version);
            self.ask_holder(key, holder, version, HolderQuestionKind::Confirm);
            self.wait(key, asker, Step::Check);
        }
    }

    /// The holder of a pending object has answered whether it is sealed. If it is not after so long, or does not answer, the object is withdrawn: should
    /// its holder report the seal after all, it learns that and drops it.
    pub(super) fn checked(&mut self, key: KeyHash, asker: Asker, answer: Option<KeyResult<HolderAnswer>>) {
        let Some(version) = self.entries.pending(key).map(|pending| pending.object.version) else {
            return;
        };
        match answer {
            Some(Ok(HolderAnswer::Confirmed { held: true })) => {
                self.promote(key, version);
            }
            None | Some(Ok(HolderAnswer::Confirmed { held: false })) => {
                self.set_pending(key, None);
            }
            // It was reached and could not say: it is asked again at the next check.
            Some(Ok(HolderAnswer::Dropped) | Err(_)) => return,
        }
        self.mirror(key, asker, Decision::Checked, 0);
    }
}

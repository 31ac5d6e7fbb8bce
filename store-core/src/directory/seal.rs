//! After a proposal was accepted: its seal, its withdrawal, and what is done if neither is reported.

use super::Directory;
use super::entry::{Object, is_region_of};
use super::work::{Asker, Decision, Job, JobKind, Mirrored, Seal, Step};
use crate::limits::{CONTESTED_CHECK_MS, PENDING_CHECK_MS};
use crate::time::Time;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{KeyHash, Version};
use tenon_protocol::member::{HolderAnswer, HolderQuestionKind, HomeAnswer, Withdrawal};
use tenon_protocol::message::{Committed, KeyResult, PutOutcome};

impl Directory {
    /// The holder has sealed what was accepted.
    pub(super) fn sealed(&mut self, key: KeyHash, asker: Asker, seal: Seal) {
        let version = seal.version;
        let present = self.entries.sealed(key).filter(|object| object.version == version);
        // An announcement may have told of it before: then the partner is not told yet.
        let is_known = present.as_ref().is_some_and(|object| seal.is_of(object));
        let is_pending = self
            .entries
            .pending(key)
            .is_some_and(|pending| seal.is_of(&pending.object));
        if !is_known && !is_pending {
            let degraded = asker.homes.first != self.node;
            return match present {
                // Another try of the put, elsewhere, is the key's object: this one is to be dropped.
                Some(_) => self.reply(asker.token, Ok(HomeAnswer::AlreadyExists { version, degraded })),
                None => self.not_accepted(asker, version),
            };
        }
        let changed = !is_known;
        let replace = seal.replace;
        let decision = Decision::Sealed {
            version,
            changed,
            replace,
        };
        self.mirror(key, asker, decision);
    }

    fn is_accepted(&self, key: KeyHash, version: Version) -> bool {
        let pending = self.entries.pending(key);
        pending.is_some_and(|pending| pending.object.version == version)
    }

    fn not_accepted(&mut self, asker: Asker, version: Version) {
        let message = format!("version {version} is not accepted for the key, or not any more");
        self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
    }

    /// Makes the accepted object of this version the key's. False if there is none.
    fn promote(&mut self, key: KeyHash, version: Version) -> bool {
        if !self.is_accepted(key, version) {
            return false;
        }
        let pending = self.set_pending(key, None).expect("it was just seen");
        self.set_sealed(key, pending.object);
        true
    }

    /// The partner has been told of a sealed object, or is lost: only now it is the key's here. Until then the partner may
    /// have decided otherwise while it took this home for lost.
    pub(super) fn seal_told(
        &mut self,
        key: KeyHash,
        asker: Asker,
        (version, changed, replace): (Version, bool, bool),
        mirrored: Mirrored,
    ) {
        if changed && matches!(mirrored, Mirrored::Objected(_) | Mirrored::Behind(_)) && self.is_accepted(key, version)
        {
            self.set_pending(key, None);
        }
        if let Mirrored::Objected(object) = mirrored {
            self.set_sealed(key, Object::new(asker.homes, object));
            let message = "the second home had accepted another object while it did not reach the first";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        if let Mirrored::Behind(_) = mirrored {
            let message = "the second home had removed the key's object while it did not reach the first";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        if changed && !self.promote(key, version) {
            return self.not_accepted(asker, version);
        }
        if self.is_accepted(key, version) {
            // It was told of by others before it was reported.
            self.set_pending(key, None);
        }
        let degraded = matches!(mirrored, Mirrored::Alone { degraded: true });
        let stored = Committed {
            outcome: PutOutcome::Stored,
            version,
            degraded,
            copies: 0,
        };
        self.outcomes.remember(self.now, version.put_id, key, stored);
        if replace {
            return self.drop_owed(key, asker, changed);
        }
        self.reply(asker.token, Ok(HomeAnswer::Done { changed }));
    }

    /// A holder has given up a put's proposal, or dropped its object.
    pub(super) fn withdrawn(&mut self, key: KeyHash, asker: Asker, withdrawal: Withdrawal) {
        let is_pending = self
            .entries
            .pending(key)
            .is_some_and(|pending| pending.object.is_withdrawn_by(&withdrawal));
        if is_pending {
            self.set_pending(key, None);
        }
        let (is_changed, lost) = self.entries.change(key, |entry| {
            let is_meant = |object: &&mut Object| object.is_withdrawn_by(&withdrawal);
            let Some(object) = entry.sealed.as_mut().filter(is_meant) else {
                return (is_pending, None);
            };
            let is_lost = object.lose(|replica| is_region_of(replica, &withdrawal));
            let lost = entry.sealed.take_if(|_| is_lost).map(|object| object.version);
            (true, lost)
        });
        if let Some(version) = lost {
            // So far the object said that its put was stored.
            self.outcomes.forget_stored(version, key);
        }
        if is_changed {
            self.mirror(key, asker, Decision::Withdrawn(lost));
        } else {
            self.reply(asker.token, Ok(HomeAnswer::Done { changed: false }));
        }
    }

    /// An accepted object was not heard of for too long: its holder is to be asked.
    pub(super) fn check_pending(&mut self, key: KeyHash) {
        let pending = self.entries.pending(key).expect("only pending objects are checked");
        let (homes, version) = (pending.object.homes, pending.object.version);
        let is_contested = self.work.get(&key).is_some_and(|work| !work.parked.is_empty());
        let wait_ms = if is_contested {
            CONTESTED_CHECK_MS
        } else {
            PENDING_CHECK_MS
        };
        self.check_at(key, self.now.after_ms(wait_ms));
        let asker = Asker { token: None, homes };
        let kind = JobKind::Check { version };
        self.submit(key, Job::of(asker, kind));
    }

    /// Another put waits for a pending object: its holder is asked sooner.
    pub(super) fn hasten_check(&mut self, key: KeyHash) {
        let soon = self.now.after_ms(CONTESTED_CHECK_MS);
        if self.entries.pending(key).is_some_and(|pending| pending.check_at > soon) {
            self.check_at(key, soon);
        }
    }

    fn check_at(&mut self, key: KeyHash, time: Time) {
        if let Some(mut pending) = self.set_pending(key, None) {
            pending.check_at = time;
            self.set_pending(key, Some(*pending));
        }
    }

    pub(super) fn check(&mut self, key: KeyHash, asker: Asker, version: Version) {
        if let Some(pending) = self.entries.pending(key)
            && pending.object.version == version
        {
            let holder = pending.object.replicas[0].holder;
            self.ask_holder(key, holder, version, HolderQuestionKind::Confirm);
            self.wait(key, asker, Step::Check { version });
        }
    }

    /// The holder of a pending object has answered whether it is sealed. If it is not after so long, or does not
    /// answer, the object is withdrawn: should its holder report the seal after all, it learns that and drops it.
    pub(super) fn checked(
        &mut self,
        key: KeyHash,
        asker: Asker,
        version: Version,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        if !self.is_accepted(key, version) {
            return;
        }
        match answer {
            Some(Ok(HolderAnswer::Confirmed { held: true })) => {
                let region = None;
                let replace = false;
                self.sealed(
                    key,
                    asker,
                    Seal {
                        version,
                        region,
                        replace,
                    },
                );
            }
            None | Some(Ok(HolderAnswer::Confirmed { held: false })) => {
                self.set_pending(key, None);
                self.mirror(key, asker, Decision::Checked);
            }
            // It was reached and could not say: it is asked again at the next check.
            Some(Ok(HolderAnswer::Dropped | HolderAnswer::Stays { .. }) | Err(_)) => {}
        }
    }
}

//! Removals: decided at the homes, done when every holder has dropped the object.

use super::entry::Object;
use super::work::{Asker, Decision, Drops, Mirrored, Removal, Step};
use super::{Directory, is_gone, wrong_answer};
use crate::limits::OWED_DROPS_MAX;
use crate::planted::{Bug, is_planted};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, KeyHash, Version};
use tenon_protocol::limits::EPOCH_MAX;
use tenon_protocol::member::{HolderAnswer, HolderQuestionKind, HomeAnswer, Homes, OwedDrop};
use tenon_protocol::message::{KeyResult, PutOutcome};

impl Directory {
    /// Removes the key's object, if it is one that is meant: from here on there is none, whatever its holders say. A
    /// removal that was decided before and not completed is completed.
    pub(super) fn remove(&mut self, key: KeyHash, asker: Asker, mut removal: Removal) {
        let lives = &self.lives;
        self.tombstones.pay(key, |owed| is_gone(lives, &owed.replica));
        if let Some(object) = self.entries.sealed(key)
            && (object.version.epoch <= removal.up_to || is_planted(Bug::RemovesWhatCameLater))
        {
            let owed: Vec<_> = object.drops().collect();
            if self.tombstones.owed(key).len() + owed.len() > OWED_DROPS_MAX {
                let message = "holders that do not answer have not dropped earlier objects of the key";
                return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Overloaded, message)));
            }
            let epoch = object.version.epoch.0 + 1;
            self.tombstones.raise(self.now, key, asker.homes, epoch, owed);
            self.entries.change(key, |entry| entry.sealed = None);
            // So far the object said it.
            self.remember_stored(key, object.version);
            removal.changed = true;
        }
        self.bury_what_is_gone(key, asker.homes, removal.up_to);
        // Also where nothing is known: a partner that knows of an object says so.
        removal.changed |= !self.tombstones.owed(key).is_empty();
        self.mirror(key, asker, Decision::Removed(removal));
    }

    /// What a removal's coordinator has found may be gone, evicted, and a copy of it on its way: it must not come back.
    fn bury_what_is_gone(&mut self, key: KeyHash, homes: Homes, found: Epoch) {
        let is_gone = self.entries.sealed(key).is_none() && self.entries.pending(key).is_none();
        let epoch = found.0.saturating_add(1);
        if is_gone && found.0 > 0 && epoch < EPOCH_MAX && epoch > self.tombstones.epoch(key) {
            self.tombstones.raise(self.now, key, homes, epoch, []);
        }
    }

    /// The partner has been told of a removal: now the holders are.
    pub(super) fn removal_told(&mut self, key: KeyHash, asker: Asker, mut removal: Removal, mirrored: Mirrored) {
        match mirrored {
            Mirrored::Objected(_) if removal.was_objected => {
                let message = "the homes of the key do not agree on its object";
                self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
            }
            Mirrored::Objected(object) => {
                removal.was_objected = true;
                self.set_sealed(key, Object::new(asker.homes, object));
                self.lose_the_dead(key);
                self.remove(key, asker, removal);
            }
            Mirrored::Told
            | Mirrored::Alone { .. }
            | Mirrored::Behind(_)
            | Mirrored::Ended { .. }
            | Mirrored::Refused(_) => self.drop_owed(key, asker, removal.changed),
        }
    }

    /// Has holders drop what they owe of the key; the answer waits for that.
    pub(super) fn drop_owed(&mut self, key: KeyHash, asker: Asker, changed: bool) {
        let owed = self.tombstones.owed(key).to_vec();
        if owed.is_empty() {
            return self.reply(asker.token, Ok(HomeAnswer::Done { changed }));
        }
        let ask = |owed: OwedDrop| {
            let kind = self.drop_kind(key, owed.version);
            let question = self.ask_holder(key, owed.replica.holder, owed.version, kind);
            (question, owed)
        };
        let open = owed.into_iter().map(ask).collect();
        self.wait(key, asker, Step::Drop(Drops { open, failure: None }));
    }

    /// How a holder is asked to drop an object: only of one whose put has not ended otherwise it may say that it is stored.
    pub(super) fn drop_kind(&mut self, key: KeyHash, version: Version) -> HolderQuestionKind {
        match self.outcomes.get(self.now, version.put_id, key) {
            Some(known) if known.outcome != PutOutcome::Stored => HolderQuestionKind::Refuse,
            _ => HolderQuestionKind::Drop,
        }
    }

    /// A holder has answered, or not, whether it has dropped what was removed.
    pub(super) fn dropped(
        &mut self,
        key: KeyHash,
        asker: Asker,
        mut drops: Drops,
        owed: OwedDrop,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let failed = match answer {
            Some(Ok(HolderAnswer::Dropped)) => None,
            Some(Ok(HolderAnswer::Confirmed { .. } | HolderAnswer::Stays { .. })) => Some(wrong_answer()),
            Some(Err(error)) => Some(error),
            None if is_gone(&self.lives, &owed.replica) => None,
            None => Some(ServiceError::unavailable(
                owed.replica.holder,
                "it has not dropped the object",
            )),
        };
        if failed.is_none() {
            self.tombstones.pay(key, |other| *other == owed);
        }
        drops.failure = drops.failure.or(failed);
        if !drops.open.is_empty() {
            return self.wait(key, asker, Step::Drop(drops));
        }
        let answer = match drops.failure {
            Some(error) => Err(error),
            None => Ok(HomeAnswer::Done { changed: true }),
        };
        self.reply(asker.token, answer);
    }
}

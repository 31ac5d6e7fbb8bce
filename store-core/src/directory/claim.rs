//! What others say of a key: the partner, which decided alone or hands over what it keeps, and holders, which announce
//! what they have. Of two objects of a key one wins, and the holders of the other are asked to drop it.

use super::entry::{Object, Pending};
use super::inquire::{Inquiry, Verdict};
use super::work::{Asker, Decision, Job, JobKind, Purpose, Seal, Step};
use super::{Action, Directory, is_gone};
use crate::limits::{
    CONTESTED_CHECK_MS, CONTESTED_MAX, DIRECTORY_KEYS_MAX, DIRECTORY_QUESTION_MS, PAID_AT_ONCE_MAX, PENDING_CHECK_MS,
};
use crate::planted::{Bug, is_planted};
use crate::time::Time;
use std::collections::BTreeMap;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, KeyHash, NodeId, Version};
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEntry, Homes, MirrorEntry, OwedDrop,
};
use tenon_protocol::message::KeyResult;

/// Who says that a key has an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// The other home, which has accepted it: of two objects of one epoch any may win.
    Partner,
    /// Its holder, to which it may have been refused: of two objects of one epoch the one wins that the homes have.
    Holder,
}

/// Objects that were claimed while nobody could say whether the key's present one is still there.
#[derive(Debug, Default)]
pub(super) struct Contested {
    claims: BTreeMap<(KeyHash, Source), Object>,
    look_at: Time,
}

impl Directory {
    /// Takes in what is said to be known of a key.
    pub(super) fn claim(&mut self, key: KeyHash, asker: Asker, mut told: MirrorEntry) {
        self.bury(key, asker.homes, &mut told);
        if let Some(pending) = told.pending {
            self.adopt_pending(key, Object::new(asker.homes, pending));
        }
        self.remember_ends(key, &told.ended);
        match told.sealed.and_then(|sealed| self.living(asker.homes, sealed)) {
            Some(object) => self.weigh(key, asker, object, Source::Partner),
            None => self.claimed(asker),
        }
    }

    /// Takes in that a holder has an object. Where the homes have another one of its epoch, the partner is asked first:
    /// it may have accepted this one while the homes did not see each other.
    pub(super) fn publish(&mut self, key: KeyHash, asker: Asker, entry: HomeEntry, is_recalled: bool) {
        let Some(object) = self.living(asker.homes, entry) else {
            return self.claimed(asker);
        };
        let is_rival = self
            .entries
            .sealed(key)
            .is_some_and(|present| present.version.epoch == object.version.epoch && !present.may_join(&object));
        if is_rival && !is_recalled && asker.homes.partner_of(self.node).is_some() {
            let kind = JobKind::Publish((&object).into());
            return self.recall(key, Job::of(asker, kind));
        }
        self.weigh(key, asker, object, Source::Holder);
    }

    /// The partner can't be asked about a holder's object now.
    pub(super) fn contest_publication(&mut self, key: KeyHash, asker: Asker, entry: HomeEntry) {
        let message = "the homes of the key have another object, and can't agree now";
        let error = ServiceError::new(ErrorCode::Overloaded, message);
        self.contest(key, asker, (Object::new(asker.homes, entry), Source::Holder), error);
    }

    /// An object without those of its replicas that lie in earlier lives of their holders; `None` if none is left.
    fn living(&self, homes: Homes, entry: HomeEntry) -> Option<Object> {
        let mut object = Object::new(homes, entry);
        let is_lost = object.lose(|replica| is_gone(&self.lives, replica));
        (!is_lost).then_some(object)
    }

    fn claimed(&mut self, asker: Asker) {
        self.reply(asker.token, Ok(HomeAnswer::Done { changed: true }));
    }

    /// What was removed elsewhere is removed here.
    pub(super) fn bury(&mut self, key: KeyHash, homes: Homes, told: &mut MirrorEntry) {
        let owed = std::mem::take(&mut told.owed);
        if told.epoch > self.tombstones.epoch(key) || !owed.is_empty() {
            self.tombstones.raise(self.now, key, homes, told.epoch, owed);
        }
        let epoch = self.tombstones.epoch(key);
        let buried = self.entries.change(key, |entry| {
            entry.sealed.take_if(|object| {
                // Of several replicas others may be left: readers find out.
                let is_withdrawn = Some(object.version) == told.withdrawn && !object.has_copies();
                object.version.epoch.0 < epoch || is_withdrawn
            })
        });
        if let Some(object) = buried.filter(|object| object.version.epoch.0 < epoch) {
            if Some(object.version) != told.withdrawn {
                // So far the object said it.
                self.remember_stored(key, object.version);
            }
            self.tombstones.raise(self.now, key, homes, epoch, object.drops());
        }
        let is_buried = |version: Version| version.epoch.0 < epoch;
        if self
            .entries
            .pending(key)
            .is_some_and(|pending| is_buried(pending.object.version))
        {
            self.set_pending(key, None);
        }
    }

    /// The partner has accepted an object that is not sealed yet: it is waited for here too.
    fn adopt_pending(&mut self, key: KeyHash, object: Object) {
        let epoch = object.version.epoch;
        let is_late = self
            .entries
            .sealed(key)
            .is_some_and(|sealed| sealed.version.epoch >= epoch);
        let is_gone = object.replicas.iter().any(|replica| is_gone(&self.lives, replica));
        if is_late || is_gone || epoch.0 < self.tombstones.epoch(key) || self.entries.pending(key).is_some() {
            return;
        }
        let pending = Pending {
            object,
            is_own: false,
            degraded: false,
            check_at: self.now.after_ms(PENDING_CHECK_MS),
        };
        self.set_pending(key, Some(pending));
    }

    /// A sealed object wants to be the key's.
    fn weigh(&mut self, key: KeyHash, asker: Asker, object: Object, source: Source) {
        let version = object.version;
        if version.epoch.0 < self.tombstones.epoch(key) {
            self.release(key, object);
            return self.claimed(asker);
        }
        if let Some(pending) = self.entries.pending(key)
            && pending.object.version.epoch <= version.epoch
        {
            // Either its seal was not reported, or it has lost: its holder will be told when it reports.
            self.set_pending(key, None);
        }
        let Some(present) = self.entries.sealed(key) else {
            self.replace(key, object);
            return self.claimed(asker);
        };
        let is_older = match is_planted(Bug::LowerEpochWins) {
            true => present.version.epoch < version.epoch,
            false => present.version.epoch > version.epoch,
        };
        if is_older {
            self.release(key, object);
        } else if present.version.epoch != version.epoch {
            self.replace(key, object);
        } else if present.may_join(&object) {
            return self.join(key, asker, object, source);
        } else {
            let mut inquiry = Inquiry::of(&present);
            let verdict = self.inquire(key, &mut inquiry);
            return self.decide_claim(key, asker, (object, source), inquiry, verdict);
        }
        self.claimed(asker);
    }

    /// A holder has the key's object, as is known or not. The second home tells nobody; it is told by the holder itself. What the first
    /// home does not know is told it by holders alone: what its partner says may have gone meanwhile.
    fn join(&mut self, key: KeyHash, asker: Asker, object: Object, source: Source) {
        let is_first = asker.homes.first == self.node;
        if is_first && source == Source::Partner {
            return self.claimed(asker);
        }
        if !is_first {
            self.entries.change(key, |entry| entry.gain_unheard(&object.replicas));
            return self.claimed(asker);
        }
        let is_told = self.entries.change(key, |entry| {
            let known = entry.sealed.as_mut().expect("its object is joined");
            known.gain(&object.replicas) && known.has_copies()
        });
        if is_told {
            return self.mirror(key, asker, Decision::Gained);
        }
        self.claimed(asker);
    }

    /// Makes a claimed object the key's, if there is room for it.
    fn replace(&mut self, key: KeyHash, object: Object) {
        if self.entries.len() < DIRECTORY_KEYS_MAX || self.entries.contains(key) {
            self.set_sealed(key, object);
        }
    }

    /// Makes an object the key's; what holders have of the one before is to be dropped.
    pub(super) fn set_sealed(&mut self, key: KeyHash, object: Object) {
        let (homes, version, holders) = (object.homes, object.version, object.holders());
        let has_copies = object.has_copies();
        let before = self.entries.change(key, |entry| entry.seal(object));
        let beaten = before.iter().filter(|before| before.version.epoch < version.epoch);
        if version.epoch > Epoch(1) && !is_planted(Bug::ReplacedIsNotBuried) {
            // Should this one go, none before must come back, and none that comes after may be below it.
            let owed: Vec<OwedDrop> = beaten.flat_map(Object::drops).collect();
            self.tombstones.raise(self.now, key, homes, version.epoch.0, owed);
        }
        let Some(mut before) = before else { return };
        let is_same = before.version == version;
        // Which holders have a copy the first home says, but for those that have not reached it yet.
        let is_joined = is_same && (has_copies || before.has_copies()) && !is_planted(Bug::OtherCopiesAreDropped);
        if !is_joined && !before.lose(|replica| is_same && holders.contains(&replica.holder)) {
            self.release(key, before);
        }
    }

    /// A holder of the present object has answered, or not, whether it has it still.
    pub(super) fn weighed(
        &mut self,
        key: KeyHash,
        asker: Asker,
        claim: (Object, Source),
        mut inquiry: Inquiry,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let verdict = self.inquired(key, &mut inquiry, answer);
        self.decide_claim(key, asker, claim, inquiry, verdict);
    }

    /// Two objects of one epoch, or of one put at two holders. If both are there and homes accepted them while they did
    /// not see each other, the one that [`Object::beats`] the other wins.
    fn decide_claim(
        &mut self,
        key: KeyHash,
        asker: Asker,
        (object, source): (Object, Source),
        inquiry: Inquiry,
        verdict: Option<Verdict>,
    ) {
        let Some(verdict) = verdict else {
            return self.wait(key, asker, Step::Weigh(object, source, inquiry));
        };
        let present = self.entries.sealed(key);
        let present = present.filter(|present| present.version == inquiry.version);
        match (verdict, present) {
            (Verdict::Held, Some(present)) if source == Source::Partner && object.beats(&present) => {
                let mut inquiry = Inquiry::of(&object);
                let verdict = self.inquire(key, &mut inquiry);
                return self.decide_winner(key, asker, object, inquiry, verdict);
            }
            (Verdict::Held, Some(_)) => {
                self.losers += 1;
                self.release(key, object);
            }
            (Verdict::NotHeld, Some(_)) => {
                self.entries.change(key, |entry| entry.sealed = None);
                self.replace(key, object);
            }
            (Verdict::Failed(error), _) => return self.contest(key, asker, (object, source), error),
            // Its holder has begun another life meanwhile.
            (Verdict::Held | Verdict::NotHeld, None) => return self.weigh(key, asker, object, source),
        }
        self.claimed(asker);
    }

    /// The holder of an object that would win has answered, or not, whether it is there at all.
    pub(super) fn won(
        &mut self,
        key: KeyHash,
        asker: Asker,
        object: Object,
        mut inquiry: Inquiry,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let verdict = self.inquired(key, &mut inquiry, answer);
        self.decide_winner(key, asker, object, inquiry, verdict);
    }

    /// What is only said to be there must not take the place of what is there.
    fn decide_winner(
        &mut self,
        key: KeyHash,
        asker: Asker,
        object: Object,
        inquiry: Inquiry,
        verdict: Option<Verdict>,
    ) {
        match verdict {
            None => return self.wait(key, asker, Step::Win(object, inquiry)),
            Some(Verdict::Failed(error)) => return self.contest(key, asker, (object, Source::Partner), error),
            Some(Verdict::NotHeld) => {}
            Some(Verdict::Held) => {
                self.losers += 1;
                self.replace(key, object);
            }
        }
        self.claimed(asker);
    }

    /// It can't be said now which of two objects stays. A holder that waits for it asks again; else this home does, and
    /// the partner has told what it knows.
    fn contest(&mut self, key: KeyHash, asker: Asker, (object, source): (Object, Source), error: ServiceError) {
        if asker.token.is_some() && source == Source::Holder {
            return self.reply(asker.token, Err(error));
        }
        let claims = &mut self.contested.claims;
        if claims.len() < CONTESTED_MAX || claims.contains_key(&(key, source)) {
            claims.insert((key, source), object);
            return self.claimed(asker);
        }
        self.reply(asker.token, Err(error));
    }

    /// What could not be decided is tried again.
    pub(super) fn retry_contested(&mut self) {
        if self.contested.claims.is_empty() || self.now < self.contested.look_at {
            return;
        }
        self.contested.look_at = self.now.after_ms(CONTESTED_CHECK_MS);
        for ((key, source), object) in std::mem::take(&mut self.contested.claims) {
            let asker = Asker {
                token: None,
                homes: object.homes,
            };
            let kind = match source {
                Source::Holder => JobKind::Publish((&object).into()),
                Source::Partner => JobKind::Claim(MirrorEntry {
                    sealed: Some((&object).into()),
                    ..MirrorEntry::default()
                }),
            };
            self.submit(key, Job::of(asker, kind));
        }
    }

    /// An object is not the key's: its holders owe its drop. One that is asked for it takes its put for stored and over, and
    /// answers so whoever repeats it; so does this home.
    fn release(&mut self, key: KeyHash, object: Object) {
        self.remember_stored(key, object.version);
        let epoch = object.version.epoch.0.min(self.tombstones.epoch(key).max(1));
        self.tombstones
            .raise(self.now, key, object.homes, epoch, object.drops());
        for owed in self.tombstones.owed(key).to_vec() {
            self.ask_to_pay(key, owed);
        }
    }

    fn ask_to_pay(&mut self, key: KeyHash, owed: OwedDrop) {
        if self.paying >= PAID_AT_ONCE_MAX {
            return;
        }
        self.paying += 1;
        let deadline = self.now.after_ms(DIRECTORY_QUESTION_MS);
        let question = self.new_question(deadline, Purpose::Pay { key, owed });
        let ask = HolderQuestion {
            key_hash: key,
            version: owed.version,
            kind: self.drop_kind(key, owed.version),
        };
        self.actions.push(Action::AskHolder {
            question,
            to: owed.replica.holder,
            deadline,
            ask,
        });
    }

    /// Asks a holder that can be reached for the drops that it owes, some at a time.
    pub(super) fn collect_debts(&mut self, holder: NodeId) {
        if self.paying > 0 {
            return;
        }
        let keys: Vec<KeyHash> = self.tombstones.debts(holder).take(PAID_AT_ONCE_MAX).collect();
        for key in keys {
            for owed in self.tombstones.owed(key).to_vec() {
                if owed.replica.holder == holder {
                    self.ask_to_pay(key, owed);
                }
            }
        }
    }

    /// Asks the next holder that can be reached and owes drops, this node among them.
    pub(super) fn collect_next(&mut self) {
        let seen = self.members.askable(self.now).map(|(id, _)| id);
        let mut holders: Vec<NodeId> = seen.chain([self.node]).collect();
        holders.sort_unstable();
        let first = holders.partition_point(|id| Some(*id) <= self.collected);
        holders.rotate_left(first);
        for holder in holders {
            self.collect_debts(holder);
            if self.paying > 0 {
                self.collected = Some(holder);
                return;
            }
        }
    }

    /// A holder has answered, or not, whether it has dropped what it owed.
    pub(super) fn paid(&mut self, key: KeyHash, owed: OwedDrop, answer: Option<KeyResult<HolderAnswer>>) {
        self.paying -= 1;
        let is_paid = matches!(answer, Some(Ok(HolderAnswer::Dropped))) || is_gone(&self.lives, &owed.replica);
        if is_paid {
            self.tombstones.pay(key, |other| *other == owed);
            // As fast as holders pay. One that does not is asked again after a while.
            if self.paying == 0 {
                self.collect_next();
            }
        }
    }

    /// A holder has begun another life: it owes nothing of the earlier one.
    pub(super) fn forgive(&mut self, holder: NodeId) {
        let keys: Vec<KeyHash> = self.tombstones.debts(holder).collect();
        let lives = &self.lives;
        for key in keys {
            self.tombstones.pay(key, |owed| is_gone(lives, &owed.replica));
        }
    }

    /// A reader has not found the key's object where it should be.
    pub(super) fn doubt(&mut self, key: KeyHash, asker: Asker, version: Version) {
        match self.entries.sealed(key) {
            Some(object) if object.version == version => {
                let mut inquiry = Inquiry::of(&object);
                let verdict = if is_planted(Bug::DoubtDoesNotAsk) {
                    Some(Verdict::NotHeld)
                } else {
                    self.inquire(key, &mut inquiry)
                };
                self.decide_doubt(key, asker, inquiry, verdict);
            }
            _ => self.reply(asker.token, Ok(HomeAnswer::Done { changed: false })),
        }
    }

    /// A holder has answered, or not, whether it has what a reader did not find.
    pub(super) fn doubted(
        &mut self,
        key: KeyHash,
        asker: Asker,
        mut inquiry: Inquiry,
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let verdict = self.inquired(key, &mut inquiry, answer);
        self.decide_doubt(key, asker, inquiry, verdict);
    }

    fn decide_doubt(&mut self, key: KeyHash, asker: Asker, inquiry: Inquiry, verdict: Option<Verdict>) {
        let answer = match verdict {
            None => return self.wait(key, asker, Step::Doubt(inquiry)),
            Some(Verdict::Held) => Ok(HomeAnswer::Done { changed: false }),
            Some(Verdict::Failed(error)) => Err(error),
            Some(Verdict::NotHeld) => {
                let version = inquiry.version;
                if let Some(later) = self.later_pending(key, version) {
                    return self.check_later(key, asker, version, later);
                }
                let lost = self
                    .entries
                    .change(key, |entry| entry.sealed.take_if(|object| object.version == version));
                Ok(HomeAnswer::Done {
                    changed: lost.is_some(),
                })
            }
        };
        self.reply(asker.token, answer);
    }

    /// An accepted object that comes after one that is gone.
    fn later_pending(&self, key: KeyHash, gone: Version) -> Option<(NodeId, Version)> {
        let pending = self.entries.pending(key)?;
        let version = pending.object.version;
        (version.epoch > gone.epoch).then(|| (pending.object.holder(), version))
    }

    /// An object is gone, and its holder may have dropped it for a later one that it has sealed and not reported yet: then that one is the
    /// key's, and no reader finds nothing meanwhile.
    fn check_later(&mut self, key: KeyHash, asker: Asker, gone: Version, (holder, later): (NodeId, Version)) {
        self.ask_holder(key, holder, later, HolderQuestionKind::Confirm);
        self.wait(key, asker, Step::CheckLater { gone, later });
    }

    /// The holder of an accepted object has answered, or not, whether it is sealed.
    pub(super) fn later_checked(
        &mut self,
        key: KeyHash,
        asker: Asker,
        (gone, later): (Version, Version),
        answer: Option<KeyResult<HolderAnswer>>,
    ) {
        let is_sealed = matches!(answer, Some(Ok(HolderAnswer::Confirmed { held: true })));
        let may_decide = asker.homes.first == self.node || self.members.is_lost(asker.homes.first);
        let pending = self.entries.pending(key).map(|pending| &pending.object);
        if let Some(later) = pending.filter(|object| is_sealed && !may_decide && object.version == later) {
            // The first home will say so, and is as sure of it as of what a holder publishes.
            let later = later.clone();
            return self.weigh(key, asker, later, Source::Holder);
        }
        if is_sealed {
            let (region, replace) = (None, false);
            let seal = Seal {
                version: later,
                region,
                replace,
            };
            return self.sealed(key, asker, seal);
        }
        self.entries
            .change(key, |entry| entry.sealed.take_if(|object| object.version == gone));
        self.reply(asker.token, Ok(HomeAnswer::Done { changed: true }));
    }
}

//! The second home learns what the first has decided.

use super::entry::{Entry, Object, Pending};
use super::members::Untold;
use super::work::{Asker, Decision, Mirrored, Purpose, Step};
use super::{Answer, Directory};
use crate::limits::PENDING_CHECK_MS;
use crate::planted::{Bug, is_planted};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, KeyHash, PutId, SegmentId, Slot, Version};
use tenon_protocol::limits::{OWED_DROPS_TOLD_MAX, PUT_ENDS_MAX};
use tenon_protocol::member::{
    HomeAnswer, HomeEntry, HomeEvent, HomeEventKind, Homes, MirrorEntry, OwedDrop, PutEnd, Withdrawal,
};
use tenon_protocol::message::{Committed, Replica};

impl Directory {
    /// Tells the partner what the key's entry is now; then goes on by [`Directory::mirrored`]. The second home tells
    /// nobody: it decides only when the first cannot be told.
    pub(super) fn mirror(&mut self, key: KeyHash, asker: Asker, decision: Decision) {
        let is_first = asker.homes.first == self.node;
        let Some(to) = asker.homes.second.filter(|_| is_first) else {
            return self.mirrored(key, asker, decision, Mirrored::Alone { degraded: !is_first });
        };
        if is_planted(Bug::SecondIsNotTold) {
            return self.mirrored(key, asker, decision, Mirrored::Told);
        }
        let entry = self.known_with(key, &decision);
        let event = HomeEvent {
            key_hash: key,
            homes: asker.homes,
            kind: HomeEventKind::Mirror(entry),
        };
        self.ask_partner(to, Purpose::Step { key }, event);
        self.wait(key, asker, Step::Mirror(decision));
    }

    /// The partner has answered, or not, what it was told.
    pub(super) fn mirror_answered(&mut self, key: KeyHash, asker: Asker, decision: Decision, answer: Answer) {
        let partner = asker.homes.partner_of(self.node);
        let is_lost = partner.is_none_or(|partner| self.members.is_lost(partner));
        if matches!(answer, Answer::Unreachable) && !is_lost && !is_planted(Bug::SilenceIsLoss) {
            self.untaken.insert(key);
            return self.wait(key, asker, Step::Mirror(decision));
        }
        self.mirrored(key, asker, decision, answer.into_mirrored());
    }

    /// Tells the partner once more what it did not answer, unless it is lost meanwhile.
    pub(super) fn tell_again(&mut self, key: KeyHash) {
        let running = self.work.get_mut(&key).and_then(|work| work.running.take());
        let Some((asker, Step::Mirror(decision))) = running else {
            unreachable!("a key stands here while its partner is told");
        };
        self.lose_the_dead(key);
        let partner = asker.homes.partner_of(self.node);
        if partner.is_none_or(|partner| self.members.is_lost(partner)) {
            self.mirrored(key, asker, decision, Mirrored::Alone { degraded: true });
        } else {
            self.mirror(key, asker, decision);
        }
        self.advance(key);
    }

    /// What is known of a key once a decision has taken effect, for the other home.
    fn known_with(&self, key: KeyHash, decision: &Decision) -> MirrorEntry {
        let mut entry = self.known(key, decision.withdrawn());
        match decision {
            Decision::Sealed { changed: true, .. } => {
                if let Some(sealed) = entry.pending.take() {
                    let before = entry.sealed.replace(sealed);
                    supersede(&mut entry, before);
                }
            }
            Decision::Exists(end) => entry.ended.push(*end),
            Decision::Evicted { withdrawn, region, end } => {
                entry.ended.push(*end);
                if entry.sealed.is_none() {
                    entry.sealed = withdrawn.map(|version| gone(version, region));
                }
            }
            _ => {}
        }
        entry
    }

    /// What is known of a key and of the puts that ended last, for the other home, which may know nothing.
    pub(super) fn all_known(&self, key: KeyHash) -> MirrorEntry {
        let mut entry = self.known(key, None);
        let sealed = entry.sealed.as_ref().map(|object| object.version.put_id);
        let ends = besides(sealed, self.outcomes.newest_of_key(key, PUT_ENDS_MAX + 1));
        entry.ended = ends.take(PUT_ENDS_MAX).collect();
        entry
    }

    /// What the other home was not told of a key. With it, if more ends of puts are to be told, the last one of these.
    pub(super) fn share_of(&self, key: KeyHash, untold: &Untold) -> (MirrorEntry, Option<PutId>) {
        let mut entry = self.known(key, untold.withdrawn);
        if !untold.has_ends {
            return (entry, None);
        }
        let sealed = entry.sealed.as_ref().map(|object| object.version.put_id);
        let mut ends = besides(sealed, self.outcomes.of_key_after(key, untold.ends_after));
        entry.ended = ends.by_ref().take(PUT_ENDS_MAX).collect();
        let is_more = ends.next().is_some() && !is_planted(Bug::FewEndsAreRetold);
        let last = entry.ended.last().filter(|_| is_more).map(|end| end.put_id);
        (entry, last)
    }

    pub(super) fn remember_ends(&mut self, key: KeyHash, ended: &[PutEnd]) {
        for PutEnd { put_id, outcome } in ended.iter().take(PUT_ENDS_MAX) {
            self.outcomes.learn(self.now, *put_id, key, *outcome);
        }
    }

    /// What is known of a key, for the other home.
    pub(super) fn known(&self, key: KeyHash, withdrawn: Option<Version>) -> MirrorEntry {
        MirrorEntry {
            sealed: self.entries.sealed(key).as_ref().map(Into::into),
            pending: self.entries.pending(key).map(|pending| (&pending.object).into()),
            withdrawn,
            ended: Vec::new(),
            epoch: self.tombstones.epoch(key),
            owed: self.tombstones.owed(key).to_vec(),
        }
    }

    /// Takes the first home's word, unless it does not know of an object that is not superseded.
    pub(super) fn take_mirror(&mut self, key: KeyHash, asker: Asker, mut told: MirrorEntry) {
        if asker.homes.second != Some(self.node) {
            let message = "only the first home of a key tells the second what its entry is";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        if let Some(ended) = self.contradicted(key, &told) {
            let answer = HomeAnswer::AlreadyExists {
                version: ended.version,
                degraded: ended.degraded,
            };
            return self.reply(asker.token, Ok(answer));
        }
        self.remember_ends(key, &told.ended);
        self.lose_gone(key, &mut told);
        if let Some(object) = self.entries.sealed(key)
            && !is_superseded(&object, &told)
        {
            let answer = HomeAnswer::Hit((&object).into());
            return self.reply(asker.token, Ok(answer));
        }
        let buried_below = self.tombstones.epoch(key);
        let mut objects = told.pending.iter().chain(&told.sealed);
        if objects.any(|object| object.version.epoch.0 < buried_below) {
            let answer = HomeAnswer::Known {
                entry: self.known(key, None),
                is_grown: self.is_grown(asker.homes),
            };
            return self.reply(asker.token, Ok(answer));
        }
        let own = self.entries.pending(key).filter(|pending| pending.is_own);
        let is_contested = own.is_some_and(|own| {
            let others = told.pending.iter().chain(&told.sealed);
            others.into_iter().any(|other| other.version != own.object.version)
        });
        if is_contested {
            let message = "the second home has accepted another object while it did not reach the first";
            return self.reply(asker.token, Err(ServiceError::new(ErrorCode::Conflict, message)));
        }
        self.apply_mirror(key, asker.homes, told);
        self.reply(asker.token, Ok(HomeAnswer::Done { changed: true }));
    }

    /// A replica is gone, which was the last one that the first home knew. If there are others here, the object stays, and the first home is
    /// told of it.
    fn lose_gone(&mut self, key: KeyHash, told: &mut MirrorEntry) {
        let withdrawn = told.withdrawn;
        let Some(gone) = told.sealed.take_if(|gone| Some(gone.version) == withdrawn) else {
            return;
        };
        let known = self.entries.sealed(key).filter(|object| object.version == gone.version);
        let Some(mut known) = known else { return };
        let is_meant = |replica: &Replica| {
            let mut gone = gone.replicas.iter();
            gone.any(|gone| (gone.holder, gone.generation) == (replica.holder, replica.generation))
        };
        if !known.lose(is_meant) {
            self.entries.change(key, |entry| {
                entry.unheard.retain(|replica| !is_meant(replica));
                entry.sealed = Some(known);
            });
            told.withdrawn = None;
        }
    }

    /// How a put has ended of which the partner says something else: that it is accepted, or how it ended.
    fn contradicted(&mut self, key: KeyHash, told: &MirrorEntry) -> Option<Committed> {
        let accepted = told
            .pending
            .iter()
            .map(|pending| (pending.version.put_id, pending.version));
        let ended = told.ended.iter().map(|end| (end.put_id, end.outcome.version));
        accepted.chain(ended).find_map(|(put_id, version)| {
            let known = self.outcomes.get(self.now, put_id, key);
            known.filter(|known| known.version != version)
        })
    }

    fn apply_mirror(&mut self, key: KeyHash, homes: Homes, told: MirrorEntry) {
        // With a proposal comes the object that is gone, and with the end of its put one that was evicted; that its put was stored stays true.
        let is_evicted = |version| told.ended.iter().any(|end| end.outcome.version == version);
        let is_kept = |version: &Version| told.pending.is_some() || is_evicted(*version);
        if let Some(withdrawn) = told.withdrawn.filter(|version| !is_kept(version)) {
            self.outcomes.forget_stored(withdrawn, key);
        }
        let entry = self.entries.change(key, std::mem::take);
        let removed = entry
            .sealed
            .as_ref()
            .filter(|object| object.version.epoch.0 < told.epoch);
        if let Some(removed) = removed.filter(|object| told.withdrawn != Some(object.version)) {
            // So far the object said it.
            self.remember_stored(key, removed.version);
        }
        if told.epoch > 0 {
            // Whether the holders have dropped it the first home knows. If this one is asked, it asks them again.
            let owed = removed.into_iter().flat_map(Object::drops).chain(told.owed);
            self.tombstones.raise(self.now, key, homes, told.epoch, owed);
        }
        if let Some(pending) = &entry.pending {
            self.checks.remove(&(pending.check_at, key));
        }
        let is_decided = |own: &Pending| {
            told.sealed
                .as_ref()
                .is_some_and(|sealed| sealed.version == own.object.version)
        };
        let kept = entry.pending.filter(|own| own.is_own && !is_decided(own));
        let pending = match told.pending {
            // The first home asks the holder earlier, and says what came of it.
            Some(pending) => Some(Box::new(Pending {
                object: Object::new(homes, pending),
                is_own: false,
                degraded: false,
                check_at: self.now.after_ms(2 * PENDING_CHECK_MS),
            })),
            None => kept,
        };
        if let Some(sealed) = &told.sealed {
            self.remember_stored(key, sealed.version);
        }
        self.checks
            .extend(pending.iter().map(|pending| (pending.check_at, key)));
        let sealed = told.sealed.map(|sealed| Object::new(homes, sealed));
        // If it is removed or gone, its drops are owed already or there is none to be owed.
        let beaten = entry.sealed.filter(|_| sealed.is_some());
        let unheard = entry.unheard;
        self.entries.change(key, |entry| {
            *entry = Entry {
                sealed: beaten,
                pending,
                unheard,
            };
        });
        if let Some(sealed) = sealed {
            self.set_sealed(key, sealed);
        }
        // What was told may lie in a life that is over for us already.
        self.lose_the_dead(key);
    }
}

/// What comes before an entry's sealed object is buried: should that one go, it must not come back.
fn supersede(entry: &mut MirrorEntry, before: Option<HomeEntry>) {
    let epoch = entry.sealed.as_ref().map_or(0, |sealed| sealed.version.epoch.0);
    let before = before.filter(|_| !is_planted(Bug::ReplacedIsNotBuried));
    if let Some(before) = before.filter(|before| before.version.epoch.0 < epoch) {
        entry.epoch = entry.epoch.max(epoch);
        let version = before.version;
        let owed = before.replicas.into_iter().map(|replica| OwedDrop { version, replica });
        entry
            .owed
            .extend(owed.take(OWED_DROPS_TOLD_MAX.saturating_sub(entry.owed.len())));
    }
}

/// A replica that is gone, as the partner is told of it: by its holder and generation.
fn gone(version: Version, region: &Withdrawal) -> HomeEntry {
    let replica = Replica {
        holder: region.holder,
        incarnation: Incarnation(0),
        segment: SegmentId(0),
        offset_bytes: 0,
        slot: Slot(0),
        generation: region.generation,
        is_copy: false,
    };
    HomeEntry {
        version,
        len_bytes: 0,
        replicas: vec![replica],
    }
}

/// The ends of puts without that of the sealed object: that it was stored its being there says.
fn besides(sealed: Option<PutId>, ends: impl Iterator<Item = (PutId, Committed)>) -> impl Iterator<Item = PutEnd> {
    ends.filter(move |(put_id, _)| Some(*put_id) != sealed)
        .map(|(put_id, outcome)| PutEnd { put_id, outcome })
}

/// Whether an object that this home knows as sealed can't be the key's object any more if what it is told is true. One
/// of the same epoch stands: it may be acknowledged already, while the one that is told may be on its way still.
fn is_superseded(object: &Object, told: &MirrorEntry) -> bool {
    let version = object.version;
    let is_beaten = told
        .sealed
        .as_ref()
        .is_some_and(|sealed| sealed.version == version || sealed.version.epoch > version.epoch);
    is_beaten || told.withdrawn == Some(version) || told.epoch > version.epoch.0
}

//! The other members: who is seen, what they still have to tell this home, and what it has to tell them.
//!
//! *Learning.* A home that begins its life knows nothing. It asks every member for what it holds (an *announcement*)
//! and every partner for the entries and tombstones of the keys that they share (a *hand-over*), page by page. A member
//! that is not seen is not waited for; it is asked once it is seen.
//!
//! *Complete* is a home to which every member that is seen has announced: then what it does not know does not exist.
//! *In step* with a partner is a home that has taken the partner's hand-over and from which the partner withholds
//! nothing: then what it knows is not out of date. A look-up is a hit only in step, and a miss only if the home is
//! complete as well; until then the answer is `unknown`, and decisions wait or ask the partner.
//!
//! *Untold.* What a home decides without its partner it tells the partner later, key by key. Until then heartbeats say
//! how many keys are withheld, and the partner is not in step. A home whose clock jumps has stood still and may have
//! missed that it was left out: it is out of step until it has heard from each member again.

use crate::limits::{RETOLD_AT_ONCE_MAX, RETRY_MS, UNTOLD_KEYS_MAX};
use crate::planted::{Bug, is_planted};
use crate::time::Time;
use std::collections::BTreeMap;
use std::ops::Bound;
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId, PutId, Version};
use tenon_protocol::member::Homes;

/// Says of a partner that it withholds more than it can name: it must hand over all.
pub const UNTOLD_ALL: u64 = u64::MAX;

/// Whether a member is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Not tried yet, or not since this node stood still.
    Unknown,
    Seen,
    Lost,
}

/// How far a member has told what it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Learning {
    /// The page after this is to be asked for.
    Open(Option<KeyHash>),
    /// It was asked for.
    Asked(Option<KeyHash>),
    Done,
}

/// A key that was decided without the partner.
#[derive(Debug, Clone, Copy)]
pub(super) struct Untold {
    pub(super) homes: Homes,
    /// The object that its holders have dropped, if that was decided.
    pub(super) withdrawn: Option<Version>,
    /// Puts have ended, which the key's entry does not tell, or not for long.
    pub(super) has_ends: bool,
    /// The ends of puts up to this one have been told.
    pub(super) ends_after: Option<PutId>,
    /// Which decision.
    pub(super) stamp: u64,
}

/// What a partner is being told later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retold {
    pub(super) partner: NodeId,
    pub(super) key: KeyHash,
    /// Of the decision.
    pub(super) stamp: u64,
    /// Ends of puts after this one are left to be told.
    pub(super) ends_after: Option<PutId>,
}

/// What is known of another member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) sight: Sight,
    life: Option<Incarnation>,
    pub(super) announced: Learning,
    pub(super) handed_over: Learning,
    /// It has decided what it has not told.
    pub(super) withholds: bool,
    pub(super) untold: BTreeMap<KeyHash, Untold>,
    /// More was decided without it than is remembered: it must take a hand-over.
    pub(super) has_overflowed: bool,
    /// Questions that retell and are not answered yet.
    pub(super) retelling: usize,
    /// The key that was retold last; the next one comes after it.
    pub(super) retold_key: Option<KeyHash>,
    /// Nothing is asked before this.
    pub(super) ask_at: Time,
}

impl Member {
    fn new() -> Self {
        Self {
            sight: Sight::Unknown,
            life: None,
            announced: Learning::Open(None),
            handed_over: Learning::Open(None),
            withholds: false,
            untold: BTreeMap::new(),
            has_overflowed: false,
            retelling: 0,
            retold_key: None,
            ask_at: Time::ZERO,
        }
    }

    /// What it is to be told next, some at a time: keys that it does not take keep no others from it.
    pub(super) fn to_retell(&self) -> impl Iterator<Item = (KeyHash, Untold)> {
        let after = match self.retold_key {
            Some(key) => Bound::Excluded(key),
            None => Bound::Unbounded,
        };
        let until = self.retold_key.map(|key| self.untold.range(..=key));
        let untold = self.untold.range((after, Bound::Unbounded));
        let untold = untold.chain(until.into_iter().flatten());
        untold.take(RETOLD_AT_ONCE_MAX).map(|(key, untold)| (*key, *untold))
    }

    fn is_waited_for(&self) -> bool {
        self.announced != Learning::Done && self.sight != Sight::Lost
    }

    fn is_in_step(&self) -> bool {
        match self.sight {
            Sight::Lost => true,
            Sight::Seen => self.handed_over == Learning::Done && !self.withholds,
            Sight::Unknown => false,
        }
    }
}

/// The other members of the view.
#[derive(Debug, Default)]
pub(super) struct Members {
    by_id: BTreeMap<NodeId, Member>,
    /// Members that have not announced and are not known to be out of reach.
    waited_for: usize,
    last_stamp: u64,
}

impl Members {
    /// Takes a new member list: those that are not in it are forgotten. A list
    /// that differs makes this node a home of other keys, so that all is to be learned anew.
    pub(super) fn set(&mut self, members: impl Iterator<Item = NodeId>) {
        let mut before = std::mem::take(&mut self.by_id);
        let old: Vec<NodeId> = before.keys().copied().collect();
        self.by_id = members
            .map(|id| (id, before.remove(&id).unwrap_or_else(Member::new)))
            .collect();
        if !self.by_id.keys().eq(&old) {
            for member in self.by_id.values_mut() {
                member.announced = Learning::Open(None);
                member.handed_over = Learning::Open(None);
            }
        }
        self.count();
    }

    fn count(&mut self) {
        self.waited_for = self.by_id.values().filter(|member| member.is_waited_for()).count();
    }

    /// Changes what is known of a member; nothing happens if it is none.
    pub(super) fn change<R>(&mut self, id: NodeId, change: impl FnOnce(&mut Member) -> R) -> Option<R> {
        let member = self.by_id.get_mut(&id)?;
        let before = member.is_waited_for();
        let result = change(member);
        let after = member.is_waited_for();
        self.waited_for = self.waited_for + usize::from(after) - usize::from(before);
        Some(result)
    }

    /// A member was seen in this life. A later one than the known one runs, though it has not been reached yet: who took
    /// it for lost must not decide without it before that was tried again.
    pub(super) fn met(&mut self, id: NodeId, life: Incarnation) {
        self.change(id, |member| {
            if member.life.is_some_and(|known| known >= life) {
                return;
            }
            // It knows nothing and will ask for all.
            member.untold.clear();
            member.has_overflowed = false;
            member.life = Some(life);
            if member.sight == Sight::Lost && !is_planted(Bug::NewLifeIsLost) {
                member.sight = Sight::Unknown;
            }
        });
    }

    /// A member was heard of in this life. True if it was not seen before and is now.
    pub(super) fn heard(&mut self, id: NodeId, life: Incarnation, untold_keys: u64, is_reachable: bool) -> bool {
        let newly_seen = self.change(id, |member| {
            if member.life.is_some_and(|known| known > life) {
                return false;
            }
            member.withholds = untold_keys > 0;
            if untold_keys == UNTOLD_ALL && member.handed_over == Learning::Done {
                member.handed_over = Learning::Open(None);
            }
            let newly_seen = is_reachable && member.sight != Sight::Seen;
            if newly_seen {
                member.sight = Sight::Seen;
            }
            newly_seen
        });
        newly_seen.unwrap_or(false)
    }

    /// A member can't be reached.
    pub(super) fn lost(&mut self, id: NodeId) {
        self.change(id, |member| member.sight = Sight::Lost);
    }

    /// This node has stood still: who is seen is to be found out anew.
    pub(super) fn doubt_all(&mut self) {
        for member in self.by_id.values_mut() {
            if member.sight == Sight::Seen {
                member.sight = Sight::Unknown;
            }
        }
        self.count();
    }

    /// Whether every member has announced or is out of reach.
    pub(super) fn is_complete(&self) -> bool {
        self.waited_for == 0
    }

    /// How many members have not announced and are not out of reach.
    pub(super) fn waited_for(&self) -> usize {
        self.waited_for
    }

    /// Whether what is known of the keys that are shared with a partner is up to date.
    pub(super) fn is_in_step_with(&self, partner: Option<NodeId>) -> bool {
        partner
            .and_then(|id| self.by_id.get(&id))
            .is_none_or(Member::is_in_step)
    }

    /// Whether a partner has handed over what it kept, or can't.
    pub(super) fn is_grown_with(&self, partner: Option<NodeId>) -> bool {
        partner
            .and_then(|id| self.by_id.get(&id))
            .is_none_or(|member| member.handed_over == Learning::Done || member.sight == Sight::Lost)
    }

    /// Whether a member is seen.
    pub(super) fn is_seen(&self, id: NodeId) -> bool {
        self.by_id.get(&id).is_some_and(|member| member.sight == Sight::Seen)
    }

    /// Whether a member is known to be out of reach, or is none any more.
    pub(super) fn is_lost(&self, id: NodeId) -> bool {
        self.by_id.get(&id).is_none_or(|member| member.sight == Sight::Lost)
    }

    /// The members that are seen and may be asked now.
    pub(super) fn askable(&self, now: Time) -> impl Iterator<Item = (NodeId, &Member)> {
        let members = self.by_id.iter();
        members
            .filter(move |(_, member)| member.sight == Sight::Seen && member.ask_at <= now)
            .map(|(id, member)| (*id, member))
    }

    /// A key was decided without the partner.
    pub(super) fn leave_untold(&mut self, partner: NodeId, key: KeyHash, mut untold: Untold) {
        self.last_stamp += 1;
        untold.stamp = self.last_stamp;
        self.change(partner, |member| {
            if member.has_overflowed {
                return;
            }
            if member.untold.len() >= UNTOLD_KEYS_MAX && !member.untold.contains_key(&key) {
                member.untold.clear();
                member.has_overflowed = true;
                return;
            }
            untold.has_ends |= member.untold.get(&key).is_some_and(|known| known.has_ends);
            member.untold.insert(key, untold);
        });
    }

    /// The partner was told what a key's entry is, but not how other puts had ended before.
    pub(super) fn told(&mut self, partner: NodeId, key: KeyHash) {
        if let Some(member) = self.by_id.get_mut(&partner)
            && member.untold.get(&key).is_some_and(|untold| !untold.has_ends)
        {
            member.untold.remove(&key);
        }
    }

    /// The answer to what was told later has come, or not.
    pub(super) fn retold(&mut self, now: Time, retold: Retold, is_told: bool) {
        let Some(member) = self.by_id.get_mut(&retold.partner) else {
            return;
        };
        member.retelling = member.retelling.saturating_sub(1);
        if !is_told && !is_planted(Bug::ForgetsToRetell) {
            member.ask_at = now.after_ms(RETRY_MS);
            return;
        }
        let untold = member.untold.get_mut(&retold.key);
        if let Some(untold) = untold.filter(|untold| untold.stamp == retold.stamp) {
            match retold.ends_after {
                None => drop(member.untold.remove(&retold.key)),
                after => untold.ends_after = after,
            }
        }
    }

    /// How many keys a partner was not told of; [`UNTOLD_ALL`] if that is not remembered.
    pub(super) fn untold_keys(&self, partner: NodeId) -> u64 {
        match self.by_id.get(&partner) {
            Some(member) if member.has_overflowed => UNTOLD_ALL,
            Some(member) => member.untold.len() as u64,
            None => 0,
        }
    }

    /// How many keys partners were not told of, all together.
    pub(super) fn untold_total(&self) -> usize {
        self.by_id.values().map(|member| member.untold.len()).sum()
    }

    /// How many partners have not handed over and are not out of reach.
    pub(super) fn out_of_step(&self) -> usize {
        self.by_id.values().filter(|member| !member.is_in_step()).count()
    }

    /// Panics if what is counted is wrong. O(n).
    pub(super) fn check_invariants(&self) {
        let waited_for = self.by_id.values().filter(|member| member.is_waited_for()).count();
        assert_eq!(self.waited_for, waited_for, "members are counted wrong");
    }
}

//! What has happened, as somebody knows who sees everything at once: the model that answers are compared with.
//!
//! It knows nothing of homes. An *object* here is one sealing: a region of one holder in one of its lives.

use std::collections::{BTreeMap, BTreeSet};
use tenon_protocol::ids::{Generation, PutId, Version};
use tenon_protocol::message::{Committed, PutOutcome};

/// What was asked of a home, and not answered in time, is done with within this: it may wait for a holder.
pub(crate) const LATE_REQUEST_MS: u64 = 5_000;

/// One sealing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) key: usize,
    pub(crate) version: Version,
    pub(crate) holder: usize,
    pub(crate) life: u64,
    pub(crate) generation: Generation,
    pub(crate) sealed_at: u64,
    /// Since when its put is done.
    pub(crate) reported_at: Option<u64>,
    /// One home had decided alone.
    pub(crate) degraded: bool,
    /// Since when it is not there any more because its holder let it go.
    pub(crate) evicted_at: Option<u64>,
    /// Since when it is not there because a home had it dropped, or because its holder has sealed a later one.
    pub(crate) dropped_at: Option<u64>,
    /// It came after the object was committed at another holder.
    pub(crate) is_copy: bool,
    /// Its holder let it go because another node had a copy.
    pub(crate) is_moved: bool,
    /// Its put was answered that this node did not say, at this time, that what it has taken the place of is dropped.
    pub(crate) left_open: Option<(u64, usize)>,
}

impl Object {
    pub(crate) fn new(
        key: usize,
        version: Version,
        holder: usize,
        life: u64,
        generation: Generation,
        sealed_at: u64,
    ) -> Self {
        Self {
            key,
            version,
            holder,
            life,
            generation,
            sealed_at,
            reported_at: None,
            degraded: true,
            evicted_at: None,
            dropped_at: None,
            is_copy: false,
            is_moved: false,
            left_open: None,
        }
    }
}

/// How a try of a put was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// By an answer after which nothing of it is left.
    Final,
    /// It is not known whether it is done.
    Unknown,
}

/// One try of a put, and how it ended for its client.
#[derive(Debug, Clone)]
pub(crate) struct Try<End> {
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) end: End,
}

/// What a put asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// Its object is to take the place of the one that the key has.
    pub(crate) replace: bool,
    /// On how many nodes its object is to lie.
    pub(crate) replicas: usize,
}

/// A put with all its tries.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub(crate) key: usize,
    pub(crate) manner: Manner,
    pub(crate) began: u64,
    pub(crate) outcomes: Vec<Try<Committed>>,
    pub(crate) refusals: Vec<Try<Refusal>>,
}

/// How a removal ended for its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalEnd {
    /// It was acknowledged.
    Done { changed: bool },
    /// This node did not answer.
    Unavailable { silent: usize },
    /// Without an answer, or by one that does not say what was done.
    Unknown,
}

#[derive(Debug, Clone)]
pub(crate) struct Removal {
    pub(crate) key: usize,
    pub(crate) coordinator: usize,
    pub(crate) began: u64,
    pub(crate) end: Option<(u64, RemovalEnd)>,
}

impl Removal {
    /// Whether an object of a put that began then may be gone because of this removal. One that was not answered may
    /// still be under way for a while.
    pub(crate) fn may_cover(&self, put_began: u64) -> bool {
        match self.end {
            None => true,
            Some((at, RemovalEnd::Done { .. } | RemovalEnd::Unavailable { .. })) => at >= put_began,
            Some((at, RemovalEnd::Unknown)) => at + LATE_REQUEST_MS >= put_began,
        }
    }
}

/// What a reader got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    Hit {
        holder: usize,
        generation: Generation,
        bytes: PutId,
    },
    Miss,
    /// It can't be said.
    Failed,
}

/// How much of it there was, for those who want to know whether a run tests anything.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) puts_stored: u64,
    pub(crate) puts_exist: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) repeats_judged: u64,
    pub(crate) misses_judged: u64,
    pub(crate) hits_judged: u64,
    pub(crate) removals: u64,
    pub(crate) losers: u64,
    pub(crate) evictions: u64,
    pub(crate) copies: u64,
    pub(crate) moves: u64,
    pub(crate) replacements: u64,
    pub(crate) heirs_judged: u64,
    pub(crate) replaced_judged: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) objects: Vec<Object>,
    pub(crate) puts: BTreeMap<PutId, Put>,
    /// Puts whose clients have done with them, and since when.
    over: Vec<(u64, PutId)>,
    pub(crate) removals: Vec<Removal>,
    accepted: BTreeSet<(u64, PutId)>,
    pub(crate) counts: Counts,
    /// The first promise that was broken.
    pub(crate) violation: Option<String>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            objects: Vec::new(),
            puts: BTreeMap::new(),
            over: Vec::new(),
            removals: Vec::new(),
            accepted: BTreeSet::new(),
            counts: Counts::default(),
            violation: None,
        }
    }

    pub(crate) fn violated(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn put_begins(&mut self, put_id: PutId, key: usize, manner: Manner, now: u64) {
        let put = Put {
            key,
            manner,
            began: now,
            outcomes: Vec::new(),
            refusals: Vec::new(),
        };
        self.puts.insert(put_id, put);
    }

    pub(crate) fn put_refused(&mut self, put_id: PutId, (began, ended): (u64, u64), end: Refusal) {
        let put = self.puts.get_mut(&put_id).expect("it has begun");
        put.refusals.push(Try { began, ended, end });
    }

    pub(crate) fn put_ends(&mut self, put_id: PutId, (began, ended): (u64, u64), end: Committed) {
        match end.outcome {
            PutOutcome::Stored => self.counts.puts_stored += 1,
            PutOutcome::AlreadyExists => self.counts.puts_exist += 1,
        }
        let put = self.puts.get_mut(&put_id).expect("it has begun");
        put.outcomes.push(Try { began, ended, end });
    }

    /// The client of a put has done with it.
    pub(crate) fn put_is_over(&mut self, put_id: PutId, now: u64) {
        self.over.push((now, put_id));
    }

    /// The puts whose clients had done with them by a time.
    pub(crate) fn puts_over(&self, by: u64) -> &[(u64, PutId)] {
        &self.over[..self.over.partition_point(|(at, _)| *at <= by)]
    }

    /// A home has accepted a proposal.
    pub(crate) fn accepted(&mut self, version: Version) {
        self.accepted.insert((version.epoch.0, version.put_id));
    }

    /// A holder has sealed an object. Answers its number.
    pub(crate) fn sealed(&mut self, object: Object) {
        let version = object.version;
        if !self.accepted.contains(&(version.epoch.0, version.put_id)) {
            self.violated(format!("{version} was sealed and no home had accepted it"));
        }
        self.objects.push(object);
    }

    /// The put of an object is done.
    pub(crate) fn reported(&mut self, holder: usize, generation: Generation, now: u64, degraded: bool) {
        let object = self.object(holder, generation);
        object.reported_at = Some(now);
        object.degraded = degraded;
        let put_id = object.version.put_id;
        self.counts.replacements += u64::from(self.puts[&put_id].manner.replace);
    }

    /// The put of an object was answered, for want of what this node should have said.
    pub(crate) fn left_open(&mut self, holder: usize, generation: Generation, now: u64, silent: usize) {
        self.object(holder, generation).left_open.get_or_insert((now, silent));
    }

    /// A home has taken a copy in.
    pub(crate) fn copied(&mut self, holder: usize, generation: Generation, now: u64, degraded: bool) {
        let object = self.object(holder, generation);
        object.reported_at.get_or_insert(now);
        object.degraded = degraded;
        self.counts.copies += 1;
    }

    /// A holder has dropped what it had of a key, or all but what it has sealed last.
    pub(crate) fn dropped(&mut self, holder: usize, key: usize, is_meant: impl Fn(Version) -> bool, now: u64) {
        let objects = self.objects.iter_mut();
        let here = objects.filter(|object| (object.holder, object.key) == (holder, key) && is_meant(object.version));
        for object in here.filter(|object| object.evicted_at.is_none()) {
            object.dropped_at.get_or_insert(now);
        }
    }

    /// A holder has let an object go because another node has a copy.
    pub(crate) fn moved(&mut self, holder: usize, generation: Generation, now: u64) {
        let object = self.object(holder, generation);
        object.evicted_at = Some(now);
        object.is_moved = true;
        self.counts.moves += 1;
    }

    /// Whether the put of an object was to take the place of what the key had.
    pub(crate) fn replaces(&self, object: &Object) -> bool {
        self.puts[&object.version.put_id].manner.replace
    }

    /// A holder has let an object go.
    pub(crate) fn evicted(&mut self, holder: usize, generation: Generation, now: u64) {
        self.object(holder, generation).evicted_at = Some(now);
        self.counts.evictions += 1;
    }

    fn object(&mut self, holder: usize, generation: Generation) -> &mut Object {
        let mut objects = self.objects.iter_mut();
        let object = objects.find(|object| (object.holder, object.generation) == (holder, generation));
        object.expect("it was sealed")
    }

    pub(crate) fn removal_begins(&mut self, key: usize, coordinator: usize, now: u64) -> usize {
        self.removals.push(Removal {
            key,
            coordinator,
            began: now,
            end: None,
        });
        self.removals.len() - 1
    }

    pub(crate) fn removal_ends(&mut self, removal: usize, end: RemovalEnd, now: u64) {
        self.counts.removals += u64::from(matches!(end, RemovalEnd::Done { changed: true }));
        self.removals[removal].end = Some((now, end));
    }

    pub(crate) fn put_began(&self, object: &Object) -> u64 {
        self.puts[&object.version.put_id].began
    }
}

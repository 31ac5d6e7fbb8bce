//! What has happened, as somebody knows who sees everything at once: the model that answers are compared with.
//!
//! It knows nothing of homes. An *object* here is one sealing: a region of one holder in one of its lives.

use std::collections::{BTreeMap, BTreeSet};
use tenon_protocol::ids::{Generation, PutId, Version};
use tenon_protocol::message::{Committed, PutOutcome};

/// What was asked of a home, and not answered in time, is done with within this: it may wait for a holder.
pub(crate) const LATE_REQUEST_MS: u64 = 5_000;

/// One sealing.
#[derive(Debug, Clone)]
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

/// A put with all its tries.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub(crate) key: usize,
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

    pub(crate) fn put_begins(&mut self, put_id: PutId, key: usize, now: u64) {
        let put = Put {
            key,
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

//! What is under way or waits, key by key.

use super::claim::Source;
use super::entry::Object;
use super::evicted::Gone;
use super::inquire::Inquiry;
use super::members::Retold;
use super::{Answer, Directory, QuestionToken, RequestToken, wrong_answer};
use crate::limits::WAITING_PER_KEY_MAX;
use std::collections::{BTreeMap, VecDeque};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Epoch, Generation, KeyHash, NodeId, PutId, Version};
use tenon_protocol::member::{
    HolderAnswer, HomeAnswer, HomeEntry, HomeEvent, HomeEventKind, Homes, MirrorEntry, OwedDrop, Page, PutEnd,
    Withdrawal,
};
use tenon_protocol::message::{KeyResult, Replica};

/// What a question is asked for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// To relay the answer.
    Forward { token: RequestToken, event: HomeEvent },
    /// To go on with what runs on the key.
    Step { key: KeyHash },
    /// To tell the partner what was decided without it.
    Retell(Retold),
    /// To learn what a member holds.
    Announce { member: NodeId },
    /// To learn what the partner keeps.
    HandOver { partner: NodeId },
    /// To have a drop paid that a holder owes.
    Pay { key: KeyHash, owed: OwedDrop },
}

/// Who asked for something to be done on a key, and whose key it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asker {
    /// Who waits for the answer; nobody once that one's deadline has passed.
    pub(super) token: Option<RequestToken>,
    pub(super) homes: Homes,
}

/// Something to be done on a key.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asker: Asker,
    pub(super) kind: JobKind,
    /// The partner, which has learned all, was asked what it knows of the key.
    pub(super) is_recalled: bool,
}

/// See [`Job`].
#[derive(Debug)]
pub(super) enum JobKind {
    Propose(Proposal),
    Sealed(Seal),
    Withdrawn(Withdrawal),
    Evicted(Gone),
    Remove(Removal),
    Mirror(MirrorEntry),
    Check {
        version: Version,
    },
    /// The partner says what it knows of the key.
    Claim(MirrorEntry),
    /// A holder says that it has this object of the key.
    Publish(HomeEntry),
    /// This object is said not to be where it should be.
    Doubt {
        version: Version,
    },
}

/// An object that wants to be the key's.
#[derive(Debug, Clone)]
pub(super) struct Proposal {
    pub(super) put_id: PutId,
    pub(super) len_bytes: u64,
    pub(super) replicas: Box<[Replica]>,
    /// It gets at least this epoch, to come after what it supersedes.
    pub(super) epoch_min: u64,
    /// The key's object, which its holders were found not to have any more.
    pub(super) gone: Option<Version>,
    /// The partner knew of an object that we did not.
    pub(super) was_objected: bool,
    /// It comes after the object that the key has, wherever that is.
    pub(super) replace: bool,
}

/// What a holder says it has sealed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seal {
    pub(super) version: Version,
    /// Its holder and generation; `None` if the accepted one was asked for.
    pub(super) region: Option<(NodeId, Generation)>,
    /// The answer waits until what it has taken the place of is dropped.
    pub(super) replace: bool,
}

impl Seal {
    /// Whether it is of this very object.
    pub(super) fn is_of(&self, object: &Object) -> bool {
        let is_meant = |(holder, generation)| {
            let mut replicas = object.replicas.iter();
            replicas.any(|replica| (replica.holder, replica.generation) == (holder, generation))
        };
        object.version == self.version && self.region.is_none_or(is_meant)
    }
}

/// How far a removal has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Removal {
    /// Objects of a higher epoch are not meant.
    pub(super) up_to: Epoch,
    /// There was an object.
    pub(super) changed: bool,
    /// The partner knew of an object that we did not.
    pub(super) was_objected: bool,
}

impl Removal {
    fn new(up_to: Epoch) -> Self {
        Self {
            up_to,
            changed: false,
            was_objected: false,
        }
    }
}

impl Job {
    /// The job that an event is, which is no look-up.
    pub(super) fn new(token: RequestToken, event: HomeEvent) -> Self {
        let kind = match event.kind {
            HomeEventKind::Propose {
                put_id,
                len_bytes,
                replicas,
                replace,
            } => JobKind::Propose(Proposal {
                put_id,
                len_bytes,
                replicas: replicas.into(),
                epoch_min: 1,
                gone: None,
                was_objected: false,
                replace,
            }),
            HomeEventKind::Sealed {
                version,
                holder,
                generation,
                replace,
            } => JobKind::Sealed(Seal {
                version,
                region: Some((holder, generation)),
                replace,
            }),
            HomeEventKind::Withdrawn(withdrawal) => JobKind::Withdrawn(withdrawal),
            HomeEventKind::Evicted {
                version,
                holder,
                generation,
            } => JobKind::Evicted(Gone {
                version,
                region: Withdrawal {
                    put_id: version.put_id,
                    holder,
                    generation,
                },
            }),
            HomeEventKind::Remove { up_to } => JobKind::Remove(Removal::new(up_to)),
            HomeEventKind::Mirror(entry) => JobKind::Mirror(entry),
            HomeEventKind::Share(entry) => JobKind::Claim(entry),
            HomeEventKind::Publish(entry) => JobKind::Publish(entry),
            HomeEventKind::Doubt { version } => JobKind::Doubt { version },
            HomeEventKind::Locate | HomeEventKind::Recall => unreachable!("look-ups are answered at once"),
        };
        let asker = Asker {
            token: Some(token),
            homes: event.homes,
        };
        Self::of(asker, kind)
    }

    pub(super) fn of(asker: Asker, kind: JobKind) -> Self {
        Self {
            asker,
            kind,
            is_recalled: false,
        }
    }

    /// Whether it decides, so that all that was decided before must be known.
    fn decides(&self) -> bool {
        matches!(self.kind, JobKind::Propose(_) | JobKind::Remove(_) | JobKind::Sealed(_))
    }

    /// Whether it is not worth beginning once nobody waits for its answer.
    pub(super) fn is_for_its_answer(&self) -> bool {
        matches!(self.kind, JobKind::Propose(_) | JobKind::Remove(_))
    }
}

/// What is waited for on a key.
#[derive(Debug)]
pub(super) enum Step {
    /// Whether a holder has the key's object still, before a proposal goes on.
    Confirm(Proposal, Inquiry),
    /// Whether a holder has the key's object still, before another of the same epoch, said by this source, takes its
    /// place.
    Weigh(Object, Source, Inquiry),
    /// Whether the holder has an object that would take the place of another of the same epoch.
    Win(Object, Inquiry),
    /// Whether a holder has an object that a reader did not find.
    Doubt(Inquiry),
    /// What the partner knows of the key, before a job goes on.
    Recall(JobKind),
    /// The partner, which was told what the key's entry is now.
    Mirror(Decision),
    /// Holders that are to drop what was removed.
    Drop(Drops),
    /// Whether a pending object is sealed.
    Check { version: Version },
    /// The same of one that comes after an object that is gone.
    CheckLater { gone: Version, later: Version },
}

/// What the partner is told of.
#[derive(Debug)]
pub(super) enum Decision {
    Accepted(Proposal),
    Sealed {
        version: Version,
        /// It was not known before.
        changed: bool,
        /// See [`Seal::replace`].
        replace: bool,
    },
    /// A put has ended: the key keeps the object it has.
    Exists(PutEnd),
    Removed(Removal),
    /// A proposal was taken away, or this object.
    Withdrawn(Option<Version>),
    /// A replica was evicted, which was the object's last one if that is named. Its put has ended so.
    Evicted {
        withdrawn: Option<Version>,
        region: Withdrawal,
        end: PutEnd,
    },
    /// A pending object was looked after; nobody waits.
    Checked,
    /// A holder has taken a copy of the key's object.
    Gained,
}

impl Decision {
    /// The object that its holders have dropped, if that is what is told.
    pub(super) fn withdrawn(&self) -> Option<Version> {
        match self {
            Self::Withdrawn(withdrawn) | Self::Evicted { withdrawn, .. } => *withdrawn,
            Self::Accepted(proposal) => proposal.gone,
            _ => None,
        }
    }

    /// Whether it says how puts have ended, or takes the object away that said so.
    pub(super) fn ends_puts(&self) -> bool {
        matches!(
            self,
            Self::Exists(_) | Self::Sealed { .. } | Self::Removed(_) | Self::Evicted { .. }
        )
    }
}

/// See [`Step::Drop`].
#[derive(Debug)]
pub(super) struct Drops {
    /// Not answered yet.
    pub(super) open: BTreeMap<QuestionToken, OwedDrop>,
    /// Why one was not done.
    pub(super) failure: Option<ServiceError>,
}

/// What came of telling the partner.
#[derive(Debug)]
pub(super) enum Mirrored {
    /// It knows.
    Told,
    /// There is no partner, or it was not reached: then the decision is degraded.
    Alone { degraded: bool },
    /// It knows of a sealed object that is not superseded.
    Objected(HomeEntry),
    /// It has removed the key's object at an epoch that this home did not know, and what it was told is below that.
    Behind(MirrorEntry),
    /// The put that was accepted has ended before, with this object.
    Ended { version: Version, degraded: bool },
    /// It was reached and did not take it.
    Refused(ServiceError),
}

/// What is under way on one key, and what waits.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) running: Option<(Asker, Step)>,
    /// Waits for what is running.
    pub(super) queue: VecDeque<Job>,
    /// Proposals that wait until the accepted object is sealed or withdrawn.
    pub(super) parked: VecDeque<Job>,
}

impl Work {
    /// Nobody waits for this answer any more.
    pub(super) fn forget(&mut self, token: RequestToken) {
        for jobs in [&mut self.queue, &mut self.parked] {
            jobs.retain(|job| job.asker.token != Some(token) || !job.is_for_its_answer());
        }
        let running = self.running.iter_mut().map(|(asker, _)| asker);
        for asker in running.chain(self.queue.iter_mut().map(|job| &mut job.asker)) {
            if asker.token == Some(token) {
                asker.token = None;
            }
        }
    }

    /// Who waits for answers.
    pub(super) fn tokens(&self) -> impl Iterator<Item = RequestToken> {
        let running = self.running.iter().map(|(asker, _)| asker);
        let waiting = self.queue.iter().chain(&self.parked).map(|job| &job.asker);
        running.chain(waiting).filter_map(|asker| asker.token)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.queue.is_empty() && self.parked.is_empty()
    }
}

impl Directory {
    /// Does a job now, or after what is under way on its key.
    pub(super) fn submit(&mut self, key: KeyHash, job: Job) {
        if let JobKind::Withdrawn(withdrawal) = job.kind {
            self.cancel_proposals(key, withdrawal);
        }
        let work = self.work.entry(key).or_default();
        if job.is_for_its_answer() && work.queue.len() + work.parked.len() >= WAITING_PER_KEY_MAX {
            let message = format!("{WAITING_PER_KEY_MAX} calls wait for the key; try again later");
            return self.reply(job.asker.token, Err(ServiceError::new(ErrorCode::Overloaded, message)));
        }
        work.queue.push_back(job);
        self.advance(key);
    }

    /// Begins what waits on a key, as far as it can be begun.
    pub(super) fn advance(&mut self, key: KeyHash) {
        while let Some(work) = self.work.get_mut(&key) {
            if work.running.is_some() {
                return;
            }
            if self.entries.pending(key).is_none() {
                while let Some(job) = work.parked.pop_back() {
                    work.queue.push_front(job);
                }
            }
            let Some(job) = work.queue.pop_front() else {
                if work.is_idle() {
                    self.work.remove(&key);
                }
                return;
            };
            self.start(key, job);
        }
    }

    /// Begins a job: it is over, or waits for an answer, when this returns.
    fn start(&mut self, key: KeyHash, job: Job) {
        self.lose_the_dead(key);
        if job.decides() && !job.is_recalled && !self.may_decide(job.asker.homes) {
            return self.recall(key, job);
        }
        let Job {
            asker,
            kind,
            is_recalled,
        } = job;
        match kind {
            JobKind::Propose(proposal) => self.propose(key, asker, proposal),
            JobKind::Sealed(seal) => self.sealed(key, asker, seal),
            JobKind::Withdrawn(withdrawal) => self.withdrawn(key, asker, withdrawal),
            JobKind::Evicted(gone) => self.evicted(key, asker, gone),
            JobKind::Remove(removal) => self.remove(key, asker, removal),
            JobKind::Mirror(told) => self.take_mirror(key, asker, told),
            JobKind::Check { version } => self.check(key, asker, version),
            JobKind::Claim(told) => self.claim(key, asker, told),
            JobKind::Publish(entry) => self.publish(key, asker, entry, is_recalled),
            JobKind::Doubt { version } => self.doubt(key, asker, version),
        }
    }

    /// Goes on with what runs on a key, which has asked `question`.
    pub(super) fn step(&mut self, key: KeyHash, question: QuestionToken, answer: Answer) {
        let running = self.work.get_mut(&key).and_then(|work| work.running.take());
        let (asker, step) = running.expect("a question is asked by what runs on its key");
        self.lose_the_dead(key);
        match step {
            Step::Confirm(proposal, inquiry) => self.confirmed(key, asker, proposal, inquiry, answer.into_holders()),
            Step::Weigh(object, source, inquiry) => {
                self.weighed(key, asker, (object, source), inquiry, answer.into_holders());
            }
            Step::Win(object, inquiry) => self.won(key, asker, object, inquiry, answer.into_holders()),
            Step::Doubt(inquiry) => self.doubted(key, asker, inquiry, answer.into_holders()),
            Step::Recall(kind) => self.recalled(key, Job::of(asker, kind), answer),
            Step::Mirror(decision) => self.mirror_answered(key, asker, decision, answer),
            Step::Drop(mut drops) => {
                let owed = drops.open.remove(&question).expect("a drop that is waited for");
                self.dropped(key, asker, drops, owed, answer.into_holders());
            }
            Step::Check { version } => self.checked(key, asker, version, answer.into_holders()),
            Step::CheckLater { gone, later } => self.later_checked(key, asker, (gone, later), answer.into_holders()),
        }
        self.advance(key);
    }

    /// Waits for the answer to what was asked.
    pub(super) fn wait(&mut self, key: KeyHash, asker: Asker, step: Step) {
        let work = self.work.entry(key).or_default();
        assert!(work.running.is_none(), "one thing at a time runs on a key");
        work.running = Some((asker, step));
    }

    /// Goes on once the partner has been told.
    pub(super) fn mirrored(&mut self, key: KeyHash, asker: Asker, decision: Decision, mut mirrored: Mirrored) {
        self.note_untold(key, asker.homes, &decision, &mirrored);
        if let Mirrored::Behind(known) = &mut mirrored {
            self.bury(key, asker.homes, known);
        }
        match decision {
            Decision::Accepted(proposal) => self.accepted(key, asker, proposal, mirrored),
            Decision::Removed(removal) => self.removal_told(key, asker, removal, mirrored),
            Decision::Sealed {
                version,
                changed,
                replace,
            } => self.seal_told(key, asker, (version, changed, replace), mirrored),
            Decision::Exists(end) => self.end_told(key, asker, end, &mirrored),
            Decision::Withdrawn(_) | Decision::Evicted { .. } | Decision::Checked | Decision::Gained => {
                if let Mirrored::Objected(object) = mirrored {
                    self.entries.change(key, |entry| {
                        entry.sealed.get_or_insert(Object::new(asker.homes, object));
                    });
                }
                self.reply(asker.token, Ok(HomeAnswer::Done { changed: true }));
            }
        }
    }
}

impl Answer {
    /// `None` if the holder was not reached.
    pub(super) fn into_holders(self) -> Option<KeyResult<HolderAnswer>> {
        match self {
            Self::Holder(answer) => Some(answer),
            Self::Partner(_) | Self::Page(_) => Some(Err(wrong_answer())),
            Self::Unreachable => None,
        }
    }

    /// `None` if the member was not reached.
    pub(super) fn into_page(self) -> Option<KeyResult<Page>> {
        match self {
            Self::Page(answer) => Some(answer),
            Self::Partner(_) | Self::Holder(_) => Some(Err(wrong_answer())),
            Self::Unreachable => None,
        }
    }

    pub(super) fn into_mirrored(self) -> Mirrored {
        match self {
            Self::Partner(Ok(HomeAnswer::Done { .. })) => Mirrored::Told,
            Self::Partner(Ok(HomeAnswer::Hit(entry))) => Mirrored::Objected(entry),
            Self::Partner(Ok(HomeAnswer::Known { entry, .. })) => Mirrored::Behind(entry),
            Self::Partner(Ok(HomeAnswer::AlreadyExists { version, degraded })) => Mirrored::Ended { version, degraded },
            Self::Partner(Err(error)) => Mirrored::Refused(error),
            Self::Partner(Ok(_)) | Self::Holder(_) | Self::Page(_) => Mirrored::Refused(wrong_answer()),
            Self::Unreachable => Mirrored::Alone { degraded: true },
        }
    }
}

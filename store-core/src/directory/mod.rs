//! One node as a home: which object a key has, and where it lies.
//!
//! A [`Directory`] is a state machine: [`Event`]s and the time go in, [`Action`]s come out. It keeps the entries of all
//! keys of which the node is a home, whatever their namespace; each event names the key's
//! [`Homes`](tenon_protocol::member::Homes).
//!
//! *Who decides.* The first home decides, and tells the second the key's new entry before it answers. The second passes
//! decisions on to the first and relays the answer; only if the first is unreachable *to it* it decides alone. What one
//! home of two decided alone is *degraded*. Look-ups are answered by either.
//!
//! *One thing at a time.* What changes a key's entry is done one after the other, so that the second home hears of the
//! changes in their order. A proposal for a key that has an accepted object which is not sealed yet is *parked* until
//! that is decided.
//!
//! *Bounds.* Every request is answered once, at the latest at the first [`Event::Tick`] after its deadline; every
//! question that is not answered within its deadline is taken as unreachable. The caller tells at once of questions
//! that cannot be delivered, or whose link broke, by [`Event::Unreachable`]. A node that *refuses* the other is not
//! unreachable: the caller answers with an error, and no home acts alone because of it.
//!
//! *Lives.* Replicas in an earlier life of their holder are gone. That is noticed whenever an entry is looked at; a
//! sweep frees the rest.

mod deadlined;
mod entry;
mod mirror;
mod propose;
mod remove;
mod seal;
mod tombstone;
mod work;

use self::deadlined::Deadlined;
use self::entry::Entries;
use self::tombstone::Tombstones;
use self::work::{Job, Purpose, Work};
use crate::limits::{DIRECTORY_QUESTION_MS, DIRECTORY_REQUESTS_MAX, DIRECTORY_SHARDS};
use crate::outcomes::Outcomes;
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId, Version};
use tenon_protocol::member::{HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEvent, HomeEventKind};
use tenon_protocol::message::{KeyResult, Replica};

/// A request that waits for an answer. Made by the caller, unlike any that is not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(pub u64);

/// A question that waits for an answer. Made by the directory, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionToken(u64);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A holder, a coordinator or the partner tells or asks something about a key.
    Request {
        /// Answered by [`Action::Reply`], once.
        token: RequestToken,
        /// Of the answer.
        deadline: Time,
        /// What.
        event: HomeEvent,
    },
    /// The partner answered [`Action::AskPartner`].
    PartnerAnswered {
        /// What it was asked.
        question: QuestionToken,
        /// What it said. An error means that it was reached, or that it and this node refuse each other.
        answer: KeyResult<HomeAnswer>,
    },
    /// A holder answered [`Action::AskHolder`].
    HolderAnswered {
        /// What it was asked.
        question: QuestionToken,
        /// What it said.
        answer: KeyResult<HolderAnswer>,
    },
    /// A question could not be delivered, or the node that was to answer it does not answer any more.
    Unreachable {
        /// Which.
        question: QuestionToken,
    },
    /// A node was seen in this life. Seeing an earlier or the same one again changes nothing.
    Incarnation {
        /// Which node.
        node: NodeId,
        /// Which life.
        incarnation: Incarnation,
    },
    /// Time has passed. Needed every few hundred milliseconds.
    Tick,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Answer a request.
    Reply {
        /// Which.
        token: RequestToken,
        /// With what.
        answer: KeyResult<HomeAnswer>,
    },
    /// Send an event to the other home of its key.
    AskPartner {
        /// Names it in the answer.
        question: QuestionToken,
        /// Who.
        to: NodeId,
        /// After this an answer is of no use.
        deadline: Time,
        /// What.
        event: HomeEvent,
    },
    /// Ask a holder, which may be this node.
    AskHolder {
        /// Names it in the answer.
        question: QuestionToken,
        /// Who.
        to: NodeId,
        /// After this an answer is of no use.
        deadline: Time,
        /// What.
        ask: HolderQuestion,
    },
}

/// How much a directory keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirectoryCounts {
    /// Keys with an entry.
    pub keys: usize,
    /// Of which with an accepted object that is not sealed yet.
    pub pending: usize,
    /// Keys with a tombstone.
    pub tombstones: usize,
    /// Requests not answered yet.
    pub requests: usize,
    /// Questions not answered yet.
    pub questions: usize,
}

/// The entries of the keys of which one node is a home.
#[derive(Debug)]
pub struct Directory {
    node: NodeId,
    is_settled: bool,
    /// Of the event being handled.
    now: Time,
    entries: Entries,
    tombstones: Tombstones,
    /// The latest life of each node that was seen.
    lives: BTreeMap<NodeId, Incarnation>,
    outcomes: Outcomes,
    /// When the holders of pending objects are asked.
    checks: BTreeSet<(Time, KeyHash)>,
    /// Keys on which something is under way or waits.
    work: BTreeMap<KeyHash, Work>,
    requests: Deadlined<RequestToken, KeyHash>,
    questions: Deadlined<QuestionToken, Purpose>,
    last_question: u64,
    /// The next shard to sweep, while a sweep is under way.
    sweep: Option<usize>,
    actions: Vec<Action>,
}

impl Directory {
    /// The directory of a node that knows no entry yet. It is settled: a view that is fixed hands nothing over.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            is_settled: true,
            now: Time::ZERO,
            entries: Entries::new(),
            tombstones: Tombstones::default(),
            lives: BTreeMap::new(),
            outcomes: Outcomes::default(),
            checks: BTreeSet::new(),
            work: BTreeMap::new(),
            requests: Deadlined::new(),
            questions: Deadlined::new(),
            last_question: 0,
            sweep: None,
            actions: Vec::new(),
        }
    }

    /// Whether what is not known is known not to be. An unsettled home answers look-ups with [`HomeAnswer::Unknown`]
    /// instead of [`HomeAnswer::Miss`].
    pub fn set_settled(&mut self, is_settled: bool) {
        self.is_settled = is_settled;
    }

    /// How much is kept.
    pub fn counts(&self) -> DirectoryCounts {
        DirectoryCounts {
            keys: self.entries.len(),
            pending: self.checks.len(),
            tombstones: self.tombstones.len(),
            requests: self.requests.len(),
            questions: self.questions.len(),
        }
    }

    /// Takes an event in and says what is to be done, in this order. `now` is not before that of the event before.
    ///
    /// # Panics
    /// If the token of a new request is that of one which is not answered yet.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Action> {
        self.now = self.now.max(now);
        match event {
            Event::Request { token, deadline, event } => self.request(token, deadline, event),
            Event::PartnerAnswered { question, answer } => self.answered(question, Answer::Partner(answer)),
            Event::HolderAnswered { question, answer } => self.answered(question, Answer::Holder(answer)),
            Event::Unreachable { question } => self.answered(question, Answer::Unreachable),
            Event::Incarnation { node, incarnation } => self.note_life(node, incarnation),
            Event::Tick => self.tick(),
        }
        std::mem::take(&mut self.actions)
    }

    fn request(&mut self, token: RequestToken, deadline: Time, event: HomeEvent) {
        let (key, homes) = (event.key_hash, event.homes);
        let refusal = if !homes.includes(self.node) {
            let message = format!("node {} is no home of the key: the member lists differ", self.node);
            ServiceError::new(ErrorCode::Conflict, message)
        } else if matches!(event.kind, HomeEventKind::Locate) {
            let answer = Ok(self.locate(key));
            return self.actions.push(Action::Reply { token, answer });
        } else if self.requests.len() >= DIRECTORY_REQUESTS_MAX {
            let message = format!("{DIRECTORY_REQUESTS_MAX} requests wait at this home; try again later");
            ServiceError::new(ErrorCode::Overloaded, message)
        } else {
            self.requests.insert(token, deadline, key);
            return self.decide(token, deadline, event);
        };
        let answer = Err(refusal);
        self.actions.push(Action::Reply { token, answer });
    }

    /// Does what changes an entry, or lets the first home do it.
    fn decide(&mut self, token: RequestToken, deadline: Time, event: HomeEvent) {
        let is_passed_on = event.homes.first != self.node && !matches!(event.kind, HomeEventKind::Mirror(_));
        if is_passed_on {
            return self.forward(token, deadline, event);
        }
        if let HomeEventKind::Propose { replicas, .. } = &event.kind {
            for replica in replicas {
                self.note_life(replica.holder, replica.incarnation);
            }
        }
        self.submit(event.key_hash, Job::new(token, event));
    }

    fn locate(&mut self, key: KeyHash) -> HomeAnswer {
        self.lose_the_dead(key);
        self.advance(key);
        match self.entries.sealed(key) {
            Some(object) => HomeAnswer::Hit(object.into()),
            None if self.is_settled => HomeAnswer::Miss,
            None => HomeAnswer::Unknown,
        }
    }

    /// Lets the first home decide.
    fn forward(&mut self, token: RequestToken, deadline: Time, event: HomeEvent) {
        let purpose = Purpose::Forward {
            token,
            event: event.clone(),
        };
        let question = self.new_question(deadline, purpose);
        self.actions.push(Action::AskPartner {
            question,
            to: event.homes.first,
            deadline,
            event,
        });
    }

    fn answered(&mut self, question: QuestionToken, answer: Answer) {
        match self.questions.remove(question) {
            // Its time was over: it has been done without.
            None => {}
            Some(Purpose::Step { key }) => self.step(key, question, answer),
            Some(Purpose::Forward { token, event }) => match answer {
                Answer::Partner(answer) => self.reply(Some(token), answer),
                Answer::Holder(_) => self.reply(Some(token), Err(wrong_answer())),
                Answer::Unreachable if self.requests.contains(token) => {
                    self.submit(event.key_hash, Job::new(token, event));
                }
                // Nobody waits for it any more.
                Answer::Unreachable => {}
            },
        }
    }

    fn tick(&mut self) {
        while let Some(token) = self.requests.first_expired(self.now) {
            self.give_up(token);
        }
        while let Some(question) = self.questions.first_expired(self.now) {
            self.answered(question, Answer::Unreachable);
        }
        while let Some(&(check_at, key)) = self.checks.first() {
            if check_at > self.now {
                break;
            }
            self.check_pending(key);
        }
        self.tombstones.forget(self.now);
        if let Some(shard) = self.sweep {
            let lives = &self.lives;
            self.entries.sweep(shard, |replica| is_gone(lives, replica));
            self.sweep = Some(shard + 1).filter(|&next| next < DIRECTORY_SHARDS);
        }
    }

    /// A request's deadline has passed: it is answered so, and not begun if it was not.
    fn give_up(&mut self, token: RequestToken) {
        let key = self.requests.remove(token);
        let message = "the home has not decided within the deadline";
        let answer = Err(ServiceError::new(ErrorCode::DeadlineExceeded, message));
        self.actions.push(Action::Reply { token, answer });
        if let Some(work) = key.and_then(|key| self.work.get_mut(&key)) {
            work.forget(token);
        }
        if let Some(key) = key {
            self.advance(key);
        }
    }

    fn note_life(&mut self, node: NodeId, incarnation: Incarnation) {
        let is_new = self.lives.get(&node).is_none_or(|&known| known < incarnation);
        if !is_new {
            return;
        }
        self.lives.insert(node, incarnation);
        self.sweep = Some(0);
        let pending: Vec<KeyHash> = self.checks.iter().map(|&(_, key)| key).collect();
        for key in pending {
            if self
                .entries
                .pending(key)
                .is_some_and(|pending| pending.object.is_on(node))
            {
                self.lose_the_dead(key);
                self.advance(key);
            }
        }
    }

    /// Takes away what lay in earlier lives of its holders.
    fn lose_the_dead(&mut self, key: KeyHash) {
        let lives = &self.lives;
        let gone = |replica: &Replica| is_gone(lives, replica);
        let Some(entry) = self.entries.get(key) else { return };
        let sealed = entry.sealed.iter().flat_map(|object| object.replicas.iter());
        let pending = entry.pending.iter().flat_map(|pending| pending.object.replicas.iter());
        if !sealed.chain(pending).any(gone) {
            return;
        }
        let lost_check = self.entries.change(key, |entry| {
            if entry.sealed.as_mut().is_some_and(|object| object.lose(gone)) {
                entry.sealed = None;
            }
            // A pending object was verified with all its replicas: if one is gone it is another one that must be
            // proposed.
            let is_lost = entry
                .pending
                .as_ref()
                .is_some_and(|pending| pending.object.replicas.iter().any(gone));
            is_lost
                .then(|| entry.pending.take())
                .flatten()
                .map(|pending| pending.check_at)
        });
        if let Some(check_at) = lost_check {
            self.checks.remove(&(check_at, key));
        }
    }

    fn reply(&mut self, token: Option<RequestToken>, answer: KeyResult<HomeAnswer>) {
        if let Some(token) = token
            && self.requests.remove(token).is_some()
        {
            self.actions.push(Action::Reply { token, answer });
        }
    }

    fn new_question(&mut self, deadline: Time, purpose: Purpose) -> QuestionToken {
        self.last_question += 1;
        let question = QuestionToken(self.last_question);
        self.questions.insert(question, deadline, purpose);
        question
    }

    /// Asks a holder about an object of a key.
    fn ask_holder(&mut self, key: KeyHash, to: NodeId, version: Version, kind: HolderQuestionKind) -> QuestionToken {
        let deadline = self.now.after_ms(DIRECTORY_QUESTION_MS);
        let question = self.new_question(deadline, Purpose::Step { key });
        let ask = HolderQuestion {
            key_hash: key,
            version,
            kind,
        };
        self.actions.push(Action::AskHolder {
            question,
            to,
            deadline,
            ask,
        });
        question
    }

    /// Panics if indexes, entries and what is under way do not agree. O(n): for tests.
    pub fn check_invariants(&self) {
        self.entries.check_invariants();
        self.outcomes.check_invariants();
        let pending = |(key, entry): (KeyHash, &entry::Entry)| Some((entry.pending.as_ref()?.check_at, key));
        let pending: BTreeSet<_> = self.entries.iter().filter_map(pending).collect();
        assert_eq!(
            pending, self.checks,
            "a pending object is not checked, or one is that is none"
        );
        let mut waited_for = BTreeSet::new();
        for (key, work) in &self.work {
            assert!(!work.is_idle(), "{key}: nothing to do is kept");
            assert!(
                work.running.is_some() || work.queue.is_empty(),
                "{key}: nothing runs, and jobs wait"
            );
            let is_decided = work.running.is_none() && self.entries.pending(*key).is_none();
            assert!(
                !is_decided || work.parked.is_empty(),
                "{key}: proposals wait for nothing"
            );
            waited_for.extend(work.tokens());
        }
        let mut steps = BTreeSet::new();
        for (_, purpose) in self.questions.iter() {
            match purpose {
                Purpose::Step { key } => steps.insert(*key),
                Purpose::Forward { token, .. } => waited_for.insert(*token),
            };
        }
        let running = self.work.iter().filter(|(_, work)| work.running.is_some());
        assert!(running.map(|(key, _)| *key).eq(steps), "what runs has no question open");
        for (token, _) in self.requests.iter() {
            assert!(waited_for.contains(&token), "{token:?} will never be answered");
        }
    }
}

/// What came of a question.
#[derive(Debug)]
enum Answer {
    Partner(KeyResult<HomeAnswer>),
    Holder(KeyResult<HolderAnswer>),
    Unreachable,
}

/// Whether a later life of its holder was seen.
fn is_gone(lives: &BTreeMap<NodeId, Incarnation>, replica: &Replica) -> bool {
    lives
        .get(&replica.holder)
        .is_some_and(|&known| known > replica.incarnation)
}

fn wrong_answer() -> ServiceError {
    ServiceError::new(
        ErrorCode::Internal,
        "a member answered another question than it was asked",
    )
}

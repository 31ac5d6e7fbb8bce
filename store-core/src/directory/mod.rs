//! One node as a home: which object a key has, and where it lies.
//!
//! A [`Directory`] is a state machine: [`Event`]s and the time go in, [`Action`]s come out. It keeps the entries of all
//! keys of which the node is a home, whatever their namespace; each event names the key's
//! [`Homes`].
//!
//! *Who decides.* The first home decides, and tells the second the key's new entry before it answers. The second passes
//! decisions on to the first and relays the answer; only if the first is unreachable *to it* it decides alone. What one
//! home of two decided alone is *degraded*. Look-ups are answered by either.
//!
//! *One thing at a time.* What changes a key's entry is done one after the other, so that the second home hears of the
//! changes in their order. A proposal for a key that has an accepted object which is not sealed yet is *parked* until
//! that is decided.
//!
//! *Alone.* A home decides without its partner only while that one is known to be out of reach ([`Event::Lost`]). A
//! question that was not answered says less: the link may have broken, the answer may be late, or this node may have
//! stood still while the other one went on. It is asked again until there is an answer or the partner is lost.
//!
//! *Bounds.* Every request is answered once, at the latest at the first [`Event::Tick`] after its deadline; every
//! question that is not answered within its deadline is taken as not delivered. The caller tells at once of questions
//! that cannot be delivered, or whose link broke, by [`Event::Unreachable`]. A node that *refuses* the other is not
//! unreachable: the caller answers with an error, and no home acts alone because of it.
//!
//! *Lives.* Replicas in an earlier life of their holder are gone. That is noticed whenever an entry is looked at; a
//! sweep frees the rest.

mod claim;
mod deadlined;
mod entry;
mod event;
mod evicted;
mod inquire;
mod learn;
mod members;
mod mirror;
mod packed;
mod propose;
mod remove;
mod seal;
mod tombstone;
mod work;

use self::claim::Contested;
use self::deadlined::Deadlined;
use self::entry::Entries;
use self::members::Members;
use self::tombstone::Tombstones;
use self::work::{Job, Purpose, Work};
use crate::limits::{COLLECT_MS, DIRECTORY_QUESTION_MS, DIRECTORY_REQUESTS_MAX, RETRY_MS, SWEPT_AT_ONCE_MAX};
use crate::outcomes::Outcomes;
use crate::planted::{Bug, is_planted};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId, Version};
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEvent, HomeEventKind, Homes, Page,
};
use tenon_protocol::message::{KeyResult, Replica};

pub use self::event::{Action, DirectoryCounts, Event, QuestionToken, RequestToken};
pub use self::members::UNTOLD_ALL;

/// The entries of the keys of which one node is a home.
#[derive(Debug)]
pub struct Directory {
    node: NodeId,
    pause_ms: u64,
    members: Members,
    /// Of the event being handled.
    now: Time,
    /// When this node went on after it had stood still.
    went_on_at: Time,
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
    /// Decisions that wait until more is known.
    waiting: VecDeque<(KeyHash, Job)>,
    /// Keys whose running step is to tell the partner, which did not answer and is not known to be out of reach.
    untaken: BTreeSet<KeyHash>,
    /// Requests for the first home, which did not answer and is not known to be out of reach.
    unforwarded: VecDeque<(RequestToken, HomeEvent)>,
    retry_at: Time,
    contested: Contested,
    /// See [`DirectoryCounts::learned`].
    learned: u64,
    /// See [`DirectoryCounts::losers`].
    losers: u64,
    /// Questions that ask for pages and are not answered yet.
    learning: usize,
    /// Questions that ask for drops that are owed and are not answered yet.
    paying: usize,
    collect_at: Time,
    /// The holder that was asked last for the drops that it owes; the next one is asked after it.
    collected: Option<NodeId>,
    /// The key after which a sweep goes on, while one is under way.
    sweep: Option<Option<KeyHash>>,
    actions: Vec<Action>,
}

impl Directory {
    /// The directory of a node that knows no entry yet, and no other member until the first [`Event::View`]. A gap of
    /// `pause_ms` between two events, of which [`Event::Tick`] is the most frequent, says that this node has stood still
    /// ([`ProbeTiming::pause_ms`](crate::membership::ProbeTiming::pause_ms)).
    pub fn new(node: NodeId, pause_ms: u64) -> Self {
        Self {
            node,
            pause_ms,
            members: Members::default(),
            now: Time::ZERO,
            went_on_at: Time::ZERO,
            entries: Entries::default(),
            tombstones: Tombstones::default(),
            lives: BTreeMap::new(),
            outcomes: Outcomes::default(),
            checks: BTreeSet::new(),
            work: BTreeMap::new(),
            requests: Deadlined::new(),
            questions: Deadlined::new(),
            last_question: 0,
            waiting: VecDeque::new(),
            untaken: BTreeSet::new(),
            unforwarded: VecDeque::new(),
            retry_at: Time::ZERO,
            contested: Contested::default(),
            learned: 0,
            losers: 0,
            learning: 0,
            paying: 0,
            collect_at: Time::ZERO,
            collected: None,
            sweep: None,
            actions: Vec::new(),
        }
    }

    /// How much is kept.
    pub fn counts(&self) -> DirectoryCounts {
        DirectoryCounts {
            keys: self.entries.len(),
            pending: self.checks.len(),
            tombstones: self.tombstones.len(),
            requests: self.requests.len(),
            questions: self.questions.len(),
            unannounced: self.members.waited_for(),
            out_of_step: self.members.out_of_step(),
            untold: self.members.untold_total(),
            waiting: self.waiting.len(),
            owed: self.tombstones.owed_total(),
            learned: self.learned,
            losers: self.losers,
        }
    }

    /// What a heartbeat to `member` says: how many keys were decided without it that it was not told of yet.
    pub fn untold_keys(&self, member: NodeId) -> u64 {
        self.members.untold_keys(member)
    }

    /// Takes an event in and says what is to be done, in this order. `now` is not before that of the event before.
    ///
    /// # Panics
    /// If the token of a new request is that of one which is not answered yet.
    pub fn handle(&mut self, now: Time, event: Event) -> Vec<Action> {
        // Ticks come so often that only a node that stood still sees such a gap.
        if now.since_ms(self.now) >= self.pause_ms && !is_planted(Bug::PauseUnnoticed) {
            self.members.doubt_all();
            self.went_on_at = now;
        }
        self.now = self.now.max(now);
        match event {
            Event::Request { token, deadline, event } => self.request(token, deadline, event),
            Event::PartnerAnswered { question, answer } => self.answered(question, Answer::Partner(answer)),
            Event::HolderAnswered { question, answer } => self.answered(question, Answer::Holder(answer)),
            Event::Unreachable { question } => self.answered(question, Answer::Unreachable),
            Event::Announced { question, answer } | Event::HandedOver { question, answer } => {
                self.answered(question, Answer::Page(answer));
            }
            Event::View { members } => {
                let others = members.into_iter().filter(|member| *member != self.node);
                self.members.set(others);
            }
            Event::Life { node, incarnation } => {
                self.note_life(node, incarnation);
                self.members.met(node, incarnation);
            }
            Event::Heard {
                node,
                incarnation,
                untold_keys,
                asked_at,
            } => self.heard(node, incarnation, untold_keys, asked_at),
            Event::Lost { node } => {
                self.members.lost(node);
                self.ask_again();
                self.retry_waiting();
            }
            Event::Tick => self.tick(),
        }
        std::mem::take(&mut self.actions)
    }

    fn request(&mut self, token: RequestToken, deadline: Time, event: HomeEvent) {
        let (key, homes) = (event.key_hash, event.homes);
        let refusal = if let Err(unsound) = event.check() {
            ServiceError::new(ErrorCode::InvalidArgument, unsound.to_string())
        } else if !homes.includes(self.node) {
            let message = format!("node {} is no home of the key: the member lists differ", self.node);
            ServiceError::new(ErrorCode::Conflict, message)
        } else if let Some(answer) = self.look_up(&event) {
            let answer = Ok(answer);
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
        let is_for_this_home = matches!(
            event.kind,
            HomeEventKind::Mirror(_)
                | HomeEventKind::Share(_)
                | HomeEventKind::Publish(_)
                | HomeEventKind::Doubt { .. }
        );
        if event.homes.first != self.node && !is_for_this_home && !is_planted(Bug::SecondDecides) {
            return self.forward(token, deadline, event);
        }
        if let HomeEventKind::Propose { replicas, .. } = &event.kind {
            for replica in replicas {
                self.note_life(replica.holder, replica.incarnation);
            }
        }
        self.submit(event.key_hash, Job::new(token, event));
    }

    /// The answer to what changes nothing; `None` if the event does.
    fn look_up(&mut self, event: &HomeEvent) -> Option<HomeAnswer> {
        let (key, homes) = (event.key_hash, event.homes);
        match event.kind {
            HomeEventKind::Locate => Some(self.locate(key, homes)),
            HomeEventKind::Recall => {
                self.lose_the_dead(key);
                Some(HomeAnswer::Known {
                    entry: self.all_known(key),
                    is_grown: self.is_grown(homes),
                })
            }
            _ => None,
        }
    }

    fn locate(&mut self, key: KeyHash, homes: Homes) -> HomeAnswer {
        self.lose_the_dead(key);
        self.advance(key);
        let is_sure = is_planted(Bug::MissesUnsettled);
        if !self.members.is_in_step_with(homes.partner_of(self.node)) && !is_sure {
            return HomeAnswer::Unknown;
        }
        match self.entries.sealed(key) {
            Some(object) => HomeAnswer::Hit((&object).into()),
            None if self.members.is_complete() || is_sure => HomeAnswer::Miss,
            None => HomeAnswer::Unknown,
        }
    }

    /// A member was heard of.
    fn heard(&mut self, node: NodeId, incarnation: Incarnation, untold_keys: u64, asked_at: Option<Time>) {
        self.note_life(node, incarnation);
        self.members.met(node, incarnation);
        // What was asked before this node stood still says nothing of what it missed.
        let is_reachable = asked_at.is_some_and(|asked_at| asked_at >= self.went_on_at);
        if self.members.heard(node, incarnation, untold_keys, is_reachable) {
            self.collect_debts(node);
            self.ask_again();
        }
        self.learn();
        self.retry_waiting();
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

    /// The first home did not answer what it is to decide.
    fn not_forwarded(&mut self, token: RequestToken, event: HomeEvent) {
        match self.requests.deadline(token) {
            // That the caller's time is over does not say that the first home can't be reached.
            Some(deadline) if deadline <= self.now && !is_planted(Bug::SecondDecidesLate) => self.give_up(token),
            Some(_) if self.members.is_lost(event.homes.first) || is_planted(Bug::SecondDecidesLate) => {
                self.submit(event.key_hash, Job::new(token, event));
            }
            Some(_) => self.unforwarded.push_back((token, event)),
            // Nobody waits for it any more.
            None => {}
        }
    }

    /// Asks partners again what they did not answer, or goes on without those that are lost.
    fn ask_again(&mut self) {
        for (token, event) in std::mem::take(&mut self.unforwarded) {
            match self.requests.deadline(token) {
                Some(deadline) if !self.members.is_lost(event.homes.first) => self.forward(token, deadline, event),
                _ => self.not_forwarded(token, event),
            }
        }
        for key in std::mem::take(&mut self.untaken) {
            self.tell_again(key);
        }
    }

    fn answered(&mut self, question: QuestionToken, answer: Answer) {
        let answer = match answer {
            Answer::Partner(Ok(told)) if told.check().is_err() => Answer::Partner(Err(wrong_answer())),
            answer => answer,
        };
        match self.questions.remove(question) {
            // Its time was over: it has been done without.
            None => {}
            Some(Purpose::Step { key }) => self.step(key, question, answer),
            Some(Purpose::Forward { token, event }) => match answer {
                Answer::Partner(answer) => self.reply(Some(token), answer),
                Answer::Holder(_) | Answer::Page(_) => self.reply(Some(token), Err(wrong_answer())),
                Answer::Unreachable => self.not_forwarded(token, event),
            },
            Some(Purpose::Retell(retold)) => {
                let is_told = matches!(answer, Answer::Partner(Ok(_)));
                self.members.retold(self.now, retold, is_told);
                self.learn();
            }
            Some(Purpose::Announce { member }) => self.learned(member, true, answer.into_page()),
            Some(Purpose::HandOver { partner }) => self.learned(partner, false, answer.into_page()),
            Some(Purpose::Pay { key, owed }) => self.paid(key, owed, answer.into_holders()),
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
        self.learn();
        self.retry_contested();
        if self.now >= self.retry_at {
            self.retry_at = self.now.after_ms(RETRY_MS);
            self.ask_again();
            self.retry_waiting();
        }
        if self.now >= self.collect_at {
            self.collect_at = self.now.after_ms(COLLECT_MS);
            self.collect_next();
        }
        self.sweep_some();
    }

    /// Goes on with looking for what lies in earlier lives of its holders.
    fn sweep_some(&mut self) {
        let Some(after) = self.sweep else { return };
        let lives = &self.lives;
        let (lost, next) = self
            .entries
            .lost_after(after, SWEPT_AT_ONCE_MAX, |life| is_over(lives, life));
        self.sweep = next.map(Some);
        for key in lost {
            self.lose_the_dead(key);
            self.advance(key);
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
        self.sweep = Some(None);
        self.forgive(node);
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
        if !self.entries.has_lost(key, |life| is_over(lives, life)) {
            return;
        }
        let lost_check = self.entries.change(key, |entry| {
            if entry.sealed.as_mut().is_some_and(|object| object.lose(gone)) {
                entry.sealed = None;
            }
            entry.unheard.retain(|replica| !gone(replica));
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
        let pending = self.entries.all_pending().map(|(key, pending)| (pending.check_at, key));
        let pending: BTreeSet<_> = pending.collect();
        assert_eq!(
            pending, self.checks,
            "a pending object is not checked, or one is that is none"
        );
        self.members.check_invariants();
        self.tombstones.check_invariants();
        let mut waited_for: BTreeSet<_> = self.waiting.iter().filter_map(|(_, job)| job.asker.token).collect();
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
        steps.extend(&self.untaken);
        waited_for.extend(self.unforwarded.iter().map(|(token, _)| *token));
        for (_, purpose) in self.questions.iter() {
            match purpose {
                Purpose::Step { key } => steps.insert(*key),
                Purpose::Forward { token, .. } => waited_for.insert(*token),
                _ => false,
            };
        }
        let running = self.work.iter().filter(|(_, work)| work.running.is_some());
        assert!(running.map(|(key, _)| *key).eq(steps), "what runs waits for nothing");
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
    Page(KeyResult<Page>),
    Unreachable,
}

/// Whether a later life of its holder was seen.
fn is_gone(lives: &BTreeMap<NodeId, Incarnation>, replica: &Replica) -> bool {
    is_over(lives, (replica.holder, replica.incarnation))
}

fn is_over(lives: &BTreeMap<NodeId, Incarnation>, (node, life): packed::Life) -> bool {
    lives.get(&node).is_some_and(|&known| known > life) && !is_planted(Bug::KeepsEarlierLives)
}

fn wrong_answer() -> ServiceError {
    ServiceError::new(
        ErrorCode::Internal,
        "a member answered another question than it was asked",
    )
}

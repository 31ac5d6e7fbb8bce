//! Two homes and some holders, with messages that are delivered when the test says so.

use std::collections::{BTreeMap, HashSet};
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{Epoch, Generation, Incarnation, KeyHash, NodeId, PutId, SegmentId, Slot, Version};
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEntry, HomeEvent, HomeEventKind, Homes,
    MirrorEntry, Page, PageKey, Withdrawal,
};
use tenon_protocol::message::{KeyResult, Replica};
use tenon_store_core::directory::{Action, Directory, Event, QuestionToken, RequestToken};
use tenon_store_core::time::Time;

pub(crate) const FIRST: usize = 0;
pub(crate) const SECOND: usize = 1;
pub(crate) const DEADLINE_MS: u64 = 5_000;

pub(crate) fn home_id(home: usize) -> NodeId {
    NodeId::from_bytes([u8::try_from(home).unwrap() + 1; 16])
}

pub(crate) fn holder_id(holder: usize) -> NodeId {
    NodeId::from_bytes([u8::try_from(holder).unwrap() + 100; 16])
}

pub(crate) fn homes() -> Homes {
    Homes {
        first: home_id(FIRST),
        second: Some(home_id(SECOND)),
    }
}

pub(crate) fn key(id: u8) -> KeyHash {
    KeyHash::from_bytes([id; 16])
}

pub(crate) fn put(id: u64) -> PutId {
    PutId::from_bytes(u128::from(id).to_be_bytes())
}

pub(crate) fn replica(holder: usize, incarnation: u64, generation: u64) -> Replica {
    Replica {
        holder: holder_id(holder),
        incarnation: Incarnation(incarnation),
        segment: SegmentId(1),
        offset_bytes: 0,
        slot: Slot(0),
        generation: Generation(generation),
        is_copy: false,
    }
}

pub(crate) fn propose(put_id: u64, holder: usize, incarnation: u64) -> HomeEventKind {
    HomeEventKind::Propose {
        put_id: put(put_id),
        len_bytes: 100,
        replicas: vec![replica(holder, incarnation, put_id)],
        replace: false,
    }
}

/// A removal of whatever the key has.
pub(crate) fn remove() -> HomeEventKind {
    HomeEventKind::Remove { up_to: Epoch(u64::MAX) }
}

pub(crate) fn withdrawn(put_id: u64, holder: usize) -> HomeEventKind {
    HomeEventKind::Withdrawn(Withdrawal {
        put_id: put(put_id),
        holder: holder_id(holder),
        generation: Generation(put_id),
    })
}

/// A home that stands still for so long doubts what it knows.
pub(crate) const PAUSE_MS: u64 = 1_500;

/// A home that knows nothing.
pub(crate) fn directory(home: usize) -> Directory {
    Directory::new(home_id(home), PAUSE_MS)
}

/// A node that holds objects.
#[derive(Debug, Clone)]
pub(crate) struct FakeHolder {
    pub(crate) incarnation: u64,
    pub(crate) answers: bool,
    pub(crate) sealed: BTreeMap<KeyHash, Version>,
    /// What it was told to drop because it never was the key's.
    pub(crate) refused: Vec<Version>,
}

/// Whose request a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asker {
    Test,
    /// The other home, which does not wait for it any more.
    Nobody,
    /// The other home, for this question.
    Home(QuestionToken),
}

/// Something under way.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "few messages are under way in a test")]
pub(crate) enum Message {
    ToHome(usize, Event),
    ToHolder {
        home: usize,
        question: QuestionToken,
        holder: usize,
        ask: HolderQuestion,
    },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) now: Time,
    /// How long the requests that are sent from now on may take.
    pub(crate) deadline_ms: u64,
    pub(crate) directories: Vec<Directory>,
    /// A home that does not answer takes nothing in and gives nothing out.
    pub(crate) home_answers: [bool; 2],
    pub(crate) holders: Vec<FakeHolder>,
    pub(crate) under_way: Vec<Message>,
    askers: BTreeMap<(usize, RequestToken), Asker>,
    /// Removals that a home has not answered, or not even heard of, by their keys.
    removals: BTreeMap<(usize, RequestToken), KeyHash>,
    /// The objects of which a home is told by the other one, until it answers.
    mirrored: BTreeMap<(usize, RequestToken), Vec<(KeyHash, Version)>>,
    last_token: u64,
    /// Answers to the test's requests that it has not taken yet.
    pub(crate) answers: BTreeMap<RequestToken, KeyResult<HomeAnswer>>,
    /// What homes have asked holders about and not been told yet: until when, and about which object.
    asked: BTreeMap<(usize, QuestionToken), (Time, KeyHash, Version)>,
    /// The same of what they have told each other.
    told: BTreeMap<(usize, QuestionToken), (Time, KeyHash)>,
    /// Keys of which a home was not heard to know in time.
    pub(crate) untold: HashSet<KeyHash>,
    /// Objects whose holder said that it does not have them sealed, or did not answer for them in time, or of which the
    /// partner knew better.
    pub(crate) doubted: HashSet<(KeyHash, Version)>,
}

impl Cluster {
    pub(crate) fn new(holders: usize) -> Self {
        let holder = FakeHolder {
            incarnation: 1,
            answers: true,
            sealed: BTreeMap::new(),
            refused: Vec::new(),
        };
        Self {
            now: Time::ZERO,
            deadline_ms: DEADLINE_MS,
            directories: [FIRST, SECOND].map(directory).into(),
            home_answers: [true; 2],
            holders: vec![holder; holders],
            under_way: Vec::new(),
            askers: BTreeMap::new(),
            removals: BTreeMap::new(),
            mirrored: BTreeMap::new(),
            last_token: 0,
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            told: BTreeMap::new(),
            untold: HashSet::new(),
            doubted: HashSet::new(),
        }
    }

    fn request(&mut self, home: usize, asker: Asker, event: HomeEvent) -> RequestToken {
        self.last_token += 1;
        let token = RequestToken(self.last_token);
        self.askers.insert((home, token), asker);
        let key = event.key_hash;
        match &event.kind {
            HomeEventKind::Remove { .. } => drop(self.removals.insert((home, token), key)),
            HomeEventKind::Mirror(told) => {
                let objects = told.pending.iter().chain(&told.sealed);
                let objects = objects.map(|object| (key, object.version)).collect();
                self.mirrored.insert((home, token), objects);
            }
            _ => {}
        }
        let deadline = self.now.after_ms(self.deadline_ms);
        let event = Event::Request { token, deadline, event };
        self.under_way.push(Message::ToHome(home, event));
        token
    }

    /// Sends something to a home.
    pub(crate) fn send(&mut self, home: usize, key_hash: KeyHash, kind: HomeEventKind) -> RequestToken {
        let homes = homes();
        self.request(home, Asker::Test, HomeEvent { key_hash, homes, kind })
    }

    /// Delivers one message.
    pub(crate) fn deliver(&mut self, index: usize) {
        let message = self.under_way.remove(index);
        match message {
            Message::ToHome(home, _) if !self.home_answers[home] => self.lose(message),
            Message::ToHome(home, event) => self.event(home, event),
            Message::ToHolder {
                home,
                question,
                holder,
                ask,
            } => {
                let event = match self.ask(holder, &ask) {
                    Some(answer) => Event::HolderAnswered {
                        question,
                        answer: Ok(answer),
                    },
                    None => Event::Unreachable { question },
                };
                self.under_way.push(Message::ToHome(home, event));
            }
        }
    }

    /// A message to a home that does not answer: if the other home has sent it, that one learns so.
    fn lose(&mut self, message: Message) {
        let Message::ToHome(home, Event::Request { token, .. }) = message else {
            return;
        };
        self.removals.remove(&(home, token));
        if let Some(Asker::Home(question)) = self.askers.remove(&(home, token)) {
            self.under_way
                .push(Message::ToHome(1 - home, Event::Unreachable { question }));
        }
    }

    /// A message to a home that is paused: it waits for it, or its sender gives it up first, and it arrives
    /// nevertheless.
    pub(crate) fn leave_or_give_up(&mut self, index: usize, gives_up: bool) {
        let Message::ToHome(home, Event::Request { token, .. }) = &self.under_way[index] else {
            return;
        };
        let (home, token) = (*home, *token);
        if !gives_up {
            return;
        }
        if let Some(Asker::Home(question)) = self.askers.get(&(home, token)).copied() {
            self.askers.insert((home, token), Asker::Nobody);
            self.under_way
                .push(Message::ToHome(1 - home, Event::Unreachable { question }));
        }
    }

    /// Whether a request of the test can't be answered, since it went to a home that does not answer.
    pub(crate) fn is_lost(&self, token: RequestToken) -> bool {
        !self.home_answers[FIRST] && !self.askers.contains_key(&(SECOND, token))
    }

    /// Whether a home may yet begin to remove what the key has: a message may come long after its sender has given it up.
    pub(crate) fn may_remove(&self, key: KeyHash) -> bool {
        self.removals.values().any(|removed| *removed == key)
    }

    fn ask(&mut self, holder: usize, ask: &HolderQuestion) -> Option<HolderAnswer> {
        let HolderQuestion {
            key_hash,
            version,
            kind,
        } = *ask;
        let node = &mut self.holders[holder];
        let held = node.sealed.get(&key_hash) == Some(&version);
        if !node.answers || !held {
            self.doubted.insert((key_hash, version));
        }
        node.answers.then(|| match kind {
            HolderQuestionKind::Confirm => HolderAnswer::Confirmed { held },
            HolderQuestionKind::Drop | HolderQuestionKind::Refuse => {
                if held {
                    node.sealed.remove(&key_hash);
                    node.refused
                        .extend((kind == HolderQuestionKind::Refuse).then_some(version));
                }
                HolderAnswer::Dropped
            }
            HolderQuestionKind::Stay => unreachable!("homes do not ask it"),
        })
    }

    /// A home takes an event in, and what it says is put under way.
    pub(crate) fn event(&mut self, home: usize, event: Event) {
        match event {
            Event::HolderAnswered { question, .. } => drop(self.asked.remove(&(home, question))),
            Event::PartnerAnswered { question, .. } => drop(self.told.remove(&(home, question))),
            _ => {}
        }
        let actions = self.directories[home].handle(self.now, event);
        // All of them are looked at, so not where there are many.
        if self.directories[home].counts().keys < 1_000 {
            self.directories[home].check_invariants();
        }
        for action in actions {
            match action {
                Action::Reply { token, answer } => self.reply(home, token, answer),
                Action::AskPartner {
                    question,
                    to,
                    event,
                    deadline,
                } => {
                    self.told.insert((home, question), (deadline, event.key_hash));
                    assert_eq!(to, home_id(1 - home));
                    self.request(1 - home, Asker::Home(question), event);
                }
                Action::AskAnnouncement { question, to, .. } => self.announce(home, question, to),
                Action::AskHandOver {
                    question, to, after, ..
                } => {
                    let page = match to == home_id(1 - home) {
                        true => self.directories[1 - home].hand_over(home_id(home), after),
                        false => Page::default(),
                    };
                    let answer = Ok(page);
                    self.under_way
                        .push(Message::ToHome(home, Event::HandedOver { question, answer }));
                }
                Action::AskHolder {
                    question,
                    to,
                    ask,
                    deadline,
                } => {
                    self.asked
                        .insert((home, question), (deadline, ask.key_hash, ask.version));
                    let holder = (0..self.holders.len()).find(|&holder| holder_id(holder) == to).unwrap();
                    self.under_way.push(Message::ToHolder {
                        home,
                        question,
                        holder,
                        ask,
                    });
                }
            }
        }
    }

    /// A home answers whoever has asked it.
    fn reply(&mut self, home: usize, token: RequestToken, answer: KeyResult<HomeAnswer>) {
        self.removals.remove(&(home, token));
        let told = self.mirrored.remove(&(home, token)).into_iter().flatten();
        if !matches!(answer, Ok(HomeAnswer::Done { .. })) {
            self.doubted.extend(told);
        }
        match self.askers.remove(&(home, token)) {
            Some(Asker::Test) => {
                self.answers.insert(token, answer);
            }
            Some(Asker::Home(question)) => {
                let event = Event::PartnerAnswered { question, answer };
                self.under_way.push(Message::ToHome(1 - home, event));
            }
            Some(Asker::Nobody) => {}
            None => panic!("{token:?} is answered twice"),
        }
    }

    /// A member answers a home what it holds, or does not answer.
    fn announce(&mut self, home: usize, question: QuestionToken, member: NodeId) {
        let event = match self.announcement(member) {
            Some(page) => Event::Announced {
                question,
                answer: Ok(page),
            },
            None => Event::Unreachable { question },
        };
        self.under_way.push(Message::ToHome(home, event));
    }

    /// What a member holds; `None` if it does not answer.
    fn announcement(&self, member: NodeId) -> Option<Page> {
        let Some(holder) = (0..self.holders.len()).find(|&holder| holder_id(holder) == member) else {
            return Some(Page::default());
        };
        let FakeHolder {
            incarnation,
            answers,
            sealed,
            ..
        } = &self.holders[holder];
        let keys = sealed.iter().map(|(&key_hash, &version)| PageKey {
            key_hash,
            homes: homes(),
            entry: told(version, holder, *incarnation),
        });
        let keys = keys.collect();
        answers.then_some(Page { keys, next: None })
    }

    /// Lets a home know all members, of which it hears at once.
    pub(crate) fn meet(&mut self, home: usize) {
        let members = [home_id(FIRST), home_id(SECOND)].into_iter();
        let members: Vec<NodeId> = members.chain((0..self.holders.len()).map(holder_id)).collect();
        let others: Vec<NodeId> = members.iter().copied().filter(|id| *id != home_id(home)).collect();
        self.event(home, Event::View { members });
        for id in others {
            self.hear(home, id);
        }
    }

    /// A home hears of a member.
    pub(crate) fn hear(&mut self, home: usize, id: NodeId) {
        let incarnation = (0..self.holders.len())
            .find(|&holder| holder_id(holder) == id)
            .map_or(1, |holder| self.holders[holder].incarnation);
        let untold_keys = match id == home_id(1 - home) {
            true => self.directories[1 - home].untold_keys(home_id(home)),
            false => 0,
        };
        let heard = Event::Heard {
            node: id,
            incarnation: Incarnation(incarnation),
            untold_keys,
            asked_at: Some(self.now),
        };
        self.event(home, heard);
    }

    /// Delivers all messages, and those that come of them, in order.
    pub(crate) fn settle(&mut self) {
        while !self.under_way.is_empty() {
            self.deliver(0);
        }
    }

    /// Lets time pass at both homes.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        let overdue = self.asked.values().filter(|(deadline, ..)| *deadline <= self.now);
        self.doubted
            .extend(overdue.map(|(_, key_hash, version)| (*key_hash, *version)));
        let untold = self.told.values().filter(|(deadline, _)| *deadline <= self.now);
        self.untold.extend(untold.map(|(_, key_hash)| *key_hash));
        for home in [FIRST, SECOND] {
            if self.home_answers[home] {
                self.event(home, Event::Tick);
            }
        }
    }

    /// Sends something and delivers everything.
    pub(crate) fn call(&mut self, home: usize, key_hash: KeyHash, kind: HomeEventKind) -> KeyResult<HomeAnswer> {
        let token = self.send(home, key_hash, kind);
        self.settle();
        self.answers.remove(&token).expect("an answer")
    }

    /// A put from proposal to report.
    pub(crate) fn store(&mut self, home: usize, key_hash: KeyHash, put_id: u64, holder: usize) -> Version {
        let incarnation = self.holders[holder].incarnation;
        let version = match self.call(home, key_hash, propose(put_id, holder, incarnation)) {
            Ok(HomeAnswer::Accepted { version, .. }) => version,
            other => panic!("{other:?}"),
        };
        self.holders[holder].sealed.insert(key_hash, version);
        let answer = self.call(home, key_hash, sealed(version, holder));
        assert_eq!(answer, Ok(HomeAnswer::Done { changed: true }));
        version
    }

    /// Which object a home knows of.
    pub(crate) fn located(&mut self, home: usize, key_hash: KeyHash) -> Option<Version> {
        match self.call(home, key_hash, HomeEventKind::Locate) {
            Ok(HomeAnswer::Hit(entry)) => Some(entry.version),
            Ok(HomeAnswer::Miss) => None,
            other => panic!("{other:?}"),
        }
    }

    /// A holder begins a new life, of which the homes learn.
    pub(crate) fn restart(&mut self, holder: usize) {
        let node = &mut self.holders[holder];
        node.incarnation += 1;
        node.sealed.clear();
        let incarnation = Incarnation(node.incarnation);
        for home in [FIRST, SECOND] {
            let node = holder_id(holder);
            self.under_way.push(Message::ToHome(home, heard(node, incarnation)));
        }
    }
}

/// What the holder of an object reports that it has sealed where it was proposed.
pub(crate) fn sealed(version: Version, holder: usize) -> HomeEventKind {
    let bytes = version.put_id.to_bytes();
    let generation = u64::from_be_bytes(bytes[8..].try_into().unwrap());
    HomeEventKind::Sealed {
        version,
        holder: holder_id(holder),
        generation: Generation(generation),
        replace: false,
    }
}

/// The object of this put is evicted by the holder, which had it in this region.
pub(crate) fn evicted(cluster: &mut Cluster, version: Version, holder: usize, generation: u64) -> HomeEventKind {
    cluster.holders[holder].sealed.retain(|_, sealed| *sealed != version);
    HomeEventKind::Evicted {
        version,
        holder: holder_id(holder),
        generation: Generation(generation),
    }
}

/// What is known of a key that has this object.
pub(crate) fn told(version: Version, holder: usize, incarnation: u64) -> MirrorEntry {
    let generation = u64::from(version.put_id.to_bytes()[15]);
    MirrorEntry {
        sealed: Some(HomeEntry {
            version,
            len_bytes: 100,
            replicas: vec![replica(holder, incarnation, generation)],
        }),
        ..MirrorEntry::default()
    }
}

/// What a holder says that has an object since its first life.
pub(crate) fn publish(version: Version, holder: usize) -> HomeEventKind {
    HomeEventKind::Publish(told(version, holder, 1).sealed.expect("it has"))
}

/// What a home learns of a member that answers it and withholds nothing.
pub(crate) fn heard(node: NodeId, incarnation: Incarnation) -> Event {
    Event::Heard {
        node,
        incarnation,
        untold_keys: 0,
        asked_at: Some(Time::MAX),
    }
}

/// The answer to a put whose key keeps this object.
pub(crate) fn exists(version: Version, degraded: bool) -> KeyResult<HomeAnswer> {
    Ok(HomeAnswer::AlreadyExists { version, degraded })
}

pub(crate) fn done(changed: bool) -> KeyResult<HomeAnswer> {
    Ok(HomeAnswer::Done { changed })
}

/// The node that an error names, if it is `unavailable`.
pub(crate) fn unavailable(answer: KeyResult<HomeAnswer>) -> Option<NodeId> {
    let ServiceError { code, node, .. } = answer.unwrap_err();
    assert_eq!(code, tenon_protocol::error::ErrorCode::Unavailable);
    node
}

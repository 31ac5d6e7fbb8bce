//! Drives this node's [`Directory`]: what it keeps as a home of keys.
//!
//! A batch of events makes a batch of actions, and those to one node travel in one frame.

use crate::clock;
use crate::late::{Late, Waiting};
use crate::node::Node;
use crate::pages;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId};
use tenon_protocol::limits::BATCH_KEYS_MAX;
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HomeAnswer, HomeEvent, HomeEventKind, MemberReply, MemberRequest, Page, PageRequest,
    Ticket,
};
use tenon_protocol::message::KeyResult;
use tenon_store_core::directory::{Action, Directory, DirectoryCounts, Event, QuestionToken, RequestToken};
use tenon_store_core::time::Time;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Questions of this home to one node, of one kind, and what asked them.
#[derive(Debug)]
struct Questions<T> {
    tokens: Vec<QuestionToken>,
    asked: Vec<T>,
    deadline: Time,
}

impl<T> Default for Questions<T> {
    fn default() -> Self {
        Self {
            tokens: Vec::new(),
            asked: Vec::new(),
            deadline: Time::ZERO,
        }
    }
}

impl<T> Questions<T> {
    fn one(token: QuestionToken, asked: T, deadline: Time) -> Self {
        Self {
            tokens: vec![token],
            asked: vec![asked],
            deadline,
        }
    }

    /// The same in as many frames as it takes: a member answers no more questions at once than a batch has keys.
    fn frames(mut self) -> Vec<Self> {
        let mut frames = Vec::new();
        while self.tokens.len() > BATCH_KEYS_MAX {
            let rest = Self {
                tokens: self.tokens.split_off(BATCH_KEYS_MAX),
                asked: self.asked.split_off(BATCH_KEYS_MAX),
                deadline: self.deadline,
            };
            frames.push(std::mem::replace(&mut self, rest));
        }
        frames.push(self);
        frames
    }

    fn push(&mut self, token: QuestionToken, asked: T, deadline: Time) {
        self.tokens.push(token);
        self.asked.push(asked);
        self.deadline = self.deadline.max(deadline);
    }
}

/// How questions of one kind are put, and what is told of their answers.
struct Asking<T, A> {
    call: fn(Vec<T>) -> MemberRequest,
    take: fn(MemberReply) -> Option<Vec<KeyResult<A>>>,
    tell: fn(QuestionToken, KeyResult<A>) -> Event,
    doing: &'static str,
}

static TO_HOLDERS: Asking<HolderQuestion, HolderAnswer> = Asking {
    call: MemberRequest::Holder,
    take: |reply| match reply {
        MemberReply::Holder(answers) => Some(answers),
        _ => None,
    },
    tell: |question, answer| Event::HolderAnswered { question, answer },
    doing: "it holds the object",
};

static ANNOUNCEMENTS: Asking<Option<KeyHash>, Page> = Asking {
    call: |asked| MemberRequest::Announce(page_request(&asked)),
    take: |reply| match reply {
        MemberReply::Announce(page) => Some(vec![Ok(page)]),
        _ => None,
    },
    tell: |question, answer| Event::Announced { question, answer },
    doing: "it is to announce what it holds",
};

static HAND_OVERS: Asking<Option<KeyHash>, Page> = Asking {
    call: |asked| MemberRequest::HandOver(page_request(&asked)),
    take: |reply| match reply {
        MemberReply::HandOver(page) => Some(vec![Ok(page)]),
        _ => None,
    },
    tell: |question, answer| Event::HandedOver { question, answer },
    doing: "it is to hand over what it keeps",
};

/// Pages are asked for one at a time.
fn page_request(asked: &[Option<KeyHash>]) -> PageRequest {
    PageRequest {
        after: asked.first().copied().flatten(),
    }
}

/// The entries of the keys of which this node is a home, and the requests that wait for them.
#[derive(Debug)]
pub(crate) struct HomeDriver {
    directory: Mutex<Directory>,
    waiting: Mutex<HashMap<RequestToken, oneshot::Sender<KeyResult<HomeAnswer>>>>,
    late: Late,
    last_request: AtomicU64,
}

impl HomeDriver {
    /// Knows no entry yet.
    pub(crate) fn new(node: NodeId, life: Incarnation, pause_ms: u64) -> Self {
        Self {
            directory: Mutex::new(Directory::new(node, pause_ms)),
            waiting: Mutex::default(),
            late: Late::new(life),
            last_request: AtomicU64::new(0),
        }
    }

    /// Takes requests in. Those that are answered at once have their answer; the others a receiver for it.
    fn request(&self, events: Vec<HomeEvent>, deadline: Instant) -> (Vec<(RequestToken, Waiting)>, Vec<Action>) {
        let count = events.len() as u64;
        let first = self.last_request.fetch_add(count, Ordering::Relaxed) + 1;
        let (now, deadline) = (clock::now(), clock::at(deadline));
        let mut directory = self.directory.lock();
        let tokens = (first..first + count).map(RequestToken);
        let mut actions = Vec::new();
        for (token, event) in tokens.clone().zip(events) {
            actions.extend(directory.handle(now, Event::Request { token, deadline, event }));
        }
        let mut answered = HashMap::new();
        actions.retain_mut(|action| match action {
            Action::Reply { token, answer } if (first..first + count).contains(&token.0) => {
                answered.insert(*token, answer.clone());
                false
            }
            _ => true,
        });
        // Still under the directory's lock: no answer to these requests can be given before their receivers are in
        // place.
        let mut waiting = self.waiting.lock();
        let mut receive = |token| match answered.remove(&token) {
            Some(answer) => Waiting::Answered(answer),
            None => {
                let (sender, receiver) = oneshot::channel();
                waiting.insert(token, sender);
                Waiting::For(receiver)
            }
        };
        (tokens.map(|token| (token, receive(token))).collect(), actions)
    }

    fn handle(&self, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
        let now = clock::now();
        let mut directory = self.directory.lock();
        events
            .into_iter()
            .flat_map(|event| directory.handle(now, event))
            .collect()
    }

    /// How many keys were decided without a member that it was not told of yet.
    pub(crate) fn untold_keys(&self, member: NodeId) -> u64 {
        self.directory.lock().untold_keys(member)
    }

    /// What this home keeps of the keys that it shares with another, a step of a page.
    pub(crate) fn hand_over(&self, partner: NodeId, after: Option<KeyHash>) -> Page {
        pages::step(&self.directory, |directory| directory.hand_over(partner, after))
    }

    /// How much is kept, and how far this home has learned what others know.
    pub(crate) fn counts(&self) -> DirectoryCounts {
        self.directory.lock().counts()
    }

    fn reply(&self, token: RequestToken, answer: KeyResult<HomeAnswer>) {
        if let Some(sender) = self.waiting.lock().remove(&token) {
            // Whoever asked may have gone: then nobody needs the answer.
            let _ = sender.send(answer);
        }
    }
}

impl Node {
    /// What this node says as a home, one answer per event. The directory answers every request, at the latest at its
    /// deadline; a frame of several is answered sooner, with tickets for what is not decided by then.
    pub(crate) async fn serve_home(
        self: &Arc<Self>,
        asker: NodeId,
        events: Vec<HomeEvent>,
        deadline: Instant,
    ) -> Vec<KeyResult<HomeAnswer>> {
        let (requests, actions) = self.homes().request(events, deadline);
        self.perform(actions);
        self.homes().late.answers(asker, requests, deadline).await
    }

    /// What has become of what these tickets stand for. Of what an earlier life has taken in this one knows nothing: it
    /// is as if that had not answered.
    pub(crate) async fn serve_later(
        &self,
        asker: NodeId,
        tickets: &[Ticket],
        deadline: Instant,
    ) -> Result<Vec<KeyResult<HomeAnswer>>, ServiceError> {
        let late = &self.homes().late;
        let requests = late.take(asker, tickets);
        let requests =
            requests.ok_or_else(|| ServiceError::unavailable(self.id(), "it has begun another life since"))?;
        Ok(late.answers(asker, requests, deadline).await)
    }

    /// Time has passed.
    pub(crate) fn tick_homes(self: &Arc<Self>) {
        self.homes().late.forget(Instant::now());
        self.perform(self.homes().handle([Event::Tick]));
    }

    /// Something was learned of a member.
    pub(crate) fn tell_homes(self: &Arc<Self>, event: Event) {
        self.perform(self.homes().handle([event]));
    }

    /// Does what the directory says. Questions to one node travel in one frame; those to this node are answered here.
    fn perform(self: &Arc<Self>, actions: Vec<Action>) {
        let mut actions = actions;
        while !actions.is_empty() {
            // Mirrors are answered at once and waited for briefly; what is passed on may wait for a decision. They
            // travel apart.
            let mut partners: BTreeMap<(NodeId, bool), Questions<HomeEvent>> = BTreeMap::new();
            let mut holders: BTreeMap<NodeId, Questions<HolderQuestion>> = BTreeMap::new();
            let mut own = Vec::new();
            for action in actions {
                match action {
                    Action::Reply { token, answer } => self.homes().reply(token, answer),
                    Action::AskPartner {
                        question,
                        to,
                        deadline,
                        event,
                    } => {
                        let is_mirror = matches!(event.kind, HomeEventKind::Mirror(_));
                        partners
                            .entry((to, is_mirror))
                            .or_default()
                            .push(question, event, deadline);
                    }
                    Action::AskHolder { question, to, ask, .. } if to == self.id() => {
                        own.push(Event::HolderAnswered {
                            question,
                            answer: self.holder().answer(&ask),
                        });
                    }
                    Action::AskHolder {
                        question,
                        to,
                        deadline,
                        ask,
                    } => holders.entry(to).or_default().push(question, ask, deadline),
                    Action::AskAnnouncement {
                        question,
                        to,
                        deadline,
                        after,
                    } => self.ask_page(&ANNOUNCEMENTS, to, Questions::one(question, after, deadline)),
                    Action::AskHandOver {
                        question,
                        to,
                        deadline,
                        after,
                    } => self.ask_page(&HAND_OVERS, to, Questions::one(question, after, deadline)),
                }
            }
            for ((to, _), questions) in partners {
                for frame in questions.frames() {
                    tokio::spawn(Arc::clone(self).put_to_partner(to, frame));
                }
            }
            for (to, questions) in holders {
                for frame in questions.frames() {
                    tokio::spawn(Arc::clone(self).put_questions(&TO_HOLDERS, to, frame));
                }
            }
            actions = self.homes().handle(own);
        }
    }

    fn ask_page(
        self: &Arc<Self>,
        kind: &'static Asking<Option<KeyHash>, Page>,
        to: NodeId,
        questions: Questions<Option<KeyHash>>,
    ) {
        tokio::spawn(Arc::clone(self).put_questions(kind, to, questions));
    }

    /// Puts questions to one node and tells the directory what came of each.
    async fn put_questions<T, A: Clone>(self: Arc<Self>, kind: &Asking<T, A>, to: NodeId, questions: Questions<T>) {
        let Questions {
            tokens,
            asked,
            deadline,
        } = questions;
        let reply = self
            .peers()
            .call(to, (kind.call)(asked), clock::instant(deadline), kind.doing)
            .await;
        let answers = self.answers_of(to, reply.map(kind.take), tokens.len());
        let told = tokens.into_iter().zip(answers).map(|(question, answer)| match answer {
            Some(answer) => (kind.tell)(question, answer),
            None => Event::Unreachable { question },
        });
        self.perform(self.homes().handle(told));
    }

    /// Puts questions to the other home of their keys, and tells the directory what came of each as soon as that is
    /// known.
    async fn put_to_partner(self: Arc<Self>, to: NodeId, questions: Questions<HomeEvent>) {
        let Questions {
            mut tokens,
            asked,
            deadline,
        } = questions;
        let mut request = MemberRequest::Home(asked);
        while !tokens.is_empty() {
            let reply = self
                .peers()
                .call(to, request, clock::instant(deadline), "it is the other home of the key")
                .await;
            let reply = reply.map(|reply| match reply {
                MemberReply::Home(answers) => Some(answers),
                _ => None,
            });
            let answers = self.answers_of(to, reply, tokens.len());
            let (mut told, mut late, mut tickets) = (Vec::new(), Vec::new(), Vec::new());
            for (question, answer) in tokens.into_iter().zip(answers) {
                match answer {
                    Some(Ok(HomeAnswer::Later { ticket })) => {
                        late.push(question);
                        tickets.push(ticket);
                    }
                    Some(answer) => told.push(Event::PartnerAnswered { question, answer }),
                    None => told.push(Event::Unreachable { question }),
                }
            }
            self.perform(self.homes().handle(told));
            (tokens, request) = (late, MemberRequest::Later(tickets));
        }
    }

    /// What a member has answered to each of so many questions; `None` if it was not reached.
    fn answers_of<A: Clone>(
        &self,
        member: NodeId,
        reply: Result<Option<Vec<KeyResult<A>>>, ServiceError>,
        questions: usize,
    ) -> Vec<Option<KeyResult<A>>> {
        match reply {
            Ok(Some(answers)) if answers.len() == questions => answers.into_iter().map(Some).collect(),
            Ok(_) => vec![Some(Err(not_answered())); questions],
            Err(error) => vec![self.unless_unreachable(member, error); questions],
        }
    }

    /// `None` if the member does not answer. One that refuses us, or we it, is there: no home may act alone because of
    /// that.
    fn unless_unreachable<T>(&self, member: NodeId, error: ServiceError) -> Option<KeyResult<T>> {
        let unreachable =
            error.code == ErrorCode::Unavailable && error.node == Some(member) && !self.peers().is_refused(member);
        (!unreachable).then_some(Err(error))
    }
}

pub(crate) fn not_answered() -> ServiceError {
    ServiceError::new(
        ErrorCode::Internal,
        "a home did not answer every key that it was asked for",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_beyond_a_batch_travel_in_several_frames() {
        let mut directory = Directory::new(NodeId::from_bytes([1; 16]), 1_500);
        let token = {
            let members = vec![NodeId::from_bytes([1; 16]), NodeId::from_bytes([2; 16])];
            directory.handle(Time::ZERO, Event::View { members });
            let heard = Event::Heard {
                node: NodeId::from_bytes([2; 16]),
                incarnation: Incarnation(1),
                untold_keys: 0,
                asked_at: Some(Time::ZERO),
            };
            match directory.handle(Time::ZERO, heard).as_slice() {
                [Action::AskAnnouncement { question, .. }, ..] => *question,
                other => panic!("{other:?}"),
            }
        };
        let mut questions = Questions::default();
        for asked in 0..2 * BATCH_KEYS_MAX + 1 {
            questions.push(token, asked, Time::from_ms(7));
        }
        let frames = questions.frames();
        let lens: Vec<usize> = frames.iter().map(|frame| frame.tokens.len()).collect();
        assert_eq!(lens, [BATCH_KEYS_MAX, BATCH_KEYS_MAX, 1]);
        let asked: Vec<usize> = frames.into_iter().flat_map(|frame| frame.asked).collect();
        assert!(asked.into_iter().eq(0..2 * BATCH_KEYS_MAX + 1));
    }
}

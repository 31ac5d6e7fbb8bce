//! Drives the directory of a node, and puts questions to homes.

use crate::executor::Slot;
use crate::node::Process;
use crate::promises;
use crate::world::{Sim, World};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::member::{
    HolderAnswer, HolderQuestion, HolderQuestionKind, HomeAnswer, HomeEvent, HomeEventKind, MemberReply, MemberRequest,
    Page, PageRequest,
};
use tenon_protocol::message::KeyResult;
use tenon_store_core::coordinator::Route;
use tenon_store_core::directory::{Action, Event, QuestionToken, RequestToken};
use tenon_store_core::time::Time;

/// Every so many events a process's invariants are checked.
const CHECK_EVERY: u64 = 16;

impl Sim {
    /// What is to be told or asked about a key.
    pub(crate) fn home_event(&self, key: usize, kind: HomeEventKind) -> HomeEvent {
        self.with(|world| HomeEvent {
            key_hash: world.keys[key].hash,
            homes: world.keys[key].homes,
            kind,
        })
    }

    /// Has the homes decide: the first one, and where it does not answer the second.
    pub(crate) async fn decide(
        &self,
        me: usize,
        key: usize,
        kind: HomeEventKind,
        deadline: Time,
    ) -> KeyResult<HomeAnswer> {
        let event = self.home_event(key, kind);
        let is_reachable = self.is_reachable(me, event.homes.first);
        let mut route = Route::new(event.homes, is_reachable);
        loop {
            let answer = self.ask_home(me, route.home(), event.clone(), deadline).await;
            if !route.goes_on(&answer) {
                return answer;
            }
        }
    }

    pub(crate) fn is_reachable(&self, me: usize, node: NodeId) -> bool {
        self.with(|world| {
            let node = world.index_of(node);
            node == me || world.process(me).may_ask(node)
        })
    }

    /// Asks one home.
    pub(crate) async fn ask_home(
        &self,
        me: usize,
        home: NodeId,
        event: HomeEvent,
        deadline: Time,
    ) -> KeyResult<HomeAnswer> {
        if self.id(me) == home {
            return self.serve_home(me, event, deadline).await;
        }
        match self
            .ask_member(me, home, MemberRequest::Home(vec![event]), deadline)
            .await?
        {
            MemberReply::Home(mut answers) => answers.pop().unwrap_or_else(|| Err(not_answered())),
            _ => Err(not_answered()),
        }
    }

    /// What this node says as a home.
    pub(crate) async fn serve_home(&self, me: usize, event: HomeEvent, deadline: Time) -> KeyResult<HomeAnswer> {
        let answer = Slot::new();
        let actions = self.with(|world| {
            let process = world.process(me);
            process.last_request += 1;
            let token = RequestToken(process.last_request);
            process.requests.insert(token, answer.clone());
            handle(world, me, Event::Request { token, deadline, event })
        });
        self.perform(me, actions);
        answer.await
    }

    /// Something was learned.
    pub(crate) fn tell_homes(&self, me: usize, events: impl IntoIterator<Item = Event>) {
        let events = events.into_iter();
        let actions = self.with(|world| events.flat_map(|event| handle(world, me, event)).collect());
        self.perform(me, actions);
    }

    fn perform(&self, me: usize, mut actions: Vec<Action>) {
        while !actions.is_empty() {
            let mut own = Vec::new();
            for action in actions {
                match action {
                    Action::Reply { token, answer } => self.reply(me, token, answer),
                    Action::AskHolder { question, to, ask, .. } if to == self.id(me) => {
                        let answer = self.answer_as_holder(me, &ask);
                        own.push(Event::HolderAnswered { question, answer });
                    }
                    other => self.put_question(me, other),
                }
            }
            actions = self.with(|world| own.into_iter().flat_map(|event| handle(world, me, event)).collect());
        }
    }

    fn reply(&self, me: usize, token: RequestToken, answer: KeyResult<HomeAnswer>) {
        let slot = self.with(|world| world.process(me).requests.remove(&token));
        slot.expect("a request is answered once").fill(answer);
    }

    /// Asks another node what the directory wants to know, and tells it what came of that.
    fn put_question(&self, me: usize, action: Action) {
        let (question, to, deadline, request) = match action {
            Action::AskPartner {
                question,
                to,
                deadline,
                event,
            } => (question, to, deadline, MemberRequest::Home(vec![event])),
            Action::AskHolder {
                question,
                to,
                deadline,
                ask,
            } => (question, to, deadline, MemberRequest::Holder(vec![ask])),
            Action::AskAnnouncement {
                question,
                to,
                deadline,
                after,
            } => (question, to, deadline, MemberRequest::Announce(PageRequest { after })),
            Action::AskHandOver {
                question,
                to,
                deadline,
                after,
            } => (question, to, deadline, MemberRequest::HandOver(PageRequest { after })),
            Action::Reply { .. } => unreachable!("answers are no questions"),
        };
        let sim = self.clone();
        self.spawn(Some(me), async move {
            let reply = sim.ask_member(me, to, request, deadline).await;
            sim.tell_homes(me, [what_came(question, to, reply)]);
        });
    }

    /// Answers a question to this node as a holder.
    pub(crate) fn answer_as_holder(&self, me: usize, ask: &HolderQuestion) -> KeyResult<HolderAnswer> {
        let HolderQuestion {
            key_hash,
            version,
            kind,
        } = *ask;
        let key = self.key_of(key_hash);
        self.with(|world| {
            let (now, at) = (world.clock(me), world.now);
            let holder = &mut world.process(me).holder;
            Ok(match kind {
                HolderQuestionKind::Confirm => HolderAnswer::Confirmed {
                    held: holder.confirm(now, key_hash, version),
                },
                HolderQuestionKind::Drop => {
                    if holder.remove(now, key_hash, version) {
                        world.model.dropped(me, key, |dropped| dropped == version, at);
                    }
                    HolderAnswer::Dropped
                }
                HolderQuestionKind::Refuse => {
                    if holder.refuse(key_hash, version) {
                        world.model.dropped(me, key, |dropped| dropped == version, at);
                    }
                    HolderAnswer::Dropped
                }
                HolderQuestionKind::Stay => HolderAnswer::Stays {
                    generation: holder.stays(key_hash, version),
                },
            })
        })
    }

    /// A page of what this node holds of which `home` is a home.
    pub(crate) fn announce_to(&self, me: usize, home: NodeId, after: Option<KeyHash>) -> Page {
        self.with(|world| {
            let homes: Vec<_> = world.keys.iter().map(|key| (key.hash, key.homes)).collect();
            world.process(me).holder.announce(after, |object| {
                let (_, homes) = homes.iter().find(|(hash, _)| *hash == object.key_hash)?;
                homes.includes(home).then_some(*homes)
            })
        })
    }
}

/// Lets a directory take an event in.
fn handle(world: &mut World, me: usize, event: Event) -> Vec<Action> {
    let now = world.clock(me);
    let process = world.process(me);
    let asked = match &event {
        Event::Request { event, .. } => Some((event.key_hash, event.kind == HomeEventKind::Locate)),
        _ => None,
    };
    let actions = process.directory.handle(now, event);
    check(process);
    for action in &actions {
        if let Action::Reply {
            answer: Ok(HomeAnswer::Accepted { version, .. }),
            ..
        } = action
        {
            world.model.accepted(*version);
        }
    }
    if let (
        Some((key_hash, true)),
        [
            Action::Reply {
                answer: Ok(HomeAnswer::Miss),
                ..
            },
        ],
    ) = (asked, actions.as_slice())
    {
        let key = world
            .keys
            .iter()
            .position(|key| key.hash == key_hash)
            .expect("a key of the run");
        promises::home_missed(world, me, key);
    }
    let at = world.now;
    if asked.is_some() {
        world.trace.tell(at, || format!("{me} as a home: {actions:?}"));
    }
    actions
}

fn check(process: &mut Process) {
    process.events += 1;
    if cfg!(debug_assertions) && process.events.is_multiple_of(CHECK_EVERY) {
        process.directory.check_invariants();
        process.holder.check_invariants();
    }
}

/// What the directory is told of a question.
fn what_came(question: QuestionToken, to: NodeId, reply: Result<MemberReply, ServiceError>) -> Event {
    match reply {
        Ok(MemberReply::Home(mut answers)) => Event::PartnerAnswered {
            question,
            answer: answers.pop().unwrap_or_else(|| Err(not_answered())),
        },
        Ok(MemberReply::Holder(mut answers)) => Event::HolderAnswered {
            question,
            answer: answers.pop().unwrap_or_else(|| Err(not_answered())),
        },
        Ok(MemberReply::Announce(page)) => Event::Announced {
            question,
            answer: Ok(page),
        },
        Ok(MemberReply::HandOver(page)) => Event::HandedOver {
            question,
            answer: Ok(page),
        },
        Ok(other) => unreachable!("a member answers what it was asked, not by {other:?}"),
        Err(error) => {
            assert_eq!((error.code, error.node), (ErrorCode::Unavailable, Some(to)));
            Event::Unreachable { question }
        }
    }
}

pub(crate) fn not_answered() -> ServiceError {
    ServiceError::new(
        ErrorCode::Internal,
        "a member answered another question than it was asked",
    )
}

//! How what the homes of keys are to decide reaches them: the keys of one home travel in one frame, and each is told of
//! as soon as its home has answered for it.
//!
//! A home answers a frame within a bound. For what it has not decided by then it gives tickets, by which it is asked
//! again: so a key that waits for a node which stands still holds no other one up.

use crate::home::not_answered;
use crate::node::Node;
use crate::service::group_by;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::member::{HomeAnswer, HomeEvent, HomeEventKind, Homes, MemberReply, MemberRequest, Ticket};
use tenon_protocol::message::KeyResult;
use tenon_store_core::coordinator::Route;
use tokio::time::Instant;

/// Something the homes of a key are to decide or to note.
#[derive(Debug, Clone)]
pub(crate) struct Decision {
    /// Which key.
    pub key_hash: KeyHash,
    /// Its homes.
    pub homes: Homes,
    /// What.
    pub kind: HomeEventKind,
}

impl Decision {
    pub(crate) fn event(&self) -> HomeEvent {
        HomeEvent {
            key_hash: self.key_hash,
            homes: self.homes,
            kind: self.kind.clone(),
        }
    }
}

/// Decisions under way at the homes of their keys: each goes to the first home, and where that does not answer to the
/// second. A `T` comes back with each answer.
pub(crate) struct Deciding<T> {
    node: Arc<Node>,
    deadline: Instant,
    frames: FuturesUnordered<BoxFuture<'static, Answered<T>>>,
}

/// A decision on its way.
struct Item<T> {
    decision: Decision,
    route: Route,
    of: T,
}

/// What one home has answered, one answer per item.
struct Answered<T> {
    home: NodeId,
    items: Vec<Item<T>>,
    answers: Vec<KeyResult<HomeAnswer>>,
}

/// What a home is asked in one frame.
enum Frame {
    Events(Vec<HomeEvent>),
    /// For what it has not decided within the bound of an earlier one.
    Tickets(Vec<Ticket>),
}

impl<T: Send + 'static> Deciding<T> {
    /// Nothing yet. All answers are there by the deadline.
    pub(crate) fn new(node: &Arc<Node>, deadline: Instant) -> Self {
        Self {
            node: Arc::clone(node),
            deadline,
            frames: FuturesUnordered::new(),
        }
    }

    /// Has the homes of more keys decide.
    pub(crate) fn ask(&mut self, decisions: impl IntoIterator<Item = (Decision, T)>) {
        let items = decisions.into_iter().map(|(decision, of)| Item {
            route: Route::new(decision.homes, self.node.is_reachable(decision.homes.first)),
            decision,
            of,
        });
        let items = items.collect();
        self.send(items);
    }

    fn send(&mut self, items: Vec<Item<T>>) {
        for (home, items) in group_by(items, |item| item.route.home()) {
            let events = items.iter().map(|item| item.decision.event()).collect();
            self.send_frame(home, items, Frame::Events(events));
        }
    }

    fn send_frame(&mut self, home: NodeId, items: Vec<Item<T>>, frame: Frame) {
        let (node, deadline) = (Arc::clone(&self.node), self.deadline);
        self.frames.push(Box::pin(async move {
            let answers = node.ask_frame(home, frame, deadline).await;
            Answered { home, items, answers }
        }));
    }

    /// The next keys for which there are answers; `None` once there is one for each.
    pub(crate) async fn next(&mut self) -> Option<Vec<(T, KeyResult<HomeAnswer>)>> {
        loop {
            let Answered { home, items, answers } = self.frames.next().await?;
            let (mut decided, mut onward) = (Vec::new(), Vec::new());
            let (mut late, mut tickets) = (Vec::new(), Vec::new());
            for (mut item, answer) in items.into_iter().zip(answers) {
                match answer {
                    Ok(HomeAnswer::Later { ticket }) => {
                        late.push(item);
                        tickets.push(ticket);
                    }
                    answer if item.route.goes_on(&answer) => onward.push(item),
                    answer => decided.push((item.of, answer)),
                }
            }
            if !late.is_empty() {
                self.send_frame(home, late, Frame::Tickets(tickets));
            }
            self.send(onward);
            if !decided.is_empty() {
                return Some(decided);
            }
        }
    }
}

impl Frame {
    fn keys(&self) -> usize {
        match self {
            Self::Events(events) => events.len(),
            Self::Tickets(tickets) => tickets.len(),
        }
    }

    fn into_request(self) -> MemberRequest {
        match self {
            Self::Events(events) => MemberRequest::Home(events),
            Self::Tickets(tickets) => MemberRequest::Later(tickets),
        }
    }
}

impl Node {
    /// Has the homes decide, one answer per decision, and waits for all of them.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        decisions: Vec<Decision>,
        deadline: Instant,
    ) -> Vec<KeyResult<HomeAnswer>> {
        let mut answers: Vec<Option<KeyResult<HomeAnswer>>> = decisions.iter().map(|_| None).collect();
        let mut deciding = Deciding::new(self, deadline);
        deciding.ask(decisions.into_iter().zip(0_usize..));
        while let Some(answered) = deciding.next().await {
            for (index, answer) in answered {
                answers[index] = Some(answer);
            }
        }
        let answer_of = |answer: Option<_>| answer.unwrap_or_else(|| Err(not_answered()));
        answers.into_iter().map(answer_of).collect()
    }

    /// Tells both homes of each key. What each of them has answered, the first one first.
    pub(crate) async fn tell_both(
        self: &Arc<Self>,
        decisions: &[Decision],
        deadline: Instant,
    ) -> Vec<Vec<KeyResult<HomeAnswer>>> {
        let homes_of = |homes: Homes| [Some(homes.first), homes.second].into_iter().flatten();
        let told = decisions.iter().enumerate().flat_map(|(index, decision)| {
            let homes = homes_of(decision.homes).enumerate();
            homes.map(move |(rank, home)| (home, (index, rank), decision.event()))
        });
        let asks = group_by(told, |(home, ..)| *home).into_iter();
        let asks = asks.map(async |(home, told)| {
            let (places, events): (Vec<_>, Vec<HomeEvent>) =
                told.into_iter().map(|(_, place, event)| (place, event)).unzip();
            let answers = self.ask_home(home, events, deadline).await;
            places.into_iter().zip(answers).collect::<Vec<_>>()
        });
        let mut answered: Vec<_> = join_all(asks).await.into_iter().flatten().collect();
        answered.sort_unstable_by_key(|(place, _)| *place);
        let mut answers = vec![Vec::new(); decisions.len()];
        for ((index, _), answer) in answered {
            answers[index].push(answer);
        }
        answers
    }

    /// Asks one home about keys, and waits for all of its answers; one per event.
    pub(crate) async fn ask_home(
        self: &Arc<Self>,
        home: NodeId,
        events: Vec<HomeEvent>,
        deadline: Instant,
    ) -> Vec<KeyResult<HomeAnswer>> {
        let mut answers = self.ask_frame(home, Frame::Events(events), deadline).await;
        loop {
            let (late, tickets): (Vec<usize>, Vec<Ticket>) = (0..)
                .zip(&answers)
                .filter_map(|(index, answer)| match answer {
                    Ok(HomeAnswer::Later { ticket }) => Some((index, *ticket)),
                    _ => None,
                })
                .unzip();
            if late.is_empty() {
                return answers;
            }
            let later = self.ask_frame(home, Frame::Tickets(tickets), deadline).await;
            for (index, answer) in late.into_iter().zip(later) {
                answers[index] = answer;
            }
        }
    }

    /// One frame to a home, which may be this node; one answer per key.
    async fn ask_frame(self: &Arc<Self>, home: NodeId, frame: Frame, deadline: Instant) -> Vec<KeyResult<HomeAnswer>> {
        let keys = frame.keys();
        if home == self.id() {
            return match frame {
                Frame::Events(events) => self.serve_home(home, events, deadline).await,
                Frame::Tickets(tickets) => {
                    let answers = self.serve_later(home, &tickets, deadline).await;
                    answers.unwrap_or_else(|error| vec![Err(error); keys])
                }
            };
        }
        let request = frame.into_request();
        let answer = self
            .peers()
            .call(home, request, deadline, "it is a home of the key")
            .await;
        match answer {
            Ok(MemberReply::Home(answers)) if answers.len() == keys => answers,
            Ok(_) => vec![Err(not_answered()); keys],
            Err(error) => vec![Err(error); keys],
        }
    }
}

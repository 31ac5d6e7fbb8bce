//! What a home is told, and what it says is to be done.

use crate::time::Time;
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId};
use tenon_protocol::member::{HolderAnswer, HolderQuestion, HomeAnswer, HomeEvent, Page};
use tenon_protocol::message::KeyResult;

/// A request that waits for an answer. Made by the caller, unlike any that is not answered yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestToken(pub u64);

/// A question that waits for an answer. Made by the directory, each once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QuestionToken(pub(super) u64);

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
    /// A member answered [`Action::AskAnnouncement`].
    Announced {
        /// What it was asked.
        question: QuestionToken,
        /// What it holds.
        answer: KeyResult<Page>,
    },
    /// The partner answered [`Action::AskHandOver`].
    HandedOver {
        /// What it was asked.
        question: QuestionToken,
        /// What it keeps.
        answer: KeyResult<Page>,
    },
    /// The member list has changed.
    View {
        /// All members, this node among them or not.
        members: Vec<NodeId>,
    },
    /// A node was seen in this life. Seeing an earlier or the same one again changes nothing. A member in a new life is
    /// soon heard of by [`Event::Heard`], or lost by [`Event::Lost`] once more.
    Life {
        /// Which node.
        node: NodeId,
        /// Which life.
        incarnation: Incarnation,
    },
    /// A member was heard of, at best once per heartbeat. An earlier life than the known one changes nothing.
    Heard {
        /// Which member.
        node: NodeId,
        /// Which life.
        incarnation: Incarnation,
        /// Keys that it decided without this home and has not told it of yet ([`Heartbeat::untold_keys`]).
        ///
        /// [`Heartbeat::untold_keys`]: tenon_protocol::member::Heartbeat::untold_keys
        untold_keys: u64,
        /// It has answered what this node asked it then, so that it can be asked. `None`: it has only called.
        asked_at: Option<Time>,
    },
    /// A member can't be reached. Told again whenever trying has shown it again.
    Lost {
        /// Which member.
        node: NodeId,
    },
    /// Time has passed. Needed many times per `pause_ms` (see [`Directory::new`](super::Directory::new)).
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
    /// Ask a member for a page of what it holds of which this node is a home.
    AskAnnouncement {
        /// Names it in the answer.
        question: QuestionToken,
        /// Who.
        to: NodeId,
        /// After this an answer is of no use.
        deadline: Time,
        /// The key after which the page begins.
        after: Option<KeyHash>,
    },
    /// Ask another home for a page of what it keeps of the keys that it shares with this one.
    AskHandOver {
        /// Names it in the answer.
        question: QuestionToken,
        /// Who.
        to: NodeId,
        /// After this an answer is of no use.
        deadline: Time,
        /// The key after which the page begins.
        after: Option<KeyHash>,
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
    /// Members that have not announced what they hold and are not known to be out of reach.
    pub unannounced: usize,
    /// Partners that have not handed over what they keep, or withhold something, and are not known to be out of reach.
    pub out_of_step: usize,
    /// Keys that were decided without a partner that was not told of them yet.
    pub untold: usize,
    /// Decisions that wait until more is known.
    pub waiting: usize,
    /// Drops that holders owe.
    pub owed: usize,
    /// Keys that were learned from announcements and hand-overs, since the start.
    pub learned: u64,
    /// Objects that lost against another which was accepted on the other side of a partition, since the start.
    pub losers: u64,
}

impl DirectoryCounts {
    /// Whether this home knows all that there is to know: it answers look-ups by hit or miss.
    pub fn is_settled(&self) -> bool {
        self.unannounced == 0 && self.out_of_step == 0
    }
}

//! What members ask each other: on behalf of a client, as homes of keys, and as neighbours.

use crate::error::ServiceError;
use crate::ids::{Incarnation, KeyHash, NodeId, PutId, SessionId, Version};
use crate::message::{KeyResult, Replica, Reply, Request, SpaceAccount};
use serde::{Deserialize, Serialize};

/// A call between members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberRequest {
    /// Serve this from your own memory for a client's session; never pass it on.
    OnBehalf {
        /// The client's session at the coordinator; `None` for a put over HTTP, which belongs to the coordinator
        /// itself.
        session: Option<SessionId>,
        /// What the client asked.
        request: Box<Request>,
    },
    /// The client's session has ended.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// To a home of the keys; one result per event.
    Home(Vec<HomeEvent>),
    /// To a holder: questions of a home; one answer per question.
    Holder(Vec<HolderQuestion>),
    /// I am here, and this is how full I am.
    Heartbeat(Heartbeat),
}

/// The answer to a [`MemberRequest`], of the variant of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberReply {
    /// To [`MemberRequest::OnBehalf`].
    OnBehalf(Box<Reply>),
    /// To [`MemberRequest::SessionEnded`].
    SessionEnded,
    /// To [`MemberRequest::Home`].
    Home(Vec<KeyResult<HomeAnswer>>),
    /// To [`MemberRequest::Holder`].
    Holder(Vec<KeyResult<HolderAnswer>>),
    /// To [`MemberRequest::Heartbeat`].
    Heartbeat(Heartbeat),
}

/// What a node says of itself once per heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Which life.
    pub incarnation: Incarnation,
    /// The program's version.
    pub version: String,
    /// How full.
    pub space: SpaceAccount,
}

/// An object as a home knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeEntry {
    /// Which object of the key.
    pub version: Version,
    /// Its length.
    pub len_bytes: u64,
    /// Where it lies.
    pub replicas: Vec<Replica>,
}

/// The nodes that keep the index entry of a key, by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Homes {
    /// The one that decides.
    pub first: NodeId,
    /// The one that is told before an answer is given, and decides where the first cannot be reached. `None` if there
    /// is one node.
    pub second: Option<NodeId>,
}

impl Homes {
    /// The other home; `None` if there is no other, or if `node` is no home of the key.
    pub fn partner_of(&self, node: NodeId) -> Option<NodeId> {
        match self.second {
            Some(second) if node == self.first => Some(second),
            Some(second) if node == second => Some(self.first),
            _ => None,
        }
    }

    /// Whether `node` is one of them.
    pub fn includes(&self, node: NodeId) -> bool {
        node == self.first || Some(node) == self.second
    }
}

/// Something a home is told or asked about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeEvent {
    /// Which key.
    pub key_hash: KeyHash,
    /// Its homes, as the sender ranks them: they follow from the namespace, which a home does not know.
    pub homes: Homes,
    /// What.
    pub kind: HomeEventKind,
}

/// See [`HomeEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HomeEventKind {
    /// A holder has verified bytes and asks whether they may become the key's object.
    Propose {
        /// The attempt.
        put_id: PutId,
        /// Its length.
        len_bytes: u64,
        /// Where it lies.
        replicas: Vec<Replica>,
    },
    /// The holder has sealed what was accepted.
    Sealed {
        /// Which object.
        version: Version,
    },
    /// The holder has given up a proposal or dropped the object.
    Withdrawn {
        /// Whose proposal or object.
        put_id: PutId,
        /// Which holder has it no longer.
        holder: NodeId,
    },
    /// Where is it?
    Locate,
    /// Remove it: drop it at its holders and let no older announcement bring it back.
    Remove,
    /// From the partner: what the key's entry is now.
    Mirror(MirrorEntry),
}

/// What one home passes to its partner before it answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorEntry {
    /// The sealed object, if any.
    pub sealed: Option<HomeEntry>,
    /// The accepted object that is not sealed yet, if any.
    pub pending: Option<HomeEntry>,
    /// The object that its holders have dropped, if that is what is told.
    pub withdrawn: Option<Version>,
    /// The epoch below which nothing is the key's object any more; 0 if the key was not removed.
    pub epoch: u64,
}

/// What a home answers about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HomeAnswer {
    /// The proposal is accepted as this version and may be sealed.
    Accepted {
        /// Which object.
        version: Version,
        /// The home decided alone.
        degraded: bool,
    },
    /// The key keeps the object it has.
    AlreadyExists {
        /// Which.
        version: Version,
        /// The home decided alone.
        degraded: bool,
    },
    /// Noted.
    Done {
        /// Whether it changed something.
        changed: bool,
    },
    /// It is here.
    Hit(HomeEntry),
    /// There is none.
    Miss,
    /// This home cannot know yet.
    Unknown,
}

/// What a home asks or tells a holder about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderQuestion {
    /// Which key.
    pub key_hash: KeyHash,
    /// Which object.
    pub version: Version,
    /// What.
    pub kind: HolderQuestionKind,
}

/// See [`HolderQuestion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderQuestionKind {
    /// Do you still have it?
    Confirm,
    /// Drop it.
    Drop,
}

/// What a holder answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderAnswer {
    /// To [`HolderQuestionKind::Confirm`].
    Confirmed {
        /// Whether it is there, sealed.
        held: bool,
    },
    /// To [`HolderQuestionKind::Drop`]: it is not there any more.
    Dropped,
}

impl MemberReply {
    /// One result of each key of a batch that failed as a whole.
    pub fn home_failed(error: &ServiceError, keys: usize) -> Vec<KeyResult<HomeAnswer>> {
        vec![Err(error.clone()); keys]
    }
}

//! What parties say to each other.

use tenon_protocol::ids::{Generation, Incarnation, KeyHash, PutId, SessionId, Version};
use tenon_protocol::member::{HomeEntry, MemberReply, MemberRequest};
use tenon_protocol::message::{Committed, KeyResult, Located, Replica};
use tenon_store_core::objects::{Owner, RegionId};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Party {
    /// The process of a node.
    Node(usize),
    /// A client on this node's host.
    Client(usize),
}

impl Party {
    pub(crate) fn host(self) -> usize {
        match self {
            Self::Node(host) | Self::Client(host) => host,
        }
    }
}

/// One message under way.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) from: Party,
    /// The life of the process that has sent it; 0 for a client.
    pub(crate) from_life: u64,
    pub(crate) to: Party,
    /// The life of the process that the packet's connection leads to; 0 for a client.
    pub(crate) to_life: u64,
    /// Names the call at the one that has made it.
    pub(crate) call: u64,
    pub(crate) body: Body,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Serve this, in so many ms.
    Ask { ask: Ask, left_ms: u64 },
    /// It was served.
    Tell(Tell),
}

/// A call.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    /// Between members.
    Member(MemberRequest),
    /// Set a region aside here, for a client of another node.
    Reserve(ReserveAsk),
    /// Commit what lies here, for a client of another node.
    Commit { put_id: PutId, key: usize },
    /// Commit what lies here as a copy of an object that another node has committed.
    Copy { key: usize, version: Version },
    /// Take an object over that the asker holds.
    Take { key: usize, entry: HomeEntry },
    /// From a client: its bytes, into the region that was set aside.
    Write { region: RegionId, put_id: PutId },
    /// From a client: bytes and the table's line.
    Read { replica: Replica, len_bytes: u64 },
    /// From a client, to its coordinator.
    Serve(Call),
}

impl Ask {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Member(MemberRequest::Home(_)) => "a question to a home",
            Self::Member(MemberRequest::Holder(_)) => "a question to a holder",
            Self::Member(_) => "a member's call",
            Self::Reserve(_) => "a reservation for another node",
            Self::Commit { .. } => "a commit for another node",
            Self::Copy { .. } => "a copy",
            Self::Take { .. } => "a move",
            Self::Write { .. } => "a write",
            Self::Read { .. } => "a read",
            Self::Serve(_) => "a client's call",
        }
    }
}

/// What is to be set aside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReserveAsk {
    pub(crate) put_id: PutId,
    pub(crate) key: usize,
    pub(crate) owner: Owner,
    pub(crate) replace: bool,
}

/// What a client asks its coordinator.
#[derive(Debug, Clone)]
pub(crate) enum Call {
    Reserve {
        put_id: PutId,
        key: usize,
        holder: usize,
        session: SessionId,
        replace: bool,
    },
    /// The holder commits; then the further ones commit copies.
    Commit {
        put_id: PutId,
        key: usize,
        holder: usize,
        further: Vec<usize>,
    },
    Locate {
        key: usize,
    },
    Relocate {
        key: usize,
        missed: Version,
    },
    Remove {
        key: usize,
    },
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) enum Tell {
    Member(MemberReply),
    Reserved(KeyResult<RegionId>),
    Committed(KeyResult<Committed>),
    Copied(KeyResult<()>),
    Written(bool),
    /// `None`: it lies in no object, or in another life.
    Read(Option<Seen>),
    Located(KeyResult<Option<Located>>),
    Removed(KeyResult<bool>),
}

/// What a reader finds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) incarnation: Incarnation,
    /// As the table describes it.
    pub(crate) generation: Generation,
    pub(crate) key_hash: KeyHash,
    /// The bytes.
    pub(crate) bytes: PutId,
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    /// Not in time.
    Late,
    /// The connection broke, or was refused.
    Broken,
    /// The member is known not to answer.
    Unreachable,
}

/// What came of a call to a member.
pub(crate) type Answered = Result<Tell, NoAnswer>;

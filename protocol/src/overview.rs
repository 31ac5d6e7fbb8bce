//! What a node tells of itself and of the others: members, its index, space, segments, alarms.

use crate::ids::{Incarnation, NodeId};
use serde::{Deserialize, Serialize};

/// See [`Reply::Nodes`](crate::message::Reply::Nodes).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesReply {
    /// Where the member list comes from: `standalone` or `static`.
    pub view_source: String,
    /// Which member list.
    pub view_revision: u64,
    /// One per member, ordered by id.
    pub nodes: Vec<NodeInfo>,
    /// What the node that answers keeps as a home of keys.
    pub index: Box<IndexInfo>,
    /// What an operator should look at, as the node that answers sees it.
    pub alarms: Vec<Alarm>,
}

/// Something that does not end by itself, or says that more than one node is at fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    /// What it is about.
    pub kind: AlarmKind,
    /// Which members.
    pub nodes: Vec<NodeId>,
    /// For people.
    pub message: String,
}

/// See [`Alarm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// More than a third of the members, and at least two, fell silent at about the same time: it is likely that the network
    /// broke, and not they. It stands until all of them have answered again.
    MembersSilent,
    /// A member refuses this node or is refused: another list of members, another cluster, a wrong proof.
    MemberRefused,
}

impl AlarmKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::MembersSilent, Self::MemberRefused];

    /// As JSON and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MembersSilent => "members_silent",
            Self::MemberRefused => "member_refused",
        }
    }
}

/// What a node keeps as a home of keys, and how far it knows what others know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexInfo {
    /// It knows all that there is to know, and answers look-ups by hit or miss.
    pub settled: bool,
    /// Keys with an entry.
    pub keys: u64,
    /// Of which with an accepted object that is not sealed yet.
    pub pending_keys: u64,
    /// Keys that were removed, as far as that is remembered.
    pub tombstones: u64,
    /// Drops of removed objects that holders owe.
    pub owed_drops: u64,
    /// Members that have not announced what they hold and are not known to be out of reach.
    pub unannounced_members: u64,
    /// Partners that have not handed over what they keep, or withhold something, and are not known to be out of reach.
    pub partners_out_of_step: u64,
    /// Keys that were learned from announcements and hand-overs in this life.
    pub learned_keys: u64,
    /// Keys that were decided without a partner that was not told of them yet.
    pub untold_keys: u64,
    /// Objects held here of which a home is still to be told.
    pub unpublished_objects: u64,
    /// Decisions that wait until more is known.
    pub waiting_decisions: u64,
    /// Objects that lost against another which was accepted on the other side of a partition, in this life.
    pub conflicts: u64,
}

/// What a node knows of a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Who.
    pub node: NodeId,
    /// Which life, if it was ever reached.
    pub incarnation: Option<Incarnation>,
    /// Its link's endpoint.
    pub endpoint: String,
    /// Whether it answers.
    pub state: NodeState,
    /// Whether it is the node that answers this call.
    pub is_self: bool,
    /// Whether it was asked to stop when last heard: it takes nothing new, and moves what it alone holds to others.
    pub is_draining: bool,
    /// Its program's version, if it was ever reached.
    pub version: Option<String>,
    /// Its space, as last heard.
    pub space: Option<SpaceAccount>,
}

/// Whether a member answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It answers.
    Alive,
    /// It has not answered for longer than the bound, or its link broke and could not be made again.
    Unreachable,
    /// It refuses us, or we it; the message says why.
    Refused,
    /// Not tried yet.
    Unknown,
}

/// Payload bytes by what they are used for. Always capacity = free + sealed + reserved + held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceAccount {
    /// All.
    pub capacity_bytes: u64,
    /// In no region.
    pub free_bytes: u64,
    /// In objects.
    pub sealed_bytes: u64,
    /// In regions set aside for puts.
    pub reserved_bytes: u64,
    /// In dropped regions that the owner's own transfers still use.
    pub held_bytes: u64,
    /// An upper bound of the largest free region.
    pub largest_free_bytes: u64,
    /// How many objects.
    pub objects: u64,
    /// How many reservations.
    pub reservations: u64,
}

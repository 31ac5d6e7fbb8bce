//! What nodes say of their room, and what can be asked about placement without placing anything.

use crate::error::ServiceError;
use crate::ids::{Incarnation, NodeId, SegmentId};
use crate::limits::{CAPACITY_BYTES_MAX, INCARNATION_MAX};
use crate::message::KeyResult;
use serde::{Deserialize, Serialize};

/// What a node says of its room, with every heartbeat and every answer on behalf of a client. Possibly old when it is
/// read: it spares questions and decides nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitHint {
    /// Which life of the node.
    pub incarnation: Incarnation,
    /// Which state in that life: a higher one is newer.
    pub version: u64,
    /// Payload bytes of the node.
    pub capacity_bytes: u64,
    /// Those in no region; 0 if the node takes no puts.
    pub free_bytes: u64,
    /// A length that no request it could serve exceeded; 0 if the node takes no puts.
    pub largest_free_upper_bound_bytes: u64,
}

impl FitHint {
    /// Whether a sound member may say it: it has not more free than it has, nor in one region than is free.
    pub fn is_sound(&self) -> bool {
        self.incarnation.0 < INCARNATION_MAX
            && self.capacity_bytes <= CAPACITY_BYTES_MAX
            && self.free_bytes <= self.capacity_bytes
            && self.largest_free_upper_bound_bytes <= self.free_bytes
    }
}

/// Asks where objects of these lengths would be placed now, each beside those before it. Nothing is set aside, and nothing evicted: what would be
/// placed only by evicting is answered as refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunRequest {
    /// At most [`DRY_RUN_ITEMS_MAX`](crate::limits::DRY_RUN_ITEMS_MAX), placed as one batch.
    pub items: Vec<DryRunItem>,
    /// On this node only.
    #[serde(default)]
    pub node: Option<NodeId>,
}

/// One object that might be put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunItem {
    /// Its length.
    pub len_bytes: u64,
}

/// The decision and its steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunReply {
    /// The names of the choices that the asked node's configuration makes.
    pub policy: PlacementPolicy,
    /// What the asked node knew of each member before it asked any, ordered by id.
    pub nodes: Vec<DryRunNode>,
    /// The questions, in the order in which they were asked.
    pub steps: Vec<DryRunStep>,
    /// One result per item.
    pub items: Vec<KeyResult<DryRunPlace>>,
    /// In a member's answer to a member: its room if the objects lay where they would.
    pub room_after: Option<FitHint>,
}

/// How a node is configured to place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementPolicy {
    /// Which node is tried first: `local` or `spread`.
    pub affinity: String,
    /// How full in percent the asked node may be and still come first.
    pub local_until_percent: u8,
    /// Which segment of a node is tried first; without effect if the fallback is `indexed`.
    pub strategy: String,
    /// How the others are searched.
    pub fallback: String,
}

/// What is known of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunNode {
    /// Which.
    pub node: NodeId,
    /// Whether puts may be placed on it: it answers and is not draining.
    pub usable: bool,
    /// What it last said; `None` if it has said nothing.
    pub hint: Option<FitHint>,
    /// Whether it can hold the longest of the objects, as far as that tells.
    pub fit: FitVerdict,
}

/// What a hint says about a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FitVerdict {
    /// It had no room when it said so. Such a node is passed over as long as another is left.
    NoFit,
    /// It may have room.
    MayFit,
    /// It has said nothing.
    Unknown,
}

/// One question to one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunStep {
    /// Who was asked.
    pub node: NodeId,
    /// Why it: `local`, `drawn`, `tightest`, `confirmation` or `named`.
    pub because: String,
    /// One per item that it was asked for; none if it did not answer.
    pub answers: Vec<DryRunAnswer>,
}

/// What a node answers about one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunAnswer {
    /// Where the item stands in the request.
    pub item: u32,
    /// Where the node would place it, beside those that it would have been given in earlier steps.
    pub place: Option<DryRunPlace>,
    /// Why it would not. With neither it was looked at and may have room; then a later step asks it.
    pub refusal: Option<ServiceError>,
}

/// Where an object would be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DryRunPlace {
    /// On which node.
    pub node: NodeId,
    /// In which of its segments.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset_bytes: u64,
    /// Calls to segments that it took to find it.
    pub segments_asked: u32,
}

/// Asks for a part of the occupancy of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentMapRequest {
    /// Of which node; the asked one if not given.
    pub node: Option<NodeId>,
    /// Which segment.
    pub segment: SegmentId,
    /// From the run on that has this byte.
    pub from_bytes: u64,
    /// At most so many runs, at most [`MAP_RUNS_MAX`](crate::limits::MAP_RUNS_MAX).
    pub limit: u32,
}

/// See [`SegmentMapRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentMapReply {
    /// Of which node.
    pub node: NodeId,
    /// Of which segment.
    pub segment: SegmentId,
    /// In which life of the node.
    pub incarnation: Incarnation,
    /// How often what the segment is used for has changed in that life. Pages with the same life and version are parts of one map.
    pub version: u64,
    /// Payload bytes of the segment.
    pub capacity_bytes: u64,
    /// In the order of their offsets; they adjoin.
    pub runs: Vec<MapRun>,
    /// Where the next page begins; `None` if this one reaches the segment's end.
    pub next_bytes: Option<u64>,
}

/// A free run, or one region in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRun {
    /// Where it begins.
    pub offset_bytes: u64,
    /// What it occupies.
    pub len_bytes: u64,
    /// What it is used for.
    pub state: RunState,
    /// How long ago it was reserved or sealed; `None` of the others.
    pub age_ms: Option<u64>,
}

/// What a run of a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// For nothing.
    Free,
    /// It is set aside for a put.
    Reserved,
    /// It holds an object.
    Sealed,
    /// It was given up and is still used by the owner's own transfers.
    Held,
}

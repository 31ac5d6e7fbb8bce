//! The segments of nodes: what they are used for, and how they come and go.

use crate::ids::{NodeId, SegmentId};
use crate::message::SpaceAccount;
use serde::{Deserialize, Serialize};

/// See [`Reply::Segments`](crate::message::Reply::Segments).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentsReply {
    /// Ordered by node and segment.
    pub segments: Vec<SegmentInfo>,
    /// The nodes that did not answer.
    pub missing: Vec<NodeId>,
}

/// A segment of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentInfo {
    /// Whose.
    pub node: NodeId,
    /// Which. No other segment gets the id in the same life of the node.
    pub segment: SegmentId,
    /// `memfd` or the file's path.
    pub backing: String,
    /// The size of the pages that back it; 0 before they are there and once they are gone.
    pub page_bytes: u64,
    /// Where it stands in its life.
    pub state: SegmentState,
    /// Its space: all of it free while it is being mounted, none once it is gone.
    pub space: SpaceAccount,
    /// Descriptors in its table.
    pub slots: u32,
    /// Of which in use.
    pub slots_used: u32,
    /// How far mounting is, until it is over.
    pub mounting: Option<MountProgress>,
    /// How far draining is, or how it has ended.
    pub draining: Option<DrainProgress>,
    /// Why it is gone, if nobody asked for that.
    pub failure: Option<String>,
}

/// The life of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentState {
    /// Being mapped, pre-faulted and registered.
    Mounting,
    /// In use.
    Active,
    /// Takes nothing new.
    Draining,
    /// Given back. The last ones are remembered.
    Gone,
}

/// How far the mounting of a segment is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountProgress {
    /// Payload bytes of the segment.
    pub len_bytes: u64,
    /// Of which have their memory.
    pub prefaulted_bytes: u64,
    /// Bytes to register with RDMA devices, for each once.
    pub to_register_bytes: u64,
    /// Of which are.
    pub registered_bytes: u64,
}

/// How far the draining of a segment is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainProgress {
    /// Objects that are held elsewhere now, and not here any more.
    pub moved_objects: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Objects that are there still.
    pub left_objects: u64,
    /// What they occupy.
    pub left_bytes: u64,
    /// Of those that are there still: for which no other node has had room so far.
    pub no_room_objects: u64,
    /// Their bytes.
    pub no_room_bytes: u64,
    /// Objects that were dropped because the segment is being unmounted.
    pub dropped_objects: u64,
    /// Their bytes.
    pub dropped_bytes: u64,
    /// Of those that are there still: pinned.
    pub pinned_objects: u64,
    /// Puts into the segment that are under way.
    pub puts: u64,
    /// Transfers of the node's own that are under way in it.
    pub transfers: u64,
    /// It is being unmounted: what is left is dropped after so many milliseconds at the latest.
    pub unmounted_in_ms: Option<u64>,
}

/// See [`Request::Segment`](crate::message::Request::Segment).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCall {
    /// On which node; the one that is asked if not given.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// What is to be done.
    pub change: SegmentChange,
}

/// What is to be done with a segment. The answer comes when it is done, or says how far it is when the caller's time is over: then it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentChange {
    /// Contribute memory.
    Mount(MountSpec),
    /// Place nothing there any more. What is there stays, as far as it is not moved to other nodes.
    Drain {
        /// Which.
        segment: SegmentId,
    },
    /// Drain it, and give its memory back.
    Unmount {
        /// Which.
        segment: SegmentId,
        /// How long those who use it may take; 0 is at once. A second call may make that shorter.
        graceful_ms: u64,
        /// Also if pinned objects are lost.
        force: bool,
    },
}

/// Memory to contribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    /// Payload bytes: whole pages.
    pub len_bytes: u64,
    /// Descriptors in its table; one per 64 KiB if not given.
    #[serde(default)]
    pub slots: Option<u32>,
    /// Whether huge pages back it; not together with a file.
    #[serde(default)]
    pub huge_pages: Option<HugePageUse>,
    /// The absolute path of a file on tmpfs or hugetlbfs that backs it, which is created or emptied; memory without a name if not given.
    #[serde(default)]
    pub file: Option<String>,
}

/// See [`MountSpec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HugePageUse {
    /// Huge pages or none.
    Require,
    /// Huge pages as far as there are any: the default.
    Prefer,
    /// Ordinary pages.
    Off,
}

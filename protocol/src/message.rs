//! What the control service is asked and what it answers. Both fronts (the framed link and HTTP) carry these.
//!
//! Names travel as plain text and are checked by the service, so that one bad key in a batch gets its own error. A
//! batch has at most
//! [`BATCH_KEYS_MAX`](crate::limits::BATCH_KEYS_MAX) keys; the answer has one result per key, in order.

use crate::checksum::Checksums;
use crate::error::ServiceError;
use crate::ids::{Generation, Incarnation, NodeId, PutId, SegmentId, Slot, Version};
use crate::member::{MemberReply, MemberRequest};
pub use crate::overview::{Alarm, AlarmKind, IndexInfo, NodeInfo, NodeState, NodesReply, SpaceAccount};
use crate::placement::{DryRunReply, DryRunRequest, SegmentMapReply, SegmentMapRequest};
use crate::segments::SegmentCall;
pub use crate::segments::{SegmentInfo, SegmentState, SegmentsReply};
use serde::{Deserialize, Serialize};

/// The result of one key in a batch.
pub type KeyResult<T> = Result<T, ServiceError>;

/// A call of the control service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Set regions aside for a put.
    Reserve(ReserveRequest),
    /// Seal what was written.
    Commit(CommitRequest),
    /// Give reservations back.
    Abort(AbortRequest),
    /// Where objects lie.
    Locate(KeysRequest),
    /// Whether objects are there; pins and refreshes nothing.
    Exists(ExistsRequest),
    /// Remove objects.
    Remove(KeysRequest),
    /// List keys by prefix.
    List(ListRequest),
    /// The members of the view.
    Nodes,
    /// The segments of one node, or of all.
    Segments {
        /// Only this node's.
        node: Option<NodeId>,
    },
    /// The keys under which this session may read this node's segments.
    Attach,
    /// A token for other holders. Answered to clients of the agent's unix socket and loopback link only.
    Token,
    /// Calls between members; refused to clients.
    Member(MemberRequest),
    /// Where objects lie that were not found where an earlier answer said: the homes look whether they are there.
    Relocate(RelocateRequest),
    /// Where objects would be placed, step by step.
    DryRun(DryRunRequest),
    /// What a segment is used for, run by run.
    SegmentMap(SegmentMapRequest),
    /// Keep objects from being evicted, or not any more.
    Keep(KeepRequest),
    /// Mount, drain or unmount a segment.
    Segment(SegmentCall),
}

/// The answer to a [`Request`], of the variant of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Reserve`].
    Reserve(ReserveReply),
    /// To [`Request::Commit`].
    Commit(Vec<KeyResult<Committed>>),
    /// To [`Request::Abort`]: whether there was something to give back.
    Abort(Vec<KeyResult<bool>>),
    /// To [`Request::Locate`] and [`Request::Relocate`].
    Locate(LocateReply),
    /// To [`Request::Exists`].
    Exists(ExistsReply),
    /// To [`Request::Remove`]: whether there was an object.
    Remove(Vec<KeyResult<bool>>),
    /// To [`Request::List`].
    List(ListReply),
    /// To [`Request::Nodes`].
    Nodes(NodesReply),
    /// To [`Request::Segments`].
    Segments(SegmentsReply),
    /// To [`Request::Attach`].
    Attach(AttachReply),
    /// To [`Request::Token`].
    Token(TokenReply),
    /// To [`Request::Member`].
    Member(MemberReply),
    /// The call as a whole failed.
    Failed(ServiceError),
    /// To [`Request::DryRun`].
    DryRun(Box<DryRunReply>),
    /// To [`Request::SegmentMap`].
    SegmentMap(SegmentMapReply),
    /// To [`Request::Keep`]: whether there was an object.
    Keep(Vec<KeyResult<bool>>),
    /// To [`Request::Segment`]: as it stands then.
    Segment(Box<SegmentInfo>),
}

/// How to reach a node in one of its lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRef {
    /// Who.
    pub node: NodeId,
    /// Which life.
    pub incarnation: Incarnation,
    /// Its link's advertised endpoint, such as `10.0.0.7:7601`.
    pub endpoint: String,
}

/// See [`Request::Reserve`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// This attempt. Asking again with the same id and key answers the same reservation.
    pub put_id: PutId,
    /// What is to be put.
    pub items: Vec<ReserveItem>,
    /// How.
    #[serde(default)]
    pub options: PutOptions,
}

/// One object to be put.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveItem {
    /// Its key.
    pub key: String,
    /// Its exact length.
    pub len_bytes: u64,
}

/// How to put.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutOptions {
    /// Place on this node only.
    #[serde(default)]
    pub node: Option<NodeId>,
    /// The reservation ends this long after the last byte arrived; the holder's default if not given.
    #[serde(default)]
    pub ttl_ms: Option<u32>,
    /// What keeps the objects from being evicted.
    #[serde(default)]
    pub pin: Pin,
    /// On how many nodes each object is to lie, 1 to [`REPLICAS_MAX`](crate::limits::REPLICAS_MAX); 1 if not given. As many as have room get it,
    /// and [`Committed::copies`] says how many those were.
    #[serde(default)]
    pub replicas: Option<u8>,
    /// Take the place of the object that the key has.
    #[serde(default)]
    pub replace: bool,
}

/// What keeps an object from being evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pin {
    /// Nothing.
    #[default]
    None,
    /// Others go first, for so long, at most [`SOFT_PIN_MS_MAX`](crate::limits::SOFT_PIN_MS_MAX), since it was stored or pinned. Using it makes
    /// that no longer.
    Soft {
        /// How long.
        for_ms: u64,
    },
    /// It stays until it is removed or its pin is taken away.
    Hard,
}

/// See [`Request::Keep`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// The keys.
    pub keys: Vec<String>,
    /// What is to be done.
    pub keep: Keep,
}

/// See [`KeepRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Mark the objects as used, as a get does.
    Touch,
    /// Pin them so, whatever pinned them before.
    Pin(Pin),
}

/// See [`Reply::Reserve`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveReply {
    /// How to reach the holders that `items` name.
    pub nodes: Vec<NodeRef>,
    /// One result per item.
    pub items: Vec<KeyResult<Reservation>>,
}

/// The regions set aside for one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// One per replica, on distinct nodes.
    pub replicas: Vec<ReservedRegion>,
}

/// A region set aside on one holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedRegion {
    /// Who holds it.
    pub holder: NodeId,
    /// In which segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset_bytes: u64,
    /// The grant to write these bytes, counted from 0 at the region's start, during the session that reserved.
    pub write_key: u64,
    /// The reservation's time to live since the last byte arrived.
    pub ttl_ms: u32,
}

/// See [`Request::Commit`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// The attempt that reserved.
    pub put_id: PutId,
    /// What was written.
    pub items: Vec<CommitItem>,
}

/// One object that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommitItem {
    /// Its key.
    pub key: String,
    /// The nodes that its reservation named.
    pub holders: Vec<NodeId>,
    /// Of the bytes that were sent.
    pub checksums: Checksums,
    /// Stored with the object; at most [`FINGERPRINT_LEN_BYTES_MAX`](crate::limits::FINGERPRINT_LEN_BYTES_MAX) bytes.
    #[serde(default)]
    pub fingerprint: Vec<u8>,
}

/// How a put ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PutOutcome {
    /// This put's object is the key's object.
    Stored,
    /// The key had an object already; it was kept, and its holder has confirmed that it has it.
    AlreadyExists,
}

/// See [`Reply::Commit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// What happened.
    pub outcome: PutOutcome,
    /// Of the object that the key has now.
    pub version: Version,
    /// One home decided alone.
    pub degraded: bool,
    /// Further holders that have taken the object in this call.
    #[serde(default)]
    pub copies: u8,
}

/// See [`Request::Abort`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// The attempt that reserved.
    pub put_id: PutId,
    /// Which of its objects, with the nodes that their reservations named.
    pub items: Vec<AbortItem>,
}

/// One object not to be put after all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortItem {
    /// Its key.
    pub key: String,
    /// The nodes that its reservation named.
    pub holders: Vec<NodeId>,
}

/// Keys of one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeysRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// The keys.
    pub keys: Vec<String>,
}

/// See [`Request::Relocate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelocateRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// What was not found.
    pub keys: Vec<MissedKey>,
}

/// An object that a reader did not find.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedKey {
    /// Its key.
    pub key: String,
    /// Which object of the key.
    pub version: Version,
}

/// See [`Reply::Locate`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocateReply {
    /// How to reach the holders that `items` name.
    pub nodes: Vec<NodeRef>,
    /// One result per key: where it is, `None` for a miss, or why that cannot be said (`unavailable` with the node).
    pub items: Vec<KeyResult<Option<Located>>>,
}

/// Where an object lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// Which object of the key.
    pub version: Version,
    /// Its exact length.
    pub len_bytes: u64,
    /// The replicas whose holders answer, in the order to try them.
    pub replicas: Vec<Replica>,
}

/// One replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// Who holds it.
    pub holder: NodeId,
    /// In which life of the holder.
    pub incarnation: Incarnation,
    /// In which segment.
    pub segment: SegmentId,
    /// Where in the segment.
    pub offset_bytes: u64,
    /// Its place in the segment's table.
    pub slot: Slot,
    /// Which use of the region.
    pub generation: Generation,
    /// It came after the object was committed at another holder, and stands beside that one's.
    #[serde(default)]
    pub is_copy: bool,
}

/// See [`Request::Exists`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistsRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// The keys.
    pub keys: Vec<String>,
    /// What is wanted of them.
    #[serde(default)]
    pub mode: ExistsMode,
}

/// What [`Request::Exists`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExistsMode {
    /// One answer per key.
    #[default]
    Each,
    /// The length of the leading run of hits.
    LeadingRun,
}

/// See [`Reply::Exists`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExistsReply {
    /// One result per key.
    Each(Vec<KeyResult<bool>>),
    /// The first key that is not there, or of which that cannot be said, has this index.
    LeadingRun(u32),
}

/// See [`Request::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// Only keys that begin with this.
    #[serde(default)]
    pub prefix: String,
    /// Only keys after this one, in byte order.
    #[serde(default)]
    pub after: Option<String>,
    /// At most so many, at most [`LIST_ENTRIES_MAX`](crate::limits::LIST_ENTRIES_MAX).
    pub limit: u32,
}

/// See [`Reply::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListReply {
    /// In byte order of the keys.
    pub entries: Vec<ListEntry>,
    /// There may be more after the last entry: ask again with `after` = its key.
    pub more: bool,
    /// Every node of the view answered.
    pub complete: bool,
    /// The nodes that did not answer.
    pub missing: Vec<NodeId>,
}

/// A key that a holder holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// The key.
    pub key: String,
    /// Its object's length.
    pub len_bytes: u64,
    /// Which object of the key.
    pub version: Version,
    /// The nodes that hold it.
    pub holders: Vec<NodeId>,
    /// When it was sealed, by the first holder's wall clock.
    pub sealed_unix_ms: u64,
    /// What keeps the first holder from evicting it; of a soft pin the time that is left.
    pub pin: Pin,
}

/// See [`Reply::Attach`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReply {
    /// The life of the node in which these keys are good.
    pub incarnation: Incarnation,
    /// One per segment.
    pub segments: Vec<AttachedSegment>,
}

/// The grants to read one segment and its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachedSegment {
    /// Which.
    pub segment: SegmentId,
    /// Its payload bytes.
    pub segment_bytes: u64,
    /// Descriptors in its table.
    pub slots: u32,
    /// The grant to read the payload, counted from the segment's start.
    pub data_key: u64,
    /// The grant to read the table (see [`crate::table::TableLayout`]).
    pub table_key: u64,
}

/// See [`Reply::Token`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenReply {
    /// What the token says, opaque to its bearer.
    pub claims: Vec<u8>,
    /// What proves it; never shown to anyone.
    pub key: [u8; 32],
    /// How long it may be used for new links.
    pub expires_in_ms: u64,
}

impl std::fmt::Debug for TokenReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenReply")
            .field("expires_in_ms", &self.expires_in_ms)
            .finish_non_exhaustive()
    }
}

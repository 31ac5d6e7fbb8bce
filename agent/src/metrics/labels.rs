//! The values of labels.

use tenon_protocol::error::ErrorCode;
use tenon_protocol::message::Request;
use tenon_store_core::objects::EvictReason;

macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $name {
            pub(super) const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub(super) const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

labels! {
    /// Where payload was counted.
    Place {
        /// At this node's segments, whoever wrote or read there: data lanes, and this agent's own copies for HTTP.
        Segments = "segments",
        /// At the HTTP front, wherever the object lies.
        Http = "http",
    }
}

labels! {
    /// What became of one key that somebody wanted to read.
    ReadOutcome {
        /// It is there.
        Hit = "hit",
        /// It is not there.
        Miss = "miss",
        /// A node that would know or that holds it does not answer.
        Unavailable = "unavailable",
        /// It was found and could not be read rightly.
        FailedRead = "failed_read",
        /// Any other error.
        Failed = "failed",
    }
}

impl ReadOutcome {
    /// The outcome of a failed read.
    pub fn of_error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NotFound => Self::Miss,
            ErrorCode::Unavailable => Self::Unavailable,
            ErrorCode::FailedRead => Self::FailedRead,
            _ => Self::Failed,
        }
    }
}

labels! {
    /// What became of one object that somebody wanted to put.
    PutOutcome {
        /// It is the key's object now.
        Stored = "stored",
        /// The key had one and kept it.
        AlreadyExists = "already_exists",
        /// There was no room.
        NoSpace = "no_space",
        /// A node that was needed does not answer.
        Unavailable = "unavailable",
        /// Any other error.
        Failed = "failed",
    }
}

impl PutOutcome {
    /// The outcome of a failed put.
    pub fn of_error(code: ErrorCode) -> Self {
        match code {
            ErrorCode::NoSpace => Self::NoSpace,
            ErrorCode::Unavailable => Self::Unavailable,
            _ => Self::Failed,
        }
    }
}

labels! {
    /// Why this node set no region aside in its own memory.
    AllocationFailure {
        /// It has no segment.
        NoSegment = "no_segment",
        /// It has room, and no descriptor for it.
        Slots = "slots",
        /// No segment has room.
        NothingFits = "nothing_fits",
        /// All segments were searched.
        PoolExhausted = "pool_exhausted",
        /// As many segments were searched as may be.
        PositionBudget = "position_budget",
        /// As many calls were made as may be while hints were read.
        ChargeableBudget = "chargeable_budget",
        /// As many segments were looked at as may be while hints were read.
        ScanCap = "scan_cap",
        /// No segment is as large.
        TooLarge = "too_large",
        /// Any other reason.
        Other = "other",
    }
}

impl AllocationFailure {
    /// By what a refusal says.
    pub fn of_stop_reason(reason: &str) -> Self {
        let known = Self::ALL.iter().find(|failure| failure.as_str() == reason);
        known.copied().unwrap_or(Self::Other)
    }
}

labels! {
    /// Why an object was evicted.
    EvictedBecause {
        /// The node was full up to a watermark.
        Watermark = "watermark",
        /// A put had no room otherwise.
        Request = "request",
        /// Its segment was unmounted.
        Unmounted = "unmounted",
        /// It is held elsewhere since: its segment is drained.
        Moved = "moved",
    }
}

impl EvictedBecause {
    /// By what the holder says.
    pub(super) fn of(reason: EvictReason) -> Self {
        match reason {
            EvictReason::Watermark => Self::Watermark,
            EvictReason::Request => Self::Request,
            EvictReason::Unmounted => Self::Unmounted,
            EvictReason::Moved => Self::Moved,
        }
    }
}

labels! {
    /// What keeps objects from being evicted.
    Keeping {
        /// Nothing.
        None = "none",
        /// A soft pin.
        Soft = "soft",
        /// A pin.
        Hard = "hard",
    }
}

labels! {
    /// Where room was found for a put.
    PlacedOn {
        /// On this node.
        Own = "self",
        /// On another node.
        Other = "other",
    }
}

labels! {
    /// What a node said of one object, when it was asked for room.
    RoomAnswer {
        /// It has set it aside.
        Given = "given",
        /// It may have room, and has set nothing aside.
        Hopeful = "hopeful",
        /// It has not.
        Refused = "refused",
        /// It did not answer; counted once per question.
        Silent = "silent",
    }
}

labels! {
    /// Why a peer was not let in.
    RefusedBecause {
        /// Its member list is another one.
        OtherMemberList = "other_member_list",
        /// It is no other member of the view.
        NotAMember = "not_a_member",
        /// It was seen in a later life.
        StaleIncarnation = "stale_incarnation",
        /// A member at a socket for clients.
        MemberOnUnix = "member_on_unix",
    }
}

labels! {
    /// The calls of the control service.
    Verb {
        /// Reserve.
        Reserve = "reserve",
        /// Commit.
        Commit = "commit",
        /// Abort.
        Abort = "abort",
        /// Locate.
        Locate = "locate",
        /// Locate, after an object was not found where it should have been.
        Relocate = "relocate",
        /// Exists.
        Exists = "exists",
        /// Remove.
        Remove = "remove",
        /// List.
        List = "list",
        /// Nodes.
        Nodes = "nodes",
        /// Segments.
        Segments = "segments",
        /// Attach.
        Attach = "attach",
        /// Token.
        Token = "token",
        /// Dry run of a placement.
        DryRun = "dry_run",
        /// Map of a segment.
        SegmentMap = "segment_map",
        /// Touch, pin or unpin.
        Keep = "keep",
        /// Mount, drain or unmount a segment.
        Segment = "segment",
        /// Any call between members.
        Member = "member",
    }
}

impl From<&Request> for Verb {
    fn from(request: &Request) -> Self {
        match request {
            Request::Reserve(_) => Self::Reserve,
            Request::Commit(_) => Self::Commit,
            Request::Abort(_) => Self::Abort,
            Request::Locate(_) => Self::Locate,
            Request::Relocate(_) => Self::Relocate,
            Request::Exists(_) => Self::Exists,
            Request::Remove(_) => Self::Remove,
            Request::List(_) => Self::List,
            Request::Nodes => Self::Nodes,
            Request::Segments { .. } => Self::Segments,
            Request::Attach => Self::Attach,
            Request::Token => Self::Token,
            Request::DryRun(_) => Self::DryRun,
            Request::SegmentMap(_) => Self::SegmentMap,
            Request::Keep(_) => Self::Keep,
            Request::Segment(_) => Self::Segment,
            Request::Member(_) => Self::Member,
        }
    }
}

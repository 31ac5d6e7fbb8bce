//! What can be wrong with a configuration.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::NODES_MAX;

use super::secret::SecretError;
use super::size::{self, SizeError};
use super::source::{Origin, Sourced};
use crate::limits::{
    CLUSTER_NAME_LEN_BYTES_MAX, CONFIG_FILE_LEN_BYTES_MAX, SEGMENT_LEN_BYTES_MIN, SEGMENTS_MAX,
    SOCKET_PATH_LEN_BYTES_MAX,
};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Longer than any configuration.
    #[error(
        "the configuration {} has {len_bytes} bytes, at most {CONFIG_FILE_LEN_BYTES_MAX} are read",
        path.display()
    )]
    FileTooLong {
        /// Which file.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
    },
    /// Not TOML, an unknown key, or a value of another type.
    #[error("{origin}: {}{reason}", key.as_ref().map(|key| format!("{key}: ")).unwrap_or_default())]
    Syntax {
        /// Where.
        origin: Origin,
        /// The setting or table concerned, if there is one.
        key: Option<String>,
        /// What was found and what is allowed.
        reason: String,
    },
    /// A value that may not be.
    #[error("{origin}: {key} = {value}: {problem}")]
    Value {
        /// Where.
        origin: Origin,
        /// Which setting.
        key: String,
        /// Its value.
        value: String,
        /// Why not.
        problem: Box<Problem>,
    },
}

impl ConfigError {
    pub(super) fn value<T: fmt::Debug>(setting: &Sourced<T>, problem: Problem) -> Self {
        Self::Value {
            origin: setting.origin.clone(),
            key: setting.key.clone(),
            value: format!("{:?}", setting.value),
            problem: Box::new(problem),
        }
    }
}

/// Everything that is wrong with a configuration, one per line.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

/// Why a value may not be.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A name that stands for nothing.
    #[error("expected one of {}", .0.join(", "))]
    OneOf(Vec<&'static str>),
    /// A list of devices without one.
    #[error("name at least one device, or leave the setting out to use all")]
    NoDevices,
    /// A path that depends on the working directory.
    #[error("an absolute path is needed")]
    RelativePath,
    /// No name of a cluster.
    #[error("a cluster's name has 1 to {CLUSTER_NAME_LEN_BYTES_MAX} bytes and no control characters")]
    ClusterName,
    /// No id of a node.
    #[error("a node's id is 32 hexadecimal digits, as tenond --init prints them")]
    NodeId,
    /// No address.
    #[error("expected an IP address and a port, such as 127.0.0.1:7601")]
    Address,
    /// An address that nobody can dial.
    #[error("others cannot dial this: a host's own address and a port are needed")]
    NotDialable,
    /// HTTP has no authentication yet.
    #[error("HTTP is served on loopback only: use an address in 127.0.0.0/8 or [::1]")]
    HttpOffLoopback,
    /// An address where anyone could knock.
    #[error("without cluster.secret_file only loopback addresses are used")]
    OffLoopbackWithoutSecret,
    /// Two listeners cannot share a port.
    #[error("{other} has the same address")]
    AddressTaken {
        /// The other setting.
        other: String,
    },
    /// The name server or the hosts file does not know it.
    #[error("cannot be resolved to an IP address and a port: {0}")]
    Unresolved(io::Error),
    /// The link listens on every address and others must know one.
    #[error("this is every address of the host: say in listen.advertise which one others dial")]
    AdvertiseMissing,
    /// Two answers to one question.
    #[error("the list gives this node the endpoint {endpoint}, and listen.advertise is {advertise}")]
    AdvertiseDiffers {
        /// In the list.
        endpoint: SocketAddr,
        /// In the setting.
        advertise: SocketAddr,
    },
    /// Too long for the system's socket address.
    #[error("the path of a unix socket has at most {SOCKET_PATH_LEN_BYTES_MAX} bytes, this one {len_bytes}")]
    SocketPathTooLong {
        /// Its length.
        len_bytes: usize,
    },
    /// No size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Smaller than one piece.
    #[error("a segment has at least {}", size::format(SEGMENT_LEN_BYTES_MIN))]
    SegmentTooSmall,
    /// Not whole pages.
    #[error("not a multiple of the page size, {page_bytes} bytes")]
    NotWholePages {
        /// The pages that back the segment.
        page_bytes: u64,
    },
    /// More than the host has.
    #[error("segments and their tables take {asked_bytes} bytes of memory, the host has {ram_bytes}")]
    MoreThanMemory {
        /// Of all segments that are not files, and the tables of all.
        asked_bytes: u64,
        /// The host's.
        ram_bytes: u64,
    },
    /// A list without entries.
    #[error("a node has at least one segment; leave the list out for the default")]
    NoSegments,
    /// A list without an end.
    #[error("a node has at most {SEGMENTS_MAX} segments, these are {count}")]
    TooManySegments {
        /// How many.
        count: usize,
    },
    /// The file system decides that.
    #[error("pages of a segment with a file are those of its file system: leave huge_pages out")]
    HugePagesOfFile,
    /// Two entries of a list say the same.
    #[error("{other} is the same")]
    Duplicate {
        /// The other entry.
        other: String,
    },
    /// Out of its range.
    #[error("expected a number from {min} to {max}")]
    Range {
        /// Least.
        min: u64,
        /// Most.
        max: u64,
    },
    /// What eviction begins at must be more than what it ends at.
    #[error("less than eviction.from_percent ({from_percent}) is needed")]
    NotBelow {
        /// The other setting.
        from_percent: u64,
    },
    /// A peer would be unreachable between two signs of life.
    #[error("less than timeouts.unreachable_after_ms ({unreachable_after_ms}) is needed")]
    HeartbeatTooSlow {
        /// The other timeout.
        unreachable_after_ms: u64,
    },
    /// A setting that another one leaves without effect.
    #[error("this has no effect with {other} = {value:?}: leave one of them out")]
    NoEffect {
        /// The other setting.
        other: String,
        /// Its value.
        value: String,
    },
    /// A list that would not be used.
    #[error("cluster.members is used with view = \"static\" only, and view is {view:?}")]
    MembersUnused {
        /// The view.
        view: &'static str,
    },
    /// A view without a list.
    #[error("this view needs cluster.members: one [[cluster.members]] with id and endpoint per node")]
    MembersMissing,
    /// A list that is too long.
    #[error("a cluster has at most {NODES_MAX} nodes, these are {count}")]
    TooManyMembers {
        /// How many.
        count: usize,
    },
    /// This node's id is not in its own list.
    #[error("this node, {node}, is not in its own list: add it, or take another state directory")]
    NotAMember {
        /// This node.
        node: NodeId,
    },
    /// A static member has an id before it starts.
    #[error("{} has no node id yet: make one with tenond --init and list it", state_dir.display())]
    NoIdYet {
        /// Where the id would be.
        state_dir: PathBuf,
    },
    /// The secret cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

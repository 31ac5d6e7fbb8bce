//! What is known of a host: plain data, as it is shown to programs. Nothing here says what is good or bad.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::NodeState;
use tenon_transport::verbs::engine::PushPolicy;
use tenon_transport::verbs::{GidEntry, GidKind, GidVerdict, LinkLayer, PortState, Windows};

/// Everything that was looked at.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Facts {
    pub(super) host: Host,
    pub(super) configuration: Configuration,
    pub(super) rdma: Rdma,
    pub(super) memory: Memory,
    pub(super) agent: Agent,
    pub(super) peers: Vec<Peer>,
}

/// Something that was read, or why it could not be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Known<T> {
    /// It was read.
    Yes(T),
    /// It was not.
    No {
        /// Why.
        not_read: String,
    },
}

impl<T> Known<T> {
    pub(super) fn from_result<E: Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(found) => Self::Yes(found),
            Err(error) => Self::No {
                not_read: error.to_string(),
            },
        }
    }

    pub(super) fn get(&self) -> Option<&T> {
        match self {
            Self::Yes(found) => Some(found),
            Self::No { .. } => None,
        }
    }
}

/// Where and as whom it was looked.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) user: String,
}

/// What `tenond` is told by its file.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Configuration {
    /// The file; `None` stands for the defaults.
    pub(super) file: Option<PathBuf>,
    /// What is wrong with it; empty if it can be used.
    pub(super) errors: Vec<String>,
    /// All that is wrong is that this user may not read it.
    pub(super) is_private: bool,
    /// Why the secret cannot be read here, though `tenond` may be able to.
    pub(super) secret_error: Option<String>,
    /// This node's id, if it has one.
    pub(super) node: Known<Option<NodeId>>,
    /// Why the member list does not fit this node.
    pub(super) membership_error: Option<String>,
    /// Members of a static view.
    pub(super) members: usize,
    /// Where its link is to be; `None` if the file cannot be used.
    pub(super) link: Option<LinkAddress>,
    /// Whether RDMA is to be used; `None` if the file cannot be used.
    pub(super) rdma: Option<Wish>,
    /// Whether peers may write themselves; `None` if the file cannot be used.
    #[serde(serialize_with = "push_policy")]
    pub(super) push: Option<PushPolicy>,
    /// The memory that is asked for; `None` if the file cannot be used.
    pub(super) segments: Option<Vec<Segment>>,
}

impl Configuration {
    /// Bytes of all segments and their tables, which RDMA registers; `None` if they are not known.
    pub(super) fn registered_bytes(&self) -> Option<u64> {
        let all = self.segments.as_ref()?.iter();
        Some(all.fold(0, |sum, segment| {
            sum.saturating_add(segment.len_bytes)
                .saturating_add(segment.table_bytes)
        }))
    }

    /// The longest range that is registered in one piece.
    pub(super) fn longest_bytes(&self) -> Option<u64> {
        let all = self.segments.as_ref()?.iter();
        all.map(|segment| segment.len_bytes.max(segment.table_bytes)).max()
    }
}

/// Where a link is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LinkAddress {
    /// Where it is to listen.
    pub(super) listen: SocketAddr,
    /// What other members dial, if that is known.
    pub(super) dialled: Option<SocketAddr>,
    pub(super) bound: Bound,
}

/// What became of listening there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "bound")]
pub(super) enum Bound {
    Free,
    /// Somebody listens already.
    Taken {
        said: String,
    },
    /// It is no address of this host, or not for this user.
    Not {
        said: String,
    },
}

/// A configured segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Segment {
    pub(super) len_bytes: u64,
    /// Of the table beside it.
    pub(super) table_bytes: u64,
    #[serde(flatten)]
    pub(super) backing: Backing,
}

/// What backs a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "backing")]
pub(super) enum Backing {
    /// Memory without a name.
    Memfd {
        /// Whether it is to lie on huge pages.
        huge_pages: Wish,
    },
    /// A file.
    File {
        path: PathBuf,
        /// The file system of its directory.
        file_system: Known<FileSystem>,
    },
}

/// Whether something must, should or must not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Wish {
    Require,
    Prefer,
    Off,
}

/// A file system that a segment is to lie on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FileSystem {
    pub(super) kind: FileSystemKind,
    pub(super) free_bytes: u64,
}

/// What a file system is for segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FileSystemKind {
    /// tmpfs or hugetlbfs.
    Memory,
    /// Any other, on which no segment may lie.
    Other,
    /// There is no such directory.
    Missing,
}

/// RDMA, from the kernel up.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Rdma {
    pub(super) library: Library,
    /// What the library lists.
    pub(super) devices: Vec<Device>,
    /// What the kernel has, whether or not the library can use it.
    pub(super) kernel_devices: Known<Vec<String>>,
    pub(super) modules: Known<Vec<Module>>,
    pub(super) numa_nodes: Known<usize>,
}

/// How the library of verbs answered when it was asked for devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "said")]
pub(super) enum Library {
    Answers,
    NotInstalled,
    /// It finds no RDMA in the kernel.
    NoKernelSupport(String),
    Fails(String),
}

/// A part of the kernel that RDMA needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Module {
    pub(super) name: &'static str,
    /// What it is for.
    pub(super) purpose: Purpose,
    pub(super) state: ModuleState,
}

/// What a module is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Purpose {
    /// Every program with verbs needs it.
    Verbs,
    /// It drives devices.
    Driver,
}

/// Whether a module is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModuleState {
    Loaded,
    /// A part of the kernel itself.
    BuiltIn,
    Absent,
}

/// A device that the library lists.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) details: Known<DeviceDetails>,
}

/// What an open device says.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DeviceDetails {
    pub(super) firmware: String,
    pub(super) numa_node: Option<u32>,
    pub(super) max_region_bytes: u64,
    /// What it makes of memory windows, tried between queue pairs of its own; `None` without a port to try it on.
    pub(super) windows: Option<Known<WindowsSeen>>,
    pub(super) ports: Vec<Port>,
}

/// See [`Windows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(into = "WindowsRow")]
pub(super) struct WindowsSeen(pub(super) Windows);

/// What was seen, as programs see it.
#[derive(Serialize)]
struct WindowsRow {
    state: &'static str,
    /// What is not enforced.
    lacking: Vec<&'static str>,
}

impl From<WindowsSeen> for WindowsRow {
    fn from(WindowsSeen(windows): WindowsSeen) -> Self {
        let lacking = match windows {
            Windows::None => Vec::new(),
            Windows::Seen(enforced) => enforced.lacking(),
        };
        let state = match windows {
            Windows::None => "none",
            Windows::Seen(_) if windows.are_enforced() => "enforced",
            Windows::Seen(_) => "not_enforced",
        };
        Self { state, lacking }
    }
}

fn push_policy<S: Serializer>(push: &Option<PushPolicy>, serializer: S) -> Result<S::Ok, S::Error> {
    push.map(|push| push.to_string()).serialize(serializer)
}

/// A port of a device.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Port {
    pub(super) number: u8,
    #[serde(flatten)]
    pub(super) details: Known<PortDetails>,
}

/// A port as it was when it was asked.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PortDetails {
    #[serde(serialize_with = "port_state")]
    pub(super) state: PortState,
    #[serde(serialize_with = "link_layer")]
    pub(super) link_layer: LinkLayer,
    pub(super) active_mtu_bytes: u32,
    pub(super) max_mtu_bytes: u32,
    pub(super) gids: Known<Vec<Gid>>,
}

impl PortDetails {
    pub(super) fn is_active(&self) -> bool {
        matches!(self.state, PortState::Active | PortState::ActiveDeferred)
    }

    /// The address that it is used under.
    pub(super) fn chosen(&self) -> Option<&Gid> {
        self.gids.get()?.iter().find(|gid| gid.is_chosen())
    }
}

/// A row of a port's table that is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "GidRow")]
pub(super) struct Gid {
    pub(super) entry: GidEntry,
    pub(super) interface: Option<String>,
    pub(super) verdict: GidVerdict,
}

impl Gid {
    pub(super) fn is_chosen(&self) -> bool {
        matches!(self.verdict, GidVerdict::Chosen | GidVerdict::Configured)
    }

    /// The address as people write it.
    pub(super) fn address(&self) -> String {
        let gid = self.entry.gid;
        gid.ipv4()
            .map_or_else(|| gid.to_string(), |address| address.to_string())
    }
}

/// A row as programs see it.
#[derive(Serialize)]
struct GidRow {
    index: u32,
    gid: String,
    kind: String,
    interface: Option<String>,
    interface_index: u32,
    is_chosen: bool,
    reason: String,
}

impl From<Gid> for GidRow {
    fn from(gid: Gid) -> Self {
        Self {
            index: gid.entry.index,
            gid: gid.entry.gid.to_string(),
            kind: match gid.entry.kind {
                GidKind::InfiniBand => "infiniband".to_owned(),
                GidKind::RoceV1 => "roce_v1".to_owned(),
                GidKind::RoceV2 => "roce_v2".to_owned(),
                GidKind::Unknown(number) => format!("unknown_{number}"),
            },
            interface_index: gid.entry.interface,
            is_chosen: gid.is_chosen(),
            reason: gid.verdict.to_string(),
            interface: gid.interface,
        }
    }
}

/// The name of a port's state, the same for people and programs.
pub(super) fn state_name(state: PortState) -> String {
    match state {
        PortState::Down => "down".to_owned(),
        PortState::Initialising => "initialising".to_owned(),
        PortState::Armed => "armed".to_owned(),
        PortState::Active => "active".to_owned(),
        PortState::ActiveDeferred => "active_deferred".to_owned(),
        PortState::Unknown(number) => format!("unknown_{number}"),
    }
}

fn port_state<S: Serializer>(state: &PortState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&state_name(*state))
}

fn link_layer<S: Serializer>(layer: &LinkLayer, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match layer {
        LinkLayer::InfiniBand => "infiniband",
        LinkLayer::Ethernet => "ethernet",
        LinkLayer::Unknown(_) => "unknown",
    })
}

/// Memory as far as segments and RDMA depend on it.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Memory {
    pub(super) locked: Known<LockedMemory>,
    /// `None`: the kernel has no huge pages.
    pub(super) huge_pages: Known<Option<HugePagePool>>,
}

/// How much memory a process may lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct LockedMemory {
    /// The running agent; `None`: this command, which may have another bound.
    pub(super) agent_pid: Option<i32>,
    /// `None`: without bound.
    pub(super) soft_bytes: Option<u64>,
    pub(super) hard_bytes: Option<u64>,
    /// CAP_IPC_LOCK makes the bound void.
    pub(super) is_exempt: bool,
}

/// Huge pages of the default size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct HugePagePool {
    pub(super) page_bytes: u64,
    /// Pages that are set aside.
    pub(super) total_pages: u64,
    /// Of which without use.
    pub(super) free_pages: u64,
    /// Of which promised to a mapping.
    pub(super) reserved_pages: u64,
    /// Pages that may be made at need.
    pub(super) overcommit_pages: u64,
    /// Of which made.
    pub(super) surplus_pages: u64,
}

impl HugePagePool {
    /// Pages that a new mapping can have.
    pub(super) fn available_pages(&self) -> u64 {
        let at_need = self.overcommit_pages.saturating_sub(self.surplus_pages);
        self.free_pages
            .saturating_sub(self.reserved_pages)
            .saturating_add(at_need)
    }
}

/// The agent of this host.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Agent {
    /// Where it was asked; `None` if it is not known where.
    pub(super) endpoint: Option<String>,
    #[serde(flatten)]
    pub(super) state: AgentState,
}

/// What became of asking the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub(super) enum AgentState {
    Answers(AgentAnswer),
    /// Nobody answers.
    Absent {
        said: String,
    },
    /// Somebody answers, but not as it should.
    Fails {
        said: String,
    },
    NotAsked {
        why: String,
    },
}

/// What the agent says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct AgentAnswer {
    pub(super) node: Option<NodeId>,
    pub(super) version: Option<String>,
    pub(super) round_trip_us: u64,
    /// Every other member, and whether it answers the agent.
    pub(super) members: Vec<(NodeId, NodeState)>,
    pub(super) segments: Known<Vec<MountedSegment>>,
}

/// A segment that the agent has mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct MountedSegment {
    pub(super) len_bytes: u64,
    pub(super) page_bytes: u64,
    /// `memfd` or a path.
    pub(super) backing: String,
}

/// Another member of the view.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) endpoint: String,
    /// Whether it answers the agent of this host, if that runs.
    pub(super) agent_sees: Option<NodeState>,
    pub(super) transports: Vec<Reach>,
}

/// Whether a peer is reached over a transport.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Reach {
    pub(super) transport: &'static str,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

/// A rail that reaches a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RailReach {
    /// Device and port of this host.
    pub(super) rail: String,
    pub(super) round_trip_us: u64,
}

/// What became of dialling a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub(super) enum Outcome {
    Reached {
        /// From dialling to the end of the handshake.
        connect_us: u64,
        /// The least of several calls.
        round_trip_us: u64,
        version: Option<String>,
        /// Whether its member list has the same nodes.
        same_members: bool,
        /// Nodes that only its list has.
        only_there: Vec<NodeId>,
        /// Nodes that only the list of this host has.
        only_here: Vec<NodeId>,
    },
    /// Over RDMA.
    #[serde(rename = "reached")]
    ReachedByRails {
        /// From dialling until every rail was tried.
        connect_us: u64,
        /// The least of several small reads over the quickest rail.
        round_trip_us: u64,
        /// The rails of this host that reach it.
        rails: Vec<RailReach>,
        /// Why others do not.
        unusable: Vec<String>,
    },
    /// It uses no RDMA device.
    NoDevice,
    /// Both ends have RDMA devices, and no rail reaches it.
    NoRail {
        said: String,
    },
    /// The host answers that nobody listens.
    NobodyListens {
        said: String,
    },
    /// The peer answers and takes us not, or is somebody else.
    Refused {
        said: String,
    },
    /// No answer.
    Silent {
        said: String,
    },
    NotTried {
        why: String,
    },
}

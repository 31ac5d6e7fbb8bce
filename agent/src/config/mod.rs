//! The configuration of `tenond`: one typed struct, from a TOML file merged with flags and defaults, checked as a whole
//! before anything is bound or mapped. Every error names the setting, its value, where it was written, and what would
//! be allowed.
//!
//! `source` keeps places, `file` reads TOML, `merge` puts file, flags and defaults together, `validate` checks.

mod environment;
mod error;
mod file;
mod flags;
mod host;
mod merge;
mod render;
mod secret;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod validate;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenon_client::RdmaPolicy;
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_store_core::objects::Watermarks;
use tenon_store_core::placement::nodes::Affinity;
use tenon_store_core::placement::{Fallback, Strategy};
use tenon_transport::HugePages;
use tenon_transport::verbs::engine::PushPolicy;

pub use environment::Environment;
pub use error::{ConfigError, ConfigErrors, Problem};
pub use flags::Flags;
pub use host::Host;
pub(crate) use host::available_bytes;
pub use secret::{Secret, SecretError};
pub use size::{SizeError, format as format_size, parse as parse_size};
pub use source::Origin;
pub(crate) use validate::segments::default_slots;

use file::Document;
use merge::Settings;

/// The configuration that is read if neither flag nor environment name one and it exists.
pub const DEFAULT_PATH: &str = "/etc/tenon/tenond.toml";

/// All that `tenond` can be told. Made by [`Config::load`] and [`Config::load_to_look_at`] alone, so it is always valid.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the node's id and incarnation are kept.
    pub state_dir: PathBuf,
    /// The cluster it belongs to.
    pub cluster: ClusterConfig,
    /// Where it listens.
    pub listen: ListenConfig,
    /// The memory it contributes, at least one segment.
    pub segments: Vec<SegmentConfig>,
    /// How it places objects.
    pub placement: PlacementConfig,
    /// When it evicts objects.
    pub eviction: EvictionConfig,
    /// Whether its transfers go over RDMA.
    pub rdma: RdmaConfig,
    /// How long it waits.
    pub timeouts: Timeouts,
    /// What it logs.
    pub log: LogConfig,
}

/// The cluster a node belongs to.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// Its name.
    pub name: String,
    /// What members and clients must know; without it nothing off loopback is dialled or bound.
    pub secret: Option<SecretSource>,
    /// Who its members are.
    pub view: ViewConfig,
}

impl ClusterConfig {
    /// The id that handshakes carry and keys are hashed with.
    pub fn id(&self) -> ClusterId {
        ClusterId::of_name(&self.name)
    }
}

/// A secret with the place it was read from.
#[derive(Debug, Clone)]
pub struct SecretSource {
    /// As configured: a path, or `credential:NAME`.
    pub location: String,
    /// The secret.
    pub secret: Secret,
}

/// Where the member list comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewConfig {
    /// This node is the cluster.
    Standalone,
    /// The configured list; this node is in it.
    Static {
        /// All members, ordered by id.
        members: Vec<Member>,
        /// Where the list is written.
        origin: Origin,
    },
}

/// A member of a static view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Who.
    pub node: NodeId,
    /// Where its link is reached.
    pub endpoint: SocketAddr,
}

/// Where a node listens. Port 0 stands for any free port.
#[derive(Debug, Clone)]
pub struct ListenConfig {
    /// HTTP, on loopback.
    pub http: SocketAddr,
    /// The link.
    pub link: SocketAddr,
    /// The unix socket, if there is to be one.
    pub unix: Option<PathBuf>,
    /// What others are told to dial, if it is neither the link's address nor the one in the member list.
    pub advertise: Option<SocketAddr>,
}

/// Memory that a node contributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentConfig {
    /// Payload bytes, a multiple of the page size.
    pub len_bytes: u64,
    /// What backs it.
    pub backing: Backing,
    /// Descriptors in its table.
    pub slots: u32,
}

/// What backs a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Memory without a name in the file system.
    Memfd(HugePages),
    /// A file on tmpfs or hugetlbfs.
    File(PathBuf),
}

/// How objects are placed: on which node, and within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementConfig {
    /// Which node is tried first for a put that names none.
    pub affinity: Affinity,
    /// How full in percent this node may be and still come first, with [`Affinity::Local`].
    pub local_until_percent: u8,
    /// Which segments are tried first.
    pub strategy: Strategy,
    /// How the others are searched if those have no room.
    pub fallback: Fallback,
}

impl PlacementConfig {
    /// Whether it matters how full this node is.
    pub(crate) fn uses_local_until(&self) -> bool {
        self.affinity == Affinity::Local
    }

    /// Whether the strategy matters.
    pub(crate) fn uses_strategy(&self) -> bool {
        !self.uses_fallback() || self.fallback.uses_strategy()
    }

    /// Whether the fallback matters.
    pub(crate) fn uses_fallback(&self) -> bool {
        self.strategy.uses_fallback()
    }
}

/// Whether and when a node evicts objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictionConfig {
    /// In which order, or that none ever goes.
    pub policy: EvictionPolicy,
    /// Between which shares of its memory in use it evicts in the background.
    pub watermarks: Watermarks,
}

/// In which order objects go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// That of [`SecondChance`](tenon_store_core::eviction::SecondChance).
    Clock,
    /// None goes: a node that is full refuses puts.
    Off,
}

impl EvictionConfig {
    /// What a holder is told.
    pub fn in_use(self) -> Option<Watermarks> {
        match self.policy {
            EvictionPolicy::Clock => Some(self.watermarks),
            EvictionPolicy::Off => None,
        }
    }
}

/// Whether and how a node uses RDMA devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaConfig {
    /// Whether transfers may, must or must not go over RDMA.
    pub policy: RdmaPolicy,
    /// The devices to use; `None` for all.
    pub devices: Option<Vec<String>>,
    /// Row of the GID table to use; `None` for the best one of each port.
    pub gid_index: Option<u32>,
    /// Whether peers may write to segments themselves.
    pub push: PushPolicy,
}

/// How long a node waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// A reservation ends so long after its last byte.
    pub reservation_ttl: Duration,
    /// Time between two signs of life.
    pub heartbeat: Duration,
    /// Silence that makes a peer unreachable; longer than `heartbeat`.
    pub unreachable_after: Duration,
    /// A stopping node gives its work so long to finish.
    pub drain: Duration,
}

/// What a node logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// The least level that is logged.
    pub level: tracing::level_filters::LevelFilter,
}

/// How lines of the log look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Config {
    /// Reads the file that flags, environment or [`DEFAULT_PATH`] name, merges it with the flags, and checks the
    /// result.
    pub fn load(flags: &Flags, environment: &Environment, host: &Host) -> Result<Self, ConfigErrors> {
        validate::check(&settings(flags, environment)?, environment, host)
    }

    /// The same for somebody who looks at it and does not serve: a secret that this process may not read is left out, and
    /// the error about it returned beside the rest.
    pub fn load_to_look_at(
        flags: &Flags,
        environment: &Environment,
        host: &Host,
    ) -> Result<(Self, Option<ConfigError>), ConfigErrors> {
        validate::check_to_look_at(&settings(flags, environment)?, environment, host)
    }

    /// The file that is read; `None` if there is none.
    pub fn file(flags: &Flags, environment: &Environment) -> Option<PathBuf> {
        let named = flags.config.as_deref().or(environment.config.as_deref());
        let found = named.or_else(|| Some(Path::new(DEFAULT_PATH)).filter(|path| path.exists()));
        found.map(Path::to_owned)
    }

    /// The state directory alone, of a configuration that may not be complete yet: a static member list needs the ids
    /// that are made there.
    pub fn load_state_dir(flags: &Flags, environment: &Environment) -> Result<PathBuf, ConfigErrors> {
        validate::check_state_dir(&settings(flags, environment)?)
    }

    /// Checks that a static view knows this node; `None` is a node that has no id yet.
    pub fn check_membership(&self, node: Option<NodeId>) -> Result<(), ConfigError> {
        validate::check_membership(self, node)
    }

    /// This node's own entry in a static view.
    pub fn own_member(&self, node: NodeId) -> Option<Member> {
        match &self.cluster.view {
            ViewConfig::Standalone => None,
            ViewConfig::Static { members, .. } => members.iter().copied().find(|member| member.node == node),
        }
    }

    /// What others are told to dial: the configured address, else this node's entry in the member list, else the link's
    /// bound address.
    pub fn advertised(&self, node: NodeId, bound_link: SocketAddr) -> SocketAddr {
        let listed = || self.own_member(node).map(|member| member.endpoint);
        self.listen.advertise.or_else(listed).unwrap_or(bound_link)
    }

    /// The configuration as a file that would give the same one. Of the secret it names the place alone.
    pub fn to_toml(&self) -> String {
        render::render(self)
    }
}

fn settings(flags: &Flags, environment: &Environment) -> Result<Settings, ConfigError> {
    let path = Config::file(flags, environment);
    let document = path.as_deref().map(Document::read).transpose()?;
    Ok(Settings::merge(&document.unwrap_or_else(Document::empty), flags))
}

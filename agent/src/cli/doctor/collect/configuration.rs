//! What `tenond` is told, by the file that it would read.

use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, statfs};
use tenon_client::RdmaPolicy;
use tenon_protocol::ids::NodeId;
use tenon_protocol::table::TableLayout;
use tenon_transport::HugePages;

use crate::cli::doctor::facts::{
    Backing, Bound, Configuration, FileSystem, FileSystemKind, Known, LinkAddress, Segment, Wish,
};
use crate::config::{self, Config, ConfigError, ConfigErrors, Environment, Flags, Host, SegmentConfig, ViewConfig};
use crate::identity::stored_node_id;

/// The facts, and the configuration itself if it can be used.
pub(super) fn read(named: Option<PathBuf>) -> (Configuration, Option<Config>) {
    let mut flags = Flags::default();
    flags.config = named;
    let environment = Environment::of_process();
    let file = Config::file(&flags, &environment);
    match Config::load_to_look_at(&flags, &environment, &Host::probe()) {
        Ok((config, secret_error)) => (usable(file, &config, secret_error.as_ref()), Some(config)),
        Err(errors) => (unusable(file, &errors), None),
    }
}

fn usable(file: Option<PathBuf>, config: &Config, secret_error: Option<&ConfigError>) -> Configuration {
    let stored = stored_node_id(&config.state_dir);
    let stored_node = stored.as_ref().ok().copied();
    let membership_error = stored
        .as_ref()
        .ok()
        .and_then(|node| config.check_membership(*node).err());
    Configuration {
        file,
        errors: Vec::new(),
        is_private: false,
        secret_error: secret_error.map(ToString::to_string),
        membership_error: membership_error.map(|error| error.to_string()),
        node: Known::from_result(stored),
        members: match &config.cluster.view {
            ViewConfig::Standalone => 0,
            ViewConfig::Static { members, .. } => members.len(),
        },
        link: Some(link(config, stored_node.flatten())),
        rdma: Some(match config.rdma.policy {
            RdmaPolicy::Require => Wish::Require,
            RdmaPolicy::Prefer => Wish::Prefer,
            RdmaPolicy::Forbid => Wish::Off,
        }),
        push: Some(config.rdma.push),
        segments: Some(config.segments.iter().map(segment).collect()),
    }
}

fn unusable(file: Option<PathBuf>, errors: &ConfigErrors) -> Configuration {
    let is_private = |error: &ConfigError| match error {
        ConfigError::Read { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
        _ => false,
    };
    Configuration {
        file,
        is_private: errors.0.iter().all(is_private),
        errors: errors.0.iter().map(ToString::to_string).collect(),
        secret_error: None,
        node: Known::No {
            not_read: "the configuration names its place".to_owned(),
        },
        membership_error: None,
        members: 0,
        link: None,
        rdma: None,
        push: None,
        segments: None,
    }
}

fn link(config: &Config, node: Option<NodeId>) -> LinkAddress {
    let listed = || Some(config.own_member(node?)?.endpoint);
    let listen = config.listen.link;
    LinkAddress {
        listen,
        dialled: config.listen.advertise.or_else(listed),
        bound: match TcpListener::bind(listen) {
            Ok(_) => Bound::Free,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Bound::Taken {
                said: error.to_string(),
            },
            Err(error) => Bound::Not {
                said: error.to_string(),
            },
        },
    }
}

fn segment(segment: &SegmentConfig) -> Segment {
    Segment {
        len_bytes: segment.len_bytes,
        table_bytes: TableLayout::new(segment.len_bytes, segment.slots).len_bytes(),
        backing: match &segment.backing {
            config::Backing::Memfd(huge_pages) => Backing::Memfd {
                huge_pages: match huge_pages {
                    HugePages::Require => Wish::Require,
                    HugePages::Prefer => Wish::Prefer,
                    HugePages::Off => Wish::Off,
                },
            },
            config::Backing::File(path) => Backing::File {
                path: path.clone(),
                file_system: Known::from_result(file_system(path)),
            },
        },
    }
}

fn file_system(path: &Path) -> nix::Result<FileSystem> {
    let found = match statfs(path.parent().unwrap_or(path)) {
        Err(Errno::ENOENT) => {
            let (kind, free_bytes) = (FileSystemKind::Missing, 0);
            return Ok(FileSystem { kind, free_bytes });
        }
        found => found?,
    };
    let block_bytes = u64::try_from(found.block_size()).unwrap_or(0);
    Ok(FileSystem {
        kind: match found.filesystem_type() {
            TMPFS_MAGIC | HUGETLBFS_MAGIC => FileSystemKind::Memory,
            _ => FileSystemKind::Other,
        },
        free_bytes: found.blocks_available().saturating_mul(block_bytes),
    })
}

//! The effective configuration as TOML.

use std::time::Duration;

use serde::Serialize;

use super::validate::{NO_SOCKET, huge_pages_name, names};
use super::{Backing, Config, PlacementConfig, SegmentConfig, ViewConfig, size};

#[derive(Serialize)]
struct Tables {
    node: Node,
    cluster: Cluster,
    listen: Listen,
    segments: Vec<Segment>,
    placement: Placement,
    eviction: Eviction,
    rdma: Rdma,
    timeouts: Timeouts,
    log: Log,
}

#[derive(Serialize)]
struct Node {
    state_dir: String,
}

#[derive(Serialize)]
struct Cluster {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    secret_file: Option<String>,
    view: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    id: String,
    endpoint: String,
}

#[derive(Serialize)]
struct Listen {
    http: String,
    link: String,
    unix: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<String>,
}

#[derive(Serialize)]
struct Segment {
    size: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    huge_pages: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    slots: u32,
}

#[derive(Serialize)]
struct Placement {
    affinity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_until_percent: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strategy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<String>,
}

#[derive(Serialize)]
struct Eviction {
    policy: &'static str,
    from_percent: u8,
    to_percent: u8,
}

#[derive(Serialize)]
struct Rdma {
    policy: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gid_index: Option<u32>,
    push: String,
}

#[derive(Serialize)]
struct Timeouts {
    reservation_ttl_ms: u64,
    heartbeat_ms: u64,
    unreachable_after_ms: u64,
    drain_ms: u64,
}

#[derive(Serialize)]
struct Log {
    format: &'static str,
    level: &'static str,
}

/// See [`Config::to_toml`].
pub(super) fn render(config: &Config) -> String {
    let (format, level) = names::log(&config.log);
    let listen = &config.listen;
    let timeouts = &config.timeouts;
    let unix = listen.unix.as_ref().map(|path| path.display().to_string());
    let tables = Tables {
        node: Node {
            state_dir: config.state_dir.display().to_string(),
        },
        cluster: cluster(config),
        listen: Listen {
            http: listen.http.to_string(),
            link: listen.link.to_string(),
            unix: unix.unwrap_or_else(|| NO_SOCKET.to_owned()),
            advertise: listen.advertise.map(|address| address.to_string()),
        },
        segments: config.segments.iter().map(segment).collect(),
        placement: placement(config.placement),
        eviction: Eviction {
            policy: names::eviction(config.eviction.policy),
            from_percent: config.eviction.watermarks.from_percent,
            to_percent: config.eviction.watermarks.to_percent,
        },
        rdma: Rdma {
            policy: config.rdma.policy.to_string(),
            devices: config.rdma.devices.clone(),
            gid_index: config.rdma.gid_index,
            push: config.rdma.push.to_string(),
        },
        timeouts: Timeouts {
            reservation_ttl_ms: millis(timeouts.reservation_ttl),
            heartbeat_ms: millis(timeouts.heartbeat),
            unreachable_after_ms: millis(timeouts.unreachable_after),
            drain_ms: millis(timeouts.drain),
        },
        log: Log { format, level },
    };
    // Texts and small numbers in tables: nothing of which TOML has no form.
    toml::to_string(&tables).unwrap_or_else(|error| format!("# {error}\n"))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Only what has an effect: the others would be refused.
fn placement(config: PlacementConfig) -> Placement {
    let PlacementConfig {
        affinity,
        local_until_percent,
        strategy,
        fallback,
    } = config;
    Placement {
        affinity: affinity.to_string(),
        local_until_percent: config.uses_local_until().then_some(local_until_percent),
        strategy: config.uses_strategy().then(|| strategy.to_string()),
        fallback: config.uses_fallback().then(|| fallback.to_string()),
    }
}

fn cluster(config: &Config) -> Cluster {
    let members = match &config.cluster.view {
        ViewConfig::Standalone => &[][..],
        ViewConfig::Static { members, .. } => members,
    };
    let members = members.iter().map(|member| Member {
        id: member.node.to_string(),
        endpoint: member.endpoint.to_string(),
    });
    Cluster {
        name: config.cluster.name.clone(),
        secret_file: config.cluster.secret.as_ref().map(|secret| secret.location.clone()),
        view: names::view(&config.cluster.view),
        members: members.collect(),
    }
}

fn segment(segment: &SegmentConfig) -> Segment {
    let (huge_pages, file) = match &segment.backing {
        Backing::Memfd(huge_pages) => (Some(huge_pages_name(*huge_pages)), None),
        Backing::File(path) => (None, Some(path.display().to_string())),
    };
    Segment {
        size: size::format(segment.len_bytes),
        huge_pages,
        file,
        slots: segment.slots,
    }
}

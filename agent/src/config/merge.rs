//! The one place where file, flags and defaults meet. Nothing is checked here.

use toml::Spanned;

use super::file::{Document, MemberTable, SegmentTable};
use super::flags::Flags;
use super::size::SizeText;
use super::source::Sourced;

/// Every setting as somebody wrote it, or its default.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) state_dir: Sourced<String>,
    pub(super) cluster_name: Sourced<String>,
    pub(super) secret_file: Option<Sourced<String>>,
    pub(super) view: Sourced<String>,
    pub(super) members: Option<Sourced<Vec<MemberSettings>>>,
    pub(super) http: Sourced<String>,
    pub(super) link: Sourced<String>,
    pub(super) unix: Sourced<String>,
    pub(super) advertise: Option<Sourced<String>>,
    pub(super) segments: Option<Sourced<Vec<SegmentSettings>>>,
    pub(super) affinity: Sourced<String>,
    pub(super) local_until_percent: Sourced<u64>,
    pub(super) strategy: Sourced<String>,
    pub(super) fallback: Sourced<String>,
    pub(super) eviction_policy: Sourced<String>,
    pub(super) eviction_from_percent: Sourced<u64>,
    pub(super) eviction_to_percent: Sourced<u64>,
    pub(super) rdma_policy: Sourced<String>,
    pub(super) rdma_devices: Option<Sourced<Vec<String>>>,
    pub(super) rdma_gid_index: Option<Sourced<u64>>,
    pub(super) rdma_push: Sourced<String>,
    pub(super) reservation_ttl_ms: Sourced<u64>,
    pub(super) heartbeat_ms: Sourced<u64>,
    pub(super) unreachable_after_ms: Sourced<u64>,
    pub(super) drain_ms: Sourced<u64>,
    pub(super) log_format: Sourced<String>,
    pub(super) log_level: Sourced<String>,
}

#[derive(Debug, Clone)]
pub(super) struct MemberSettings {
    pub(super) id: Sourced<String>,
    pub(super) endpoint: Sourced<String>,
}

#[derive(Debug, Clone)]
pub(super) struct SegmentSettings {
    pub(super) size: Sourced<SizeText>,
    pub(super) huge_pages: Option<Sourced<String>>,
    pub(super) file: Option<Sourced<String>>,
    pub(super) slots: Option<Sourced<u64>>,
}

impl Settings {
    /// A flag goes before the file, the file before the default.
    pub(super) fn merge(document: &Document, flags: &Flags) -> Self {
        let tables = &document.tables;
        let merge = Merge { document };
        Self {
            state_dir: merge.text(
                "node.state_dir",
                Some(("--state-dir", &flags.state_dir)),
                &tables.node.state_dir,
                "/var/lib/tenon",
            ),
            cluster_name: merge.text("cluster.name", None, &tables.cluster.name, "tenon"),
            secret_file: merge.optional("cluster.secret_file", &tables.cluster.secret_file),
            view: merge.text("cluster.view", None, &tables.cluster.view, "standalone"),
            members: merge.members(),
            http: merge.text(
                "listen.http",
                Some(("--http", &flags.http)),
                &tables.listen.http,
                "127.0.0.1:7600",
            ),
            link: merge.text(
                "listen.link",
                Some(("--link", &flags.link)),
                &tables.listen.link,
                "127.0.0.1:7601",
            ),
            unix: merge.text(
                "listen.unix",
                Some(("--unix", &flags.unix)),
                &tables.listen.unix,
                "/run/tenon/tenon.sock",
            ),
            advertise: merge.optional("listen.advertise", &tables.listen.advertise),
            segments: merge.segments(flags),
            affinity: merge.text("placement.affinity", None, &tables.placement.affinity, "local"),
            local_until_percent: merge.number(
                "placement.local_until_percent",
                &tables.placement.local_until_percent,
                80,
            ),
            strategy: merge.text(
                "placement.strategy",
                None,
                &tables.placement.strategy,
                "free_ratio_first",
            ),
            fallback: merge.text("placement.fallback", None, &tables.placement.fallback, "indexed"),
            eviction_policy: merge.text("eviction.policy", None, &tables.eviction.policy, "clock"),
            eviction_from_percent: merge.number("eviction.from_percent", &tables.eviction.from_percent, 95),
            eviction_to_percent: merge.number("eviction.to_percent", &tables.eviction.to_percent, 90),
            rdma_policy: merge.text("rdma.policy", None, &tables.rdma.policy, "prefer"),
            rdma_devices: merge.optional("rdma.devices", &tables.rdma.devices),
            rdma_gid_index: merge.optional("rdma.gid_index", &tables.rdma.gid_index),
            rdma_push: merge.text("rdma.push", None, &tables.rdma.push, "off"),
            reservation_ttl_ms: merge.number(
                "timeouts.reservation_ttl_ms",
                &tables.timeouts.reservation_ttl_ms,
                30_000,
            ),
            heartbeat_ms: merge.number("timeouts.heartbeat_ms", &tables.timeouts.heartbeat_ms, 1_000),
            unreachable_after_ms: merge.number(
                "timeouts.unreachable_after_ms",
                &tables.timeouts.unreachable_after_ms,
                3_000,
            ),
            drain_ms: merge.number("timeouts.drain_ms", &tables.timeouts.drain_ms, 10_000),
            log_format: merge.text("log.format", None, &tables.log.format, "text"),
            log_level: merge.text("log.level", None, &tables.log.level, "info"),
        }
    }
}

#[derive(Clone, Copy)]
struct Merge<'a> {
    document: &'a Document,
}

impl Merge<'_> {
    fn text(
        self,
        key: &str,
        flag: Option<(&'static str, &Option<String>)>,
        file: &Option<Spanned<String>>,
        default: &str,
    ) -> Sourced<String> {
        if let Some((name, Some(value))) = flag {
            return Sourced::flag(key, name, value.clone());
        }
        self.optional(key, file)
            .unwrap_or_else(|| Sourced::default_of(key, default))
    }

    fn number(self, key: &str, file: &Option<Spanned<u64>>, default: u64) -> Sourced<u64> {
        self.optional(key, file)
            .unwrap_or_else(|| Sourced::default_of(key, default))
    }

    fn optional<T: Clone>(self, key: &str, file: &Option<Spanned<T>>) -> Option<Sourced<T>> {
        file.as_ref().map(|value| self.document.sourced(key, value))
    }

    fn members(self) -> Option<Sourced<Vec<MemberSettings>>> {
        let list = self.document.tables.cluster.members.as_ref()?;
        let member = |(index, table): (usize, &MemberTable)| MemberSettings {
            id: self.document.sourced(format!("cluster.members[{index}].id"), &table.id),
            endpoint: self
                .document
                .sourced(format!("cluster.members[{index}].endpoint"), &table.endpoint),
        };
        Some(Sourced {
            key: "cluster.members".to_owned(),
            value: list.get_ref().iter().enumerate().map(member).collect(),
            origin: self.document.origin(&list.span()),
        })
    }

    fn segments(self, flags: &Flags) -> Option<Sourced<Vec<SegmentSettings>>> {
        if let Some(size) = &flags.segment_size {
            let only = SegmentSettings {
                size: Sourced::flag("segments[0].size", "--segment-size", size.clone()),
                huge_pages: None,
                file: None,
                slots: None,
            };
            return Some(Sourced::flag("segments", "--segment-size", vec![only]));
        }
        let list = self.document.tables.segments.as_ref()?;
        let segments = list.get_ref().iter().enumerate();
        Some(Sourced {
            key: "segments".to_owned(),
            value: segments
                .map(|(index, table)| self.segment(index, table.get_ref()))
                .collect(),
            origin: self.document.origin(&list.span()),
        })
    }

    fn segment(self, index: usize, table: &SegmentTable) -> SegmentSettings {
        let key = |name: &str| format!("segments[{index}].{name}");
        SegmentSettings {
            size: self.document.sourced(key("size"), &table.size),
            huge_pages: self.optional(&key("huge_pages"), &table.huge_pages),
            file: self.optional(&key("file"), &table.file),
            slots: self.optional(&key("slots"), &table.slots),
        }
    }
}

impl Sourced<Vec<MemberSettings>> {
    /// The list itself is too much to print in an error: its length stands for it.
    pub(super) fn counted(&self) -> Sourced<ListOf> {
        self.with(ListOf(self.value.len()))
    }
}

impl Sourced<Vec<SegmentSettings>> {
    /// See the members' list.
    pub(super) fn counted(&self) -> Sourced<ListOf> {
        self.with(ListOf(self.value.len()))
    }
}

/// Stands for a list in an error.
#[derive(Clone, Copy)]
pub(super) struct ListOf(usize);

impl std::fmt::Debug for ListOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a list of {}", self.0)
    }
}

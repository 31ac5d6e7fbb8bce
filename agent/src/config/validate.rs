//! The rules of a configuration. All of them are checked, and all that is wrong is reported at once.

mod listen;
pub(crate) mod segments;

pub(super) use listen::NO_SOCKET;
pub(super) use segments::huge_pages_name;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tenon_client::RdmaPolicy;
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::{NODES_MAX, RESERVATION_TTL_MS_MAX};
use tenon_store_core::names::UnknownName;
use tenon_store_core::objects::Watermarks;
use tenon_transport::verbs::engine::PushPolicy;
use tracing::level_filters::LevelFilter;

use super::environment::Environment;
use super::error::{ConfigError, ConfigErrors, Problem};
use super::host::Host;
use super::merge::Settings;
use super::secret::SecretError;
use super::source::{Origin, Sourced};
use super::{
    ClusterConfig, Config, EvictionConfig, EvictionPolicy, LogConfig, LogFormat, Member, PlacementConfig, RdmaConfig,
    Secret, SecretSource, Timeouts, ViewConfig, secret,
};
use crate::limits::{CLUSTER_NAME_LEN_BYTES_MAX, GID_INDEX_MAX, TIMEOUT_MS_MAX};

const VIEWS: &[(&str, View)] = &[("standalone", View::Standalone), ("static", View::Static)];
const EVICTION_POLICIES: &[(&str, EvictionPolicy)] = &[("clock", EvictionPolicy::Clock), ("off", EvictionPolicy::Off)];
const FORMATS: &[(&str, LogFormat)] = &[("text", LogFormat::Text), ("json", LogFormat::Json)];
const LEVELS: &[(&str, LevelFilter)] = &[
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Standalone,
    Static,
}

/// The name that a choice has in the file.
pub(super) fn name_of<T: PartialEq>(choices: &[(&'static str, T)], chosen: &T) -> &'static str {
    let found = choices.iter().find(|(_, choice)| choice == chosen);
    found.map_or("", |(name, _)| name)
}

/// Checks the state directory alone.
pub(super) fn check_state_dir(settings: &Settings) -> Result<PathBuf, ConfigErrors> {
    let setting = &settings.state_dir;
    if is_absolute(&setting.value) {
        return Ok(PathBuf::from(&setting.value));
    }
    Err(ConfigError::value(setting, Problem::RelativePath).into())
}

fn is_absolute(path: &str) -> bool {
    path.starts_with('/') && !path.contains('\0')
}

/// Checks everything that does not depend on the node's id.
pub(super) fn check(settings: &Settings, environment: &Environment, host: &Host) -> Result<Config, ConfigErrors> {
    match check_all(settings, environment, host) {
        (config, errors) if errors.is_empty() => Ok(config),
        (_, errors) => Err(ConfigErrors(errors)),
    }
}

/// See [`Config::load_to_look_at`].
pub(super) fn check_to_look_at(
    settings: &Settings,
    environment: &Environment,
    host: &Host,
) -> Result<(Config, Option<ConfigError>), ConfigErrors> {
    let (config, mut errors) = check_all(settings, environment, host);
    match errors.as_slice() {
        [] | [_] if errors.iter().all(is_for_others_eyes) => Ok((config, errors.pop())),
        _ => Err(ConfigErrors(errors)),
    }
}

/// Whether all that is wrong is that this process may not read the secret.
fn is_for_others_eyes(error: &ConfigError) -> bool {
    let ConfigError::Value { problem, .. } = error else {
        return false;
    };
    match &**problem {
        Problem::Secret(SecretError::NoCredentials) => true,
        Problem::Secret(SecretError::Read { source, .. }) => source.kind() == io::ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// A configuration, and all that is wrong with it; it is valid if nothing is.
fn check_all(settings: &Settings, environment: &Environment, host: &Host) -> (Config, Vec<ConfigError>) {
    let mut check = Check {
        settings,
        environment,
        host,
        errors: Vec::new(),
    };
    let config = Config {
        state_dir: check.absolute_path(&settings.state_dir),
        cluster: check.cluster(),
        listen: check.listen(),
        segments: check.segments(),
        placement: check.placement(),
        eviction: check.eviction(),
        rdma: check.rdma(),
        timeouts: check.timeouts(),
        log: check.log(),
    };
    (config, check.errors)
}

/// See [`Config::check_membership`].
pub(super) fn check_membership(config: &Config, node: Option<NodeId>) -> Result<(), ConfigError> {
    let ViewConfig::Static { members, origin } = &config.cluster.view else {
        return Ok(());
    };
    let refused = |problem| ConfigError::Value {
        origin: origin.clone(),
        key: "cluster.members".to_owned(),
        value: format!("a list of {}", members.len()),
        problem: Box::new(problem),
    };
    let Some(node) = node else {
        return Err(refused(Problem::NoIdYet {
            state_dir: config.state_dir.clone(),
        }));
    };
    let Some(own) = config.own_member(node) else {
        return Err(refused(Problem::NotAMember { node }));
    };
    match config.listen.advertise {
        Some(advertise) if advertise != own.endpoint => Err(refused(Problem::AdvertiseDiffers {
            endpoint: own.endpoint,
            advertise,
        })),
        _ => Ok(()),
    }
}

/// Collects errors. A setting that is wrong is replaced by some value of its type, so that the others can be checked
/// too; the result is used only if nothing was wrong.
struct Check<'a> {
    settings: &'a Settings,
    environment: &'a Environment,
    host: &'a Host,
    errors: Vec<ConfigError>,
}

impl Check<'_> {
    fn refuse<T: std::fmt::Debug>(&mut self, setting: &Sourced<T>, problem: Problem) {
        self.errors.push(ConfigError::value(setting, problem));
    }

    fn choice<T: Copy>(&mut self, setting: &Sourced<String>, choices: &[(&'static str, T)]) -> Option<T> {
        let found = choices.iter().find(|(name, _)| *name == setting.value);
        if found.is_none() {
            let names = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(setting, Problem::OneOf(names));
        }
        found.map(|(_, choice)| *choice)
    }

    fn absolute_path(&mut self, setting: &Sourced<String>) -> PathBuf {
        if !is_absolute(&setting.value) {
            self.refuse(setting, Problem::RelativePath);
        }
        PathBuf::from(&setting.value)
    }

    fn number(&mut self, setting: &Sourced<u64>, min: u64, max: u64) -> u64 {
        if !(min..=max).contains(&setting.value) {
            self.refuse(setting, Problem::Range { min, max });
        }
        setting.value
    }

    fn cluster(&mut self) -> ClusterConfig {
        let name = &self.settings.cluster_name;
        let len_bytes = name.value.len();
        if len_bytes == 0 || len_bytes > CLUSTER_NAME_LEN_BYTES_MAX || name.value.chars().any(char::is_control) {
            self.refuse(name, Problem::ClusterName);
        }
        ClusterConfig {
            name: name.value.clone(),
            secret: self.secret(),
            view: self.view(),
        }
    }

    fn secret(&mut self) -> Option<SecretSource> {
        let location = self.settings.secret_file.as_ref()?;
        let read = secret::locate(&location.value, self.environment.credentials_dir.as_deref())
            .and_then(|path| Secret::read(&path));
        match read {
            Ok(secret) => Some(SecretSource {
                location: location.value.clone(),
                secret,
            }),
            Err(error) => {
                self.refuse(location, error.into());
                None
            }
        }
    }

    /// Whether only loopback may be used.
    fn no_secret(&self) -> bool {
        self.settings.secret_file.is_none()
    }

    fn view(&mut self) -> ViewConfig {
        let setting = &self.settings.view;
        let view = self.choice(setting, VIEWS);
        match (view, &self.settings.members) {
            (Some(View::Static), Some(list)) => {
                let count = list.value.len();
                match count {
                    0 => self.refuse(&list.counted(), Problem::MembersMissing),
                    1..=NODES_MAX => {}
                    _ => self.refuse(&list.counted(), Problem::TooManyMembers { count }),
                }
                ViewConfig::Static {
                    members: self.members(),
                    origin: list.origin.clone(),
                }
            }
            (Some(View::Static), None) => {
                self.refuse(setting, Problem::MembersMissing);
                ViewConfig::Standalone
            }
            (Some(View::Standalone), Some(list)) => {
                let view = name_of(VIEWS, &View::Standalone);
                self.refuse(&list.counted(), Problem::MembersUnused { view });
                ViewConfig::Standalone
            }
            _ => ViewConfig::Standalone,
        }
    }

    fn members(&mut self) -> Vec<Member> {
        let mut members = Vec::new();
        let (mut ids, mut endpoints) = (HashMap::new(), HashMap::new());
        for entry in self.settings.members.iter().flat_map(|list| &list.value) {
            let node = entry.id.value.parse::<NodeId>();
            match &node {
                Ok(node) => self.once(&mut ids, *node, &entry.id),
                Err(_) => self.refuse(&entry.id, Problem::NodeId),
            }
            let endpoint = self.member_endpoint(&entry.endpoint);
            if let Some(endpoint) = endpoint {
                self.once(&mut endpoints, endpoint, &entry.endpoint);
            }
            if let (Ok(node), Some(endpoint)) = (node, endpoint) {
                members.push(Member { node, endpoint });
            }
        }
        members.sort_by_key(|member| member.node);
        members
    }

    fn member_endpoint(&mut self, setting: &Sourced<String>) -> Option<SocketAddr> {
        let endpoint = self.dialable(setting)?;
        if self.no_secret() && !endpoint.ip().is_loopback() {
            self.refuse(setting, Problem::OffLoopbackWithoutSecret);
        }
        Some(endpoint)
    }

    /// Refuses a value that another setting has.
    fn once<K: std::hash::Hash + Eq>(&mut self, seen: &mut HashMap<K, String>, value: K, setting: &Sourced<String>) {
        if let Some(other) = seen.insert(value, setting.key.clone()) {
            self.refuse(setting, Problem::Duplicate { other });
        }
    }

    fn placement(&mut self) -> PlacementConfig {
        let settings = self.settings;
        let local_until_percent = self.number(&settings.local_until_percent, 0, 100);
        let config = PlacementConfig {
            affinity: self.named(&settings.affinity),
            local_until_percent: u8::try_from(local_until_percent).unwrap_or(100),
            strategy: self.named(&settings.strategy),
            fallback: self.named(&settings.fallback),
        };
        if !config.uses_local_until() {
            self.no_effect(&settings.local_until_percent, &settings.affinity);
        }
        if !config.uses_fallback() {
            self.no_effect(&settings.fallback, &settings.strategy);
        } else if !config.uses_strategy() {
            self.no_effect(&settings.strategy, &settings.fallback);
        }
        config
    }

    /// Refuses a setting that somebody wrote and that another one leaves without effect.
    fn no_effect<T: std::fmt::Debug>(&mut self, setting: &Sourced<T>, other: &Sourced<String>) {
        if setting.origin == Origin::Default {
            return;
        }
        let problem = Problem::NoEffect {
            other: other.key.clone(),
            value: other.value.clone(),
        };
        self.refuse(setting, problem);
    }

    fn eviction(&mut self) -> EvictionConfig {
        let settings = self.settings;
        let percent = |number| u8::try_from(number).unwrap_or(100);
        let from_percent = self.number(&settings.eviction_from_percent, 1, 100);
        let to_percent = self.number(&settings.eviction_to_percent, 0, 99);
        if to_percent >= from_percent {
            self.refuse(&settings.eviction_to_percent, Problem::NotBelow { from_percent });
        }
        EvictionConfig {
            policy: self
                .choice(&settings.eviction_policy, EVICTION_POLICIES)
                .unwrap_or(EvictionPolicy::Clock),
            watermarks: Watermarks {
                from_percent: percent(from_percent),
                to_percent: percent(to_percent),
            },
        }
    }

    fn rdma(&mut self) -> RdmaConfig {
        let settings = self.settings;
        let devices = settings.rdma_devices.as_ref();
        if let Some(empty) = devices.filter(|devices| devices.value.is_empty()) {
            self.refuse(&empty.with("an empty list".to_owned()), Problem::NoDevices);
        }
        RdmaConfig {
            policy: self
                .choice(&settings.rdma_policy, &RdmaPolicy::NAMED)
                .unwrap_or_default(),
            devices: devices.map(|devices| devices.value.clone()),
            gid_index: settings.rdma_gid_index.as_ref().map(|index| {
                let index = self.number(index, 0, GID_INDEX_MAX.into());
                u32::try_from(index).unwrap_or(GID_INDEX_MAX)
            }),
            push: self.choice(&settings.rdma_push, &PushPolicy::NAMED).unwrap_or_default(),
        }
    }

    /// A choice whose names another crate knows.
    fn named<T: FromStr<Err = UnknownName> + Default>(&mut self, setting: &Sourced<String>) -> T {
        setting.value.parse().unwrap_or_else(|error: UnknownName| {
            self.refuse(setting, Problem::OneOf(error.valid));
            T::default()
        })
    }

    fn timeouts(&mut self) -> Timeouts {
        let settings = self.settings;
        let ttl_ms = self.number(&settings.reservation_ttl_ms, 1, RESERVATION_TTL_MS_MAX.into());
        let heartbeat_ms = self.number(&settings.heartbeat_ms, 1, TIMEOUT_MS_MAX);
        let unreachable_after_ms = self.number(&settings.unreachable_after_ms, 1, TIMEOUT_MS_MAX);
        let drain_ms = self.number(&settings.drain_ms, 1, TIMEOUT_MS_MAX);
        if heartbeat_ms >= unreachable_after_ms {
            self.refuse(
                &settings.heartbeat_ms,
                Problem::HeartbeatTooSlow { unreachable_after_ms },
            );
        }
        Timeouts {
            reservation_ttl: Duration::from_millis(ttl_ms),
            heartbeat: Duration::from_millis(heartbeat_ms),
            unreachable_after: Duration::from_millis(unreachable_after_ms),
            drain: Duration::from_millis(drain_ms),
        }
    }

    fn log(&mut self) -> LogConfig {
        LogConfig {
            format: self
                .choice(&self.settings.log_format, FORMATS)
                .unwrap_or(LogFormat::Text),
            level: self
                .choice(&self.settings.log_level, LEVELS)
                .unwrap_or(LevelFilter::INFO),
        }
    }
}

/// The names of the choices that a rendered configuration holds.
pub(super) mod names {
    use super::{EVICTION_POLICIES, FORMATS, LEVELS, VIEWS, View, name_of};
    use crate::config::{EvictionPolicy, LogConfig, ViewConfig};

    pub(in crate::config) fn view(view: &ViewConfig) -> &'static str {
        match view {
            ViewConfig::Standalone => name_of(VIEWS, &View::Standalone),
            ViewConfig::Static { .. } => name_of(VIEWS, &View::Static),
        }
    }

    pub(in crate::config) fn eviction(policy: EvictionPolicy) -> &'static str {
        name_of(EVICTION_POLICIES, &policy)
    }

    pub(in crate::config) fn log(log: &LogConfig) -> (&'static str, &'static str) {
        (name_of(FORMATS, &log.format), name_of(LEVELS, &log.level))
    }
}

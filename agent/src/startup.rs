//! The life of a `tenond` process: runtimes, log, what it tells systemd, and the order in which parts start and stop.

use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use serde::Serialize;
use tenon_protocol::ids::{Incarnation, NodeId};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::assemble::{self, Running, StartError};
use crate::config::{Config, ConfigError, ConfigErrors, LogConfig, LogFormat};
use crate::http;
use crate::http::node::NodeBackend;
use crate::identity::{Identity, IdentityError};
use crate::limits::{CONTROL_WORKERS_MAX, DATA_WORKERS_MAX, DESCRIPTORS_WANTED, RUNTIME_STOP_MS_MAX, WORKERS_MIN};
use crate::lives::Lives;
use crate::metrics::Metrics;
use crate::node::Node;

/// The file in the state directory that tells where the running node listens.
const ADDRESSES: &str = "addresses.json";

/// How a `tenond` process ends. `tenond --help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Stopped as asked, or nothing wrong with the configuration.
    Done = 0,
    /// Wrong usage, or a configuration that cannot be used.
    Config = 2,
    /// An address cannot be bound or dialled.
    Address = 3,
    /// The memory of a segment cannot be had.
    Memory = 4,
    /// The state directory cannot be used, or another agent uses it.
    State = 5,
    /// A fault of the program itself.
    Internal = 70,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a `tenond` process ends otherwise than asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The configuration cannot be used.
    #[error(transparent)]
    Configs(#[from] ConfigErrors),
    /// The member list does not fit this node.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state directory cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// HTTP cannot be served where it should.
    #[error("cannot listen for HTTP on {address}: {source}")]
    Http {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The node could not be put together.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The process lacks what every process has.
    #[error("cannot {doing}: {source}")]
    Process {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Failure {
    /// How the process ends because of it.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Configs(_) | Self::Config(_) => Exit::Config,
            Self::Identity(_) => Exit::State,
            Self::Http { .. } => Exit::Address,
            Self::Start(error) => match error {
                StartError::Bind(_) | StartError::Advertise { .. } => Exit::Address,
                StartError::Segment(_) | StartError::Mount(_) | StartError::Task { .. } => Exit::Memory,
                StartError::View(_) | StartError::Secret(_) | StartError::Rdma { .. } => Exit::Config,
            },
            Self::Process { .. } => Exit::Internal,
        }
    }
}

/// Sends the log to the standard error output from now on, and makes every panic the end of the process: a node whose
/// own account is in doubt must not go on writing into memory.
pub fn start_log(config: LogConfig) {
    use std::io::IsTerminal;
    let builder = tracing_subscriber::fmt()
        .with_max_level(config.level)
        .with_writer(io::stderr);
    match config.format {
        LogFormat::Text => builder.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "a fault of the program itself; the process ends");
        print(panic);
        std::process::abort();
    }));
}

/// The two lanes of an agent: bulk data has workers of its own, so that control calls do not wait behind it.
#[derive(Debug)]
pub struct Lanes {
    control: Runtime,
    data: Runtime,
}

impl Lanes {
    /// Starts the workers of both.
    pub fn start() -> Result<Self, Failure> {
        let cores = std::thread::available_parallelism().map_or(WORKERS_MIN, NonZero::get);
        Ok(Self {
            control: lane("tenon-control", (cores / 4).clamp(WORKERS_MIN, CONTROL_WORKERS_MAX))?,
            data: lane("tenon-data", cores.clamp(WORKERS_MIN, DATA_WORKERS_MAX))?,
        })
    }

    /// Runs a node until it is told to stop.
    pub fn run(self, config: &Config, identity: Identity) -> Result<(), Failure> {
        let result = self.control.block_on(run(config, identity, self.data.handle()));
        let patience = Duration::from_millis(RUNTIME_STOP_MS_MAX);
        self.data.shutdown_timeout(patience);
        self.control.shutdown_timeout(patience);
        result
    }
}

fn lane(name: &str, workers: usize) -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    builder.thread_name(name).worker_threads(workers).enable_all();
    builder.build().map_err(|source| Failure::Process {
        doing: "start worker threads",
        source,
    })
}

/// The soft limit of descriptors is often 1,024, which a few hundred connections use up.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        let wanted = DESCRIPTORS_WANTED.min(hard).max(soft);
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    });
    if let Err(error) = raised {
        tracing::warn!(%error, wanted = DESCRIPTORS_WANTED, "the limit of file descriptors stays as it is");
    }
}

async fn run(config: &Config, identity: Identity, data: &Handle) -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    raise_descriptor_limit();
    // What an earlier life left there is wrong now.
    identity.state_dir.remove(ADDRESSES)?;
    tracing::info!(node = %identity.node, incarnation = %identity.incarnation, version = crate::VERSION, "starting");
    tell_systemd(&[NotifyState::Status("mounting segments")]);
    let address = config.listen.http;
    let listener = TcpListener::bind(address)
        .await
        .and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (http, listener) = listener.map_err(|source| Failure::Http { address, source })?;
    let metrics = Arc::new(Metrics::new());
    let lives = Arc::new(Lives::default());
    let front = Front::start(
        listener,
        NodeBackend::new(identity.node, Arc::clone(&lives)),
        &metrics,
        data,
    );
    let telling = tokio::spawn(tell_of_mounting(Arc::clone(&lives)));
    let started = assemble::start(config, identity.node, identity.incarnation, data, metrics, lives);
    let running = tokio::select! {
        running = started => running?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before it was started");
            return Ok(());
        }
    };
    telling.abort();
    front.backend.started(Arc::clone(&running.node));
    announce(&identity, http, &running)?;
    tell_systemd(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let watchdog = tokio::spawn(feed_watchdog(data.clone()));
    let name = signals.next().await;
    tracing::info!(signal = name, "stopping");
    tell_systemd(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    tokio::select! {
        () = stop(front, running, config.timeouts.drain) => {}
        name = signals.next() => tracing::warn!(signal = name, "stopped at once, as asked a second time"),
    }
    watchdog.abort();
    identity.state_dir.remove(ADDRESSES)?;
    tracing::info!("stopped");
    Ok(())
}

/// The HTTP front at work.
struct Front {
    serving: JoinHandle<()>,
    stop: watch::Sender<bool>,
    backend: Arc<NodeBackend>,
}

impl Front {
    /// Serves the node's health from now on, and all else once the node is there. Objects pass through HTTP: it belongs
    /// to the data lane.
    fn start(listener: TcpListener, backend: NodeBackend, metrics: &Arc<Metrics>, data: &Handle) -> Self {
        let backend = Arc::new(backend);
        let (stop, stopped) = watch::channel(false);
        let serving = http::serve(listener, Arc::clone(&backend) as _, Arc::clone(metrics), stopped);
        Self {
            serving: data.spawn(serving),
            stop,
            backend,
        }
    }
}

/// Takes nothing new, gives what is under way `drain` to finish, and closes everything.
async fn stop(mut front: Front, running: Running, drain: Duration) {
    let deadline = Instant::now() + drain;
    // Moved objects are read here until they are gone: links and HTTP go on, and have what is left of the time.
    let leaving = tokio::spawn(tell_of_draining(Arc::clone(&running.node)));
    running.node.leave_cluster(deadline - drain / 4).await;
    leaving.abort();
    front.stop.send_replace(true);
    // Requests over HTTP need the node's links, which are closed after them.
    if tokio::time::timeout_at(deadline, &mut front.serving).await.is_err() {
        tracing::warn!(drain_ms = drain.as_millis(), "HTTP requests were broken off");
        front.serving.abort();
    }
    if tokio::time::timeout_at(deadline, running.stop()).await.is_err() {
        tracing::warn!(drain_ms = drain.as_millis(), "links were broken off");
    }
}

/// Where a running node listens, as [`ADDRESSES`] tells it to programs.
#[derive(Debug, Serialize)]
struct Addresses<'a> {
    node: NodeId,
    incarnation: Incarnation,
    http: SocketAddr,
    link: SocketAddr,
    unix: Option<&'a PathBuf>,
    advertise: &'a str,
}

fn announce(identity: &Identity, http: SocketAddr, running: &Running) -> Result<(), Failure> {
    let addresses = Addresses {
        node: identity.node,
        incarnation: identity.incarnation,
        http,
        link: running.link,
        unix: running.unix.as_ref(),
        advertise: running.node.endpoint(),
    };
    let text = serde_json::to_string_pretty(&addresses).map_err(|error| Failure::Process {
        doing: "describe the addresses",
        source: error.into(),
    })?;
    identity.state_dir.replace(ADDRESSES, &format!("{text}\n"))?;
    let unix = addresses
        .unix
        .map_or_else(|| "off".to_owned(), |path| path.display().to_string());
    let (link, advertise) = (addresses.link, addresses.advertise);
    tracing::info!(node = %identity.node, %http, %link, unix, advertise, "serving");
    Ok(())
}

/// The signals that ask a process to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|source| Failure::Process {
                doing: "wait for signals",
                source,
            })
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next one's name.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Without systemd this does nothing.
fn tell_systemd(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd was not told");
    }
}

/// Tells systemd how far a node that leaves is.
async fn tell_of_draining(node: Arc<Node>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        tell_systemd(&[NotifyState::Status(&node.draining_text())]);
    }
}

/// Tells systemd how far the mounting of segments is.
async fn tell_of_mounting(lives: Arc<Lives>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if let Some(text) = lives.mounting_text() {
            tell_systemd(&[NotifyState::Status(&text)]);
        }
    }
}

/// Tells systemd's watchdog, if there is one, that both lanes still get their turns.
async fn feed_watchdog(data: Handle) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut every = interval(limit / 3);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        match timeout(limit / 3, data.spawn(async {})).await {
            Ok(Ok(())) => tell_systemd(&[NotifyState::Watchdog]),
            _ => tracing::error!("the workers that move data do not get their turn"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_exit_code_is_explained_in_the_help() {
        let help = crate::config::Flags::command().render_long_help().to_string();
        for exit in [
            Exit::Done,
            Exit::Config,
            Exit::Address,
            Exit::Memory,
            Exit::State,
            Exit::Internal,
        ] {
            let code = (exit as u8).to_string();
            let explained = help
                .lines()
                .any(|line| line.split_whitespace().next() == Some(code.as_str()));
            assert!(explained, "{exit:?} is missing in:\n{help}");
        }
    }

    #[test]
    fn lanes_have_workers_with_names() {
        let lanes = Lanes::start().unwrap();
        for (runtime, name) in [(&lanes.control, "tenon-control"), (&lanes.data, "tenon-data")] {
            let worker = runtime.spawn(async { std::thread::current().name().map(str::to_owned) });
            assert_eq!(runtime.block_on(worker).unwrap().as_deref(), Some(name));
        }
    }
}

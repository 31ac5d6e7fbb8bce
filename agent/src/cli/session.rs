//! What all commands of one call share: the agent, the namespace, and how much time there is.

use super::args::Global;
use super::failure::Failure;
use super::progress;
use crate::config::Secret;
use std::time::Duration;
use tenon_client::{Client, ConnectOptions, DEFAULT_CLUSTER_NAME, RdmaPolicy, Transports, default_deadline};
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::ClusterId;
use tenon_protocol::name::{NameError, Namespace, ObjectName};
use tenon_transport::link::Endpoint;
use tenon_transport::verbs::engine::{Rails, RailsOptions};
use tokio::runtime::Handle;
use tokio::time::Instant;

/// Where the agent's socket is unless told otherwise.
pub(super) const DEFAULT_SOCKET: &str = "/run/tenon/tenon.sock";

#[derive(Debug)]
pub(super) struct Session {
    global: Global,
    own_deadline: Option<Instant>,
}

impl Session {
    /// The clock of `--timeout-ms` starts here.
    pub(super) fn new(global: Global) -> Self {
        let own_deadline = global
            .timeout_ms
            .map(|timeout_ms| Instant::now() + Duration::from_millis(timeout_ms));
        Self { global, own_deadline }
    }

    pub(super) fn is_json(&self) -> bool {
        self.global.json
    }

    /// Whether somebody would see a progress bar.
    pub(super) fn somebody_looks(&self) -> bool {
        !self.global.json && progress::stderr_is_terminal()
    }

    /// Whether the user said how long all may take.
    pub(super) fn has_own_deadline(&self) -> bool {
        self.own_deadline.is_some()
    }

    /// The user's deadline, or the default for so many bytes from now.
    pub(super) fn deadline(&self, len_bytes: u64) -> Instant {
        self.own_deadline.unwrap_or_else(|| default_deadline(len_bytes))
    }

    pub(super) fn namespace(&self) -> Result<Namespace, Failure> {
        Namespace::new(&self.global.namespace).map_err(invalid)
    }

    pub(super) fn name(&self, key: &str) -> Result<ObjectName, Failure> {
        ObjectName::new(&self.namespace()?, key).map_err(invalid)
    }

    /// With the devices of this host, if it has some and they may be used.
    fn transports(&self) -> Result<Transports, Failure> {
        let policy = self.global.rdma;
        let opened = (policy != RdmaPolicy::Forbid).then(|| Rails::open(RailsOptions::default(), &Handle::current()));
        let rails = match opened.transpose() {
            Ok(rails) => rails,
            Err(error) if policy == RdmaPolicy::Require => {
                return Err(Failure::new(ErrorCode::RdmaRequired, error.to_string()));
            }
            Err(_) => None,
        };
        Ok(Transports {
            rdma: policy,
            rails,
            ..Transports::default()
        })
    }

    /// The agent that the user names, if they do.
    pub(super) fn named_agent(&self) -> Option<&Endpoint> {
        self.global.connect.as_ref()
    }

    /// A client of the agent that the user names, else of the one at the default socket.
    pub(super) async fn connect(&self) -> Result<Client, Failure> {
        let endpoint = self.named_agent().cloned();
        self.connect_to(&endpoint.unwrap_or_else(|| Endpoint::Unix(DEFAULT_SOCKET.into())))
            .await
    }

    /// The secret that the user names, if they do.
    pub(super) fn secret(&self) -> Result<Option<Secret>, Failure> {
        let read = self.global.secret_file.as_deref().map(Secret::read).transpose();
        read.map_err(|error| Failure::new(ErrorCode::InvalidArgument, error.to_string()))
    }

    /// A client of this agent.
    pub(super) async fn connect_to(&self, endpoint: &Endpoint) -> Result<Client, Failure> {
        let secret = self.secret()?;
        let options = ConnectOptions {
            cluster: self.global.cluster.as_deref().map(ClusterId::of_name),
            secret: secret.map(|secret| secret.expose().to_vec()),
            transports: self.transports()?,
            ..ConnectOptions::new(endpoint.clone())
        };
        let connected = Client::connect(options, self.deadline(0)).await;
        let cluster = self.global.cluster.as_deref().unwrap_or(DEFAULT_CLUSTER_NAME);
        connected.map_err(|error| Failure::connecting(error, endpoint, cluster))
    }
}

fn invalid(error: NameError) -> Failure {
    Failure::new(ErrorCode::InvalidName, error.to_string())
}

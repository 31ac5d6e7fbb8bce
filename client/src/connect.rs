//! Connecting to an agent.

use crate::client::Client;
use crate::error::ClientError;
use crate::link_control::LinkControl;
use crate::rdma::Transports;
use crate::remote_holders::RemoteHolders;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::ClusterId;
use tenon_transport::link::{Authenticator, Endpoint, Identity, NoSecret, Role, SharedSecret};
use tenon_transport::{PeerId, SessionId};
use tokio::time::Instant;

/// Which agent to connect to, and how.
#[derive(Clone)]
pub struct ConnectOptions {
    /// Where the agent listens.
    pub endpoint: Endpoint,
    /// The cluster it must belong to. A unix socket's agent is taken at its word if this is not given; over TCP it is the cluster of the
    /// default name then.
    pub cluster: Option<ClusterId>,
    /// The cluster's secret. Not needed for an agent's unix socket, which gives tokens to those who may open it.
    pub secret: Option<Vec<u8>>,
    /// How connections to holders are set up.
    pub transports: Transports,
}

/// The name of the cluster that is meant when none is named.
pub const DEFAULT_CLUSTER_NAME: &str = "tenon";

/// Takes an agent of whatever cluster.
const ANY_CLUSTER: ClusterId = ClusterId::from_bytes([0; 16]);

impl ConnectOptions {
    /// The defaults for an agent at `endpoint`.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            cluster: None,
            secret: None,
            transports: Transports::default(),
        }
    }

    fn identity(&self) -> Identity {
        let default = match &self.endpoint {
            Endpoint::Unix(_) => ANY_CLUSTER,
            Endpoint::Tcp(_) => ClusterId::of_name(DEFAULT_CLUSTER_NAME),
        };
        Identity {
            cluster: tenon_transport::ClusterId(self.cluster.unwrap_or(default).to_bytes()),
            role: Role::Client,
            peer: PeerId(rand::random()),
            incarnation: 0,
            session: SessionId(rand::random()),
            features: 0,
            context: [0; 32],
        }
    }
}

/// The secret is not shown.
impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("endpoint", &self.endpoint)
            .field("cluster", &self.cluster)
            .field("has_secret", &self.secret.is_some())
            .field("transports", &self.transports)
            .finish()
    }
}

impl Client {
    /// Connects to an agent, which coordinates what this client does. Links and lanes are tasks of the runtime that this is called on.
    pub async fn connect(options: ConnectOptions, deadline: Instant) -> Result<Self, ClientError> {
        let invalid =
            |error: tenon_transport::link::AuthError| ServiceError::new(ErrorCode::InvalidArgument, error.to_string());
        let secret = match &options.secret {
            Some(bytes) => Some(Arc::new(SharedSecret::new(bytes).map_err(invalid)?) as Arc<dyn Authenticator>),
            None => None,
        };
        // Who may open an agent's unix socket has proven enough.
        let towards_agent = match (&options.endpoint, &secret) {
            (Endpoint::Tcp(_), Some(secret)) => Arc::clone(secret),
            (Endpoint::Tcp(_), None) | (Endpoint::Unix(_), _) => Arc::new(NoSecret) as Arc<dyn Authenticator>,
        };
        let identity = options.identity();
        let agent = LinkControl::connect(options.endpoint, identity, towards_agent, deadline).await?;
        let holders = RemoteHolders::for_client(Arc::clone(&agent), secret, options.transports);
        let cluster = ClusterId::from_bytes(agent.cluster().0);
        Ok(Self::new(cluster, agent, Arc::new(holders)))
    }
}

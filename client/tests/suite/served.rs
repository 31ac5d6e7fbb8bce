//! Fake nodes behind real links and lanes.

use crate::agent::FakeAgent;
use crate::node::CLUSTER;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::message::{Reply, Request, TokenReply};
use tenon_transport::link::{
    AdmitAll, Authenticator, BoxFuture, Endpoint, Identity, Listener, ListenerOptions, Role, Service, Serving, Session,
    SharedSecret, TokenClaims,
};
use tenon_transport::{ClusterId, PeerId, SessionId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub const SECRET: &[u8] = b"a secret of some length";

pub fn secret() -> SharedSecret {
    SharedSecret::new(SECRET).unwrap()
}

/// One node's control service.
struct NodeService {
    agent: Arc<FakeAgent>,
    at: usize,
    gives_tokens: bool,
}

impl NodeService {
    fn answer(&self, session: &Session, request: Request) -> Reply {
        match request {
            Request::Attach => Reply::Attach(self.agent.nodes[self.at].attach()),
            Request::Token if self.gives_tokens => Reply::Token(token(session)),
            Request::Token => Reply::Failed(ServiceError::new(ErrorCode::NotFound, "no secret, no tokens")),
            request => {
                *self.agent.session.lock() = session.session;
                self.agent.serve(request)
            }
        }
    }
}

fn token(session: &Session) -> TokenReply {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let token = secret().mint(TokenClaims {
        peer: session.peer,
        session: session.session,
        expires_unix_ms: u64::try_from(since.as_millis()).unwrap() + 60_000,
        scope: 0,
    });
    TokenReply {
        claims: token.credential(),
        key: token.key_bytes(),
        expires_in_ms: 60_000,
    }
}

impl Service for NodeService {
    fn call(&self, session: Arc<Session>, _deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        let reply = self.answer(&session, codec::decode(&request).unwrap());
        Box::pin(async move { codec::encode(&reply).unwrap().into() })
    }
}

/// A node that is served until this is stopped or dropped.
pub struct Served {
    pub endpoint: Endpoint,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Served {
    /// Serves node `at`. With `auth` a secret, it gives tokens.
    pub async fn start(
        agent: &Arc<FakeAgent>,
        at: usize,
        endpoint: &Endpoint,
        auth: Arc<dyn Authenticator>,
        gives_tokens: bool,
    ) -> Self {
        let node = &agent.nodes[at];
        let options = ListenerOptions::default();
        let listener = Listener::bind_with(endpoint, options).await.unwrap();
        let endpoint = listener.local_endpoint().clone();
        if matches!(endpoint, Endpoint::Tcp(_)) {
            *node.endpoint.lock() = endpoint.to_string();
        }
        let identity = Identity {
            cluster: ClusterId(CLUSTER.to_bytes()),
            role: Role::Member,
            peer: PeerId(node.id.to_bytes()),
            incarnation: node.incarnation().0,
            session: SessionId([0; 16]),
            features: 0,
            context: [0; 32],
        };
        let service = NodeService {
            agent: Arc::clone(agent),
            at,
            gives_tokens,
        };
        let serving = Serving {
            identity: Arc::new(identity),
            auth,
            admission: Arc::new(AdmitAll),
            service: Arc::new(service),
            exports: Arc::clone(&node.exports),
            rdma: None,
            data_runtime: tokio::runtime::Handle::current(),
        };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(listener.serve(serving, stopped));
        Self { endpoint, stop, task }
    }

    /// Stops listening and closes all links and lanes.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        tokio::time::timeout(Duration::from_secs(10), self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

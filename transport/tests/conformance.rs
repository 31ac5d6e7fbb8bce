//! Every engine of this crate passes the same suite.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

mod support;

use std::sync::Arc;

use support::{CLUSTER, SERVER, Server, client_identity, loopback, serving, soon, unix};
use tenon_transport::conformance::Fixture;
use tenon_transport::link::{Endpoint, Identity, NoSecret, Serving};
use tenon_transport::local::LocalConnection;
use tenon_transport::sim::{SimFaults, SimNetwork};
use tenon_transport::tcp::{TcpConnection, TcpOptions};
use tenon_transport::{Connection, Exports, SessionId};

/// The tcp engine against a listener of its own.
struct Tcp {
    server: Server,
    exports: Arc<Exports>,
    options: TcpOptions,
}

impl Tcp {
    async fn new(endpoint: Endpoint, options: TcpOptions) -> Self {
        let exports = Arc::new(Exports::new());
        let server = Server::start(
            &endpoint,
            Serving {
                exports: Arc::clone(&exports),
                ..serving()
            },
        )
        .await;
        Self {
            server,
            exports,
            options,
        }
    }
}

impl Fixture for Tcp {
    fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    async fn connect(&self, session: SessionId) -> Arc<dyn Connection> {
        let identity = Identity {
            session,
            cluster: CLUSTER,
            ..client_identity()
        };
        let auth = Arc::new(NoSecret);
        TcpConnection::open(
            &self.server.endpoint,
            &identity,
            auth,
            Some(SERVER),
            self.options,
            soon(),
        )
        .await
        .unwrap()
    }
}

struct InProcess {
    exports: Arc<Exports>,
    network: Option<SimNetwork>,
}

impl InProcess {
    fn new(network: Option<SimNetwork>) -> Self {
        Self {
            exports: Arc::new(Exports::new()),
            network,
        }
    }
}

impl Fixture for InProcess {
    fn exports(&self) -> &Arc<Exports> {
        &self.exports
    }

    async fn connect(&self, session: SessionId) -> Arc<dyn Connection> {
        match &self.network {
            Some(network) => network.connect(Arc::clone(&self.exports), session, SERVER),
            None => LocalConnection::new(Arc::clone(&self.exports), session, SERVER),
        }
    }
}

mod tcp {
    use super::*;

    tenon_transport::conformance_tests!(
        tokio::test(flavor = "multi_thread", worker_threads = 2),
        Tcp::new(loopback(), TcpOptions::default())
    );
}

/// One thread, one lane, small frames: every wait is a wait.
mod tcp_narrow {
    use super::*;

    tenon_transport::conformance_tests!(
        tokio::test,
        Tcp::new(
            loopback(),
            TcpOptions {
                lanes: 1,
                frame_bytes: 64 << 10,
                ..TcpOptions::default()
            }
        )
    );
}

mod unix_socket {
    use super::*;

    fn own_path() -> Endpoint {
        let thread = std::thread::current();
        unix(&thread.name().unwrap_or("conformance").replace("::", "-"))
    }

    tenon_transport::conformance_tests!(tokio::test, Tcp::new(own_path(), TcpOptions::default()));
}

mod local {
    use super::*;

    tenon_transport::conformance_tests!(tokio::test, std::future::ready(InProcess::new(None)));
}

mod sim {
    use super::*;

    tenon_transport::conformance_tests!(
        tokio::test(start_paused = true),
        std::future::ready(InProcess::new(Some(SimNetwork::new(1, SimFaults::default()))))
    );
}

mod sim_slow_and_out_of_order {
    use super::*;

    fn network() -> SimNetwork {
        SimNetwork::new(
            2,
            SimFaults {
                delay: 0.5,
                reorder: 0.9,
                ..SimFaults::default()
            },
        )
    }

    tenon_transport::conformance_tests!(
        tokio::test(start_paused = true),
        std::future::ready(InProcess::new(Some(network())))
    );
}

//! The front in front of a made-up node, spoken to over sockets.

mod calls;
mod client;
mod deadlines;
mod edges;
mod heads;
mod node;
mod objects;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::metrics::Metrics;
use client::{Answer, send};
use node::FakeNode;

/// A front that serves.
struct Served {
    address: SocketAddr,
    node: Arc<FakeNode>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Served {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let node = Arc::new(FakeNode::default());
        let (stop, stopped) = watch::channel(false);
        let serving = super::serve(listener, Arc::clone(&node) as _, Arc::new(Metrics::new()), stopped);
        Self {
            address,
            node,
            stop,
            serving: tokio::spawn(serving),
        }
    }

    /// One request on a connection of its own.
    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        send(self.address, &client::request(method, path, headers, body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"").await
    }

    async fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("PUT", path, &[], body).await
    }

    async fn post(&self, path: &str, body: &str) -> Answer {
        self.ask("POST", path, &[], body.as_bytes()).await
    }

    /// Waits until nothing is reserved any more.
    async fn assert_nothing_reserved(&self) {
        for _ in 0..500 {
            if self.node.open_puts() == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{} puts are still open", self.node.open_puts());
    }
}

/// Bytes that differ from place to place.
fn payload(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56).to_le_bytes()[0])
        .collect()
}

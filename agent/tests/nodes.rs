//! Nodes in one process, over real sockets on loopback: what is put through one is got through every other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use clap::Parser;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tenon_agent::assemble::{self, Running};
use tenon_agent::config::{Config, Environment, Flags, Host};
use tenon_agent::metrics::Metrics;
use tenon_client::{Client, ConnectOptions, PutOptions};
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::message::{NodeState, PutOutcome};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_transport::link::Endpoint;
use tokio::runtime::Handle;
use tokio::time::Instant;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

fn node_id(index: usize) -> NodeId {
    NodeId::from_bytes([u8::try_from(index).unwrap() + 1; 16])
}

fn named(key: &str) -> ObjectName {
    ObjectName::new(&Namespace::new(Namespace::DEFAULT).unwrap(), key).unwrap()
}

/// Ports that are free now.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let listeners: Vec<_> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        .collect();
    listeners
        .iter()
        .map(|listener| listener.local_addr().unwrap())
        .collect()
}

fn config_of(index: usize, addresses: &[SocketAddr], dir: &Path) -> Config {
    let members = addresses.iter().enumerate().map(|(member, address)| {
        format!(
            "[[cluster.members]]\nid = \"{}\"\nendpoint = \"{address}\"\n",
            node_id(member)
        )
    });
    let text = format!(
        "[node]\nstate_dir = \"{dir}\"\n[cluster]\nview = \"static\"\n{members}[listen]\nhttp = \"127.0.0.1:0\"\nlink = \"{link}\"\n\
         unix = \"{dir}/{index}.sock\"\n[[segments]]\nsize = \"64MiB\"\nhuge_pages = \"off\"\n",
        dir = dir.display(),
        members = members.collect::<String>(),
        link = addresses[index],
    );
    let path = dir.join(format!("{index}.toml"));
    std::fs::write(&path, text).unwrap();
    let flags = Flags::parse_from(["tenond", "--config", path.to_str().unwrap()]);
    Config::load(&flags, &Environment::default(), &Host::probe()).unwrap()
}

async fn start(count: usize, dir: &Path) -> Vec<Running> {
    let addresses = free_addresses(count);
    let mut nodes = Vec::new();
    for index in 0..count {
        let config = config_of(index, &addresses, dir);
        let metrics = Arc::new(Metrics::new());
        nodes.push(
            assemble::start(
                &config,
                node_id(index),
                Incarnation(1000),
                &Handle::current(),
                metrics,
                Arc::default(),
            )
            .await
            .unwrap(),
        );
    }
    nodes
}

async fn client_of(node: &Running) -> Client {
    let endpoint = Endpoint::Unix(node.unix.clone().unwrap());
    Client::connect(ConnectOptions::new(endpoint), soon()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_put_through_one_node_is_got_through_every_other() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = start(3, dir.path()).await;
    let first = client_of(&nodes[0]).await;
    for (key, len_bytes) in [("one byte", 1), ("a/mebi%", 1 << 20), ("größer", 3 * (1 << 20) + 17)] {
        let bytes: Vec<u8> = (0..len_bytes)
            .map(|at: u32| at.wrapping_mul(2_654_435_761).to_be_bytes()[0])
            .collect();
        let committed = first
            .put(&named(key), bytes.as_slice(), &PutOptions::default(), soon())
            .await
            .unwrap();
        assert_eq!(committed.outcome, PutOutcome::Stored);
        for node in &nodes {
            let found = client_of(node).await.get(&named(key), soon()).await.unwrap();
            assert_eq!(found.as_deref(), Some(bytes.as_slice()), "{key}");
        }
        let again = first
            .put(&named(key), b"other".as_slice(), &PutOptions::default(), soon())
            .await
            .unwrap();
        assert_eq!(again.outcome, PutOutcome::AlreadyExists);
    }
    assert_eq!(
        client_of(&nodes[2]).await.get(&named("absent"), soon()).await.unwrap(),
        None
    );
    let view = first.nodes(soon()).await.unwrap();
    assert!(view.nodes.iter().all(|node| node.state == NodeState::Alive), "{view:?}");
    for node in nodes {
        node.stop().await;
    }
}

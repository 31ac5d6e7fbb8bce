//! The client over real links and lanes: dialling, tokens, dead and restarted nodes.

use crate::node::CLUSTER;
use crate::served::{SECRET, Served, secret};
use crate::support::*;
use std::sync::Arc;
use std::time::Duration;
use tenon_client::{Client, ClientError, ConnectOptions, PutOptions};
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::ClusterId;
use tenon_transport::link::{Endpoint, NoSecret};
use tokio::net::TcpListener;
use tokio::time::Instant;

fn loopback() -> Endpoint {
    "127.0.0.1:0".parse().unwrap()
}

fn unix(name: &str) -> Endpoint {
    Endpoint::Unix(std::env::temp_dir().join(format!("tenon-client-{}-{name}.sock", std::process::id())))
}

/// A cluster with a secret: node 0 with a unix socket and a link, node 1 with a link.
struct Cluster {
    agent: Arc<FakeAgent>,
    unix: Served,
    link: Served,
    other: Served,
}

async fn cluster(name: &str) -> Cluster {
    let agent = FakeAgent::new(2, 1, 64 << 20);
    Cluster {
        unix: Served::start(&agent, 0, &unix(name), Arc::new(NoSecret), true).await,
        link: Served::start(&agent, 0, &loopback(), Arc::new(secret()), true).await,
        other: Served::start(&agent, 1, &loopback(), Arc::new(secret()), true).await,
        agent,
    }
}

async fn connect(served: &Served) -> Client {
    Client::connect(ConnectOptions::new(served.endpoint.clone()), soon())
        .await
        .unwrap()
}

fn with_secret(served: &Served) -> ConnectOptions {
    ConnectOptions {
        cluster: Some(CLUSTER),
        secret: Some(SECRET.to_vec()),
        ..ConnectOptions::new(served.endpoint.clone())
    }
}

async fn put_and_get_everywhere(cluster: &Cluster, client: &Client, prefix: &str) {
    for (at, len) in [1, MIB, 5 * MIB + 3].into_iter().enumerate() {
        for node in &cluster.agent.nodes {
            let options = PutOptions {
                node: Some(node.id),
                ..PutOptions::default()
            };
            let (name, bytes) = (name(&format!("{prefix}/{at}/{}", node.id)), payload(len, at as u64));
            client.put(&name, bytes.clone(), &options, soon()).await.unwrap();
            assert!(client.get(&name, soon()).await.unwrap().unwrap() == bytes);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_unix_socket_reaches_all_holders_by_token() {
    let cluster = cluster("token").await;
    let client = connect(&cluster.unix).await;
    assert_eq!(client.cluster(), CLUSTER, "told by the agent");
    put_and_get_everywhere(&cluster, &client, "unix").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_the_secret_reaches_all_holders_over_tcp_and_unix() {
    let cluster = cluster("secret").await;
    for served in [&cluster.link, &cluster.unix] {
        let client = Client::connect(with_secret(served), soon()).await.unwrap();
        put_and_get_everywhere(&cluster, &client, &served.endpoint.to_string()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_a_secret_takes_clients_of_this_host() {
    let agent = FakeAgent::new(2, 1, 64 << 20);
    let served = Served::start(&agent, 0, &loopback(), Arc::new(NoSecret), false).await;
    let _other = Served::start(&agent, 1, &loopback(), Arc::new(NoSecret), false).await;
    let options = ConnectOptions {
        cluster: Some(CLUSTER),
        ..ConnectOptions::new(served.endpoint.clone())
    };
    let client = Client::connect(options, soon()).await.unwrap();
    agent.store_on("k", b"bytes", &[1]);
    assert_eq!(
        client.get(&name("k"), soon()).await.unwrap().unwrap(),
        b"bytes".as_slice()
    );
}

#[tokio::test]
async fn whoever_is_refused_is_told_why() {
    let cluster = cluster("refused").await;
    let refused = async |options: ConnectOptions, words: &str| {
        let error = Client::connect(options, soon()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Forbidden, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let mut other_secret = with_secret(&cluster.link);
    other_secret.secret = Some(b"some other secret, as long".to_vec());
    refused(other_secret, "secret").await;
    let mut none = with_secret(&cluster.link);
    none.secret = None;
    refused(none, "not authenticated").await;
    let mut elsewhere = with_secret(&cluster.link);
    elsewhere.cluster = Some(ClusterId::of_name("elsewhere"));
    refused(elsewhere.clone(), "cluster").await;
    elsewhere.endpoint = cluster.unix.endpoint.clone();
    refused(elsewhere, "cluster").await;
    let mut short = with_secret(&cluster.link);
    short.secret = Some(b"short".to_vec());
    let error = Client::connect(short, soon()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn nobody_at_the_endpoint_is_told_at_once_and_silence_in_bounded_time() {
    let start = Instant::now();
    let nobody = ConnectOptions::new(unix("nobody"));
    let error = Client::connect(nobody.clone(), soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { node: None, .. }), "{error}");
    assert!(error.to_string().contains(&nobody.endpoint.to_string()), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));

    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ConnectOptions::new(Endpoint::Tcp(silent.local_addr().unwrap()));
    let start = Instant::now();
    let error = Client::connect(options, start + Duration::from_millis(200))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::DeadlineExceeded, "{error}");
    assert!(
        error.to_string().contains(&silent.local_addr().unwrap().to_string()),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_holder_is_unavailable_at_once_and_found_when_it_is_back() {
    let cluster = cluster("dead").await;
    let client = connect(&cluster.unix).await;
    cluster.agent.store_on("k", b"bytes", &[1]);
    assert!(client.get(&name("k"), soon()).await.unwrap().is_some());
    let endpoint = cluster.other.endpoint.clone();
    cluster.other.stop().await;
    for _ in 0..20 {
        let start = Instant::now();
        let error = client.get(&name("k"), soon()).await.unwrap_err();
        assert_eq!(
            (error.code(), error.node()),
            (ErrorCode::Unavailable, Some(cluster.agent.nodes[1].id)),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    }
    let _back = Served::start(&cluster.agent, 1, &endpoint, Arc::new(secret()), true).await;
    let deadline = soon();
    while client.get(&name("k"), soon()).await.is_err() {
        assert!(Instant::now() < deadline, "it is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_in_a_new_life_is_reached_without_delay_and_its_old_objects_are_gone() {
    let cluster = cluster("new-life").await;
    let client = connect(&cluster.unix).await;
    cluster.agent.store_on("old", b"old", &[1]);
    assert!(client.get(&name("old"), soon()).await.unwrap().is_some());
    let endpoint = cluster.other.endpoint.clone();
    cluster.other.stop().await;
    client.get(&name("old"), soon()).await.unwrap_err();
    cluster.agent.nodes[1].restart();
    let _back = Served::start(&cluster.agent, 1, &endpoint, Arc::new(secret()), true).await;
    cluster.agent.store_on("new", b"new", &[1]);
    assert_eq!(
        client.get(&name("new"), soon()).await.unwrap().unwrap(),
        b"new".as_slice()
    );
    assert_eq!(client.get(&name("old"), soon()).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_is_dialled_again() {
    let agent = FakeAgent::new(1, 1, 64 << 20);
    let endpoint = unix("again");
    let served = Served::start(&agent, 0, &endpoint, Arc::new(NoSecret), false).await;
    let client = connect(&served).await;
    client
        .put(&name("k"), b"bytes".as_slice(), &PutOptions::default(), soon())
        .await
        .unwrap();
    served.stop().await;
    let start = Instant::now();
    let error = client.get(&name("k"), soon()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable { node: None, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(1));
    let _back = Served::start(&agent, 0, &endpoint, Arc::new(NoSecret), false).await;
    let deadline = soon();
    while client.get(&name("k"), soon()).await.is_err() {
        assert!(Instant::now() < deadline, "it is not dialled again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Another node at a holder's address is not that holder.
#[tokio::test(flavor = "multi_thread")]
async fn another_node_at_a_holders_address_is_unavailable() {
    let cluster = cluster("imposter").await;
    let client = connect(&cluster.unix).await;
    cluster.agent.store_on("k", b"bytes", &[1]);
    let address = cluster.link.endpoint.to_string();
    *cluster.agent.nodes[1].endpoint.lock() = address;
    let error = client.get(&name("k"), soon()).await.unwrap_err();
    assert_eq!(
        (error.code(), error.node()),
        (ErrorCode::Unavailable, Some(cluster.agent.nodes[1].id))
    );
    assert!(error.to_string().contains("found"), "{error}");
}

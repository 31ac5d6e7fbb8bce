//! Several nodes with one static view.

use std::fmt::Write as _;
use std::ops::{Index, IndexMut};
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tenon_protocol::ids::{ClusterId, NodeId};

use crate::address::{AddressLease, PROXY_PORT, Place};
use crate::network::Network;
use crate::node::{Node, tenond};
use crate::proxy::Proxy;
use crate::wait;

/// What the clusters of tests are called.
pub const CLUSTER_NAME: &str = "tenon-tests";
/// The secret of every cluster under test.
pub const SECRET: &str = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";

/// How a cluster is to be.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// How many nodes.
    pub nodes: usize,
    /// The size of each segment of every node.
    pub segments_bytes: Vec<u64>,
    /// The nodes that others reach through a proxy only.
    pub proxied: Vec<usize>,
    /// The private network in which the nodes are, if not on loopback.
    pub network: Option<Arc<Network>>,
    /// More lines for every configuration file; tables other than `node`, `cluster`, `listen`, `segments` and `log`.
    pub more_config: String,
    /// More lines for the configuration file of the node of the same index alone; none where there are fewer.
    pub config_of: Vec<String>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            nodes: 1,
            segments_bytes: vec![64 << 20],
            proxied: Vec::new(),
            network: None,
            more_config: String::new(),
            config_of: Vec::new(),
        }
    }
}

/// Running nodes, in a directory of their own. All ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    _dir: TempDir,
}

impl Cluster {
    /// Starts nodes with the default options and waits until each sees all others.
    pub fn start(nodes: usize) -> Self {
        Self::start_with(&ClusterOptions {
            nodes,
            ..ClusterOptions::default()
        })
    }

    /// Starts nodes of which none evicts, so that those that are full refuse puts.
    pub fn start_without_eviction(nodes: usize) -> Self {
        Self::start_with(&ClusterOptions {
            nodes,
            more_config: "[eviction]\npolicy = \"off\"\n".into(),
            ..ClusterOptions::default()
        })
    }

    /// Starts nodes and waits until each sees all others.
    pub fn start_with(options: &ClusterOptions) -> Self {
        let mut cluster = Self::prepare(options);
        for node in &mut cluster.nodes {
            node.spawn();
        }
        for node in &mut cluster.nodes {
            node.wait_ready();
        }
        cluster.wait_all_alive();
        cluster
    }

    /// Makes directories, ids and configuration files, and starts nothing.
    pub fn prepare(options: &ClusterOptions) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("tenon-test-")
            .tempdir()
            .expect("a temporary directory");
        let secret_file = dir.path().join("secret");
        write_private(&secret_file, SECRET);
        let nodes: Vec<Node> = (0..options.nodes)
            .map(|index| prepare_node(dir.path(), index, &secret_file, options))
            .collect();
        let members: Vec<_> = nodes.iter().map(|node| (node.id, node.advertised())).collect();
        for (index, node) in nodes.iter().enumerate() {
            let mut text = config(node, &members, options);
            text.push_str(options.config_of.get(index).map_or("", String::as_str));
            std::fs::write(node.config_file(), text).expect("a config file can be written");
        }
        Self { nodes, _dir: dir }
    }

    /// The cluster's id.
    pub fn id(&self) -> ClusterId {
        ClusterId::of_name(CLUSTER_NAME)
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Waits until every node that runs sees every other node that runs.
    pub fn wait_all_alive(&self) {
        let running: Vec<&Node> = self.nodes.iter().filter(|node| node.runs()).collect();
        for node in &running {
            wait::until(wait::SOON, "every node sees every other", || {
                let alive = alive(node)?;
                let missing = running.iter().find(|other| !alive.contains(&other.id));
                missing.map_or(Ok(()), |other| Err(format!("{} does not see {}", node.id, other.id)))
            });
        }
    }

    /// The nodes that are neither of `not`, by index.
    pub fn others(&self, not: &[usize]) -> impl Iterator<Item = &Node> {
        let kept: Vec<bool> = (0..self.nodes.len()).map(|index| !not.contains(&index)).collect();
        self.nodes
            .iter()
            .zip(kept)
            .filter(|(_, kept)| *kept)
            .map(|(node, _)| node)
    }
}

/// The members that a node says are alive.
fn alive(node: &Node) -> Result<Vec<NodeId>, String> {
    let answer = node.http().try_get("/v1/nodes")?;
    let body = answer.json();
    let nodes = body["nodes"].as_array().ok_or_else(|| format!("no nodes in {body}"))?;
    Ok(nodes
        .iter()
        .filter(|entry| entry["state"] == "alive")
        .filter_map(|entry| entry["node"].as_str()?.parse().ok())
        .collect())
}

fn prepare_node(dir: &Path, index: usize, secret_file: &Path, options: &ClusterOptions) -> Node {
    let dir = dir.join(format!("node-{index}"));
    let state_dir = dir.join("state");
    std::fs::create_dir_all(&state_dir).expect("a node's directory can be made");
    let output = tenond(&["--init", "--state-dir", state_dir.to_str().expect("a path in UTF-8")]);
    let text = String::from_utf8_lossy(&output.stdout);
    let id = text
        .trim()
        .parse()
        .unwrap_or_else(|error| panic!("tenond --init printed no id: {error}: {output:?}"));
    let place = match &options.network {
        Some(network) => Place::in_network(network, index),
        None => Place::Loopback(AddressLease::take()),
    };
    let mut node = Node {
        id,
        dir,
        place,
        proxy: None,
        secret_file: secret_file.to_path_buf(),
        process: None,
    };
    if options.proxied.contains(&index) {
        node.proxy = Some(Proxy::start(node.place.port(PROXY_PORT), node.link_address()));
    }
    node
}

fn config(node: &Node, members: &[(NodeId, std::net::SocketAddr)], options: &ClusterOptions) -> String {
    let mut text = format!(
        "[node]\nstate_dir = {:?}\n\n[cluster]\nname = {CLUSTER_NAME:?}\nsecret_file = {:?}\nview = \"static\"\n",
        node.dir.join("state"),
        node.secret_file,
    );
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes text");
    for (id, endpoint) in members {
        line(format!(
            "\n[[cluster.members]]\nid = \"{id}\"\nendpoint = \"{endpoint}\""
        ));
    }
    line(format!(
        "\n[listen]\nhttp = \"{}\"\nlink = \"{}\"\nunix = {:?}\nadvertise = \"{}\"",
        node.http_address(),
        node.link_address(),
        node.dir.join("tenon.sock"),
        node.advertised(),
    ));
    for size_bytes in &options.segments_bytes {
        line(format!("\n[[segments]]\nsize = {size_bytes}"));
    }
    line(format!("\n[log]\nlevel = \"info\"\n\n{}", options.more_config));
    text
}

/// Writes a file that its owner alone can read.
pub fn write_private(path: &Path, text: &str) {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .expect("a private file can be written");
}

impl Index<usize> for Cluster {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.nodes[index]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, index: usize) -> &mut Node {
        &mut self.nodes[index]
    }
}

//! Two `tenond` processes that are different nodes of one cluster, on loopback.

use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use tenon_client::{Client, ConnectOptions, default_deadline};
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_protocol::message::NodeState;
use tenon_transport::link::Endpoint;
use tokio::time::{Instant, sleep};

const CLUSTER_NAME: &str = "tenon-bench";
const SECRET: &str = "9c1d7e0b52f84a36b8e0d4c7a1f3956e";
/// How long two nodes may take to start and see each other.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const START_POLL: Duration = Duration::from_millis(20);

/// A node's process, killed when this is dropped.
#[derive(Debug)]
struct Node {
    id: NodeId,
    link: SocketAddr,
    dir: PathBuf,
    process: Option<Child>,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The node that is asked and the one that holds, in a directory that goes with them.
#[derive(Debug)]
pub struct Cluster {
    coordinator: Node,
    holder: Node,
    dir: TempDir,
}

impl Cluster {
    /// Starts both; each has one segment of this size.
    pub fn start(segment_bytes: u64) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tenon-bench-").tempdir()?;
        write_private(&secret_file(&dir), SECRET)?;
        let mut cluster = Self {
            coordinator: prepare(&dir, "coordinator")?,
            holder: prepare(&dir, "holder")?,
            dir,
        };
        let config = |node: &Node| cluster.config(node, segment_bytes);
        let configs = [config(&cluster.coordinator)?, config(&cluster.holder)?];
        for (node, config) in [&mut cluster.coordinator, &mut cluster.holder].into_iter().zip(configs) {
            let path = node.dir.join("tenond.toml");
            std::fs::write(&path, config)?;
            let log = File::create(node.dir.join("log"))?;
            let process = Command::new(tenond()?)
                .arg("--config")
                .arg(path)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            node.process = Some(process);
        }
        Ok(cluster)
    }

    /// The node that holds the objects.
    #[must_use]
    pub fn holder(&self) -> NodeId {
        self.holder.id
    }

    /// The processes of both.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        [&self.coordinator, &self.holder]
            .iter()
            .filter_map(|node| Some(node.process.as_ref()?.id()))
            .collect()
    }

    /// A client of the coordinator over TCP, once the nodes see each other.
    pub async fn connect(&self) -> Result<Client> {
        let give_up = Instant::now() + START_TIMEOUT;
        loop {
            let error = match self.try_connect().await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if Instant::now() > give_up {
                let logs = [&self.coordinator, &self.holder].map(|node| node.dir.join("log"));
                let [coordinator, holder] = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default());
                bail!("the nodes do not get ready: {error:#}\n--- coordinator\n{coordinator}\n--- holder\n{holder}");
            }
            sleep(START_POLL).await;
        }
    }

    async fn try_connect(&self) -> Result<Client> {
        let options = ConnectOptions {
            cluster: Some(ClusterId::of_name(CLUSTER_NAME)),
            secret: Some(SECRET.as_bytes().to_vec()),
            ..ConnectOptions::new(Endpoint::Tcp(self.coordinator.link))
        };
        let client = Client::connect(options, default_deadline(0)).await?;
        let members = client.nodes(default_deadline(0)).await?.nodes;
        let missing = members.iter().find(|member| member.state != NodeState::Alive);
        match missing {
            None => Ok(client),
            Some(member) => bail!("node {} is {:?}", member.node, member.state),
        }
    }

    fn config(&self, node: &Node, segment_bytes: u64) -> Result<String> {
        let mut text = format!(
            "[node]\nstate_dir = {:?}\n\n[cluster]\nname = {CLUSTER_NAME:?}\nsecret_file = {:?}\nview = \"static\"\n",
            node.dir.join("state"),
            secret_file(&self.dir),
        );
        for member in [&self.coordinator, &self.holder] {
            let (id, endpoint) = (member.id, member.link);
            write!(
                text,
                "\n[[cluster.members]]\nid = \"{id}\"\nendpoint = \"{endpoint}\"\n"
            )?;
        }
        let http = free_port(node.link.ip())?;
        write!(
            text,
            "\n[listen]\nhttp = \"{http}\"\nlink = \"{}\"\nunix = \"off\"\n\n[[segments]]\nsize = {segment_bytes}\n",
            node.link
        )?;
        Ok(text)
    }
}

fn secret_file(dir: &TempDir) -> PathBuf {
    dir.path().join("secret")
}

/// Makes a node's directory and id, and finds it an address.
fn prepare(dir: &TempDir, name: &str) -> Result<Node> {
    let dir = dir.path().join(name);
    let state_dir = dir.join("state");
    std::fs::create_dir_all(&state_dir)?;
    let output = Command::new(tenond()?)
        .arg("--init")
        .arg("--state-dir")
        .arg(&state_dir)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "tenond --init failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let id = text
        .trim()
        .parse()
        .with_context(|| format!("tenond --init printed no id: {text:?}"))?;
    // An address that nobody else is likely to use.
    let address = Ipv4Addr::new(127, 78, rand::random(), rand::random_range(1..=254));
    let link = free_port(address.into())?;
    Ok(Node {
        id,
        link,
        dir,
        process: None,
    })
}

fn free_port(address: std::net::IpAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0)).with_context(|| format!("cannot use the address {address}"))?;
    Ok(listener.local_addr()?)
}

/// The daemon of the same build as this executable.
fn tenond() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("tenond");
    ensure!(
        path.is_file(),
        "{} is missing: start the bench by `make bench-transfer`, or build tenon-agent first",
        path.display()
    );
    Ok(path)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

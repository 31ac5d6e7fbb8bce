//! `tenond` processes that are the nodes of one cluster, on loopback or on the addresses of RDMA devices.

use std::fmt::Write as _;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;
use tenon_client::{Client, ConnectOptions, Transports, default_deadline};
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_protocol::message::NodeState;
use tenon_transport::link::Endpoint;
use tokio::time::{Instant, sleep};

const CLUSTER_NAME: &str = "tenon-bench";
const SECRET: &str = "9c1d7e0b52f84a36b8e0d4c7a1f3956e";
/// How long nodes may take to start and see each other.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const START_POLL: Duration = Duration::from_millis(20);

/// What a node contributes: one segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Its payload bytes.
    pub bytes: u64,
    /// Descriptors in its table; as the daemon sees fit if not given.
    pub slots: Option<u64>,
}

/// Where a node's link listens, and which device it uses.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The address of its link; one of loopback's if not given.
    pub address: Option<Ipv4Addr>,
    /// The RDMA device it must use; none if not given.
    pub rdma_device: Option<String>,
}

/// What a node is like.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Each of its segments.
    pub segment: Segment,
    /// How many of them.
    pub segments: usize,
    /// Where it is.
    pub site: Site,
    /// More of its configuration.
    pub more_config: String,
}

/// A node, and its process, which is killed when this is dropped.
#[derive(Debug)]
struct Node {
    id: NodeId,
    link: SocketAddr,
    http: SocketAddr,
    dir: PathBuf,
    process: Option<Child>,
}

impl Node {
    fn launch(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.dir.join("log"))?;
        let process = Command::new(tenond()?)
            .arg("--config")
            .arg(self.dir.join("tenond.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.process = Some(process);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Nodes that know each other, counted from 0, in a directory that goes with them.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    dir: TempDir,
}

impl Cluster {
    /// Starts one node per segment, on loopback and without RDMA.
    pub fn start(segments: &[Segment]) -> Result<Self> {
        let plans: Vec<_> = segments.iter().map(|segment| (*segment, Site::default())).collect();
        Self::start_at(&plans)
    }

    /// Starts nodes with a segment each at these sites.
    pub fn start_at(plans: &[(Segment, Site)]) -> Result<Self> {
        let of_one = |(segment, site): &(Segment, Site)| NodeSpec {
            segment: *segment,
            segments: 1,
            site: site.clone(),
            more_config: String::new(),
        };
        Self::start_nodes(&plans.iter().map(of_one).collect::<Vec<_>>())
    }

    /// Starts these nodes.
    pub fn start_nodes(specs: &[NodeSpec]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("tenon-bench-").tempdir()?;
        write_private(&secret_file(&dir), SECRET)?;
        let prepared = |(at, spec): (usize, &NodeSpec)| prepare(&dir, &format!("node-{at}"), &spec.site);
        let nodes = specs.iter().enumerate().map(prepared);
        let mut cluster = Self {
            nodes: nodes.collect::<Result<_>>()?,
            dir,
        };
        for (node, spec) in cluster.nodes.iter().zip(specs) {
            std::fs::write(node.dir.join("tenond.toml"), cluster.config(node, spec)?)?;
        }
        for node in &mut cluster.nodes {
            node.launch()?;
        }
        Ok(cluster)
    }

    /// The cluster that a client must name.
    #[must_use]
    pub fn cluster_id() -> ClusterId {
        ClusterId::of_name(CLUSTER_NAME)
    }

    /// The secret that a client must prove.
    #[must_use]
    pub fn secret() -> &'static [u8] {
        SECRET.as_bytes()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Which node it is.
    #[must_use]
    pub fn id(&self, at: usize) -> NodeId {
        self.nodes[at].id
    }

    /// Where a node's link listens.
    #[must_use]
    pub fn link(&self, at: usize) -> Endpoint {
        Endpoint::Tcp(self.nodes[at].link)
    }

    /// Where a node serves HTTP.
    #[must_use]
    pub fn http(&self, at: usize) -> SocketAddr {
        self.nodes[at].http
    }

    /// A node's process; `None` while it is dead.
    #[must_use]
    pub fn process_id(&self, at: usize) -> Option<u32> {
        Some(self.nodes[at].process.as_ref()?.id())
    }

    /// The processes of all.
    #[must_use]
    pub fn process_ids(&self) -> Vec<u32> {
        (0..self.size()).filter_map(|at| self.process_id(at)).collect()
    }

    /// Kills a node's process by `SIGKILL` and waits for its end.
    pub fn kill(&mut self, at: usize) {
        self.nodes[at].kill();
    }

    /// Starts a process for a node that was killed: the same node in a new life, with nothing in its memory.
    pub fn restart(&mut self, at: usize) -> Result<()> {
        self.nodes[at].launch()
    }

    /// A client of one node over TCP, once that node sees all others.
    pub async fn connect(&self, at: usize) -> Result<Client> {
        self.connect_over(at, &Transports::default()).await
    }

    /// The same, which reaches holders over these transports.
    pub async fn connect_over(&self, at: usize, transports: &Transports) -> Result<Client> {
        let give_up = Instant::now() + START_TIMEOUT;
        loop {
            let error = match self.try_connect(at, transports).await {
                Ok(client) => return Ok(client),
                Err(error) => error,
            };
            if Instant::now() > give_up {
                let log = |node: &Node| std::fs::read_to_string(node.dir.join("log")).unwrap_or_default();
                let logs: Vec<_> = self.nodes.iter().map(log).collect();
                bail!("the nodes do not get ready: {error:#}\n{}", logs.join("\n---\n"));
            }
            sleep(START_POLL).await;
        }
    }

    async fn try_connect(&self, at: usize, transports: &Transports) -> Result<Client> {
        let options = ConnectOptions {
            cluster: Some(Self::cluster_id()),
            secret: Some(Self::secret().to_vec()),
            transports: transports.clone(),
            ..ConnectOptions::new(self.link(at))
        };
        let client = Client::connect(options, default_deadline(0)).await?;
        let reply = client.nodes(default_deadline(0)).await?;
        let missing = reply.nodes.iter().find(|member| member.state != NodeState::Alive);
        match missing {
            None => Ok(client),
            Some(member) => bail!("node {} is {:?}", member.node, member.state),
        }
    }

    /// Comes back when every node sees all others and knows, as a home, all that there is to know.
    pub async fn settled(&self) -> Result<()> {
        for at in 0..self.size() {
            let client = self.connect(at).await?;
            let give_up = Instant::now() + START_TIMEOUT;
            while !client.nodes(default_deadline(0)).await?.index.settled {
                ensure!(Instant::now() < give_up, "node {at} does not settle");
                sleep(START_POLL).await;
            }
        }
        Ok(())
    }

    fn config(&self, node: &Node, spec: &NodeSpec) -> Result<String> {
        let mut text = format!(
            "[node]\nstate_dir = {:?}\n\n[cluster]\nname = {CLUSTER_NAME:?}\nsecret_file = {:?}\nview = \"static\"\n",
            node.dir.join("state"),
            secret_file(&self.dir),
        );
        for Node { id, link, .. } in &self.nodes {
            write!(text, "\n[[cluster.members]]\nid = \"{id}\"\nendpoint = \"{link}\"\n")?;
        }
        write!(
            text,
            "\n[listen]\nhttp = \"{}\"\nlink = \"{}\"\nunix = \"off\"\n",
            node.http, node.link
        )?;
        for _ in 0..spec.segments {
            write!(text, "\n[[segments]]\nsize = {}\n", spec.segment.bytes)?;
            if let Some(slots) = spec.segment.slots {
                writeln!(text, "slots = {slots}")?;
            }
        }
        match &spec.site.rdma_device {
            Some(device) => write!(text, "\n[rdma]\npolicy = \"require\"\ndevices = [{device:?}]\n")?,
            None => text.push_str("\n[rdma]\npolicy = \"forbid\"\n"),
        }
        Ok(text + &spec.more_config)
    }
}

fn secret_file(dir: &TempDir) -> PathBuf {
    dir.path().join("secret")
}

/// Makes a node's directory and id, and finds it addresses.
fn prepare(dir: &TempDir, name: &str, site: &Site) -> Result<Node> {
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
    let loopback = Ipv4Addr::new(127, 78, rand::random(), rand::random_range(1..=254));
    let [link, http] = free_ports([site.address.unwrap_or(loopback), loopback])?;
    Ok(Node {
        id,
        link,
        http,
        dir,
        process: None,
    })
}

/// Two ports, different because both are open before either is closed.
fn free_ports(addresses: [Ipv4Addr; 2]) -> Result<[SocketAddr; 2]> {
    let open = |address| TcpListener::bind((address, 0)).with_context(|| format!("cannot use the address {address}"));
    let listeners = [open(addresses[0])?, open(addresses[1])?];
    Ok([listeners[0].local_addr()?, listeners[1].local_addr()?])
}

/// The daemon of the same build as this executable.
fn tenond() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("tenond");
    ensure!(
        path.is_file(),
        "{} is missing: start the bench by `make`, or build tenon-agent first",
        path.display()
    );
    Ok(path)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

//! One `tenond` process under test.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::str::FromStr;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tenon_client::{Client, ConnectOptions, default_deadline};
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_transport::link::Endpoint;

use crate::address::{LINK_PORT, Place};
use crate::binaries::binaries;
use crate::cluster::{CLUSTER_NAME, SECRET};
use crate::http::Http;
use crate::proxy::Proxy;
use crate::wait;

/// A node: its directory and addresses outlive its processes.
#[derive(Debug)]
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) dir: PathBuf,
    pub(crate) place: Place,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) secret_file: PathBuf,
    pub(crate) process: Option<Child>,
}

impl Node {
    /// Which node it is.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Where it serves HTTP.
    pub fn http_address(&self) -> SocketAddr {
        self.place.http()
    }

    /// Where it serves the link itself, passing no proxy.
    pub fn link_address(&self) -> SocketAddr {
        self.place.port(LINK_PORT)
    }

    /// Where its view says it is: its proxy if it has one.
    pub fn advertised(&self) -> SocketAddr {
        self.proxy.as_ref().map_or(self.link_address(), Proxy::address)
    }

    /// Its unix socket.
    pub fn unix_endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.dir.join("tenon.sock"))
    }

    /// Its link's endpoint, passing no proxy.
    pub fn link_endpoint(&self) -> Endpoint {
        Endpoint::Tcp(self.link_address())
    }

    /// The proxy before it.
    pub fn proxy(&self) -> &Proxy {
        self.proxy
            .as_ref()
            .expect("this node was started with a proxy before it")
    }

    /// Its configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("tenond.toml")
    }

    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Its HTTP front.
    pub fn http(&self) -> Http {
        match self.place.namespace() {
            Some(namespace) => Http::in_namespace(self.http_address(), namespace.clone()),
            None => Http::new(self.http_address()),
        }
    }

    /// A metric, by its name and labels as they stand in the text, if it is there.
    pub fn find_metric<T: FromStr>(&self, series: &str) -> Option<T> {
        let answer = self.http().get("/metrics").expect(200);
        let text = String::from_utf8_lossy(answer.bytes()).into_owned();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(value.parse().unwrap_or_else(|_| panic!("{series} is {value}")))
    }

    /// The same of one that must be there.
    pub fn metric(&self, series: &str) -> f64 {
        self.find_metric(series).unwrap_or_else(|| panic!("no {series}"))
    }

    /// Whether its process was started and not ended since.
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Starts its process, without waiting for anything.
    pub fn spawn(&mut self) {
        assert!(self.process.is_none(), "node {} runs already", self.id);
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .expect("the log can be opened");
        let mut command = Command::new(&binaries().tenond);
        command
            .arg("--config")
            .arg(self.config_file())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the log can be shared"))
            .stderr(log);
        let child = match self.place.namespace() {
            Some(namespace) => namespace.enter(|| command.spawn()),
            None => command.spawn(),
        };
        self.process = Some(child.expect("tenond starts"));
    }

    /// Waits until it says that it is ready.
    pub fn wait_ready(&mut self) {
        let http = self.http();
        let process = self.process.as_mut().expect("the node was started");
        wait::until(wait::SOON, "the node gets ready", || {
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("tenond ended with {status}"));
            }
            match http.try_get("/readyz")? {
                answer if answer.status == 200 => Ok(()),
                answer => Err(String::from_utf8_lossy(answer.bytes()).into_owned()),
            }
        });
    }

    /// Starts it again in the same directory, on the same ports, and waits until it is ready.
    pub fn restart(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Shared memory that its process has pages of, which segments are.
    pub fn shared_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the node runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("the system says how much memory a process has") << 10
    }

    fn pid(&self) -> u32 {
        self.process.as_ref().expect("the node runs").id()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid fits in 31 bits");
        kill(Pid::from_raw(pid), signal).expect("the process can be signalled");
    }

    /// Ends it with SIGKILL.
    pub fn kill9(&mut self) {
        let mut process = self.process.take().expect("the node runs");
        process.kill().expect("the process can be killed");
        process.wait().expect("the process can be waited for");
    }

    /// Asks it to stop with SIGTERM and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.stop_within(wait::SOON)
    }

    /// The same for a node that takes longer.
    pub fn stop_within(&mut self, within: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let mut process = self.process.take().expect("the node runs");
        wait::until(within, "the node stops", || {
            match process.try_wait().expect("the process can be waited for") {
                Some(status) => Ok(status),
                None => Err("it runs"),
            }
        })
    }

    /// Halts it with SIGSTOP: its sockets stay open and nothing answers.
    pub fn sigstop(&self) {
        self.signal(Signal::SIGSTOP);
        // The signal is on its way when `kill` returns; what follows must not find a thread that still runs.
        wait::until(wait::SOON, "every thread is halted", || {
            match running_threads(self.pid()) {
                0 => Ok(()),
                running => Err(running),
            }
        });
    }

    /// Lets it go on with SIGCONT.
    pub fn sigcont(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// The `tenon` command line with arguments, talking to this node's unix socket; started by the caller.
    pub fn tenon_command(&self) -> Command {
        let mut command = Command::new(&binaries().tenon);
        command
            .arg("--connect")
            .arg(self.unix_endpoint().to_string())
            .stdin(Stdio::null())
            .current_dir(&self.dir);
        command
    }

    /// Runs `tenon` with arguments against this node's unix socket.
    pub fn tenon(&self, arguments: &[&str]) -> Output {
        self.tenon_command().args(arguments).output().expect("tenon starts")
    }

    /// Runs `tenon` against this node's link over TCP, with the cluster's secret.
    pub fn tenon_over_tcp(&self, arguments: &[&str]) -> Output {
        Command::new(&binaries().tenon)
            .arg("--connect")
            .arg(self.link_endpoint().to_string())
            .arg("--secret-file")
            .arg(&self.secret_file)
            .args(["--cluster", CLUSTER_NAME])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("tenon starts")
    }

    /// A client of this node's unix socket, which gets tokens for other holders.
    pub async fn client(&self) -> Client {
        connect(ConnectOptions::new(self.unix_endpoint())).await
    }

    /// A client of this node's link over TCP, with the cluster's secret.
    pub async fn client_over_tcp(&self) -> Client {
        let options = ConnectOptions {
            cluster: Some(ClusterId::of_name(CLUSTER_NAME)),
            secret: Some(SECRET.as_bytes().to_vec()),
            ..ConnectOptions::new(self.link_endpoint())
        };
        connect(options).await
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file(), 60)
    }
}

async fn connect(options: ConnectOptions) -> Client {
    let endpoint = options.endpoint.clone();
    let connected = Client::connect(options, default_deadline(0)).await;
    connected.unwrap_or_else(|error| panic!("cannot connect to {endpoint}: {error}"))
}

/// How many threads of a process are not stopped.
fn running_threads(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the threads of a process that runs");
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
    // The state follows the name, which ends with the last parenthesis.
    stats
        .filter(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| !rest.starts_with('T')))
        .count()
}

fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let skip = text.lines().count().saturating_sub(lines);
    text.lines().skip(skip).collect::<Vec<_>>().join("\n")
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            eprintln!(
                "--- log of node {} at {}\n{}",
                self.id,
                self.http_address(),
                self.log_tail()
            );
        }
    }
}

/// Runs `tenond` with arguments until it ends by itself, and returns what it said. Panics if it does not end.
pub fn tenond(arguments: &[&str]) -> Output {
    let mut child = Command::new(&binaries().tenond)
        .args(arguments)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tenond starts");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while child.try_wait().expect("the process can be waited for").is_none() {
        if std::time::Instant::now() > deadline {
            let _ = child.kill();
            let output = child.wait_with_output().expect("its output can be read");
            panic!(
                "tenond {arguments:?} did not end by itself:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output can be read")
}

//! The daemon as a process: what it prints, how it ends, what it tells systemd.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(30);

fn tenond() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenond"));
    for name in [
        "TENON_CONFIG",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "CREDENTIALS_DIRECTORY",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    tenond().args(arguments).output().expect("tenond starts")
}

#[track_caller]
fn assert_ends(output: &Output, code: i32, said: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(said), "{said:?} is missing in {text:?}");
}

/// A node's files, and the flags that keep it apart from all others.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    fn flags(&self) -> Vec<String> {
        let flags = format!(
            "--http 127.0.0.1:0 --link 127.0.0.1:0 --segment-size 16MiB --unix {} --state-dir {}",
            self.path("sock"),
            self.path("state"),
        );
        flags.split(' ').map(str::to_owned).collect()
    }

    fn addresses(&self) -> PathBuf {
        self.dir.path().join("state/addresses.json")
    }
}

/// A running node, killed when it is not needed any more.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, place: &Place) -> Self {
        let child = command
            .args(place.flags())
            .stderr(Stdio::piped())
            .spawn()
            .expect("tenond starts");
        let mut running = Self(child);
        wait_for("the addresses", || {
            assert_eq!(running.0.try_wait().expect("a child"), None, "the node ended");
            place.addresses().exists()
        });
        running
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("the process is there");
    }

    /// The exit code and the log.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        let mut stderr = self.0.stderr.take().expect("the log");
        std::io::Read::read_to_string(&mut stderr, &mut log).expect("the log is text");
        (self.0.wait().expect("a child").code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("the node listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes");
    answer
}

#[test]
fn an_id_is_made_once_and_printed() {
    let place = Place::new();
    let state = place.path("state");
    let first = output(&["--init", "--state-dir", &state]);
    assert_eq!(first.status.code(), Some(0));
    let text = String::from_utf8_lossy(&first.stdout).into_owned();
    assert_eq!((text.len(), text.trim().len()), (33, 32), "{text:?}");
    assert_eq!(output(&["--init", "--state-dir", &state]).stdout, first.stdout);
    let stored = fs::read_to_string(Path::new(&state).join("node-id")).expect("the id");
    assert_eq!(stored, text);
}

#[test]
fn an_id_can_be_made_before_the_member_list_is_known() {
    let place = Place::new();
    let config = place.path("tenond.toml");
    let text = format!(
        "[node]\nstate_dir = {:?}\n[cluster]\nview = \"static\"\n",
        place.path("state")
    );
    fs::write(&config, text).expect("a file");
    assert_eq!(output(&["--init", "--config", &config]).status.code(), Some(0));
    assert_ends(&output(&["--check-config", "--config", &config]), 2, "cluster.members");
}

#[test]
fn checking_a_configuration_changes_nothing() {
    let place = Place::new();
    let checked = tenond()
        .arg("--check-config")
        .args(place.flags())
        .output()
        .expect("tenond starts");
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    assert!(String::from_utf8_lossy(&checked.stdout).contains("size = \"16MiB\""));
    assert!(!Path::new(&place.path("state")).exists());
    let wrong = output(&["--check-config", "--http", "0.0.0.0:1"]);
    assert_ends(&wrong, 2, "tenond: flag --http: listen.http = \"0.0.0.0:1\"");
    assert_ends(&output(&["--colour"]), 2, "--colour");
}

#[test]
fn a_static_member_needs_an_id_before_it_starts() {
    let place = Place::new();
    let config = place.path("tenond.toml");
    let member = "[[cluster.members]]\nid = \"0123456789abcdef0123456789abcdef\"\nendpoint = \"127.0.0.1:7601\"\n";
    fs::write(&config, format!("[cluster]\nview = \"static\"\n{member}")).expect("a file");
    let start = || {
        tenond()
            .args(["--config", &config])
            .args(place.flags())
            .output()
            .expect("tenond starts")
    };
    assert_ends(&start(), 2, "tenond --init");
    assert!(!Path::new(&place.path("state")).exists());
    let id = output(&["--init", "--state-dir", &place.path("state")]).stdout;
    assert_ends(&start(), 2, String::from_utf8_lossy(&id).trim());
}

#[test]
fn a_node_serves_tells_where_and_stops_when_it_is_asked() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let place = Place::new();
        let node = Running::start(&mut tenond(), &place);
        let text = fs::read_to_string(place.addresses()).expect("the addresses");
        let addresses: Value = serde_json::from_str(&text).expect("JSON");
        let http = addresses["http"].as_str().expect("an address");
        assert!(
            !http.ends_with(":0") && addresses["link"] == addresses["advertise"],
            "{text}"
        );
        assert!(get(http, "/readyz").starts_with("HTTP/1.1 200"));
        assert_eq!(addresses["unix"], place.path("sock").as_str());
        node.signal(signal);
        let (code, log) = node.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains(http) && log.contains(signal.as_str()), "{log}");
        assert!(!place.addresses().exists());
    }
}

#[test]
fn each_life_has_a_higher_incarnation_and_the_same_id() {
    let place = Place::new();
    let mut lives = Vec::new();
    for _ in 0..2 {
        let node = Running::start(&mut tenond(), &place);
        let addresses: Value =
            serde_json::from_slice(&fs::read(place.addresses()).expect("the addresses")).expect("JSON");
        lives.push((addresses["node"].clone(), addresses["incarnation"].as_u64()));
        node.signal(Signal::SIGTERM);
        node.end();
    }
    assert_eq!(lives[0].0, lives[1].0);
    assert!(lives[0].1 < lives[1].1, "{lives:?}");
}

#[test]
fn each_kind_of_failure_has_its_exit_code() {
    let place = Place::new();
    let _node = Running::start(&mut tenond(), &place);
    let start = |arguments: &[&str], place: &Place| {
        tenond()
            .args(place.flags())
            .args(arguments)
            .output()
            .expect("tenond starts")
    };
    assert_ends(&start(&[], &place), 5, "is used by another agent");

    let other = Place::new();
    let addresses: Value = serde_json::from_slice(&fs::read(place.addresses()).expect("the addresses")).expect("JSON");
    let config = other.path("tenond.toml");
    for (key, said) in [("http", "cannot listen for HTTP on"), ("link", "cannot listen on")] {
        let taken = addresses[key].as_str().expect("an address");
        fs::write(&config, format!("[listen]\n{key} = \"{taken}\"\n")).expect("a file");
        let flags = other.flags();
        let flags = flags.chunks(2).filter(|flag| flag[0] != format!("--{key}")).flatten();
        let ended = tenond()
            .args(["--config", &config])
            .args(flags)
            .output()
            .expect("tenond starts");
        assert_ends(&ended, 3, said);
    }

    let file = other.path("segment");
    fs::write(&config, format!("[[segments]]\nsize = \"1MiB\"\nfile = \"{file}\"\n")).expect("a file");
    let flags = other.flags();
    let flags = flags.chunks(2).filter(|flag| flag[0] != "--segment-size").flatten();
    let ended = tenond()
        .args(["--config", &config])
        .args(flags)
        .output()
        .expect("tenond starts");
    assert_ends(&ended, 4, &file);
}

#[test]
fn the_log_can_be_json() {
    let place = Place::new();
    let config = place.path("tenond.toml");
    fs::write(&config, "[log]\nformat = \"json\"\n").expect("a file");
    let node = Running::start(tenond().env("TENON_CONFIG", &config), &place);
    node.signal(Signal::SIGTERM);
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let serving = lines
        .iter()
        .find(|line| line["fields"]["message"] == "serving")
        .expect("the addresses are logged");
    assert_eq!(serving["fields"]["unix"], place.path("sock").as_str());
}

#[test]
fn systemd_is_told_of_every_step_and_that_the_node_lives() {
    let place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let hear = |wanted: &str| {
        let (mut messages, mut buffer) = (String::new(), [0; 4096]);
        while !messages.contains(wanted) {
            let len_bytes = socket
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{wanted}: {error} after {messages}"));
            messages += &String::from_utf8_lossy(&buffer[..len_bytes]);
        }
    };
    let mut command = tenond();
    command
        .env("NOTIFY_SOCKET", place.path("notify"))
        .env("WATCHDOG_USEC", "300000");
    let node = Running::start(&mut command, &place);
    hear("STATUS=mounting");
    hear("READY=1");
    for _ in 0..3 {
        hear("WATCHDOG=1");
    }
    node.signal(Signal::SIGTERM);
    hear("STOPPING=1");
    assert_eq!(node.end().0, Some(0));
}

//! One node with nothing configured: the first minute of every newcomer.

use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tenon_integration::binaries::binaries;
use tenon_integration::http::{Answer, Http};
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::wait;

/// A node on ports that the system chose.
struct Standalone {
    process: Child,
    dir: TempDir,
    http: Http,
}

impl Standalone {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let process = Command::new(&binaries().tenond)
            .args([
                "--http",
                "127.0.0.1:0",
                "--link",
                "127.0.0.1:0",
                "--segment-size",
                "64MiB",
            ])
            .arg("--state-dir")
            .arg(dir.path().join("state"))
            .arg("--unix")
            .arg(dir.path().join("tenon.sock"))
            .env_remove("TENON_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tenond starts");
        let addresses = wait::until(wait::SOON, "the node tells its addresses", || {
            let text = std::fs::read(dir.path().join("state/addresses.json")).map_err(|error| error.to_string())?;
            serde_json::from_slice::<Value>(&text).map_err(|error| error.to_string())
        });
        let address = addresses["http"].as_str().and_then(|text| text.parse().ok());
        let http = Http::new(address.unwrap_or_else(|| panic!("no address of HTTP in {addresses}")));
        wait::until(wait::SOON, "the node gets ready", || match http.try_get("/readyz")? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(format!("{answer:?}")),
        });
        Self { process, dir, http }
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_node_without_configuration_serves_put_and_get() {
    let node = Standalone::start();
    let bytes = payload(1, (3 << 20) + 1);
    let put = node.http.put_object("first", &bytes);
    assert_eq!(put["outcome"], "stored", "{put}");
    assert_same(node.http.get_object("first").expect(200).bytes(), &bytes, "by HTTP");
    let socket = format!("unix:{}", node.dir.path().join("tenon.sock").display());
    let got = Command::new(&binaries().tenon)
        .args(["--connect", &socket, "get", "first"])
        .output()
        .expect("tenon starts");
    assert!(got.status.success(), "{got:?}");
    assert_same(&got.stdout, &bytes, "over the unix socket");
    let nodes = node.http.get("/v1/nodes").expect(200).json();
    assert_eq!(nodes["view_source"], "standalone", "{nodes}");
}

#[test]
fn head_tells_the_length_and_the_checksum_of_an_object() {
    let node = Standalone::start();
    let bytes = payload(2, 12_345);
    node.http.put_object("told", &bytes);
    let head = node.http.head(&Http::object_path("told")).expect(200);
    assert_eq!(head.header("content-length"), Some("12345"), "{head:?}");
    assert!(
        head.header("tenon-crc64nvme").is_some_and(|sum| sum.len() == 16),
        "{head:?}"
    );
    assert!(head.bytes().is_empty());
}

#[test]
fn listings_come_in_pages_in_the_order_of_keys() {
    let node = Standalone::start();
    for index in 0..25 {
        node.http.put_object(&format!("page/{index:02}"), b"bytes");
    }
    node.http.put_object("elsewhere", b"bytes");
    let mut keys = Vec::new();
    let mut after = String::new();
    loop {
        let page = node
            .http
            .get(&format!("/v1/objects?prefix=page/&limit=10{after}"))
            .expect(200)
            .json();
        let entries = page["entries"].as_array().expect("entries").clone();
        assert!(entries.len() <= 10);
        keys.extend(
            entries
                .iter()
                .filter_map(|entry| entry["key"].as_str().map(str::to_owned)),
        );
        if page["more"] == false {
            break;
        }
        after = format!(
            "&after={}",
            Http::query_text(keys.last().expect("a page with more has entries"))
        );
    }
    let expected: Vec<String> = (0..25).map(|index| format!("page/{index:02}")).collect();
    assert_eq!(keys, expected);
}

#[test]
fn metrics_count_what_happened_by_its_kind() {
    let node = Standalone::start();
    let metrics = || {
        let answer: Answer = node.http.get("/metrics").expect(200);
        String::from_utf8_lossy(answer.bytes()).into_owned()
    };
    let before = metrics();
    assert!(before.contains("tenon_build_info"), "{before}");
    node.http.put_object("counted", &payload(1, 100_000));
    node.http.get_object("counted").expect(200);
    node.http.get_object("missed").expect(404);
    let after = metrics();
    let value = |text: &str, name: &str, label: &str| -> f64 {
        text.lines()
            .filter(|line| line.starts_with(name) && line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    };
    for label in ["hit", "miss"] {
        let grown = value(&after, "tenon_gets_total", label) - value(&before, "tenon_gets_total", label);
        assert!((grown - 1.0).abs() < 0.01, "{label} grew by {grown}:\n{after}");
    }
    for line in after.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        assert!(
            line.starts_with("tenon_") || line.starts_with("process_"),
            "a metric of whom? {line}"
        );
    }
}

#[test]
fn health_answers_before_and_beside_everything_else() {
    let node = Standalone::start();
    node.http.get("/livez").expect(200);
    node.http.get("/readyz").expect(200);
}

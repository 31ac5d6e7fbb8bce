//! What goes when memory is short: the least used first, nothing that is pinned, and never a wrong byte.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};
use tenon_client::{Client, PutOptions, default_deadline};
use tenon_integration::account::{assert_accounts, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::node::Node;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::wait;
use tenon_protocol::message::{Keep, Pin};
use tenon_protocol::name::{Namespace, ObjectName};

const MIB: usize = 1 << 20;
/// Of a node's segment.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Homes are to know of an eviction within 100 ms; a busy machine gets more.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// How long the store is kept full, and the variable that says otherwise.
const CHURN: Duration = Duration::from_secs(6);
/// In a longer one a segment comes and another one goes.
const COMES_AND_GOES_FROM: Duration = Duration::from_secs(20);
/// Room for what is pinned comes with evictions; a busy machine gets more time.
const DRAINED_WITHIN: Duration = Duration::from_secs(60);
/// On a busy machine it lasts until so many are stored: more than the nodes hold.
const CHURN_PUTS_MIN: u64 = 400;
const CHURN_VARIABLE: &str = "CHURN_SECONDS";

fn name(key: &str) -> ObjectName {
    let namespace = Namespace::new(Namespace::DEFAULT).expect("a namespace");
    ObjectName::new(&namespace, key).expect("a key")
}

/// Which of the keys have an object, as a node says.
fn existing(node: &Node, keys: &[String]) -> Vec<bool> {
    let request = json!({ "namespace": "default", "keys": keys });
    let answer = node.http().post("/v1/exists", &request).expect(200).json();
    let items = answer["items"].as_array().expect("items");
    items
        .iter()
        .map(|item| item["ok"].as_bool().unwrap_or_else(|| panic!("{item}")))
        .collect()
}

fn keep(node: &Node, keys: &[&str], keep: &Value) {
    let request = json!({ "namespace": "default", "keys": keys, "keep": keep });
    let answer = node.http().post("/v1/keep", &request).expect(200).json();
    for item in answer["items"].as_array().expect("items") {
        assert_eq!(item["ok"], true, "{answer}");
    }
}

/// A node's metrics tell of one object with each kind of pin.
fn assert_pins_are_shown(holder: &Node) {
    wait::until(KNOWN_WITHIN, "pins are shown", || {
        let pinned = ["hard", "soft"].map(|pin| holder.metric(&format!("tenon_objects{{pin=\"{pin}\"}}")));
        (pinned == [1.0, 1.0]).then_some(()).ok_or(pinned)
    });
}

/// A node's metrics tell of so many evictions, of objects of a mebibyte, and that homes know of all.
fn assert_evictions_are_shown(holder: &Node, expected: u32) {
    let evictions = holder.metric("tenon_evictions_total{reason=\"watermark\"}");
    let bytes = holder.metric("tenon_evicted_bytes_total{reason=\"watermark\"}");
    let aged = holder.metric("tenon_eviction_age_seconds_count{reason=\"watermark\"}");
    assert_eq!((evictions, aged), (expected.into(), expected.into()));
    wait::until(KNOWN_WITHIN, "homes have said that they know", || {
        let told: Option<u32> = holder.find_metric("tenon_eviction_told_seconds_count");
        (told == Some(expected)).then_some(()).ok_or(told)
    });
    assert!((bytes - f64::from(expected) * f64::from(1 << 20)).abs() < 0.5);
}

#[test]
fn objects_that_were_neither_used_nor_pinned_go_first_and_are_misses_at_every_node() {
    let cluster = Cluster::start(3);
    let (holder, reader) = (&cluster[0], &cluster[1]);
    let keys: Vec<String> = (0..60).map(|number| format!("object/{number}")).collect();
    let bytes_of = |index: usize| payload(index as u64, MIB);
    for (index, key) in keys.iter().enumerate().take(56) {
        reader.http().put_object_on(key, &bytes_of(index), holder.id());
    }
    assert_same(
        reader.http().get_object(&keys[0]).expect(200).bytes(),
        &bytes_of(0),
        "a get",
    );
    keep(reader, &[&keys[1]], &json!("touch"));
    keep(reader, &[&keys[2]], &json!({ "pin": "hard" }));
    assert_eq!(
        reader
            .tenon(&["pin", "--soft-pin-ms", "600000", &keys[3]])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(reader.tenon(&["pin", "none of these"]).status.code(), Some(1), "a miss");
    // Looking does not count as use.
    existing(reader, &keys);
    for (index, key) in keys.iter().enumerate().skip(56) {
        reader.http().put_object_on(key, &bytes_of(index), holder.id());
    }
    // 61 of 64 MiB begin it, 57 end it.
    reader.http().put_object_on("the last", &payload(99, MIB), holder.id());
    wait::until(KNOWN_WITHIN, "eviction ends and every home knows", || {
        let sealed_bytes = field(holder, "sealed_bytes");
        let held = usize::try_from(sealed_bytes).expect("bytes") / MIB;
        if held > 57 {
            return Err(format!("{held} objects are held"));
        }
        for node in cluster.nodes() {
            let exist = existing(node, &keys).into_iter().filter(|exists| *exists).count();
            if exist + 1 != held {
                return Err(format!("node {} says that {exist} exist, {held} are held", node.id()));
            }
        }
        Ok(())
    });
    let exist = existing(reader, &keys);
    assert_eq!(exist[..4], [true; 4], "those that were used or pinned");
    let gone = exist.iter().filter(|exists| !**exists).count();
    assert!(
        exist[4..4 + gone].iter().all(|exists| !exists),
        "the oldest went: {exist:?}"
    );
    for (index, key) in keys.iter().enumerate() {
        let answer = reader.http().get_object(key);
        if exist[index] {
            assert_same(answer.expect(200).bytes(), &bytes_of(index), key);
        } else {
            answer.expect_error(404, "not_found");
        }
    }
    assert_evictions_are_shown(holder, u32::try_from(gone).expect("a count"));
    assert_pins_are_shown(holder);
    assert_accounts(&cluster);
}

#[test]
fn a_put_for_which_no_node_has_a_hole_makes_one_of_what_was_not_pinned() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        // Nothing goes in the background.
        more_config: "[eviction]\nfrom_percent = 100\nto_percent = 99\n".into(),
        ..ClusterOptions::default()
    });
    let http = cluster[0].http();
    for node in cluster.nodes() {
        let filler = |at: usize| format!("filler/{at}/{}", node.id());
        for at in 0..3 {
            http.put_object_on(&filler(at), &payload(at as u64, 20 * MIB), node.id());
        }
        keep(&cluster[0], &[&filler(1)], &json!({ "pin": "hard" }));
    }
    // The pinned one in the middle leaves room for 24 MiB at most.
    let too_much = tenon_integration::http::Http::object_path("too much");
    let refused = http.put(&too_much, &payload(5, 45 * MIB)).expect_error(507, "no_space");
    assert_eq!(refused.error()["no_space"]["evictable_bytes"], 2 * 40 * MIB);
    let evictions = |reason| {
        let series = format!("tenon_evictions_total{{reason=\"{reason}\"}}");
        cluster.nodes().iter().map(|node| node.metric(&series)).sum::<f64>()
    };
    assert!(evictions("request") < 0.5, "what cannot be evicts nothing");
    let bytes = payload(6, 23 * MIB);
    http.put_object("as much as one and the rest", &bytes);
    assert!((evictions("request") - 1.0).abs() < 0.5);
    for node in cluster.nodes() {
        let got = node.http().get_object("as much as one and the rest").expect(200);
        assert_same(got.bytes(), &bytes, "the new object");
        let pinned = node
            .http()
            .get_object(&format!("filler/1/{}", cluster[0].id()))
            .expect(200);
        assert_same(pinned.bytes(), &payload(1, 20 * MIB), "a pinned one");
    }
    // A put that names a node makes room there at once.
    let second = payload(7, 19 * MIB);
    http.put_object_on("by name", &second, cluster[1].id());
    assert_same(
        cluster[0].http().get_object("by name").expect(200).bytes(),
        &second,
        "by name",
    );
    assert_accounts(&cluster);
}

/// An object's length follows from its number: small, middling and large ones.
fn len_of(number: u64) -> usize {
    let mut random = StdRng::seed_from_u64(number);
    match random.random_range(0..10) {
        0..4 => random.random_range(1..=64 << 10),
        4..8 => random.random_range(64 << 10..=MIB),
        _ => random.random_range(MIB..=4 * MIB),
    }
}

/// What writers and readers share.
struct Churn {
    until: Instant,
    clients: Vec<Client>,
    next: AtomicU64,
    stored: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Churn {
    fn goes_on(&self) -> bool {
        let is_over = Instant::now() >= self.until && self.stored.load(Ordering::Relaxed) >= CHURN_PUTS_MIN;
        !is_over && self.failures.lock().expect("failures").is_empty()
    }

    fn failed(&self, what: String) {
        self.failures.lock().expect("failures").push(what);
    }

    /// Puts one object after the other, each under a key of its own.
    async fn write(self: Arc<Self>, client: usize) {
        while self.goes_on() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let len = len_of(number);
            let put = self.clients[client]
                .put(
                    &name(&format!("churn/{number}")),
                    payload(number, len),
                    &PutOptions::default(),
                    default_deadline(len as u64),
                )
                .await;
            match put {
                Ok(_) => drop(self.stored.fetch_add(1, Ordering::Relaxed)),
                Err(error) => self.failed(format!("put {number} of {len} bytes: {error}")),
            }
        }
    }

    /// Gets objects that were put a short or a long while ago.
    async fn read(self: Arc<Self>, client: usize, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let newest = self.next.load(Ordering::Relaxed);
            let back = if random.random() { 20 } else { 400 };
            let number = newest.saturating_sub(random.random_range(1..=back));
            let got = self.clients[client]
                .get(&name(&format!("churn/{number}")), default_deadline(4 << 20))
                .await;
            match got {
                Ok(Some(bytes)) if bytes == payload(number, len_of(number)) => {
                    self.hits.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Some(bytes)) => self.failed(format!("get {number} gave {} wrong bytes", bytes.len())),
                Ok(None) => {
                    self.misses.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => self.failed(format!("get {number}: {error}")),
            }
        }
    }
}

/// In the middle of everything a segment comes, and another one is drained and goes; what is pinned is moved.
fn come_and_go(node: &Node, at: Instant) {
    std::thread::sleep(at.saturating_duration_since(Instant::now()));
    let http = node.http();
    let mounted = http.post("/v1/segments", &json!({ "len_bytes": SEGMENT_BYTES }));
    assert_eq!(mounted.expect(201).json()["state"], "active");
    http.post("/v1/segments/1/drain", &json!({})).expect(200);
    wait::until(DRAINED_WITHIN, "a segment is drained of what is pinned", || {
        let listed = http.get(&format!("/v1/segments?node={}", node.id())).expect(200).json();
        let segments = listed["segments"].as_array().expect("segments");
        let draining = segments.iter().find(|info| info["segment"] == 1).expect("it is there");
        match &draining["draining"]["pinned_objects"] {
            pinned if *pinned == 0 => Ok(()),
            _ => Err(draining["draining"].clone()),
        }
    });
    let gone = http
        .delete("/v1/segments/1?graceful_ms=2000&timeout_ms=20000")
        .expect(200);
    println!("a segment has come, another one gone: {}", gone.json()["draining"]);
}

/// Fills two nodes, of which 30 % are pinned, and goes on putting.
fn churn(lasts: Duration) {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        segments_bytes: vec![SEGMENT_BYTES; 2],
        ..ClusterOptions::default()
    });
    let pinned: Vec<String> = (0..76).map(|number| format!("pinned/{number}")).collect();
    for (number, key) in pinned.iter().enumerate() {
        let node = &cluster[number % 2];
        node.http().put_object_on(key, &payload(number as u64, MIB), node.id());
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let clients: Vec<Client> = cluster
        .nodes()
        .iter()
        .map(|node| runtime.block_on(node.client()))
        .collect();
    let namespace = Namespace::new(Namespace::DEFAULT).expect("a namespace");
    let pin = clients[0].keep(&namespace, pinned.clone(), Keep::Pin(Pin::Hard), default_deadline(0));
    assert!(runtime.block_on(pin).into_iter().all(|kept| kept == Ok(true)));
    let churn = Arc::new(Churn {
        until: Instant::now() + lasts,
        clients,
        next: AtomicU64::new(0),
        stored: AtomicU64::new(0),
        hits: AtomicU64::new(0),
        misses: AtomicU64::new(0),
        failures: Mutex::default(),
    });
    let mut tasks = Vec::new();
    for client in 0..2 {
        tasks.push(runtime.spawn(Arc::clone(&churn).write(client)));
        tasks.push(runtime.spawn(Arc::clone(&churn).read(client, client as u64)));
    }
    if lasts >= COMES_AND_GOES_FROM {
        come_and_go(&cluster[0], churn.until - lasts / 2);
    }
    for task in tasks {
        runtime.block_on(task).expect("no writer or reader panics");
    }
    let counts = [&churn.stored, &churn.hits, &churn.misses].map(|count| count.load(Ordering::Relaxed));
    println!("stored, hits, misses: {counts:?}");
    assert_eq!(*churn.failures.lock().expect("failures"), Vec::<String>::new());
    let evictions = |node: &Node| {
        let of = |reason| node.metric(&format!("tenon_evictions_total{{reason=\"{reason}\"}}"));
        of("watermark") + of("request")
    };
    for node in cluster.nodes() {
        assert!(evictions(node) > 10.0, "the store was not full");
        let told = |part: &str| node.metric(&format!("tenon_eviction_told_seconds_{part}"));
        let within = told("bucket{le=\"0.1\"}") / told("count");
        println!("{:.1} % of evictions were known to homes within 100 ms", 100.0 * within);
        for (number, key) in pinned.iter().enumerate() {
            assert_same(
                node.http().get_object(key).expect(200).bytes(),
                &payload(number as u64, MIB),
                key,
            );
        }
    }
    assert!(counts[1] > 0, "nothing was found");
    assert_accounts(&cluster);
}

#[test]
fn a_full_store_goes_on_taking_puts_and_its_readers_get_right_bytes_or_misses() {
    churn(CHURN);
}

/// By hand: `make churn CHURN_SECONDS=600`.
#[test]
#[ignore = "lasts as long as the environment says"]
fn a_full_store_goes_on_taking_puts_for_as_long_as_is_wanted() {
    let seconds = std::env::var(CHURN_VARIABLE).expect("make churn says how long");
    churn(Duration::from_secs(seconds.parse().expect("a number of seconds")));
}

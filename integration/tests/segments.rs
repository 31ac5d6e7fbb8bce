//! Segments that come and go while nodes serve.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenon_integration::account::assert_accounts;
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::node::Node;
use tenon_integration::objects::bytes_of;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::wait;

const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 64 * MIB;
/// Homes are to know of what has gone within 100 ms; a busy machine gets more.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

fn mount(node: &Node, len_bytes: u64) -> u64 {
    let answer = node.http().post("/v1/segments", &json!({ "len_bytes": len_bytes }));
    let info = answer.expect(201).json();
    assert_eq!(info["state"], "active", "{info}");
    info["segment"].as_u64().expect("an id")
}

fn unmount(node: &Node, segment: u64, query: &str) -> Value {
    let answer = node
        .http()
        .delete(&format!("/v1/segments/{segment}?timeout_ms=20000{query}"));
    answer.expect(200).json()
}

fn segment(node: &Node, segment: u64) -> Value {
    let answer = node
        .http()
        .get(&format!("/v1/segments?node={}", node.id()))
        .expect(200)
        .json();
    let segments = answer["segments"].as_array().expect("segments");
    let found = segments.iter().find(|info| info["segment"] == segment);
    found
        .cloned()
        .unwrap_or_else(|| panic!("no segment {segment} in {answer}"))
}

/// In which segment an object lies.
fn segment_of(node: &Node, key: &str) -> u64 {
    let request = json!({ "namespace": "default", "keys": [key] });
    let answer = node.http().post("/v1/locate", &request).expect(200).json();
    let found = &answer["items"][0]["ok"]["replicas"][0]["segment"];
    found.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn put_on(coordinator: &Node, holder: &Node, key: &str) {
    coordinator.http().put_object_on(key, &bytes_of(key), holder.id());
}

/// What a reader sees of an object that may go at any moment: its bytes, or that it is not there (any more, if its answer had begun). Anything else is
/// wrong.
fn is_there(node: &Node, key: &str) -> bool {
    let answer = node.http().get(&Http::object_path(key));
    match (answer.status, &answer.body) {
        (200, Ok(bytes)) => {
            assert_same(bytes, &bytes_of(key), key);
            true
        }
        (200, Err(_)) | (404, _) => false,
        (409, _) if answer.code() == "conflict" => false,
        _ => panic!("GET {key}: {answer:?}"),
    }
}

/// Puts objects until `count` of them lie in `segment`.
fn fill(coordinator: &Node, holder: &Node, segment: u64, count: usize) -> Vec<String> {
    let mut keys = Vec::new();
    for number in 0.. {
        let key = format!("filler/{segment}/{number}");
        put_on(coordinator, holder, &key);
        if segment_of(coordinator, &key) == segment {
            keys.push(key);
        }
        if keys.len() == count {
            return keys;
        }
        assert!(number < 10_000, "nothing is placed in segment {segment}");
    }
    keys
}

fn without_eviction(nodes: usize, segment_bytes: u64) -> Cluster {
    Cluster::start_with(&ClusterOptions {
        nodes,
        segments_bytes: vec![segment_bytes],
        more_config: "[eviction]\npolicy = \"off\"\n".into(),
        ..ClusterOptions::default()
    })
}

#[test]
fn a_segment_that_is_mounted_while_traffic_runs_takes_puts_that_every_node_reads() {
    let cluster = without_eviction(3, 8 * MIB);
    let (holder, reader) = (&cluster[0], &cluster[1]);
    // A client that has asked for its grants before.
    put_on(reader, holder, "before");
    assert_same(
        reader.http().get_object("before").expect(200).bytes(),
        &bytes_of("before"),
        "a get",
    );
    let large = payload(7, 16 << 20);
    let path = format!("/v1/objects/large?node={}", holder.id());
    reader.http().put(&path, &large).expect_error(413, "object_too_large");
    let (stop, puts) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let key = format!("traffic/{}", puts.fetch_add(1, Ordering::Relaxed) % 50);
                let _ = cluster[2]
                    .http()
                    .try_put(&format!("/v1/objects/{key}"), &bytes_of(&key));
                is_there(reader, &key);
            }
        });
        let segment = mount(holder, SEGMENT_BYTES);
        assert_eq!(segment, 2, "ids go up");
        reader.http().put(&path, &large).expect(201);
        assert_eq!(segment_of(&cluster[2], "large"), segment);
        for node in cluster.nodes() {
            assert_same(node.http().get_object("large").expect(200).bytes(), &large, "a get");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(puts.load(Ordering::Relaxed) > 0);
    assert_eq!(holder.metric("tenon_segments{state=\"active\"}"), 2.0);
    assert_eq!(holder.metric("tenon_segment_mounts_total{result=\"mounted\"}"), 1.0);
    assert_accounts(&cluster);
}

#[test]
fn the_objects_of_an_unmounted_segment_are_misses_everywhere_and_its_memory_is_given_back() {
    let cluster = without_eviction(3, SEGMENT_BYTES);
    let (holder, reader) = (&cluster[0], &cluster[1]);
    let before_bytes = holder.shared_bytes();
    let mounted = mount(holder, 4 * SEGMENT_BYTES);
    let with_bytes = holder.shared_bytes();
    assert!(
        with_bytes >= before_bytes + 4 * SEGMENT_BYTES,
        "{before_bytes} then {with_bytes}"
    );
    let large = payload(3, 100 << 20);
    reader.http().put_object_on("large", &large, holder.id());
    assert_eq!(segment_of(reader, "large"), mounted);
    assert_same(reader.http().get_object("large").expect(200).bytes(), &large, "a get");
    let info = unmount(holder, mounted, "");
    assert_eq!(
        (&info["state"], &info["draining"]["dropped_objects"]),
        (&json!("gone"), &json!(1)),
        "{info}"
    );
    assert!(
        holder.shared_bytes() < before_bytes + MIB,
        "the memory is not given back"
    );
    for node in cluster.nodes() {
        node.http().get_object("large").expect_error(404, "not_found");
    }
    wait::until(KNOWN_WITHIN, "homes know", || {
        let request = json!({ "namespace": "default", "keys": ["large"] });
        let exist = cluster
            .nodes()
            .iter()
            .filter(|node| node.http().post("/v1/exists", &request).expect(200).json()["items"][0]["ok"] == true);
        match exist.count() {
            0 => Ok(()),
            exist => Err(exist),
        }
    });
    assert_eq!(holder.metric("tenon_evictions_total{reason=\"unmounted\"}"), 1.0);
    assert_eq!(holder.metric("tenon_segment_unmounts_total"), 1.0);
    // The key is free again, and the next segment has another id.
    let next = mount(holder, 4 * SEGMENT_BYTES);
    assert_eq!(next, mounted + 1);
    reader.http().put_object_on("large", &large, holder.id());
    assert_same(
        cluster[2].http().get_object("large").expect(200).bytes(),
        &large,
        "a get",
    );
    assert_accounts(&cluster);
}

#[test]
fn readers_of_a_segment_that_is_unmounted_get_right_bytes_or_misses_and_nothing_else() {
    let cluster = without_eviction(3, SEGMENT_BYTES);
    let holder = &cluster[0];
    for round in 0..5_u64 {
        let mounted = mount(holder, SEGMENT_BYTES);
        let keys = fill(&cluster[1], holder, mounted, 30);
        let (stop, hits, misses) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for node in cluster.nodes() {
                let (keys, stop, hits, misses) = (&keys, &stop, &hits, &misses);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        for key in keys {
                            let seen = if is_there(node, key) { hits } else { misses };
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(100 + 30 * round));
            let info = unmount(holder, mounted, "");
            assert_eq!(info["state"], "gone", "{info}");
            let then = misses.load(Ordering::Relaxed);
            wait::until(KNOWN_WITHIN, "readers miss what has gone", || {
                (misses.load(Ordering::Relaxed) > then).then_some(()).ok_or(then)
            });
            stop.store(true, Ordering::Relaxed);
        });
        assert!(hits.load(Ordering::Relaxed) > 0, "nothing was read before");
        for key in keys {
            cluster[2].http().get_object(&key).expect_error(404, "not_found");
        }
    }
    assert_accounts(&cluster);
}

#[test]
fn a_graceful_unmount_waits_for_a_put_that_is_under_way_and_takes_no_other() {
    let cluster = without_eviction(2, 8 * MIB);
    let (holder, other) = (&cluster[0], &cluster[1]);
    let mounted = mount(holder, SEGMENT_BYTES);
    let bytes = payload(5, 12 << 20);
    let (head, rest) = bytes.split_at(1 << 20);
    let mut slow = other.http().connect();
    let request = format!(
        "PUT /v1/objects/slow?node={} HTTP/1.1\r\nHost: localhost\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        holder.id(),
        bytes.len()
    );
    slow.write_all(request.as_bytes()).expect("a request");
    slow.write_all(head).expect("its first bytes");
    wait::until(wait::SOON, "it is reserved", || {
        match &segment(holder, mounted)["space"]["reservations"] {
            Value::Number(one) if one.as_u64() == Some(1) => Ok(()),
            other => Err(other.clone()),
        }
    });
    let path = format!("/v1/segments/{mounted}?graceful_ms=60000&timeout_ms=300");
    let info = holder.http().delete(&path).expect(202).json();
    assert_eq!(info["state"], "draining", "{info}");
    assert_eq!(info["draining"]["puts"], 1, "{info}");
    let no_room = other.http().put(&format!("/v1/objects/x?node={}", holder.id()), &bytes);
    no_room.expect_error(413, "object_too_large");
    assert_eq!(holder.metric("tenon_segments{state=\"draining\"}"), 1.0);
    let begun = Instant::now();
    slow.write_all(rest).expect("the rest");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    wait::until(wait::SOON, "the segment goes when the put is over", || {
        match segment(holder, mounted)["state"].as_str() {
            Some("gone") => Ok(()),
            state => Err(format!("{state:?}")),
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "it waited for its bound");
    other.http().get_object("slow").expect_error(404, "not_found");
    assert_accounts(&cluster);
}

#[test]
fn a_graceful_unmount_is_over_by_its_bound_whoever_uses_the_segment() {
    let cluster = without_eviction(2, 8 * MIB);
    let (holder, other) = (&cluster[0], &cluster[1]);
    let mounted = mount(holder, SEGMENT_BYTES);
    let mut silent = other.http().connect();
    let request = format!(
        "PUT /v1/objects/silent?node={} HTTP/1.1\r\nHost: localhost\r\ncontent-length: {}\r\n\r\n",
        holder.id(),
        12 << 20
    );
    silent.write_all(request.as_bytes()).expect("a request");
    silent.write_all(&payload(1, 1 << 20)).expect("its first bytes");
    wait::until(wait::SOON, "it is reserved", || {
        (segment(holder, mounted)["space"]["reservations"] == 1)
            .then_some(())
            .ok_or(0)
    });
    let begun = Instant::now();
    let info = unmount(holder, mounted, "&graceful_ms=1000");
    let took = begun.elapsed();
    assert_eq!(info["state"], "gone", "{info}");
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(8)).contains(&took),
        "{took:?}"
    );
    drop(silent);
    assert_accounts(&cluster);
}

#[test]
fn a_reader_that_stands_still_in_the_middle_of_a_get_holds_nothing_up() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    let cluster = without_eviction(2, SEGMENT_BYTES);
    let holder = &cluster[0];
    let before_bytes = holder.shared_bytes();
    let mounted = mount(holder, 8 * SEGMENT_BYTES);
    let large = payload(9, 400 << 20);
    cluster[1].http().put_object_on("large", &large, holder.id());
    assert_eq!(segment_of(&cluster[1], "large"), mounted);
    // Its output is read by nobody: it stands still with what its pipe holds, in the middle.
    let mut reader = cluster[1].tenon_command();
    let mut reader = reader
        .args(["get", "large"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("tenon starts");
    wait::until(wait::SOON, "it reads", || {
        let sent = holder.metric("tenon_sent_bytes_total{place=\"segments\"}");
        let transfers = &segment(holder, mounted)["space"];
        (sent > 0.0).then_some(()).ok_or(transfers.to_string())
    });
    let pid = Pid::from_raw(i32::try_from(reader.id()).expect("a pid"));
    kill(pid, Signal::SIGSTOP).expect("it can be stopped");
    let begun = Instant::now();
    let info = unmount(holder, mounted, "");
    let took = begun.elapsed();
    assert_eq!(info["state"], "gone", "{info}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(
        holder.shared_bytes() < before_bytes + MIB,
        "the memory is not given back"
    );
    kill(pid, Signal::SIGCONT).expect("it can go on");
    drop(reader.stdout.take());
    let _ = reader.wait();
    assert_accounts(&cluster);
}

#[test]
fn what_cannot_be_done_with_a_segment_is_named() {
    let cluster = without_eviction(2, SEGMENT_BYTES);
    let node = &cluster[0];
    let http = node.http();
    http.delete("/v1/segments/77").expect_error(404, "unknown_segment");
    http.post("/v1/segments/77/drain", &json!({}))
        .expect_error(404, "unknown_segment");
    http.delete("/v1/segments/none").expect_error(400, "invalid_argument");
    http.delete("/v1/segments/1?graceful_ms=86400001")
        .expect_error(400, "invalid_argument");
    for (body, status, code) in [
        (json!({ "len_bytes": 4096 }), 400, "invalid_argument"),
        (json!({ "len_bytes": (1 << 20) + 1 }), 400, "invalid_argument"),
        (json!({ "len_bytes": 1 << 20, "slots": 0 }), 400, "invalid_argument"),
        (json!({ "len_bytes": 1 << 20, "file": "here" }), 400, "invalid_argument"),
        (
            json!({ "len_bytes": 1 << 20, "file": "/dev/shm/x", "huge_pages": "off" }),
            400,
            "invalid_argument",
        ),
        (json!({ "len_bytes": 1_u64 << 50 }), 507, "no_memory"),
        (
            json!({ "len_bytes": 1 << 20, "file": "/proc/none" }),
            400,
            "invalid_argument",
        ),
        (
            json!({ "len_bytes": 1 << 20, "file": "/dev/shm/none/x" }),
            400,
            "invalid_argument",
        ),
        (json!({ "size": 1 << 20 }), 400, "malformed_request"),
    ] {
        http.post("/v1/segments", &body).expect_error(status, code);
    }
    let listed = http.get(&format!("/v1/segments?node={}", node.id())).expect(200).json();
    let failed: Vec<&Value> = (listed["segments"].as_array().expect("segments").iter())
        .filter(|info| info["failure"].is_string())
        .collect();
    assert!(failed.len() == 2 && failed[0]["state"] == "gone", "{listed}");
    assert_eq!(node.metric("tenon_segment_mounts_total{result=\"failed\"}"), 2.0);
    let file = std::path::Path::new("/dev/shm").join(format!("tenon-test-{}", node.id()));
    let on_file = json!({ "len_bytes": 8 * MIB, "file": file });
    let info = http.post("/v1/segments", &on_file).expect(201).json();
    http.post("/v1/segments", &on_file).expect_error(409, "conflict");
    unmount(node, info["segment"].as_u64().expect("an id"), "");
    std::fs::remove_file(&file).expect("the file is there still");
    put_on(node, node, "pinned");
    let keep = json!({ "namespace": "default", "keys": ["pinned"], "keep": { "pin": "hard" } });
    http.post("/v1/keep", &keep).expect(200);
    http.delete("/v1/segments/1").expect_error(409, "pinned_objects");
    assert_same(
        http.get_object("pinned").expect(200).bytes(),
        &bytes_of("pinned"),
        "a get",
    );
    assert_eq!(unmount(node, 1, "&force=true")["state"], "gone");
    http.delete("/v1/segments/1").expect_error(404, "unknown_segment");
    // A node without memory is a node still.
    let no_room = http.put(&format!("/v1/objects/x?node={}", node.id()), b"x");
    no_room.expect_error(507, "no_space");
    put_on(node, &cluster[1], "elsewhere");
    assert_accounts(&cluster);
}

#[test]
fn how_far_a_segment_is_that_is_being_mounted_is_shown_and_then_it_serves() {
    let cluster = without_eviction(1, SEGMENT_BYTES);
    let node = &cluster[0];
    let len_bytes = 32 * SEGMENT_BYTES;
    let answer = node
        .http()
        .post("/v1/segments?timeout_ms=1", &json!({ "len_bytes": len_bytes }));
    let info = answer.expect(202).json();
    assert_eq!(
        (&info["state"], &info["mounting"]["len_bytes"]),
        (&json!("mounting"), &json!(len_bytes)),
        "{info}"
    );
    let id = info["segment"].as_u64().expect("an id");
    let early = node.http().delete(&format!("/v1/segments/{id}"));
    assert!(matches!(early.status, 200 | 409), "{early:?}");
    if early.status == 200 {
        // It was faster than this test.
        return;
    }
    early.expect_error(409, "conflict");
    let mut last_bytes = 0;
    wait::until(wait::SOON, "it is in use", || {
        let info = segment(node, id);
        if info["state"] == "active" {
            return Ok(());
        }
        let bytes = info["mounting"]["prefaulted_bytes"].as_u64().unwrap_or(0);
        assert!(bytes >= last_bytes && bytes <= len_bytes, "{info}");
        last_bytes = bytes;
        Err(info)
    });
    assert_eq!(unmount(node, id, "")["state"], "gone");
}

#[test]
fn segments_are_mounted_drained_and_unmounted_from_the_command_line_at_any_node() {
    let cluster = without_eviction(2, SEGMENT_BYTES);
    let (asked, changed) = (&cluster[0], &cluster[1]);
    let run = |arguments: &[&str]| -> Value {
        let id = changed.id().to_string();
        let arguments = [arguments, &["--node", id.as_str(), "--json"]].concat();
        let output = asked.tenon(&arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let info = run(&["segment", "mount", "--size", "32MiB", "--huge-pages", "off"]);
    assert_eq!(
        (&info["state"], &info["node"]),
        (&json!("active"), &json!(changed.id())),
        "{info}"
    );
    let id = info["segment"].to_string();
    let info = run(&["segment", "drain", &id]);
    assert_eq!(info["state"], "draining", "{info}");
    // Another node knows at once that nothing is placed there.
    let request = json!({ "items": [{ "len_bytes": 1 }] });
    wait::until(Duration::from_millis(900), "the other node knows", || {
        let answer = asked.http().post("/v1/placement/dry-run", &request).expect(200).json();
        let nodes = answer["nodes"].as_array().cloned().unwrap_or_default();
        let told = nodes.iter().find(|node| node["node"] == json!(changed.id())).cloned();
        match told.as_ref().map(|told| &told["hint"]["capacity_bytes"]) {
            Some(bytes) if *bytes == SEGMENT_BYTES => Ok(()),
            _ => Err(told),
        }
    });
    let info = run(&["segment", "unmount", &id]);
    assert_eq!(info["state"], "gone", "{info}");
    let again = asked.tenon(&["segment", "unmount", &id, "--node", &changed.id().to_string()]);
    assert_eq!(again.status.code(), Some(7), "{again:?}");
    let text = String::from_utf8_lossy(&asked.tenon(&["segments"]).stdout).into_owned();
    assert!(text.lines().any(|line| line.contains("gone")), "{text}");
    assert_accounts(&cluster);
}

//! Nodes and segments that leave hand over what they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenon_client::{Client, GetItem, GetOutcome, PutItem, PutOptions, default_deadline};
use tenon_integration::account::{assert_accounts, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::node::Node;
use tenon_integration::objects::bytes_of;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::raw::memory_of;
use tenon_integration::wait;
use tenon_protocol::ids::NodeId;
use tenon_protocol::name::Namespace;
use tenon_transport::{Memory, Slice};

const MIB: u64 = 1 << 20;
const BATCH: usize = 128;
const OBJECTS: usize = 10_000;
/// Moving all of them takes a few seconds; a busy machine gets more.
const MOVED_WITHIN: Duration = Duration::from_secs(120);

fn namespace() -> Namespace {
    Namespace::new(Namespace::DEFAULT).expect("the default namespace")
}

fn key(index: usize) -> String {
    format!("drained/{index:05}")
}

fn bytes(index: usize) -> Vec<u8> {
    payload(index as u64, 1 + index % 3000)
}

async fn put_all(client: &Client, holder: NodeId) {
    let options = PutOptions {
        node: Some(holder),
        ..PutOptions::default()
    };
    for first in (0..OBJECTS).step_by(BATCH) {
        let items: Vec<_> = (first..OBJECTS.min(first + BATCH))
            .map(|index| PutItem {
                key: key(index),
                source: memory_of(bytes(index)),
            })
            .collect();
        let results = client
            .put_batch(&namespace(), items, &options, default_deadline(0))
            .await;
        assert!(results.iter().all(Result::is_ok), "{results:?}");
    }
}

async fn assert_all_are_there(client: &Client) {
    find_all(client).await.expect("every node is known to answer or not to");
}

/// Gets all objects; an error says which of them can't be had now. None may be a miss, nor have other bytes.
async fn find_all(client: &Client) -> Result<(), String> {
    for first in (0..OBJECTS).step_by(BATCH) {
        let indices = first..OBJECTS.min(first + BATCH);
        let into: Vec<Slice> = indices
            .clone()
            .map(|index| Arc::new(Memory::from_vec(vec![0; bytes(index).len()])).whole())
            .collect();
        let items = indices.clone().zip(&into);
        let items = items
            .map(|(index, into)| GetItem::whole(key(index), into.clone()))
            .collect();
        let results = client.get_batch(&namespace(), items, default_deadline(0)).await;
        for ((index, into), result) in indices.zip(into).zip(results) {
            let found = result.map_err(|error| format!("{}: {error}", key(index)))?;
            assert!(matches!(found, GetOutcome::Hit(_)), "{}: {found:?}", key(index));
            assert_same(&into.to_vec(), &bytes(index), &key(index));
        }
    }
    Ok(())
}

/// Gives each node one segment that has room for all objects, as its second.
fn enlarge(cluster: &Cluster) {
    for node in cluster.nodes() {
        let spec = json!({ "len_bytes": 128 * MIB, "slots": 2 * OBJECTS });
        assert_eq!(node.http().post("/v1/segments", &spec).expect(201).json()["segment"], 2);
        node.http().delete("/v1/segments/1?timeout_ms=10000").expect(200);
    }
}

fn draining(node: &Node, segment: u64) -> Value {
    let answer = node
        .http()
        .get(&format!("/v1/segments?node={}", node.id()))
        .expect(200)
        .json();
    let segments = answer["segments"].as_array().expect("segments").clone();
    let found = segments.into_iter().find(|info| info["segment"] == segment);
    found.unwrap_or_else(|| panic!("no segment {segment} in {answer}"))["draining"].clone()
}

fn drain(node: &Node, segment: u64) {
    let path = format!("/v1/segments/{segment}/drain");
    let info = node.http().post(&path, &Value::Null).expect(200).json();
    assert_eq!(info["state"], "draining", "{info}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_objects_of_a_drained_segment_none_is_lost() {
    let cluster = Cluster::start_without_eviction(3);
    let holder = &cluster[0];
    enlarge(&cluster);
    put_all(&cluster[1].client().await, holder.id()).await;
    assert_eq!(field(holder, "objects"), OBJECTS as u64);
    let keep = json!({ "namespace": "default", "keys": [key(5)], "keep": { "pin": "hard" } });
    holder.http().post("/v1/keep", &keep).expect(200);
    drain(holder, 2);
    // While they move each is found.
    assert_all_are_there(&cluster[2].client().await).await;
    let done = wait::until(MOVED_WITHIN, "all are moved", || {
        let done = draining(holder, 2);
        (done["left_objects"] == 0).then(|| done.clone()).ok_or(done)
    });
    assert_eq!(
        (&done["moved_objects"], &done["no_room_objects"]),
        (&json!(OBJECTS), &json!(0)),
        "{done}"
    );
    let info = holder
        .http()
        .delete("/v1/segments/2?timeout_ms=10000")
        .expect(200)
        .json();
    assert_eq!(info["draining"]["dropped_objects"], 0, "{info}");
    for reader in cluster.nodes() {
        assert_all_are_there(&reader.client().await).await;
    }
    let held: u64 = [1, 2].map(|other| field(&cluster[other], "objects")).iter().sum();
    assert_eq!(held, OBJECTS as u64, "each is on one node");
    let pinned = [1, 2].map(|other| cluster[other].metric("tenon_objects{pin=\"hard\"}"));
    assert!(
        (pinned.iter().sum::<f64>() - 1.0).abs() < 0.1,
        "the pin has moved with its object: {pinned:?}"
    );
    assert_accounts(&cluster);
}

/// Whether a node says of another one that it drains.
fn is_seen_to_leave(observer: &Http, leaving: NodeId) -> Result<(), Value> {
    let nodes = observer.get("/v1/nodes").expect(200).json();
    let leaving = json!(leaving.to_string());
    let entries = nodes["nodes"].as_array().expect("nodes");
    let seen = entries
        .iter()
        .any(|info| info["node"] == leaving && info["is_draining"] == true);
    if seen { Ok(()) } else { Err(nodes) }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_objects_of_a_node_that_is_asked_to_stop_none_is_lost() {
    let mut cluster = Cluster::start_with(&ClusterOptions {
        nodes: 3,
        // It hands over for three quarters of it.
        more_config: format!(
            "[eviction]\npolicy = \"off\"\n\n[timeouts]\ndrain_ms = {}\n",
            (MOVED_WITHIN * 4 / 3).as_millis()
        ),
        ..ClusterOptions::default()
    });
    enlarge(&cluster);
    put_all(&cluster[1].client().await, cluster[0].id()).await;
    let (leaving, other) = (cluster[0].id(), cluster[2].http());
    let status = std::thread::scope(|scope| {
        let seen = scope.spawn(|| {
            wait::until(MOVED_WITHIN, "others see that it leaves", || {
                is_seen_to_leave(&other, leaving)
            })
        });
        let status = cluster[0].stop_within(2 * MOVED_WITHIN);
        seen.join().expect("it was seen");
        status
    });
    assert_eq!(status.code(), Some(0), "{}", cluster[0].log_tail());
    let log = cluster[0].log_tail();
    assert!(log.contains(&format!("moved={OBJECTS}")), "{log}");
    for reader in [&cluster[1], &cluster[2]] {
        let client = reader.client().await;
        let give_up = Instant::now() + wait::SOON;
        // Homes that are left say what they know when they have noticed.
        while let Err(error) = find_all(&client).await {
            assert!(Instant::now() < give_up, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[test]
fn what_has_no_room_elsewhere_stays_readable_and_moves_when_there_is_room() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        segments_bytes: vec![32 * MIB],
        more_config: "[eviction]\npolicy = \"off\"\n".into(),
        ..ClusterOptions::default()
    });
    let (holder, other) = (&cluster[0], &cluster[1]);
    let bytes_of = |index: u64| payload(index, 1 << 20);
    let assert_kept = || {
        for index in 0..20 {
            let key = format!("kept/{index}");
            let answer = other.http().get_object(&key).expect(200);
            assert_same(answer.bytes(), &bytes_of(index), &key);
        }
    };
    for index in 0..20 {
        other
            .http()
            .put_object_on(&format!("kept/{index}"), &bytes_of(index), holder.id());
        other
            .http()
            .put_object_on(&format!("filler/{index}"), &bytes_of(100 + index), other.id());
    }
    drain(holder, 1);
    wait::until(wait::SOON, "what has room is moved", || {
        let done = draining(holder, 1);
        let is_so = done["moved_objects"] == 12 && done["no_room_objects"] == 8 && done["left_objects"] == 8;
        is_so.then_some(()).ok_or(done)
    });
    assert_kept();
    for index in 0..20 {
        other.http().delete(&Http::object_path(&format!("filler/{index}")));
    }
    wait::until(wait::SOON, "the rest is moved", || {
        let done = draining(holder, 1);
        (done["left_objects"] == 0).then_some(()).ok_or(done)
    });
    assert_kept();
    assert_eq!(field(other, "objects"), 20);
    assert_accounts(&cluster);
}

#[test]
fn a_node_that_is_asked_to_stop_hands_over_what_it_holds_while_it_is_read() {
    let mut cluster = Cluster::start_without_eviction(3);
    let keys: Vec<String> = (0..100).map(|index| format!("left/{index}")).collect();
    for key in &keys {
        cluster[1].http().put_object_on(key, &bytes_of(key), cluster[0].id());
    }
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let readers = [cluster[1].http(), cluster[2].http()];
    std::thread::scope(|scope| {
        for http in &readers {
            let (keys, stop, reads) = (&keys, &stop, &reads);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for key in keys {
                        let answer = http.get(&Http::object_path(key));
                        match answer.status {
                            200 => assert_same(answer.bytes(), &bytes_of(key), key),
                            // The links of a node that has left break before its view says so.
                            502..=504 => {}
                            _ => panic!("GET {key}: {answer:?}"),
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let status = cluster[0].stop();
        assert_eq!(status.code(), Some(0), "{}", cluster[0].log_tail());
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0);
    for http in &readers {
        for key in &keys {
            wait::until(wait::SOON, "a home that is left says what it knows", || {
                let answer = http.get(&Http::object_path(key));
                match answer.status {
                    200 => {
                        assert_same(answer.bytes(), &bytes_of(key), key);
                        Ok(())
                    }
                    502..=504 => Err(format!("{answer:?}")),
                    _ => panic!("GET {key}: {answer:?}"),
                }
            });
        }
    }
    let log = cluster[0].log_tail();
    assert!(log.contains("leaving") && log.contains("moved=100"), "{log}");
}

#[test]
fn a_segment_that_is_unmounted_in_the_middle_of_its_moves_leaves_no_room_set_aside_elsewhere() {
    let cluster = Cluster::start_without_eviction(2);
    let holder = &cluster[0];
    for round in 0..5 {
        let spec = json!({ "len_bytes": 16 * MIB });
        let segment = holder.http().post("/v1/segments", &spec).expect(201).json()["segment"].clone();
        for index in 0..20 {
            let key = format!("torn/{round}/{index}");
            holder.http().put_object_on(&key, &bytes_of(&key), holder.id());
        }
        let segment = segment.as_u64().expect("an id");
        drain(holder, segment);
        holder
            .http()
            .delete(&format!("/v1/segments/{segment}?timeout_ms=10000"))
            .expect(200);
    }
    assert_accounts(&cluster);
}

#[test]
fn a_node_that_cannot_hand_over_ends_within_its_time() {
    let mut cluster = Cluster::start_with(&ClusterOptions {
        nodes: 2,
        more_config: "[eviction]\npolicy = \"off\"\n\n[timeouts]\ndrain_ms = 4000\n".into(),
        ..ClusterOptions::default()
    });
    for index in 0..10 {
        let key = format!("lost/{index}");
        cluster[1].http().put_object_on(&key, &bytes_of(&key), cluster[0].id());
    }
    cluster[1].sigstop();
    let begun = Instant::now();
    let status = cluster[0].stop();
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(0), "{}", cluster[0].log_tail());
    assert!(took < Duration::from_secs(8), "{took:?}");
    let log = cluster[0].log_tail();
    assert!(log.contains("left=10"), "it says what is lost: {log}");
    cluster[1].sigcont();
}

#[test]
fn what_another_node_holds_too_is_let_go_and_not_copied() {
    let cluster = Cluster::start_without_eviction(3);
    let keys: Vec<String> = (0..10).map(|index| format!("twice/{index}")).collect();
    for key in &keys {
        let path = format!("{}?replicas=2", Http::object_path(key));
        cluster[1].http().put(&path, &bytes_of(key)).expect(201);
    }
    let held = |node: &Node| field(node, "objects");
    assert_eq!(cluster.nodes().iter().map(held).sum::<u64>(), 20);
    drain(&cluster[0], 1);
    wait::until(wait::SOON, "nothing is left", || {
        let done = draining(&cluster[0], 1);
        (done["left_objects"] == 0).then_some(()).ok_or(done)
    });
    assert_eq!(held(&cluster[1]) + held(&cluster[2]), 20 - held_before(&cluster[0]));
    for key in &keys {
        for node in cluster.nodes() {
            assert_same(node.http().get_object(key).expect(200).bytes(), &bytes_of(key), key);
        }
    }
    assert_accounts(&cluster);
}

/// What has left a node's only segment since it drains.
fn held_before(node: &Node) -> u64 {
    draining(node, 1)["moved_objects"].as_u64().expect("a number")
}

#[test]
fn of_two_nodes_that_drain_at_the_same_moment_neither_lets_go_because_the_other_one_has_it() {
    const MANY: usize = 200;
    let cluster = Cluster::start_without_eviction(3);
    let unmount = |node: &Node| node.http().delete("/v1/segments/1?timeout_ms=10000").expect(200);
    let mount = |node: &Node| {
        let spec = json!({ "len_bytes": 8 * MIB, "slots": 2 * MANY });
        node.http().post("/v1/segments", &spec).expect(201);
    };
    unmount(&cluster[2]);
    let keys: Vec<String> = (0..MANY).map(|index| format!("both/{index}")).collect();
    for key in &keys {
        let path = format!("{}?replicas=2", Http::object_path(key));
        let stored = cluster[2].http().put(&path, &bytes_of(key)).expect(201).json();
        assert_eq!(stored["copies"], 1, "{stored}");
    }
    // Each of the nodes goes on with another segment: neither is known to leave.
    cluster.nodes().iter().for_each(mount);
    let begin = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for node in &cluster.nodes()[..2] {
            scope.spawn(|| {
                begin.wait();
                drain(node, 1);
            });
        }
    });
    for node in &cluster.nodes()[..2] {
        wait::until(MOVED_WITHIN, "nothing is left", || {
            let done = draining(node, 1);
            (done["left_objects"] == 0).then_some(()).ok_or(done)
        });
        unmount(node);
    }
    for key in &keys {
        for node in cluster.nodes() {
            assert_same(node.http().get_object(key).expect(200).bytes(), &bytes_of(key), key);
        }
    }
    assert_accounts(&cluster);
}

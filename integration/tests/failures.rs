//! Nodes that die, come back, or stop answering: others say so within their deadline, at once from then on, and go on.

use std::time::{Duration, Instant};

use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Answer, Http};
use tenon_integration::node::Node;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::wait;

/// The default deadline of a call on a small object, and some time for a busy machine.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// What "at once" may take on a busy machine: far below any time-out.
const AT_ONCE: Duration = Duration::from_millis(900);
/// Keys on each node: enough that some have each pair of homes.
const KEYS: usize = 8;
const VICTIM: usize = 4;

fn key(holder: usize, index: usize) -> String {
    format!("on {holder}, number {index}")
}

fn bytes(holder: usize, index: usize) -> Vec<u8> {
    payload((holder * 100 + index) as u64, 50_000 + index)
}

/// Five nodes with [`KEYS`] objects on each, put through another.
fn filled() -> Cluster {
    let cluster = Cluster::start(5);
    for holder in 0..5 {
        for index in 0..KEYS {
            let coordinator = cluster[(holder + index) % 5].http();
            coordinator.put_object_on(&key(holder, index), &bytes(holder, index), cluster[holder].id());
        }
    }
    cluster
}

fn timed(call: impl FnOnce() -> Answer) -> (Answer, Duration) {
    let started = Instant::now();
    let answer = call();
    (answer, started.elapsed())
}

/// The victim's objects are `unavailable`, naming it.
fn assert_unavailable(reader: &Node, victim: &Node, index: usize, within: Duration) {
    let (answer, took) = timed(|| reader.http().get_object(&key(VICTIM, index)));
    let answer = answer.expect_error(503, "unavailable");
    assert_eq!(answer.error()["node"], victim.id().to_string(), "{}", answer.json());
    assert!(took < within, "an answer took {took:?}");
}

/// Every object of the other nodes is read at once through every other node, and new ones can be put.
fn assert_others_go_on(cluster: &Cluster, round: usize) {
    for reader in cluster.others(&[VICTIM]) {
        for holder in 0..VICTIM {
            for index in 0..KEYS {
                let (answer, took) = timed(|| reader.http().get_object(&key(holder, index)));
                assert_same(answer.expect(200).bytes(), &bytes(holder, index), &key(holder, index));
                assert!(took < AT_ONCE, "{} took {took:?}", key(holder, index));
            }
        }
        let new = format!("put in round {round} through {}", reader.id());
        let (_, took) = timed(|| {
            reader.http().put_object(&new, new.as_bytes());
            reader.http().get_object(&new).expect(200)
        });
        assert!(took < 2 * AT_ONCE, "a put and get took {took:?}");
    }
}

#[test]
fn a_killed_holder_is_unavailable_within_the_deadline_then_at_once_and_others_go_on() {
    let mut cluster = filled();
    cluster[VICTIM].kill9();
    for reader in cluster.others(&[VICTIM]) {
        assert_unavailable(reader, &cluster[VICTIM], 0, FIRST_ANSWER);
        for index in 0..KEYS {
            assert_unavailable(reader, &cluster[VICTIM], index, AT_ONCE);
        }
    }
    assert_others_go_on(&cluster, 0);
    for node in cluster.others(&[VICTIM]) {
        let listed = node.http().get("/v1/objects?limit=1000").expect(200).json();
        assert_eq!(listed["complete"], false);
        assert_eq!(listed["missing"][0], cluster[VICTIM].id().to_string());
    }
    assert_accounts(&cluster);
}

#[test]
fn a_node_back_on_the_same_port_is_a_new_incarnation_without_its_old_objects() {
    let mut cluster = filled();
    let incarnation = |cluster: &Cluster| {
        let nodes = cluster[0].http().get("/v1/nodes").expect(200).json();
        let entries = nodes["nodes"].as_array().expect("nodes").clone();
        let id = cluster[VICTIM].id().to_string();
        entries
            .iter()
            .find(|entry| entry["node"] == id.as_str())
            .and_then(|entry| entry["incarnation"].as_u64())
            .expect("an incarnation")
    };
    let before = incarnation(&cluster);
    cluster[VICTIM].kill9();
    cluster[VICTIM].restart();
    cluster.wait_all_alive();
    assert!(incarnation(&cluster) > before);

    // Nobody may take the new life for the old one: a miss, from every node, itself among them.
    for reader in cluster.nodes() {
        for index in 0..KEYS {
            reader
                .http()
                .get_object(&key(VICTIM, index))
                .expect_error(404, "not_found");
        }
    }
    assert_others_go_on(&cluster, 0);
    assert_eq!(field(&cluster[VICTIM], "sealed_bytes"), 0);
    for index in 0..KEYS {
        let new = payload(index as u64, 70_000);
        let put = cluster[0]
            .http()
            .put_object_on(&key(VICTIM, index), &new, cluster[VICTIM].id());
        assert_eq!(put["outcome"], "stored", "{put}");
        for reader in cluster.nodes() {
            assert_same(
                reader.http().get_object(&key(VICTIM, index)).expect(200).bytes(),
                &new,
                "the new object",
            );
        }
    }
    assert_accounts(&cluster);
}

#[test]
fn a_halted_peer_costs_its_callers_a_bounded_time_once_and_is_itself_again_afterwards() {
    let cluster = filled();
    cluster[VICTIM].sigstop();
    // Nobody can tell a halted peer from a slow one before its time: who asks now may be told that the deadline passed.
    for reader in cluster.others(&[VICTIM]) {
        let (answer, took) = timed(|| reader.http().get_object(&key(VICTIM, 0)));
        assert!(
            ["unavailable", "deadline_exceeded"].contains(&answer.code().as_str()),
            "{answer:?}"
        );
        assert!(took < FIRST_ANSWER, "an answer took {took:?}");
    }
    // By now it has been silent for longer than the bound at every node.
    for node in cluster.others(&[VICTIM]) {
        wait::until(wait::SOON, "the halted node is unreachable", || {
            let nodes = node.http().get("/v1/nodes").expect(200).json();
            let id = cluster[VICTIM].id().to_string();
            let entry = nodes["nodes"]
                .as_array()
                .and_then(|nodes| nodes.iter().find(|entry| entry["node"] == id.as_str()).cloned());
            match entry {
                Some(entry) if entry["state"] == "unreachable" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        for index in 0..KEYS {
            assert_unavailable(node, &cluster[VICTIM], index, AT_ONCE);
        }
    }
    assert_others_go_on(&cluster, 0);

    cluster[VICTIM].sigcont();
    cluster.wait_all_alive();
    for reader in cluster.nodes() {
        for index in 0..KEYS {
            assert_same(
                reader.http().get_object(&key(VICTIM, index)).expect(200).bytes(),
                &bytes(VICTIM, index),
                "the object",
            );
        }
    }
    assert_others_go_on(&cluster, 1);
    assert_accounts(&cluster);
}

#[test]
fn a_put_to_a_dead_node_is_unavailable_and_leaves_nothing() {
    let mut cluster = Cluster::start(3);
    let path = format!("{}?node={}", Http::object_path("nowhere"), cluster[2].id());
    cluster[2].kill9();
    let (answer, took) = timed(|| cluster[0].http().put(&path, &payload(1, 2 << 20)));
    let answer = answer.expect_error(503, "unavailable");
    assert_eq!(answer.error()["node"], cluster[2].id().to_string());
    assert!(took < FIRST_ANSWER, "{took:?}");
    assert_empty(&cluster);
    assert_eq!(cluster[0].http().put_object("nowhere", b"here")["outcome"], "stored");
    assert_same(
        cluster[1].http().get_object("nowhere").expect(200).bytes(),
        b"here",
        "the object",
    );
    assert_accounts(&cluster);
}

#[test]
fn a_node_that_is_asked_to_stop_ends_with_code_0_and_removes_its_socket() {
    let mut cluster = Cluster::start(2);
    cluster[0].http().put_object("there", b"bytes");
    let socket = cluster[1].unix_endpoint().to_string();
    let socket = socket.strip_prefix("unix:").expect("a unix socket").to_owned();
    assert!(std::path::Path::new(&socket).exists());
    let status = cluster[1].stop();
    assert_eq!(status.code(), Some(0), "{status}\n{}", cluster[1].log_tail());
    assert!(!std::path::Path::new(&socket).exists(), "{socket} is still there");
    assert_same(
        cluster[0].http().get_object("there").expect(200).bytes(),
        b"bytes",
        "the other node goes on",
    );
    cluster[1].restart();
    cluster.wait_all_alive();
    assert_same(
        cluster[1].http().get_object("there").expect(200).bytes(),
        b"bytes",
        "through the restarted node",
    );
    assert_accounts(&cluster);
}

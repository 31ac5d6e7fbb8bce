//! Objects on several nodes: read as long as one of these lives, removed from all. Objects that take the place of others: readers see the one or the
//! other, and after the answer only the new one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::objects::{FOUND_AGAIN, Seen, look};
use tenon_integration::payload::payload;
use tenon_integration::raw::{RawClient, new_put_id};
use tenon_integration::wait;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::message::{PutOutcome, Reply, Request};

const LEN_BYTES: usize = (1 << 20) + 77;

fn cluster(nodes: usize) -> Cluster {
    Cluster::start_with(&ClusterOptions {
        nodes,
        segments_bytes: vec![16 << 20],
        more_config: "[timeouts]\nheartbeat_ms = 200\nunreachable_after_ms = 800\nreservation_ttl_ms = 3000\n"
            .to_owned(),
        ..ClusterOptions::default()
    })
}

/// Puts with these words of the query, which must succeed.
fn put(http: &Http, key: &str, bytes: &[u8], query: &str) -> Value {
    let answer = http.put(&format!("{}?{query}", Http::object_path(key)), bytes);
    assert!(matches!(answer.status, 200 | 201), "put {key:?}: {answer:?}");
    answer.json()
}

/// The indices of the nodes that hold a key's object, as node 0 says.
fn holders(cluster: &Cluster, key: &str) -> Vec<usize> {
    let stat = cluster[0].tenon(&["--json", "stat", key]);
    let stat: Value = serde_json::from_slice(&stat.stdout).expect("JSON");
    let replicas = stat["replicas"].as_array().expect("replicas").clone();
    let index_of = |replica: &Value| {
        let nodes = cluster.nodes().iter();
        let mut ids = nodes.map(|node| node.id().to_string());
        ids.position(|id| replica["holder"] == id.as_str()).expect("a member")
    };
    replicas.iter().map(index_of).collect()
}

/// An object's bytes, if it was sent to its end.
fn whole(http: &Http, key: &str) -> Option<Vec<u8>> {
    let answer = http.get(&Http::object_path(key));
    assert!(matches!(answer.status, 200 | 409), "{answer:?}");
    answer.body.ok().filter(|_| answer.status == 200)
}

/// Waits until a node has the object, byte for byte; meanwhile it is never missed and never another one.
fn wait_found(cluster: &Cluster, reader: usize, key: &str, bytes: &[u8]) {
    let http = cluster[reader].http();
    wait::until(FOUND_AGAIN, "the object is found", || match look(&http, key) {
        Seen::Object(found) => {
            assert!(found == bytes, "other bytes by node {reader}");
            Ok(())
        }
        Seen::Miss => panic!("missed by node {reader}"),
        Seen::NotNow(why) => Err(why),
    });
}

#[test]
fn an_object_on_three_nodes_is_read_while_its_holders_die_one_after_the_other() {
    let mut cluster = cluster(4);
    let bytes = payload(1, LEN_BYTES);
    let stored = put(&cluster[0].http(), "k", &bytes, "replicas=3");
    assert_eq!(stored["copies"], 2, "{stored}");
    let held_by = holders(&cluster, "k");
    assert_eq!(held_by.len(), 3, "{held_by:?}");
    for &victim in &held_by[..2] {
        cluster[victim].kill9();
        for reader in (0..4).filter(|&reader| reader != victim) {
            wait_found(&cluster, reader, "k", &bytes);
        }
        cluster[victim].restart();
        cluster.wait_all_alive();
    }
    // Both came back empty: the last one has it alone.
    for reader in 0..4 {
        wait_found(&cluster, reader, "k", &bytes);
    }
    assert_eq!(holders(&cluster, "k"), held_by[2..]);
}

#[test]
fn a_removal_takes_an_object_from_all_its_nodes() {
    let cluster = cluster(3);
    for index in 0..10 {
        let stored = put(
            &cluster[index % 3].http(),
            &format!("k{index}"),
            &payload(1, 5000),
            "replicas=3",
        );
        assert_eq!(stored["copies"], 2, "{stored}");
    }
    let objects: u64 = cluster.nodes().iter().map(|node| field(node, "objects")).sum();
    assert_eq!(objects, 30);
    for index in 0..10 {
        cluster[2]
            .http()
            .delete(&Http::object_path(&format!("k{index}")))
            .expect(204);
    }
    assert_empty(&cluster);
}

#[test]
fn fewer_replicas_than_asked_for_are_told_and_the_put_is_stored() {
    let cluster = cluster(2);
    let stored = put(&cluster[0].http(), "k", &payload(1, 5000), "replicas=5");
    assert_eq!((&stored["outcome"], &stored["copies"]), (&"stored".into(), &1.into()));
    let file = cluster[1].config_file();
    let file = file.to_str().expect("a path of text");
    let said = cluster[1].tenon(&["put", "--replicas", "3", "k2", file]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("1 of its replicas could not be placed"), "{said}");
    let refused = cluster[0]
        .http()
        .put(&format!("{}?replicas=9", Http::object_path("k3")), b"x");
    refused.expect_error(400, "invalid_argument");
    let id = cluster[0].id();
    let refused = cluster[0]
        .http()
        .put(&format!("{}?replicas=2&node={id}", Http::object_path("k3")), b"x");
    refused.expect_error(400, "invalid_argument");
    // A second put of a key keeps the object, and leaves nothing of its own on either node.
    let kept = put(&cluster[0].http(), "k", &payload(2, 5000), "replicas=2");
    assert_eq!(
        (&kept["outcome"], &kept["copies"]),
        (&"already_exists".into(), &0.into())
    );
    assert_accounts(&cluster);
}

#[test]
fn a_holder_that_dies_while_it_is_written_to_costs_its_replica_and_not_the_put() {
    let cluster = cluster(3);
    cluster[2].sigstop();
    let stored = put(&cluster[0].http(), "k", &payload(1, LEN_BYTES), "replicas=3");
    assert_eq!(stored["outcome"], "stored");
    cluster[2].sigcont();
    for reader in 0..3 {
        wait_found(&cluster, reader, "k", &payload(1, LEN_BYTES));
    }
    assert_accounts(&cluster);
}

#[test]
fn an_object_is_replaced_under_readers_who_see_the_one_or_the_other() {
    const ROUNDS: u64 = 20;
    let cluster = cluster(3);
    put(&cluster[0].http(), "k", &payload(0, LEN_BYTES), "replicas=2");
    let bodies: Vec<Vec<u8>> = (0..=ROUNDS).map(|round| payload(round, LEN_BYTES)).collect();
    let (is_over, newest) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (http, bodies, is_over, newest) = (cluster[reader].http(), &bodies, &is_over, &newest);
            scope.spawn(move || {
                let mut reads = 0;
                while !is_over.load(Ordering::Acquire) || reads == 0 {
                    let oldest = newest.load(Ordering::Acquire);
                    // What is replaced in the middle of being sent breaks off.
                    let Some(found) = whole(&http, "k") else { continue };
                    let round = (0..)
                        .zip(bodies)
                        .find(|(_, body)| **body == found)
                        .map(|(round, _)| round);
                    let round = round.expect("bytes of one of the puts");
                    assert!(
                        round >= oldest,
                        "node {reader} read {round} after {oldest} was answered"
                    );
                    reads += 1;
                }
            });
        }
        for round in 1..=ROUNDS {
            let by = usize::try_from(round).unwrap_or(0) % 3;
            let body = &bodies[usize::try_from(round).unwrap_or(0)];
            let stored = put(&cluster[by].http(), "k", body, "replace=true&replicas=2");
            assert_eq!(stored["outcome"], "stored", "{stored}");
            newest.store(round, Ordering::Release);
        }
        is_over.store(true, Ordering::Release);
    });
    let objects: u64 = cluster.nodes().iter().map(|node| field(node, "objects")).sum();
    assert_eq!(objects, 2, "of all the puts one object is left, on two nodes");
    cluster[0].http().delete(&Http::object_path("k")).expect(204);
    assert_empty(&cluster);
}

#[test]
fn a_replacement_whose_old_holder_stands_still_is_unavailable_stands_and_is_completed_by_repeating_it() {
    let cluster = cluster(3);
    let (old, new) = (payload(1, 5000), payload(2, 5000));
    cluster[0].http().put_object_on("k", &old, cluster[2].id());
    cluster[2].sigstop();
    let path = format!(
        "{}?replace=true&node={}&put_id=00000000000000000000000000000007&timeout_ms=3000",
        Http::object_path("k"),
        cluster[1].id()
    );
    let answer = cluster[0].http().put(&path, &new);
    // Where the node that stands still is also a home, it may be the home that does not answer.
    assert!(matches!(answer.status, 503 | 504), "{answer:?}");
    cluster[2].sigcont();
    let started = Instant::now();
    loop {
        let answer = cluster[0].http().put(&path, &new);
        if matches!(answer.status, 200 | 201) {
            assert_eq!(answer.json()["outcome"], "stored");
            break;
        }
        assert!(started.elapsed() < FOUND_AGAIN, "{answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    for reader in 0..3 {
        wait_found(&cluster, reader, "k", &new);
    }
    wait::until(FOUND_AGAIN, "the old object is dropped", || {
        match field(&cluster[2], "objects") {
            0 => Ok(()),
            objects => Err(objects.to_string()),
        }
    });
}

#[test]
fn of_replacements_at_the_same_time_one_stays_everywhere() {
    let cluster = cluster(3);
    put(&cluster[0].http(), "k", &payload(0, 5000), "replicas=1");
    std::thread::scope(|scope| {
        for by in 0..3 {
            let http = cluster[by].http();
            scope.spawn(move || {
                for round in 0..10 {
                    let body = payload(1 + 10 * by as u64 + round, 5000);
                    let answer = http.put(&format!("{}?replace=true", Http::object_path("k")), &body);
                    assert!(matches!(answer.status, 200 | 201 | 409 | 503), "{answer:?}");
                }
            });
        }
    });
    let seen: Vec<Seen> = (0..3).map(|reader| look(&cluster[reader].http(), "k")).collect();
    assert!(matches!(seen[0], Seen::Object(_)), "{:?}", seen[0]);
    assert!(seen.iter().all(|other| *other == seen[0]), "nodes say different things");
    wait::until(FOUND_AGAIN, "one object is left", || {
        match cluster.nodes().iter().map(|node| field(node, "objects")).sum::<u64>() {
            1 => Ok(()),
            objects => Err(objects.to_string()),
        }
    });
    assert_accounts(&cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_is_repeated_after_its_object_was_evicted_brings_no_copy_of_it_back() {
    let cluster = cluster(3);
    let client = RawClient::dial(cluster[0].advertised()).await;
    let (put_id, bytes) = (new_put_id(), payload(9, LEN_BYTES));
    let mut puts = Vec::new();
    for holder in [1, 2] {
        let holder = Some(cluster[holder].id());
        let put = client.reserve_one(put_id, "k", bytes.len() as u64, holder).await;
        put.write(0, &bytes).await.expect("the bytes can be written");
        puts.push(put);
    }
    // The coordinator died before the second node was to commit its copy.
    let stored = client.commit_one(&puts[0], Checksums::of(&bytes)).await;
    assert_eq!(stored.expect("it is stored").outcome, PutOutcome::Stored);
    cluster[1].http().delete("/v1/segments/1?timeout_ms=10000").expect(200);
    let is_missed = |reader: usize| {
        let answer = cluster[reader].http().get(&Http::object_path("k"));
        (answer.status == 404).then_some(()).ok_or(answer)
    };
    for reader in 0..3 {
        wait::until(wait::SOON, "it is evicted", || is_missed(reader));
    }
    let mut request = puts[0].commit_request(Checksums::of(&bytes));
    let Request::Commit(commit) = &mut request else {
        unreachable!("a commit");
    };
    commit.items[0].holders.push(cluster[2].id());
    let Reply::Commit(repeated) = client.call(&request).await else {
        panic!("a commit is answered as one");
    };
    let repeated = repeated[0].as_ref().expect("it was stored");
    assert_eq!((repeated.outcome, repeated.copies), (PutOutcome::Stored, 0));
    wait::until(wait::SOON, "its region is given back", || {
        match field(&cluster[2], "reserved_bytes") {
            0 => Ok(()),
            left => Err(left),
        }
    });
    for reader in 0..3 {
        is_missed(reader).expect("it does not come back");
    }
    assert_accounts(&cluster);
}

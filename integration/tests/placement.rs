//! Where puts go: another node when the asked one has no room, and numbers when none has.

use serde_json::{Value, json};
use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::node::Node;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::raw::new_put_id;

const MIB: usize = 1 << 20;

/// Fills all but 4 MiB of a node's 64.
fn fill(asked: &Node, full: &Node) {
    asked
        .http()
        .put_object_on(&format!("filler/{}", full.id()), &payload(9, 60 * MIB), full.id());
}

fn spreading(nodes: usize) -> Cluster {
    Cluster::start_with(&ClusterOptions {
        nodes,
        more_config: "[placement]\naffinity = \"spread\"\n".into(),
        ..ClusterOptions::default()
    })
}

fn dry_run(node: &Node, lens_bytes: &[usize]) -> Value {
    let items: Vec<Value> = lens_bytes
        .iter()
        .map(|len_bytes| json!({ "len_bytes": len_bytes }))
        .collect();
    let answer = node.http().post("/v1/placement/dry-run", &json!({ "items": items }));
    answer.expect(200).json()
}

#[test]
fn a_put_asked_at_a_full_node_lands_on_another_and_is_read_through_all() {
    let cluster = Cluster::start_without_eviction(3);
    let [full, others @ ..] = cluster.nodes() else {
        unreachable!()
    };
    fill(full, full);
    let bytes = payload(1, 8 * MIB);
    full.http().put_object("elsewhere", &bytes);
    for node in cluster.nodes() {
        assert_same(
            node.http().get_object("elsewhere").expect(200).bytes(),
            &bytes,
            "elsewhere",
        );
    }
    assert_eq!(field(full, "objects"), 1, "the filler alone");
    assert_eq!(others.iter().map(|node| field(node, "objects")).sum::<u64>(), 1);
    let placed = ["self", "other"].map(|on| full.metric(&format!("tenon_placed_total{{on=\"{on}\"}}")));
    assert!(
        placed.iter().all(|&count| (count - 1.0).abs() < f64::EPSILON),
        "{placed:?}"
    );
    assert_accounts(&cluster);
}

#[test]
fn room_that_was_just_freed_elsewhere_is_found() {
    let cluster = Cluster::start_without_eviction(2);
    for round in 0..5 {
        for node in cluster.nodes() {
            fill(&cluster[0], node);
        }
        // Nobody has told the other node yet when the next put asks it.
        let filler = Http::object_path(&format!("filler/{}", cluster[1].id()));
        assert_eq!(cluster[1].http().delete(&filler).status / 100, 2);
        let key = format!("round {round}");
        cluster[0].http().put_object(&key, &payload(round, 20 * MIB));
        for key in [key, format!("filler/{}", cluster[0].id())] {
            assert_eq!(cluster[0].http().delete(&Http::object_path(&key)).status / 100, 2);
        }
    }
    assert_empty(&cluster);
}

#[test]
fn a_batch_that_no_single_node_holds_is_spread_over_those_that_do() {
    let cluster = Cluster::start_without_eviction(3);
    let http = cluster[0].http();
    let items: Vec<Value> = (0..15)
        .map(|item| json!({ "key": format!("batch/{item}"), "len_bytes": 10 * MIB }))
        .collect();
    let put_id = new_put_id();
    let request = json!({ "namespace": "default", "put_id": put_id, "items": items });
    let answer = http.post("/v1/reserve", &request).expect(200).json();
    let reserved = answer["items"].as_array().expect("items");
    assert_eq!(reserved.len(), 15);
    for item in reserved {
        assert!(item["ok"]["replicas"][0]["holder"].is_string(), "{item}");
    }
    let reservations: Vec<u64> = cluster.nodes().iter().map(|node| field(node, "reservations")).collect();
    assert_eq!(reservations.iter().sum::<u64>(), 15);
    assert!(reservations.iter().all(|&count| count <= 6), "{reservations:?}");
    // Each node has 4 MiB left at least: three more objects of 10 MiB find room, a fourth does not.
    let items: Vec<Value> = (0..4)
        .map(|item| json!({ "key": format!("rest/{item}"), "len_bytes": 10 * MIB }))
        .collect();
    let request = json!({ "namespace": "default", "put_id": put_id, "items": items });
    let answer = http.post("/v1/reserve", &request).expect(200).json();
    let codes: Vec<&Value> = answer["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|item| item["error"].get("code"))
        .collect();
    assert_eq!(codes, ["no_space"], "{answer}");
    let keys = (0..15).map(|item| format!("batch/{item}"));
    let aborted: Vec<Value> = keys
        .chain((0..4).map(|item| format!("rest/{item}")))
        .map(|key| json!({ "key": key }))
        .collect();
    let request = json!({ "namespace": "default", "put_id": put_id, "items": aborted });
    http.post("/v1/abort", &request).expect(200);
    assert_empty(&cluster);
}

#[test]
fn a_put_that_no_node_can_hold_fails_in_numbers_through_every_interface() {
    let cluster = Cluster::start_without_eviction(3);
    for node in cluster.nodes() {
        fill(&cluster[0], node);
    }
    let error = cluster[0]
        .http()
        .put(&Http::object_path("too much"), &payload(1, 5 * MIB))
        .expect_error(507, "no_space")
        .error();
    let expected = json!({
        "asked_bytes": 5 * MIB,
        "free_bytes": 12 * MIB,
        "largest_free_bytes": 4 * MIB,
        "evictable_bytes": 0,
        "held_bytes": 0,
        "largest_segment_bytes": 64 * MIB,
        "entries_looked_at": 3,
        "stop_reason": "nothing_fits",
    });
    assert_eq!(error["no_space"], expected);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, payload(1, 5 * MIB)).expect("a file");
    let output = cluster[0].tenon(&["put", "too much", file.to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    for number in ["5.00 MiB", "12.00 MiB", "4.00 MiB"] {
        assert!(said.contains(number), "{number} is missing in {said}");
    }
    assert!(cluster[1].metric("tenon_allocation_failures_total{reason=\"nothing_fits\"}") >= 2.0);
    assert!(cluster[0].metric("tenon_placement_failures_total{code=\"no_space\"}") >= 2.0);
    assert_accounts(&cluster);
}

/// Reserves room for one object; the error if there is none.
fn reserve(node: &Node, key: &str, len_bytes: usize) -> Option<Value> {
    let items = json!([{ "key": key, "len_bytes": len_bytes }]);
    let request = json!({ "namespace": "default", "put_id": new_put_id(), "items": items });
    let answer = node.http().post("/v1/reserve", &request).expect(200).json();
    answer["items"][0].get("error").cloned()
}

#[test]
fn nodes_whose_segments_are_all_too_short_tell_their_numbers_too() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 3,
        more_config: "[eviction]\npolicy = \"off\"\n".into(),
        config_of: vec![String::new(), "[[segments]]\nsize = \"96MiB\"\n".into()],
        ..ClusterOptions::default()
    });
    let asked = &cluster[0];
    let error = reserve(asked, "too large", 100 * MIB).expect("no segment is as long");
    assert_eq!(error["code"], "object_too_large");
    let message = error["message"].as_str().expect("a message");
    assert!(message.ends_with(&format!("which has {}", 96 * MIB)), "{message}");
    let numbers = &error["no_space"];
    let told = ["asked_bytes", "free_bytes", "largest_segment_bytes"].map(|number| numbers[number].clone());
    assert_eq!(
        told,
        [100 * MIB, (3 * 64 + 96) * MIB, 96 * MIB].map(Value::from),
        "{numbers}"
    );
    assert_eq!(numbers["stop_reason"], "too_large");
    assert_eq!(reserve(asked, "first", 80 * MIB), None, "the long segment holds it");
    let error = reserve(asked, "second", 80 * MIB).expect("and nothing else");
    assert_eq!(error["code"], "no_space");
    let numbers = &error["no_space"];
    let told = [
        "free_bytes",
        "largest_free_bytes",
        "largest_segment_bytes",
        "entries_looked_at",
    ]
    .map(|number| numbers[number].clone());
    let expected = [(3 * 64 + 16) * MIB, 64 * MIB, 96 * MIB, 4].map(Value::from);
    assert_eq!(told, expected, "those of all nodes: {numbers}");
    assert_eq!(numbers["stop_reason"], "all_nodes_refused");
}

#[test]
fn a_dead_node_keeps_no_put_from_one_that_has_room() {
    let mut cluster = Cluster::start_without_eviction(3);
    fill(&cluster[0], &cluster[0]);
    cluster[1].kill9();
    cluster[0].http().put_object("elsewhere", &payload(1, 8 * MIB));
    assert_eq!(field(&cluster[2], "objects"), 1);
    let answer = cluster[0]
        .http()
        .put(&Http::object_path("too much"), &payload(2, 60 * MIB));
    // The dead node is asked in vain until it is known not to answer; then there is no space where puts may go.
    assert!(
        ["unavailable", "no_space"].contains(&answer.code().as_str()),
        "{answer:?}"
    );
}

#[test]
fn puts_are_spread_over_all_nodes_where_that_is_configured() {
    let cluster = spreading(3);
    for key in 0..60 {
        cluster[0]
            .http()
            .put_object(&format!("spread/{key}"), &payload(key, MIB / 2));
    }
    let objects: Vec<u64> = cluster.nodes().iter().map(|node| field(node, "objects")).collect();
    assert!(objects.iter().all(|&count| count >= 12), "{objects:?}");
    assert_accounts(&cluster);
}

#[test]
fn a_dry_run_explains_a_decision_and_sets_nothing_aside() {
    let cluster = Cluster::start_without_eviction(3);
    let asked = &cluster[0];
    let near = dry_run(asked, &[MIB]);
    let own = json!(asked.id());
    assert_eq!(
        (near["steps"].as_array().map(Vec::len), &near["steps"][0]["node"]),
        (Some(1), &own)
    );
    assert_eq!(near["steps"][0]["because"], "local");
    assert_eq!(near["items"][0]["ok"]["node"], own);
    assert_eq!(near["policy"]["fallback"], "indexed");
    fill(asked, asked);
    let far = dry_run(asked, &[8 * MIB]);
    let of_asked = far["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .find(|node| node["node"] == own);
    assert_eq!(of_asked.expect("the asked node")["fit"], "no_fit", "{far}");
    assert_ne!(far["steps"][0]["node"], own);
    assert_ne!(far["items"][0]["ok"]["node"], own);
    let none = dry_run(asked, &[64 * MIB, 65 * MIB]);
    let codes: Vec<_> = (0..2)
        .map(|item| none["items"][item].get("error").map(|error| error["code"].clone()))
        .collect();
    assert_eq!(codes, [None, Some("object_too_large".into())], "{none}");
    for node in &cluster.nodes()[1..] {
        fill(asked, node);
    }
    let none = dry_run(asked, &[8 * MIB]);
    assert_eq!(none["items"][0]["error"]["no_space"]["free_bytes"], 12 * MIB, "{none}");
    assert_eq!(
        none["steps"].as_array().map(Vec::len),
        Some(3),
        "every node was asked: {none}"
    );
    for node in cluster.nodes() {
        assert_eq!(field(node, "reservations"), 0);
    }
    let refusal = asked.http().post("/v1/placement/dry-run", &json!({ "items": [] }));
    refusal.expect_error(400, "invalid_argument");
    assert_accounts(&cluster);
}

#[test]
fn the_objects_of_a_dry_run_lie_beside_each_other() {
    let cluster = Cluster::start_without_eviction(3);
    let asked = &cluster[0];
    for node in cluster.nodes() {
        fill(asked, node);
    }
    let played = dry_run(asked, &[3 * MIB; 4]);
    let items = played["items"].as_array().expect("items");
    let mut holders: Vec<&str> = items.iter().filter_map(|item| item["ok"]["node"].as_str()).collect();
    holders.sort_unstable();
    holders.dedup();
    assert_eq!(holders.len(), 3, "one hole on each node: {played}");
    let refused: Vec<&Value> = items.iter().filter_map(|item| item.get("error")).collect();
    assert_eq!(refused.len(), 1, "and none for the fourth: {played}");
    assert_eq!(refused[0]["code"], "no_space");
    for item in 0..3 {
        assert_eq!(reserve(asked, &format!("real/{item}"), 3 * MIB), None);
    }
    assert_eq!(
        reserve(asked, "real/3", 3 * MIB).expect("as was said")["code"],
        "no_space"
    );
}

#[test]
fn a_map_has_every_byte_of_a_segment_once() {
    let cluster = Cluster::start_without_eviction(2);
    let http = cluster[0].http();
    for key in 0..5 {
        http.put_object(&format!("map/{key}"), &payload(key, MIB + 100));
    }
    for key in [1, 3] {
        assert_eq!(http.delete(&Http::object_path(&format!("map/{key}"))).status / 100, 2);
    }
    let page = |from_bytes: &Value| {
        let node = cluster[0].id();
        let path = format!("/v1/segments/1/map?limit=2&from_bytes={from_bytes}&node={node}");
        cluster[1].http().get(&path).expect(200).json()
    };
    let state = |answer: &Value| (answer["incarnation"].as_u64(), answer["version"].as_u64());
    let first = state(&page(&json!(0)));
    let (mut runs, mut next_bytes) = (Vec::new(), json!(0));
    while !next_bytes.is_null() {
        let answer = page(&next_bytes);
        assert_eq!(state(&answer), first, "pages of one map");
        let found = answer["runs"].as_array().expect("runs").clone();
        assert!(found.len() <= 2);
        runs.extend(found);
        next_bytes = answer["next_bytes"].clone();
    }
    let states: Vec<&str> = runs.iter().filter_map(|run| run["state"].as_str()).collect();
    assert_eq!(states, ["sealed", "free", "sealed", "free", "sealed", "free"]);
    let mut end_bytes = 0;
    for run in &runs {
        assert_eq!(run["offset_bytes"], end_bytes, "{runs:?}");
        assert_eq!(run["age_ms"].is_null(), run["state"] == "free");
        end_bytes += run["len_bytes"].as_u64().expect("a number");
    }
    assert_eq!(end_bytes, 64 << 20);
    http.put_object("map/later", &payload(7, 100));
    let later = state(&page(&json!(0)));
    assert!(later.0 == first.0 && later.1 > first.1, "{first:?} and then {later:?}");
    let ratio = cluster[0].metric("tenon_segment_fragmentation_ratio{segment=\"1\"}");
    assert!((0.02..0.05).contains(&ratio), "{ratio}");
    http.get("/v1/segments/9/map").expect_error(404, "unknown_segment");
    http.get("/v1/segments/x/map").expect_error(400, "invalid_argument");
    assert_accounts(&cluster);
}

/// As many puts at the same time as there are holes that hold one: each finds its own, whatever the others ask meanwhile. Those that are asked have none
/// themselves, and what they know of the others is old.
#[test]
fn of_as_many_puts_as_there_is_room_for_none_is_refused() {
    const ROUNDS: usize = 100;
    const ASKED: usize = 2;
    const PUTS: usize = 3;
    let cluster = Cluster::start_without_eviction(ASKED + PUTS);
    for (index, node) in cluster.nodes().iter().enumerate() {
        let left = if index < ASKED { 0 } else { 2 * MIB };
        let key = format!("filler/{}", node.id());
        cluster[0]
            .http()
            .put_object_on(&key, &payload(9, 64 * MIB - left), node.id());
    }
    let bytes = payload(1, MIB + MIB / 2);
    let put = |round: usize, index: usize| {
        let key = Http::object_path(&format!("round {round}/{index}"));
        let answer = cluster[index % ASKED].http().put(&key, &bytes);
        (key, answer)
    };
    let mut refused = Vec::new();
    for round in 0..ROUNDS {
        let put = &put;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let puts: Vec<_> = (0..PUTS).map(|index| scope.spawn(move || put(round, index))).collect();
            puts.into_iter().map(|put| put.join().expect("a put")).collect()
        });
        for (key, answer) in answers {
            if answer.status / 100 == 2 {
                assert_eq!(cluster[0].http().delete(&key).status / 100, 2);
            } else {
                refused.push((round, answer.error()));
            }
        }
    }
    assert!(
        refused.is_empty(),
        "{} of {} were refused: {refused:?}",
        refused.len(),
        ROUNDS * PUTS
    );
    assert_accounts(&cluster);
}

/// The same of batches: each node has room for two items, and two batches of three are reserved at the same time.
#[test]
fn of_as_many_items_of_batches_as_there_is_room_for_none_is_refused() {
    const ROUNDS: usize = 60;
    const ASKED: usize = 2;
    const ITEMS: usize = 3;
    let cluster = Cluster::start_without_eviction(ASKED + ITEMS);
    for (index, node) in cluster.nodes().iter().enumerate() {
        let left = if index < ASKED { 0 } else { 4 * MIB };
        let key = format!("filler/{}", node.id());
        cluster[0]
            .http()
            .put_object_on(&key, &payload(9, 64 * MIB - left), node.id());
    }
    let put_id = new_put_id();
    let reserve = |asked: usize| {
        let items: Vec<Value> = (0..ITEMS)
            .map(|item| json!({ "key": format!("{asked}/{item}"), "len_bytes": 2 * MIB - item }))
            .collect();
        let request = json!({ "namespace": "default", "put_id": put_id, "items": items });
        let answer = cluster[asked].http().post("/v1/reserve", &request).expect(200).json();
        answer["items"].as_array().expect("items").clone()
    };
    let abort = |asked: usize| {
        let items: Vec<Value> = (0..ITEMS)
            .map(|item| json!({ "key": format!("{asked}/{item}") }))
            .collect();
        let request = json!({ "namespace": "default", "put_id": put_id, "items": items });
        cluster[asked].http().post("/v1/abort", &request).expect(200);
    };
    for round in 0..ROUNDS {
        let reserve = &reserve;
        let answers: Vec<Value> = std::thread::scope(|scope| {
            let batches: Vec<_> = (0..ASKED).map(|asked| scope.spawn(move || reserve(asked))).collect();
            batches
                .into_iter()
                .flat_map(|batch| batch.join().expect("a batch"))
                .collect()
        });
        let refused: Vec<&Value> = answers.iter().filter(|answer| answer.get("ok").is_none()).collect();
        assert!(refused.is_empty(), "round {round}: {refused:?} of {answers:?}");
        (0..ASKED).for_each(abort);
    }
}

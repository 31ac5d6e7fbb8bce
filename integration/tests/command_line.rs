//! `tenon` as people and scripts use it.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tenon_client::{PutItem, PutOptions, default_deadline};
use tenon_integration::account::{assert_accounts, assert_empty};
use tenon_integration::binaries::binaries;
use tenon_integration::cluster::{Cluster, write_private};
use tenon_integration::node::Node;
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::raw::memory_of;
use tenon_protocol::name::Namespace;

/// Exit codes, as `tenon --help` has them.
const MISS: i32 = 1;
const USAGE: i32 = 2;
const UNAVAILABLE: i32 = 3;
const NO_SPACE: i32 = 4;
const REFUSED: i32 = 6;
const INVALID: i32 = 7;

#[track_caller]
fn assert_code(output: &Output, code: i32) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    let lines = said.lines().count();
    match code {
        0 => assert_eq!(lines, 0, "success says nothing on stderr: {said}"),
        USAGE => assert!(lines > 0, "wrong usage is explained"),
        _ => assert_eq!(lines, 1, "an error has one line: {said}"),
    }
}

#[track_caller]
fn json(output: &Output) -> Value {
    assert_code(output, 0);
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stdout)))
}

/// Runs `tenon` with bytes on its standard input.
fn tenon_with_input(node: &Node, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = node
        .tenon_command()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tenon starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that refuses may end before it has read everything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("its output can be read");
    writer.join().expect("the writer");
    output
}

#[test]
fn files_and_pipes_go_in_and_come_out() {
    let cluster = Cluster::start(2);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    let bytes = payload(1, (2 << 20) + 17);
    std::fs::write(path("in"), &bytes).expect("the file can be written");

    assert_code(&cluster[0].tenon(&["put", "from a file", &path("in")]), 0);
    assert_code(&tenon_with_input(&cluster[0], &["put", "from a pipe", "-"], &bytes), 0);
    for key in ["from a file", "from a pipe"] {
        assert_code(&cluster[1].tenon(&["get", key, "-o", &path("out")]), 0);
        assert_same(&std::fs::read(path("out")).expect("the file"), &bytes, key);
        let piped = cluster[1].tenon(&["get", key]);
        assert_code(&piped, 0);
        assert_same(&piped.stdout, &bytes, key);
        let piped = cluster[1].tenon_over_tcp(&["get", key, "-o", "-"]);
        assert_code(&piped, 0);
        assert_same(&piped.stdout, &bytes, key);
    }
    assert_accounts(&cluster);
}

#[test]
fn every_command_has_a_form_for_programs() {
    let cluster = Cluster::start(2);
    let holder = cluster[1].id().to_string();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("file");
    std::fs::write(&file, payload(1, 70_000)).expect("the file can be written");
    let file = file.to_str().expect("a path in UTF-8");

    let put = json(&cluster[0].tenon(&["--json", "put", "--node", &holder, "dir/key", file]));
    assert_eq!(put["outcome"], "stored", "{put}");
    let again = json(&cluster[0].tenon(&["--json", "put", "dir/key", file]));
    assert_eq!(again["outcome"], "already_exists", "{again}");
    assert!(
        again["len_bytes"].is_null() && again["holders"].is_null(),
        "they would be those of what was not stored: {again}"
    );
    let put_id = "00000000000000000000000000000007";
    for _repeated in 0..2 {
        let put = json(&cluster[0].tenon(&["--json", "put", "--put-id", put_id, "repeated", file]));
        assert_eq!(put["outcome"], "stored", "{put}");
    }
    json(&cluster[0].tenon(&["--json", "rm", "repeated"]));
    let stat = json(&cluster[0].tenon(&["--json", "stat", "dir/key"]));
    assert_eq!(stat["len_bytes"], 70_000, "{stat}");
    assert!(stat.to_string().contains(&holder), "{stat}");
    let listed = json(&cluster[0].tenon(&["--json", "ls", "dir/"]));
    assert_eq!(listed["entries"][0]["key"], "dir/key", "{listed}");
    let nodes = json(&cluster[0].tenon(&["--json", "nodes"]));
    assert_eq!(nodes["nodes"].as_array().map(Vec::len), Some(2), "{nodes}");
    let segments = json(&cluster[0].tenon(&["--json", "segments"]));
    assert_eq!(segments["segments"].as_array().map(Vec::len), Some(2), "{segments}");
    json(&cluster[0].tenon(&["--json", "rm", "dir/key"]));
    assert_empty(&cluster);
}

#[test]
fn commands_show_people_what_they_ask_for() {
    let cluster = Cluster::start(2);
    cluster[1].http().put_object("shown/key", &payload(1, 70_000));
    for (arguments, shown) in [
        (&["ls"][..], "shown/key"),
        (&["ls", "shown/"], "shown/key"),
        (&["put", "--pin", "shown/key", "/etc/hostname"], "does not get the pin"),
        (&["stat", "shown/key"], "70000"),
        (&["nodes"], &cluster[1].id().to_string()),
        (&["segments"], "memfd"),
    ] {
        let output = cluster[0].tenon(arguments);
        assert_code(&output, 0);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(shown), "{arguments:?} does not show {shown}: {said}");
    }
    assert_code(&cluster[0].tenon(&["rm", "shown/key"]), 0);
    assert_empty(&cluster);
}

#[test]
fn exit_codes_tell_errors_apart_and_each_has_one_line() {
    let cluster = Cluster::start_without_eviction(2);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("a path in UTF-8").to_owned();
    std::fs::write(path("small"), b"bytes").expect("the file can be written");
    std::fs::write(path("empty"), b"").expect("the file can be written");
    std::fs::write(path("large"), payload(1, 40 << 20)).expect("the file can be written");
    write_private(&dir.path().join("secret"), "the secret of some other cluster");
    let node = &cluster[0];

    for arguments in [&["get", "nothing"][..], &["stat", "nothing"], &["rm", "nothing"]] {
        assert_code(&node.tenon(arguments), MISS);
    }
    assert_code(&node.tenon(&["get", "nothing", "-o", &path("not there")]), MISS);
    assert!(!dir.path().join("not there").exists(), "a miss makes no file");
    assert_code(&node.tenon(&["got", "nothing"]), USAGE);
    assert_code(&node.tenon(&["put"]), USAGE);
    assert_code(&node.tenon(&["get", ""]), INVALID);
    assert_code(&node.tenon(&["get", "line\nbreak"]), INVALID);
    assert_code(&node.tenon(&["get", &"x".repeat(1025)]), INVALID);
    assert_code(&node.tenon(&["put", "empty", &path("empty")]), INVALID);
    assert_code(
        &node.tenon(&["put", "--node", &"ee".repeat(16), "key", &path("small")]),
        INVALID,
    );
    for filler in ["here", "there"] {
        assert_code(&node.tenon(&["put", filler, &path("large")]), 0);
    }
    assert_code(&node.tenon(&["put", "too much", &path("large")]), NO_SPACE);
    assert_code(&node.tenon(&["rm", "here"]), 0);
    assert_code(&node.tenon(&["rm", "there"]), 0);

    let tenon = |arguments: &[&str]| {
        let mut command = Command::new(&binaries().tenon);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("tenon starts")
    };
    let nobody = format!("unix:{}", path("no socket"));
    assert_code(
        &tenon(&["--connect", &nobody, "--timeout-ms", "1000", "nodes"]),
        UNAVAILABLE,
    );
    let link = node.link_endpoint().to_string();
    let cluster_name = tenon_integration::cluster::CLUSTER_NAME;
    let refused = [
        "--connect",
        &link,
        "--cluster",
        cluster_name,
        "--secret-file",
        &path("secret"),
        "nodes",
    ];
    assert_code(&tenon(&refused), REFUSED);
    assert_code(
        &tenon(&["--connect", &link, "--cluster", cluster_name, "nodes"]),
        REFUSED,
    );
    assert_empty(&cluster);
}

#[test]
fn what_keeps_the_command_from_its_agent_is_named_with_what_helps() {
    let cluster = Cluster::start(1);
    let tenon = |arguments: &[&str]| {
        let output = Command::new(&binaries().tenon)
            .args(arguments)
            .output()
            .expect("tenon starts");
        assert_code(&output, REFUSED);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = tenon(&["--connect", &cluster[0].http_address().to_string(), "nodes"]);
    assert!(
        said.contains("not that of HTTP") && !said.contains("--secret-file"),
        "{said}"
    );
    let link = cluster[0].link_endpoint().to_string();
    let said = tenon(&["--connect", &link, "--cluster", "another", "nodes"]);
    assert!(
        said.contains("does not belong to cluster \"another\": --cluster"),
        "{said}"
    );
}

#[test]
fn a_dead_holder_is_named_within_the_callers_deadline() {
    let mut cluster = Cluster::start(3);
    cluster[0].http().put_object_on("lost", b"bytes", cluster[2].id());
    cluster[2].kill9();
    let started = std::time::Instant::now();
    let get = cluster[0].tenon(&["--timeout-ms", "3000", "get", "lost"]);
    assert_code(&get, UNAVAILABLE);
    assert!(started.elapsed().as_millis() < 4500, "{:?}", started.elapsed());
    assert!(
        String::from_utf8_lossy(&get.stderr).contains(&cluster[2].id().to_string()),
        "{get:?}"
    );
    assert_accounts(&cluster);
}

#[test]
fn a_removal_that_a_dead_holder_has_not_confirmed_is_told_as_done_and_by_whom_it_is_not_confirmed() {
    let mut cluster = Cluster::start(3);
    cluster[0].http().put_object_on("gone", b"bytes", cluster[2].id());
    cluster[0].http().put_object_on("gone too", b"bytes", cluster[2].id());
    cluster[2].kill9();
    let removed = cluster[0].tenon(&["rm", "gone"]);
    assert_code(&removed, 0);
    let (said, holder) = (String::from_utf8_lossy(&removed.stdout), cluster[2].id().to_string());
    assert!(said.starts_with("removed \"gone\"") && said.contains(&holder), "{said}");
    let removed = json(&cluster[0].tenon(&["--json", "rm", "gone too"]));
    let expected = serde_json::json!([{ "key": "gone too", "removed": true, "waits_for": holder }]);
    assert_eq!(removed["results"], expected);
    assert_code(&cluster[0].tenon(&["get", "gone"]), MISS);
    assert_accounts(&cluster);
}

/// Puts tiny objects at a node, on whichever it takes.
async fn put_many(cluster: &Cluster, keys: impl Iterator<Item = String>) {
    let items: Vec<_> = keys
        .map(|key| PutItem {
            source: memory_of(key.as_bytes().to_vec()),
            key,
        })
        .collect();
    let client = cluster[0].client().await;
    let namespace = Namespace::new(Namespace::DEFAULT).expect("the default namespace");
    let stored = client
        .put_batch(&namespace, items, &PutOptions::default(), default_deadline(0))
        .await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
}

/// The first is more than one page of a listing.
#[tokio::test(flavor = "multi_thread")]
async fn all_that_begins_with_a_prefix_is_removed_and_nothing_else() {
    let cluster = Cluster::start(3);
    put_many(&cluster, (0..1100).map(|index| format!("a/{index}"))).await;
    put_many(&cluster, ["a", "ab", "b/1"].into_iter().map(String::from)).await;
    cluster[2]
        .http()
        .put_object_on("a/on another", b"bytes", cluster[2].id());
    let removed = json(&cluster[1].tenon(&["--json", "rm", "--prefix", "a/"]));
    let expected = serde_json::json!({ "removed": 1101, "failed": [], "complete": true, "missing": [] });
    assert_eq!(removed, expected);
    let left = json(&cluster[2].tenon(&["--json", "ls"]));
    let left: Vec<&str> = left["entries"]
        .as_array()
        .expect("entries")
        .iter()
        .filter_map(|entry| entry["key"].as_str())
        .collect();
    assert_eq!(left, ["a", "ab", "b/1"]);
    // Neither is a forgotten prefix the whole namespace, nor do keys and a prefix go together.
    for arguments in [
        &["rm"][..],
        &["rm", "--prefix", ""],
        &["rm", "--prefix", "a", "b/1"],
        &["rm", "--all", "b/1"],
        &["rm", "--all", "--prefix", "a"],
    ] {
        assert_code(&cluster[0].tenon(arguments), USAGE);
    }
    let unset = cluster[0].tenon(&["rm", "--prefix", ""]);
    assert!(
        String::from_utf8_lossy(&unset.stderr).contains("say --all"),
        "{unset:?}"
    );
    let whole = cluster[0].tenon(&["rm", "--all"]);
    assert_eq!(String::from_utf8_lossy(&whole.stdout), "removed 3 objects\n");
    assert_empty(&cluster);
}

#[test]
fn a_removal_of_a_prefix_says_which_nodes_did_not_say_what_they_hold() {
    let mut cluster = Cluster::start(3);
    cluster[0].http().put_object_on("p/here", b"bytes", cluster[0].id());
    cluster[0].http().put_object_on("p/dead", b"bytes", cluster[2].id());
    cluster[2].kill9();
    let removed = cluster[0].tenon(&["--json", "rm", "--prefix", "p/"]);
    assert_code(&removed, UNAVAILABLE);
    let told: Value = serde_json::from_slice(&removed.stdout).expect("JSON");
    assert_eq!(
        (&told["removed"], &told["complete"]),
        (&1.into(), &false.into()),
        "{told}"
    );
    assert_eq!(
        told["missing"],
        serde_json::json!([cluster[2].id().to_string()]),
        "{told}"
    );
    assert_accounts(&cluster);
}

#[test]
fn help_and_version_need_no_agent() {
    for binary in [&binaries().tenon, &binaries().tenond] {
        for flag in ["--help", "--version"] {
            let output = Command::new(binary).arg(flag).output().expect("it starts");
            assert_eq!(output.status.code(), Some(0), "{flag}");
            assert!(!output.stdout.is_empty());
        }
    }
    let help = Command::new(&binaries().tenon)
        .arg("--help")
        .output()
        .expect("tenon starts");
    let help = String::from_utf8_lossy(&help.stdout);
    for word in [
        "put",
        "get",
        "ls",
        "rm",
        "stat",
        "nodes",
        "segments",
        "doctor",
        "xit codes",
    ] {
        assert!(help.contains(word), "{word:?} is missing in: {help}");
    }
}

#[test]
fn an_object_with_another_fingerprint_is_a_miss_for_who_asks_for_one() {
    let cluster = Cluster::start(2);
    let file = cluster[0].config_file();
    let file = file.to_str().expect("a path of text");
    assert_code(&cluster[0].tenon(&["put", "--fingerprint", "ab01", "k", file]), 0);
    assert_code(&cluster[1].tenon(&["get", "--fingerprint", "AB01", "k"]), 0);
    assert_code(&cluster[1].tenon(&["get", "--fingerprint", "ab02", "k"]), 1);
    assert_eq!(json(&cluster[1].tenon(&["--json", "stat", "k"]))["fingerprint"], "ab01");
    let http = cluster[1].http();
    let found = http.get("/v1/objects/k?fingerprint=ab01").expect(200);
    assert_eq!(found.header("tenon-fingerprint"), Some("ab01"));
    http.get("/v1/objects/k?fingerprint=ab").expect_error(404, "not_found");
    assert_eq!(http.get("/v1/objects/k?fingerprint=xy").status, 400);
    http.put("/v1/objects/h?fingerprint=00ff", b"bytes").expect(201);
    assert_code(&cluster[0].tenon(&["get", "--fingerprint", "00ff", "h"]), 0);
}

#[test]
fn pins_are_shown_object_by_object() {
    let cluster = Cluster::start(2);
    let http = cluster[0].http();
    http.put("/v1/objects/hard?pin=true", b"1").expect(201);
    http.put("/v1/objects/soft?soft_pin_ms=60000", b"1").expect(201);
    http.put("/v1/objects/none", b"1").expect(201);
    let listed = String::from_utf8_lossy(&cluster[1].tenon(&["ls"]).stdout).into_owned();
    let pins: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split_whitespace().skip(2).collect())
        .collect();
    assert_eq!(pins, [["hard", "hard"], ["-", "none"], ["soft", "soft"]], "{listed}");
    let stat = json(&cluster[1].tenon(&["--json", "stat", "soft"]));
    let left_ms = stat["pin"]["soft"]["for_ms"].as_u64().expect("a time");
    assert!((1..=60_000).contains(&left_ms), "{stat}");
    assert_eq!(json(&cluster[1].tenon(&["--json", "stat", "hard"]))["pin"], "hard");
}

//! What `tenond` says of configurations that it cannot use: the setting, the value, the place; and it does not start.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::path::Path;
use std::process::Output;

use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::http::Http;
use tenon_integration::node::tenond;
use tenon_integration::wait;
use tenon_transport::link::VERSIONS;

/// The exit code for a configuration that cannot be used.
const EXIT_CONFIGURATION: i32 = 2;

fn check(dir: &Path, text: &str) -> Output {
    let path = dir.join("tenond.toml");
    std::fs::write(&path, text).expect("the file can be written");
    tenond(&["--check-config", "--config", path.to_str().expect("a path in UTF-8")])
}

#[test]
fn a_typo_or_an_invalid_value_is_fatal_and_named_with_its_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    // The text, and what the message must contain.
    let cases: &[(&str, &[&str])] = &[
        ("[listen]\nhtpp = \"127.0.0.1:7600\"\n", &["listen.htpp", ":2"]),
        ("[lisen]\nhttp = \"127.0.0.1:7600\"\n", &["lisen", ":1"]),
        ("[listen]\nhttp = \"0.0.0.0:7600\"\n", &["listen.http", "0.0.0.0", ":2"]),
        ("[listen]\nlink = \"somewhere\"\n", &["listen.link", "somewhere", ":2"]),
        ("[[segments]]\nsize = \"12 parsecs\"\n", &["size", "12 parsecs", ":2"]),
        ("[[segments]]\nsize = 0\n", &["size", ":2"]),
        (
            "[[segments]]\nsize = \"1GiB\"\nhuge_pages = \"maybe\"\n",
            &["huge_pages", "maybe", ":3"],
        ),
        (
            "[placement]\nstrategy = \"best\"\n",
            &["placement.strategy", "best", ":2"],
        ),
        (
            "[placement]\nstrategy = \"fragmentation_aware\"\n",
            &["placement.strategy", "no effect", "placement.fallback", ":2"],
        ),
        (
            "[timeouts]\nheartbeat_ms = -1\n",
            &["timeouts.heartbeat_ms", "-1", ":2"],
        ),
        ("[cluster]\nview = \"etcd3\"\n", &["cluster.view", "etcd3", ":2"]),
        ("[log]\nlevel = \"loud\"\n", &["log.level", "loud", ":2"]),
        ("[node]\nstate_dir = 7\n", &["node.state_dir", ":2"]),
        ("this is no TOML\n", &[":1"]),
    ];
    for (text, expected) in cases {
        let output = check(dir.path(), text);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(EXIT_CONFIGURATION), "{text}: {said}");
        for part in *expected {
            assert!(said.contains(part), "{text}: {part:?} is missing in: {said}");
        }
    }
}

#[test]
fn a_configuration_that_is_right_is_printed_as_it_will_be_used() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let state_dir = dir.path().join("state");
    let output = check(
        dir.path(),
        &format!("[node]\nstate_dir = {state_dir:?}\n[[segments]]\nsize = \"128MiB\"\n"),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("128") && said.contains("127.0.0.1:7600"), "{said}");
    assert!(!state_dir.exists(), "checking a configuration makes nothing");
}

#[test]
fn a_link_off_loopback_needs_a_secret() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = check(dir.path(), "[listen]\nlink = \"0.0.0.0:7601\"\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_CONFIGURATION), "{said}");
    assert!(said.contains("secret"), "{said}");
}

#[test]
fn a_node_that_is_not_in_its_own_list_refuses_to_start() {
    let cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    let config = std::fs::read_to_string(cluster[0].config_file()).expect("the config");
    let stranger = config.replace(&cluster[0].id().to_string(), &"ab".repeat(16));
    std::fs::write(cluster[0].config_file(), stranger).expect("the config can be written");
    let output = tenond(&["--config", cluster[0].config_file().to_str().expect("a path in UTF-8")]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(EXIT_CONFIGURATION), "{said}");
    assert!(said.contains(&cluster[0].id().to_string()), "{said}");
}

#[test]
fn nodes_with_different_lists_refuse_each_other_and_are_not_ready() {
    let options = ClusterOptions {
        nodes: 3,
        ..ClusterOptions::default()
    };
    let mut cluster = Cluster::prepare(&options);
    // The first node's list lacks the third.
    let config = std::fs::read_to_string(cluster[0].config_file()).expect("the config");
    let entry = format!(
        "\n[[cluster.members]]\nid = \"{}\"\nendpoint = \"{}\"\n",
        cluster[2].id(),
        cluster[2].advertised()
    );
    assert!(config.contains(&entry), "{config}");
    std::fs::write(cluster[0].config_file(), config.replace(&entry, "")).expect("the config can be written");
    cluster[0].spawn();
    cluster[1].spawn();
    for (node, other) in [(0, 1), (1, 0)] {
        let http = cluster[node].http();
        let other = cluster[other].id().to_string();
        wait::until(wait::SOON, "the peer is refused", || {
            let nodes = http.try_get("/v1/nodes")?.json();
            let entry = nodes["nodes"]
                .as_array()
                .and_then(|nodes| nodes.iter().find(|entry| entry["node"] == other.as_str()).cloned());
            match entry {
                Some(entry) if entry["state"] == "refused" => Ok(()),
                entry => Err(format!("{entry:?}")),
            }
        });
        let ready = http.get("/readyz");
        assert_eq!(ready.status, 503);
        // Both lists are told: by their digests, and the other one by its members too.
        let reasons = ready.json()["reasons"].to_string();
        assert_eq!(reasons.matches("digest ").count() % 2, 0, "{reasons}");
        assert!(reasons.contains("member list") && reasons.contains(&other), "{reasons}");
        assert_eq!(http.get("/livez").status, 200);
        refusal_is_the_reason_told_for_keys(&http);
    }
}

/// The third node was never started: it is named for the keys that it is a home of. The others have the refused node as a home.
fn refusal_is_the_reason_told_for_keys(http: &Http) {
    let mut messages = (0..64).map(|number| {
        let looked = http.get(&format!("/v1/objects/nothing-{number}"));
        let error = looked.json()["error"].clone();
        assert_eq!((looked.status, &error["code"]), (503, &"unavailable".into()), "{error}");
        let message = error["message"].as_str().expect("a message").to_string();
        assert!(!message.contains("still learning"), "{message}");
        let names_the_lists = message.contains("member list");
        assert!(
            names_the_lists || message.contains("does not answer: it is a home"),
            "{message}"
        );
        names_the_lists
    });
    assert!(
        messages.any(|names_the_lists| names_the_lists),
        "no answer names the lists that differ"
    );
}

/// Answers every handshake as a member does that speaks version 1 alone.
fn be_of_another_build(listener: &TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        // A refusal: the header, kind 5, and a body of the code for another version and an empty text.
        let refusal = [b"TENONLNK".as_slice(), &[1, 0, 1, 0, 5, 0, 4, 0], &[1, 0, 0, 0]].concat();
        let _ = stream.write_all(&refusal);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
}

#[test]
fn a_member_of_another_build_is_refused_by_name() {
    let mut cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    let listener = TcpListener::bind(cluster[1].advertised()).expect("the other member's address is free");
    std::thread::spawn(move || be_of_another_build(&listener));
    cluster[0].spawn();
    let http = cluster[0].http();
    let named = format!(
        "member {} is refused: no common protocol version: we speak {}–{}, the peer 1–1",
        cluster[1].id(),
        VERSIONS.0,
        VERSIONS.1
    );
    wait::until(wait::SOON, "the member is refused by name", || {
        let ready = http.try_get("/readyz")?.json();
        let reasons = ready["reasons"].as_array().cloned().unwrap_or_default();
        let is_named = reasons.iter().any(|reason| *reason == *named);
        if is_named { Ok(()) } else { Err(format!("{ready}")) }
    });
}

#[test]
fn a_node_whose_listed_endpoint_is_anothers_says_so() {
    let mut cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    // In the first node's list the second has its own endpoint, and the first one that of the second.
    let config = std::fs::read_to_string(cluster[0].config_file()).expect("the config");
    let [own, other] = [0, 1].map(|node| format!("endpoint = \"{}\"", cluster[node].advertised()));
    let listed = config.lines().filter(|line| !line.starts_with("advertise"));
    let swap = |line: &str| match line {
        line if *line == own => other.clone(),
        line if *line == other => own.clone(),
        line => line.to_owned(),
    };
    let swapped: Vec<String> = listed.map(swap).collect();
    std::fs::write(cluster[0].config_file(), swapped.join("\n")).expect("the config can be written");
    cluster[1].spawn();
    let http = cluster[1].http();
    wait::until(wait::SOON, "the other node serves", || http.try_get("/livez").map(drop));
    let output = tenond(&["--config", cluster[0].config_file().to_str().expect("a path in UTF-8")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    let expected = format!(
        "there is node {}: the member list does not give each node its own endpoint",
        cluster[1].id()
    );
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn two_agents_cannot_use_one_state_directory() {
    let cluster = Cluster::start(1);
    let output = tenond(&["--config", cluster[0].config_file().to_str().expect("a path in UTF-8")]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    cluster[0].http().put_object("unharmed", b"bytes");
}

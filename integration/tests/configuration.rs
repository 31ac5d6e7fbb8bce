//! What `tenond` says of configurations that it cannot use: the setting, the value, the place; and it does not start.

use std::path::Path;
use std::process::Output;

use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::node::tenond;
use tenon_integration::wait;

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
        assert_eq!(http.get("/readyz").status, 503);
        assert_eq!(http.get("/livez").status, 200);
    }
}

#[test]
fn two_agents_cannot_use_one_state_directory() {
    let cluster = Cluster::start(1);
    let output = tenond(&["--config", cluster[0].config_file().to_str().expect("a path in UTF-8")]);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    cluster[0].http().put_object("unharmed", b"bytes");
}

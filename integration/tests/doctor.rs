//! `tenon doctor` on hosts without RDMA: the configuration, the agent, the way to each peer.

use std::net::TcpListener;
use std::process::Output;

use serde_json::Value;
use tenon_integration::account::assert_empty;
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::node::Node;

/// The exit code of a host with problems.
const UNFIT: i32 = 8;

fn doctor(node: &Node, more: &[&str]) -> Output {
    let config = node.config_file();
    let config = config.to_str().expect("a path in UTF-8");
    let mut arguments = vec!["doctor", "--config", config];
    arguments.extend_from_slice(more);
    node.tenon(&arguments)
}

/// What it says to programs, after its exit code.
#[track_caller]
fn said(node: &Node, code: i32) -> Value {
    let output = doctor(node, &["--json"]);
    let said: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(output.status.code(), Some(code), "{said:#}");
    assert_eq!(said["exit_code"], code);
    said
}

/// The verdict of the first finding of this code.
fn verdict<'a>(said: &'a Value, code: &str) -> &'a str {
    let findings = said["findings"].as_array().expect("a list of findings");
    let found = findings.iter().find(|finding| finding["code"] == code);
    found
        .and_then(|finding| finding["verdict"].as_str())
        .unwrap_or_else(|| panic!("no finding {code} in {said:#}"))
}

fn tcp_to_peer(said: &Value) -> &Value {
    let peers = said["facts"]["peers"].as_array().expect("a list of peers");
    assert_eq!(peers.len(), 1, "this node is not its own peer: {said:#}");
    let tcp = &peers[0]["transports"][0];
    assert_eq!(tcp["transport"], "tcp");
    tcp
}

#[test]
fn the_agent_and_its_peer_answer_with_a_measured_round_trip() {
    let cluster = Cluster::start(2);
    let said = said(&cluster[0], 0);
    for code in [
        "configuration.file",
        "configuration.members",
        "agent.answers",
        "peer.tcp",
        "peer.seen_by_agent",
    ] {
        assert_eq!(verdict(&said, code), "ok", "{code}: {said:#}");
    }
    let tcp = tcp_to_peer(&said);
    assert_eq!(tcp["outcome"], "reached");
    assert_eq!(tcp["same_members"], true);
    let round_trip_us = tcp["round_trip_us"].as_u64().expect("a time");
    assert!((1..1_000_000).contains(&round_trip_us), "{tcp}");
    let locked = &said["facts"]["memory"]["locked"];
    assert!(
        locked["agent_pid"].as_i64().is_some_and(|pid| pid > 0),
        "its own bound counts: {locked}"
    );
    let text = doctor(&cluster[0], &[]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.contains("round trip") && text.trim_end().ends_with(": usable"),
        "{text}"
    );
    assert_empty(&cluster);
}

#[test]
fn a_peer_that_does_not_run_is_a_warning_and_one_that_is_silent_a_problem() {
    let mut cluster = Cluster::start(2);
    cluster[1].sigstop();
    let halted = said(&cluster[0], UNFIT);
    assert_eq!(tcp_to_peer(&halted)["outcome"], "silent", "{halted:#}");
    cluster[1].sigcont();
    cluster[1].kill9();
    let dead = said(&cluster[0], 0);
    assert_eq!(tcp_to_peer(&dead)["outcome"], "nobody_listens", "{dead:#}");
    assert_eq!(verdict(&dead, "peer.tcp"), "warning");
}

#[test]
fn a_host_without_agent_is_looked_at_all_the_same() {
    let cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    let said = said(&cluster[0], 0);
    assert_eq!(verdict(&said, "agent.answers"), "warning");
    assert_eq!(said["facts"]["memory"]["locked"]["agent_pid"], Value::Null);
    assert_eq!(tcp_to_peer(&said)["outcome"], "nobody_listens");
}

#[test]
fn what_tenond_would_refuse_is_a_problem_with_its_line() {
    let cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    let file = cluster[0].config_file();
    let good = std::fs::read_to_string(&file).expect("the configuration");
    std::fs::write(&file, format!("{good}\n[timeouts]\nheartbeat_ms = 0\n")).expect("it can be written");
    let output = doctor(&cluster[0], &[]);
    assert_eq!(output.status.code(), Some(UNFIT));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("timeouts.heartbeat_ms") && text.contains("tenond.toml:"),
        "{text}"
    );
    let stranger = good.replace(&cluster[0].id().to_string(), &"ee".repeat(16));
    std::fs::write(&file, stranger).expect("it can be written");
    assert_eq!(verdict(&said(&cluster[0], UNFIT), "configuration.members"), "problem");
}

#[test]
fn a_peer_with_another_secret_or_list_is_a_problem() {
    let mut cluster = Cluster::start(2);
    let file = cluster[0].config_file();
    let good = std::fs::read_to_string(&file).expect("the configuration");
    let secret = file.with_file_name("another secret");
    tenon_integration::cluster::write_private(&secret, "the secret of some other cluster");
    let line = good
        .lines()
        .find(|line| line.starts_with("secret_file"))
        .expect("its secret");
    std::fs::write(&file, good.replace(line, &format!("secret_file = {secret:?}"))).expect("it can be written");
    assert_eq!(tcp_to_peer(&said(&cluster[0], UNFIT))["outcome"], "refused");

    let third = format!(
        "[[cluster.members]]\nid = \"{}\"\nendpoint = \"127.0.0.1:9\"\n\n[listen]",
        "ee".repeat(16)
    );
    std::fs::write(&file, good.replace("[listen]", &third)).expect("it can be written");
    assert_eq!(verdict(&said(&cluster[0], UNFIT), "peer.members"), "problem");
    cluster[0].stop();
}

#[test]
fn a_link_that_cannot_be_bound_or_reached_by_others_is_a_problem() {
    let cluster = Cluster::prepare(&ClusterOptions {
        nodes: 2,
        ..ClusterOptions::default()
    });
    assert_eq!(verdict(&said(&cluster[0], 0), "link.listen"), "ok");
    let taken = TcpListener::bind(cluster[0].link_address()).expect("no agent listens");
    assert_eq!(verdict(&said(&cluster[0], UNFIT), "link.listen"), "problem");
    drop(taken);

    let file = cluster[0].config_file();
    let good = std::fs::read_to_string(&file).expect("the configuration");
    let address = cluster[0].advertised().to_string();
    let elsewhere = |line: &str| match line.starts_with("link = ") {
        true => line.to_owned(),
        false => line.replace(&address, "10.255.0.7:7601"),
    };
    let lines: Vec<String> = good.lines().map(elsewhere).collect();
    std::fs::write(&file, lines.join("\n")).expect("it can be written");
    assert_eq!(verdict(&said(&cluster[0], UNFIT), "link.dialled"), "problem");
}

//! What an operator should look at is told by every way that tells of a node, and no longer than it stands.

use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::node::Node;
use tenon_integration::wait;

/// The kinds of alarms that a node tells of.
fn kinds(node: &Node, path: &str) -> Vec<String> {
    let alarms = node.http().get(path).json()["alarms"].clone();
    let kind = |alarm: &serde_json::Value| alarm["kind"].as_str().expect("a kind").to_owned();
    alarms.as_array().expect("a list of alarms").iter().map(kind).collect()
}

/// Waits until a node says by all its ways how many members it thinks silent together.
fn wait_silent_together(node: &Node, expected: Option<usize>) {
    wait::until(wait::SOON, "the alarm is as it should be", || {
        let kind: Vec<String> = expected.iter().map(|_| "members_silent".to_owned()).collect();
        let alarms = node.http().get("/v1/nodes").expect(200).json()["alarms"].clone();
        let named = alarms[0]["nodes"].as_array().map(Vec::len);
        let metric = node.metric("tenon_alarms{kind=\"members_silent\"}");
        let is_shown = String::from_utf8_lossy(&node.tenon(&["nodes"]).stdout).contains("alarm members_silent: ");
        let seen = (
            kinds(node, "/v1/nodes"),
            kinds(node, "/readyz"),
            named,
            metric > 0.0,
            is_shown,
        );
        match seen == (kind.clone(), kind, expected, expected.is_some(), expected.is_some()) {
            true => Ok(()),
            false => Err(format!("{seen:?}")),
        }
    });
}

fn wait_unreachable(node: &Node, count: usize) {
    wait::until(wait::SOON, "members are unreachable", || {
        match node.metric("tenon_peers{state=\"unreachable\"}") {
            seen if seen == f64::from(u32::try_from(count).expect("few")) => Ok(()),
            seen => Err(format!("{seen}")),
        }
    });
}

#[test]
fn members_that_fall_silent_together_raise_an_alarm_until_all_have_answered_again() {
    let cluster = Cluster::start_with(&ClusterOptions {
        nodes: 4,
        segments_bytes: vec![1 << 20],
        more_config: "[timeouts]\nheartbeat_ms = 200\nunreachable_after_ms = 800\n".to_owned(),
        ..ClusterOptions::default()
    });
    cluster.wait_all_alive();
    cluster[3].sigstop();
    wait_unreachable(&cluster[0], 1);
    wait_silent_together(&cluster[0], None);
    cluster[2].sigstop();
    wait_silent_together(&cluster[0], Some(2));
    wait_silent_together(&cluster[1], Some(2));
    cluster[2].sigcont();
    wait_unreachable(&cluster[0], 1);
    // One of the two is silent still.
    wait_silent_together(&cluster[0], Some(1));
    cluster[3].sigcont();
    wait_silent_together(&cluster[0], None);
    wait_silent_together(&cluster[1], None);
}

//! The account that must balance after every test: capacity = free + sealed, nothing reserved, nothing held.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::node::Node;
use crate::wait;

/// Sessions that ended a moment ago may still be on their way to the holders.
const SETTLE: Duration = Duration::from_secs(5);

/// The space account of a node and of each of its segments, as the node itself tells it.
fn accounts(node: &Node) -> Result<Vec<Value>, String> {
    let nodes = node.http().try_get("/v1/nodes")?.json();
    let own = nodes["nodes"]
        .as_array()
        .and_then(|nodes| nodes.iter().find(|entry| entry["is_self"] == true))
        .ok_or_else(|| format!("a node does not list itself: {nodes}"))?;
    let segments = node.http().try_get(&format!("/v1/segments?node={}", node.id()))?.json();
    let segments = segments["segments"]
        .as_array()
        .ok_or_else(|| format!("no segments in {segments}"))?;
    let spaces = segments.iter().map(|segment| segment["space"].clone());
    Ok(std::iter::once(own["space"].clone()).chain(spaces).collect())
}

fn number(account: &Value, field: &str) -> Result<u64, String> {
    account[field]
        .as_u64()
        .ok_or_else(|| format!("no {field} in {account}"))
}

/// What a node's account says in a field such as `sealed_bytes`.
pub fn field(node: &Node, name: &str) -> u64 {
    accounts(node)
        .and_then(|accounts| number(&accounts[0], name))
        .unwrap_or_else(|error| panic!("the account of node {}: {error}", node.id()))
}

fn check(node: &Node) -> Result<(), String> {
    for account in accounts(node)? {
        for must_be_zero in ["reserved_bytes", "held_bytes", "reservations"] {
            if number(&account, must_be_zero)? != 0 {
                return Err(format!("node {}: {must_be_zero} is not 0 in {account}", node.id()));
            }
        }
        let used = number(&account, "free_bytes")? + number(&account, "sealed_bytes")?;
        if number(&account, "capacity_bytes")? != used {
            return Err(format!(
                "node {}: capacity is not free + sealed in {account}",
                node.id()
            ));
        }
    }
    Ok(())
}

/// Panics if a node that runs has anything reserved or held, or if its capacity is not free + sealed, and stays so.
pub fn assert_accounts(cluster: &Cluster) {
    for node in cluster.nodes().iter().filter(|node| node.runs()) {
        wait::until(SETTLE, "the account balances", || check(node));
    }
}

/// As [`assert_accounts`], and no node that runs has any object.
pub fn assert_empty(cluster: &Cluster) {
    assert_accounts(cluster);
    for node in cluster.nodes().iter().filter(|node| node.runs()) {
        assert_eq!(field(node, "sealed_bytes"), 0, "node {} has objects", node.id());
    }
}

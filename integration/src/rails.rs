//! For tests that run where RDMA devices are: clusters that use them, what went over them, and what can be done to their links.
//!
//! Such a test is a program in the machine (see [`machine`](crate::machine)), or on a host with devices of its own.

use std::process::Command;

use crate::cluster::{Cluster, ClusterOptions};
use crate::machine::{DEVICES_VARIABLE, Device, MACHINE_DEVICES, PLACE_VARIABLE, parse_devices};
use crate::node::Node;

/// The devices of hosts A and B: every second one is B's. `None`, and a line that says so, where there are none.
pub fn devices() -> Option<Vec<Device>> {
    match std::env::var(DEVICES_VARIABLE) {
        Ok(list) => Some(parse_devices(&list).expect("a list of devices")),
        Err(_) => {
            println!("skipped: {DEVICES_VARIABLE} names no devices");
            None
        }
    }
}

/// Whether links may be taken down and made lossy: those of the machine may, those of a host may not. Says so.
pub fn may_be_disturbed() -> bool {
    let is_native = std::env::var(PLACE_VARIABLE).is_ok_and(|place| place == "native");
    if is_native {
        println!("skipped: links of a real host stay as they are");
    }
    !is_native
}

/// A cluster whose nodes are on hosts A and B in turn, each with all devices of its host and the policy of its place. `None` where there are no
/// devices.
pub fn cluster(policies: &[&str], segment_bytes: u64) -> Option<Cluster> {
    Some(Cluster::start_with(&options(policies, segment_bytes)?))
}

/// What [`cluster`] starts.
pub fn options(policies: &[&str], segment_bytes: u64) -> Option<ClusterOptions> {
    let devices = devices()?;
    let config = |(index, policy): (usize, &&str)| {
        let own = devices.iter().skip(index % 2).step_by(2);
        let names: Vec<&str> = own.map(|device| device.name.as_str()).collect();
        format!("[rdma]\npolicy = {policy:?}\ndevices = {names:?}\n")
    };
    Some(ClusterOptions {
        nodes: policies.len(),
        segments_bytes: vec![segment_bytes],
        more_config: "[timeouts]\nheartbeat_ms = 500\nunreachable_after_ms = 3000\n".to_owned(),
        config_of: policies.iter().enumerate().map(config).collect(),
        ..ClusterOptions::default()
    })
}

/// A metric of a node, by its name and labels as they stand in the text; 0 if it is not there.
pub fn metric(node: &Node, name: &str) -> u64 {
    node.find_metric(name).unwrap_or(0)
}

/// Connections that a node has made to holders, by transport: `rdma` or `tcp`.
pub fn connections(node: &Node, transport: &str) -> u64 {
    metric(
        node,
        &format!("tenon_holder_connections_total{{transport={transport:?}}}"),
    )
}

/// Packets that the devices of host A (0) or B (1) have sent. With an MTU of 9000 bytes each carries 4096 bytes at most.
pub fn packets_sent(host: usize) -> u64 {
    let devices = devices().expect("devices");
    let own = devices.iter().skip(host).step_by(2);
    own.map(|device| packets_sent_by(&device.name)).sum()
}

/// Packets that a device has sent.
pub fn packets_sent_by(device: &str) -> u64 {
    let counter = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts");
    let text = std::fs::read_to_string(&counter).unwrap_or_else(|error| panic!("{counter}: {error}"));
    text.trim().parse().expect("a number")
}

/// Queue pairs, regions and completion queues, as the kernel counts them.
pub fn kernel_objects() -> String {
    run("rdma", &["resource"])
}

/// A rail whose link is down, at B's end, until this is dropped.
#[derive(Debug)]
pub struct RailDown {
    netdev: &'static str,
}

impl RailDown {
    /// Takes the link of a rail, 0 or 1, down.
    pub fn new(rail: usize) -> Self {
        let netdev = MACHINE_DEVICES[2 * rail + 1].netdev;
        run("ip", &["link", "set", netdev, "down"]);
        Self { netdev }
    }
}

impl Drop for RailDown {
    fn drop(&mut self) {
        run("ip", &["link", "set", self.netdev, "up"]);
    }
}

/// Rails on which packets suffer what `tc netem` was told, in both directions, until this is dropped.
#[derive(Debug)]
pub struct Disturbed(());

impl Disturbed {
    /// Has packets suffer, `loss 1%` say.
    pub fn new(netem: &str) -> Self {
        let words: Vec<&str> = netem.split(' ').collect();
        for device in MACHINE_DEVICES {
            let start = ["qdisc", "add", "dev", device.netdev, "root", "netem"];
            run("tc", &[&start, words.as_slice()].concat());
        }
        Self(())
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        for device in MACHINE_DEVICES {
            run("tc", &["qdisc", "del", "dev", device.netdev, "root"]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

//! Segments that come and go at an agent whose peers read them by themselves, over RDMA.

use std::time::Duration;

use tenon_integration::binaries::binaries;
use tenon_integration::machine::{Job, MachineOptions, RdmaPlace};

/// Emulated processors are slow.
const TIMEOUT: Duration = Duration::from_secs(240);

const SCRIPT: &str = concat!(include_str!("rdma_nodes.sh"), include_str!("rdma_segments.sh"));

#[test]
fn segments_are_mounted_and_unmounted_while_peers_read_them_over_rdma() {
    let binaries = binaries();
    let options = MachineOptions {
        programs: vec![binaries.tenond.clone(), binaries.tenon.clone()],
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).expect("a place with RDMA devices");
    let job = Job::script(SCRIPT).timeout(TIMEOUT).env("nodes", "a b");
    let job = job.env("http_ports", "774").env("link_ports", "775");
    let output = place.run(&job).expect("the job ends");
    println!("{}", output.stdout.text());
    output.expect_success();
}

#[test]
fn peers_forget_a_segment_before_it_is_deregistered_or_are_cut_off_from_it() {
    let (mut place, name) = RdmaPlace::with_agents("verbs_segments").expect("a place with RDMA devices");
    let tests = Job::program(&name, ["--test-threads=1", "--nocapture"]).timeout(TIMEOUT);
    let text = place.run(&tests).expect("the job ends").expect_success();
    println!("{text}");
    assert!(!text.contains("skipped: TENON_RDMA_DEVICES"), "{text}");
}

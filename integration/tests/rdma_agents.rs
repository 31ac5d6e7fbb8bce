//! Real agents on real devices: objects go over RDMA where both ends have it, over TCP where not, with the same bytes and the same errors. The
//! devices' own counters say over what they went.

use std::time::Duration;

use tenon_integration::binaries::binaries;
use tenon_integration::machine::{Job, MachineOptions, RdmaPlace};

/// Emulated processors are slow, and this waits for failures to be noticed.
const TIMEOUT: Duration = Duration::from_secs(240);

const SCRIPT: &str = concat!(include_str!("rdma_nodes.sh"), include_str!("rdma_agents.sh"));

#[test]
fn agents_exchange_objects_over_rdma_where_both_have_it_and_over_tcp_where_not() {
    let binaries = binaries();
    let options = MachineOptions {
        programs: vec![binaries.tenond.clone(), binaries.tenon.clone()],
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).expect("a place with RDMA devices");
    let job = Job::script(SCRIPT).timeout(TIMEOUT).env("nodes", "a b c");
    let job = job.env("http_ports", "770").env("link_ports", "771");
    let output = place.run(&job).expect("the job ends");
    println!("{}", output.stdout.text());
    output.expect_success();
}

//! Real agents on real devices, and what can go wrong: `verbs_agents.rs` as a program where RDMA devices are.

use std::time::Duration;

use tenon_integration::machine::{Job, RdmaPlace};

/// Emulated processors are slow, and some of it waits for failures to be noticed.
const TIMEOUT: Duration = Duration::from_secs(400);
/// Less than any agent's memory, and more than what it locks beside it.
const LOCKED_MEMORY_KIB: u64 = 4 << 10;
/// What a test says that finds no devices.
const SKIPPED: &str = "skipped: TENON_RDMA_DEVICES";

#[test]
fn agents_keep_their_promises_over_rdma_whatever_fails() {
    let (mut place, name) = RdmaPlace::with_agents("verbs_agents").expect("a place with RDMA devices");
    let bounded = Job::program(&name, ["--nocapture", "too_little_locked_memory"]);
    let output = place.run(&bounded.locked_memory_kib(LOCKED_MEMORY_KIB).timeout(TIMEOUT));
    let text = output.expect("the job ends").expect_success();
    assert!(text.contains("1 passed"), "{text}");
    assert!(!text.contains(SKIPPED), "{text}");
    let tests = Job::program(
        &name,
        ["--test-threads=1", "--nocapture", "--skip", "too_little_locked_memory"],
    );
    let output = place.run(&tests.timeout(TIMEOUT)).expect("the job ends");
    let text = output.expect_success();
    assert!(!text.contains(SKIPPED), "{text}");
    println!("{text}");
}

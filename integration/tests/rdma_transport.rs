//! The tests of `transport` that need RDMA devices, where such devices are: verbs, the engine over them, and several threads at once.

use std::path::Path;
use std::time::Duration;

use tenon_integration::machine::{Job, MachineOptions, RdmaPlace, test_binary};

/// Emulated processors are slow.
const TIMEOUT: Duration = Duration::from_secs(240);

/// For the test that is about too little of it: what two ends of one process have for themselves, and a few MiB more.
const LOCKED_MEMORY_KIB: u64 = 12 << 10;

fn passes(place: &mut RdmaPlace, test: &Path) {
    let name = test.file_name().and_then(|name| name.to_str()).expect("a name");
    let job = Job::program(name, ["--test-threads=1", "--nocapture"]).timeout(TIMEOUT);
    let job = match name.starts_with("verbs_locked") {
        true => job.locked_memory_kib(LOCKED_MEMORY_KIB),
        false => job,
    };
    let output = place.run(&job).expect("the job ends");
    let text = output.expect_success();
    for skipped in ["skipped: TENON_RDMA_DEVICES", "skipped: so much may be locked"] {
        assert!(!text.contains(skipped), "{text}");
    }
    println!("{text}");
}

#[test]
fn the_tests_of_verbs_and_of_the_engine_over_them_pass_on_devices() {
    let tests = [
        "verbs_objects",
        "verbs_access",
        "verbs_threads",
        "verbs_engine",
        "verbs_devices",
        "verbs_push",
        "verbs_keys",
        "verbs_locked",
        "verbs_regions",
        "verbs_rogue",
    ];
    let tests = tests.map(|test| test_binary("tenon-transport", test).expect("it builds"));
    let options = MachineOptions {
        programs: tests.to_vec(),
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).expect("a place with RDMA devices");
    for test in &tests {
        passes(&mut place, test);
    }
}

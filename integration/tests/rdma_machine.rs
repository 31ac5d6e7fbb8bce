//! The machine with RDMA devices does what tests of RDMA rely on. One machine serves many checks: starting it takes seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use tenon_integration::machine::{
    Device, Job, MACHINE_DEVICES, Machine, MachineDevice, MachineError, MachineOptions, RdmaPlace, parse_devices,
    test_binary,
};
use tenon_integration::wait;

/// The two devices of the first rail.
const RAIL: [MachineDevice; 2] = [MACHINE_DEVICES[0], MACHINE_DEVICES[1]];

fn ok(machine: &mut Machine, script: &str) -> String {
    let output = machine.run(&Job::script(script)).expect("the job ends");
    output.expect_success()
}

/// The script of a bandwidth test: B serves, A reads `iterations` times 64 KiB.
fn read_bandwidth(iterations: u32, a: &Device, b: &Device) -> String {
    // Waits for a listener (0A) on the server's port, 18515 (4853).
    format!(
        "log=$(mktemp); ib_read_bw --ib-dev {} --iters {iterations} >$log 2>&1 &\n\
         until grep -q ':4853 [0:]* 0A' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done\n\
         ib_read_bw --ib-dev {} --iters {iterations} {} && wait $! && exit 0\n\
         kill $!; cat $log >&2; exit 1",
        b.name, a.name, b.address
    )
}

/// The same, across the machine's first rail.
fn read_across_rail(iterations: u32) -> String {
    let [a, b] = RAIL.map(Device::from);
    read_bandwidth(iterations, &a, &b)
}

/// How many packets have left a netdev.
fn packets_sent(machine: &mut Machine, netdev: &str) -> u64 {
    let count = ok(machine, &format!("cat /sys/class/net/{netdev}/statistics/tx_packets"));
    count.trim().parse().expect("a number")
}

fn status_and_streams_come_out(place: &mut RdmaPlace) {
    let job = Job::script("echo out; echo err >&2; printf %s \"$ODD\"; exit 7").env("ODD", "it's $odd");
    let output = place.run(&job).expect("the job ends");
    assert_eq!(output.status, 7);
    assert_eq!(output.stdout.text(), "out\nit's $odd");
    assert_eq!(output.stderr.text(), "err\n");
    let killed = place.run(&Job::script("kill -KILL $$")).expect("the job ends");
    assert_eq!(killed.status, 128 + 9);
    let large = place
        .run(&Job::script("head -c 6000000 /dev/zero"))
        .expect("the job ends");
    let seen = large.stdout.bytes().len() + large.stdout.lost_bytes();
    assert_eq!(seen, 6_000_000, "no byte of a long output is unaccounted for");
}

fn bandwidth_is_measured_between_two_hosts(place: &mut RdmaPlace) {
    let devices = place.devices();
    let [a, b, ..] = devices.as_slice() else {
        panic!("A and B need a device each: {devices:?}");
    };
    let output = place.run(&Job::script(read_bandwidth(50, a, b))).expect("the job ends");
    let text = output.expect_success();
    assert!(text.contains("BW average"), "{text}");
}

fn the_devices_are_active_and_named_in_the_environment(machine: &mut Machine) {
    let links = ok(machine, "rdma link");
    for MachineDevice { name, netdev, .. } in MACHINE_DEVICES {
        let link = links.lines().find(|line| line.contains(&format!(" {name}/1 ")));
        let link = link.unwrap_or_else(|| panic!("no {name} in {links}"));
        assert!(link.contains("state ACTIVE") && link.contains(netdev), "{link}");
    }
    let list = ok(machine, "echo $TENON_RDMA_DEVICES");
    let devices = parse_devices(list.trim()).expect("a list of devices");
    assert_eq!(devices.len(), MACHINE_DEVICES.len());
}

/// What the kernel counts of a device's objects, such as `mr 2`.
fn resources(machine: &mut Machine, device: &str) -> String {
    ok(machine, &format!("rdma resource show {device}"))
}

fn reads_cross_the_rail_and_leave_no_resource_behind(machine: &mut Machine) {
    const ITERATIONS: u32 = 50;
    let [a, b] = RAIL;
    let before = packets_sent(machine, b.netdev);
    let resources_before = resources(machine, a.name);
    assert!(
        resources_before.contains(" qp ") && resources_before.contains(" mr 0"),
        "{resources_before}"
    );
    ok(machine, &read_across_rail(ITERATIONS));
    let crossed = packets_sent(machine, b.netdev) - before;
    // A packet carries at most 4096 bytes.
    assert!(
        crossed >= u64::from(ITERATIONS) * 16,
        "only {crossed} packets crossed the rail"
    );
    assert_eq!(resources(machine, a.name), resources_before);
}

fn a_rail_can_be_made_slow_and_cut(machine: &mut Machine) {
    const DELAY: Duration = Duration::from_millis(100);
    let [_, b] = RAIL;
    ok(
        machine,
        &format!("tc qdisc add dev {} root netem delay {}ms", b.netdev, DELAY.as_millis()),
    );
    let begin = Instant::now();
    ok(machine, &read_across_rail(5));
    assert!(begin.elapsed() >= DELAY, "a delay on the rail delays nothing");
    ok(
        machine,
        &format!("tc qdisc replace dev {} root netem loss 1%", b.netdev),
    );
    ok(machine, &format!("tc qdisc del dev {} root", b.netdev));

    let state = format!("cat /sys/class/infiniband/{}/ports/1/state", b.name);
    ok(
        machine,
        &format!(
            "ip link set {} down; until {state} | grep DOWN; do sleep 0.02; done",
            b.netdev
        ),
    );
    ok(
        machine,
        &format!(
            "ip link set {} up; until {state} | grep ACTIVE; do sleep 0.02; done",
            b.netdev
        ),
    );
    ok(machine, &read_across_rail(5));
}

fn locked_memory_can_be_bounded(machine: &mut Machine) {
    // It registers 128 KiB at each end.
    let bounded = |kib| Job::script(read_across_rail(5)).locked_memory_kib(kib);
    let output = machine.run(&bounded(64)).expect("the job ends");
    let said = output.stdout.text() + &output.stderr.text();
    assert!(
        output.status != 0 && said.contains("allocate MR"),
        "64 KiB are enough: {said}"
    );
    machine.run(&bounded(4096)).expect("the job ends").expect_success();
}

fn a_test_binary_runs(place: &mut RdmaPlace, test: &Path) {
    let name = test.file_name().and_then(|name| name.to_str()).expect("a name");
    let output = place
        .run(&Job::program(name, ["--exact", "sim::malformed_transfers_fail_alone"]))
        .expect("the job ends");
    let text = output.expect_success();
    assert!(text.contains("test result: ok. 1 passed"), "{text}");
}

fn a_job_that_does_not_end_is_killed_with_the_machine(mut machine: Machine) {
    // A job's first word takes milliseconds on an idle host and seconds on a busy one.
    const BOUND_MIN: Duration = Duration::from_secs(1);
    const WORDS: u32 = 20;
    let begin = Instant::now();
    ok(&mut machine, "echo before");
    let bound = BOUND_MIN.max(WORDS * begin.elapsed());
    let process = format!("/proc/{}", machine.pid());
    assert!(Path::new(&process).exists());
    let begin = Instant::now();
    let job = Job::script("echo before; while :; do :; done").timeout(bound);
    let error = machine.run(&job).expect_err("it never ends");
    assert!(begin.elapsed() < bound + wait::SOON);
    let MachineError::TimedOut { remains, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(remains.stdout.text(), "before\n", "what it wrote until then is kept");
    assert!(!Path::new(&process).exists(), "qemu is gone");
    let error = machine.run(&Job::script("true")).expect_err("it was killed");
    assert!(matches!(error, MachineError::Gone { .. }), "{error}");
}

#[test]
fn the_machine_does_what_tests_of_rdma_rely_on() {
    let test = test_binary("tenon-transport", "conformance").expect("the conformance suite builds");
    let options = MachineOptions {
        programs: vec![test.clone()],
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).unwrap_or_else(|error| panic!("{error}"));
    status_and_streams_come_out(&mut place);
    a_test_binary_runs(&mut place, &test);
    bandwidth_is_measured_between_two_hosts(&mut place);
    let RdmaPlace::Machine(mut machine) = place else {
        return eprintln!("the rest is about the machine");
    };
    let console = machine.console();
    assert!(!console.text().contains("init:"), "a module or mount failed: {console}");
    the_devices_are_active_and_named_in_the_environment(&mut machine);
    reads_cross_the_rail_and_leave_no_resource_behind(&mut machine);
    a_rail_can_be_made_slow_and_cut(&mut machine);
    locked_memory_can_be_bounded(&mut machine);
    a_job_that_does_not_end_is_killed_with_the_machine(machine);
}

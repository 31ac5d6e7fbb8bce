//! `tenon doctor` where RDMA devices are, beside a program that shares no code with it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tenon_integration::binaries::binaries;
use tenon_integration::machine::{Job, JobOutput, MACHINE_DEVICES, MachineOptions, RdmaPlace, WITNESS, witness_binary};

/// The exit code of a host with problems.
const UNFIT: i32 = 8;

/// A row of a GID table: index, address, kind, index of the interface.
type Row = (u64, String, String, u64);
/// The rows of each port of each device.
type Devices = BTreeMap<String, BTreeMap<u64, Vec<Row>>>;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is a text")).to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is a number"))
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value} is a list"))
}

/// Devices, ports and addresses in either program's document.
fn devices(of: &Value) -> Devices {
    let row = |gid: &Value| {
        let (index, interface) = (number(&gid["index"]), number(&gid["interface_index"]));
        (index, text(&gid["gid"]), text(&gid["kind"]), interface)
    };
    let port = |port: &Value| {
        let mut rows: Vec<Row> = list(&port["gids"]).iter().map(row).collect();
        rows.sort();
        (number(&port["number"]), rows)
    };
    let device = |device: &Value| {
        let ports = list(&device["ports"]).iter().map(port);
        (text(&device["name"]), ports.collect())
    };
    list(of).iter().map(device).collect()
}

fn document(output: &JobOutput) -> Value {
    serde_json::from_str(&output.stdout.text())
        .unwrap_or_else(|error| panic!("{error}: {}{}", output.stdout, output.stderr))
}

/// Runs `tenon --json doctor`; what it says and how it ended.
fn doctor(place: &mut RdmaPlace, job: impl FnOnce(Job) -> Job) -> (Value, i32) {
    let output = place
        .run(&job(Job::program("tenon", ["--json", "doctor"])))
        .expect("the job ends");
    (document(&output), output.status)
}

/// The findings of this code: what they are about, and the verdict.
fn verdicts(document: &Value, code: &str) -> Vec<(String, String)> {
    let of_code = list(&document["findings"])
        .iter()
        .filter(|finding| finding["code"] == code);
    of_code
        .map(|finding| (text(&finding["subject"]), text(&finding["verdict"])))
        .collect()
}

fn both_see_the_same(place: &mut RdmaPlace) {
    let witness = place.run(&Job::program(WITNESS, [])).expect("the job ends");
    let witness = document(&witness);
    let seen = devices(&witness["devices"]);
    let (said, status) = doctor(place, |job| job);
    let told = devices(&said["facts"]["rdma"]["devices"]);
    let names = |devices: &Devices| devices.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&told), names(&seen), "{said}");
    for device in list(&witness["devices"]) {
        // The witness looks into no device whose first port has no link, and sees no port without addresses.
        let name = text(&device["name"]);
        if device["opens"] == true {
            let mut ports = told[&name].clone();
            ports.retain(|_, rows| !rows.is_empty());
            assert_eq!(ports, seen[&name], "{name}: {said}");
        }
    }
    for device in place.devices() {
        let mapped = format!("::ffff:{}", device.address);
        let ports = &told[&device.name];
        let rows: Vec<_> = ports.values().flatten().collect();
        assert!(
            rows.iter().any(|(_, gid, kind, _)| *gid == mapped && kind == "roce_v2"),
            "{rows:?}"
        );
    }
    assert_eq!(status, 0, "{said}");
}

fn the_address_of_each_device_is_chosen(place: &mut RdmaPlace) {
    let (said, _) = doctor(place, |job| job);
    for device in place.devices() {
        let of_device = list(&said["facts"]["rdma"]["devices"])
            .iter()
            .find(|found| found["name"] == *device.name);
        let port = &of_device.expect("the device is listed")["ports"][0];
        assert_eq!(port["state"], "active", "{port}");
        let chosen: Vec<_> = list(&port["gids"])
            .iter()
            .filter(|gid| gid["is_chosen"] == true)
            .collect();
        assert_eq!(chosen.len(), 1, "{port}");
        assert_eq!(chosen[0]["gid"], format!("::ffff:{}", device.address));
        assert!(text(&chosen[0]["reason"]).starts_with("chosen"), "{port}");
    }
}

/// The last device of the machine loses its link.
fn a_port_without_link_is_told(place: &mut RdmaPlace) {
    let last = MACHINE_DEVICES[3];
    let state = format!("cat /sys/class/infiniband/{}/ports/1/state", last.name);
    let set = |place: &mut RdmaPlace, up: &str, name: &str| {
        let script = format!(
            "ip link set {} {up}; until {state} | grep {name}; do sleep 0.02; done",
            last.netdev
        );
        place.run(&Job::script(script)).expect("the job ends").expect_success();
    };
    set(place, "down", "DOWN");
    let (said, status) = doctor(place, |job| job);
    let port = format!("{} port 1", last.name);
    assert!(
        verdicts(&said, "rdma.port").contains(&(port, "warning".to_owned())),
        "{said}"
    );
    assert_eq!((status, said["verdict"].as_str()), (0, Some("warning")), "{said}");
    set(place, "up", "ACTIVE");
}

fn a_small_bound_on_locked_memory_is_told(place: &mut RdmaPlace) {
    let locked = |said: &Value| verdicts(said, "memory.locked")[0].1.clone();
    let (said, _) = doctor(place, |job| job.locked_memory_kib(64));
    assert_eq!(locked(&said), "warning", "{said}");
    let (said, _) = doctor(place, |job| job);
    assert_eq!(locked(&said), "ok", "{said}");
}

fn huge_pages_that_are_required_and_missing_are_a_problem(place: &mut RdmaPlace) {
    let script = "printf '[[segments]]\\nsize = \"16MiB\"\\nhuge_pages = \"require\"\\n' >/tmp/tenond.toml\n\
                  tenon doctor --config /tmp/tenond.toml";
    let output = place.run(&Job::script(script)).expect("the job ends");
    assert_eq!(output.status, UNFIT, "{}{}", output.stdout, output.stderr);
    let shown = output.stdout.text();
    let line = shown.lines().find(|line| line.contains("huge pages"));
    assert!(line.is_some_and(|line| line.starts_with("  problem")), "{shown}");
    assert!(
        shown.contains("chosen: the best kind"),
        "addresses are shown with reasons: {shown}"
    );
}

const PEERS_SCRIPT: &str = concat!(include_str!("rdma_nodes.sh"), include_str!("rdma_doctor.sh"));

/// Of three members, A is looked at, B uses a device, and C uses none.
fn peers_are_reached_over_rdma_with_a_measured_round_trip(place: &mut RdmaPlace) {
    let devices = place.devices();
    let [a, b, ..] = devices.as_slice() else {
        panic!("A and B need a device each: {devices:?}");
    };
    for (policy, status, without) in [("prefer", 0, "warning"), ("require", UNFIT, "problem")] {
        let job = Job::script(PEERS_SCRIPT).timeout(Duration::from_secs(120));
        let job = job
            .env("nodes", "a b c")
            .env("http_ports", "775")
            .env("link_ports", "774")
            .env("device_a", &*a.name)
            .env("device_b", &*b.name)
            .env("policy", policy);
        let output = place.run(&job).expect("the job ends");
        let said = document(&output);
        assert_eq!(output.status, status, "{said}{}", output.stderr);
        let peers = list(&said["facts"]["peers"]);
        let over_rdma = |port: &str| {
            let peer = peers.iter().find(|peer| text(&peer["endpoint"]).ends_with(port));
            let reaches = list(&peer.unwrap_or_else(|| panic!("{port}: {said}"))["transports"]);
            assert_eq!(reaches[0]["outcome"], "reached", "{said}");
            let reach = reaches.iter().find(|reach| reach["transport"] == "rdma");
            reach.unwrap_or_else(|| panic!("{port}: {said}")).clone()
        };
        let reached = over_rdma(":7742");
        assert_eq!(reached["outcome"], "reached", "{reached}");
        let rails = list(&reached["rails"]);
        assert_eq!(rails.len(), 1, "{reached}");
        assert_eq!(rails[0]["rail"], format!("{}:1", a.name));
        let round_trip_us = number(&rails[0]["round_trip_us"]);
        assert!(
            round_trip_us > 0 && round_trip_us == number(&reached["round_trip_us"]),
            "{reached}"
        );
        assert!(number(&reached["connect_us"]) > round_trip_us, "{reached}");
        assert_eq!(over_rdma(":7743")["outcome"], "no_device");
        let told = verdicts(&said, "peer.rdma").into_iter().map(|(_, verdict)| verdict);
        let mut told: Vec<_> = told.collect();
        told.sort();
        assert_eq!(told, ["ok", without], "{said}");
    }
}

#[test]
fn the_doctor_and_a_witness_see_the_same_devices_ports_and_addresses() {
    let options = MachineOptions {
        programs: vec![
            binaries().tenon.clone(),
            binaries().tenond.clone(),
            witness_binary().unwrap_or_else(|error| panic!("{error}")),
        ],
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).unwrap_or_else(|error| panic!("{error}"));
    both_see_the_same(&mut place);
    the_address_of_each_device_is_chosen(&mut place);
    peers_are_reached_over_rdma_with_a_measured_round_trip(&mut place);
    if !place.may_be_disturbed() {
        return eprintln!("the rest is about the machine");
    }
    a_port_without_link_is_told(&mut place);
    a_small_bound_on_locked_memory_is_told(&mut place);
    huge_pages_that_are_required_and_missing_are_a_problem(&mut place);
}

//! Puts that writers write themselves over RDMA, under memory windows: real agents of which one trusts its peers and one has tried its device.
//! The engine's tests of that are run by rdma_transport.rs.

use std::time::Duration;

use serde_json::Value;
use tenon_integration::binaries::binaries;
use tenon_integration::machine::{Job, MachineOptions, RdmaPlace};

/// Emulated processors are slow.
const TIMEOUT: Duration = Duration::from_secs(240);

const SCRIPT: &str = concat!(include_str!("rdma_nodes.sh"), include_str!("rdma_push.sh"));

fn agents_put_by_push_and_by_pull(place: &mut RdmaPlace) {
    let job = Job::script(SCRIPT).timeout(TIMEOUT).env("nodes", "a b");
    let job = job.env("http_ports", "772").env("link_ports", "773");
    let output = place.run(&job).expect("the job ends");
    println!("{}", output.stdout.text());
    output.expect_success();
}

/// What `tenon doctor` finds about push, as (verdict, message), and the facts of the first device.
fn doctor(place: &mut RdmaPlace, push: &str) -> (Vec<(String, String)>, Value) {
    let script = format!(
        "printf '[rdma]\\npush = \"{push}\"\\n[[segments]]\\nsize = \"16MiB\"\\n' >/tmp/push.toml\n\
         tenon --json doctor --config /tmp/push.toml"
    );
    let output = place.run(&Job::script(script)).expect("the job ends");
    let said: Value = serde_json::from_str(&output.stdout.text()).expect("a document");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let findings = said["findings"].as_array().expect("findings").iter();
    let of_push = findings.filter(|finding| finding["code"] == "rdma.push");
    let told = of_push.map(|finding| (text(&finding["verdict"]), text(&finding["message"])));
    (told.collect(), said["facts"]["rdma"]["devices"][0].clone())
}

fn the_doctor_tells_what_the_device_makes_of_windows(place: &mut RdmaPlace) {
    for (push, verdict, way) in [
        ("off", "ok", "pulled"),
        ("probed", "warning", "pulled"),
        ("trusted", "warning", "pushed"),
    ] {
        let (findings, device) = doctor(place, push);
        assert!(!findings.is_empty(), "{device}");
        let name = device["name"].as_str().unwrap_or_default();
        if !name.starts_with("rxe") {
            continue;
        }
        assert_eq!(device["windows"]["state"], "not_enforced", "{device}");
        assert_eq!(device["windows"]["lacking"], serde_json::json!(["bounds"]), "{device}");
        for (found, message) in &findings {
            assert_eq!(found, verdict, "{push}: {message}");
            assert!(
                message.contains("not enforced (bounds)") && message.contains(way),
                "{message}"
            );
        }
    }
}

#[test]
fn writers_write_under_windows_where_they_are_trusted_and_nowhere_else() {
    let binaries = binaries();
    let options = MachineOptions {
        programs: vec![binaries.tenond.clone(), binaries.tenon.clone()],
        ..MachineOptions::default()
    };
    let mut place = RdmaPlace::start(&options).unwrap_or_else(|error| panic!("{error}"));
    the_doctor_tells_what_the_device_makes_of_windows(&mut place);
    agents_put_by_push_and_by_pull(&mut place);
}

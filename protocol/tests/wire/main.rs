//! The formats of calls as they were written down for this version: a change is a new version.

mod tracer;

use std::path::PathBuf;
use tenon_protocol::WIRE_VERSION;
use tenon_protocol::error::ServiceError;
use tenon_protocol::message::{Reply, Request};
use tracer::Tracer;

fn schema() -> String {
    let mut tracer = Tracer::default();
    tracer.trace::<Request>();
    tracer.trace::<Reply>();
    tracer.trace::<ServiceError>();
    tracer.schema()
}

/// Where the formats of a version are written down.
fn written(version: u16) -> PathBuf {
    PathBuf::from(format!("{}/tests/wire/{version}.txt", env!("CARGO_MANIFEST_DIR")))
}

#[test]
fn the_formats_of_calls_are_those_of_this_version() {
    let path = written(WIRE_VERSION);
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let now = schema();
    let lines = |text: &str, other: &str, sign: &str| -> Vec<String> {
        let only = text.lines().filter(|line| !other.lines().any(|known| known == *line));
        only.map(|line| format!("{sign} {line}")).collect()
    };
    let changed = [lines(&known, &now, "-"), lines(&now, &known, "+")].concat();
    assert!(
        known == now,
        "calls are not what {} says, so builds of before and now would misread each other: raise WIRE_VERSION and \
         `transport::link::VERSIONS` if it was not done since the last build that others run, and write the file by \
         `cargo test -p tenon-protocol --test wire -- --ignored`:\n{}",
        path.display(),
        changed.join("\n")
    );
}

/// By hand, once the version is raised.
#[test]
#[ignore = "writes the formats down"]
fn write_the_formats_of_this_version_down() {
    std::fs::write(written(WIRE_VERSION), schema()).expect("the file can be written");
}

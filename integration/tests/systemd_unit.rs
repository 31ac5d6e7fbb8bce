//! The unit that runs the daemon.

use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;
use tenon_integration::binaries::{binaries, workspace_dir};

/// The unit with the daemon that was just built in the place of the installed one, which need not be there.
fn unit(dir: &TempDir) -> PathBuf {
    let text = std::fs::read_to_string(workspace_dir().join("systemd/tenond.service")).expect("the unit");
    assert!(text.contains("/usr/bin/tenond"), "the unit starts /usr/bin/tenond");
    let here = binaries().tenond.to_str().expect("a path in UTF-8");
    let path = dir.path().join("tenond.service");
    std::fs::write(&path, text.replace("/usr/bin/tenond", here)).expect("the unit can be written");
    path
}

fn systemd_analyze(arguments: &[&str], unit: &PathBuf) -> Output {
    Command::new("systemd-analyze")
        .args(arguments)
        .arg(unit)
        .env("SYSTEMD_COLORS", "0")
        .output()
        .expect("systemd-analyze runs (scripts/setup.sh test installs it)")
}

#[test]
fn systemd_analyze_verify_accepts_the_unit_without_a_word() {
    let dir = TempDir::new().expect("a temporary directory");
    let unit = unit(&dir);
    let output = systemd_analyze(&["verify", "--man=no"], &unit);
    let said = String::from_utf8_lossy(&output.stderr);
    // It reads every unit of the machine; only what it says of ours counts.
    let of_ours: Vec<&str> = said.lines().filter(|line| line.contains("tenond")).collect();
    assert!(output.status.success() && of_ours.is_empty(), "{said}");
}

#[test]
fn the_unit_leaves_the_daemon_little_that_it_does_not_need() {
    let dir = TempDir::new().expect("a temporary directory");
    // The threshold is an exposure level of 2.0; a service without any hardening has 9.6.
    let arguments = ["security", "--offline=true", "--no-pager", "--threshold=20"];
    let output = systemd_analyze(&arguments, &unit(&dir));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}

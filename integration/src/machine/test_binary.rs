//! Test binaries of this workspace as programs for the machine.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::binaries::workspace_dir;

use super::error::MachineError;
use super::host_files::{output_of, target_dir};

/// Builds the integration test `test` of a package and returns its executable, which takes the usual arguments of test executables. It has the
/// profile and target directory of this program, and all features, as in `make test`: so it is seldom built anew.
pub fn test_binary(package: &str, test: &str) -> Result<PathBuf, MachineError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "test",
            "--no-run",
            "--offline",
            "--message-format=json",
            "--workspace",
            "--all-features",
        ])
        .args(["--test", test, "--target-dir"])
        .arg(target_dir())
        .current_dir(workspace_dir());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let messages = output_of(&mut command)?;
    let messages = String::from_utf8_lossy(&messages);
    let of_package = |message: &Value| message["package_id"].as_str().is_some_and(|id| id.contains(package));
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| of_package(message) && message["target"]["name"] == test)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| MachineError::Command {
            command: format!("{command:?}"),
            said: format!("it names no executable of the test {test} of {package}"),
        })
}

//! Test binaries of this workspace as programs for the machine.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::binaries::workspace_dir;

use super::error::MachineError;
use super::host_files::output_of;

/// Builds the integration test `test` of a package and returns its executable, which takes the usual arguments of test executables.
/// `features` are names divided by commas, or nothing. It is built with the profile and in the target directory that cargo uses by itself.
pub fn test_binary(package: &str, test: &str, features: &str) -> Result<PathBuf, MachineError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "test",
            "--no-run",
            "--offline",
            "--message-format=json",
            "--package",
            package,
        ])
        .args(["--test", test, "--features", features])
        .current_dir(workspace_dir());
    let messages = output_of(&mut command)?;
    let messages = String::from_utf8_lossy(&messages);
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == test && message["profile"]["test"] == true)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| MachineError::Command {
            command: format!("{command:?}"),
            said: "it named no executable".to_owned(),
        })
}

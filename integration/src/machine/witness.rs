//! A second opinion on devices: the program in `integration/witness`, which shares no code with this workspace.

use std::path::PathBuf;
use std::process::Command;

use crate::binaries::workspace_dir;

use super::error::MachineError;
use super::host_files::{output_of, target_dir};

/// Its name in PATH.
pub const WITNESS: &str = "tenon-witness";

/// Builds the witness, the first time in minutes (it brings the sources of libibverbs), and returns its executable. It is kept
/// in `witness` in the target directory.
pub fn witness_binary() -> Result<PathBuf, MachineError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let dir = target_dir().join("witness");
    // Not offline: its crates are not those of the workspace, and may have to be fetched.
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg(workspace_dir().join("integration/witness/Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir);
    output_of(&mut command)?;
    Ok(dir.join("debug").join(WITNESS))
}

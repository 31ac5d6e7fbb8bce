//! What is taken from the host: programs, and the shared libraries that they need.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binaries::workspace_dir;

use super::error::MachineError;

/// Where Debian keeps the libraries of this architecture.
pub(super) const LIBRARY_DIR: &str = "/usr/lib/x86_64-linux-gnu";

/// Where programs are looked for after PATH: a user's PATH has no directories of the administrator's.
const MORE_PROGRAM_DIRS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The path of a program of the host.
pub(super) fn program(name: &str, package: &'static str) -> Result<PathBuf, MachineError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_PROGRAM_DIRS.map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| MachineError::Missing {
            what: format!("the program {name}"),
            package,
        })
}

/// A file of the host that must be there.
pub(super) fn file(path: impl Into<PathBuf>, package: &'static str) -> Result<PathBuf, MachineError> {
    let path = path.into();
    if path.is_file() {
        return Ok(path);
    }
    Err(MachineError::Missing {
        what: path.display().to_string(),
        package,
    })
}

/// The target directory that this program was built in.
pub(super) fn target_dir() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let target = program.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    target.map_or_else(|| workspace_dir().join("target"), Path::to_path_buf)
}

/// The files of a directory whose names begin and end so; none if there is no such directory.
pub(super) fn files_named(dir: &Path, begin: &str, end: &str) -> Vec<PathBuf> {
    let named = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with(begin) && name.ends_with(end)
    };
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries.flatten().map(|entry| entry.path()).filter(named).collect()
}

/// The shared libraries that a program or library is linked with, the loader among them. None if it is a script or linked statically.
pub(super) fn libraries(of: &Path) -> Result<Vec<PathBuf>, MachineError> {
    let output = Command::new("ldd")
        .arg(of)
        .output()
        .map_err(MachineError::io("run ldd on", of))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("not found") {
        let command = format!("ldd {}", of.display());
        let said = text.into_owned();
        return Err(MachineError::Command { command, said });
    }
    let is_path = |word: &&str| word.starts_with('/') && !word.ends_with(':');
    Ok(text.split_whitespace().filter(is_path).map(PathBuf::from).collect())
}

/// Runs a command to its end and returns what it wrote; its errors become the message.
pub(super) fn output_of(command: &mut Command) -> Result<Vec<u8>, MachineError> {
    let output = command
        .output()
        .map_err(MachineError::io("run", command.get_program()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(MachineError::Command {
        command: format!("{command:?}"),
        said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let error = program("tenon-no-such-program", "some-package").expect_err("there is none");
        let text = error.to_string();
        assert!(
            text.contains("tenon-no-such-program") && text.contains("some-package"),
            "{text}"
        );
    }

    #[test]
    fn the_libraries_of_this_test_are_found_and_exist() {
        let this = std::env::current_exe().expect("the path of the running test");
        let found = libraries(&this).expect("ldd reads it");
        assert!(
            found.iter().any(|path| path.to_string_lossy().contains("libc.so")),
            "{found:?}"
        );
        assert!(found.iter().all(|path| path.exists()), "{found:?}");
    }
}

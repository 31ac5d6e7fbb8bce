//! Finds the executables under test, and has them built once if need be.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The executables under test.
#[derive(Debug)]
pub struct Binaries {
    /// The daemon.
    pub tenond: PathBuf,
    /// The command line.
    pub tenon: PathBuf,
}

/// The executables of the same profile and target directory as the running test. The first call of a process builds what is not up to
/// date, so a test never runs against yesterday's daemon. A test that was carried elsewhere, such as into the machine with RDMA devices, takes
/// those that lie beside it.
pub fn binaries() -> &'static Binaries {
    static BINARIES: OnceLock<Binaries> = OnceLock::new();
    BINARIES.get_or_init(|| {
        let dir = dir_of_this_test();
        let dir = match dir.ends_with("deps") {
            true => {
                let profile_dir = dir.parent().expect("the target directory");
                build(profile_dir);
                profile_dir
            }
            false => &dir,
        };
        let binary = |name: &str| {
            let path = dir.join(name);
            assert!(path.is_file(), "there is no {}", path.display());
            path
        };
        Binaries {
            tenond: binary("tenond"),
            tenon: binary("tenon"),
        }
    })
}

/// `target/<profile>/deps`, where cargo puts tests, or wherever it was carried.
fn dir_of_this_test() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let dir = test.parent().expect("the directory of the running test");
    dir.to_path_buf()
}

fn build(profile_dir: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args([
            "build",
            "--quiet",
            "--offline",
            "--package",
            "tenon-agent",
            "--bins",
            "--target-dir",
        ])
        .arg(profile_dir.parent().expect("the target directory"))
        .current_dir(workspace_dir());
    if profile_dir.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output().expect("cargo starts");
    assert!(
        output.status.success(),
        "tenond and tenon do not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The root of the workspace.
pub fn workspace_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in the workspace")
}

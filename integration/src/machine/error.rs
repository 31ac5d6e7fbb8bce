//! What can keep the machine from starting, or end it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::streams::Captured;

/// Why the machine, or a job in it, did not come to its end.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each field is")]
pub enum MachineError {
    #[error("the machine runs on x86_64 hosts, this one is {architecture}")]
    Architecture { architecture: &'static str },
    #[error("the machine needs {what}, of the Debian package {package}: `scripts/setup.sh test` installs it")]
    Missing { what: String, package: &'static str },
    #[error(
        "apt knows none of the kernels {packages:?}: `scripts/setup.sh test`, or `apt-get update` as root, renews its lists"
    )]
    NoKernelPackage { packages: Vec<&'static str> },
    #[error(
        "cannot download {package}: {said} (if it is gone from the archive, `apt-get update` as root renews apt's lists)"
    )]
    Download { package: String, said: String },
    #[error("{path} is no kernel image that this can unpack: {reason}")]
    KernelImage { path: PathBuf, reason: &'static str },
    #[error("`{command}` failed: {said}")]
    Command { command: String, said: String },
    #[error("cannot {operation} {path}: {source}")]
    Io {
        operation: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the program {path} is no file")]
    NoProgram { path: PathBuf },
    #[error("TENON_RDMA=native needs TENON_RDMA_DEVICES=device:address,… of this host")]
    NoDevices,
    #[error("{text:?} is no list of device:IPv4 address,…")]
    DeviceList { text: String },
    #[error("TENON_RDMA is {value:?}: only `machine` and `native` are known")]
    UnknownPlace { value: String },
    #[error("the machine was not ready within {bound:?}; qemu said {qemu:?}; its console:\n{console}")]
    Boot {
        bound: Duration,
        qemu: String,
        console: Captured,
    },
    #[error("not within {bound:?}, so it was killed: {script}\n{remains}")]
    TimedOut {
        script: String,
        bound: Duration,
        remains: Box<Remains>,
    },
    #[error("the machine ended during {script}\n{remains}")]
    Ended { script: String, remains: Box<Remains> },
    #[error("the machine was killed before: {script} cannot run")]
    Gone { script: String },
}

/// What is left of a job that did not come to its end.
#[derive(Debug)]
pub struct Remains {
    /// What it wrote to its standard output.
    pub stdout: Captured,
    /// What it wrote to its standard error.
    pub stderr: Captured,
    /// What the machine's kernel wrote; nothing for a job on the host.
    pub console: Captured,
    /// What qemu wrote of its own.
    pub qemu: String,
}

impl fmt::Display for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            stdout,
            stderr,
            console,
            qemu,
        } = self;
        write!(
            f,
            "its output:\n{stdout}\nits errors:\n{stderr}\nthe console:\n{console}\nqemu: {qemu:?}"
        )
    }
}

impl MachineError {
    /// For `map_err` on what the file system answers.
    pub(super) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io {
            operation,
            path,
            source,
        }
    }
}

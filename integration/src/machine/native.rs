//! The host itself in the place of the machine: for hosts that have RDMA devices.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::devices::{DEVICES_VARIABLE, Device, parse_devices};
use super::error::{MachineError, Remains};
use super::guest::MachineOptions;
use super::job::{Job, JobOutput};
use super::streams::{Captured, Stream};

const PROBE_PERIOD: Duration = Duration::from_millis(10);

/// Jobs run on the host, with the devices that [`DEVICES_VARIABLE`] names.
#[derive(Debug)]
pub struct Native {
    devices: Vec<Device>,
    /// Links to the programs under test, for PATH.
    programs: TempDir,
}

impl Native {
    /// Prepares the host's own devices, named by [`DEVICES_VARIABLE`]. Of the options only the programs matter.
    pub fn prepare(options: &MachineOptions) -> Result<Self, MachineError> {
        let list = std::env::var(DEVICES_VARIABLE).map_err(|_| MachineError::NoDevices)?;
        Self::with_devices(parse_devices(&list)?, &options.programs)
    }

    fn with_devices(devices: Vec<Device>, linked: &[PathBuf]) -> Result<Self, MachineError> {
        let programs = TempDir::new().map_err(MachineError::io("make a directory in", std::env::temp_dir()))?;
        for path in linked {
            let missing = || MachineError::NoProgram { path: path.clone() };
            let whole = path.canonicalize().map_err(|_| missing())?;
            let link = programs.path().join(path.file_name().ok_or_else(missing)?);
            std::os::unix::fs::symlink(whole, &link).map_err(MachineError::io("make the link", link))?;
        }
        Ok(Self { devices, programs })
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Runs a job to its end. If it does not end in time, it is killed with all that it started.
    pub fn run(&mut self, job: &Job) -> Result<JobOutput, MachineError> {
        let pair = || UnixStream::pair().map_err(MachineError::io("make sockets for", job.name()));
        let ((stdout, their_stdout), (stderr, their_stderr)) = (pair()?, pair()?);
        let stream = |socket| Stream::new(socket).map_err(MachineError::io("read from", job.name()));
        let (mut stdout, mut stderr) = (stream(stdout)?, stream(stderr)?);
        stderr.hear(job.is_heard());
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = Command::new("sh")
            .args(["-c", &job.text()])
            .env("PATH", format!("{}:{path}", self.programs.path().display()))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(OwnedFd::from(their_stdout))
            .stderr(OwnedFd::from(their_stderr))
            .spawn()
            .map_err(MachineError::io("start", job.name()))?;
        let status = wait(&mut child, Instant::now() + job.bound(), [&mut stdout, &mut stderr]);
        let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids are positive"));
        let _ = killpg(group, Signal::SIGKILL);
        let (stdout, stderr) = (stdout.take(), stderr.take());
        match status {
            Some(status) => Ok(JobOutput {
                status: status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
                stdout,
                stderr,
            }),
            None => {
                let _ = child.wait();
                Err(MachineError::TimedOut {
                    script: job.name(),
                    bound: job.bound(),
                    remains: Box::new(Remains {
                        stdout,
                        stderr,
                        console: Captured::default(),
                        qemu: String::new(),
                    }),
                })
            }
        }
    }
}

/// How the process ended; `None` if it has not.
fn wait(child: &mut Child, deadline: Instant, mut streams: [&mut Stream; 2]) -> Option<ExitStatus> {
    loop {
        for stream in &mut streams {
            stream.drain();
        }
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(PROBE_PERIOD),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_and_their_status_and_output_come_back() {
        let this = std::env::current_exe().expect("the path of the running test");
        let name = this
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name")
            .to_owned();
        let mut native = Native::with_devices(Vec::new(), &[this]).expect("a place");
        let listed = native.run(&Job::program(&name, ["--list"])).expect("it ends");
        assert!(listed.expect_success().contains("native::tests"));
        let failed = native.run(&Job::script("echo why >&2; exit 3")).expect("it ends");
        assert_eq!((failed.status, failed.stderr.text().as_str()), (3, "why\n"));
    }

    #[test]
    fn what_does_not_end_is_killed_with_its_children() {
        let mut native = Native::with_devices(Vec::new(), &[]).expect("a place");
        let job = Job::script("sleep 1000 & echo $!; wait").timeout(Duration::from_millis(300));
        let error = native.run(&job).expect_err("it never ends");
        let MachineError::TimedOut { remains, .. } = error else {
            panic!("{error}");
        };
        let child: i32 = remains.stdout.text().trim().parse().expect("a process id");
        crate::wait::until(crate::wait::SOON, "the child is gone", || {
            let status = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            // A zombie that nobody has waited for yet is gone enough.
            let gone = status.is_empty() || status.contains(") Z ");
            gone.then_some(()).ok_or(status)
        });
    }
}

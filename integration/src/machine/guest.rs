//! A running machine.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tempfile::TempDir;

use super::contents;
use super::devices::{DEVICES_VARIABLE, MACHINE_DEVICES, MachineDevice, machine_device_list};
use super::error::{MachineError, Remains};
use super::host_files::program;
use super::job::{Job, JobOutput};
use super::kernel::Kernel;
use super::qemu::{Hardware, Qemu};
use super::streams::{Captured, Stream};

/// How long the machine may take from its start until it runs its first script.
const BOOT_MAX: Duration = Duration::from_secs(60);
/// How long making its devices may take.
const DEVICES_MAX: Duration = Duration::from_secs(30);
/// The longest script: it must fit into the port's socket, since it is written before the machine may read.
const SCRIPT_BYTES_MAX: usize = 64 << 10;
/// How often it is looked whether the machine still runs, if nothing comes from it.
const PROBE_PERIOD_MS: u16 = 100;

/// How a machine is to be.
#[derive(Debug, Clone)]
pub struct MachineOptions {
    /// Programs of the host that are put into the machine's PATH under their own file names, with the libraries they are linked with.
    pub programs: Vec<PathBuf>,
    /// Its memory. It holds its whole file system, so all programs, as well.
    pub memory_mib: u32,
    /// Its processors.
    pub cpus: u32,
    /// A directory of the host that it finds under /share, to read and to write.
    pub share: Option<PathBuf>,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self {
            programs: Vec::new(),
            memory_mib: 1024,
            cpus: 1,
            share: None,
        }
    }
}

/// A running machine. It ends when this is dropped, or when this process dies.
#[derive(Debug)]
pub struct Machine {
    qemu: Qemu,
    control: UnixStream,
    answers: Stream,
    stdout: Stream,
    stderr: Stream,
    console: Stream,
    _dir: TempDir,
}

/// Why no answer came.
enum Silence {
    TimedOut,
    Ended,
}

impl Machine {
    /// Starts a machine and makes its devices.
    pub fn boot(options: &MachineOptions) -> Result<Self, MachineError> {
        if !cfg!(target_arch = "x86_64") {
            let architecture = std::env::consts::ARCH;
            return Err(MachineError::Architecture { architecture });
        }
        let qemu = program("qemu-system-x86_64", "qemu-system-x86")?;
        // Before the kernel, which may have to be downloaded: what is missing is then told at once.
        let contents = contents::collect(&options.programs)?;
        let kernel = Kernel::prepare()?;
        let dir = tempfile::Builder::new()
            .prefix("tenon-machine-")
            .tempdir()
            .map_err(MachineError::io("make a directory in", std::env::temp_dir()))?;
        let initrd = dir.path().join("initrd");
        contents::write(contents, &kernel, &initrd)?;
        let hardware = Hardware {
            kernel: kernel.image(),
            initrd: initrd.clone(),
            memory_mib: options.memory_mib,
            cpus: options.cpus,
            share: options.share.as_deref(),
        };
        let (qemu, ports) = Qemu::start(&qemu, &hardware, dir.path())?;
        let stream = |socket| Stream::new(socket).map_err(MachineError::io("read a port in", dir.path()));
        let control = ports.control.try_clone();
        let mut machine = Self {
            qemu,
            control: control.map_err(MachineError::io("open the control port in", dir.path()))?,
            answers: stream(ports.control)?,
            stdout: stream(ports.stdout)?,
            stderr: stream(ports.stderr)?,
            console: stream(ports.console)?,
            _dir: dir,
        };
        machine.wait_ready()?;
        // The machine has it in its memory by now. What lies in the directory stays behind if this process is killed.
        std::fs::remove_file(&initrd).map_err(MachineError::io("remove", initrd))?;
        let devices = Job::script(devices_script()).timeout(DEVICES_MAX);
        let output = machine.run(&devices)?;
        if output.status != 0 {
            let said = output.stderr.text();
            let command = "making the devices in the machine".to_owned();
            return Err(MachineError::Command { command, said });
        }
        Ok(machine)
    }

    /// Runs a job to its end. If it does not end in time, the machine is killed. Processes that it leaves behind run on; what they write later
    /// is found in the output of the next job.
    pub fn run(&mut self, job: &Job) -> Result<JobOutput, MachineError> {
        if self.qemu.has_ended() {
            return Err(MachineError::Gone { script: job.name() });
        }
        let job_with_devices = job.clone().env_first(DEVICES_VARIABLE, &machine_device_list());
        let script = job_with_devices.text();
        assert!(script.len() <= SCRIPT_BYTES_MAX, "a script of {} bytes", script.len());
        self.stderr.hear(job.is_heard());
        let sent = self.control.write_all(format!("{}\n{script}", script.len()).as_bytes());
        sent.map_err(MachineError::io("send a script to", "the machine"))?;
        let silence = match self.answer(Instant::now() + job.bound()) {
            Ok(line) => {
                return Ok(JobOutput {
                    status: line.parse().expect("the machine answers with a number"),
                    stdout: self.stdout.take(),
                    stderr: self.stderr.take(),
                });
            }
            Err(silence) => silence,
        };
        self.qemu.kill();
        let remains = Box::new(Remains {
            stdout: self.stdout.take(),
            stderr: self.stderr.take(),
            console: self.console.take(),
            qemu: self.qemu.said(),
        });
        let (script, bound) = (job.name(), job.bound());
        Err(match silence {
            Silence::TimedOut => MachineError::TimedOut { script, bound, remains },
            Silence::Ended => MachineError::Ended { script, remains },
        })
    }

    /// What its kernel and its first process wrote since the last time.
    pub fn console(&mut self) -> Captured {
        self.console.take()
    }

    /// The process id of its qemu.
    pub fn pid(&self) -> u32 {
        self.qemu.pid()
    }

    fn wait_ready(&mut self) -> Result<(), MachineError> {
        match self.answer(Instant::now() + BOOT_MAX) {
            Ok(line) if line == "ready" => Ok(()),
            _ => {
                self.qemu.kill();
                Err(MachineError::Boot {
                    bound: BOOT_MAX,
                    qemu: self.qemu.said(),
                    console: self.console.take(),
                })
            }
        }
    }

    /// The next line on the control port. Meanwhile all other ports are read, for the machine waits while one is full.
    fn answer(&mut self, deadline: Instant) -> Result<String, Silence> {
        let mut line = Vec::new();
        loop {
            for stream in [&mut self.stdout, &mut self.stderr, &mut self.console] {
                stream.drain();
            }
            line.extend_from_slice(self.answers.take().bytes());
            if line.ends_with(b"\n") {
                return Ok(String::from_utf8_lossy(&line).trim().to_owned());
            }
            if self.qemu.has_ended() {
                return Err(Silence::Ended);
            }
            if Instant::now() >= deadline {
                return Err(Silence::TimedOut);
            }
            let streams = [&self.answers, &self.stdout, &self.stderr, &self.console];
            let mut waitables: Vec<_> = streams
                .into_iter()
                .filter_map(Stream::waitable)
                .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
                .collect();
            // An error is an interruption: the loop looks at everything again.
            let _ = poll(&mut waitables, PollTimeout::from(PROBE_PERIOD_MS));
        }
    }
}

/// Makes two veth pairs with a device on each end. All ends lie in one namespace, which is the only one soft-RoCE serves; packets cross the
/// pairs all the same, since each device sends from its own netdev. Each end must accept packets that come from an address of this
/// same host, and answer for its own address alone.
fn devices_script() -> String {
    let mut script = String::from("set -e\ncd /proc/sys/net/ipv4/conf\n");
    for scope in ["all", "default"] {
        let _ = writeln!(
            script,
            "echo 1 >{scope}/accept_local; echo 0 >{scope}/rp_filter; echo 1 >{scope}/arp_ignore"
        );
    }
    script.push_str("cd /\n");
    let (rails, _) = MACHINE_DEVICES.as_chunks::<2>();
    for [a, b] in rails {
        let _ = writeln!(script, "ip link add {} type veth peer name {}", a.netdev, b.netdev);
    }
    for MachineDevice { name, netdev, address } in MACHINE_DEVICES {
        // With frames of 9000 bytes the path MTU is 4096, the largest there is.
        let _ = writeln!(
            script,
            "ip link set {netdev} mtu 9000 up\nip address add {address}/24 dev {netdev}\nrdma link add {name} type rxe netdev {netdev}"
        );
    }
    for MachineDevice { name, address, .. } in MACHINE_DEVICES {
        let [a, b, c, d] = address.octets();
        let _ = writeln!(
            script,
            "until grep -q ACTIVE /sys/class/infiniband/{name}/ports/1/state &&\n\
             grep -q ffff:{a:02x}{b:02x}:{c:02x}{d:02x} /sys/class/infiniband/{name}/ports/1/gids/*; do sleep 0.02; done"
        );
    }
    script
}

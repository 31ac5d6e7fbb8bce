//! The process of the machine.

use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::error::MachineError;

/// How often it is looked whether the process has ended.
const PROBE_PERIOD: Duration = Duration::from_millis(10);
/// How long the process may take until it has opened its ports. The machine does not run before.
const PORTS_OPEN_MAX: Duration = Duration::from_secs(20);

/// What the process is told.
#[derive(Debug)]
pub(super) struct Hardware<'a> {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) memory_mib: u32,
    pub(super) cpus: u32,
    pub(super) share: Option<&'a Path>,
}

/// The host's ends of the machine's ports.
#[derive(Debug)]
pub(super) struct Ports {
    pub(super) console: UnixStream,
    pub(super) control: UnixStream,
    pub(super) stdout: UnixStream,
    pub(super) stderr: UnixStream,
}

/// A running qemu. Dropping this kills it; so does the kernel if this process dies first.
#[derive(Debug)]
pub(super) struct Qemu {
    /// Nothing is sent: that it is gone tells the guard to kill.
    alive: Option<Sender<()>>,
    guard: Option<JoinHandle<()>>,
    pid: u32,
    log: PathBuf,
}

impl Qemu {
    /// Starts the process. `dir` takes its sockets and its log.
    pub(super) fn start(program: &Path, hardware: &Hardware<'_>, dir: &Path) -> Result<(Self, Ports), MachineError> {
        let listen = |name: &str| {
            let path = dir.join(name);
            let listener = UnixListener::bind(&path).map_err(MachineError::io("listen on", &path))?;
            listener
                .set_nonblocking(true)
                .map_err(MachineError::io("prepare", &path))?;
            Ok::<_, MachineError>(listener)
        };
        let listeners = [
            listen("console")?,
            listen("control")?,
            listen("stdout")?,
            listen("stderr")?,
        ];
        let log = dir.join("qemu.log");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments(hardware, dir))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(MachineError::io("make", &log))?);
        let qemu = Self::spawn(command, log)?;
        let deadline = Instant::now() + PORTS_OPEN_MAX;
        let mut accepted = Vec::new();
        for listener in listeners {
            accepted.push(qemu.accept(&listener, deadline)?);
        }
        let [console, control, stdout, stderr] = accepted.try_into().expect("a port per listener");
        let ports = Ports {
            console,
            control,
            stdout,
            stderr,
        };
        Ok((qemu, ports))
    }

    /// The signal at the parent's death comes when the *thread* dies that started the process, so a thread of its own looks after it.
    fn spawn(mut command: Command, log: PathBuf) -> Result<Self, MachineError> {
        let (alive, gone) = channel();
        let (tell_started, started) = channel();
        let guard = std::thread::spawn(move || match command.spawn() {
            Ok(child) => {
                let _ = tell_started.send(Ok(child.id()));
                drop(tell_started);
                guard(child, &gone);
            }
            Err(error) => {
                let _ = tell_started.send(Err(error));
            }
        });
        let pid = started.recv().expect("the guard tells how it went");
        let pid = pid.map_err(MachineError::io("start qemu for", &log))?;
        Ok(Self {
            alive: Some(alive),
            guard: Some(guard),
            pid,
            log,
        })
    }

    fn accept(&self, listener: &UnixListener, deadline: Instant) -> Result<UnixStream, MachineError> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(_) if self.has_ended() || Instant::now() > deadline => {
                    return Err(MachineError::Command {
                        command: "qemu-system-x86_64".to_owned(),
                        said: self.said(),
                    });
                }
                Err(_) => std::thread::sleep(PROBE_PERIOD),
            }
        }
    }

    /// Whether the process has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.guard.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// What it wrote of its own.
    pub(super) fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Ends the process, without a word to the machine, and waits until it is gone.
    pub(super) fn kill(&mut self) {
        self.alive = None;
        if let Some(guard) = self.guard.take() {
            let _ = guard.join();
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until the process has ended, or kills it when its owner is gone.
fn guard(mut child: Child, owner: &Receiver<()>) {
    while let Ok(None) = child.try_wait() {
        if owner.recv_timeout(PROBE_PERIOD) == Err(RecvTimeoutError::Disconnected) {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
    }
}

/// Ports are sockets, so that what comes out is bounded by who reads it.
fn arguments(hardware: &Hardware<'_>, dir: &Path) -> Vec<String> {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut arguments =
        words("-nodefaults -no-user-config -display none -no-reboot -machine q35 -device virtio-serial-pci");
    arguments.extend(words(match hardware_virtualisation() {
        true => "-accel kvm -cpu host",
        false => "-accel tcg,thread=multi -cpu max",
    }));
    for name in ["console", "control", "stdout", "stderr"] {
        let path = dir.join(name);
        arguments.extend([
            "-chardev".to_owned(),
            format!("socket,id={name},path={}", path.display()),
        ]);
    }
    arguments.extend(words("-serial chardev:console"));
    for (number, name) in ["control", "stdout", "stderr"].into_iter().enumerate() {
        let port = format!("virtserialport,chardev={name},nr={},name={name}", number + 1);
        arguments.extend(["-device".to_owned(), port]);
    }
    // Without mitigations: nothing in the machine is a stranger to anything else in it. Without the check that the timer ticks: on a busy host
    // the machine may get no processor for the moment in which it looks, and gives up.
    let mut append = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check".to_owned();
    if let Some(share) = hardware.share {
        let share = format!("local,path={},mount_tag=share,security_model=none", share.display());
        arguments.extend(["-virtfs".to_owned(), share]);
        append.push_str(" tenon.share");
    }
    let pairs = [
        ("-m", hardware.memory_mib.to_string()),
        ("-smp", hardware.cpus.to_string()),
        ("-kernel", hardware.kernel.display().to_string()),
        ("-initrd", hardware.initrd.display().to_string()),
        ("-append", append),
    ];
    arguments.extend(pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    arguments
}

/// Some hosts have /dev/kvm without the processor's help, and cannot run this kernel with it: the processor's flags count.
fn hardware_virtualisation() -> bool {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flagged = cpu.split_whitespace().any(|word| word == "vmx" || word == "svm");
    flagged && File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

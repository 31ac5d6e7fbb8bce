//! CPU time of processes, this one and others, and of the whole host.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::time::ClockId;
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The CPU clocks of some processes.
#[derive(Debug)]
pub struct CpuClocks(Vec<ClockId>);

impl CpuClocks {
    /// Of this process and those with the given ids, which must run for as long as this is used.
    pub fn of_this_and(others: &[u32]) -> Result<Self> {
        let others = others.iter().map(|&id| {
            let pid = Pid::from_raw(i32::try_from(id).context("a process id fits in 31 bits")?);
            ClockId::pid_cpu_clock_id(pid).with_context(|| format!("process {id} has no CPU clock"))
        });
        std::iter::once(Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID))
            .chain(others)
            .collect::<Result<_>>()
            .map(Self)
    }

    /// What all of them have used so far, in user and system mode.
    pub fn used(&self) -> Result<Duration> {
        let read = |clock: &ClockId| clock.now().map(Duration::from).context("cannot read a CPU clock");
        self.0.iter().map(read).sum()
    }
}

/// What all processors of the host have worked since it started, for processes and for the kernel: some of what devices made of software cost is
/// done by nobody's process.
pub fn used_by_host() -> Result<Duration> {
    let ticks_per_s = sysconf(SysconfVar::CLK_TCK)?.context("the length of a clock tick")?;
    let ticks = HostTicks::now()?.busy;
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_s as f64))
}

/// How the processors of the host have spent their time since it started, in clock ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTicks {
    /// All but idle ones, stolen ones among them.
    busy: u64,
    /// Those in which there was work and the machine beneath gave the processor to others.
    stolen: u64,
}

impl HostTicks {
    /// Until now.
    pub fn now() -> Result<Self> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&text).with_context(|| format!("no times of processors: {text}"))
    }

    /// The first line of `/proc/stat`: user, nice, system, *idle, waiting for disks*, interrupts, the kernel's own, stolen; what follows is counted
    /// in these already.
    fn parse(stat: &str) -> Option<Self> {
        let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
        let all = ticks.get(..8)?;
        Some(Self {
            busy: all.iter().sum::<u64>() - all[3] - all[4],
            stolen: all[7],
        })
    }

    /// Of the time in which there was work since `before`, the share that was stolen.
    #[must_use]
    pub fn stolen_share_since(self, before: Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.busy - before.busy).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_worked_at_least_what_this_process_did() {
        let ticks = HostTicks::parse("cpu  1 20 300 4000 50000 6 70 800 9 9\ncpu0 1 1 1 1\n").unwrap();
        assert_eq!((ticks.busy, ticks.stolen), (1197, 800));
        let before = HostTicks { busy: 197, stolen: 550 };
        assert!((ticks.stolen_share_since(before) - 0.25).abs() < 1e-9);
        assert_eq!(HostTicks::parse("cpu  1 2 3\n"), None);
        assert!(used_by_host().unwrap() > Duration::ZERO);
    }

    #[test]
    fn work_is_counted_and_so_is_another_process() {
        let own = CpuClocks::of_this_and(&[]).unwrap();
        let with_parent = CpuClocks::of_this_and(&[std::process::id()]).unwrap();
        let before = own.used().unwrap();
        let mut sum = 0_u64;
        while own.used().unwrap() < before + Duration::from_millis(5) {
            sum = std::hint::black_box(sum + 1);
        }
        // The own process twice.
        assert!(with_parent.used().unwrap() >= own.used().unwrap() + before);
    }
}

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
    let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    let ticks = busy_ticks(&text).with_context(|| format!("no times of processors: {text}"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / ticks_per_s as f64))
}

/// All that the first line of `/proc/stat` counts, but for idleness: user, nice, system, *idle, waiting for disks*, interrupts, the kernel's own,
/// stolen; what follows is counted in these already.
fn busy_ticks(stat: &str) -> Option<u64> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let busy = ticks.get(..8)?;
    Some(busy.iter().sum::<u64>() - busy[3] - busy[4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_worked_at_least_what_this_process_did() {
        assert_eq!(
            busy_ticks("cpu  1 20 300 4000 50000 6 70 800 9 9\ncpu0 1 1 1 1\n"),
            Some(1197)
        );
        assert_eq!(busy_ticks("cpu  1 2 3\n"), None);
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

//! CPU time of processes, this one and others.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::time::ClockId;
use nix::unistd::Pid;

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

#[cfg(test)]
mod tests {
    use super::*;

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

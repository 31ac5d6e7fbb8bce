//! Bounds on locked memory, and huge pages.

use std::io;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use super::kernel::{number, text};
use crate::cli::doctor::facts::{HugePagePool, Known, LockedMemory, Memory};
use crate::config::Host;

/// The number of CAP_IPC_LOCK among the capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// Looks at the memory, of the agent if it runs under this process id.
pub(super) fn look(agent_pid: Option<i32>) -> Memory {
    let locked = match agent_pid {
        Some(pid) => of_agent(pid),
        None => of_this_command(),
    };
    Memory {
        locked: Known::from_result(locked),
        huge_pages: Known::from_result(huge_pages()),
    }
}

fn of_this_command() -> io::Result<LockedMemory> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK)?;
    let bounded = |limit| (limit != RLIM_INFINITY).then_some(limit);
    Ok(LockedMemory {
        agent_pid: None,
        soft_bytes: bounded(soft),
        hard_bytes: bounded(hard),
        is_exempt: is_exempt(&text("/proc/self/status")?)?,
    })
}

fn of_agent(pid: i32) -> io::Result<LockedMemory> {
    let (soft_bytes, hard_bytes) = locked_limits(&text(format!("/proc/{pid}/limits"))?)?;
    Ok(LockedMemory {
        agent_pid: Some(pid),
        soft_bytes,
        hard_bytes,
        is_exempt: is_exempt(&text(format!("/proc/{pid}/status"))?)?,
    })
}

/// The soft and the hard bound in the text of /proc/PID/limits; `None` is no bound.
fn locked_limits(limits: &str) -> io::Result<(Option<u64>, Option<u64>)> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let mut words = line.unwrap_or_default().split_whitespace();
    let mut limit = || match words.next() {
        Some("unlimited") => Ok(None),
        word => word.and_then(|word| word.parse().ok()).map(Some).ok_or_else(|| {
            io::Error::other("the limits of the process have no line \"Max locked memory\" as expected")
        }),
    };
    Ok((limit()?, limit()?))
}

/// Whether the capabilities in the text of /proc/PID/status make the bound void.
fn is_exempt(status: &str) -> io::Result<bool> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    let effective = effective.ok_or_else(|| io::Error::other("the status of the process has no line \"CapEff\""))?;
    Ok(effective >> CAP_IPC_LOCK & 1 == 1)
}

/// Those of the default size: `tenond` asks for no others.
fn huge_pages() -> io::Result<Option<HugePagePool>> {
    let Some(page_bytes) = Host::probe().huge_page_bytes else {
        return Ok(None);
    };
    let dir = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10);
    let count = |name: &str| number(format!("{dir}/{name}"));
    Ok(Some(HugePagePool {
        page_bytes,
        total_pages: count("nr_hugepages")?,
        free_pages: count("free_hugepages")?,
        reserved_pages: count("resv_hugepages")?,
        overcommit_pages: count("nr_overcommit_hugepages")?,
        surplus_pages: count("surplus_hugepages")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_a_process_are_read() {
        let limits = |values: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max processes             94990                94990                processes \n\
                 Max locked memory         {values} bytes     \n"
            )
        };
        assert_eq!(
            locked_limits(&limits("8388608              unlimited")).unwrap(),
            (Some(8 << 20), None)
        );
        assert_eq!(locked_limits(&limits("unlimited unlimited")).unwrap(), (None, None));
        for damaged in ["Max processes 1 1", "Max locked memory", "Max locked memory much more"] {
            assert!(locked_limits(damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn one_capability_makes_the_bound_void() {
        assert!(is_exempt("Name:\tx\nCapEff:\t0000000000004000\n").unwrap());
        assert!(!is_exempt("CapEff:\t000001ffffffbfff\n").unwrap());
        assert!(is_exempt("Name:\tx\n").is_err());
        assert!(is_exempt("CapEff:\tmany\n").is_err());
    }

    #[test]
    fn this_process_has_bounds() {
        let memory = look(None);
        assert!(memory.locked.get().is_some_and(|locked| locked.agent_pid.is_none()));
        let pid = i32::try_from(std::process::id()).unwrap();
        let (of_self, by_pid) = (of_this_command().unwrap(), of_agent(pid).unwrap());
        assert_eq!(
            (of_self.soft_bytes, of_self.hard_bytes, of_self.is_exempt),
            (by_pid.soft_bytes, by_pid.hard_bytes, by_pid.is_exempt)
        );
        assert!(matches!(look(Some(i32::MAX)).locked, Known::No { .. }));
    }
}

//! Whether the host has the memory that the segments need, in the form that they need.

use super::{bytes, count};
use crate::cli::doctor::facts::{
    AgentState, Backing, Facts, FileSystem, FileSystemKind, HugePagePool, Known, LockedMemory, MountedSegment, Segment,
    Wish,
};
use crate::cli::doctor::finding::{Finding, Section, Verdict};
use std::path::Path;

const LOCKED: (Section, &str) = (Section::Memory, "memory.locked");
const HUGE: (Section, &str) = (Section::Memory, "memory.huge_pages");
const FILE: (Section, &str) = (Section::Memory, "memory.file");

pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![locked(facts)];
    findings.push(match mounted(facts) {
        Some(mounted) => huge_pages_in_use(facts.configuration.segments.as_deref(), mounted),
        None => huge_pages(&facts.memory.huge_pages, facts.configuration.segments.as_deref()),
    });
    if mounted(facts).is_none() {
        findings.extend(files(facts.configuration.segments.as_deref().unwrap_or_default()));
    }
    findings
}

/// What a running agent has mounted: it has taken what it needs, so what is free says nothing any more.
fn mounted(facts: &Facts) -> Option<&[MountedSegment]> {
    match &facts.agent.state {
        AgentState::Answers(answer) => answer.segments.get().map(Vec::as_slice),
        _ => None,
    }
}

/// Registered memory counts as locked, once for each device.
fn locked(facts: &Facts) -> Finding {
    const SUBJECT: &str = "locked memory";
    let finding = |verdict, message| Finding::new(LOCKED, verdict, SUBJECT, message);
    let locked = match &facts.memory.locked {
        Known::Yes(locked) => locked,
        Known::No { not_read } => {
            return finding(Verdict::Warning, format!("its bound is not known: {not_read}"))
                .advise("tenond needs LimitMEMLOCK=infinity where there are RDMA devices, as its unit has it");
        }
    };
    let bound = bound(locked);
    let devices = facts.rdma.devices.len() as u64;
    let needed = facts.configuration.registered_bytes();
    match needed.map(|needed| needed.saturating_mul(devices)) {
        _ if facts.configuration.rdma == Some(Wish::Off) => {
            finding(Verdict::Ok, format!("{bound}; without RDMA none is locked"))
        }
        _ if devices == 0 => finding(Verdict::Ok, format!("{bound}; without RDMA devices none is locked")),
        None => finding(Verdict::Ok, format!("{bound}; how much the segments need is not known")),
        Some(needed) if suffices(locked, needed) => {
            let devices = count(facts.rdma.devices.len(), "device", "devices");
            finding(
                Verdict::Ok,
                format!("{bound}; the segments need {} on {devices}", bytes(needed)),
            )
        }
        Some(needed) => {
            let devices = count(facts.rdma.devices.len(), "device", "devices");
            let message = format!(
                "{bound}; too little for the {} that segments need on {devices}",
                bytes(needed)
            );
            let verdict = match facts.configuration.rdma {
                Some(Wish::Require) => Verdict::Problem,
                _ => Verdict::Warning,
            };
            finding(verdict, message).advise(raise(locked, needed))
        }
    }
}

fn bound(locked: &LockedMemory) -> String {
    let whose = match locked.agent_pid {
        Some(pid) => format!("tenond (process {pid})"),
        None => "this command".to_owned(),
    };
    let limit = |limit: Option<u64>| limit.map_or_else(|| "any amount".to_owned(), bytes);
    let (soft, hard) = (limit(locked.soft_bytes), limit(locked.hard_bytes));
    match (locked.is_exempt, locked.soft_bytes) {
        (true, Some(_)) => format!("{whose} has CAP_IPC_LOCK, which makes the bound of {soft} void"),
        _ if soft == hard => format!("{whose} may lock {soft}"),
        _ => format!("{whose} may lock {soft}, at most {hard}"),
    }
}

fn suffices(locked: &LockedMemory, needed_bytes: u64) -> bool {
    locked.is_exempt || locked.soft_bytes.is_none_or(|bound| bound >= needed_bytes)
}

fn raise(locked: &LockedMemory, needed_bytes: u64) -> String {
    let kib = needed_bytes.div_ceil(1024);
    let here = match locked.agent_pid {
        Some(_) => "set LimitMEMLOCK=infinity in the unit of tenond, and restart it".to_owned(),
        None => format!("ulimit -l {kib} for a tenond that is started from here"),
    };
    match locked.agent_pid {
        Some(_) => here,
        None => format!("{here}; the unit of tenond has a bound of its own (LimitMEMLOCK=infinity)"),
    }
}

/// Bytes of the segments with this wish, in whole pages.
fn pages_of(segments: &[Segment], wish: Wish, page_bytes: u64) -> u64 {
    let wished = segments
        .iter()
        .filter(|segment| segment.backing == Backing::Memfd { huge_pages: wish });
    wished.fold(0, |pages, segment| {
        pages.saturating_add(segment.len_bytes.div_ceil(page_bytes.max(1)))
    })
}

/// Whether huge pages are there for segments that are to be mounted.
fn huge_pages(pool: &Known<Option<HugePagePool>>, segments: Option<&[Segment]>) -> Finding {
    const SUBJECT: &str = "huge pages";
    let finding = |verdict, message| Finding::new(HUGE, verdict, SUBJECT, message);
    let pool = match pool {
        Known::Yes(pool) => pool,
        Known::No { not_read } => {
            return finding(Verdict::Warning, format!("how many there are is not known: {not_read}"))
                .advise("grep Huge /proc/meminfo");
        }
    };
    let Some(segments) = segments else {
        return finding(Verdict::Ok, "how many the segments need is not known".to_owned());
    };
    let page_bytes = pool.map_or(2 << 20, |pool| pool.page_bytes);
    let required = pages_of(segments, Wish::Require, page_bytes);
    let wished = required.saturating_add(pages_of(segments, Wish::Prefer, page_bytes));
    let available = pool.map_or(0, |pool| pool.available_pages());
    let has = match pool {
        Some(pool) => format!("{available} pages of {} are available", bytes(pool.page_bytes)),
        None => "the kernel has none".to_owned(),
    };
    let total = pool.map_or(0, |pool| pool.total_pages);
    let advice = |needed: u64| {
        let pages = total.saturating_add(needed.saturating_sub(available));
        format!("sysctl vm.nr_hugepages={pages}, best at boot: memory that was used is seldom free in large pieces")
    };
    if required > available {
        finding(
            Verdict::Problem,
            format!("{has}, segments with huge_pages = \"require\" need {required}"),
        )
        .advise(advice(wished))
    } else if wished > available {
        let message = format!("{has}, {wished} are wished for: segments get ordinary pages, which cost speed");
        finding(Verdict::Warning, message).advise(format!("{}; or huge_pages = \"off\"", advice(wished)))
    } else if wished == 0 {
        finding(Verdict::Ok, format!("{has}, no segment asks for them"))
    } else {
        finding(Verdict::Ok, format!("{has}, the segments need {wished}"))
    }
}

/// Whether mounted segments lie on huge pages.
fn huge_pages_in_use(segments: Option<&[Segment]>, mounted: &[MountedSegment]) -> Finding {
    const SUBJECT: &str = "huge pages";
    const ORDINARY_BYTES_MAX: u64 = 64 << 10;
    let finding = |verdict, message| Finding::new(HUGE, verdict, SUBJECT, message);
    let memfd = mounted.iter().filter(|segment| segment.backing == "memfd");
    let (ordinary, huge): (Vec<_>, Vec<_>) = memfd.partition(|segment| segment.page_bytes <= ORDINARY_BYTES_MAX);
    let wished = segments.unwrap_or_default().iter().any(|segment| {
        matches!(
            segment.backing,
            Backing::Memfd {
                huge_pages: Wish::Prefer | Wish::Require
            }
        )
    });
    let total = ordinary.len() + huge.len();
    match ordinary.len() {
        0 if total == 0 => finding(Verdict::Ok, "no mounted segment is of memfd".to_owned()),
        0 => finding(
            Verdict::Ok,
            format!(
                "{} mounted on pages of {}",
                count(total, "segment", "segments"),
                bytes(huge[0].page_bytes)
            ),
        ),
        number if wished => {
            let message = format!("{number} of {total} mounted segments lie on ordinary pages, which cost speed");
            finding(Verdict::Warning, message)
                .advise("set huge pages aside (vm.nr_hugepages) and restart tenond; or huge_pages = \"off\"")
        }
        _ => finding(Verdict::Ok, "no segment asks for them".to_owned()),
    }
}

/// Whether the files of segments can be made.
fn files(segments: &[Segment]) -> Vec<Finding> {
    let file = |segment: &Segment| match &segment.backing {
        Backing::Memfd { .. } => None,
        Backing::File { path, file_system } => Some(judge_file(path, file_system, segment.len_bytes)),
    };
    segments.iter().filter_map(file).collect()
}

fn judge_file(path: &Path, found: &Known<FileSystem>, len_bytes: u64) -> Finding {
    let finding = |verdict, message| Finding::new(FILE, verdict, path.display().to_string(), message);
    let found = match found {
        Known::Yes(found) => found,
        Known::No { not_read } => {
            let message = format!("its file system is not known: {not_read}");
            return finding(Verdict::Warning, message).advise("run this as root or as the user of tenond");
        }
    };
    let (free, needed) = (bytes(found.free_bytes), bytes(len_bytes));
    match found.kind {
        FileSystemKind::Missing => finding(Verdict::Problem, "there is no such directory".to_owned())
            .advise("make it, on tmpfs (such as /dev/shm) or hugetlbfs"),
        FileSystemKind::Other => finding(Verdict::Problem, "it lies on no file system in memory".to_owned())
            .advise("put it on tmpfs (such as /dev/shm) or hugetlbfs"),
        FileSystemKind::Memory if found.free_bytes < len_bytes => {
            let message = format!("its file system has {free} free, the segment has {needed}");
            finding(Verdict::Warning, message)
                .advise("fine if the file is there already and full; else mount it with a larger size=")
        }
        FileSystemKind::Memory => finding(Verdict::Ok, format!("its file system has {free} free")),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;

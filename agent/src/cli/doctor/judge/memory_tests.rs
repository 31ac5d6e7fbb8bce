//! Verdicts on memory, from made-up hosts.

use super::super::samples;
use super::*;

fn locked_memory(agent_pid: Option<i32>, soft_bytes: Option<u64>, is_exempt: bool) -> LockedMemory {
    LockedMemory {
        agent_pid,
        soft_bytes,
        hard_bytes: soft_bytes,
        is_exempt,
    }
}

fn verdict_on(bound: LockedMemory) -> Finding {
    let mut facts = samples::good_host();
    facts.memory.locked = Known::Yes(bound);
    locked(&facts)
}

#[test]
fn every_device_locks_all_segments_and_tables_again() {
    let facts = samples::good_host();
    let once = facts.configuration.registered_bytes().unwrap();
    assert_eq!(facts.rdma.devices.len(), 2);
    assert_eq!(
        verdict_on(locked_memory(None, Some(2 * once), false)).verdict,
        Verdict::Ok
    );
    let short = verdict_on(locked_memory(None, Some(2 * once - 1), false));
    assert_eq!(short.verdict, Verdict::Warning);
    let kib = (2 * once).div_ceil(1024);
    assert!(short.advice.unwrap().contains(&format!("ulimit -l {kib} ")));
}

#[test]
fn no_bound_and_the_capability_suffice_for_all() {
    assert_eq!(verdict_on(locked_memory(None, None, false)).verdict, Verdict::Ok);
    assert_eq!(verdict_on(locked_memory(Some(7), Some(0), true)).verdict, Verdict::Ok);
    let of_agent = verdict_on(locked_memory(Some(7), Some(64 << 10), false));
    assert_eq!(of_agent.verdict, Verdict::Warning);
    assert!(of_agent.message.contains("process 7"), "{of_agent:?}");
    assert!(of_agent.advice.unwrap().contains("restart it"));
}

#[test]
fn without_devices_nothing_is_locked() {
    let mut facts = samples::good_host();
    facts.rdma.devices.clear();
    facts.memory.locked = Known::Yes(locked_memory(None, Some(0), false));
    assert_eq!(locked(&facts).verdict, Verdict::Ok);
}

fn pool(total_pages: u64, free_pages: u64, reserved_pages: u64, overcommit_pages: u64) -> Known<Option<HugePagePool>> {
    Known::Yes(Some(HugePagePool {
        page_bytes: 2 << 20,
        total_pages,
        free_pages,
        reserved_pages,
        overcommit_pages,
        surplus_pages: 0,
    }))
}

/// A segment of ten pages, or nine and a half.
fn segment(huge_pages: Wish) -> Segment {
    Segment {
        len_bytes: 19 << 20,
        table_bytes: 1 << 20,
        backing: Backing::Memfd { huge_pages },
    }
}

#[test]
fn required_pages_that_are_missing_are_a_problem_and_preferred_ones_a_warning() {
    for (pool, required, preferred) in [
        (pool(10, 10, 0, 0), Verdict::Ok, Verdict::Ok),
        (pool(10, 9, 0, 0), Verdict::Problem, Verdict::Warning),
        (pool(20, 12, 3, 0), Verdict::Problem, Verdict::Warning),
        (pool(0, 0, 0, 10), Verdict::Ok, Verdict::Ok),
        (Known::Yes(None), Verdict::Problem, Verdict::Warning),
    ] {
        let verdict = |wish| huge_pages(&pool, Some(&[segment(wish)])).verdict;
        assert_eq!(verdict(Wish::Require), required, "{pool:?}");
        assert_eq!(verdict(Wish::Prefer), preferred, "{pool:?}");
        assert_eq!(verdict(Wish::Off), Verdict::Ok, "{pool:?}");
    }
}

#[test]
fn the_advice_names_how_many_pages_there_must_be() {
    let segments = [segment(Wish::Require), segment(Wish::Prefer)];
    let finding = huge_pages(&pool(30, 4, 1, 0), Some(&segments));
    // 20 are wished for and 3 available, so 17 more than the 30 that there are.
    assert!(finding.advice.unwrap().starts_with("sysctl vm.nr_hugepages=47,"));
}

#[test]
fn what_a_running_agent_has_mounted_counts_and_not_what_is_free() {
    let mounted = |page_bytes| MountedSegment {
        len_bytes: 20 << 20,
        page_bytes,
        backing: "memfd".into(),
    };
    let verdict = |page_bytes, wish| huge_pages_in_use(Some(&[segment(wish)]), &[mounted(page_bytes)]).verdict;
    assert_eq!(verdict(2 << 20, Wish::Prefer), Verdict::Ok);
    assert_eq!(verdict(4 << 10, Wish::Prefer), Verdict::Warning);
    assert_eq!(verdict(4 << 10, Wish::Off), Verdict::Ok);
    let mut facts = samples::good_host();
    facts.memory.huge_pages = pool(0, 0, 0, 0);
    assert!(judge(&facts).iter().all(|finding| finding.verdict == Verdict::Ok));
}

#[test]
fn a_file_needs_a_file_system_in_memory_with_room() {
    let verdict = |found| judge_file(Path::new("/mnt/huge/a"), &found, 1 << 30).verdict;
    let on = |kind, free_bytes| Known::Yes(FileSystem { kind, free_bytes });
    assert_eq!(verdict(on(FileSystemKind::Memory, 1 << 30)), Verdict::Ok);
    assert_eq!(verdict(on(FileSystemKind::Memory, 1 << 20)), Verdict::Warning);
    assert_eq!(verdict(on(FileSystemKind::Other, 1 << 40)), Verdict::Problem);
    assert_eq!(verdict(on(FileSystemKind::Missing, 0)), Verdict::Problem);
    let private = Known::No {
        not_read: "EACCES".into(),
    };
    assert_eq!(verdict(private), Verdict::Warning);
}

//! Where and from what an experiment was run.

use std::fs;
use std::process::Command;

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Processor, kernel, memory, load, compiler and commit, as far as they can be found out.
#[must_use]
pub fn describe() -> Value {
    let cpu = line_after("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned());
    let memory = line_after("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown".to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    json!({
        "cpu": cpu,
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": memory,
        "kernel": kernel.trim(),
        "load_before": load.split_whitespace().next().unwrap_or("unknown"),
        "rustc": output("rustc", &["--version"]),
        "commit": output("git", &["rev-parse", "--short=12", "HEAD"]),
    })
}

/// Processor time of this thread in seconds: a clock that stands while others have the processor.
///
/// # Panics
/// If the system has no such clock.
#[must_use]
pub fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock of the thread");
    time.tv_sec() as f64 + time.tv_nsec() as f64 * 1e-9
}

/// The most memory in MiB that this process had resident so far.
#[must_use]
pub fn peak_rss_mib() -> Option<f64> {
    let line = line_after("/proc/self/status", "VmHWM")?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

fn line_after(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output
        .ok()
        .filter(|output| output.status.success())
        .map(|output| output.stdout);
    text.and_then(|text| String::from_utf8(text).ok())
        .map_or_else(|| "unknown".to_owned(), |text| text.trim().to_owned())
}

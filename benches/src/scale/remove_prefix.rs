//! What others' calls cost while everything under a prefix is removed.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenon_client::default_deadline;
use tokio::time::{Instant, sleep};

use crate::control::program::Program;
use crate::report::{Report, Samples};
use crate::scale::load::{Call, Kind, Load, PRESENT};
use crate::scale::run::{ASKED, HOLDER, put, start};

/// What is removed begins so.
const GONE: &str = "gone";
/// Keys of a page.
const PAGES: [u32; 2] = [1000, 128];
/// Objects that stay, and are asked for.
const KEPT: u64 = 4096;
/// Calls may take so much longer at the 99th percentile meanwhile.
const DELAY_GOAL_MS: f64 = 10.0;

/// Puts the objects, and removes them while others call.
pub async fn run(objects: u64, calm: Duration, report: &mut Report) -> Result<()> {
    let cluster = start(objects + KEPT)?;
    cluster.settled().await?;
    let mut programs = Vec::new();
    for at in ASKED {
        programs.push(Program::start(&cluster, at).await?);
    }
    put(&programs[0], PRESENT, KEPT, cluster.id(HOLDER)).await?;
    for page in PAGES {
        put(&programs[0], GONE, objects, cluster.id(HOLDER)).await?;
        measure(&programs, objects, page, calm, report).await?;
    }
    Ok(())
}

async fn measure(programs: &[Program], objects: u64, page: u32, calm: Duration, report: &mut Report) -> Result<()> {
    let load = Load::start(programs, KEPT);
    sleep(Duration::from_millis(500)).await;
    let from = Instant::now();
    sleep(calm).await;
    let begun = Instant::now();
    let longest_page = remove(&programs[0], objects, page).await?;
    let done = Instant::now();
    let calls = load.stop().await?;
    let removing_s = (done - begun).as_secs_f64();
    println!(
        "remove_prefix/{page}: {objects} objects in {removing_s:.1} s, the longest page took {:.0} ms",
        longest_page.as_secs_f64() * 1e3
    );
    report.push(
        &format!("remove_prefix/{page}"),
        "keys_per_s",
        objects as f64 / removing_s,
        "1/s",
    );
    let wrong: u64 = calls.iter().flat_map(|call| call.wrong.values()).sum();
    ensure!(wrong == 0, "{wrong} answers about what stays were wrong");
    for kind in Kind::ALL {
        let p99_ms = |since: Instant, until: Instant| {
            let is_of = |call: &&Call| call.kind == kind && call.end > since && call.end <= until;
            let times = calls.iter().filter(is_of).map(|call| call.took.as_secs_f64() * 1e3);
            let times: Vec<f64> = times.collect();
            ensure!(!times.is_empty(), "no {} ended: name more objects", kind.name());
            Ok(Samples::new(times).quantile(0.99))
        };
        let (before, during) = (p99_ms(from, begun)?, p99_ms(begun, done)?);
        let delay = during - before;
        let verdict = if delay <= DELAY_GOAL_MS { "held" } else { "missed" };
        println!(
            "remove_prefix/{page}/{:14} P99 {before:>7.2} ms before, {during:>7.2} ms meanwhile: {delay:>+7.2} ms ({verdict})",
            kind.name()
        );
        let case = format!("remove_prefix/{page}/{}", kind.name());
        report.push(&case, "p99_before_ms", before, "ms");
        report.push(&case, "p99_ms", during, "ms");
    }
    Ok(())
}

/// Page by page; the time of the longest.
async fn remove(program: &Program, objects: u64, limit: u32) -> Result<Duration> {
    let (mut removed, mut after, mut longest) = (0, None, Duration::ZERO);
    loop {
        let began = Instant::now();
        let page = program
            .client()
            .remove_page(program.namespace(), GONE, after, limit, default_deadline(0))
            .await?;
        longest = longest.max(began.elapsed());
        ensure!(page.failed.is_empty(), "{:?}", page.failed.first());
        removed += page.removed;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    ensure!(removed == objects, "{removed} of {objects} objects were removed");
    Ok(longest)
}

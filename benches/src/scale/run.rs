//! What look-ups and gets cost before a home dies, while it is dead, and while it learns everything anew.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tenon_client::{Client, ConnectOptions, default_deadline};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::IndexInfo;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Segment};
use crate::control::memory::rss_bytes;
use crate::control::program::{OBJECT_BYTES, Program};
use crate::report::{Report, Samples};
use crate::scale::load::{Call, Kind, LIES, Load, PRESENT};
use crate::transfer::cpu::HostTicks;

const NODES: usize = 5;
pub(super) const HOLDER: usize = 0;
/// Nodes through which is asked; each is a home too.
pub(super) const ASKED: [usize; 2] = [1, 2];
/// A home that nobody asks anything but its entries.
const WITNESS: usize = 3;
/// The home that dies.
const VICTIM: usize = 4;
const PUT_BATCH: usize = 1024;
const PUTS_IN_FLIGHT: usize = 4;
const POLL: Duration = Duration::from_millis(20);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(300);

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Objects on the holder.
    pub objects: u64,
    /// How long it is measured before the death, and after the home has settled.
    pub calm: Duration,
    /// How long the home stays dead.
    pub dead: Duration,
}

/// What divides the measurement.
struct Mark {
    at: Instant,
    ticks: HostTicks,
}

impl Mark {
    fn now() -> Result<Self> {
        Ok(Self {
            at: Instant::now(),
            ticks: HostTicks::now()?,
        })
    }
}

/// The marks before, between and after the phases.
struct Phases([Mark; 5]);

impl Phases {
    const NAMES: [&str; 4] = ["before", "killed", "learning", "settled"];

    /// In which phase a call ended.
    fn of(&self, call: &Call) -> &'static str {
        let [_, starts @ .., _] = &self.0;
        Self::NAMES[starts.iter().filter(|start| call.end > start.at).count()]
    }

    /// What a host that is not ours alone took away in each: a phase in which that is much can't be compared.
    fn report_stolen(&self, report: &mut Report) {
        for (name, marks) in Self::NAMES.iter().zip(self.0.windows(2)) {
            let share = marks[1].ticks.stolen_share_since(marks[0].ticks);
            println!(
                "scale: {:.0} % of processor time stolen from phase {name}",
                share * 100.0
            );
            report.push(&format!("scale/host/{name}"), "stolen_share", share, "1");
        }
    }
}

/// Puts the objects, kills a home, and measures.
pub async fn run(effort: &Effort, report: &mut Report) -> Result<()> {
    let mut cluster = start(effort.objects)?;
    cluster.settled().await?;
    let before = processes(&cluster)?;
    let mut programs = Vec::new();
    for at in ASKED {
        programs.push(Program::start(&cluster, at).await?);
    }
    let start = Instant::now();
    put(&programs[0], PRESENT, effort.objects, cluster.id(HOLDER)).await?;
    let put_s = start.elapsed().as_secs_f64();
    let keys = index(&cluster, VICTIM).await.context("the home does not answer")?.keys;
    println!(
        "scale: {} objects put in {put_s:.1} s; the home that will die keeps {keys} entries",
        effort.objects
    );
    report.push("scale/put", "keys_per_s", effort.objects as f64 / put_s, "1/s");
    let growth = |at: usize, keys: u64| anyhow::Ok((processes(&cluster)?[at] - before[at]) / keys as f64);
    let (at_holder, at_home) = (
        growth(HOLDER, effort.objects)?,
        growth(WITNESS, index(&cluster, WITNESS).await?.keys)?,
    );
    println!("scale: resident memory per key grew by {at_home:.0} B at a home, by {at_holder:.0} B at the holder");
    report.push("scale/process/home", "bytes_per_key", at_home, "B");
    report.push("scale/process/holder", "bytes_per_key", at_holder, "B");

    let load = Load::start(&programs, effort.objects);
    let (phases, learned) = measure(&mut cluster, effort).await?;
    let mut calls = load.stop().await?;
    calls.retain(|call| call.end > phases.0[0].at);
    let settled_s = (phases.0[3].at - phases.0[2].at).as_secs_f64();
    println!(
        "scale: settled {settled_s:.2} s after its start, with {} entries of {keys}, from {} keys in pages",
        learned.keys, learned.learned_keys
    );
    report.push("scale/learning", "settled_s", settled_s, "s");
    report.push("scale/learning", "entries", learned.keys as f64, "1");
    report.push("scale/learning", "learned_keys", learned.learned_keys as f64, "1");
    ensure!(
        learned.keys == keys,
        "a settled home keeps {} of {keys} entries",
        learned.keys
    );
    print(&calls, &phases, report);
    phases.report_stolen(report);
    let lies = calls
        .iter()
        .flat_map(|call| &call.wrong)
        .filter(|(name, _)| LIES.contains(name));
    let lies: u64 = lies.map(|(_, count)| count).sum();
    ensure!(
        lies == 0,
        "{lies} answers were misses of what is there, hits of what is not, or other bytes"
    );
    Ok(())
}

/// Lets the home die and return while the load is on.
async fn measure(cluster: &mut Cluster, effort: &Effort) -> Result<(Phases, IndexInfo)> {
    sleep(Duration::from_millis(500)).await;
    let from = Mark::now()?;
    sleep(effort.calm).await;
    let killed = Mark::now()?;
    cluster.kill(VICTIM);
    sleep(effort.dead).await;
    let restarted = Mark::now()?;
    cluster.restart(VICTIM)?;
    let learned = wait_settled(cluster).await?;
    let settled = Mark::now()?;
    sleep(effort.calm).await;
    let phases = Phases([from, killed, restarted, settled, Mark::now()?]);
    Ok((phases, learned))
}

pub(super) fn start(objects: u64) -> Result<Cluster> {
    let spare = Segment {
        bytes: 1 << 20,
        slots: None,
    };
    let mut segments = [spare; NODES];
    segments[HOLDER] = Segment {
        bytes: (objects * OBJECT_BYTES).next_multiple_of(1 << 20) + (16 << 20),
        slots: Some(objects + 65_536),
    };
    Cluster::start(&segments)
}

/// Resident memory of each node.
fn processes(cluster: &Cluster) -> Result<Vec<f64>> {
    let ids = cluster.process_ids();
    ids.iter().map(|id| rss_bytes(&id.to_string())).collect()
}

pub(super) async fn put(program: &Program, prefix: &'static str, objects: u64, holder: NodeId) -> Result<()> {
    let numbers: Vec<u64> = (0..objects).collect();
    let mut putting = tokio::task::JoinSet::new();
    for batch in numbers.chunks(PUT_BATCH) {
        if putting.len() >= PUTS_IN_FLIGHT
            && let Some(put) = putting.join_next().await
        {
            put??;
        }
        let (program, batch) = (program.clone(), batch.to_vec());
        putting.spawn(async move { program.put(prefix, &batch, holder).await });
    }
    while let Some(put) = putting.join_next().await {
        put??;
    }
    let _ = program.take_commit_s();
    Ok(())
}

/// What a node keeps as a home; an error while it does not answer.
async fn index(cluster: &Cluster, at: usize) -> Result<IndexInfo> {
    let options = ConnectOptions {
        cluster: Some(Cluster::cluster_id()),
        secret: Some(Cluster::secret().to_vec()),
        ..ConnectOptions::new(cluster.link(at))
    };
    let client = Client::connect(options, default_deadline(0)).await?;
    Ok(*client.nodes(default_deadline(0)).await?.index)
}

async fn wait_settled(cluster: &Cluster) -> Result<IndexInfo> {
    let give_up = Instant::now() + SETTLE_TIMEOUT;
    loop {
        match index(cluster, VICTIM).await {
            Ok(index) if index.settled => return Ok(index),
            seen => ensure!(Instant::now() < give_up, "the home does not settle: {seen:?}"),
        }
        sleep(POLL).await;
    }
}

/// The calls of one kind that ended in one phase.
struct Cell {
    ms: Samples,
    /// The median over seconds of the 99th percentile of the calls that ended in each: what one burst of other work on
    /// the machine does not move.
    typical_p99_ms: f64,
    wrong: BTreeMap<&'static str, u64>,
}

impl Cell {
    /// `None` without calls.
    fn of(calls: &[&Call]) -> Option<Self> {
        let origin = calls.iter().map(|call| call.end).min()?;
        let mut seconds: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        let mut wrong = BTreeMap::new();
        for call in calls {
            let second = (call.end - origin).as_secs();
            seconds.entry(second).or_default().push(milliseconds(call));
            for (name, count) in &call.wrong {
                *wrong.entry(*name).or_insert(0) += count;
            }
        }
        let ms = Samples::new(calls.iter().map(|call| milliseconds(call)).collect());
        // The last second may be short.
        if seconds.len() > 1 {
            seconds.pop_last();
        }
        let p99s = seconds.into_values().map(|ms| Samples::new(ms).quantile(0.99));
        Some(Self {
            ms,
            typical_p99_ms: Samples::new(p99s.collect()).median(),
            wrong,
        })
    }
}

fn milliseconds(call: &Call) -> f64 {
    call.took.as_secs_f64() * 1e3
}

fn print(calls: &[Call], phases: &Phases, report: &mut Report) {
    println!(
        "{:32} {:>6} {:>8} {:>8} {:>8} {:>8} {:>15} {:>8}   wrong answers",
        "case", "calls", "P50 ms", "P99 ms", "× before", "max ms", "P99/s median ms", "× before"
    );
    for kind in Kind::ALL {
        let mut before = None;
        for phase in Phases::NAMES {
            let is_of_cell = |call: &&Call| call.kind == kind && phases.of(call) == phase;
            let of_cell: Vec<&Call> = calls.iter().filter(is_of_cell).collect();
            let case = format!("scale/{}/{phase}", kind.name());
            let Some(cell) = Cell::of(&of_cell) else {
                println!("{case:32} {:>6}", 0);
                continue;
            };
            let (p50, p99, max) = (cell.ms.median(), cell.ms.quantile(0.99), cell.ms.max());
            let typical = cell.typical_p99_ms;
            let (p99_before, typical_before) = *before.get_or_insert((p99, typical));
            let (ratio, typical_ratio) = (p99 / p99_before, typical / typical_before);
            println!(
                "{case:32} {:>6} {p50:>8.2} {p99:>8.2} {ratio:>8.2} {max:>8.1} {typical:>15.2} {typical_ratio:>8.2}   {}",
                of_cell.len(),
                words(&cell.wrong)
            );
            let wrong = |of: &str| cell.wrong.get(of).copied().unwrap_or(0) as f64;
            for (metric, value, unit) in [
                ("p50_ms", p50, "ms"),
                ("p99_ms", p99, "ms"),
                ("p99_ratio", ratio, "1"),
                ("max_ms", max, "ms"),
                ("typical_p99_ms", typical, "ms"),
                ("typical_p99_ratio", typical_ratio, "1"),
                ("misses", wrong("miss"), "1"),
                ("wrong_answers", cell.wrong.values().sum::<u64>() as f64, "1"),
            ] {
                report.push(&case, metric, value, unit);
            }
        }
    }
}

fn words(wrong: &BTreeMap<&str, u64>) -> String {
    if wrong.is_empty() {
        return "none".to_owned();
    }
    let words: Vec<_> = wrong.iter().map(|(name, count)| format!("{count} {name}")).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_second_of_three_moves_the_p99_and_not_the_typical_one() {
        let origin = Instant::now();
        let call = |second: u64, took_ms: u64, wrong: &[(&'static str, u64)]| Call {
            kind: Kind::Get,
            end: origin + Duration::from_secs(second),
            took: Duration::from_millis(took_ms),
            wrong: wrong.iter().copied().collect(),
        };
        let calls = [
            call(0, 2, &[]),
            call(1, 90, &[("miss", 1)]),
            call(2, 4, &[("miss", 1), ("internal", 2)]),
            call(3, 50, &[]),
        ];
        let cell = Cell::of(&calls.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!((cell.ms.quantile(0.99), cell.typical_p99_ms), (90.0, 4.0));
        assert_eq!(words(&cell.wrong), "2 internal, 2 miss");
        assert!(Cell::of(&[]).is_none());
    }
}

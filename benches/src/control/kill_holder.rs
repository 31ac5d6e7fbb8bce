//! How soon after a node's death everyone is told at once that its objects are unavailable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::RngExt as _;
use tenon_client::{ClientError, default_deadline};
use tenon_protocol::ids::NodeId;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::cluster::{Cluster, Segment};
use crate::control::program::{Program, key};
use crate::report::{Report, Samples};

const NODES: usize = 5;
const HOLDER: usize = 1;
/// The nodes whose programs ask: neither holds anything.
const ASKED: [usize; 2] = [0, 2];
const KEYS: u64 = 4096;
/// An answer within this is one at once.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Where processor time is scarce, some calls take longer whatever they ask: this share of those within a
/// second may.
const LATE_SHARE_MAX: f64 = 0.01;
const WINDOW: Duration = Duration::from_secs(1);
/// Between two calls of one observer.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it is looked at before the death, and after.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(4);

/// What a call about an object of the dead node got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Hit,
    Miss,
    Unavailable,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    start: Instant,
    end: Instant,
    answer: Answer,
}

impl Seen {
    fn took(&self) -> Duration {
        self.end - self.start
    }

    fn is_unavailable_at_once(&self) -> bool {
        self.answer == Answer::Unavailable && self.took() < AT_ONCE
    }
}

/// Calls of one kind through one node, one after the other, until it is told to stop.
struct Observer {
    task: JoinHandle<Vec<Seen>>,
}

impl Observer {
    fn start(program: Program, prefix: String, holder: NodeId, gets: bool, stop: Arc<AtomicBool>) -> Self {
        let task = tokio::spawn(async move {
            let mut seen = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let number = rand::rng().random_range(0..KEYS);
                let start = Instant::now();
                let found = if gets {
                    program.get(&prefix, number).await.map(|hit| hit == Some(true))
                } else {
                    locate(&program, key(&prefix, number)).await
                };
                let answer = match found {
                    Ok(true) => Answer::Hit,
                    Ok(false) => Answer::Miss,
                    Err(ClientError::Unavailable { node: Some(node), .. }) if node == holder => Answer::Unavailable,
                    Err(_) => Answer::Failed,
                };
                let end = Instant::now();
                seen.push(Seen { start, end, answer });
                sleep(PAUSE).await;
            }
            seen
        });
        Self { task }
    }
}

async fn locate(program: &Program, key: String) -> Result<bool, ClientError> {
    let asking = program
        .client()
        .locate(program.namespace(), vec![key], default_deadline(0));
    let found = asking.await.pop().expect("one result per key")?;
    Ok(found.is_some())
}

/// What one death cost.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    /// From the signal until everyone is told at once.
    settled_s: f64,
    /// The longest call that was under way at the death or began after it.
    longest_s: f64,
    misses: usize,
    failed: usize,
    /// Calls that ended after the death.
    calls: usize,
    /// The share of calls that took longer than [`AT_ONCE`] before the death, when all was well, and after it.
    late_before: f64,
    late_after: f64,
}

impl Cost {
    fn of(seen: &[Seen], killed_at: Instant) -> Self {
        let (before, after): (Vec<Seen>, Vec<Seen>) = seen.iter().partition(|seen| seen.end <= killed_at);
        let count = |answer| after.iter().filter(|seen| seen.answer == answer).count();
        let longest = after.iter().map(Seen::took).max();
        Self {
            settled_s: (settled_at(&after, killed_at) - killed_at).as_secs_f64(),
            longest_s: longest.unwrap_or_default().as_secs_f64(),
            misses: count(Answer::Miss),
            failed: count(Answer::Failed),
            calls: after.len(),
            late_before: late(&before),
            late_after: late(&after),
        }
    }
}

fn late(seen: &[Seen]) -> f64 {
    let late = seen.iter().filter(|seen| seen.took() >= AT_ONCE).count();
    late as f64 / seen.len().max(1) as f64
}

/// The first moment after which no answer is other than `unavailable`, and of those that end within a second almost all
/// took no longer than [`AT_ONCE`].
fn settled_at(after: &[Seen], killed_at: Instant) -> Instant {
    let others = after.iter().filter(|seen| seen.answer != Answer::Unavailable);
    let first = others.map(|seen| seen.end).fold(killed_at, Instant::max);
    let late = after.iter().filter(|seen| !seen.is_unavailable_at_once());
    let mut moments: Vec<Instant> = late.map(|seen| seen.end).filter(|end| *end > first).collect();
    moments.push(first);
    moments.sort_unstable();
    let is_settled = |moment: &Instant| {
        let window = *moment..*moment + WINDOW;
        let next: Vec<&Seen> = after
            .iter()
            .filter(|seen| seen.end > window.start && seen.end <= window.end)
            .collect();
        let late = next.iter().filter(|seen| !seen.is_unavailable_at_once()).count();
        late as f64 <= LATE_SHARE_MAX * next.len() as f64
    };
    // After the last late answer there is none.
    let settled = moments.iter().find(|moment| is_settled(moment));
    *settled.expect("there is none late after the last")
}

/// Kills a holder again and again, each time with new objects.
pub async fn run(repetitions: usize, report: &mut Report) -> Result<()> {
    let segment = Segment {
        bytes: 16 << 20,
        slots: Some(1 << 14),
    };
    let mut cluster = Cluster::start(&[segment; NODES])?;
    let mut costs = Vec::new();
    for repetition in 0..repetitions {
        let cost = kill(&mut cluster, &format!("kill/{repetition}")).await;
        costs.push(cost.with_context(|| format!("at death {repetition}"))?);
    }
    print(&costs, report);
    ensure!(
        costs.iter().all(|cost| cost.misses == 0),
        "objects of an unreachable holder were said not to exist"
    );
    Ok(())
}

async fn kill(cluster: &mut Cluster, prefix: &str) -> Result<Cost> {
    cluster.settled().await?;
    let holder = cluster.id(HOLDER);
    let stop = Arc::new(AtomicBool::new(false));
    let mut observers = Vec::new();
    let numbers: Vec<u64> = (0..KEYS).collect();
    for (turn, at) in ASKED.into_iter().enumerate() {
        let program = Program::start(cluster, at).await?;
        if turn == 0 {
            for numbers in numbers.chunks(1024) {
                program.put(prefix, numbers, holder).await?;
            }
        }
        for gets in [false, true] {
            let (program, stop) = (program.clone(), Arc::clone(&stop));
            observers.push(Observer::start(program, prefix.to_owned(), holder, gets, stop));
        }
    }
    sleep(BEFORE).await;
    let killed_at = Instant::now();
    cluster.kill(HOLDER);
    sleep(AFTER).await;
    stop.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    for observer in observers {
        seen.extend(observer.task.await?);
    }
    cluster.restart(HOLDER)?;
    let before = seen.iter().filter(|seen| seen.end <= killed_at);
    ensure!(
        before.clone().count() > 0 && before.clone().all(|seen| seen.answer == Answer::Hit),
        "objects were not found while their holder lived"
    );
    Ok(Cost::of(&seen, killed_at))
}

fn print(costs: &[Cost], report: &mut Report) {
    let of = |value: fn(&Cost) -> f64| Samples::new(costs.iter().map(value).collect());
    let settled = of(|cost| cost.settled_s * 1e3);
    let longest = of(|cost| cost.longest_s * 1e3);
    let (late_before, late_after) = (of(|cost| cost.late_before), of(|cost| cost.late_after));
    let sum = |value: fn(&Cost) -> usize| costs.iter().map(value).sum::<usize>();
    let (calls, misses, failed) = (sum(|cost| cost.calls), sum(|cost| cost.misses), sum(|cost| cost.failed));
    println!(
        "kill_holder: {} deaths; unavailable at once after {:.0} ms in the median ({:.0} … {:.0}); longest call {:.0} ms",
        costs.len(),
        settled.median(),
        settled.min(),
        settled.max(),
        longest.max(),
    );
    println!(
        "kill_holder: of {calls} calls after a death {misses} misses, {failed} other errors; later than {} ms: {:.2} % of calls \
         before, {:.2} % after (medians)",
        AT_ONCE.as_millis(),
        late_before.median() * 1e2,
        late_after.median() * 1e2,
    );
    let case = "kill_holder";
    report.push(case, "median_ms", settled.median(), "ms");
    report.push(case, "worst_ms", settled.max(), "ms");
    report.push(case, "longest_call_ms", longest.max(), "ms");
    report.push(case, "late_share_before", late_before.median(), "1");
    report.push(case, "late_share_after", late_after.median(), "1");
    report.push(case, "misses", misses as f64, "1");
    report.push(case, "other_errors", failed as f64, "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_costs_until_almost_all_answers_come_at_once() {
        let killed_at = Instant::now() + Duration::from_secs(1);
        let seen = |start_ms: u64, took_ms: u64, answer| {
            let start = killed_at + Duration::from_millis(start_ms) - Duration::from_millis(100);
            Seen {
                start,
                end: start + Duration::from_millis(took_ms),
                answer,
            }
        };
        let mut all = vec![
            seen(0, 10, Answer::Hit),
            seen(90, 210, Answer::Unavailable),
            seen(300, 60, Answer::Failed),
        ];
        all.extend((360..800).map(|start_ms| seen(start_ms, 49, Answer::Unavailable)));
        // One of hundreds is late.
        all.push(seen(500, 51, Answer::Unavailable));
        let cost = Cost::of(&all, killed_at);
        assert_eq!((cost.calls, cost.misses, cost.failed), (443, 0, 1));
        assert!((cost.settled_s - 0.26).abs() < 1e-9, "{cost:?}");
        assert!((cost.longest_s - 0.21).abs() < 1e-9, "{cost:?}");
        all.extend((0..5).map(|_| seen(600, 60, Answer::Unavailable)));
        assert!((Cost::of(&all, killed_at).settled_s - 0.56).abs() < 1e-9);
    }
}

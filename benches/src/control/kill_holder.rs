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
/// Between two calls of one observer.
const PAUSE: Duration = Duration::from_millis(1);
/// How long it is looked at before the death, and after.
const BEFORE: Duration = Duration::from_millis(500);
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
    fn is_unavailable_at_once(&self) -> bool {
        self.answer == Answer::Unavailable && self.end - self.start < AT_ONCE
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
    /// From the signal to the end of the last answer that was not `unavailable` at once.
    settled_s: f64,
    /// The longest call that was under way at the death or began after it.
    longest_s: f64,
    misses: usize,
    failed: usize,
    /// Calls that ended after the death.
    calls: usize,
}

impl Cost {
    fn of(seen: &[Seen], killed_at: Instant) -> Self {
        let mut cost = Self::default();
        for seen in seen.iter().filter(|seen| seen.end > killed_at) {
            cost.calls += 1;
            cost.longest_s = cost.longest_s.max((seen.end - seen.start).as_secs_f64());
            cost.misses += usize::from(seen.answer == Answer::Miss);
            cost.failed += usize::from(seen.answer == Answer::Failed);
            if !seen.is_unavailable_at_once() {
                cost.settled_s = cost.settled_s.max((seen.end - killed_at).as_secs_f64());
            }
        }
        cost
    }
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
    let sum = |value: fn(&Cost) -> usize| costs.iter().map(value).sum::<usize>();
    let (calls, misses, failed) = (sum(|cost| cost.calls), sum(|cost| cost.misses), sum(|cost| cost.failed));
    println!(
        "{:24} {} deaths: unavailable at once after {:.0} ms ({:.0} … {:.0}); longest call {:.0} ms; of {calls} calls {misses} misses, {failed} other errors",
        "kill_holder",
        costs.len(),
        settled.median(),
        settled.min(),
        settled.max(),
        longest.max(),
    );
    let case = "kill_holder";
    report.push(case, "median_ms", settled.median(), "ms");
    report.push(case, "worst_ms", settled.max(), "ms");
    report.push(case, "longest_call_ms", longest.max(), "ms");
    report.push(case, "misses", misses as f64, "1");
    report.push(case, "other_errors", failed as f64, "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_costs_until_the_last_answer_that_is_late_or_another() {
        let killed_at = Instant::now() + Duration::from_secs(1);
        let seen = |start_ms: u64, took_ms: u64, answer| {
            let start = killed_at + Duration::from_millis(start_ms) - Duration::from_millis(100);
            Seen {
                start,
                end: start + Duration::from_millis(took_ms),
                answer,
            }
        };
        let cost = Cost::of(
            &[
                seen(0, 10, Answer::Hit),
                seen(90, 210, Answer::Unavailable),
                seen(300, 60, Answer::Failed),
                seen(360, 49, Answer::Unavailable),
            ],
            killed_at,
        );
        assert_eq!((cost.calls, cost.misses, cost.failed), (3, 0, 1));
        assert!((cost.settled_s - 0.26).abs() < 1e-9, "{cost:?}");
        assert!((cost.longest_s - 0.21).abs() < 1e-9, "{cost:?}");
    }
}

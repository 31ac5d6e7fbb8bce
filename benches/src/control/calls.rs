//! Calls about small objects, one at a time and many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::RngExt as _;
use tenon_client::default_deadline;
use tenon_protocol::ids::NodeId;

use crate::cluster::{Cluster, Segment};
use crate::control::frames::Frames;
use crate::control::program::{OBJECT_BYTES, Program, key};
use crate::report::{Report, Samples};

/// The node that is asked, and the one on which objects are put: a coordinator that holds nothing itself.
const COORDINATOR: usize = 0;
const HOLDER: usize = 1;
const PREFIX: &str = "calls";
/// Objects that are there to be asked for.
const PRESENT: u64 = 16_384;
/// Keys of one call.
const BATCHES: [usize; 2] = [1, 128];
/// Callers at once, where it is about how many keys can be served.
const CALLERS: usize = 8;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Nodes of each cluster.
    pub clusters: &'static [usize],
    /// Calls of one key per case; calls with more keys are a quarter of that, and puts are half as many.
    pub calls: usize,
    /// How long heartbeats are counted.
    pub idle: Duration,
}

impl Effort {
    fn calls_of(&self, kind: Kind, batch: usize) -> usize {
        let calls = if kind == Kind::Put { self.calls / 2 } else { self.calls };
        if batch == 1 { calls } else { calls.div_ceil(4) }
    }

    /// All objects that are put in one cluster.
    fn objects(&self) -> u64 {
        let of_batch = |batch| {
            (batch * (warm_up(self.calls_of(Kind::Put, batch)) + CALLERS + 2 * self.calls_of(Kind::Put, batch))) as u64
        };
        PRESENT + BATCHES.into_iter().map(of_batch).sum::<u64>()
    }
}

/// Calls before those that count.
fn warm_up(calls: usize) -> usize {
    calls.div_ceil(10)
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exists,
    Locate,
    /// With its commit, which is timed by itself too.
    Put,
}

/// What is known of the calls of one case.
#[derive(Debug, Default)]
struct Series {
    call_s: Vec<f64>,
    commit_s: Vec<f64>,
}

/// One cluster with a program, and the objects that it has put.
#[derive(Clone, Debug)]
struct Subject {
    program: Program,
    holder: NodeId,
    /// The number of the next object to put.
    next: Arc<AtomicU64>,
}

impl Subject {
    async fn call(&self, kind: Kind, batch: usize) -> Result<f64> {
        let numbers: Vec<u64> = match kind {
            Kind::Put => {
                let first = self.next.fetch_add(batch as u64, Ordering::Relaxed);
                (first..first + batch as u64).collect()
            }
            // Each key at most once per batch.
            Kind::Exists | Kind::Locate => {
                let first = rand::rng().random_range(0..PRESENT);
                (first..first + batch as u64).map(|number| number % PRESENT).collect()
            }
        };
        let keys: Vec<String> = numbers.iter().map(|&number| key(PREFIX, number)).collect();
        let (client, namespace) = (self.program.client(), self.program.namespace());
        let deadline = default_deadline(0);
        let start = Instant::now();
        let hits = match kind {
            Kind::Put => {
                self.program.put(PREFIX, &numbers, self.holder).await?;
                batch
            }
            Kind::Exists => {
                let found = client.exists(namespace, keys, deadline).await;
                found.iter().filter(|found| matches!(found, Ok(true))).count()
            }
            Kind::Locate => {
                let found = client.locate(namespace, keys, deadline).await;
                found.iter().filter(|found| matches!(found, Ok(Some(_)))).count()
            }
        };
        let elapsed = start.elapsed();
        ensure!(hits == batch, "{hits} of {batch} objects that are there were found");
        Ok(elapsed.as_secs_f64())
    }

    /// One caller.
    async fn alone(&self, kind: Kind, batch: usize, calls: usize) -> Result<Series> {
        for _ in 0..warm_up(calls) {
            self.call(kind, batch).await?;
        }
        let _ = self.program.take_commit_s();
        let mut series = Series::default();
        for _ in 0..calls {
            series.call_s.push(self.call(kind, batch).await?);
        }
        series.commit_s = self.program.take_commit_s();
        Ok(series)
    }

    /// Keys per second of many callers.
    async fn together(&self, kind: Kind, batch: usize, calls: usize) -> Result<f64> {
        let calls = calls.div_ceil(CALLERS);
        let start = Instant::now();
        let mut callers = Vec::new();
        for _ in 0..CALLERS {
            let this = self.clone();
            callers.push(tokio::spawn(async move {
                for _ in 0..calls {
                    this.call(kind, batch).await?;
                }
                anyhow::Ok(())
            }));
        }
        for caller in callers {
            caller.await??;
        }
        Ok((CALLERS * calls * batch) as f64 / start.elapsed().as_secs_f64())
    }
}

/// Measures all cases in clusters of different sizes.
pub async fn run(effort: &Effort, report: &mut Report) -> Result<()> {
    println!(
        "{:24} {:>6} {:>9} {:>9} {:>9} {:>10} {:>12} {:>12}",
        "case", "calls", "P50 µs", "P99 µs", "max µs", "keys/s", "keys/s of 8", "frames/batch"
    );
    for &nodes in effort.clusters {
        let measured = measure(nodes, effort, report).await;
        measured.with_context(|| format!("in a cluster of {nodes}"))?;
    }
    Ok(())
}

async fn measure(nodes: usize, effort: &Effort, report: &mut Report) -> Result<()> {
    let segment = Segment {
        bytes: (effort.objects() * OBJECT_BYTES).next_multiple_of(1 << 20),
        slots: Some(effort.objects()),
    };
    let spare = Segment {
        bytes: 1 << 20,
        slots: None,
    };
    let segments: Vec<_> = (0..nodes)
        .map(|at| if at == HOLDER { segment } else { spare })
        .collect();
    let cluster = Cluster::start(&segments)?;
    cluster.settled().await?;
    let subject = Subject {
        program: Program::start(&cluster, COORDINATOR).await?,
        holder: cluster.id(HOLDER),
        next: Arc::new(AtomicU64::new(PRESENT)),
    };
    let present: Vec<u64> = (0..PRESENT).collect();
    for numbers in present.chunks(1024) {
        subject.program.put(PREFIX, numbers, subject.holder).await?;
    }
    let frames = Frames::of(&cluster, effort.idle).await?;
    for kind in [Kind::Exists, Kind::Locate, Kind::Put] {
        for batch in BATCHES {
            let calls = effort.calls_of(kind, batch);
            let mark = frames.mark().await?;
            let series = subject.alone(kind, batch, calls).await?;
            let per_call = frames.since(mark).await? / (calls + warm_up(calls)) as f64;
            let together = subject.together(kind, batch, calls).await?;
            let case = |name: &str| format!("{name}/{nodes}nodes/{batch}");
            match kind {
                Kind::Exists => print(report, &case("exists"), batch, series.call_s, Some(together), per_call),
                Kind::Locate => print(report, &case("locate"), batch, series.call_s, Some(together), per_call),
                Kind::Put => {
                    // All of a put's but the one that reserves.
                    print(report, &case("commit"), batch, series.commit_s, None, per_call - 1.0);
                    print(report, &case("put"), batch, series.call_s, Some(together), per_call);
                }
            }
        }
    }
    Ok(())
}

fn print(report: &mut Report, case: &str, batch: usize, call_s: Vec<f64>, together: Option<f64>, frames: f64) {
    let total_s: f64 = call_s.iter().sum();
    let calls = call_s.len();
    let keys_per_s = (calls * batch) as f64 / total_s;
    let us = Samples::new(call_s.iter().map(|s| s * 1e6).collect());
    let (p50, p99, max) = (us.median(), us.quantile(0.99), us.max());
    let shown = together.map_or("–".to_owned(), |together| format!("{together:.0}"));
    println!("{case:24} {calls:>6} {p50:>9.0} {p99:>9.0} {max:>9.0} {keys_per_s:>10.0} {shown:>12} {frames:>12.2}");
    report.push(case, "p50_us", p50, "us");
    report.push(case, "p99_us", p99, "us");
    report.push(case, "keys_per_s", keys_per_s, "1/s");
    if let Some(together) = together {
        report.push(case, "keys_per_s_8_callers", together, "1/s");
    }
    report.push(case, "frames_per_batch", frames, "1");
}

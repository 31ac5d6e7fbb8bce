//! What finding objects costs: calls, a holder's death, a home's death and return, and memory per key.
//!
//! Workload: `tenond` processes with a static view and a secret, all on loopback, each with its usual workers (two for
//! control calls and one per core for data, at least two; that can't be configured). This process is the client, over
//! the framed link. Objects have 64 bytes and keys 32.
//!
//! * `exists`, `locate`, `put` and `commit`, in clusters of 5 and of 17 nodes, with 1 and with 128 keys per call. The node
//!   that is asked holds nothing: all objects are on one other node, and their homes are spread over all (over the 8
//!   index nodes of the namespace in the larger cluster). `put` is the whole call, with reserving and writing; `commit`
//!   its last step, from the request until the answer. Calls follow each other; in `keys_per_s_8_callers` eight callers
//!   do so at once. `frames_per_batch` is the number of calls between members per call, from the nodes' own counters
//!   (`tenon_calls_total`), less the heartbeats, whose rate is counted before while nothing else goes on. A home that is
//!   asked by itself costs no frame. `commit` has all of a put's frames but the one that reserves.
//! * `kill_holder`: `kill -9` of the holder of 4,096 keys in a cluster of 5, while programs at two other nodes locate and
//!   get them. Measured is the time from the signal until no answer is other than `unavailable`, and of those of the next
//!   second 99 % take less than 50 ms; how many take longer before the death and after it is said beside it.
//! * `scale`: a million objects on one of 5 nodes. Programs at two others ask at a steady pace (`exists` and `get` of one
//!   key 100 times per second each; `exists` of 128 keys, and of one key that has no object, 25 times; `nodes`, which needs
//!   neither index nor other nodes and so shows what the machine does to all, 100 times) while a third, which is a home,
//!   is killed and later started again with nothing in its memory. Calls belong to the phase in which
//!   they end: `before`, `killed`, `learning` (from its start until it says that it has settled), `settled`. A call counts
//!   from when it was due if the one before it had not ended by then. `typical_p99_ms` is the median over seconds of the
//!   99th percentile within each, which a burst of other work on the machine moves less. A wrong answer is a miss of an object that is
//!   there, a hit of what is not, other bytes, or an error.
//! * `remove_prefix`: as many objects as in `scale`, on one of 5 nodes, are removed by their prefix, a page of 1,000 after the other, and then again in pages of 128, while the load of `scale` asks for 4,096 others
//!   (goal: the P99 of each call grows by at most 10 ms).
//! * `memory`: resident memory of this process per key, at a home that decided puts (the second million), at a home that
//!   learned from pages in their order (the first million), and at a holder (the second million), with the state
//!   machines alone. `scale/process/…` is the growth of the daemons, with what the allocator keeps, tables (1.3 KB per
//!   object) and payload.
//!
//! Units: times of calls in microseconds (`us`) or milliseconds (`ms`); `keys_per_s` of one caller is keys per second of
//! time within calls; ratios are to the same phase `before` of the same run.
//!
//! Not measured: networks, several hosts, many programs, huge pages, other sizes of objects, deaths by hanging or by lost
//! networks, hosts whose cores are not shared between all nodes and the client. All nodes together have the cores that
//! one would have, so that absolute figures are those of a crowded host; compare ratios.

#![forbid(unsafe_code)]

use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use tenon_benches::control::{calls, kill_holder, memory};
use tenon_benches::evidence::machine;
use tenon_benches::report::Report;
use tenon_benches::scale;
use tokio::runtime::Runtime;

/// Measures the control plane; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Few calls and few objects: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// This many objects for `scale` and `remove_prefix`.
    #[arg(long)]
    objects: Option<u64>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Memory,
    Calls,
    #[value(name = "kill_holder")]
    KillHolder,
    Scale,
    #[value(name = "remove_prefix")]
    RemovePrefix,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    memory_keys: u64,
    calls: calls::Effort,
    deaths: usize,
    scale: scale::run::Effort,
}

impl Effort {
    fn of(arguments: &Arguments) -> Self {
        let mut effort = if arguments.quick { Self::quick() } else { Self::full() };
        if let Some(objects) = arguments.objects {
            effort.scale.objects = objects;
        }
        effort
    }

    fn quick() -> Self {
        Self {
            memory_keys: 50_000,
            calls: calls::Effort {
                clusters: &[5],
                calls: 40,
                idle: Duration::from_secs(1),
            },
            deaths: 1,
            scale: scale::run::Effort {
                objects: 20_000,
                calm: Duration::from_secs(2),
                dead: Duration::from_secs(2),
            },
        }
    }

    fn full() -> Self {
        Self {
            memory_keys: 1_000_000,
            calls: calls::Effort {
                clusters: &[5, 17],
                calls: 4_000,
                idle: Duration::from_secs(5),
            },
            deaths: 9,
            scale: scale::run::Effort {
                objects: 1_000_000,
                calm: Duration::from_secs(20),
                dead: Duration::from_secs(10),
            },
        }
    }
}

async fn run(arguments: &Arguments) -> Result<()> {
    let effort = Effort::of(arguments);
    let wants = |part| arguments.only.is_empty() || arguments.only.contains(&part);
    let mut report = Report::new("control");
    println!("{}", machine::describe());
    println!("{effort:?}");
    // First, while this process is small.
    if wants(Part::Memory) {
        memory::run(effort.memory_keys, &mut report).context("memory")?;
    }
    if wants(Part::Calls) {
        calls::run(&effort.calls, &mut report).await.context("calls")?;
    }
    if wants(Part::KillHolder) {
        kill_holder::run(effort.deaths, &mut report)
            .await
            .context("kill_holder")?;
    }
    if wants(Part::Scale) {
        scale::run::run(&effort.scale, &mut report).await.context("scale")?;
    }
    if wants(Part::RemovePrefix) {
        let scale::run::Effort { objects, calm, .. } = effort.scale;
        scale::remove_prefix::run(objects, calm, &mut report)
            .await
            .context("remove_prefix")?;
    }
    println!("{}", report.line());
    Ok(())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let runtime = Runtime::new().context("cannot start worker threads")?;
    runtime.block_on(run(&arguments))
}

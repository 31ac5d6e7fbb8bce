//! What eviction costs those who put: rate and latency of puts into a full store beside those into a half full one.
//!
//! Workload: two `tenond` processes on loopback, each a cluster of its own, with one segment and the default configuration
//! (eviction from 95 % to 90 % of the bytes). One program puts objects one after the other over TCP, a block into the one
//! and a block into the other by turns. The one that is half full has its oldest objects removed between its blocks,
//! which is not measured (a block takes it to about 60 %); the full one has been put into one and a half times its size before, and evicts by itself. Objects have 1 MiB, or
//! mixed sizes: 40 % up to 64 KiB, 40 % up to 1 MiB, 20 % up to 4 MiB.
//!
//! Units: puts per second of time within puts (the median over blocks), microseconds from call to answer. Ratios are full to half, block by block, with a
//! 95 % interval by bootstrap. `evictions_watermark` are those in the background, `evictions_request` those of puts that found no hole.
//!
//! Beside that, the hit ratios of every order of eviction, and of one that knows what comes, over a trace of cache blocks (`--trace FILE`, or a generated look-alike), by capacity: `X7/<trace>/<capacity>/<order>`, with
//! blocks of one size and the default placement. They come from the structures of the store and not through it; the rest of them: `make evidence ARGS="--only X7"`.
//!
//! Not measured: networks, several writers, gets beside the puts, pins, RDMA, several nodes.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use tenon_benches::evidence::Effort::{Full, Quick};
use tenon_benches::evidence::{Conditions, hit_ratios, machine};
use tenon_benches::full::{Effort, run};
use tenon_benches::report::Report;
use tokio::runtime::Runtime;

/// Measures puts into a full store; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Few puts: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
    /// The trace for the hit ratios: lines of JSON with `hash_ids`, compressed if the name ends in `.gz` [default: a generated look-alike].
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let effort = if arguments.quick {
        Effort {
            segment_bytes: 256 << 20,
            blocks: 4,
            puts: 40,
        }
    } else {
        Effort {
            segment_bytes: 1 << 30,
            blocks: 100,
            puts: 100,
        }
    };
    println!("{}", machine::describe());
    println!("{effort:?}");
    let mut report = Report::new("eviction");
    let runtime = Runtime::new().context("cannot start worker threads")?;
    runtime.block_on(run(&effort, &mut report))?;
    let conditions = Conditions {
        effort: if arguments.quick { Quick } else { Full },
        trace: arguments.trace,
        first_seed: 0,
    };
    let trace = conditions.trace.as_deref().and_then(Path::file_name);
    let trace = trace.map_or_else(|| "generated".into(), |name| name.to_string_lossy().into_owned());
    let trace = trace.split('.').next().unwrap_or_default().to_owned();
    for (percent, order, ratio) in hit_ratios(&conditions)? {
        let case = format!("X7/{trace}/{percent}%/{order}");
        println!("{case:40} hit ratio {:6.2} %", 100.0 * ratio);
        report.push(&case, "hit_ratio", ratio, "1");
    }
    println!("{}", report.line());
    Ok(())
}

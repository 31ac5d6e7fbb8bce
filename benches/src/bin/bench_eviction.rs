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
//! Not measured: networks, several writers, gets beside the puts, pins, RDMA, several nodes. Hit ratios by order of eviction: `make evidence ARGS="--only X7"`.

#![forbid(unsafe_code)]

use anyhow::{Context as _, Result};
use clap::Parser;
use tenon_benches::evidence::machine;
use tenon_benches::full::{Effort, run};
use tenon_benches::report::Report;
use tokio::runtime::Runtime;

/// Measures puts into a full store; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Few puts: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
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
    println!("{}", report.line());
    Ok(())
}

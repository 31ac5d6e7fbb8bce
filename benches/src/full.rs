//! Puts into a store that is full, beside puts into one that is half full.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tenon_client::{Client, PutItem, PutOptions, default_deadline};
use tenon_protocol::name::Namespace;
use tenon_transport::Memory;

use crate::cluster::{Cluster, Segment};
use crate::evidence::stats::Interval;
use crate::metrics;
use crate::report::{Report, Samples};

const MIB: u64 = 1 << 20;
const SEED: u64 = 11;
/// Why objects were evicted.
const REASONS: [&str; 2] = ["watermark", "request"];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Payload bytes of each of the two nodes.
    pub segment_bytes: u64,
    /// Blocks of puts into the one and into the other, by turns.
    pub blocks: usize,
    /// Puts of a block.
    pub puts: usize,
}

/// The lengths of objects.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// All the same.
    One,
    /// 40 % up to 64 KiB, 40 % up to 1 MiB, 20 % up to 4 MiB.
    Mixed,
}

impl Sizes {
    fn name(self) -> &'static str {
        match self {
            Self::One => "1MiB",
            Self::Mixed => "mixed",
        }
    }

    fn draw(self, rng: &mut ChaCha8Rng) -> u64 {
        match self {
            Self::One => MIB,
            Self::Mixed => match rng.random_range(0..10) {
                0..4 => rng.random_range(1..=64 << 10),
                4..8 => rng.random_range(64 << 10..=MIB),
                _ => rng.random_range(MIB..=4 * MIB),
            },
        }
    }
}

/// One node and its client.
struct Store {
    cluster: Cluster,
    client: Client,
    namespace: Namespace,
    memory: Arc<Memory>,
    rng: ChaCha8Rng,
    next: u64,
    /// What was put and not removed by this bench, the oldest first.
    objects: VecDeque<(String, u64)>,
    bytes: u64,
}

impl Store {
    async fn start(segment_bytes: u64) -> Result<Self> {
        let cluster = Cluster::start(&[Segment {
            bytes: segment_bytes,
            slots: None,
        }])?;
        cluster.settled().await?;
        Ok(Self {
            client: cluster.connect(0).await?,
            cluster,
            namespace: Namespace::new(Namespace::DEFAULT)?,
            memory: Arc::new(Memory::anonymous(4 * MIB)?),
            rng: ChaCha8Rng::seed_from_u64(SEED),
            next: 0,
            objects: VecDeque::new(),
            bytes: 0,
        })
    }

    /// One put; seconds from call to answer.
    async fn put(&mut self, sizes: Sizes) -> Result<f64> {
        let len_bytes = sizes.draw(&mut self.rng);
        let key = format!("object/{:08}", self.next);
        self.next += 1;
        let source = self.memory.slice(0..len_bytes)?;
        source.copy_in(0, &[1])?;
        let item = PutItem {
            key: key.clone(),
            source,
        };
        let options = PutOptions::default();
        let begin = Instant::now();
        let putting = self
            .client
            .put_batch(&self.namespace, vec![item], &options, default_deadline(len_bytes));
        let result = putting.await.pop().context("one result per item")?;
        let took_s = begin.elapsed().as_secs_f64();
        result.with_context(|| format!("cannot put {key} of {len_bytes} bytes"))?;
        self.objects.push_back((key, len_bytes));
        self.bytes += len_bytes;
        Ok(took_s)
    }

    async fn block(&mut self, sizes: Sizes, puts: usize) -> Result<Vec<f64>> {
        let mut took_s = Vec::with_capacity(puts);
        for _ in 0..puts {
            took_s.push(self.put(sizes).await?);
        }
        Ok(took_s)
    }

    /// Removes the oldest objects until no more than so many bytes are left.
    async fn shrink(&mut self, to_bytes: u64) -> Result<()> {
        while self.bytes > to_bytes {
            let Some((key, len_bytes)) = self.objects.pop_front() else {
                break;
            };
            self.bytes -= len_bytes;
            let removed = self
                .client
                .remove(&self.namespace, vec![key], default_deadline(0))
                .await;
            ensure!(removed == [Ok(true)], "an object was not there: {removed:?}");
        }
        Ok(())
    }

    async fn evictions(&self) -> Result<[f64; 2]> {
        let text = metrics::of(self.cluster.http(0)).await?;
        Ok(REASONS.map(|reason| metrics::value(&text, &format!("tenon_evictions_total{{reason=\"{reason}\"}}"))))
    }
}

/// Measures both kinds of sizes.
pub async fn run(effort: &Effort, report: &mut Report) -> Result<()> {
    for sizes in [Sizes::One, Sizes::Mixed] {
        compare(effort, sizes, report).await.context(sizes.name())?;
    }
    Ok(())
}

async fn compare(effort: &Effort, sizes: Sizes, report: &mut Report) -> Result<()> {
    let mut half = Store::start(effort.segment_bytes).await?;
    let mut full = Store::start(effort.segment_bytes).await?;
    while half.bytes < effort.segment_bytes / 2 {
        half.put(sizes).await?;
    }
    // Once more than all of it, so that every region was given up by somebody.
    while full.bytes < 3 * effort.segment_bytes / 2 {
        full.put(sizes).await?;
    }
    let before = full.evictions().await?;
    let (mut half_s, mut full_s) = (Vec::new(), Vec::new());
    let (mut half_rates, mut full_rates) = (Vec::new(), Vec::new());
    for block in 0..effort.blocks {
        for is_half in [block % 2 == 0, block % 2 != 0] {
            let (store, all_s, rates) = if is_half {
                half.shrink(effort.segment_bytes / 2).await?;
                (&mut half, &mut half_s, &mut half_rates)
            } else {
                (&mut full, &mut full_s, &mut full_rates)
            };
            let took_s = store.block(sizes, effort.puts).await?;
            rates.push(took_s.len() as f64 / took_s.iter().sum::<f64>());
            all_s.extend(took_s);
        }
    }
    let after = full.evictions().await?;
    ensure!(half.evictions().await? == [0.0, 0.0], "the half full store has evicted");
    let rate = Interval::of_ratios(&full_rates, &half_rates);
    let (half_s, full_s) = (Samples::new(half_s), Samples::new(full_s));
    for (name, samples, rates) in [("half", &half_s, half_rates), ("full", &full_s, full_rates)] {
        let case = format!("{name}/put/{}", sizes.name());
        let rate = Samples::new(rates).median();
        println!(
            "{case}: {rate:.0} puts/s, P50 {:.0} us, P99 {:.0} us",
            samples.quantile(0.5) * 1e6,
            samples.quantile(0.99) * 1e6
        );
        report.push(&case, "rate", rate, "1/s");
        report.push(&case, "p50", samples.quantile(0.5) * 1e6, "us");
        report.push(&case, "p99", samples.quantile(0.99) * 1e6, "us");
    }
    let case = format!("full/put/{}", sizes.name());
    let p99_ratio = full_s.quantile(0.99) / half_s.quantile(0.99);
    println!(
        "{case}: {:.2} of the half full store's rate ({:.2} to {:.2}), P99 {p99_ratio:.2} times as long",
        rate.median, rate.low, rate.high
    );
    report.push(&case, "rate_to_half", rate.median, "1");
    report.push(&case, "rate_to_half_low", rate.low, "1");
    report.push(&case, "rate_to_half_high", rate.high, "1");
    report.push(&case, "p99_to_half", p99_ratio, "1");
    for (at, reason) in REASONS.into_iter().enumerate() {
        report.push(&case, &format!("evictions_{reason}"), after[at] - before[at], "1");
    }
    Ok(())
}

//! Speed of placement and of the region allocator, beside malloc.
//!
//! Workload: segments of 1 GiB, filled to 80 % with objects of 4 KiB (70 % by count), 256 KiB (20 %) and 3,274,752 B
//! (10 %). A *pair* frees a random live object and places a new one of a random size, so free lists stay as such a load
//! shapes them. Victims and sizes are drawn before the clock starts, for all subjects of a round from the same seed.
//! One thread. In each round the subjects of a group take turns, in an order that is reversed from round to round.
//!
//! Subjects: each placement strategy over 1, 16, 128 and 1,024 segments; the allocator of one segment alone, with its own
//! size classes (`allocator/1`) and with the peer's (`allocator_peer/1`); malloc with the number of live objects of one
//! segment. Memory is never touched.
//!
//! Units: `pairs_per_s` in 1/s, median over rounds of untimed batches; `p50_ns` and `p99_ns` in ns, over all pairs timed
//! one by one, including one clock reading, whose cost is printed; `ratio_to_malloc` is the median over rounds of the
//! ratio of pairs per second, within a round.
//!
//! Pairs whose new object found no room are counted in the table; they should be none or next to none.
//!
//! Not measured: full pools and the fallback scan they cause, contention between threads, locks, page faults, the moving
//! of bytes. Absolute figures vary with the machine's load: compare ratios.

#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tenon_benches::report::{Report, Samples};
use tenon_store_core::allocator::{AllocatorConfig, Classes, Region, RegionAllocator};
use tenon_store_core::placement::{Fallback, Placed, Placer, Policy, Request, Strategy};

const SEGMENT_BYTES: u64 = 1 << 30;
/// Mean share of a segment that is allocated.
const FILL: f64 = 0.8;
/// Length in bytes and weight of each size of object.
const SIZES: [(u64, u64); 3] = [(4096, 7), (262_144, 2), (3_274_752, 1)];
const SEGMENTS: [usize; 4] = [1, 16, 128, 1024];
const SEED: u64 = 7600;

/// Measures placement and allocation; the last line is `RESULT` and a JSON object.
#[derive(Debug, Parser)]
struct Arguments {
    /// Fewer rounds of fewer pairs: shows that the bench works, its figures mean little.
    #[arg(long)]
    quick: bool,
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    rounds: usize,
    /// Pairs of one batch whose time is taken as a whole.
    batch_pairs: usize,
    /// Pairs of one round that are timed one by one.
    timed_pairs: usize,
}

impl Effort {
    fn of(arguments: &Arguments) -> Self {
        if arguments.quick {
            Self {
                rounds: 3,
                batch_pairs: 20_000,
                timed_pairs: 5_000,
            }
        } else {
            Self {
                rounds: 9,
                batch_pairs: 200_000,
                timed_pairs: 50_000,
            }
        }
    }
}

/// One pair: which live object goes, how long the new one is.
#[derive(Clone, Copy, Debug)]
struct Step {
    victim: u32,
    len_bytes: u64,
}

fn random_len_bytes(rng: &mut ChaCha8Rng) -> u64 {
    let weights: u64 = SIZES.iter().map(|(_, weight)| weight).sum();
    let mut drawn = rng.random_range(0..weights);
    for (len_bytes, weight) in SIZES {
        if drawn < weight {
            return len_bytes;
        }
        drawn -= weight;
    }
    unreachable!("drawn is below the sum of the weights")
}

/// The live objects that fill one segment to the wanted share on average.
fn live_per_segment() -> usize {
    let weights: u64 = SIZES.iter().map(|(_, weight)| weight).sum();
    let mean_bytes = SIZES.iter().map(|(len_bytes, weight)| len_bytes * weight).sum::<u64>() as f64 / weights as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few thousand")]
    let live = (SEGMENT_BYTES as f64 * FILL / mean_bytes) as usize;
    live
}

fn draw_steps(rng: &mut ChaCha8Rng, live: usize, count: usize) -> Vec<Step> {
    let live = u32::try_from(live).expect("fewer than 2^32 live objects");
    (0..count)
        .map(|_| Step {
            victim: rng.random_range(0..live),
            len_bytes: random_len_bytes(rng),
        })
        .collect()
}

/// Something that holds a number of live objects and replaces one at a time.
///
/// Batches are default methods, so that each subject has a loop of its own without dynamic calls in it.
trait Subject {
    /// Adds a live object. Used before measuring only.
    fn add(&mut self, len_bytes: u64) -> Result<()>;

    /// Frees a live object and makes a new one in its stead.
    fn pair(&mut self, step: Step);

    /// Pairs whose new object found no room.
    fn refused(&self) -> u64 {
        0
    }

    /// Pairs per second over all steps.
    fn pairs_per_s(&mut self, steps: &[Step]) -> f64 {
        let start = Instant::now();
        for &step in steps {
            self.pair(step);
        }
        steps.len() as f64 / start.elapsed().as_secs_f64()
    }

    /// Adds the time of each step in ns to `samples_ns`.
    fn time_pairs(&mut self, steps: &[Step], samples_ns: &mut Vec<f64>) {
        let mut last = Instant::now();
        for &step in steps {
            self.pair(step);
            let now = Instant::now();
            samples_ns.push((now - last).as_nanos() as f64);
            last = now;
        }
    }
}

/// Segments behind a placement policy.
struct Pool {
    segments: Vec<RegionAllocator>,
    placer: Placer,
    rng: ChaCha8Rng,
    placed: Vec<Placed<Region>>,
    live: Vec<Option<Placed<Region>>>,
    refused: u64,
}

impl Pool {
    fn new(policy: Policy, segments: usize) -> Result<Self> {
        let config = AllocatorConfig::new(SEGMENT_BYTES);
        let segments: Result<Vec<_>, _> = (0..segments).map(|_| RegionAllocator::new(config)).collect();
        Ok(Self {
            segments: segments?,
            placer: Placer::new(policy),
            rng: ChaCha8Rng::seed_from_u64(SEED),
            placed: Vec::new(),
            live: Vec::new(),
            refused: 0,
        })
    }

    fn place(&mut self, len_bytes: u64) -> Option<Placed<Region>> {
        let request = Request::new(len_bytes);
        self.placer
            .place(&mut self.segments[..], &request, &mut self.rng, &mut self.placed)
            .ok()?;
        self.placed.pop()
    }
}

impl Subject for Pool {
    fn add(&mut self, len_bytes: u64) -> Result<()> {
        let placed = self
            .place(len_bytes)
            .context("the pool is full before the bench begins")?;
        self.live.push(Some(placed));
        Ok(())
    }

    fn pair(&mut self, step: Step) {
        let victim = step.victim as usize;
        if let Some(placed) = self.live[victim].take() {
            self.segments[placed.entry.0].free(placed.region).expect("placed there");
        }
        self.live[victim] = self.place(step.len_bytes);
        self.refused += u64::from(self.live[victim].is_none());
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

/// One segment without placement.
struct Allocator {
    segment: RegionAllocator,
    live: Vec<Option<Region>>,
    refused: u64,
}

impl Allocator {
    fn new(classes: Classes) -> Result<Self> {
        let config = AllocatorConfig {
            classes,
            ..AllocatorConfig::new(SEGMENT_BYTES)
        };
        Ok(Self {
            segment: RegionAllocator::new(config)?,
            live: Vec::new(),
            refused: 0,
        })
    }
}

impl Subject for Allocator {
    fn add(&mut self, len_bytes: u64) -> Result<()> {
        self.live.push(Some(self.segment.allocate(len_bytes)?));
        Ok(())
    }

    fn pair(&mut self, step: Step) {
        let victim = step.victim as usize;
        if let Some(region) = self.live[victim].take() {
            self.segment.free(region).expect("allocated there");
        }
        self.live[victim] = self.segment.allocate(step.len_bytes).ok();
        self.refused += u64::from(self.live[victim].is_none());
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

/// The process's own malloc, by way of vectors that are never filled.
#[derive(Default)]
struct Malloc {
    live: Vec<Vec<u8>>,
}

impl Malloc {
    fn vector(len_bytes: u64) -> Vec<u8> {
        black_box(Vec::with_capacity(
            usize::try_from(len_bytes).expect("an object fits in memory"),
        ))
    }
}

impl Subject for Malloc {
    fn add(&mut self, len_bytes: u64) -> Result<()> {
        self.live.push(Self::vector(len_bytes));
        Ok(())
    }

    fn pair(&mut self, step: Step) {
        let live = &mut self.live[step.victim as usize];
        drop(std::mem::take(live));
        *live = Self::vector(step.len_bytes);
    }
}

/// A subject, its name, and what was measured of it.
struct Case {
    name: String,
    subject: Box<dyn Subject>,
    live: usize,
    pairs_per_s: Vec<f64>,
    ratios: Vec<f64>,
    samples_ns: Vec<f64>,
}

impl Case {
    /// Fills the subject with `live` objects.
    fn new(name: String, mut subject: Box<dyn Subject>, live: usize) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        for _ in 0..live {
            subject.add(random_len_bytes(&mut rng))?;
        }
        Ok(Self {
            name,
            subject,
            live,
            pairs_per_s: Vec::new(),
            ratios: Vec::new(),
            samples_ns: Vec::new(),
        })
    }

    fn run_round(&mut self, seed: u64, effort: Effort) {
        let steps = draw_steps(
            &mut ChaCha8Rng::seed_from_u64(seed),
            self.live,
            effort.batch_pairs + effort.timed_pairs,
        );
        let (batch, timed) = steps.split_at(effort.batch_pairs);
        self.pairs_per_s.push(self.subject.pairs_per_s(batch));
        self.subject.time_pairs(timed, &mut self.samples_ns);
    }

    fn print(self, report: &mut Report) {
        let rates = Samples::new(self.pairs_per_s);
        let ratio = Samples::new(self.ratios).median();
        let times = Samples::new(self.samples_ns);
        let (p50_ns, p99_ns) = (times.quantile(0.5), times.quantile(0.99));
        println!(
            "{:32} {:>7.2} ({:>5.2} … {:>5.2}) {:>9.0} {:>9.0} {:>9.2} {:>8}",
            self.name,
            rates.median() / 1e6,
            rates.min() / 1e6,
            rates.max() / 1e6,
            p50_ns,
            p99_ns,
            ratio,
            self.subject.refused()
        );
        report.push(&self.name, "pairs_per_s", rates.median(), "1/s");
        report.push(&self.name, "p50_ns", p50_ns, "ns");
        report.push(&self.name, "p99_ns", p99_ns, "ns");
        report.push(&self.name, "ratio_to_malloc", ratio, "1");
    }
}

/// The subjects of one number of segments, malloc last.
fn group(segments: usize) -> Result<Vec<Case>> {
    let live = live_per_segment();
    let mut cases = Vec::new();
    let policies = [
        (
            "random",
            Policy {
                strategy: Strategy::Random,
                fallback: Fallback::Blind,
            },
        ),
        (
            "free_ratio_first",
            Policy {
                strategy: Strategy::FreeRatioFirst,
                fallback: Fallback::FitAware,
            },
        ),
        (
            "free_ratio_first_blind",
            Policy {
                strategy: Strategy::FreeRatioFirst,
                fallback: Fallback::Blind,
            },
        ),
    ];
    for (name, policy) in policies {
        let subject = Box::new(Pool::new(policy, segments)?);
        cases.push(Case::new(format!("{name}/{segments}"), subject, live * segments)?);
    }
    if segments == 1 {
        cases.push(Case::new(
            "allocator/1".to_owned(),
            Box::new(Allocator::new(Classes::Tight)?),
            live,
        )?);
        cases.push(Case::new(
            "allocator_peer/1".to_owned(),
            Box::new(Allocator::new(Classes::Peer)?),
            live,
        )?);
    }
    cases.push(Case::new(
        format!("malloc/{segments}"),
        Box::new(Malloc::default()),
        live,
    )?);
    Ok(cases)
}

/// Runs all rounds of one group, reversing the order of its cases from round to round.
fn run_group(cases: &mut [Case], effort: Effort) {
    for round in 0..effort.rounds {
        let seed = SEED + 1 + round as u64;
        if round % 2 == 0 {
            cases.iter_mut().for_each(|case| case.run_round(seed, effort));
        } else {
            cases.iter_mut().rev().for_each(|case| case.run_round(seed, effort));
        }
        let malloc = cases.last().map_or(f64::NAN, |case| case.pairs_per_s[round]);
        for case in &mut *cases {
            case.ratios.push(case.pairs_per_s[round] / malloc);
        }
    }
}

/// The median time between two readings of the clock in ns.
fn clock_ns() -> f64 {
    let mut last = Instant::now();
    let reading = |_| {
        let now = Instant::now();
        (now - std::mem::replace(&mut last, now)).as_nanos() as f64
    };
    Samples::new((0..10_001).map(reading).collect()).median()
}

fn main() -> Result<()> {
    let effort = Effort::of(&Arguments::parse());
    let mut report = Report::new("placement");
    println!("{effort:?}, one clock reading {:.0} ns", clock_ns());
    println!(
        "{:32} {:>7} {:>15} {:>9} {:>9} {:>9} {:>8}",
        "case", "M/s", "(min … max)", "p50 ns", "p99 ns", "× malloc", "refused"
    );
    for segments in SEGMENTS {
        let mut cases = group(segments).with_context(|| format!("cannot fill {segments} segments"))?;
        run_group(&mut cases, effort);
        cases.into_iter().for_each(|case| case.print(&mut report));
    }
    println!("{}", report.line());
    Ok(())
}

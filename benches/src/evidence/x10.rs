//! X10: speed of placement with free.
//!
//! A *pair* frees a random live object and places a new one of a random size. Victims and sizes are drawn before the clock starts, the same for all
//! ways. Memory is never touched.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use anyhow::{Context as _, Result};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use tenon_store_core::placement::IndexedPool;

use super::record::Findings;
use super::stats::Interval;
use super::subject::{self, INDEXED, Object, Packed, Plain, Segments, Subject, Way};
use super::{Conditions, Effort, Experiment, Label, machine, plot};
use crate::report::Samples;

const SEGMENT_BYTES: u64 = 32 << 20;
/// Mean share of a segment that is allocated.
const FILL: f64 = 0.8;
/// Length in bytes and weight of each size.
const SIZES: [(u64, u64); 3] = [(4096, 7), (262_144, 2), (3_274_752, 1)];
const SEED: u64 = 10;
const WAYS: [Way; 4] = [Way::BLIND, Way::RANDOM, Way::Indexed, Way::Default];

pub(super) const X10: Experiment = Experiment {
    id: "X10",
    title: "Placements with free per second",
    label: Label::Diagnostic,
    hypothesis: "Under one index of regions the number of segments hardly matters: what remains is the cost of \
     two changes of an ordered set.",
    gate: "default: ≥ 5 M pairs/s on one thread at up to 1,024 segments, ≥ 3 M/s at \
     16,384; P99 < 1 µs",
    exit_rule: "the cheaper of indexed and default stays the default, unless it cannot do what a node needs",
    published: "allocations only: free_ratio_first 2.2–3.2 M/s at 1 entry, 1.5–1.8 at 100; random 0.3–0.4 at \
     1,024; P99 1.5–3 µs, 85–116 µs at 1,024",
    run: Some(run),
};

#[derive(Clone, Copy)]
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

fn draw_steps(rng: &mut ChaCha8Rng, live: usize, count: usize) -> Vec<Step> {
    let live = u32::try_from(live).expect("fewer than 2^32 live objects");
    let step = |_| Step {
        victim: rng.random_range(0..live),
        len_bytes: random_len_bytes(rng),
    };
    (0..count).map(step).collect()
}

/// Live objects of a subject.
struct Load<S> {
    subject: S,
    live: Vec<Option<Object>>,
    refused: u64,
}

impl<S: Subject> Load<S> {
    fn fill(subject: S, segments: usize) -> Self {
        let mut load = Self {
            subject,
            live: Vec::new(),
            refused: 0,
        };
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let capacity_bytes = SEGMENT_BYTES as f64 * segments as f64;
        let mut used_bytes = 0.0;
        while used_bytes < FILL * capacity_bytes {
            let len_bytes = random_len_bytes(&mut rng);
            used_bytes += len_bytes as f64;
            let object = load.subject.place(len_bytes);
            load.live.push(object);
        }
        load
    }

    #[inline]
    fn pair(&mut self, step: Step) {
        let victim = step.victim as usize;
        if let Some(object) = self.live[victim].take() {
            self.subject.free(object);
        }
        self.live[victim] = self.subject.place(step.len_bytes);
        self.refused += u64::from(self.live[victim].is_none());
    }
}

/// A load with its own loop per kind of subject, so that no call in it is dynamic.
trait Run: Send {
    fn live(&self) -> usize;
    fn refused(&self) -> u64;
    fn pairs_per_s(&mut self, steps: &[Step]) -> f64;
    fn time_pairs(&mut self, steps: &[Step], samples_ns: &mut Vec<f64>);
    fn pairs_per_s_of_two(&mut self, steps: &[Step]) -> f64;
}

impl<S: Subject + Send> Run for Load<S> {
    fn live(&self) -> usize {
        self.live.len()
    }

    fn refused(&self) -> u64 {
        self.refused
    }

    fn pairs_per_s(&mut self, steps: &[Step]) -> f64 {
        let start_s = machine::thread_cpu_s();
        steps.iter().for_each(|&step| self.pair(step));
        steps.len() as f64 / (machine::thread_cpu_s() - start_s)
    }

    fn time_pairs(&mut self, steps: &[Step], samples_ns: &mut Vec<f64>) {
        let mut last = Instant::now();
        for &step in steps {
            self.pair(step);
            let now = Instant::now();
            samples_ns.push((now - last).as_nanos() as f64);
            last = now;
        }
    }

    fn pairs_per_s_of_two(&mut self, steps: &[Step]) -> f64 {
        let (first, second) = steps.split_at(steps.len() / 2);
        let shared = Mutex::new(self);
        let barrier = Barrier::new(2);
        let run = |part: &[Step]| {
            barrier.wait();
            let start = Instant::now();
            for &step in part {
                shared.lock().expect("no thread panics").pair(step);
            }
            (start, Instant::now())
        };
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(second));
            (run(first), other.join().expect("no thread panics"))
        });
        let elapsed = one.1.max(other.1) - one.0.min(other.0);
        steps.len() as f64 / elapsed.as_secs_f64()
    }
}

fn load(way: Way, segments: usize) -> Box<dyn Run> {
    let capacities_bytes = vec![SEGMENT_BYTES; segments];
    match way {
        Way::Policy(policy) => {
            let pool = Plain(subject::segments(&capacities_bytes));
            Box::new(Load::fill(Segments::new(policy, pool, SEED), segments))
        }
        Way::Indexed => {
            let pool = IndexedPool::new(subject::segments(&capacities_bytes));
            Box::new(Load::fill(Segments::new(INDEXED, pool, SEED), segments))
        }
        Way::Default => Box::new(Load::fill(Packed::new(&capacities_bytes), segments)),
    }
}

struct Measured {
    way: Way,
    load: Box<dyn Run>,
    pairs_per_s: Vec<f64>,
    of_two_per_s: Vec<f64>,
    samples_ns: Vec<f64>,
}

impl Measured {
    fn round(&mut self, seed: u64, batch: usize) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let steps = draw_steps(&mut rng, self.load.live(), 2 * batch + batch / 4);
        self.pairs_per_s.push(self.load.pairs_per_s(&steps[..batch]));
        self.of_two_per_s
            .push(self.load.pairs_per_s_of_two(&steps[batch..2 * batch]));
        self.load.time_pairs(&steps[2 * batch..], &mut self.samples_ns);
    }
}

fn measure(findings: &mut Findings, segments: usize, effort: Effort) {
    let (rounds, batch) = effort.pick((3, 20_000), (11, 100_000));
    let new = |way| Measured {
        way,
        load: load(way, segments),
        pairs_per_s: Vec::new(),
        of_two_per_s: Vec::new(),
        samples_ns: Vec::new(),
    };
    let mut subjects: Vec<_> = WAYS.map(new).into();
    for round in 0..rounds {
        let seed = SEED + 1 + round;
        if round % 2 == 0 {
            subjects.iter_mut().for_each(|subject| subject.round(seed, batch));
        } else {
            subjects.iter_mut().rev().for_each(|subject| subject.round(seed, batch));
        }
    }
    let blind = subjects[0].pairs_per_s.clone();
    for Measured {
        way,
        load,
        pairs_per_s,
        of_two_per_s,
        samples_ns,
    } in subjects
    {
        let case = format!("X10/{segments}/{}", way.name());
        findings.interval(&case, "pairs_per_s", Interval::of(pairs_per_s.clone()), "1/s");
        findings.interval(
            &case,
            "rate_ratio_to_blind",
            Interval::of_ratios(&pairs_per_s, &blind),
            "1",
        );
        findings.interval(&case, "pairs_per_s_two_threads", Interval::of(of_two_per_s), "1/s");
        let times = Samples::new(samples_ns);
        findings.row(&case, "p50_ns", times.quantile(0.5), "ns");
        findings.row(&case, "p99_ns", times.quantile(0.99), "ns");
        findings.row(&case, "refused_pairs", load.refused() as f64, "1");
        findings.raw.push((case, "pairs_per_s", pairs_per_s));
    }
}

fn run(&Conditions { effort, .. }: &Conditions) -> Result<Findings> {
    let mut findings = Findings::new(json!({
        "segment_bytes": SEGMENT_BYTES, "fill": FILL, "sizes_bytes_and_weights": SIZES, "seed": SEED,
        "two_threads": "one pool behind one mutex",
    }));
    let sizes: &[usize] = effort.pick(&[1, 16, 1024], &[1, 16, 128, 1024, 16_384]);
    for &segments in sizes {
        measure(&mut findings, segments, effort);
    }
    let mut rates = Vec::new();
    for &segments in sizes {
        for way in WAYS {
            let case = format!("X10/{segments}/{}", way.name());
            let rate = findings.value(&case, "pairs_per_s");
            if way == Way::Default {
                let least = if segments > 1024 { 3e6 } else { 5e6 };
                let p99_ns = findings.value(&case, "p99_ns");
                findings.judge(
                    rate >= least && p99_ns < 1000.0,
                    format!("{case}: {:.2} M/s, P99 {p99_ns:.0} ns", rate / 1e6),
                );
            }
            rates.push((case, rate / 1e6));
        }
    }
    let last = rates.last().context("no sizes")?.0.clone();
    findings.notes.push(format!(
        "Rates on one thread are per second of its processor time, those of two threads by the wall clock. P50 \
         and P99 are over pairs timed one by one, one clock reading included; the last case is {last}."
    ));
    findings.plots.push((
        "rate.svg".to_owned(),
        plot::bars("Pairs per second, one thread", "millions", &rates),
    ));
    Ok(findings)
}

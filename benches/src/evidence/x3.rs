//! X3, X4 and X5: objects of one or two sizes through the real store.

use anyhow::{Context as _, Result};
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::record::Findings;
use super::stats::Interval;
use super::store::{Puts, Store, Variant, keys};
use super::{Effort, Experiment, Label, plot};
use crate::metrics;

const SEGMENT_BYTES: u64 = 16 << 20;
const MIB: u64 = 1 << 20;
const SEED: u64 = 3;

pub(super) const X3: Experiment = Experiment {
    id: "X3",
    title: "Two sizes through the real store: large objects after every second small one was removed",
    label: Label::Verified,
    hypothesis: "909 small objects packed tightly leave 44 of 101 segments empty, so a placement that packs has room for \
     64 large ones, and pays nothing for that in rate.",
    gate: "default: 64 of 64 large objects in every run",
    exit_rule: "the default does not stay one that fragments the pool by itself",
    published: "raw rate +10.3 %, P99 −15.9 %, large-object success −2.7 points, RSS +0.4 %, 0 recoveries",
    run: Some(|conditions| run(conditions.effort, &TWO_SIZES)),
};

pub(super) const X4: Experiment = Experiment {
    id: "X4",
    title: "128 segments at the capacity edge of one node",
    label: Label::Verified,
    hypothesis: "Where only some holes suffice and budgets end before all segments are asked, budgeted scans refuse what would fit; \
     an index does not.",
    gate: "default: no refusal while the largest free region of the holder has the length that was asked for",
    exit_rule: "the default does not stay one that refuses what fits",
    published: "118 activations, 9,433 credits, 3 recoveries (reproduced in kind: the release pattern was not published)",
    run: Some(|conditions| run(conditions.effort, &EDGE)),
};

pub(super) const X5: Experiment = Experiment {
    id: "X5",
    title: "One size on 128 segments of one node",
    label: Label::Verified,
    hypothesis: "Objects of one size that divides a segment's do not fragment it, so nothing is gained but the last objects that a \
     budget misses.",
    gate: "default: every object that the capacity holds is stored, each after that is refused; the 95 % interval of its rate ratio \
     to blind holds 1 or lies above",
    exit_rule: "the default does not stay one that costs where nothing is to be gained",
    published: "no difference; RSS interval crosses 0",
    run: Some(|conditions| run(conditions.effort, &ONE_SIZE)),
};

/// What is done in a run, in segments of 16 MiB.
struct Plan {
    id: &'static str,
    segments: (usize, usize),
    /// Small objects per segment, counted over all, and their length.
    small: (usize, u64),
    release: Release,
    /// Large objects per hundred segments, and their length.
    large: (usize, u64),
}

enum Release {
    Nothing,
    EverySecond,
    /// So many of eight.
    Random(u32),
}

const TWO_SIZES: Plan = Plan {
    id: "X3",
    segments: (13, 101),
    small: (9, MIB),
    release: Release::EverySecond,
    large: (64, 8 * MIB),
};
const EDGE: Plan = Plan {
    id: "X4",
    segments: (108, 128),
    small: (16, MIB),
    release: Release::Random(3),
    large: (150, 4 * MIB),
};
const ONE_SIZE: Plan = Plan {
    id: "X5",
    segments: (13, 128),
    small: (8, 2 * MIB),
    release: Release::Nothing,
    large: (50, 2 * MIB),
};

impl Plan {
    fn segments(&self, effort: Effort) -> usize {
        effort.pick(self.segments.0, self.segments.1)
    }

    fn large_count(&self, effort: Effort) -> usize {
        self.segments(effort) * self.large.0 / 100
    }

    /// The small objects to remove.
    fn released(&self, small: &[String]) -> Vec<String> {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let mut is_released = |number: usize| match self.release {
            Release::Nothing => false,
            Release::EverySecond => number % 2 == 1,
            Release::Random(of_eight) => rng.random_ratio(of_eight, 8),
        };
        let released = small.iter().enumerate().filter(|&(number, _)| is_released(number));
        let mut released: Vec<String> = released.map(|(_, key)| key.clone()).collect();
        released.shuffle(&mut rng);
        released
    }
}

/// What one life of a store has given.
struct Life {
    small: Puts,
    large: Puts,
    rss_mib: f64,
    metrics: String,
}

fn live(plan: &Plan, variant: Variant, effort: Effort) -> Result<Life> {
    let segments = plan.segments(effort);
    let store = Store::start(variant, segments, SEGMENT_BYTES)?;
    let small = keys("small", 0..segments * plan.small.0);
    let put_small = store.put(&small, plan.small.1)?;
    store.remove(&plan.released(&small[..put_small.stored.min(small.len())]))?;
    let large = store.put(&keys("large", 0..plan.large_count(effort)), plan.large.1)?;
    Ok(Life {
        small: put_small,
        large,
        rss_mib: store.holder_rss_bytes()? / MIB as f64,
        metrics: store.metrics()?,
    })
}

/// The lives of one variant.
struct Lives {
    variant: Variant,
    lives: Vec<Life>,
}

impl Lives {
    fn all(&self, figure: impl Fn(&Life) -> f64) -> Vec<f64> {
        self.lives.iter().map(figure).collect()
    }
}

/// Default and blind in turns, in an order that is reversed from pair to pair; then the others.
fn lives(plan: &Plan, effort: Effort) -> Result<Vec<Lives>> {
    let (pairs, runs_of_others) = effort.pick((1, 1), (7, 3));
    let mut all: Vec<Lives> = Variant::ALL
        .map(|variant| Lives {
            variant,
            lives: Vec::new(),
        })
        .into();
    let run = |of: &mut Lives| -> Result<()> {
        let life = live(plan, of.variant, effort).with_context(|| format!("{} with {}", plan.id, of.variant.name))?;
        of.lives.push(life);
        Ok(())
    };
    for pair in 0..pairs {
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        order.into_iter().try_for_each(|at| run(&mut all[at]))?;
    }
    for of in &mut all[2..] {
        (0..runs_of_others).try_for_each(|_| run(of))?;
    }
    Ok(all)
}

fn run(effort: Effort, plan: &Plan) -> Result<Findings> {
    let segments = plan.segments(effort);
    let mut findings = Findings::new(json!({
        "segments": segments, "segment_bytes": SEGMENT_BYTES, "small": segments * plan.small.0, "small_bytes": plan.small.1,
        "large": plan.large_count(effort), "large_bytes": plan.large.1, "seed": SEED, "eviction": "off", "transport": "tcp",
    }));
    let all = lives(plan, effort)?;
    let rates = |of: &Lives| of.all(|life| life.large.rate_per_s());
    let (blind_rates, blind_p99s) = (rates(&all[1]), all[1].all(|life| life.large.p99_s()));
    let mut plotted = Vec::new();
    for of in &all {
        let case = format!("{}/{}", plan.id, of.variant.name);
        put_rows(&mut findings, &case, of, plan.large_count(effort));
        if of.variant == Variant::DEFAULT {
            findings.interval(
                &case,
                "rate_ratio_to_blind",
                Interval::of_ratios(&rates(of), &blind_rates),
                "1",
            );
            let p99s = of.all(|life| life.large.p99_s());
            findings.interval(
                &case,
                "p99_ratio_to_blind",
                Interval::of_ratios(&p99s, &blind_p99s),
                "1",
            );
        }
        plotted.push((case.clone(), findings.value(&case, "large_ok")));
        if [Variant::DEFAULT, Variant::FIT_AWARE].contains(&of.variant) {
            let last = of.lives.last().expect("every variant lives");
            let name = format!("metrics-{}.txt", of.variant.name);
            findings.snapshots.push((name, last.metrics.clone()));
        }
        findings.raw.push((case, "large_per_s", rates(of)));
    }
    judge(&mut findings, plan, effort);
    let title = format!("Large objects stored, of {}", plan.large_count(effort));
    findings.plots.push((
        "large.svg".to_owned(),
        plot::bars(&title, "objects, least of all runs", &plotted),
    ));
    findings.notes.push(
        "Two agent processes on loopback: one holds all segments, the other is asked; every byte crosses TCP. Rates and P99 are of the \
         large puts, those without room included, which are cheap. `large_ok` is the least of all runs. `refused_though_fits` counts \
         refusals whose own numbers have a largest free region of the length that was asked for. After a random release the holes differ from \
         variant to variant by chance, and with them how many large objects fit."
            .to_owned(),
    );
    Ok(findings)
}

fn put_rows(findings: &mut Findings, case: &str, of: &Lives, large: usize) {
    let least = |figure: fn(&Life) -> usize| of.lives.iter().map(figure).min().unwrap_or(0) as f64;
    findings.row(case, "small_ok", least(|life| life.small.stored), "1");
    let large_ok = least(|life| life.large.stored);
    findings.row(case, "large_ok", large_ok, "1");
    findings.row(case, "success_ratio", large_ok / large as f64, "1");
    let fits = of.all(|life| (life.small.refused_though_fits + life.large.refused_though_fits) as f64);
    findings.row(case, "refused_though_fits", fits.into_iter().fold(0.0, f64::max), "1");
    findings.interval(
        case,
        "large_per_s",
        Interval::of(of.all(|life| life.large.rate_per_s())),
        "1/s",
    );
    findings.interval(
        case,
        "large_p99_ms",
        Interval::of(of.all(|life| life.large.p99_s() * 1e3)),
        "ms",
    );
    findings.interval(case, "holder_rss_mib", Interval::of(of.all(|life| life.rss_mib)), "MiB");
    for (name, exposed) in [
        ("armed_requests", "tenon_placement_armed_total"),
        ("no_fit_credits", "tenon_placement_no_fit_credits_total"),
        ("recovered", "tenon_placement_recovered_total"),
    ] {
        let sum: f64 = of.all(|life| metrics::value(&life.metrics, exposed)).iter().sum();
        findings.row(case, name, sum / of.lives.len() as f64, "1");
    }
}

fn judge(findings: &mut Findings, plan: &Plan, effort: Effort) {
    let of = |name: &str, metric| findings.value(&format!("{}/{name}", plan.id), metric);
    let (large, large_ok) = (plan.large_count(effort), of("default", "large_ok"));
    let fits = of("default", "refused_though_fits");
    let (small_ok, small) = (of("default", "small_ok"), plan.segments(effort) * plan.small.0);
    let ratio = (findings.rows.iter())
        .find(|row| row.case == format!("{}/default", plan.id) && row.metric == "rate_ratio_to_blind")
        .and_then(|row| row.interval);
    match plan.release {
        Release::EverySecond => findings.judge(
            large_ok == large as f64,
            format!("default: {large_ok} of {large} large objects in the worst run"),
        ),
        Release::Random(_) => findings.judge(
            fits == 0.0,
            format!("default: {fits} refusals of what would have fitted"),
        ),
        Release::Nothing => {
            findings.judge(
                small_ok == small as f64 && large_ok == 0.0,
                format!("default: {small_ok} of {small} objects stored, then {large_ok} of {large}"),
            );
            // The one pair of the quick form says nothing of rates.
            if effort == Effort::Full {
                let (low, high) = ratio.expect("a ratio over pairs");
                findings.judge(
                    high >= 1.0,
                    format!("default: rate ratio to blind {low:.3} … {high:.3}"),
                );
            }
        }
    }
}

//! X1 and X2: one entry that fits among many that do not; and many that all do.
//!
//! A request is freed at once when it succeeds, so every request meets the same pool. Rates are those of requests, successful or not, per second of
//! processor time.

use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::record::Findings;
use super::stats::Interval;
use super::subject::{self, Subject, Way};
use super::{Conditions, Effort, Experiment, Label, machine, plot};
use crate::report::Samples;

const LEN_BYTES: u64 = 4096;
const SEGMENT_BYTES: u64 = 1 << 20;
const SEED: u64 = 256;
const WAYS: [Way; 4] = [Way::BLIND, Way::FIT_AWARE, Way::Indexed, Way::Default];

pub(super) const X1: Experiment = Experiment {
    id: "X1",
    title: "One entry fits among 256 to 16,384",
    label: Label::Diagnostic,
    hypothesis: "Budgeted scans miss the only entry with a probability that follows from their budgets; an index \
     never does, and is faster at any size, \
                 also when every other entry is one alignment unit short.",
    gate: "blind within 0.3 points of 40.49 % and fit_aware of 78.64 % at 256 entries; indexed 100 %, request \
     rate ≥ 3 × and P99 ≤ 0.5 × those of blind \
           at every size and in the adversarial case",
    exit_rule: "indexed stays selectable but does not become the default",
    published: "40.480 % → 78.643 %; goodput +55.8 %; raw rate −19.8 %; P99 +49.5 %",
    run: Some(run_x1),
};

pub(super) const X2: Experiment = Experiment {
    id: "X2",
    title: "Healthy control: every one of 64 entries fits",
    label: Label::Diagnostic,
    hypothesis: "Where the first choice always fits, fallbacks do not matter: fit_aware costs nothing beside blind.",
    gate: "100 % for all; the 95 % intervals of fit_aware's rate and P99 ratios to blind hold 1 or differ from it \
     by less than 2 %",
    exit_rule: "the fallback that slows a healthy pool is withdrawn as the default",
    published: "100 % both; rate and P99 intervals cross 0",
    run: Some(run_x2),
};

/// What the entries that do not fit look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Geometry {
    /// Full, but for one that is empty.
    Full,
    /// One alignment unit short, but for one that just fits.
    OneUnitShort,
    /// All half full.
    Healthy,
}

/// How often what is done.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    pairs: usize,
    requests: usize,
    timed: usize,
}

fn rounds(effort: Effort, entries: usize) -> Rounds {
    let full = Rounds {
        pairs: 31,
        // Enough for the success ratio at 256 entries; larger pools are about rates.
        requests: if entries <= 256 { 50_000 } else { 10_000 },
        timed: 5_000,
    };
    effort.pick(
        Rounds {
            pairs: 3,
            requests: 4_000,
            timed: 2_000,
        },
        full,
    )
}

/// The bytes that a segment has in one free region.
fn left_bytes(geometry: Geometry, is_fitting: bool) -> u64 {
    match geometry {
        Geometry::Full if is_fitting => SEGMENT_BYTES,
        Geometry::Full => 0,
        Geometry::OneUnitShort if is_fitting => LEN_BYTES,
        Geometry::OneUnitShort => LEN_BYTES - 64,
        Geometry::Healthy => SEGMENT_BYTES / 2 - 64,
    }
}

fn subject(way: Way, entries: usize, geometry: Geometry) -> Box<dyn Subject> {
    let fitting = entries / 3;
    let policy = match way {
        Way::Policy(policy) => policy,
        Way::Indexed => subject::INDEXED,
        Way::Default => return packed(entries, geometry, fitting),
    };
    let mut segments = subject::segments(&vec![SEGMENT_BYTES; entries]);
    for (number, segment) in segments.iter_mut().enumerate() {
        let filler_bytes = SEGMENT_BYTES - left_bytes(geometry, number == fitting);
        if filler_bytes > 0 {
            let _filler = segment.allocate(filler_bytes).expect("an empty segment");
        }
    }
    subject::of_segments(policy, segments, SEED)
}

/// The same under one index: first all segments are filled whole, then one after the other is emptied and filled as far as it is to be.
fn packed(entries: usize, geometry: Geometry, fitting: usize) -> Box<dyn Subject> {
    let mut packed = subject::Packed::new(&vec![SEGMENT_BYTES; entries]);
    let place = |packed: &mut subject::Packed, len_bytes| packed.place(len_bytes).expect("a segment with room");
    let mut whole: Vec<_> = (0..entries).map(|_| place(&mut packed, SEGMENT_BYTES)).collect();
    // Last, so that it takes in no filler of another.
    whole.sort_by_key(|&(segment, _)| segment == fitting);
    for (segment, region) in whole {
        packed.free((segment, region));
        let filler_bytes = SEGMENT_BYTES - left_bytes(geometry, segment == fitting);
        if filler_bytes > 0 {
            let (filled, _) = place(&mut packed, filler_bytes);
            assert_eq!(filled, segment, "the filler went elsewhere");
        }
    }
    Box::new(packed)
}

/// What the rounds of one way have given.
#[derive(Default)]
struct Measured {
    requests_per_s: Vec<f64>,
    p99_ns: Vec<f64>,
    successes: u64,
    requests: u64,
}

impl Measured {
    fn round(&mut self, subject: &mut dyn Subject, rounds: Rounds) {
        let start_s = machine::thread_cpu_s();
        for _ in 0..rounds.requests {
            if let Some(object) = subject.place(LEN_BYTES) {
                self.successes += 1;
                subject.free(object);
            }
        }
        self.requests_per_s
            .push(rounds.requests as f64 / (machine::thread_cpu_s() - start_s));
        self.requests += rounds.requests as u64;
        let mut times_ns = Vec::with_capacity(rounds.timed);
        for _ in 0..rounds.timed {
            let start = Instant::now();
            let object = subject.place(LEN_BYTES);
            times_ns.push(start.elapsed().as_nanos() as f64);
            if let Some(object) = object {
                subject.free(object);
            }
        }
        self.p99_ns.push(Samples::new(times_ns).quantile(0.99));
    }

    fn success_ratio(&self) -> f64 {
        self.successes as f64 / self.requests as f64
    }
}

/// Measures all ways in turns, in an order that is reversed from round to round, the first way being what the others are compared with.
fn measure(findings: &mut Findings, prefix: &str, entries: usize, geometry: Geometry, effort: Effort) {
    let rounds = rounds(effort, entries);
    let mut subjects: Vec<_> = WAYS
        .map(|way| (way, subject(way, entries, geometry), Measured::default()))
        .into();
    for round in 0..rounds.pairs {
        if round % 2 == 0 {
            subjects
                .iter_mut()
                .for_each(|(_, subject, measured)| measured.round(&mut **subject, rounds));
        } else {
            subjects
                .iter_mut()
                .rev()
                .for_each(|(_, subject, measured)| measured.round(&mut **subject, rounds));
        }
    }
    let blind = &subjects[0].2;
    for (way, _, measured) in &subjects {
        let case = format!("{prefix}/{}", way.name());
        findings.row(&case, "success_ratio", measured.success_ratio(), "1");
        findings.interval(
            &case,
            "requests_per_s",
            Interval::of(measured.requests_per_s.clone()),
            "1/s",
        );
        findings.interval(&case, "p99_ns", Interval::of(measured.p99_ns.clone()), "ns");
        let rate = Interval::of_ratios(&measured.requests_per_s, &blind.requests_per_s);
        findings.interval(&case, "rate_ratio_to_blind", rate, "1");
        findings.interval(
            &case,
            "p99_ratio_to_blind",
            Interval::of_ratios(&measured.p99_ns, &blind.p99_ns),
            "1",
        );
        let goodput = rate.median * measured.success_ratio() / blind.success_ratio();
        findings.row(&case, "goodput_ratio_to_blind", goodput, "1");
        findings
            .raw
            .push((case.clone(), "requests_per_s", measured.requests_per_s.clone()));
        findings.raw.push((case, "p99_ns", measured.p99_ns.clone()));
    }
}

fn run_x1(&Conditions { effort, .. }: &Conditions) -> Result<Findings> {
    let rounds = rounds(effort, 256);
    let mut findings = Findings::new(json!({
        "segment_bytes": SEGMENT_BYTES, "len_bytes": LEN_BYTES, "pairs": rounds.pairs, "requests_per_pair_at_256": rounds.requests,
        "timed_one_by_one_per_pair": rounds.timed, "seed": SEED, "alignment_bytes": 64,
    }));
    let cases = [
        ("X1/256", 256, Geometry::Full),
        ("X1/1024", 1024, Geometry::Full),
        ("X1/16384", 16_384, Geometry::Full),
        ("X1/adversarial-16384", 16_384, Geometry::OneUnitShort),
    ];
    for (prefix, entries, geometry) in cases {
        measure(&mut findings, prefix, entries, geometry, effort);
    }
    judge_x1(&mut findings, effort, cases.map(|(prefix, ..)| prefix));
    let rates = cases
        .iter()
        .flat_map(|(prefix, ..)| WAYS.map(|way| format!("{prefix}/{}", way.name())));
    let rates: Vec<_> = rates
        .map(|case| {
            let value = findings.value(&case, "requests_per_s") / 1e6;
            (case, value)
        })
        .collect();
    findings.plots.push((
        "rate.svg".to_owned(),
        plot::bars("Requests per second", "millions", &rates),
    ));
    findings.notes.push(
        "Rates are per second of the thread's processor time, so that other programs on the machine count little. \
         A request is a place, and a free if it succeeded: a way that always succeeds pays for a free, and for \
         two updates of its index, that a \
         failing one is spared. P99 is that of the place alone, one clock reading included."
            .to_owned(),
    );
    Ok(findings)
}

fn judge_x1(findings: &mut Findings, effort: Effort, prefixes: [&str; 4]) {
    let tolerance = effort.pick(0.03, 0.003);
    for (way, expected) in [("blind", 0.4049), ("fit_aware", 0.7864)] {
        let success = findings.value(&format!("X1/256/{way}"), "success_ratio");
        let text = format!("{way} at 256: {:.3} % for {:.2} %", success * 100.0, expected * 100.0);
        findings.judge((success - expected).abs() <= tolerance, text);
    }
    for way in ["indexed", "default"] {
        for prefix in prefixes {
            let case = format!("{prefix}/{way}");
            let value = |metric| findings.value(&case, metric);
            let (success, rate, p99) = (
                value("success_ratio"),
                value("rate_ratio_to_blind"),
                value("p99_ratio_to_blind"),
            );
            let held = success >= 1.0 && rate >= 3.0 && p99 <= 0.5;
            let text = format!("{case}: {:.3} %, rate × {rate:.2}, P99 × {p99:.3}", success * 100.0);
            findings.judge(held, text);
        }
    }
}

fn run_x2(&Conditions { effort, .. }: &Conditions) -> Result<Findings> {
    let rounds = rounds(effort, 64);
    let mut findings = Findings::new(json!({
        "segment_bytes": SEGMENT_BYTES, "len_bytes": LEN_BYTES, "entries": 64, "pairs": rounds.pairs,
        "requests_per_pair_at_256": rounds.requests, "timed_one_by_one_per_pair": rounds.timed, "seed": SEED,
    }));
    measure(&mut findings, "X2/64", 64, Geometry::Healthy, effort);
    for way in WAYS {
        let success = findings.value(&format!("X2/64/{}", way.name()), "success_ratio");
        findings.judge(success >= 1.0, format!("{}: {:.3} %", way.name(), success * 100.0));
    }
    for metric in ["rate_ratio_to_blind", "p99_ratio_to_blind"] {
        let row = findings
            .rows
            .iter()
            .find(|row| row.case == "X2/64/fit_aware" && row.metric == metric);
        let (low, high) = row.and_then(|row| row.interval).unwrap_or_default();
        let held = low <= 1.02 && high >= 0.98;
        findings.judge(held, format!("fit_aware {metric}: {low:.4} … {high:.4}"));
    }
    Ok(findings)
}

//! X6: where fragmentation matters. Sizes and release patterns, and finite life cycles, for each way to place.
//!
//! Whenever a request fails, a walk over all segments says whether a free region could have held it: then the failure was avoidable.

use anyhow::Result;
use serde_json::json;

use super::record::Findings;
use super::subject::{self, Subject, Way};
use super::x6_cases::{self as cases, LifeCycle, Release};
use super::{Conditions, Experiment, Label, plot};

const SEGMENTS: usize = 16;
const SEED: u64 = 6;
const WAYS: [Way; 7] = [
    Way::RANDOM,
    Way::BLIND,
    Way::FRAGMENTATION_AWARE,
    Way::RETRY_CONTROL,
    Way::BEST_FIT,
    Way::Indexed,
    Way::Default,
];

pub(super) const X6: Experiment = Experiment {
    id: "X6",
    title: "750 combinations of sizes and release patterns, 1,080 life cycles",
    label: Label::Diagnostic,
    hypothesis: "Fragmentation is driven by the largest object's share of a segment; packing keeps large regions \
     whole, spreading cuts all of them.",
    gate: "default and indexed: no failure while a free region of the node holds the request; default \
     places at least as many large objects \
           as any other way, over all combinations",
    exit_rule: "a way that fails avoidably is not the default",
    published: "where fragmentation matters and where not; driven by largest object / segment size",
    run: Some(run),
};

/// What a way has achieved.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    requests: u64,
    failed: u64,
    avoidable: u64,
}

impl Tally {
    fn place(&mut self, subject: &mut dyn Subject, len_bytes: u64) -> Option<subject::Object> {
        self.requests += 1;
        let object = subject.place(len_bytes);
        if object.is_none() {
            self.failed += 1;
            self.avoidable += u64::from(subject.free_lengths().into_iter().any(|bytes| bytes >= len_bytes));
        }
        object
    }

    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.avoidable += other.avoidable;
    }
}

/// Small objects until the wanted fill, then releases by a pattern, then large objects until as many were asked for as would fill what is free.
fn release(case: &Release, way: Way) -> Tally {
    let mut subject = subject::new(way, &[cases::SEGMENT_BYTES; SEGMENTS], SEED);
    let total_bytes = cases::SEGMENT_BYTES * SEGMENTS as u64;
    let mut objects = Vec::new();
    let wanted_bytes = total_bytes / 100 * case.fill_percent;
    while (objects.len() as u64 + 1) * case.small_bytes <= wanted_bytes {
        let Some(object) = subject.place(case.small_bytes) else {
            break;
        };
        objects.push(object);
    }
    let count = objects.len();
    for (number, object) in objects.into_iter().enumerate() {
        if case.pattern.releases(number, count) {
            subject.free(object);
        }
    }
    let free_bytes: u64 = subject.free_lengths().into_iter().sum();
    let mut tally = Tally::default();
    for _ in 0..free_bytes / case.large_bytes {
        tally.place(&mut *subject, case.large_bytes);
    }
    tally
}

/// Puts of random sizes; when the wanted fill is reached, objects go as their life time says.
fn live(case: &LifeCycle, way: Way) -> Tally {
    let mut subject = subject::new(way, &[cases::SEGMENT_BYTES; SEGMENTS], SEED);
    let mut steps = case.steps();
    let wanted_bytes = cases::SEGMENT_BYTES * SEGMENTS as u64 / 100 * case.fill_percent;
    let (mut live, mut live_bytes) = (std::collections::VecDeque::new(), 0);
    let mut tally = Tally::default();
    for _ in 0..cases::STEPS {
        let len_bytes = steps.len_bytes();
        while live_bytes + len_bytes > wanted_bytes {
            let Some(index) = steps.victim(live.len()) else { break };
            let (object, bytes): (subject::Object, u64) = live.swap_remove_back(index).expect("a live object");
            live_bytes -= bytes;
            subject.free(object);
        }
        if let Some(object) = tally.place(&mut *subject, len_bytes) {
            live.push_back((object, len_bytes));
            live_bytes += len_bytes;
        }
    }
    tally
}

fn run(&Conditions { effort, .. }: &Conditions) -> Result<Findings> {
    let every = effort.pick(25, 1);
    let releases: Vec<_> = cases::releases().into_iter().step_by(every).collect();
    let cycles: Vec<_> = cases::life_cycles().into_iter().step_by(every).collect();
    let mut findings = Findings::new(json!({
        "segments": SEGMENTS, "segment_bytes": cases::SEGMENT_BYTES, "combinations": releases.len(), "life_cycles": cycles.len(),
        "steps_per_life_cycle": cases::STEPS, "seed": SEED,
    }));
    let mut by_share = Vec::new();
    for way in WAYS {
        let mut total = Tally::default();
        for share in cases::LARGE_SHARES {
            let mut of_share = Tally::default();
            let matching = releases
                .iter()
                .filter(|case| case.large_bytes == cases::share_bytes(share));
            matching.for_each(|case| of_share.add(release(case, way)));
            let case = format!("X6/large {}∕{}/{}", share.0, share.1, way.name());
            let ratio = 1.0 - of_share.failed as f64 / of_share.requests.max(1) as f64;
            findings.row(&case, "large_ok_ratio", ratio, "1");
            by_share.push((case, ratio));
            total.add(of_share);
        }
        note(&mut findings, "releases", way, total);
        let mut total = Tally::default();
        cycles.iter().for_each(|case| total.add(live(case, way)));
        note(&mut findings, "life cycles", way, total);
    }
    judge(&mut findings);
    findings.plots.push((
        "large.svg".to_owned(),
        plot::bars(
            "Large objects placed, of those that would fill the free bytes",
            "share",
            &by_share,
        ),
    ));
    findings.notes.push(
        "The published record does not give its parameters: reproduced in kind. A pool of 16 segments is small \
         enough for the budgets of all scans, so their failures \
         here come from where they put small objects, and from nothing else."
            .to_owned(),
    );
    Ok(findings)
}

fn note(findings: &mut Findings, part: &str, way: Way, tally: Tally) {
    let case = format!("X6/{part}/{}", way.name());
    findings.row(&case, "requests", tally.requests as f64, "1");
    findings.row(&case, "failed", tally.failed as f64, "1");
    findings.row(&case, "avoidable_failures", tally.avoidable as f64, "1");
}

fn judge(findings: &mut Findings) {
    for part in ["releases", "life cycles"] {
        for way in ["indexed", "default"] {
            let case = format!("X6/{part}/{way}");
            let (requests, avoidable) = (
                findings.value(&case, "requests"),
                findings.value(&case, "avoidable_failures"),
            );
            findings.judge(
                avoidable == 0.0,
                format!("{case}: {avoidable} avoidable failures in {requests} requests"),
            );
        }
        let failed = |way: Way| findings.value(&format!("X6/{part}/{}", way.name()), "failed");
        let (packed, least) = (
            failed(Way::Default),
            WAYS.map(failed).into_iter().fold(f64::INFINITY, f64::min),
        );
        findings.judge(
            packed <= least,
            format!("{part}: default fails {packed} times, the best way {least} times"),
        );
    }
}

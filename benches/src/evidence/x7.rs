//! X7: replay of a trace of cache blocks against one node: what is asked for and not there is put, and put again after it was evicted.

use anyhow::Result;
use serde_json::json;

use super::eviction::{Eviction, Queue};
use super::record::Findings;
use super::subject::{self, Object, Subject, Way};
use super::x7_trace::Trace;
use super::{Conditions, Effort, Experiment, Label, plot};

const SEGMENT_BYTES: u64 = 64 << 20;
const SEED: u64 = 7;
/// Capacities in percent of the bytes of all different blocks.
const CAPACITIES_PERCENT: [u64; 5] = [5, 10, 25, 50, 105];
const WAYS: [Way; 2] = [Way::Default, Way::BLIND];

pub(super) const X7: Experiment = Experiment {
    id: "X7",
    title: "Replay of a trace",
    label: Label::Diagnostic,
    hypothesis: "With room for all blocks the hit ratio is that of an infinite cache; with less, eviction decides it, and placement only \
     decides whether what eviction has freed can be used.",
    gate: "default: with room for all blocks the hit ratio of an infinite cache (36.6 % for the published trace) and no failed put; \
     with eviction no failed put at any capacity; hit ratio ≥ blind's − 0.1 points in every case; clock ≥ lru − 0.2 points at every capacity, and nothing above the \
     offline optimum with blocks of one size",
    exit_rule: "the default does not stay one that fails puts which eviction has made room for",
    published: "infinite-cache hit ratio 36.6 %",
    run: Some(run),
};

/// How many bytes a block has, as a function of the request that first asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// A model of 8 B parameters: 64 MiB a block, a thousandth of it here.
    Small,
    /// A model of 70 B parameters: 160 MiB a block, a thousandth of it here.
    Large,
    /// Both by turns, with small descriptions of 4 KB beside each tenth.
    Mixed,
}

impl Sizes {
    const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Mixed];

    fn name(self) -> &'static str {
        match self {
            Self::Small => "64KiB",
            Self::Large => "160KiB",
            Self::Mixed => "mixed",
        }
    }

    fn len_bytes(self, block: u32) -> u64 {
        match self {
            Self::Small => 64 << 10,
            Self::Large => 160 << 10,
            Self::Mixed if block.is_multiple_of(10) => 4000,
            // In stretches, as conversations with one model are.
            Self::Mixed if (block / 32).is_multiple_of(2) => 64 << 10,
            Self::Mixed => 160 << 10,
        }
    }
}

/// What a replay has given.
#[derive(Clone, Copy, Debug, Default)]
struct Replay {
    hits: usize,
    failed: usize,
    evictions: usize,
}

fn replay(trace: &Trace, sizes: Sizes, way: Way, eviction: Eviction, capacity_bytes: u64) -> Replay {
    let segments = capacity_bytes.div_ceil(SEGMENT_BYTES).max(1);
    let capacities: Vec<u64> = (0..segments).map(|_| capacity_bytes / segments).collect();
    let mut subject = subject::new(way, &capacities, SEED);
    let mut held: Vec<Option<Object>> = (0..trace.blocks).map(|_| None).collect();
    let order = trace.requests.iter().flatten().map(|&block| block as usize);
    let mut queue = Queue::new(eviction, trace.blocks, order);
    let mut replay = Replay::default();
    for &block in trace.requests.iter().flatten() {
        let number = block as usize;
        queue.asked(number);
        if held[number].is_some() {
            replay.hits += 1;
            queue.visit(number);
            continue;
        }
        held[number] = put(
            &mut *subject,
            &mut held,
            &mut queue,
            sizes.len_bytes(block),
            &mut replay.evictions,
        );
        if held[number].is_some() {
            queue.insert(number);
        } else {
            replay.failed += 1;
        }
    }
    replay
}

/// Puts a block; while there is no room, what the queue names goes.
fn put(
    subject: &mut dyn Subject,
    held: &mut [Option<Object>],
    queue: &mut Queue,
    len_bytes: u64,
    evictions: &mut usize,
) -> Option<Object> {
    loop {
        if let Some(object) = subject.place(len_bytes) {
            return Some(object);
        }
        let victim = queue.evict()?;
        subject.free(held[victim].take().expect("what is queued is held"));
        *evictions += 1;
    }
}

fn trace_of(conditions: &Conditions) -> Result<Trace> {
    match &conditions.trace {
        Some(path) => Trace::read(path),
        None => Ok(match conditions.effort {
            Effort::Quick => Trace::generated(2_000, SEED),
            Effort::Full => Trace::generated_whole(SEED),
        }),
    }
}

/// Bytes of all different blocks.
fn footprint_bytes(trace: &Trace, sizes: Sizes) -> u64 {
    let mut is_seen = vec![false; trace.blocks];
    let blocks = trace.requests.iter().flatten();
    let first = blocks.filter(|&&block| !std::mem::replace(&mut is_seen[block as usize], true));
    first.map(|&block| sizes.len_bytes(block)).sum()
}

/// The hit ratios of all orders of eviction with blocks of one size and the default placement: capacity in percent of all blocks, order, ratio.
///
/// # Errors
/// The trace cannot be read.
pub fn hit_ratios(conditions: &Conditions) -> Result<Vec<(u64, &'static str, f64)>> {
    let trace = trace_of(conditions)?;
    let (sizes, references) = (Sizes::Small, trace.references() as f64);
    let footprint_bytes = footprint_bytes(&trace, sizes);
    let mut ratios = Vec::new();
    for percent in CAPACITIES_PERCENT {
        for eviction in Eviction::ALL {
            let result = replay(&trace, sizes, Way::Default, eviction, footprint_bytes * percent / 100);
            ratios.push((percent, eviction.name(), result.hits as f64 / references));
        }
    }
    Ok(ratios)
}

fn run(conditions: &Conditions) -> Result<Findings> {
    let trace = trace_of(conditions)?;
    let (references, distinct) = (trace.references(), trace.distinct());
    let infinite = 1.0 - distinct as f64 / references as f64;
    let mut findings = Findings::new(json!({
        "source": trace.source, "requests": trace.requests.len(), "references": references, "distinct": distinct,
        "segment_bytes_max": SEGMENT_BYTES, "capacities_percent": CAPACITIES_PERCENT, "seed": SEED,
    }));
    if conditions.trace.is_some() {
        findings.flags = " --trace FILE";
    }
    findings.row("X7/infinite", "hit_ratio", infinite, "1");
    let mut plotted = vec![("infinite".to_owned(), infinite)];
    for sizes in Sizes::ALL {
        let footprint_bytes = footprint_bytes(&trace, sizes);
        for percent in CAPACITIES_PERCENT {
            for eviction in Eviction::ALL {
                for way in WAYS {
                    let case = format!("X7/{}/{percent}%/{}/{}", sizes.name(), eviction.name(), way.name());
                    let result = replay(&trace, sizes, way, eviction, footprint_bytes * percent / 100);
                    let hit_ratio = result.hits as f64 / references as f64;
                    findings.row(&case, "hit_ratio", hit_ratio, "1");
                    findings.row(&case, "failed_puts", result.failed as f64, "1");
                    findings.row(&case, "evictions", result.evictions as f64, "1");
                    if sizes == Sizes::Mixed && way == Way::Default {
                        plotted.push((case, hit_ratio));
                    }
                }
            }
        }
    }
    judge(&mut findings, infinite);
    findings.plots.push((
        "hits.svg".to_owned(),
        plot::bars("Hit ratio, mixed sizes", "share of references", &plotted),
    ));
    findings.notes.push(
        "Blocks have a thousandth of the bytes that 512 tokens need in a model of 8 B (64 MiB) or 70 B (160 MiB) parameters, so that \
         no memory is needed. A block that is asked for and not there is put; while there is no room, the order of eviction names what goes, and without \
         one the put fails. Evictions are counted in blocks: the more a put needs, the less fits of what eviction has freed."
            .to_owned(),
    );
    Ok(findings)
}

fn judge(findings: &mut Findings, infinite: f64) {
    for sizes in Sizes::ALL {
        judge_orders(findings, sizes);
        let of = |percent: u64, eviction: Eviction, way: Way, metric| {
            let case = format!("X7/{}/{percent}%/{}/{}", sizes.name(), eviction.name(), way.name());
            findings.value(&case, metric)
        };
        let whole = of(105, Eviction::Off, Way::Default, "hit_ratio");
        let failed = of(105, Eviction::Off, Way::Default, "failed_puts");
        let mut failed_with_eviction = 0.0;
        let mut least_gain = f64::INFINITY;
        for percent in CAPACITIES_PERCENT {
            for eviction in Eviction::ALL {
                let gain =
                    of(percent, eviction, Way::Default, "hit_ratio") - of(percent, eviction, Way::BLIND, "hit_ratio");
                least_gain = least_gain.min(gain);
                if eviction != Eviction::Off {
                    failed_with_eviction += of(percent, eviction, Way::Default, "failed_puts");
                }
            }
        }
        let name = sizes.name();
        findings.judge(
            (whole - infinite).abs() < 1e-9 && failed == 0.0,
            format!("{name}, room for all: hit ratio {whole:.4} of {infinite:.4}, {failed} failed puts"),
        );
        findings.judge(
            failed_with_eviction == 0.0,
            format!("{name}, with eviction: {failed_with_eviction} failed puts"),
        );
        findings.judge(
            least_gain >= -0.001,
            format!(
                "{name}: hit ratio less blind's, at least {:.2} points",
                least_gain * 100.0
            ),
        );
    }
}

/// The store's own order beside LRU's, and all beside the one that knows what comes.
fn judge_orders(findings: &mut Findings, sizes: Sizes) {
    let name = sizes.name();
    let ratio = |percent: u64, eviction: Eviction| {
        let case = format!("X7/{name}/{percent}%/{}/{}", eviction.name(), Way::Default.name());
        findings.value(&case, "hit_ratio")
    };
    let behind_lru = |&percent: &u64| ratio(percent, Eviction::Lru) - ratio(percent, Eviction::Clock);
    let above_offline = |&percent: &u64| {
        let others = Eviction::ALL.iter().map(|&other| ratio(percent, other));
        others.fold(f64::MIN, f64::max) - ratio(percent, Eviction::Offline)
    };
    let most = |by: &dyn Fn(&u64) -> f64| CAPACITIES_PERCENT.iter().map(by).fold(f64::MIN, f64::max);
    let (most_behind, most_above) = (most(&behind_lru), most(&above_offline));
    findings.judge(
        most_behind <= 0.002,
        format!("{name}: clock behind lru by at most {:.2} points", most_behind * 100.0),
    );
    // With blocks of several sizes it is no optimum.
    if sizes != Sizes::Mixed {
        findings.judge(
            most_above <= 0.0,
            format!(
                "{name}: above the offline optimum by at most {:.2} points",
                most_above * 100.0
            ),
        );
    }
}

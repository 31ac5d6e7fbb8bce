//! X8: size mixes on eight nodes: how full they get, how many puts fail, how evenly nodes are written.

use anyhow::Result;
use serde_json::json;

use super::cluster::{Cluster, Held};
use super::record::Findings;
use super::subject::Way;
use super::x8_mixes::Mix;
use super::{
    Conditions, Experiment, Label, plot,
    x8_level::{self, WINDOW},
};
use crate::report::Samples;

const NODES: usize = 8;
const SEGMENTS_PER_NODE: usize = 4;
const SEGMENT_BYTES: u64 = 256 << 20;
/// Live bytes at the end of a step of the RL mix, as a share of the capacity.
const RL_FILL: f64 = 0.93;
const HEARTBEAT_PUTS: usize = 64;
const WAYS: [Way; 6] = [
    Way::RANDOM,
    Way::BLIND,
    Way::FRAGMENTATION_AWARE,
    Way::BEST_FIT,
    Way::Indexed,
    Way::Default,
];

pub(super) const X8: Experiment = Experiment {
    id: "X8",
    title: "Size mixes on eight nodes",
    label: Label::Diagnostic,
    hypothesis: "Nodes kept level, each of which packs, get fuller before the first failure than segments kept \
     level; they fail no more often than \
                 a best fit over all segments and are written as evenly as by free ratio.",
    gate: "default: utilisation at the first failed put of the DSA pair and of kv_mixed ≥ 0.985; RL mix: failed \
     puts ≤ best_fit's, write skew ≤ \
           free_ratio_first's (blind); a node that joins gets ≤ 3 × its fair share of puts in any window of 200; unequal nodes within 1 \
           point of used fraction at every tenth of the fill above 50 %",
    exit_rule: "the level at which the gate is missed is redesigned before the default changes",
    published: "utilisation 0.952–0.961 at the first failure; failed puts on a captured trace random 23, \
     free_ratio_first 28, best_fit 1",
    run: Some(run),
};

fn capacity_bytes() -> f64 {
    (NODES * SEGMENTS_PER_NODE) as f64 * SEGMENT_BYTES as f64
}

/// Puts without removals until the first fails: the share of the capacity that is payload then.
fn utilisation(way: Way, mix: Mix, seed: u64) -> f64 {
    let mut cluster = Cluster::new(way, NODES, SEGMENTS_PER_NODE, SEGMENT_BYTES, seed);
    let mut sizes = mix.sizes(seed);
    let mut used_bytes = 0.0;
    loop {
        let len_bytes = sizes.next_bytes();
        if cluster.put(len_bytes).is_none() {
            return used_bytes / capacity_bytes();
        }
        used_bytes += len_bytes as f64;
    }
}

/// What a run of the RL mix has given.
#[derive(Debug, Default)]
struct RlRun {
    puts: usize,
    failed: usize,
    /// Puts to the node that got most, per mean of all nodes, for each window.
    skews: Vec<f64>,
    /// The same in bytes.
    byte_skews: Vec<f64>,
}

/// Steps in which everything is removed that has lived for one or two of them, before new objects fill up what is free.
fn rl(way: Way, steps: usize, seed: u64) -> RlRun {
    let mut cluster = Cluster::new(way, NODES, SEGMENTS_PER_NODE, SEGMENT_BYTES, seed);
    let mut sizes = Mix::Rl.sizes(seed);
    let mut generations: [Vec<Held>; 3] = Default::default();
    let (mut run, mut window) = (RlRun::default(), Vec::new());
    for step in 0..steps {
        std::mem::take(&mut generations[step % 3])
            .into_iter()
            .for_each(|held| cluster.remove(held));
        cluster.heartbeat();
        // Objects live for 1.5 steps on average.
        let mut left_bytes = RL_FILL / 1.5 * capacity_bytes();
        while left_bytes > 0.0 {
            let (len_bytes, life_steps) = (sizes.next_bytes(), sizes.life_steps());
            left_bytes -= len_bytes as f64;
            run.puts += 1;
            if run.puts.is_multiple_of(HEARTBEAT_PUTS) {
                cluster.heartbeat();
            }
            match cluster.put(len_bytes) {
                Some(held) => {
                    window.push((held.node, len_bytes as f64));
                    generations[(step + life_steps) % 3].push(held);
                }
                None => run.failed += 1,
            }
            if window.len() == WINDOW {
                run.skews.push(skew(&window, |_| 1.0));
                run.byte_skews.push(skew(&window, |len_bytes| len_bytes));
                window.clear();
            }
        }
    }
    run
}

/// What the node that got most got, per mean of all nodes; `weight` says what a put of so many bytes counts.
fn skew(window: &[(usize, f64)], weight: impl Fn(f64) -> f64) -> f64 {
    let mut totals = [0.0; NODES];
    window
        .iter()
        .for_each(|&(node, len_bytes)| totals[node] += weight(len_bytes));
    let mean = totals.iter().sum::<f64>() / NODES as f64;
    totals.into_iter().fold(0.0, f64::max) / mean
}

fn run(&Conditions { effort, first_seed, .. }: &Conditions) -> Result<Findings> {
    let (seeds, steps) = effort.pick((1, 6), (105, 24));
    let seeds = first_seed..first_seed + seeds;
    let mut findings = Findings::new(json!({
        "nodes": NODES, "segments_per_node": SEGMENTS_PER_NODE, "segment_bytes": SEGMENT_BYTES, "seeds": seeds.end - seeds.start, "first_seed": first_seed, "rl_steps": steps,
        "rl_fill": RL_FILL, "heartbeat_every_puts": HEARTBEAT_PUTS, "window_puts": WINDOW,
    }));
    let mut plotted = Vec::new();
    for mix in [Mix::DsaPair, Mix::KvMixed] {
        for way in WAYS {
            let case = format!("X8/{}/{}", mix.name(), way.name());
            let samples = Samples::new(seeds.clone().map(|seed| utilisation(way, mix, seed)).collect());
            findings.row(&case, "utilisation_median", samples.median(), "1");
            findings.row(&case, "utilisation_min", samples.min(), "1");
            plotted.push((case, samples.min()));
        }
    }
    for way in WAYS {
        let case = format!("X8/rl/{}", way.name());
        let runs: Vec<_> = seeds.clone().map(|seed| rl(way, steps, seed)).collect();
        let sum = |count: fn(&RlRun) -> usize| runs.iter().map(count).sum::<usize>() as f64;
        findings.row(&case, "puts", sum(|run| run.puts), "1");
        findings.row(&case, "failed_puts", sum(|run| run.failed), "1");
        let byte_skews = runs.iter().flat_map(|run| run.byte_skews.iter().copied()).collect();
        findings.row(&case, "write_skew_bytes_median", Samples::new(byte_skews).median(), "1");
        let skews: Vec<f64> = runs.iter().flat_map(|run| run.skews.iter().copied()).collect();
        findings.row(
            &case,
            "write_skew_mean",
            skews.iter().sum::<f64>() / skews.len() as f64,
            "1",
        );
        findings.row(&case, "write_skew_p99", Samples::new(skews).quantile(0.99), "1");
    }
    judge(&mut findings);
    x8_level::measure(&mut findings, &seeds);
    findings.plots.push((
        "utilisation.svg".to_owned(),
        plot::bars("Least utilisation at the first failed put", "share", &plotted),
    ));
    findings.notes.push(
        "`default`: nodes by `spread`, each with all its segments under one index of regions; `indexed`: the same nodes, each with its \
         segments in the order of their hints. Hints of nodes come with answers and every 64 puts. The other ways see all segments of all nodes at once, with the hints of the moment."
            .to_owned(),
    );
    Ok(findings)
}

fn judge(findings: &mut Findings) {
    for mix in [Mix::DsaPair, Mix::KvMixed] {
        let least = findings.value(&format!("X8/{}/default", mix.name()), "utilisation_min");
        findings.judge(least >= 0.985, format!("{}: {least:.4}", mix.name()));
    }
    let value = |way: &str, metric| findings.value(&format!("X8/rl/{way}"), metric);
    let (failed, best) = (value("default", "failed_puts"), value("best_fit", "failed_puts"));
    let (skew, free_ratio) = (value("default", "write_skew_mean"), value("blind", "write_skew_mean"));
    findings.judge(failed <= best, format!("RL: {failed} failed puts, best_fit {best}"));
    findings.judge(
        skew <= free_ratio,
        format!("RL: write skew {skew:.3}, free_ratio_first {free_ratio:.3}"),
    );
}

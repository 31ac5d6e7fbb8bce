//! The level that X8 keeps nodes on: a node that joins empty, and nodes of unequal capacity.

use std::collections::VecDeque;
use std::ops::Range;

use super::cluster::{Nodes, Space};
use super::record::Findings;
use super::subject::Way;
use super::x8_mixes::Mix;

const MIB: u64 = 1 << 20;
const NODES: usize = 8;
/// Puts over which the load of a node is counted.
pub(super) const WINDOW: usize = 200;
const JOIN_NODE_BYTES: u64 = 4000 * MIB;
/// How full the others are when a node joins.
const JOIN_FILL: f64 = 0.7;
const JOIN_PUTS: usize = 4000;
/// Capacities in units of one object.
const UNEQUAL_UNITS: [u64; 2] = [400, 1000];

/// What is put: objects of 1 MiB, or a mix.
#[derive(Clone, Copy, Debug)]
enum Load {
    Uniform,
    Mixed(Mix),
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Mixed(mix) => mix.name(),
        }
    }

    fn sizes(self, seed: u64) -> Box<dyn FnMut() -> u64> {
        match self {
            Self::Uniform => Box::new(|| MIB),
            Self::Mixed(mix) => {
                let mut sizes = mix.sizes(seed);
                Box::new(move || sizes.next_bytes())
            }
        }
    }
}

/// Most puts of a window that a node got which joined empty, per its fair share; and by how much it is less full than the mean of the others at the end, in
/// points.
fn joined(load: Load, seed: u64) -> (f64, f64) {
    let new_node = || Space::new(Way::Default, &[JOIN_NODE_BYTES]);
    let mut nodes = Nodes::new((1..NODES).map(|_| new_node()).collect(), seed);
    let mut sizes = load.sizes(seed);
    while nodes.used_fractions().iter().sum::<f64>() < JOIN_FILL * (NODES - 1) as f64 {
        nodes.put(sizes()).expect("there is room");
    }
    let joined = nodes.join(new_node());
    let (mut window, mut most) = (VecDeque::new(), 0);
    for _ in 0..JOIN_PUTS {
        let Some(held) = nodes.put(sizes()) else { break };
        window.push_back(held.node == joined);
        if window.len() == WINDOW {
            most = most.max(window.iter().filter(|&&is_joined| is_joined).count());
            window.pop_front();
        }
    }
    let used = nodes.used_fractions();
    let others = used[..joined].iter().sum::<f64>() / joined as f64;
    (
        most as f64 / (WINDOW as f64 / NODES as f64),
        (others - used[joined]) * 100.0,
    )
}

/// The largest difference of used fractions in points, at every tenth of the fill above a half.
fn unequal(seed: u64) -> f64 {
    let spaces = UNEQUAL_UNITS.map(|units| Space::new(Way::Default, &[units * MIB]));
    let mut nodes = Nodes::new(spaces.into(), seed);
    let units: u64 = UNEQUAL_UNITS.iter().sum();
    let mut worst = 0.0_f64;
    for put in 1..=units {
        nodes.put(MIB).expect("room until the last unit");
        if put * 10 % units == 0 && put * 2 > units {
            let used = nodes.used_fractions();
            worst = worst.max((used[0] - used[1]).abs() * 100.0);
        }
    }
    worst
}

/// Adds the figures of both, and judges them.
pub(super) fn measure(findings: &mut Findings, seeds: &Range<u64>) {
    let loads = [
        Load::Uniform,
        Load::Mixed(Mix::DsaPair),
        Load::Mixed(Mix::KvMixed),
        Load::Mixed(Mix::Rl),
    ];
    for load in loads {
        let case = format!("X8/join/{}", load.name());
        let runs: Vec<_> = seeds.clone().map(|seed| joined(load, seed)).collect();
        let most = runs.iter().map(|run| run.0).fold(0.0, f64::max);
        let behind = runs.iter().map(|run| run.1).fold(f64::MIN, f64::max);
        findings.row(&case, "share_of_puts_max", most, "fair shares");
        findings.row(&case, "behind_at_end_max", behind, "points");
        findings.judge(
            most <= 3.0,
            format!(
                "a node that joined, {}: {most:.2} × its fair share of a window",
                load.name()
            ),
        );
    }
    let worst = seeds.clone().map(unequal).fold(0.0, f64::max);
    findings.row("X8/unequal", "used_difference_max", worst, "points");
    findings.judge(worst <= 1.0, format!("unequal nodes: {worst:.2} points apart"));
}

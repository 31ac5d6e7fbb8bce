//! Experiments about placement, each re-runnable by one command.
//!
//! An experiment says before it runs what it expects, by which gate it is judged and what follows if it misses it. What it found is written as a
//! record (Markdown), a summary (JSON and CSV) and plots (SVG); raw samples stay outside of the repository.
//!
//! Labels: *verified* – a command reproduces it through the running store; *diagnostic* – a simulation or a micro-benchmark, which is
//! never quoted as a gain of the store; *planned*.

pub mod machine;
pub mod plot;
pub mod record;
pub mod stats;
pub mod subject;

mod cluster;
mod eviction;
mod store;
mod x1;
mod x10;
mod x3;
mod x6;
mod x6_cases;
mod x7;
mod x7_trace;
mod x8;
mod x8_level;
mod x8_mixes;

use std::path::PathBuf;

use anyhow::Result;

pub use self::x7::hit_ratios;

use self::record::Findings;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Enough to show that the experiment works; its figures mean little.
    Quick,
    /// What the records are made from.
    Full,
}

impl Effort {
    /// One of two values.
    #[must_use]
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// What an experiment is run with.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// How much is measured.
    pub effort: Effort,
    /// The trace to replay; a generated one if not given.
    pub trace: Option<PathBuf>,
    /// The first of the seeds of X8.
    pub first_seed: u64,
}

/// What kind of knowledge an experiment gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    /// A command reproduces it through the running store.
    Verified,
    /// A simulation or a micro-benchmark.
    Diagnostic,
    /// Not yet run by a command.
    Planned,
}

impl Label {
    /// The label as it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Verified => "verified",
            Self::Diagnostic => "diagnostic",
            Self::Planned => "planned",
        }
    }
}

/// An experiment: what it says beforehand, and how it is run.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its short name, also that of its directory.
    pub id: &'static str,
    /// What it is about, in a line.
    pub title: &'static str,
    /// What kind of knowledge it gives.
    pub label: Label,
    /// What is expected.
    pub hypothesis: &'static str,
    /// By what it is judged.
    pub gate: &'static str,
    /// What follows if it misses the gate.
    pub exit_rule: &'static str,
    /// What was published about the same question.
    pub published: &'static str,
    /// Runs it; nothing for a planned one.
    pub run: Option<fn(&Conditions) -> Result<Findings>>,
}

/// All experiments in the order of their ids.
pub const EXPERIMENTS: [Experiment; 10] = [
    x1::X1,
    x1::X2,
    x3::X3,
    x3::X4,
    x3::X5,
    x6::X6,
    x7::X7,
    x8::X8,
    planned("X9", "A holder is killed", "2.35 s until its capacity is usable"),
    x10::X10,
];

const fn planned(id: &'static str, title: &'static str, published: &'static str) -> Experiment {
    Experiment {
        id,
        title,
        label: Label::Planned,
        hypothesis: "",
        gate: "",
        exit_rule: "",
        published,
        run: None,
    }
}

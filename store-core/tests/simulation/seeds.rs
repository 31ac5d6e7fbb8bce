//! Many runs, and what is told of one that breaks a promise.

use crate::model::Counts;
use crate::plan::Profile;
use crate::run::{Outcome, run};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;

/// The lines of a trace that are shown.
const SHOWN_LINES_MAX: usize = 200;

/// After so many seeds that break a promise the others are left out.
const BROKEN_MAX: usize = 40;

/// Names one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed {
    pub(crate) profile: Profile,
    pub(crate) number: u64,
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.profile {
            Profile::Any => write!(f, "{}", self.number),
            profile => write!(f, "{}:{}", profile.name(), self.number),
        }
    }
}

/// A number of seeds of one profile, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) profile: Profile,
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl FromStr for Seeds {
    type Err = String;

    /// `7`, `1..5000`, `links:7` or `links:1..5000`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, numbers) = text.split_once(':').unwrap_or((Profile::Any.name(), text));
        let profile = Profile::ALL.into_iter().find(|profile| profile.name() == name);
        let (first, last) = numbers.split_once("..").unwrap_or((numbers, numbers));
        let number = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
        Ok(Self {
            profile: profile.ok_or_else(|| format!("no profile is called {name:?}"))?,
            first: number(first)?,
            last: number(last)?,
        })
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (profile, number) = (self.profile, self.first);
        write!(f, "{}..{}", Seed { profile, number }, self.last)
    }
}

/// A seed that nobody has chosen.
pub(crate) fn fresh() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "the seed is printed, and the run depends on nothing else"
    )]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    1_000_000 + since.as_secs() * 1_000
}

impl Seeds {
    pub(crate) fn all(self) -> impl Iterator<Item = Seed> {
        let profile = self.profile;
        (self.first..=self.last).map(move |number| Seed { profile, number })
    }

    /// Runs all of them; panics with what there is to know about those that break a promise.
    pub(crate) fn check(self) {
        let mut broken = Vec::new();
        let mut total = Counts::default();
        for seed in self.all() {
            match attempt(seed, false) {
                Ok(outcome) if outcome.violation.is_none() => total.add(&outcome.counts),
                Ok(_) | Err(_) => broken.push(seed),
            }
            if broken.len() >= BROKEN_MAX {
                break;
            }
        }
        println!("seeds {self}: {total:?}");
        let Some(first) = broken.first() else { return };
        for seed in &broken {
            let what = attempt(*seed, false).map(|outcome| outcome.violation);
            println!("seed {seed}: {what:?}");
        }
        tell(*first);
        panic!(
            "{} seeds break a promise, the first is {first}: make simulate SEEDS={first}",
            broken.len()
        );
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.puts_stored += other.puts_stored;
        self.puts_exist += other.puts_exist;
        self.hits += other.hits;
        self.misses += other.misses;
        self.repeats_judged += other.repeats_judged;
        self.misses_judged += other.misses_judged;
        self.hits_judged += other.hits_judged;
        self.removals += other.removals;
        self.losers += other.losers;
        self.evictions += other.evictions;
        self.copies += other.copies;
        self.moves += other.moves;
        self.replacements += other.replacements;
        self.heirs_judged += other.heirs_judged;
        self.replaced_judged += other.replaced_judged;
    }
}

/// One run; an error if something panicked in it.
pub(crate) fn attempt(seed: Seed, is_told: bool) -> Result<Outcome, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| run(seed, is_told)));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("panicked: {}", text.unwrap_or_default())
    })
}

fn tell(seed: Seed) {
    match attempt(seed, true) {
        Err(panic) => println!("seed {seed} {panic}"),
        Ok(outcome) => {
            println!("{:#?}", outcome.plan);
            let skipped = outcome.lines.len().saturating_sub(SHOWN_LINES_MAX);
            outcome.lines.iter().skip(skipped).for_each(|line| println!("{line}"));
            println!("seed {seed}: {}", outcome.violation.unwrap_or_default());
        }
    }
    println!("to run it again: make simulate SEEDS={seed}");
}

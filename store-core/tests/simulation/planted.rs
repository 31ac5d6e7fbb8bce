//! Known bugs are found: each by some seed of the fixed set, which keeps its promises without the bug.

use crate::seeds::{Seeds, attempt};
use crate::{FIXED, named};
use tenon_store_core::planted::{Bug, plant};

/// What a seed shows of a bug; `None` if it keeps its promises in spite of it.
fn shown(bug: Bug, seed: u64) -> Option<String> {
    plant(Some(bug));
    let found = attempt(seed, false).map(|outcome| outcome.violation);
    plant(None);
    let what = found.unwrap_or_else(Some)?;
    let clean = attempt(seed, false).map(|outcome| outcome.violation);
    assert_eq!(clean, Ok(None), "seed {seed} breaks a promise without {bug:?}");
    Some(what)
}

/// Finds the first seeds that show the bugs; panics if one is not found.
fn find_all(seeds: impl Iterator<Item = Seeds> + Clone) {
    let mut hidden = Vec::new();
    for bug in Bug::ALL {
        let mut all = seeds.clone().flat_map(|seeds| seeds.first..=seeds.last);
        match all.find_map(|seed| Some((seed, shown(bug, seed)?))) {
            Some((seed, what)) => println!("{bug:?}: seed {seed}: {what}"),
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "no seed shows {hidden:?}");
}

#[test]
#[ignore = "runs the seeds that the environment names"]
fn each_planted_bug_is_found_by_a_named_seed() {
    find_all([named()].into_iter());
}

#[test]
fn each_planted_bug_is_found_by_a_fixed_seed() {
    find_all(FIXED.into_iter());
}

//! Known bugs are found: each by some seed of the fixed set, which keeps its promises without the bug.

use crate::FIXED;
use crate::seeds::attempt;
use tenon_store_core::planted::{Bug, plant};

/// Finds the first seed that shows a bug.
fn find(bug: Bug) -> Option<(u64, String)> {
    let seeds = FIXED.iter().flat_map(|seeds| seeds.first..=seeds.last);
    seeds.into_iter().find_map(|seed| {
        plant(Some(bug));
        let found = attempt(seed, false).map(|outcome| outcome.violation);
        plant(None);
        let what = found.unwrap_or_else(Some)?;
        let clean = attempt(seed, false).map(|outcome| outcome.violation);
        assert_eq!(clean, Ok(None), "seed {seed} breaks a promise without {bug:?}");
        Some((seed, what))
    })
}

#[test]
fn each_planted_bug_is_found_by_a_fixed_seed() {
    let mut hidden = Vec::new();
    for bug in Bug::ALL {
        match find(bug) {
            Some((seed, what)) => println!("{bug:?}: seed {seed}: {what}"),
            None => hidden.push(bug),
        }
    }
    assert!(hidden.is_empty(), "no fixed seed shows {hidden:?}");
}

//! A simulation of a whole cluster in virtual time, from a seed.
//!
//! *What is simulated.* 3 to 12 nodes with the code that decides in them: a `Directory`, a `Holder` and one
//! `Reachability` per peer each, driven as the agent drives them; coordinators by `Route` and `LookUp`; clients that
//! put, get, look up and remove, with deadlines and retries, and one that repeats puts long after they were over. Some puts ask for
//! several replicas or take the place of what the key has; nodes hand objects over to others, and are drained. Calls between nodes are messages, which are lost, delayed,
//! repeated and reordered; processes die and begin again with nothing, stand still, and are cut off from each other in whole or in
//! part; clocks leap.
//!
//! *What is not.* Memory, descriptors of real tables, sockets, frames, threads and locks of the agent: a process does one thing
//! at a time here, and one question travels in one message. Nodes do not keep memory across a restart. Views do
//! not change.
//!
//! *Time* is a queue of events, and all choices are drawn from one generator: a seed gives the same run again, on every
//! machine. `make simulate SEEDS=4711` runs one seed, and `SEEDS=1..5000` many. A seed of a profile, such as `links:17`, has
//! one kind of trouble and much work.
//!
//! * [`world`], [`executor`]: time, events, tasks. [`network`], [`message`]: links and what travels on them.
//! * [`node`], [`peers`], [`home`], [`holder`], [`coordinator`]: one process, as the agent is one.
//! * [`copies`]: further replicas. [`evictions`], [`moves`]: what nodes let go. [`plan`], [`faults`]: what goes wrong. [`client`]: the work.
//! * [`model`], [`promises`], [`repeats`], [`replaced`], [`settled`], [`soundness`]: what must hold, and under which conditions.
//! * [`run`], [`seeds`], [`trace`]: a run, many of them, and how they are told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod coordinator;
mod copies;
mod evictions;
mod executor;
mod faults;
mod holder;
mod home;
mod message;
mod model;
mod moves;
mod network;
mod node;
mod peers;
mod plan;
#[cfg(feature = "planted-bugs")]
mod planted;
mod promises;
mod repeats;
mod replaced;
mod run;
mod seeds;
mod settled;
mod soundness;
mod trace;
mod world;

use crate::plan::Profile;
use crate::seeds::{Seed, Seeds};

/// Names the seeds of `make simulate`.
const SEEDS_VARIABLE: &str = "SIMULATE_SEEDS";

/// The fixed set, in two halves so that they run beside each other.
const FIXED: [Seeds; 2] = [fixed(1, 150), fixed(151, 300)];

const fn fixed(first: u64, last: u64) -> Seeds {
    Seeds {
        profile: Profile::Any,
        first,
        last,
    }
}

/// The last fixed seed of each profile beside them.
const PROFILED: u64 = 10;

/// Seeds that are new in each run of the tests. `make simulate` runs as many as are wanted.
const FRESH: u64 = 50;

#[test]
fn the_promises_hold_in_the_first_half_of_the_fixed_seeds() {
    FIXED[0].check();
}

#[test]
fn the_promises_hold_in_the_second_half_of_the_fixed_seeds() {
    FIXED[1].check();
}

#[test]
fn the_promises_hold_in_fixed_seeds_of_each_profile() {
    for profile in Profile::ALL.into_iter().filter(|profile| *profile != Profile::Any) {
        let (first, last) = (1, PROFILED);
        Seeds { profile, first, last }.check();
    }
}

#[test]
fn the_promises_hold_in_fresh_seeds() {
    let first = seeds::fresh();
    let seeds = fixed(first, first + FRESH - 1);
    println!("fresh seeds: {seeds}");
    seeds.check();
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let seed = |number| Seed {
        profile: Profile::Any,
        number,
    };
    let [first, second] = [(); 2].map(|()| run::run(seed(7), true));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.lines, second.lines);
    let other = run::run(seed(8), true);
    assert_ne!(first.digest, other.digest);
}

/// By hand: `make simulate SEEDS=…`.
#[test]
#[ignore = "runs the seeds that the environment names"]
fn the_promises_hold_in_the_named_seeds() {
    named().check();
}

/// The seeds that the environment names.
fn named() -> Seeds {
    let named = std::env::var(SEEDS_VARIABLE).expect("make simulate names seeds");
    named.parse().expect("seeds: 7, 1..5000 or links:1..5000")
}

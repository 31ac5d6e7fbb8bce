//! The cases of X6: which sizes, which are released, who lives how long.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

pub(super) const SEGMENT_BYTES: u64 = 1 << 20;
/// Puts of one life cycle.
pub(super) const STEPS: usize = 2000;

/// A large object's share of a segment, as numerator and denominator.
pub(super) const LARGE_SHARES: [(u64, u64); 6] = [(1, 16), (1, 8), (1, 4), (1, 2), (3, 4), (1, 1)];
const SMALL_SHARES: [(u64, u64); 5] = [(1, 256), (1, 128), (1, 64), (3, 128), (1, 32)];
const FILLS_PERCENT: [u64; 5] = [50, 70, 80, 90, 100];

pub(super) fn share_bytes((numerator, denominator): (u64, u64)) -> u64 {
    SEGMENT_BYTES * numerator / denominator
}

/// Which small objects are released, by the order in which they were put.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    EverySecond,
    ThreeOfFour,
    RunsOfSixteen,
    RandomHalf,
    OlderHalf,
}

impl Pattern {
    pub(super) fn releases(self, number: usize, count: usize) -> bool {
        match self {
            Self::EverySecond => number % 2 == 1,
            Self::ThreeOfFour => !number.is_multiple_of(4),
            Self::RunsOfSixteen => number / 16 % 2 == 1,
            Self::RandomHalf => ChaCha8Rng::seed_from_u64(number as u64).random_bool(0.5),
            Self::OlderHalf => number < count / 2,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    pub(super) small_bytes: u64,
    pub(super) large_bytes: u64,
    pub(super) fill_percent: u64,
    pub(super) pattern: Pattern,
}

/// 5 × 6 × 5 × 5 = 750 combinations.
pub(super) fn releases() -> Vec<Release> {
    let patterns = [
        Pattern::EverySecond,
        Pattern::ThreeOfFour,
        Pattern::RunsOfSixteen,
        Pattern::RandomHalf,
        Pattern::OlderHalf,
    ];
    let mut cases = Vec::new();
    for pattern in patterns {
        for fill_percent in FILLS_PERCENT {
            for small in SMALL_SHARES {
                cases.extend(LARGE_SHARES.map(|large| Release {
                    small_bytes: share_bytes(small),
                    large_bytes: share_bytes(large),
                    fill_percent,
                    pattern,
                }));
            }
        }
    }
    cases
}

/// Who goes when room is needed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Life {
    Oldest,
    Random,
    /// One of the younger half.
    Young,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LifeCycle {
    pub(super) fill_percent: u64,
    /// The largest object's share of a segment.
    large: (u64, u64),
    /// Puts in a thousand that are large.
    large_per_mille: u32,
    life: Life,
    seed: u64,
}

/// 5 × 6 × 3 × 3 × 4 = 1,080 life cycles.
pub(super) fn life_cycles() -> Vec<LifeCycle> {
    let mut cases = Vec::new();
    for fill_percent in FILLS_PERCENT {
        for large in LARGE_SHARES {
            for large_per_mille in [20, 100, 300] {
                for life in [Life::Oldest, Life::Random, Life::Young] {
                    cases.extend((0..4).map(|seed| LifeCycle {
                        fill_percent,
                        large,
                        large_per_mille,
                        life,
                        seed,
                    }));
                }
            }
        }
    }
    cases
}

impl LifeCycle {
    pub(super) fn steps(&self) -> Steps {
        Steps {
            case: *self,
            rng: ChaCha8Rng::seed_from_u64(self.seed),
        }
    }
}

/// The random choices of one life cycle, the same for all ways as long as they place the same objects.
pub(super) struct Steps {
    case: LifeCycle,
    rng: ChaCha8Rng,
}

impl Steps {
    pub(super) fn len_bytes(&mut self) -> u64 {
        let large_bytes = share_bytes(self.case.large);
        if self.rng.random_ratio(self.case.large_per_mille, 1000) {
            self.rng.random_range(large_bytes / 2..=large_bytes)
        } else {
            self.rng.random_range(64..=SEGMENT_BYTES / 128)
        }
    }

    pub(super) fn victim(&mut self, live: usize) -> Option<usize> {
        (live > 0).then(|| match self.case.life {
            Life::Oldest => 0,
            Life::Random => self.rng.random_range(0..live),
            Life::Young => self.rng.random_range(live / 2..live),
        })
    }
}

//! The size mixes of X8, each a seeded generator.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// A mix of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mix {
    /// A pair of a large and a small cache entry per token block, by turns.
    DsaPair,
    /// 4 KB, 256 KB and 3.12 MB, 70, 20 and 10 % by count.
    KvMixed,
    /// 8.8 % of the count between 8 and 16 MiB, the others between 256 B and 16 KiB.
    Rl,
}

impl Mix {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DsaPair => "dsa_pair",
            Self::KvMixed => "kv_mixed",
            Self::Rl => "rl",
        }
    }

    pub(super) fn sizes(self, seed: u64) -> Sizes {
        Sizes {
            mix: self,
            rng: ChaCha8Rng::seed_from_u64(seed),
            drawn: 0,
        }
    }
}

pub(super) struct Sizes {
    mix: Mix,
    rng: ChaCha8Rng,
    drawn: u64,
}

impl Sizes {
    pub(super) fn next_bytes(&mut self) -> u64 {
        self.drawn += 1;
        match self.mix {
            Mix::DsaPair if self.drawn % 2 == 1 => 3_274_752,
            Mix::DsaPair => 658_432,
            Mix::KvMixed => match self.rng.random_range(0..10) {
                0..7 => 4_000,
                7..9 => 256_000,
                _ => 3_120_000,
            },
            Mix::Rl if self.rng.random_ratio(88, 1000) => self.rng.random_range(8 << 20..=16 << 20),
            // Evenly over the powers of two between 256 B and 16 KiB.
            Mix::Rl => {
                let power = self.rng.random_range(8..14_u32);
                self.rng.random_range(1 << power..=2 << power)
            }
        }
    }

    /// How many steps an object outlives the one it was put in.
    pub(super) fn life_steps(&mut self) -> usize {
        self.rng.random_range(1..=2)
    }
}

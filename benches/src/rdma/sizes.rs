//! How much of which size moves at once.

use crate::transfer::objects::Shape;

/// Batches under way at once, of the engine and of the store.
const IN_FLIGHT: u64 = 2;

/// Transfers of one size. All subjects have as many under way.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// For the names of cases.
    pub name: &'static str,
    /// Length of one transfer.
    pub len_bytes: u64,
    /// Transfers under way at once.
    pub depth: u64,
    /// Bytes that each subject moves in one round.
    pub round_bytes: u64,
    /// Rounds that count.
    pub rounds: usize,
    /// Bytes that perftest moves at least: it starts anew in each round, which must not be most of what it costs.
    perftest_bytes_min: u64,
}

impl Size {
    /// From small to large. Objects of 16 MiB are moved in slices, of which more are under way than these. Where rates are held against a
    /// limit the ratios of single rounds spread by a third to both sides, most where a round is short: their median needs more rounds.
    pub const ALL: [Self; 4] = [
        Self::new("4KiB", 4 << 10, 128, 4 << 20, 5),
        Self::new("64KiB", 64 << 10, 64, 16 << 20, 5),
        Self::new("1MiB", 1 << 20, 16, 32 << 20, 25),
        Self::new("16MiB", 16 << 20, 4, 128 << 20, 11),
    ];

    const fn new(name: &'static str, len_bytes: u64, depth: u64, round_bytes: u64, rounds: usize) -> Self {
        Self {
            name,
            len_bytes,
            depth,
            round_bytes,
            rounds,
            perftest_bytes_min: 32 << 20,
        }
    }

    /// The most that is under way of any size.
    #[must_use]
    pub fn landing_bytes_max() -> u64 {
        let landing = Self::ALL.map(|size| size.depth * size.len_bytes);
        landing.into_iter().max().unwrap_or_default()
    }

    /// How many transfers a round has.
    #[must_use]
    pub fn transfers(&self) -> u64 {
        self.round_bytes / self.len_bytes
    }

    /// How many transfers perftest makes in a round.
    #[must_use]
    pub fn perftest_transfers(&self) -> u64 {
        self.round_bytes.max(self.perftest_bytes_min) / self.len_bytes
    }

    /// The same with rounds that are shorter, as far as perftest and the depth allow.
    #[must_use]
    pub fn shorter_by(self, factor: u64) -> Self {
        let least = self.depth.max(super::perftest::ITERATIONS_MIN) * self.len_bytes;
        Self {
            round_bytes: (self.round_bytes / factor).max(least),
            perftest_bytes_min: self.perftest_bytes_min / factor,
            ..self
        }
    }

    /// The same with another number of rounds.
    #[must_use]
    pub fn in_rounds(self, rounds: usize) -> Self {
        Self { rounds, ..self }
    }

    /// Objects of this size in batches.
    #[must_use]
    pub fn shape(&self) -> Shape {
        Shape {
            object_bytes: self.len_bytes,
            batch: self.depth / IN_FLIGHT,
            in_flight: IN_FLIGHT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_whole_batches_of_enough_transfers() {
        for size in Size::ALL.into_iter().chain(Size::ALL.map(|size| size.shorter_by(1000))) {
            let shape = size.shape();
            assert_eq!(shape.batch * shape.in_flight, size.depth, "{size:?}");
            assert!(size.transfers() >= size.depth && size.transfers() >= crate::rdma::perftest::ITERATIONS_MIN);
            assert_eq!(size.round_bytes % size.len_bytes, 0, "{size:?}");
        }
    }
}

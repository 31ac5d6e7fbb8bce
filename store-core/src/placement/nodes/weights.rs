//! Weighted random choice whose weights change.

use rand::{Rng, RngExt};

/// Weights 0, 1, 2 … as a tree of partial sums: a change and a draw are O(log n).
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    /// Node i holds the sum of the weights of the positions that its lowest set bit spans, counted from 1.
    sums: Vec<u64>,
    weights: Vec<u64>,
}

impl Weights {
    /// Adds a weight of 0 after the last one.
    pub(super) fn push(&mut self) {
        self.weights.push(0);
        let position = self.weights.len();
        let span = position & position.wrapping_neg();
        self.sums.push(self.weights[position - span..].iter().sum());
    }

    pub(super) fn total(&self) -> u64 {
        self.prefix(self.weights.len())
    }

    /// Changes one weight. The sum of all must stay below 2^64.
    pub(super) fn set(&mut self, index: usize, weight: u64) {
        let old = std::mem::replace(&mut self.weights[index], weight);
        let mut position = index + 1;
        while position <= self.sums.len() {
            let sum = &mut self.sums[position - 1];
            *sum = *sum - old + weight;
            position += position & position.wrapping_neg();
        }
    }

    /// An index with a probability in proportion to its weight, or nothing if all are 0.
    pub(super) fn draw<R: Rng + ?Sized>(&self, rng: &mut R) -> Option<usize> {
        let total = self.total();
        (total > 0).then(|| self.find(rng.random_range(0..total)))
    }

    /// The index in whose stretch `point` lies when all weights are laid end to end.
    fn find(&self, mut point: u64) -> usize {
        let mut index = 0;
        let mut span = self.sums.len().next_power_of_two();
        while span > 0 {
            if let Some(&sum) = self.sums.get(index + span - 1)
                && sum <= point
            {
                point -= sum;
                index += span;
            }
            span /= 2;
        }
        index
    }

    fn prefix(&self, count: usize) -> u64 {
        let (mut position, mut sum) = (count, 0);
        while position > 0 {
            sum += self.sums[position - 1];
            position &= position - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_lies_in_the_stretch_of_its_weight() {
        let mut weights = Weights::default();
        let mut model = Vec::new();
        for (index, weight) in [3, 0, 1, 7, 0, 0, 2, 5, 1].into_iter().enumerate() {
            weights.push();
            weights.set(index, 9);
            weights.set(index, weight);
            model.extend(std::iter::repeat_n(index, usize::try_from(weight).unwrap()));
            assert_eq!(weights.total(), model.len() as u64);
            for (point, &expected) in model.iter().enumerate() {
                assert_eq!(weights.find(point as u64), expected, "point {point} of {model:?}");
            }
        }
    }
}

//! Medians of paired runs and what is known of them.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::report::Samples;

const RESAMPLES: usize = 2000;
const SEED: u64 = 95;

/// The median of per-pair ratios with its 95 % interval by bootstrap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Of the ratios a / b, pair by pair. Panics if there are none.
    #[must_use]
    pub fn of_ratios(a: &[f64], b: &[f64]) -> Self {
        Self::of(a.iter().zip(b).map(|(a, b)| a / b).collect())
    }

    /// Of samples. Panics if there are none.
    #[must_use]
    pub fn of(samples: Vec<f64>) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let resample = |_| {
            let drawn = (0..samples.len()).map(|_| samples[rng.random_range(0..samples.len())]);
            Samples::new(drawn.collect()).median()
        };
        let medians = Samples::new((0..RESAMPLES).map(resample).collect());
        Self {
            low: medians.quantile(0.025),
            high: medians.quantile(0.975),
            median: Samples::new(samples).median(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_samples_have_no_spread() {
        let interval = Interval::of_ratios(&[3.0; 9], &[2.0; 9]);
        assert_eq!(
            interval,
            Interval {
                median: 1.5,
                low: 1.5,
                high: 1.5
            }
        );
    }

    #[test]
    fn an_interval_holds_its_median() {
        let interval = Interval::of((0..101).map(f64::from).collect());
        assert!(interval.low < 50.0 && interval.median == 50.0 && interval.high > 50.0);
        assert!(interval.low > 30.0 && interval.high < 70.0);
    }
}

//! What a request cost, and the counters that these figures are added to.

use std::fmt;

/// Why a request that is still short stopped looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopReason {
    /// Every position of the pool was visited.
    PoolExhausted,
    /// The scan visited as many positions as it may; the pool has more.
    PositionBudget,
    /// The scan spent its chargeable positions while hints were read; the pool has more.
    ChargeableBudget,
    /// The scan visited as many positions as it may while hints were read, credited ones included.
    ScanCap,
    /// No entry that may be used can hold the request, as far as the hints of all of them tell.
    NothingFits,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PoolExhausted => "pool_exhausted",
            Self::PositionBudget => "position_budget",
            Self::ChargeableBudget => "chargeable_budget",
            Self::ScanCap => "scan_cap",
            Self::NothingFits => "nothing_fits",
        })
    }
}

/// What one request did. A call is one entry asked for room, whatever number of allocators it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementFigures {
    /// Calls to preferred entries.
    pub preferred_calls: u32,
    /// Calls to sampled entries.
    pub sampled_calls: u32,
    /// Calls to the entry with the tightest fit in the pool.
    pub tightest_calls: u32,
    /// Calls in the scan.
    pub scan_calls: u32,
    /// Calls in the scan that were made while hints were read.
    pub armed_calls: u32,
    /// Calls to single allocators in all phases.
    pub allocator_calls: u32,
    /// Whether the scan came to read hints: in a large pool, after a real failure.
    pub armed: bool,
    /// Scanned entries whose hints were read.
    pub hints_examined: u32,
    /// Scanned entries that were known to have no room, and so cost nothing.
    pub no_fit_credits: u32,
    /// Positions that the scan visited.
    pub scanned_positions: u32,
    /// Positions that the scan paid for.
    pub chargeable_positions: u32,
    /// Replicas placed only because of credits: while armed, after a credit, beyond the positions of a blind scan.
    pub recovered: u32,
    /// Why the scan ended, if it was armed and is still short of replicas.
    pub stop: Option<StopReason>,
}

impl PlacementFigures {
    /// Entries asked or examined in all phases; one that was met twice counts twice.
    #[must_use]
    pub fn entries_examined(&self) -> u32 {
        self.preferred_calls + self.sampled_calls + self.tightest_calls + self.scanned_positions
    }

    /// Calls in all phases.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.preferred_calls + self.sampled_calls + self.tightest_calls + self.scan_calls
    }
}

const SCANNED_BUCKETS: [u64; 11] = [1, 5, 10, 25, 50, 75, 100, 125, 150, 175, 200];
const CHARGEABLE_BUCKETS: [u64; 7] = [1, 5, 10, 25, 50, 75, 100];
const CREDIT_BUCKETS: [u64; 12] = [0, 1, 5, 10, 25, 50, 75, 100, 125, 150, 175, 200];

/// The sums of the figures of many requests, for metrics. Only requests whose scan was armed change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementCounters {
    /// Requests whose scan came to read hints.
    pub armed_requests: u64,
    /// Scanned entries whose hints were read.
    pub hints_examined: u64,
    /// Scanned entries that cost nothing because they were known to have no room.
    pub no_fit_credits: u64,
    /// Calls made in scans while hints were read.
    pub armed_calls: u64,
    /// Replicas placed only because of credits.
    pub recovered: u64,
    /// Requests that ended short because the chargeable positions were spent.
    pub chargeable_exhaustions: u64,
    /// Requests that ended short because the scan visited as many positions as it may.
    pub scan_cap_exhaustions: u64,
    /// Positions visited by each armed request.
    pub scanned_positions: Histogram,
    /// Positions paid for by each armed request.
    pub chargeable_positions: Histogram,
    /// Credits of each armed request.
    pub credits: Histogram,
}

impl Default for PlacementCounters {
    fn default() -> Self {
        Self {
            armed_requests: 0,
            hints_examined: 0,
            no_fit_credits: 0,
            armed_calls: 0,
            recovered: 0,
            chargeable_exhaustions: 0,
            scan_cap_exhaustions: 0,
            scanned_positions: Histogram::new(&SCANNED_BUCKETS),
            chargeable_positions: Histogram::new(&CHARGEABLE_BUCKETS),
            credits: Histogram::new(&CREDIT_BUCKETS),
        }
    }
}

impl PlacementCounters {
    /// Adds the figures of one request, which is over.
    pub fn record(&mut self, figures: &PlacementFigures) {
        if !figures.armed {
            return;
        }
        self.armed_requests += 1;
        self.hints_examined += u64::from(figures.hints_examined);
        self.no_fit_credits += u64::from(figures.no_fit_credits);
        self.armed_calls += u64::from(figures.armed_calls);
        self.recovered += u64::from(figures.recovered);
        self.chargeable_exhaustions += u64::from(figures.stop == Some(StopReason::ChargeableBudget));
        self.scan_cap_exhaustions += u64::from(figures.stop == Some(StopReason::ScanCap));
        self.scanned_positions.record(u64::from(figures.scanned_positions));
        self.chargeable_positions
            .record(u64::from(figures.chargeable_positions));
        self.credits.record(u64::from(figures.no_fit_credits));
    }
}

/// A count of values by upper bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    bounds: &'static [u64],
    /// Values up to each bound that exceed the bound before it; the last element is for those above all bounds.
    counts: Vec<u64>,
    sum: u64,
}

impl Histogram {
    fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            sum: 0,
        }
    }

    fn record(&mut self, value: u64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
    }

    /// Each upper bound with the number of values that do not exceed it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let totals = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().zip(totals)
    }

    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_a_value_at_its_bound() {
        let mut histogram = Histogram::new(&CREDIT_BUCKETS);
        for value in [0, 1, 2, 200, 201] {
            histogram.record(value);
        }
        let below = |bound| {
            histogram
                .cumulative()
                .find(|&(le, _)| le == bound)
                .map(|(_, count)| count)
        };
        assert_eq!(
            (below(0), below(1), below(5), below(175), below(200)),
            (Some(1), Some(2), Some(3), Some(3), Some(4))
        );
        assert_eq!((histogram.count(), histogram.sum()), (5, 404));
    }

    #[test]
    fn requests_that_read_no_hint_change_no_counter() {
        let mut counters = PlacementCounters::default();
        counters.record(&PlacementFigures {
            scanned_positions: 100,
            scan_calls: 100,
            ..Default::default()
        });
        assert_eq!(counters, PlacementCounters::default());
    }

    #[test]
    fn an_armed_request_is_added_to_every_counter() {
        let mut counters = PlacementCounters::default();
        let figures = PlacementFigures {
            armed: true,
            armed_calls: 3,
            hints_examined: 120,
            no_fit_credits: 117,
            scanned_positions: 121,
            chargeable_positions: 4,
            recovered: 1,
            ..Default::default()
        };
        counters.record(&figures);
        counters.record(&PlacementFigures {
            stop: Some(StopReason::ScanCap),
            ..figures
        });
        counters.record(&PlacementFigures {
            stop: Some(StopReason::ChargeableBudget),
            ..figures
        });
        assert_eq!(
            (
                counters.armed_requests,
                counters.hints_examined,
                counters.no_fit_credits
            ),
            (3, 360, 351)
        );
        assert_eq!((counters.armed_calls, counters.recovered), (9, 3));
        assert_eq!((counters.chargeable_exhaustions, counters.scan_cap_exhaustions), (1, 1));
        assert_eq!(
            (counters.scanned_positions.sum(), counters.scanned_positions.count()),
            (363, 3)
        );
        assert_eq!((counters.chargeable_positions.sum(), counters.credits.sum()), (12, 351));
    }
}

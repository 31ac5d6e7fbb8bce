//! The cheapest place for a hole in a segment: a stretch of which all that is not free may go.

use std::collections::VecDeque;

/// A run of a segment: free, or a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start_bytes: u64,
    pub(super) len_bytes: u64,
    /// What it costs that these bytes become free: 0 if they are, `None` if they cannot.
    pub(super) cost: Option<u128>,
}

impl Run {
    fn end_bytes(&self) -> u64 {
        self.start_bytes + self.len_bytes
    }
}

/// A stretch of a segment that begins and ends with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) start_bytes: u64,
    pub(super) end_bytes: u64,
    pub(super) cost: u128,
}

/// Looks through the runs of one segment, in order and each once.
///
/// For each run the shortest stretch that ends with it and is long enough: costs are not negative, so the cheapest stretch is among these.
#[derive(Debug)]
pub(super) struct HoleSearch {
    needed_bytes: u64,
    window: VecDeque<Run>,
    window_bytes: u64,
    window_cost: u128,
    cheapest: Option<Hole>,
    /// The cheapest region alone.
    lone: Option<Hole>,
}

impl HoleSearch {
    pub(super) fn new(needed_bytes: u64) -> Self {
        Self {
            needed_bytes,
            window: VecDeque::new(),
            window_bytes: 0,
            window_cost: 0,
            cheapest: None,
            lone: None,
        }
    }

    /// The next run. It adjoins the one before.
    pub(super) fn push(&mut self, run: Run) {
        let Some(cost) = run.cost else {
            self.window.clear();
            (self.window_bytes, self.window_cost) = (0, 0);
            return;
        };
        if cost > 0 {
            let hole = Hole {
                start_bytes: run.start_bytes,
                end_bytes: run.end_bytes(),
                cost,
            };
            self.lone = cheaper(self.lone, hole);
        }
        self.window.push_back(run);
        self.window_bytes += run.len_bytes;
        self.window_cost += cost;
        while let Some(first) = self.window.front()
            && self.window_bytes - first.len_bytes >= self.needed_bytes
        {
            self.window_bytes -= first.len_bytes;
            self.window_cost -= first.cost.unwrap_or(0);
            self.window.pop_front();
        }
        if self.window_bytes >= self.needed_bytes
            && let Some(first) = self.window.front()
        {
            let hole = Hole {
                start_bytes: first.start_bytes,
                end_bytes: run.end_bytes(),
                cost: self.window_cost,
            };
            self.cheapest = cheaper(self.cheapest, hole);
        }
    }

    /// What must go for a request to be served, if anything helps. Where a stretch is free and what is missing is a descriptor (`has_slot` is false), any
    /// region that goes gives one.
    pub(super) fn finish(self, has_slot: bool) -> Option<Hole> {
        match self.cheapest {
            Some(hole) if hole.cost == 0 && has_slot => None,
            Some(hole) if hole.cost == 0 => self.lone,
            hole => hole,
        }
    }
}

/// The cheaper one; of equal ones the one that was found first.
pub(super) fn cheaper(known: Option<Hole>, other: Hole) -> Option<Hole> {
    known.filter(|known| known.cost <= other.cost).or(Some(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs from lengths and costs.
    fn runs(of: &[(u64, Option<u128>)]) -> Vec<Run> {
        let mut start_bytes = 0;
        let run = |&(len_bytes, cost): &(u64, Option<u128>)| {
            let run = Run {
                start_bytes,
                len_bytes,
                cost,
            };
            start_bytes += len_bytes;
            run
        };
        of.iter().map(run).collect()
    }

    fn search(runs: &[Run], needed_bytes: u64, has_slot: bool) -> Option<Hole> {
        let mut search = HoleSearch::new(needed_bytes);
        runs.iter().for_each(|run| search.push(*run));
        search.finish(has_slot)
    }

    /// Tries each start, byte by byte: what does it cost that so many bytes from there on become free?
    fn by_force(runs: &[Run], needed_bytes: u64) -> Option<u128> {
        let end_bytes = runs.last().map_or(0, Run::end_bytes);
        let starts = 0..=end_bytes.checked_sub(needed_bytes)?;
        let cost_at = |start: u64| {
            let touches = |run: &&Run| run.start_bytes < start + needed_bytes && start < run.end_bytes();
            runs.iter().filter(touches).map(|run| run.cost).sum::<Option<u128>>()
        };
        starts.filter_map(cost_at).min()
    }

    proptest! {
        #[test]
        fn no_stretch_is_cheaper_than_the_one_that_is_found(
            of in prop::collection::vec((1u64..9, prop::option::weighted(0.85, prop_oneof![Just(0u128), 1u128..50])), 0..24),
            needed_bytes in 1u64..40,
        ) {
            let runs = runs(&of);
            let found = search(&runs, needed_bytes, true);
            match by_force(&runs, needed_bytes) {
                None | Some(0) => prop_assert_eq!(found, None),
                Some(least) => {
                    let found = found.expect("a stretch is there");
                    prop_assert_eq!(found.cost, least);
                    prop_assert!(found.end_bytes - found.start_bytes >= needed_bytes);
                    let within = runs.iter().filter(|run| run.start_bytes >= found.start_bytes && run.end_bytes() <= found.end_bytes);
                    prop_assert_eq!(within.map(|run| run.cost).sum::<Option<u128>>(), Some(least));
                }
            }
        }
    }

    #[test]
    fn where_only_a_descriptor_is_missing_the_cheapest_region_goes() {
        let runs = runs(&[(4, Some(9)), (8, Some(0)), (2, None), (1, Some(3)), (1, Some(5))]);
        assert_eq!(search(&runs, 8, true), None);
        let lone = search(&runs, 8, false).map(|hole| (hole.start_bytes, hole.end_bytes, hole.cost));
        assert_eq!(lone, Some((14, 15, 3)));
        let wide = search(&runs, 10, false).map(|hole| (hole.start_bytes, hole.end_bytes));
        assert_eq!(wide, Some((0, 12)));
    }
}

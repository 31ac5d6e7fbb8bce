//! One request on its way through the phases of a strategy.

use rand::{Rng, RngExt};

use super::figures::{PlacementFigures, StopReason};
use super::pool::{EntryIndex, Fit, Pool};
use super::sample::{self, Candidate, Order};
use super::{Placed, Request};
use crate::limits::{
    CHARGEABLE_POSITIONS_MAX, HINTLESS_ENTRIES_MAX, LARGE_SAMPLE_DIVISOR, SAMPLED_ENTRIES_PER_REPLICA,
    SCANNED_POSITIONS_MAX,
};

/// Memory that requests reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The entries that this request must not use are those marked with its number.
    barred: Vec<u32>,
    request_number: u32,
    candidates: Vec<Candidate>,
}

/// Neighbours in the pool, wrapping round its end.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours {
    start: usize,
    count: usize,
}

impl Neighbours {
    fn contains(self, entry: EntryIndex, entries: usize) -> bool {
        let position = if entry.0 >= self.start {
            entry.0 - self.start
        } else {
            entry.0 + entries - self.start
        };
        position < self.count
    }
}

impl Scratch {
    /// Forgets the request before, and bars the excluded entries of the new one.
    fn begin(&mut self, entries: usize, excluded: &[EntryIndex]) {
        self.request_number = self.request_number.wrapping_add(1);
        if self.request_number == 0 {
            self.barred.fill(0);
            self.request_number = 1;
        }
        if self.barred.len() < entries {
            self.barred.resize(entries, 0);
        }
        for &entry in excluded {
            self.bar(entry);
        }
    }

    fn bar(&mut self, entry: EntryIndex) {
        self.barred[entry.0] = self.request_number;
    }

    fn is_barred(&self, entry: EntryIndex) -> bool {
        self.barred[entry.0] == self.request_number
    }
}

/// How a scan pays for positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// Every position costs one.
    Blind,
    /// Once armed, entries known to have no room cost nothing.
    FitAware,
    /// Every position costs one; if the sample was a large part of the pool, its entries are left out and cost nothing.
    Unsampled,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct Attempt<'a, P: Pool + ?Sized, R: ?Sized> {
    pool: &'a mut P,
    rng: &'a mut R,
    request: &'a Request<'a>,
    scratch: &'a mut Scratch,
    placed: &'a mut Vec<Placed<P::Region>>,
    entries: usize,
    missing: usize,
    /// Whether an allocator that was asked had no room.
    has_failed: bool,
    /// What was sampled.
    sampled: Neighbours,
    /// Whether no entry is left that could be asked with any prospect.
    is_exhausted: bool,
    /// Whether the hints of the whole pool were taken into account.
    is_complete: bool,
    figures: PlacementFigures,
}

impl<'a, P: Pool + ?Sized, R: Rng + ?Sized> Attempt<'a, P, R> {
    /// A request of which nothing is placed: `placed` must be empty, and its entries must exist in the pool.
    pub(super) fn new(
        pool: &'a mut P,
        rng: &'a mut R,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch,
        placed: &'a mut Vec<Placed<P::Region>>,
    ) -> Self {
        let entries = pool.entries();
        scratch.begin(entries, request.excluded);
        let missing = usize::try_from(request.replicas).unwrap_or(usize::MAX).min(entries);
        Self {
            pool,
            rng,
            request,
            scratch,
            placed,
            entries,
            missing,
            has_failed: false,
            sampled: Neighbours::default(),
            is_exhausted: entries == 0,
            is_complete: false,
            figures: Default::default(),
        }
    }

    /// The figures of the request, which is over.
    pub(super) fn figures(&self) -> PlacementFigures {
        self.figures
    }

    /// Tries the preferred entries in their order.
    pub(super) fn try_preferred(&mut self) {
        for &entry in self.request.preferred {
            if self.missing == 0 {
                return;
            }
            if !self.scratch.is_barred(entry) {
                self.figures.preferred_calls += 1;
                self.try_entry(entry);
            }
        }
    }

    /// Tries some neighbours from a random start, in the given order.
    pub(super) fn try_sample(&mut self, order: Order) {
        if self.missing == 0 {
            return;
        }
        let count = self
            .missing
            .saturating_mul(SAMPLED_ENTRIES_PER_REPLICA)
            .min(self.entries);
        let start = draw(self.rng, self.entries);
        self.sampled = Neighbours { start, count };
        if count == 1 {
            // A sample of one needs no order, and most nodes have one segment.
            return self.try_sampled(EntryIndex(start));
        }
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        for position in 0..count {
            let entry = self.wrapped(start, position);
            if !self.scratch.is_barred(entry) {
                candidates.push(order.candidate(self.pool, entry, position, self.request.len_bytes));
            }
        }
        for next in 0..candidates.len() {
            if self.missing == 0 {
                break;
            }
            sample::best_to(&mut candidates, next);
            self.try_sampled(candidates[next].entry);
        }
        self.scratch.candidates = candidates;
    }

    fn try_sampled(&mut self, entry: EntryIndex) {
        if !self.scratch.is_barred(entry) {
            self.figures.sampled_calls += 1;
            self.try_entry(entry);
        }
    }

    /// Tries the entries that `tightest` names, given the length and which entries may be used, until it names none.
    pub(super) fn try_tightest(
        &mut self,
        tightest: impl Fn(&P, u64, &dyn Fn(EntryIndex) -> bool) -> Option<EntryIndex>,
    ) {
        while self.missing > 0 {
            let may_use = |entry| !self.scratch.is_barred(entry);
            let Some(entry) = tightest(self.pool, self.request.len_bytes, &may_use) else {
                self.is_complete = true;
                return;
            };
            self.figures.tightest_calls += 1;
            if !self.try_entry(entry) {
                // Its hint was too high and will stay so for this request.
                self.scratch.bar(entry);
            }
        }
    }

    /// Visits positions from a random start until a budget is spent.
    pub(super) fn scan(&mut self, scan: Scan) {
        if self.missing == 0 {
            return;
        }
        let chargeable_max = CHARGEABLE_POSITIONS_MAX.min(self.entries);
        let scanned_max = match scan {
            Scan::Blind | Scan::Unsampled => chargeable_max,
            Scan::FitAware => SCANNED_POSITIONS_MAX.min(self.entries),
        };
        let left_out = self.left_out(scan);
        let start = draw(self.rng, self.entries);
        let (mut scanned, mut chargeable, mut position) = (0, 0, 0);
        while self.missing > 0 && position < self.entries && scanned < scanned_max && chargeable < chargeable_max {
            let entry = self.wrapped(start, position);
            position += 1;
            if left_out.contains(entry, self.entries) {
                continue;
            }
            scanned += 1;
            let armed = self.is_armed(scan);
            if self.scratch.is_barred(entry) {
                chargeable += 1;
            } else if armed && self.has_no_fit(entry) {
                self.figures.no_fit_credits += 1;
            } else {
                chargeable += 1;
                self.try_scanned(entry, armed, scanned);
            }
        }
        self.is_exhausted = position == self.entries;
        self.figures.scanned_positions = to_figure(scanned);
        self.figures.chargeable_positions = to_figure(chargeable);
        self.figures.armed = self.is_armed(scan);
        if self.figures.armed && self.missing > 0 {
            let capped = scanned == scanned_max;
            self.figures.stop = Some(if capped {
                StopReason::ScanCap
            } else {
                StopReason::ChargeableBudget
            });
        }
    }

    /// The entries that a scan passes over.
    fn left_out(&self, scan: Scan) -> Neighbours {
        let is_large = self.sampled.count >= self.entries.div_ceil(LARGE_SAMPLE_DIVISOR);
        if scan == Scan::Unsampled && is_large {
            self.sampled
        } else {
            Neighbours::default()
        }
    }

    /// Why a request that is short stopped.
    pub(super) fn stop_reason(&self) -> StopReason {
        let unarmed = if self.is_complete {
            StopReason::NothingFits
        } else if self.is_exhausted {
            StopReason::PoolExhausted
        } else {
            StopReason::PositionBudget
        };
        self.figures.stop.unwrap_or(unarmed)
    }

    fn is_armed(&self, scan: Scan) -> bool {
        scan == Scan::FitAware && self.entries > HINTLESS_ENTRIES_MAX && self.has_failed
    }

    fn has_no_fit(&mut self, entry: EntryIndex) -> bool {
        self.figures.hints_examined += 1;
        self.pool.fit(entry, self.request.len_bytes) == Fit::NoFit
    }

    fn try_scanned(&mut self, entry: EntryIndex, armed: bool, scanned: usize) {
        self.figures.scan_calls += 1;
        self.figures.armed_calls += u32::from(armed);
        let placed = self.try_entry(entry);
        if placed && armed && self.figures.no_fit_credits > 0 && scanned > CHARGEABLE_POSITIONS_MAX {
            self.figures.recovered += 1;
        }
    }

    /// Asks all allocators of an entry from a random one on. A success bars the entry for the rest of the request.
    fn try_entry(&mut self, entry: EntryIndex) -> bool {
        let allocators = self.pool.allocators(entry);
        let start = draw(self.rng, allocators);
        for allocator in (start..allocators).chain(0..start) {
            self.figures.allocator_calls += 1;
            if let Some(region) = self.pool.allocate(entry, allocator, self.request.len_bytes) {
                self.placed.push(Placed {
                    entry,
                    allocator,
                    region,
                });
                self.scratch.bar(entry);
                self.missing -= 1;
                return true;
            }
        }
        self.has_failed |= allocators > 0;
        false
    }

    fn wrapped(&self, start: usize, position: usize) -> EntryIndex {
        let index = start + position;
        EntryIndex(if index < self.entries {
            index
        } else {
            index - self.entries
        })
    }
}

/// A uniform number below `end`, or 0 if that leaves no choice.
fn draw<R: Rng + ?Sized>(rng: &mut R, end: usize) -> usize {
    if end > 1 { rng.random_range(0..end) } else { 0 }
}

fn to_figure(positions: usize) -> u32 {
    u32::try_from(positions).unwrap_or(u32::MAX)
}

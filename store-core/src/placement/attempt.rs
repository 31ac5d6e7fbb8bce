//! One request on its way through the phases of a strategy.

use std::cmp::Ordering;

use rand::{Rng, RngExt};

use super::figures::{PlacementFigures, StopReason};
use super::pool::{EntryIndex, Fit, Pool};
use super::{Placed, Request};
use crate::limits::{
    CHARGEABLE_POSITIONS_MAX, HINTLESS_ENTRIES_MAX, SAMPLED_ENTRIES_PER_REPLICA, SCANNED_POSITIONS_MAX,
};

/// Memory that requests reuse.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The entries that this request must not use are those marked with its number.
    barred: Vec<u32>,
    request_number: u32,
    candidates: Vec<Candidate>,
}

/// A sampled entry.
#[derive(Debug)]
struct Candidate {
    free_ratio: f64,
    /// Place in the sample, which decides between equal ratios.
    position: usize,
    entry: EntryIndex,
}

impl Candidate {
    fn emptiest_first(&self, other: &Self) -> Ordering {
        other
            .free_ratio
            .total_cmp(&self.free_ratio)
            .then(self.position.cmp(&other.position))
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

    /// Tries some neighbours from a random start, the emptiest first.
    pub(super) fn try_sample(&mut self) {
        if self.missing == 0 {
            return;
        }
        let sampled = self
            .missing
            .saturating_mul(SAMPLED_ENTRIES_PER_REPLICA)
            .min(self.entries);
        let start = draw(self.rng, self.entries);
        if sampled == 1 {
            // A sample of one needs no order, and most nodes have one segment.
            return self.try_sampled(EntryIndex(start));
        }
        let mut candidates = std::mem::take(&mut self.scratch.candidates);
        candidates.clear();
        for position in 0..sampled {
            let entry = self.wrapped(start, position);
            if !self.scratch.is_barred(entry) {
                candidates.push(Candidate {
                    free_ratio: self.pool.space(entry).free_ratio(),
                    position,
                    entry,
                });
            }
        }
        for next in 0..candidates.len() {
            if self.missing == 0 {
                break;
            }
            emptiest_to(&mut candidates, next);
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

    /// Visits positions from a random start until a budget is spent.
    pub(super) fn scan(&mut self, scan: Scan) {
        if self.missing == 0 {
            return;
        }
        let chargeable_max = CHARGEABLE_POSITIONS_MAX.min(self.entries);
        let scanned_max = match scan {
            Scan::Blind => chargeable_max,
            Scan::FitAware => SCANNED_POSITIONS_MAX.min(self.entries),
        };
        let start = draw(self.rng, self.entries);
        let (mut scanned, mut chargeable) = (0, 0);
        while self.missing > 0 && scanned < scanned_max && chargeable < chargeable_max {
            let entry = self.wrapped(start, scanned);
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

    /// Why a request that is short stopped.
    pub(super) fn stop_reason(&self) -> StopReason {
        let visited_all = self.figures.scanned_positions == to_figure(self.entries);
        let unarmed = if visited_all {
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

/// Brings the emptiest of the candidates from `next` on to that place. To be called for each place from 0 on.
///
/// The first choice usually suffices, so it is found in one pass; only if it doesn't are the others put in order.
fn emptiest_to(candidates: &mut [Candidate], next: usize) {
    if next == 0 {
        let emptiest = (1..candidates.len()).fold(0, |best, other| {
            if candidates[other].emptiest_first(&candidates[best]).is_lt() {
                other
            } else {
                best
            }
        });
        candidates.swap(0, emptiest);
    } else if next == 1 {
        candidates[1..].sort_unstable_by(Candidate::emptiest_first);
    }
}

/// A uniform number below `end`, or 0 if that leaves no choice.
fn draw<R: Rng + ?Sized>(rng: &mut R, end: usize) -> usize {
    if end > 1 { rng.random_range(0..end) } else { 0 }
}

fn to_figure(positions: usize) -> u32 {
    u32::try_from(positions).unwrap_or(u32::MAX)
}

//! The order in which sampled entries are tried.

use std::cmp::Ordering;

use super::pool::{EntryIndex, Pool};
use crate::limits::CONTIGUITY_WEIGHT;

/// What makes a sampled entry better than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The emptier first; equal ones in the order of the sample. Reads no hint of regions.
    FreeRatio,
    /// Those that may hold the request first; among them those whose free space lies mostly in one region.
    Contiguity,
}

/// A sampled entry with what its place depends on.
#[derive(Debug)]
pub(super) struct Candidate {
    may_hold: bool,
    score: f64,
    largest_bytes: u64,
    free_ratio: f64,
    /// Decides between entries that are equal otherwise.
    number: usize,
    pub(super) entry: EntryIndex,
}

impl Candidate {
    fn best_first(&self, other: &Self) -> Ordering {
        (other.may_hold.cmp(&self.may_hold))
            .then_with(|| other.score.total_cmp(&self.score))
            .then_with(|| other.largest_bytes.cmp(&self.largest_bytes))
            .then_with(|| other.free_ratio.total_cmp(&self.free_ratio))
            .then_with(|| self.number.cmp(&other.number))
    }
}

impl Order {
    /// An entry at `position` of the sample.
    pub(super) fn candidate<P: Pool + ?Sized>(
        self,
        pool: &P,
        entry: EntryIndex,
        position: usize,
        len_bytes: u64,
    ) -> Candidate {
        let space = pool.space(entry);
        let free_ratio = space.free_ratio();
        match self {
            Self::FreeRatio => Candidate {
                may_hold: true,
                score: free_ratio,
                largest_bytes: 0,
                free_ratio,
                number: position,
                entry,
            },
            Self::Contiguity => {
                let largest_bytes = largest_bytes(pool, entry, space.free_bytes);
                let contiguity = largest_bytes as f64 / space.free_bytes.max(1) as f64;
                Candidate {
                    may_hold: largest_bytes >= len_bytes,
                    score: CONTIGUITY_WEIGHT * contiguity + (1.0 - CONTIGUITY_WEIGHT) * free_ratio,
                    largest_bytes,
                    free_ratio,
                    number: entry.0,
                    entry,
                }
            }
        }
    }
}

/// The largest region that an entry may have: what is not known may be all that is free.
fn largest_bytes<P: Pool + ?Sized>(pool: &P, entry: EntryIndex, free_bytes: u64) -> u64 {
    let hints = (0..pool.allocators(entry)).map(|allocator| pool.largest_free_upper_bound_bytes(entry, allocator));
    hints.map(|hint| hint.unwrap_or(free_bytes)).max().unwrap_or(free_bytes)
}

/// Brings the best of the candidates from `next` on to that place. To be called for each place from 0 on.
///
/// The first choice usually suffices, so it is found in one pass; only if it doesn't are the others put in order.
pub(super) fn best_to(candidates: &mut [Candidate], next: usize) {
    if next == 0 {
        let best = (1..candidates.len()).fold(0, |best, other| {
            if candidates[other].best_first(&candidates[best]).is_lt() {
                other
            } else {
                best
            }
        });
        candidates.swap(0, best);
    } else if next == 1 {
        candidates[1..].sort_unstable_by(Candidate::best_first);
    }
}

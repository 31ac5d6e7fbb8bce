//! Placement: which entries of a pool hold the replicas of an object.
//!
//! A [`Placer`] takes a request through the phases of its [`Policy`]: preferred entries, a sample, a scan with a budget.
//! It asks entries for room by the calls of [`Pool`] and keeps nothing but scratch memory between requests. Randomness
//! is an argument, so a seed reproduces a run.
//!
//! The fit-aware fallback reads hints to spend its budget on entries that may have room. A hint can only spare a call:
//! unknown and stale-high hints lead to the call that decides.

mod attempt;
mod figures;
mod fit_index;
mod indexed_pool;
pub mod nodes;
mod policy;
mod pool;
mod sample;

use rand::Rng;
use thiserror::Error;

use self::attempt::{Attempt, Scan, Scratch};
use self::sample::Order;

pub use self::figures::{Histogram, PlacementCounters, PlacementFigures, StopReason};
pub use self::fit_index::FitIndex;
pub use self::indexed_pool::{FitEntry, IndexedPool};
pub use self::policy::{Fallback, Policy, Strategy};
pub use self::pool::{EntryIndex, Fit, Pool, PoolSummary, Space};

/// What is to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Length of each replica in bytes.
    pub len_bytes: u64,
    /// Replicas wanted, each on an entry of its own.
    pub replicas: u32,
    /// Entries to try first, in this order.
    pub preferred: &'a [EntryIndex],
    /// Entries that must not be used.
    pub excluded: &'a [EntryIndex],
}

impl Request<'_> {
    /// A request for one replica of `len_bytes` anywhere.
    #[must_use]
    pub fn new(len_bytes: u64) -> Self {
        Self {
            len_bytes,
            replicas: 1,
            preferred: &[],
            excluded: &[],
        }
    }
}

/// One replica that was placed.
#[derive(Debug, PartialEq, Eq)]
pub struct Placed<Region> {
    /// The entry that holds it.
    pub entry: EntryIndex,
    /// Which of the entry's allocators holds it.
    pub allocator: usize,
    /// The region, now the caller's.
    pub region: Region,
}

/// Why nothing was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// A replica has at least one byte.
    #[error("invalid argument: cannot place an object of 0 B")]
    ZeroLength,
    /// At least one replica must be wanted.
    #[error("invalid argument: cannot place 0 replicas of an object of {len_bytes} B")]
    ZeroReplicas {
        /// Length of a replica.
        len_bytes: u64,
    },
    /// A preferred or excluded entry does not exist.
    #[error("invalid argument: entry {entry} was named, the pool has {entries}")]
    UnknownEntry {
        /// The index that was given.
        entry: usize,
        /// Number of entries of the pool.
        entries: usize,
    },
    /// No entry that was asked had room.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
}

/// Why a request found no space, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "no space for {len_bytes} B: {} B are free, the largest free region has {}; {} entries examined until {stop}",
    pool.free_bytes, largest_text(pool.largest_free_upper_bound_bytes), figures.entries_examined()
)]
pub struct NoSpace {
    /// Length of the replica that was asked for.
    pub len_bytes: u64,
    /// The space of the pool after the failure.
    pub pool: PoolSummary,
    /// Why no further entry was asked.
    pub stop: StopReason,
    /// What the request did.
    pub figures: PlacementFigures,
}

fn largest_text(bound_bytes: Option<u64>) -> String {
    bound_bytes.map_or_else(|| "unknown size".to_owned(), |bytes| format!("at most {bytes} B"))
}

/// Places replicas by one policy.
#[derive(Debug, Default)]
pub struct Placer {
    policy: Policy,
    scratch: Scratch,
}

impl Placer {
    /// A placer that follows `policy`.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            scratch: Scratch::default(),
        }
    }

    /// The policy that it follows.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Places as many replicas as it can, and at least one, on distinct entries.
    ///
    /// `placed` is cleared, then holds the replicas in the order in which they were placed; it may hold fewer than
    /// were asked for. Its memory is the caller's, so that requests need not allocate any.
    ///
    /// # Errors
    ///
    /// [`PlaceError::NoSpace`] if nothing could be placed; the other errors name the argument that cannot be.
    pub fn place<P: Pool + ?Sized, R: Rng + ?Sized>(
        &mut self,
        pool: &mut P,
        request: &Request<'_>,
        rng: &mut R,
        placed: &mut Vec<Placed<P::Region>>,
    ) -> Result<PlacementFigures, PlaceError> {
        placed.clear();
        check(request, pool.entries())?;
        let mut attempt = Attempt::new(pool, rng, request, &mut self.scratch, placed);
        attempt.try_preferred();
        match (self.policy.strategy, self.policy.fallback) {
            (Strategy::Random, _) => attempt.scan(Scan::Blind),
            (Strategy::BestFit, _) => attempt.try_tightest(pool::tightest_by_scan),
            (Strategy::RetryControl, _) => {
                attempt.try_sample(Order::FreeRatio);
                attempt.scan(Scan::Unsampled);
            }
            (Strategy::FreeRatioFirst | Strategy::FragmentationAware, Fallback::Indexed) => {
                attempt.try_tightest(P::tightest);
            }
            (strategy, fallback) => {
                attempt.try_sample(match strategy {
                    Strategy::FragmentationAware => Order::Contiguity,
                    _ => Order::FreeRatio,
                });
                attempt.scan(match fallback {
                    Fallback::FitAware => Scan::FitAware,
                    _ => Scan::Blind,
                });
            }
        }
        let (figures, stop) = (attempt.figures(), attempt.stop_reason());
        if placed.is_empty() {
            return Err(NoSpace {
                len_bytes: request.len_bytes,
                pool: pool.summary(),
                stop,
                figures,
            }
            .into());
        }
        Ok(figures)
    }
}

fn check(request: &Request<'_>, entries: usize) -> Result<(), PlaceError> {
    let len_bytes = request.len_bytes;
    if len_bytes == 0 {
        return Err(PlaceError::ZeroLength);
    }
    if request.replicas == 0 {
        return Err(PlaceError::ZeroReplicas { len_bytes });
    }
    let mut named = request.preferred.iter().chain(request.excluded);
    match named.find(|entry| entry.0 >= entries) {
        Some(entry) => Err(PlaceError::UnknownEntry {
            entry: entry.0,
            entries,
        }),
        None => Ok(()),
    }
}

//! A pool that does as it is told and remembers every call.

use std::cell::Cell;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::placement::{
    EntryIndex, Fallback, PlaceError, Placed, PlacementFigures, Placer, Policy, Pool, PoolSummary, Request, Space,
    Strategy,
};

pub(crate) const BLIND: Policy = Policy {
    strategy: Strategy::FreeRatioFirst,
    fallback: Fallback::Blind,
};
pub(crate) const FIT_AWARE: Policy = Policy {
    strategy: Strategy::FreeRatioFirst,
    fallback: Fallback::FitAware,
};
pub(crate) const RANDOM: Policy = Policy {
    strategy: Strategy::Random,
    fallback: Fallback::Blind,
};

pub(crate) const FRAGMENTATION_AWARE: Policy = Policy {
    strategy: Strategy::FragmentationAware,
    fallback: Fallback::Blind,
};
pub(crate) const RETRY_CONTROL: Policy = Policy {
    strategy: Strategy::RetryControl,
    fallback: Fallback::Blind,
};
pub(crate) const BEST_FIT: Policy = Policy {
    strategy: Strategy::BestFit,
    fallback: Fallback::Blind,
};
pub(crate) const INDEXED: Policy = Policy {
    strategy: Strategy::FreeRatioFirst,
    fallback: Fallback::Indexed,
};

/// The length of most requests.
pub(crate) const LEN_BYTES: u64 = 4096;

/// An allocator that has room for one size and says what it was told to say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocator {
    /// The largest request that succeeds.
    pub(crate) room_bytes: u64,
    pub(crate) hint_bytes: Option<u64>,
}

/// Too small for [`LEN_BYTES`], and known to be.
pub(crate) const KNOWN_SMALL: Allocator = Allocator {
    room_bytes: LEN_BYTES - 1,
    hint_bytes: Some(LEN_BYTES - 1),
};
/// Too small for [`LEN_BYTES`] without saying so.
pub(crate) const UNKNOWN_SMALL: Allocator = Allocator {
    room_bytes: LEN_BYTES - 1,
    hint_bytes: None,
};
/// Just large enough for [`LEN_BYTES`].
pub(crate) const FITTING: Allocator = Allocator {
    room_bytes: LEN_BYTES,
    hint_bytes: Some(LEN_BYTES),
};

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) space: Space,
    pub(crate) allocators: Vec<Allocator>,
}

#[derive(Debug)]
pub(crate) struct ScriptedPool {
    pub(crate) entries: Vec<Entry>,
    /// Entry and allocator of every call.
    pub(crate) calls: Vec<(usize, usize)>,
    pub(crate) hint_reads: Cell<usize>,
}

impl ScriptedPool {
    /// `count` equal entries of one allocator each.
    pub(crate) fn of(count: usize, allocator: Allocator) -> Self {
        let space = Space {
            free_bytes: 1 << 20,
            capacity_bytes: 1 << 21,
        };
        let entries = vec![
            Entry {
                space,
                allocators: vec![allocator]
            };
            count
        ];
        Self {
            entries,
            calls: Vec::new(),
            hint_reads: Cell::new(0),
        }
    }

    pub(crate) fn with(mut self, entry: usize, allocators: &[Allocator]) -> Self {
        self.entries[entry].allocators = allocators.to_vec();
        self
    }

    /// The entries called, in order, each once for all its allocators.
    pub(crate) fn called_entries(&self) -> Vec<usize> {
        let mut entries: Vec<usize> = self.calls.iter().map(|&(entry, _)| entry).collect();
        entries.dedup();
        entries
    }

    /// Places one replica and returns the entry that holds it.
    pub(crate) fn place_one(&mut self, policy: Policy, seed: u64) -> Result<(usize, PlacementFigures), PlaceError> {
        self.place(policy, seed, &Request::new(LEN_BYTES))
            .map(|(entries, figures)| (entries[0], figures))
    }

    /// Places a request and returns the entries that hold its replicas.
    pub(crate) fn place(
        &mut self,
        policy: Policy,
        seed: u64,
        request: &Request<'_>,
    ) -> Result<(Vec<usize>, PlacementFigures), PlaceError> {
        let mut placed = Vec::new();
        let figures = Placer::new(policy).place(self, request, &mut ChaCha8Rng::seed_from_u64(seed), &mut placed)?;
        Ok((
            placed.iter().map(|placed: &Placed<()>| placed.entry.0).collect(),
            figures,
        ))
    }
}

impl Pool for ScriptedPool {
    type Region = ();

    fn entries(&self) -> usize {
        self.entries.len()
    }

    fn space(&self, entry: EntryIndex) -> Space {
        self.entries[entry.0].space
    }

    fn allocators(&self, entry: EntryIndex) -> usize {
        self.entries[entry.0].allocators.len()
    }

    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, allocator: usize) -> Option<u64> {
        self.hint_reads.set(self.hint_reads.get() + 1);
        self.entries[entry.0].allocators[allocator].hint_bytes
    }

    fn allocate(&mut self, entry: EntryIndex, allocator: usize, len_bytes: u64) -> Option<()> {
        self.calls.push((entry.0, allocator));
        (len_bytes <= self.entries[entry.0].allocators[allocator].room_bytes).then_some(())
    }

    fn summary(&self) -> PoolSummary {
        let hints = self
            .entries
            .iter()
            .flat_map(|entry| &entry.allocators)
            .map(|allocator| allocator.hint_bytes);
        PoolSummary {
            free_bytes: self.entries.iter().map(|entry| entry.space.free_bytes).sum(),
            largest_free_upper_bound_bytes: hints
                .collect::<Option<Vec<u64>>>()
                .map(|h| h.into_iter().max().unwrap_or(0)),
        }
    }
}

/// Where a seed lets the sample and the scan of a single replica start in a pool of `entries` one-allocator entries.
pub(crate) fn starts(entries: usize, seed: u64) -> (usize, usize) {
    let mut pool = ScriptedPool::of(entries, UNKNOWN_SMALL);
    pool.place_one(BLIND, seed).expect_err("nothing fits");
    (pool.calls[0].0, pool.calls[6.min(entries)].0)
}

/// The first seed whose scan reaches entry `target` at a position that `wanted` accepts (the first is 1) and whose
/// sample does not contain it.
pub(crate) fn seed_reaching(entries: usize, target: usize, wanted: impl Fn(usize) -> bool) -> u64 {
    let distance = |from: usize| (target + entries - from) % entries;
    let is_wanted = |&seed: &u64| {
        let (sample_start, scan_start) = starts(entries, seed);
        distance(sample_start) >= 6 && wanted(distance(scan_start) + 1)
    };
    (0..10_000).find(is_wanted).expect("a seed")
}

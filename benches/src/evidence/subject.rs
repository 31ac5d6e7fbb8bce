//! Pools that a policy places objects in, with one interface for all.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tenon_store_core::allocator::{AllocatorConfig, PackedSegments, Region, RegionAllocator, SegmentIndex};
use tenon_store_core::placement::{
    EntryIndex, Fallback, IndexedPool, Placed, Placer, Policy, Pool, PoolSummary, Request, Space, Strategy,
};

/// A way to place objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A policy over segments each of which has an allocator of its own.
    Policy(Policy),
    /// The indexed fallback over such segments, whose hints are kept in order: what a pool of entries does.
    Indexed,
    /// What a node does by default: all segments under one index of regions.
    Default,
}

const fn of(strategy: Strategy, fallback: Fallback) -> Way {
    Way::Policy(Policy { strategy, fallback })
}

impl Way {
    /// The first of random starts that has room, within a budget.
    pub const RANDOM: Self = of(Strategy::Random, Fallback::Blind);
    /// The emptiest of a sample, then a blind scan.
    pub const BLIND: Self = of(Strategy::FreeRatioFirst, Fallback::Blind);
    /// The same with a scan that reads hints.
    pub const FIT_AWARE: Self = of(Strategy::FreeRatioFirst, Fallback::FitAware);
    /// The least fragmented of a sample, then a blind scan.
    pub const FRAGMENTATION_AWARE: Self = of(Strategy::FragmentationAware, Fallback::Blind);
    /// A scan without the sample.
    pub const RETRY_CONTROL: Self = of(Strategy::RetryControl, Fallback::Blind);
    /// The smallest sufficient hint of all.
    pub const BEST_FIT: Self = of(Strategy::BestFit, Fallback::Blind);

    /// Its name in the figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RANDOM => "random",
            Self::BLIND => "blind",
            Self::FIT_AWARE => "fit_aware",
            Self::FRAGMENTATION_AWARE => "fragmentation_aware",
            Self::RETRY_CONTROL => "retry_control",
            Self::BEST_FIT => "best_fit",
            Self::Indexed => "indexed",
            Self::Default => "default",
            Self::Policy(_) => "other",
        }
    }
}

/// An object that was placed: in which segment, and the right to free it there.
pub type Object = (usize, Region);

/// Segments with a way to place objects in them.
pub trait Subject {
    /// Places an object, or nothing if no room was found.
    fn place(&mut self, len_bytes: u64) -> Option<Object>;

    /// Frees an object.
    fn free(&mut self, object: Object);

    /// Lengths of all free regions, found by walking over all segments.
    fn free_lengths(&self) -> Vec<u64>;
}

/// Segments of these capacities without objects.
///
/// # Panics
/// If a capacity is not that of a segment.
#[must_use]
pub fn new(way: Way, capacities_bytes: &[u64], seed: u64) -> Box<dyn Subject> {
    match way {
        Way::Policy(policy) => of_segments(policy, segments(capacities_bytes), seed),
        Way::Indexed => of_segments(INDEXED, segments(capacities_bytes), seed),
        Way::Default => Box::new(Packed::new(capacities_bytes)),
    }
}

/// Segments in any state behind a policy; under [`INDEXED`] with their hints in order.
#[must_use]
pub fn of_segments(policy: Policy, segments: Vec<RegionAllocator>, seed: u64) -> Box<dyn Subject> {
    if policy == INDEXED {
        Box::new(Segments::new(policy, IndexedPool::new(segments), seed))
    } else {
        Box::new(Segments::new(policy, Plain(segments), seed))
    }
}

/// The policy of [`Way::Indexed`].
pub const INDEXED: Policy = Policy {
    strategy: Strategy::FreeRatioFirst,
    fallback: Fallback::Indexed,
};

/// Segments, each with an allocator of its own.
///
/// # Panics
/// If a capacity is not that of a segment.
#[must_use]
pub fn segments(capacities_bytes: &[u64]) -> Vec<RegionAllocator> {
    let new = |&bytes: &u64| RegionAllocator::new(AllocatorConfig::new(bytes)).expect("a segment's capacity");
    capacities_bytes.iter().map(new).collect()
}

/// What the bench needs of a pool beyond placing.
pub trait OwnedPool: Pool<Region = Region> {
    /// Frees a region of an entry.
    fn give_back(&mut self, entry: EntryIndex, region: Region);

    /// The segments.
    fn segments(&self) -> &[RegionAllocator];
}

impl OwnedPool for IndexedPool<RegionAllocator> {
    fn give_back(&mut self, entry: EntryIndex, region: Region) {
        self.change(entry, |segment| segment.free(region))
            .expect("placed there");
    }

    fn segments(&self) -> &[RegionAllocator] {
        self.as_slice()
    }
}

/// Segments without an index.
#[derive(Debug)]
pub struct Plain(pub Vec<RegionAllocator>);

impl Pool for Plain {
    type Region = Region;

    fn entries(&self) -> usize {
        self.0.len()
    }

    fn space(&self, entry: EntryIndex) -> Space {
        self.0[..].space(entry)
    }

    fn allocators(&self, _entry: EntryIndex) -> usize {
        1
    }

    fn largest_free_upper_bound_bytes(&self, entry: EntryIndex, _allocator: usize) -> Option<u64> {
        Some(self.0[entry.0].largest_free_upper_bound_bytes())
    }

    fn allocate(&mut self, entry: EntryIndex, _allocator: usize, len_bytes: u64) -> Option<Region> {
        self.0[entry.0].allocate(len_bytes).ok()
    }

    fn summary(&self) -> PoolSummary {
        // Counted over all segments for an error that nobody reads here: not a cost of the policy.
        PoolSummary {
            free_bytes: 0,
            largest_free_upper_bound_bytes: None,
        }
    }
}

impl OwnedPool for Plain {
    fn give_back(&mut self, entry: EntryIndex, region: Region) {
        self.0[entry.0].free(region).expect("placed there");
    }

    fn segments(&self) -> &[RegionAllocator] {
        &self.0
    }
}

/// A pool of single segments behind a policy.
#[derive(Debug)]
pub struct Segments<P> {
    pool: P,
    placer: Placer,
    rng: ChaCha8Rng,
    placed: Vec<Placed<Region>>,
}

impl<P: OwnedPool> Segments<P> {
    /// This pool behind this policy.
    #[must_use]
    pub fn new(policy: Policy, pool: P, seed: u64) -> Self {
        Self {
            pool,
            placer: Placer::new(policy),
            rng: ChaCha8Rng::seed_from_u64(seed),
            placed: Vec::new(),
        }
    }
}

impl<P: OwnedPool> Subject for Segments<P> {
    #[inline]
    fn place(&mut self, len_bytes: u64) -> Option<Object> {
        let request = Request::new(len_bytes);
        let result = self
            .placer
            .place(&mut self.pool, &request, &mut self.rng, &mut self.placed);
        result.ok()?;
        self.placed.pop().map(|placed| (placed.entry.0, placed.region))
    }

    #[inline]
    fn free(&mut self, (segment, region): Object) {
        self.pool.give_back(EntryIndex(segment), region);
    }

    fn free_lengths(&self) -> Vec<u64> {
        let runs = self.pool.segments().iter().flat_map(RegionAllocator::runs);
        runs.filter(|run| run.is_free).map(|run| run.len_bytes).collect()
    }
}

/// Segments under one index of regions.
#[derive(Debug)]
pub struct Packed(pub PackedSegments);

impl Packed {
    /// Segments without objects. Panics if a capacity is not that of a segment.
    #[must_use]
    pub fn new(capacities_bytes: &[u64]) -> Self {
        let mut packed = PackedSegments::new(64).expect("the smallest alignment");
        for &bytes in capacities_bytes {
            packed.mount(bytes, u32::MAX).expect("a segment's capacity");
        }
        Self(packed)
    }
}

impl Subject for Packed {
    #[inline]
    fn place(&mut self, len_bytes: u64) -> Option<Object> {
        let (segment, region) = self.0.allocate(len_bytes).ok()?;
        Some((segment.0, region))
    }

    #[inline]
    fn free(&mut self, (segment, region): Object) {
        self.0.free(SegmentIndex(segment), region).expect("placed there");
    }

    fn free_lengths(&self) -> Vec<u64> {
        let runs = (0..self.0.segments()).flat_map(|segment| self.0.runs(SegmentIndex(segment)));
        runs.filter(|run| run.is_free).map(|run| run.len_bytes).collect()
    }
}

//! The indexed fallback: it fails only if nothing fits, and finds what a scan of all entries would find.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::allocator::{AllocatorConfig, Region, RegionAllocator};
use tenon_store_core::placement::{EntryIndex, FitIndex, IndexedPool, PlaceError, Placed, Placer, Request, StopReason};

use crate::pools::{BEST_FIT, INDEXED};

/// One step of a run. Live regions are chosen by any number, taken modulo how many there are.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Place {
        len_bytes: u64,
        replicas: u32,
        excluded: Option<usize>,
    },
    Free(usize),
}

/// An indexed pool, and a twin of plain segments in which every hint is read for every request.
struct Pair {
    pool: IndexedPool<RegionAllocator>,
    model: Vec<RegionAllocator>,
    live: Vec<(Placed<Region>, Placed<Region>)>,
    placers: (Placer, Placer),
}

impl Pair {
    fn new(capacities_bytes: &[u64]) -> Self {
        let segments = || -> Vec<_> {
            let new =
                |&bytes: &u64| RegionAllocator::new(AllocatorConfig::new(bytes)).expect("what the case relies on");
            capacities_bytes.iter().map(new).collect()
        };
        Self {
            pool: IndexedPool::new(segments()),
            model: segments(),
            live: Vec::new(),
            placers: (Placer::new(INDEXED), Placer::new(BEST_FIT)),
        }
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Place {
                len_bytes,
                replicas,
                excluded,
            } => {
                let excluded: Vec<_> = excluded
                    .map(|number| EntryIndex(number % self.model.len()))
                    .into_iter()
                    .collect();
                self.place(&Request {
                    replicas,
                    excluded: &excluded,
                    ..Request::new(len_bytes)
                });
            }
            Operation::Free(_) if self.live.is_empty() => {}
            Operation::Free(number) => {
                let (indexed, naive) = self.live.swap_remove(number % self.live.len());
                self.pool
                    .change(indexed.entry, |segment| segment.free(indexed.region))
                    .expect("what the case relies on");
                self.model[naive.entry.0]
                    .free(naive.region)
                    .expect("what the case relies on");
            }
        }
        self.pool.index().check_invariants();
        for (number, segment) in self.pool.as_slice().iter().enumerate() {
            assert_eq!(
                self.pool.index().hint(EntryIndex(number)),
                Some(segment.largest_free_bytes())
            );
        }
    }

    fn place(&mut self, request: &Request<'_>) {
        // Neither of the two draws random numbers in pools of one allocator per entry.
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let (mut indexed, mut naive) = (Vec::new(), Vec::new());
        let may_use = |number: usize| !request.excluded.contains(&EntryIndex(number));
        let fits = |(number, segment): (usize, &RegionAllocator)| {
            may_use(number)
                && segment
                    .runs()
                    .any(|run| run.is_free && run.len_bytes >= request.len_bytes)
        };
        let fitting = self.model.iter().enumerate().filter(|&entry| fits(entry)).count();
        let figures = self.placers.0.place(&mut self.pool, request, &mut rng, &mut indexed);
        let expected = self.placers.1.place(&mut self.model[..], request, &mut rng, &mut naive);
        assert_eq!(indexed, naive);
        assert_eq!(
            indexed.len(),
            fitting.min(request.replicas as usize),
            "a request failed although an entry fits"
        );
        match (figures, expected) {
            (Ok(figures), Ok(expected)) => assert_eq!(figures, expected),
            (Err(PlaceError::NoSpace(no_space)), Err(PlaceError::NoSpace(expected))) => {
                assert_eq!(no_space, expected);
                assert_eq!((no_space.stop, no_space.figures.calls()), (StopReason::NothingFits, 0));
            }
            other => panic!("{other:?}"),
        }
        self.live.extend(indexed.into_iter().zip(naive));
    }
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let length = prop_oneof![6 => 1..400_u64, 3 => 1..4000_u64, 1 => Just(1), 1 => 4000..9000_u64];
    let replicas = prop_oneof![6 => Just(1), 1 => 2..5_u32];
    let operation = prop_oneof![
        3 => (length, replicas, prop::option::weighted(0.2, any::<usize>())).prop_map(|(len_bytes, replicas, excluded)| {
            Operation::Place { len_bytes, replicas, excluded }
        }),
        2 => any::<usize>().prop_map(Operation::Free),
    ];
    prop::collection::vec(operation, 1..300)
}

proptest! {
    #[test]
    fn index_and_scan_of_all_hints_decide_alike_and_never_fail_while_an_entry_fits(
        capacities_bytes in prop::collection::vec(64..8192_u64, 1..40),
        operations in operations(),
    ) {
        let mut pair = Pair::new(&capacities_bytes);
        operations.into_iter().for_each(|operation| pair.apply(operation));
    }

    #[test]
    fn the_order_of_hints_is_that_of_a_sorted_list(
        hints in prop::collection::vec((0..60_usize, prop::option::weighted(0.95, 0..200_u64)), 1..400),
        asked in prop::collection::vec((1..220_u64, any::<u64>()), 20),
    ) {
        let mut index = FitIndex::new(60);
        let mut model = vec![Some(0); 60];
        for (entry, hint) in hints {
            index.set(EntryIndex(entry), hint);
            model[entry] = hint;
        }
        index.check_invariants();
        for (len_bytes, barred) in asked {
            let may_use = |entry: EntryIndex| barred >> entry.0 & 1 == 0;
            let fitting = (0..60).filter(|&entry| may_use(EntryIndex(entry)) && model[entry].is_none_or(|hint| hint >= len_bytes));
            let expected = fitting.min_by_key(|&entry| (model[entry].unwrap_or(u64::MAX), entry)).map(EntryIndex);
            prop_assert_eq!(index.tightest(len_bytes, &may_use), expected);
        }
        let largest = model.iter().copied().collect::<Option<Vec<_>>>().map(|hints| hints.into_iter().max().unwrap());
        prop_assert_eq!(index.largest_free_upper_bound_bytes(), largest);
    }
}

#[test]
fn the_one_entry_that_fits_is_found_among_16384_that_are_one_unit_short() {
    const LEN_BYTES: u64 = 10_000 * 64;
    let mut segments = Vec::new();
    for number in 0..16_384 {
        let mut segment = RegionAllocator::new(AllocatorConfig::new(2 * LEN_BYTES)).unwrap();
        let used_bytes = if number == 11_111 { LEN_BYTES } else { LEN_BYTES + 64 };
        let _used = segment.allocate(used_bytes).unwrap();
        segments.push(segment);
    }
    let mut pool = IndexedPool::new(segments);
    let (mut placer, mut placed) = (Placer::new(INDEXED), Vec::new());
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for _ in 0..1000 {
        let figures = placer
            .place(&mut pool, &Request::new(LEN_BYTES), &mut rng, &mut placed)
            .unwrap();
        assert_eq!((placed[0].entry, figures.allocator_calls), (EntryIndex(11_111), 1));
        assert!(
            placer
                .place(&mut pool, &Request::new(LEN_BYTES), &mut rng, &mut Vec::new())
                .is_err()
        );
        let Placed { entry, region, .. } = placed.pop().unwrap();
        pool.change(entry, |segment| segment.free(region)).unwrap();
    }
    assert!(pool.index().memory_bytes() <= 48 * 16_384 + (15 << 10) + 1024);
}

#[test]
fn an_entry_may_be_added_and_become_unknown() {
    let mut index = FitIndex::new(1);
    let added = index.push();
    assert_eq!((added, index.entries()), (EntryIndex(1), 2));
    let any = |_| true;
    assert_eq!(index.tightest(1, &any), None);
    index.set(added, None);
    index.set(EntryIndex(0), Some(100));
    assert_eq!(
        (index.tightest(100, &any), index.tightest(101, &any)),
        (Some(EntryIndex(0)), Some(added))
    );
    assert_eq!(
        (index.hint(added), index.largest_free_upper_bound_bytes()),
        (None, None)
    );
}

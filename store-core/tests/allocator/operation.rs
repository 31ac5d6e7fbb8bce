//! Operations on an allocator and its model at once, each answer compared.

use tenon_store_core::allocator::{AllocateError, AllocatorConfig, FitHint, FreeError, Region, RegionAllocator, Run};

use crate::model::{Expected, Model};

/// One step of a run. Regions are chosen by any number, taken modulo the number of live ones.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// Allocate this many bytes.
    Allocate(u64),
    /// Free one of the live regions.
    Free(usize),
    /// Free all live regions but each n-th, which leaves holes.
    FreeAllBut(usize),
    /// Free a region of this length that another allocator handed out.
    FreeForeign(u64),
}

/// An allocator and its model, in the same state.
#[derive(Debug)]
pub(crate) struct Pair {
    allocator: RegionAllocator,
    model: Model,
    hint: FitHint,
    live: Vec<Region>,
}

impl Pair {
    pub(crate) fn new(config: AllocatorConfig) -> Self {
        let allocator = RegionAllocator::new(config).expect("a valid configuration");
        let pair = Self {
            hint: allocator.hint(),
            allocator,
            model: Model::new(config),
            live: Vec::new(),
        };
        pair.compare();
        pair
    }

    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// Applies the operation to both and panics where they differ.
    pub(crate) fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Allocate(len_bytes) => self.allocate(len_bytes),
            Operation::Free(number) => {
                if !self.live.is_empty() {
                    let region = self.live.swap_remove(number % self.live.len());
                    self.free(region);
                }
            }
            Operation::FreeAllBut(nth) => {
                for (number, region) in std::mem::take(&mut self.live).into_iter().enumerate() {
                    if number % nth.max(1) == 0 {
                        self.live.push(region)
                    } else {
                        self.free(region)
                    }
                }
            }
            Operation::FreeForeign(len_bytes) => self.free_foreign(len_bytes),
        }
        self.compare();
    }

    fn allocate(&mut self, len_bytes: u64) {
        let expected = self.model.expect(len_bytes);
        match self.allocator.allocate(len_bytes) {
            Ok(region) => {
                assert_eq!(region.len_bytes(), len_bytes);
                assert!(
                    [Expected::Somewhere, Expected::At(region.offset_bytes())].contains(&expected),
                    "{expected:?}"
                );
                self.model.occupy(region.offset_bytes(), len_bytes);
                self.live.push(region);
            }
            Err(AllocateError::ZeroLength) => assert_eq!(expected, Expected::ZeroLength),
            Err(AllocateError::NoFit {
                len_bytes: named,
                free_bytes,
                largest_free_bytes,
            }) => {
                assert_eq!(expected, Expected::NoFit);
                assert_eq!((named, free_bytes), (len_bytes, self.model.free_bytes()));
                assert!(largest_free_bytes >= self.model.largest_free_bytes());
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn free(&mut self, region: Region) {
        self.model.release(region.offset_bytes());
        assert_eq!(self.allocator.free(region), Ok(()));
    }

    fn free_foreign(&mut self, len_bytes: u64) {
        // The region starts where this segment has ended.
        let capacity_bytes = self.allocator.capacity_bytes();
        let mut stranger = RegionAllocator::new(AllocatorConfig::new(1 << 30)).expect("a valid configuration");
        let _filler = stranger.allocate(capacity_bytes).expect("a larger segment");
        let region = stranger.allocate(len_bytes).expect("a larger segment");
        let offset_bytes = region.offset_bytes();
        assert_eq!(
            self.allocator.free(region),
            Err(FreeError::NotAllocated {
                offset_bytes,
                len_bytes
            })
        );
    }

    fn compare(&self) {
        self.allocator.check_invariants();
        assert_eq!(self.allocator.runs().collect::<Vec<Run>>(), self.model.runs());
        assert_eq!(self.allocator.free_bytes(), self.model.free_bytes());
        let capacity_bytes = self.allocator.free_bytes() + self.allocator.allocated_bytes();
        assert_eq!(capacity_bytes, self.allocator.capacity_bytes());
        let largest_bytes = self.model.largest_free_bytes();
        assert_eq!(self.allocator.largest_free_bytes(), largest_bytes);
        let bound_bytes = self.hint.largest_free_upper_bound_bytes();
        assert!(largest_bytes <= bound_bytes, "hint {bound_bytes} below {largest_bytes}");
        assert!(
            bound_bytes <= self.model.class_end_bytes(largest_bytes),
            "hint {bound_bytes} above {largest_bytes}"
        );
        assert_eq!(
            (self.hint.free_bytes(), self.hint.capacity_bytes()),
            (self.allocator.free_bytes(), capacity_bytes)
        );
    }
}

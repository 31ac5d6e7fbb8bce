//! The naive model of the region allocator: a sorted vector of runs, searched from end to end.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tenon_store_core::allocator::{AllocatorConfig, Classes, Run};

/// What the model says that an allocation must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Succeed at this offset.
    At(u64),
    /// Succeed at the start of any free run that is large enough.
    Somewhere,
    /// Fail because the length is zero.
    ZeroLength,
    /// Fail because no run is large enough.
    NoFit,
}

#[derive(Debug)]
pub(crate) struct Model {
    config: AllocatorConfig,
    runs: Vec<Run>,
    /// When the free run at an offset came to be as it is.
    born: BTreeMap<u64, u64>,
    clock: u64,
}

impl Model {
    pub(crate) fn new(config: AllocatorConfig) -> Self {
        let len_bytes = config.capacity_bytes - config.capacity_bytes % config.alignment_bytes;
        Self {
            config,
            runs: vec![Run {
                offset_bytes: 0,
                len_bytes,
                is_free: true,
            }],
            born: [(0, 0)].into(),
            clock: 0,
        }
    }

    /// Counts on from the clock of another model, so that their runs can be told apart by age.
    pub(crate) fn set_clock(&mut self, clock: u64) {
        self.clock = clock;
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    /// When the free run at `offset_bytes` came to be as it is.
    pub(crate) fn born(&self, offset_bytes: u64) -> u64 {
        self.born[&offset_bytes]
    }

    /// All free runs come to be anew, the lowest first.
    pub(crate) fn renew(&mut self) {
        for run in self.runs.iter().filter(|run| run.is_free) {
            self.clock += 1;
            self.born.insert(run.offset_bytes, self.clock);
        }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.free_lengths().sum()
    }

    pub(crate) fn largest_free_bytes(&self) -> u64 {
        self.free_lengths().max().unwrap_or(0)
    }

    /// What an allocation of `len_bytes` must do now.
    pub(crate) fn expect(&self, len_bytes: u64) -> Expected {
        if len_bytes == 0 {
            return Expected::ZeroLength;
        }
        let occupied = self.occupied_bytes(len_bytes);
        match self.config.classes {
            Classes::Peer => {
                let fits = self
                    .free_lengths()
                    .any(|len| u128::from(self.peer_floor(len)) >= occupied);
                if fits { Expected::Somewhere } else { Expected::NoFit }
            }
            _ => {
                let tightest = |occupied: u128| {
                    let runs = self.runs.iter().filter(|run| run.is_free);
                    runs.filter(|run| u128::from(run.len_bytes) >= occupied)
                        .min_by_key(|run| (run.len_bytes, Reverse(self.born(run.offset_bytes))))
                };
                let leaves_much = |run: &&Run| self.leaves_much(run.len_bytes, occupied);
                let roomier = tightest(occupied)
                    .filter(leaves_much)
                    .and_then(|_| tightest(2 * occupied));
                let chosen = roomier.or_else(|| tightest(occupied));
                chosen.map_or(Expected::NoFit, |run| Expected::At(run.offset_bytes))
            }
        }
    }

    /// Whether a request that occupies so much would rather not take a run of this length.
    pub(crate) fn leaves_much(&self, run_bytes: u64, occupied_bytes: u128) -> bool {
        let units = occupied_bytes / u128::from(self.config.alignment_bytes);
        let rest_units = (u128::from(run_bytes) - occupied_bytes) / u128::from(self.config.alignment_bytes);
        occupied_bytes >= 1 << 20 && rest_units > units / 10
    }

    /// Records a region. Panics unless it lies at the start of a free run.
    pub(crate) fn occupy(&mut self, offset_bytes: u64, len_bytes: u64) {
        let len_bytes = u64::try_from(self.occupied_bytes(len_bytes)).expect("a size below 2^64");
        let position = self
            .runs
            .iter()
            .position(|run| run.offset_bytes == offset_bytes)
            .expect("start of a run");
        let run = self.runs[position];
        assert!(
            run.is_free && run.len_bytes >= len_bytes,
            "{len_bytes} B at {offset_bytes} overlap {run:?}"
        );
        self.runs[position] = Run {
            offset_bytes,
            len_bytes,
            is_free: false,
        };
        self.clock += 1;
        if run.len_bytes > len_bytes {
            self.born.insert(offset_bytes + len_bytes, self.clock);
            let rest = Run {
                offset_bytes: offset_bytes + len_bytes,
                len_bytes: run.len_bytes - len_bytes,
                is_free: true,
            };
            self.runs.insert(position + 1, rest);
        }
    }

    /// Frees the region at `offset_bytes`. Panics if there is none.
    pub(crate) fn release(&mut self, offset_bytes: u64) {
        let run = self
            .runs
            .iter_mut()
            .find(|run| run.offset_bytes == offset_bytes)
            .expect("start of a run");
        assert!(!run.is_free, "double free at {offset_bytes}");
        run.is_free = true;
        self.runs = self.runs.iter().fold(Vec::new(), |mut merged: Vec<Run>, run| {
            match merged.last_mut().filter(|last| last.is_free && run.is_free) {
                Some(last) => last.len_bytes += run.len_bytes,
                None => merged.push(*run),
            }
            merged
        });
        self.clock += 1;
        let merged = self.runs.iter().rfind(|run| run.offset_bytes <= offset_bytes);
        self.born.insert(merged.expect("a run").offset_bytes, self.clock);
    }

    /// The largest size of the class that `len_bytes` lies in, one alignment unit below the next class.
    pub(crate) fn class_end_bytes(&self, len_bytes: u64) -> u64 {
        let unit = self.config.alignment_bytes;
        match self.config.classes {
            Classes::Peer => u64::try_from(self.peer_ceil(len_bytes + unit)).expect("a size below 2^64") - unit,
            _ => len_bytes,
        }
    }

    fn free_lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.runs.iter().filter(|run| run.is_free).map(|run| run.len_bytes)
    }

    pub(crate) fn occupied_bytes(&self, len_bytes: u64) -> u128 {
        match self.config.classes {
            Classes::Peer => self.peer_ceil(len_bytes),
            _ => u128::from(len_bytes).next_multiple_of(u128::from(self.config.alignment_bytes)),
        }
    }

    /// Rounded up to a multiple of the unit with at most four significant bits.
    fn peer_ceil(&self, len_bytes: u64) -> u128 {
        let units = u128::from(len_bytes).div_ceil(u128::from(self.config.alignment_bytes));
        let step = 1 << units.max(1).ilog2().saturating_sub(3);
        units.next_multiple_of(step) * u128::from(self.config.alignment_bytes)
    }

    /// Rounded down to a multiple of the unit with at most four significant bits.
    fn peer_floor(&self, len_bytes: u64) -> u64 {
        let units = len_bytes / self.config.alignment_bytes;
        let step = 1 << units.max(1).ilog2().saturating_sub(3);
        units / step * step * self.config.alignment_bytes
    }
}

//! Memory of the program that puts and gets.

use std::sync::Arc;

use anyhow::Result;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tenon_transport::{Memory, Slice};

const SEED: u64 = 7601;
/// Memory is filled and copied in pieces of this length.
const PIECE_LEN: usize = 1 << 20;
const PIECE_BYTES: u64 = 1 << 20;

const _: () = assert!(PIECE_LEN as u64 == PIECE_BYTES, "one length in two types");

/// What is put, and where gets land: used again and again, as programs use memory that they have registered. Every page
/// of it has been written.
#[derive(Clone, Debug)]
pub struct Buffers {
    source: Slice,
    landing: Slice,
}

impl Buffers {
    /// Random bytes to put, and memory to land in; both whole MiB.
    pub fn new(source_bytes: u64, landing_bytes: u64) -> Result<Self> {
        let memory = |len_bytes| Memory::anonymous(len_bytes).map(|memory| Arc::new(memory).whole());
        let (source, landing) = (memory(source_bytes)?, memory(landing_bytes)?);
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let mut bytes = vec![0; PIECE_LEN];
        for start in (0..source_bytes).step_by(PIECE_LEN) {
            rng.fill_bytes(&mut bytes);
            source.copy_in(start, &bytes)?;
        }
        for start in (0..landing_bytes).step_by(PIECE_LEN) {
            landing.copy_in(start, &bytes)?;
        }
        Ok(Self { source, landing })
    }

    /// What is put.
    #[must_use]
    pub fn source(&self) -> &Slice {
        &self.source
    }

    /// Where gets land.
    #[must_use]
    pub fn landing(&self) -> &Slice {
        &self.landing
    }

    /// Copies this many bytes from the one to the other within this process, round and round.
    pub fn copy(&self, len_bytes: u64) -> Result<()> {
        for start in (0..len_bytes).step_by(PIECE_LEN) {
            let (from, to) = (start % self.source.len_bytes(), start % self.landing.len_bytes());
            let from = self.source.subslice(from..from + PIECE_BYTES)?;
            let to = self.landing.offset_bytes() + to;
            from.memory().copy_within(from.range(), self.landing.memory(), to)?;
        }
        Ok(())
    }
}

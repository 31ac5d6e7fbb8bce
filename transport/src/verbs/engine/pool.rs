//! Registered memory for small reads into memory that is not: registering and deregistering cost more than such a read.
//!
//! *Ownership.* A [`Pool`] owns one memory and its region. A [`Slot`] is a part of it that one read has for itself: it is counted by whoever will copy
//! what lands there, and by the posted request. *Liveness.* It is given back when both are done. So a slot whose reader has gone away
//! is nobody else's before the device has completed or flushed its request, and the reader's own memory is touched by no device at all.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::limits::{VERBS_POOL_SLOT_BYTES, VERBS_POOL_SLOTS};
use crate::memory::{Memory, Slice};
use crate::verbs::{Access, Local, MemoryRegion, ProtectionDomain, VerbsError};

/// The slots of one rail.
#[derive(Debug)]
pub(super) struct Pool {
    region: Arc<MemoryRegion>,
    free: Mutex<Vec<u64>>,
}

impl Pool {
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Result<Arc<Self>, VerbsError> {
        let memory = vec![0; VERBS_POOL_SLOTS * VERBS_POOL_SLOT_BYTES];
        let memory = Arc::new(Memory::from_vec(memory));
        Ok(Arc::new(Self {
            region: MemoryRegion::register(domain, memory.whole(), Access::LOCAL_WRITE)?,
            free: Mutex::new((0..VERBS_POOL_SLOTS as u64).collect()),
        }))
    }

    /// How many slots nobody has.
    pub(super) fn free(&self) -> usize {
        self.free.lock().len()
    }

    /// A slot for what is to go to `into`. None if that is too long, or all are taken.
    pub(super) fn take(self: &Arc<Self>, into: &Slice) -> Option<Arc<Slot>> {
        if into.len_bytes() > VERBS_POOL_SLOT_BYTES as u64 {
            return None;
        }
        let number = self.free.lock().pop()?;
        Some(Arc::new(Slot {
            pool: Arc::clone(self),
            number,
        }))
    }
}

/// A part of a pool. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Slot {
    pool: Arc<Pool>,
    number: u64,
}

impl Slot {
    /// Its start, for a request.
    pub(super) fn local(&self, len_bytes: u64) -> Result<Local, VerbsError> {
        let start = self.number * VERBS_POOL_SLOT_BYTES as u64;
        self.pool.region.part(start..start + len_bytes)
    }

    /// Copies what has landed at its start.
    pub(super) fn copy_to(&self, into: &Slice) {
        let start = self.number * VERBS_POOL_SLOT_BYTES as u64;
        let range = start..start + into.len_bytes();
        let memory = self.pool.region.slice().memory();
        memory
            .copy_within(range, into.memory(), into.offset_bytes())
            .expect("a slot was taken for what fits in it, and a slice lies inside its memory");
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pool.free.lock().push(self.number);
    }
}

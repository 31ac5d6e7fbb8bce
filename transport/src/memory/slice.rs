//! Counted ranges of memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::bytes::PrivateBytes;
use super::{Memory, MemoryError, to_u64, to_usize};
use crate::checksum::Crc64;

/// A counted reference to a range of a [`Memory`]: whoever holds it keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Slice {
    memory: Arc<Memory>,
    offset_bytes: u64,
    len_bytes: u64,
}

impl Slice {
    pub(super) fn whole(memory: Arc<Memory>) -> Self {
        let len_bytes = memory.len_bytes();
        Self {
            memory,
            offset_bytes: 0,
            len_bytes,
        }
    }

    /// The memory it is a range of.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where the range starts in the memory.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Length of the range.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Where the range lies in the memory.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + self.len_bytes
    }

    /// The address of its first byte, for a device. All of the slice is mapped while it lives; who passes the address on
    /// keeps the slice as long as anything may use it.
    pub(crate) fn address(&self) -> *mut u8 {
        self.memory
            .address(self.offset_bytes, self.len_bytes)
            .expect("a slice lies inside its memory")
    }

    /// A part of it; offsets count from its start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn subslice(&self, range: Range<u64>) -> Result<Self, MemoryError> {
        let range = self.inside(range)?;
        let len_bytes = range.end - range.start;
        Ok(Self {
            memory: Arc::clone(&self.memory),
            offset_bytes: range.start,
            len_bytes,
        })
    }

    /// This slice and the one that begins where it ends, in the same memory; `None` if `next` does not.
    #[must_use]
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let is_next = Arc::ptr_eq(&self.memory, &next.memory) && self.range().end == next.offset_bytes;
        is_next.then(|| Self {
            len_bytes: self.len_bytes + next.len_bytes,
            ..self.clone()
        })
    }

    /// Copies `bytes` to `offset_bytes`, counted from the slice's start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_in(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let range = self.inside(offset_bytes..offset_bytes.saturating_add(to_u64(bytes.len())))?;
        self.memory.copy_in(range.start, bytes)
    }

    /// Fills `bytes` from `offset_bytes`, counted from the slice's start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_out(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let range = self.inside(offset_bytes..offset_bytes.saturating_add(to_u64(bytes.len())))?;
        self.memory.copy_out(range.start, bytes)
    }

    /// CRC-64/NVME of the whole slice.
    #[must_use]
    pub fn crc64(&self) -> u64 {
        let mut crc = Crc64::new();
        self.memory
            .crc64_into(&mut crc, self.range())
            .expect("a slice lies inside its memory");
        crc.value()
    }

    /// A copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; to_usize(self.len_bytes)];
        self.memory
            .copy_out(self.offset_bytes, &mut bytes)
            .expect("a slice lies inside its memory");
        bytes
    }

    /// Turns the slice into [`Bytes`] without a copy, if nobody else can touch the memory: it is private to this
    /// process (anonymous or from a vector) and this slice is the last reference to it. That check, not the caller,
    /// guarantees that all writers are done.
    ///
    /// # Errors
    /// Gives the slice back if the memory is shared or referenced elsewhere: drop the other references first, or use
    /// [`Slice::to_vec`].
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        let range = self.range();
        let Self {
            memory,
            offset_bytes,
            len_bytes,
        } = self;
        match Arc::try_unwrap(memory) {
            Ok(memory) => PrivateBytes::new(memory, range)
                .map(Bytes::from_owner)
                .map_err(|memory| Self {
                    memory: Arc::new(memory),
                    offset_bytes,
                    len_bytes,
                }),
            Err(memory) => Err(Self {
                memory,
                offset_bytes,
                len_bytes,
            }),
        }
    }

    /// The range in the memory of a range of this slice, if it lies inside.
    fn inside(&self, range: Range<u64>) -> Result<Range<u64>, MemoryError> {
        if range.start > range.end || range.end > self.len_bytes {
            return Err(MemoryError::OutOfRange {
                offset_bytes: range.start,
                len_bytes: range.end.saturating_sub(range.start),
                memory_bytes: self.len_bytes,
            });
        }
        Ok(self.offset_bytes + range.start..self.offset_bytes + range.end)
    }
}

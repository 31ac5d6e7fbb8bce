//! Copies, words and checksums.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fold::{BLOCK_BYTES, fold};
use super::{Memory, MemoryError, to_u64, to_usize};
use crate::checksum::Crc64;

/// Bytes that cannot be folded are checksummed from a private copy of this size, which stays in the first-level cache. Much smaller, and the
/// fixed cost of a step shows; larger, and the copy leaves the cache.
const BOUNCE_BYTES: usize = 16 << 10;
/// The same for short ranges, where clearing a larger copy would show.
const SMALL_BOUNCE_BYTES: usize = 512;
/// Shorter ranges are not worth the seams of folding.
const FOLD_MIN_BYTES: usize = 2 << 10;
const CACHE_LINE_BYTES: usize = 64;

impl Memory {
    /// Copies `bytes` to `offset_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_in(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let to = self.address(offset_bytes, to_u64(bytes.len()))?;
        // SAFETY: `to` starts bytes.len() mapped bytes, and `self` keeps them mapped during the call. `bytes` is a Rust
        // reference, and none points into the mapping, so the two do not overlap.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Fills `bytes` from `offset_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_out(&self, offset_bytes: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let from = self.address(offset_bytes, to_u64(bytes.len()))?;
        // SAFETY: `from` starts bytes.len() mapped bytes, and `self` keeps them mapped during the call. `bytes` is a
        // Rust reference, and none points into the mapping, so the two do not overlap. Any byte is a valid u8.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies `range` to `to_offset_bytes` of `to`, which may be this memory too, overlapping or not.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] of either side.
    pub fn copy_within(&self, range: Range<u64>, to: &Self, to_offset_bytes: u64) -> Result<(), MemoryError> {
        let (from, len) = self.address_of(&range)?;
        let to = to.address(to_offset_bytes, to_u64(len))?;
        // SAFETY: both start `len` mapped bytes, kept mapped by `self` and `to` during the call; ptr::copy allows
        // overlap.
        unsafe { ptr::copy(from, to, len) };
        Ok(())
    }

    /// Stores one aligned word atomically.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::Misaligned`].
    ///
    /// # Panics
    /// If `ordering` is no ordering for a store.
    pub fn store_u64(&self, offset_bytes: u64, value: u64, ordering: Ordering) -> Result<(), MemoryError> {
        self.word(offset_bytes)?.store(value, ordering);
        Ok(())
    }

    /// Loads one aligned word atomically.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::Misaligned`].
    ///
    /// # Panics
    /// If `ordering` is no ordering for a load.
    pub fn load_u64(&self, offset_bytes: u64, ordering: Ordering) -> Result<u64, MemoryError> {
        Ok(self.word(offset_bytes)?.load(ordering))
    }

    fn word(&self, offset_bytes: u64) -> Result<&AtomicU64, MemoryError> {
        let word = self.address(offset_bytes, 8)?.cast::<u64>();
        if !word.is_aligned() {
            return Err(MemoryError::Misaligned { offset_bytes });
        }
        // SAFETY: aligned (checked), eight mapped bytes that `self`, and so the returned borrow, keeps mapped. Others
        // write this word atomically, or not at all while it is in use as a word: words and payload do not share
        // addresses.
        Ok(unsafe { AtomicU64::from_ptr(word) })
    }

    /// CRC-64/NVME of the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn crc64(&self, range: Range<u64>) -> Result<u64, MemoryError> {
        let mut crc = Crc64::new();
        self.crc64_into(&mut crc, range)?;
        Ok(crc.value())
    }

    /// Adds the range to a checksum in the making.
    pub(crate) fn crc64_into(&self, crc: &mut Crc64, range: Range<u64>) -> Result<(), MemoryError> {
        let (from, len) = self.address_of(&range)?;
        if len < FOLD_MIN_BYTES {
            return self.bounce(crc, range);
        }
        // Loads that straddle cache lines cost twice as much.
        let head = from.addr().wrapping_neg() % CACHE_LINE_BYTES;
        let blocks = (len - head) / BLOCK_BYTES;
        let body = range.start + to_u64(head);
        let tail = body + to_u64(blocks * BLOCK_BYTES);
        self.bounce(crc, range.start..body)?;
        // SAFETY: head and blocks lie inside the range, all of which is mapped, and `self` keeps it mapped during the
        // call.
        match unsafe { fold(from.wrapping_add(head), blocks, crc.state()) } {
            Some(folded) => crc.restart(&folded),
            None => self.bounce(crc, body..tail)?,
        }
        self.bounce(crc, tail..range.end)
    }

    /// Adds the range to a checksum by way of a private copy.
    fn bounce(&self, crc: &mut Crc64, range: Range<u64>) -> Result<(), MemoryError> {
        if range.end - range.start <= to_u64(SMALL_BOUNCE_BYTES) {
            self.bounce_by::<SMALL_BOUNCE_BYTES>(crc, range)
        } else {
            self.bounce_by::<BOUNCE_BYTES>(crc, range)
        }
    }

    fn bounce_by<const N: usize>(&self, crc: &mut Crc64, range: Range<u64>) -> Result<(), MemoryError> {
        if range.is_empty() {
            return Ok(());
        }
        let mut bounce = [0; N];
        for start in range.clone().step_by(N) {
            let piece = &mut bounce[..N.min(to_usize(range.end - start))];
            self.copy_out(start, piece)?;
            crc.update(piece);
        }
        Ok(())
    }
}

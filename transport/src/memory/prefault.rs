//! Giving pages their memory ahead of use.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use super::mapping::{GATHERED_BYTES, system};
use super::{Memory, MemoryError, to_usize};
use crate::limits::{PREFAULT_SLICE_BYTES, PREFAULT_THREADS_MAX};

impl Memory {
    /// Gives every page of the range its memory now, in parallel slices, without changing content. `progress` gets the
    /// number of bytes done so far, from several threads.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`]; [`MemoryError::System`] if the system has not enough memory.
    pub fn prefault(&self, range: Range<u64>, progress: &(dyn Fn(u64) + Sync)) -> Result<(), MemoryError> {
        self.address_of(&range)?;
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(PREFAULT_THREADS_MAX);
        let next = AtomicU64::new(range.start);
        let done_bytes = AtomicU64::new(0);
        let failure = Mutex::new(None);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while failure.lock().is_none() {
                        let start = next.fetch_add(PREFAULT_SLICE_BYTES, Ordering::Relaxed);
                        if start >= range.end {
                            return;
                        }
                        let end = range.end.min(start.saturating_add(PREFAULT_SLICE_BYTES));
                        self.gather(start..end);
                        if let Err(error) = self.populate(start..end) {
                            *failure.lock() = Some(error);
                            return;
                        }
                        let slice_bytes = end - start;
                        progress(done_bytes.fetch_add(slice_bytes, Ordering::Relaxed) + slice_bytes);
                    }
                });
            }
        });
        failure.into_inner().map_or(Ok(()), |source| {
            Err(system("prefault", "memory", range.end - range.start)(source))
        })
    }

    /// Puts the pages of the range together to huge ones where the mapping is for that and the system can: copies by
    /// the kernel then miss fewer translations of addresses.
    fn gather(&self, range: Range<u64>) {
        if !self.mapping.gathers() {
            return;
        }
        let first = range.start.next_multiple_of(GATHERED_BYTES);
        let end = range.end - range.end % GATHERED_BYTES;
        let Some(len_bytes) = end.checked_sub(first).filter(|len_bytes| *len_bytes > 0) else {
            return;
        };
        let Ok(start) = self.address(first, len_bytes) else {
            return;
        };
        // Where there is nothing at all, nothing is gathered.
        let blocks = (first..end).step_by(to_usize(GATHERED_BYTES));
        if blocks
            .map(|block| self.populate(block..block + 1))
            .any(|done| done.is_err())
        {
            return;
        }
        // SAFETY: gathering changes no content and no address. The range lies inside `self`, which keeps it mapped
        // during the call.
        let result = unsafe { libc::madvise(start.cast(), to_usize(len_bytes), libc::MADV_COLLAPSE) };
        if result != 0 {
            // A kernel before 6.1, or memory in too small pieces.
            let error = io::Error::last_os_error();
            tracing::debug!(%error, len_bytes, "pages stay as small as they are");
        }
    }

    /// Populates the pages that the range touches, which lies inside.
    fn populate(&self, range: Range<u64>) -> io::Result<()> {
        let (start, len) = self.address_of(&range).map_err(io::Error::other)?;
        let page_bytes = to_usize(self.page_bytes());
        let before = start.addr() % page_bytes;
        let aligned = start.wrapping_sub(before);
        // SAFETY: populating changes no content and maps nothing anew. The range lies inside mapped pages, rounded down
        // to the start of its first page, which is mapped as a whole; `self` keeps them mapped during the call.
        let result = unsafe { libc::madvise(aligned.cast(), len + before, libc::MADV_POPULATE_WRITE) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // A kernel before 5.14: touch a byte of each page.
        for offset in (0..len).step_by(page_bytes) {
            self.touch(start.wrapping_add(offset));
        }
        Ok(())
    }

    /// Writes one mapped byte without changing it.
    fn touch(&self, byte: *mut u8) {
        debug_assert!((byte.addr() - self.mapping.start().addr()) < to_usize(self.len_bytes()));
        // SAFETY: one mapped byte of `self`, which keeps it mapped; an atomic of one byte has no alignment to keep.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.fetch_or(0, Ordering::Relaxed);
    }
}

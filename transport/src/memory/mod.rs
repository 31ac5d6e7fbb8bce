//! Memory that several parties touch at once, reached by copy through raw pointers only.
//!
//! A Rust reference to such memory would be undefined behaviour, so none is ever made.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

/// Whether memory must, should or must not lie on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HugePages {
    /// Fail without them.
    Require,
    /// Take them if the host has enough free, else ordinary pages: [`Memory::page_bytes`] tells which.
    Prefer,
    /// Ordinary pages.
    Off,
}

/// Why memory could not be had or reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The range does not lie inside the memory.
    #[error("{len_bytes} bytes at {offset_bytes} do not lie inside the memory of {memory_bytes} bytes")]
    OutOfRange {
        /// Start of the range that was asked for.
        offset_bytes: u64,
        /// Length of the range that was asked for.
        len_bytes: u64,
        /// Length of the memory.
        memory_bytes: u64,
    },
    /// A word access that is not at a multiple of eight bytes.
    #[error("offset {offset_bytes} is not aligned to 8 bytes")]
    Misaligned {
        /// Where the word was asked for.
        offset_bytes: u64,
    },
    /// No memory has this length.
    #[error("cannot map {len_bytes} bytes")]
    Length {
        /// The length that was asked for.
        len_bytes: u64,
    },
    /// Huge pages were required and there are not enough.
    #[error("cannot map {len_bytes} bytes on huge pages: {source} (see /proc/sys/vm/nr_hugepages)")]
    HugePages {
        /// The length that was asked for.
        len_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The file lies on a file system that is not memory.
    #[error("{} lies on {file_system}; only tmpfs and hugetlbfs hold segments", path.display())]
    FileSystem {
        /// The file.
        path: PathBuf,
        /// Name or magic number of the file system.
        file_system: String,
    },
    /// Another process holds the file.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("cannot {operation} {len_bytes} bytes of {what}: {source}")]
    System {
        /// The operation.
        operation: &'static str,
        /// The memory's name.
        what: String,
        /// The length concerned.
        len_bytes: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// An owned mapping. Always used as `Arc<Memory>`: whoever may touch it holds a count.
pub struct Memory {}

impl Memory {
    /// Private zeroed memory of this process.
    ///
    /// # Errors
    /// [`MemoryError::Length`] for zero, [`MemoryError::System`] if the system has none.
    pub fn anonymous(_len_bytes: u64) -> Result<Self, MemoryError> {
        unimplemented!()
    }

    /// Zeroed memory that can be shared with other processes, named for `/proc`.
    ///
    /// # Errors
    /// As [`Memory::anonymous`]; [`MemoryError::HugePages`] if they are required and missing.
    pub fn memfd(_name: &str, _len_bytes: u64, _huge_pages: HugePages) -> Result<Self, MemoryError> {
        unimplemented!()
    }

    /// Memory in a file on tmpfs or hugetlbfs, created or emptied for us and locked against other processes.
    ///
    /// # Errors
    /// [`MemoryError::FileSystem`] elsewhere, [`MemoryError::InUse`] if another process has it.
    pub fn file(_path: &Path, _len_bytes: u64) -> Result<Self, MemoryError> {
        unimplemented!()
    }

    /// Takes over a vector: private memory with its content.
    #[must_use]
    pub fn from_vec(_bytes: Vec<u8>) -> Self {
        unimplemented!()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Size in bytes of the pages it lies on.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        unimplemented!()
    }

    /// Gives every page of the range its memory now, in parallel slices, without changing content. `progress` gets the number
    /// of bytes done so far, from several threads.
    ///
    /// # Errors
    /// [`MemoryError::System`] if the system has not enough memory.
    pub fn prefault(&self, _range: Range<u64>, _progress: &(dyn Fn(u64) + Sync)) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Copies `bytes` to `offset_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_in(&self, _offset_bytes: u64, _bytes: &[u8]) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Fills `bytes` from `offset_bytes`.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_out(&self, _offset_bytes: u64, _bytes: &mut [u8]) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Copies `range` to `to_offset_bytes` of `to`, which may be this memory too, overlapping or not.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`] of either side.
    pub fn copy_within(&self, _range: Range<u64>, _to: &Self, _to_offset_bytes: u64) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Stores one aligned word atomically.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::Misaligned`].
    pub fn store_u64(&self, _offset_bytes: u64, _value: u64, _ordering: Ordering) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Loads one aligned word atomically.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`], [`MemoryError::Misaligned`].
    pub fn load_u64(&self, _offset_bytes: u64, _ordering: Ordering) -> Result<u64, MemoryError> {
        unimplemented!()
    }

    /// CRC-64/NVME of the range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn crc64(&self, _range: Range<u64>) -> Result<u64, MemoryError> {
        unimplemented!()
    }

    /// Receives from a socket into the range without blocking, at most its length. Zero: the peer has closed.
    ///
    /// # Errors
    /// The system's, `WouldBlock` included; `InvalidInput` if the range does not lie inside.
    pub fn recv_from(&self, _fd: BorrowedFd<'_>, _range: Range<u64>) -> io::Result<usize> {
        unimplemented!()
    }

    /// Sends `header` and then the range to a socket without blocking; returns how many bytes of both together went.
    ///
    /// # Errors
    /// The system's, `WouldBlock` included; `InvalidInput` if the range does not lie inside.
    pub fn send_to(&self, _fd: BorrowedFd<'_>, _header: &[u8], _range: Range<u64>) -> io::Result<usize> {
        unimplemented!()
    }

    /// A counted reference to a range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice(self: &Arc<Self>, _range: Range<u64>) -> Result<Slice, MemoryError> {
        unimplemented!()
    }

    /// A counted reference to all of it.
    #[must_use]
    pub fn whole(self: &Arc<Self>) -> Slice {
        unimplemented!()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len_bytes", &self.len_bytes())
            .finish_non_exhaustive()
    }
}

/// A counted reference to a range of a [`Memory`]: whoever holds it keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Slice {
    memory: Arc<Memory>,
    offset_bytes: u64,
    len_bytes: u64,
}

impl Slice {
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

    /// A part of it; offsets count from its start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn subslice(&self, _range: Range<u64>) -> Result<Self, MemoryError> {
        unimplemented!()
    }

    /// Copies `bytes` to `offset_bytes`, counted from the slice's start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_in(&self, _offset_bytes: u64, _bytes: &[u8]) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// Fills `bytes` from `offset_bytes`, counted from the slice's start.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn copy_out(&self, _offset_bytes: u64, _bytes: &mut [u8]) -> Result<(), MemoryError> {
        unimplemented!()
    }

    /// CRC-64/NVME of the whole slice.
    #[must_use]
    pub fn crc64(&self) -> u64 {
        unimplemented!()
    }

    /// A copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        unimplemented!()
    }

    /// Turns the slice into [`Bytes`] without a copy, if nobody else can touch the memory: it is private to this process
    /// (anonymous or from a vector) and this slice is the last reference to it. That check, not the caller, guarantees that
    /// all writers are done.
    ///
    /// # Errors
    /// Gives the slice back if the memory is shared or referenced elsewhere: drop the other references first, or use
    /// [`Slice::to_vec`].
    pub fn into_bytes(self) -> Result<Bytes, Self> {
        unimplemented!()
    }
}

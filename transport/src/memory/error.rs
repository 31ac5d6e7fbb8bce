//! How memory may fail.

use std::io;
use std::path::PathBuf;

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
    #[error("{path:?} lies on {file_system}; only tmpfs and hugetlbfs hold segments")]
    FileSystem {
        /// The file.
        path: PathBuf,
        /// Name or magic number of the file system.
        file_system: String,
    },
    /// Another process, or other memory of this one, holds the file.
    #[error("{path:?} is in use")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be had.
    #[error("cannot {operation} {path:?}: {source}")]
    File {
        /// The operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
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

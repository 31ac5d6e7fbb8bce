//! Memory that several parties touch at once, reached by copy through raw pointers only.
//!
//! A Rust reference to memory that another thread, process or device may write is undefined behaviour, so none is ever
//! made: bytes are copied in and out, words are atomic, sockets are handed the address. Where such copies race with a
//! writer, the bytes are whatever they are and are judged by checksum and stamp before anyone believes them.
//!
//! One of two places of the crate with `unsafe` code; the other is `verbs/raw.rs`. What the blocks here rely on:
//!
//! * A [`Memory`] owns its mapping and gives it back on drop alone; [`Slice`]s count references to it. So an address
//!   computed inside a method with `&self` stays mapped, readable and writable for the whole call.
//! * Every address is computed by one function, `Memory::address`, which checks the range first.
//! * No reference into the mapping exists while a `Memory` exists that somebody else can reach; `bytes.rs` makes one
//!   only from a `Memory` that it owns alone.

#![allow(
    unsafe_code,
    reason = "raw access to shared mappings: the one place where it is needed"
)]

mod access;
mod bytes;
mod error;
mod fold;
mod mapping;
mod prefault;
mod slice;
mod socket;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use error::MemoryError;
pub use slice::Slice;
pub(crate) use socket::set_receive_mark;

use mapping::Mapping;

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

/// An owned mapping. Always used as `Arc<Memory>`: whoever may touch it holds a count.
pub struct Memory {
    mapping: Mapping,
}

impl Memory {
    /// Private zeroed memory of this process.
    ///
    /// # Errors
    /// [`MemoryError::Length`] for zero, [`MemoryError::System`] if the system has none.
    pub fn anonymous(len_bytes: u64) -> Result<Self, MemoryError> {
        Mapping::anonymous(len_bytes).map(Self::from)
    }

    /// Zeroed memory that can be shared with other processes, named for `/proc`.
    ///
    /// # Errors
    /// As [`Memory::anonymous`]; [`MemoryError::HugePages`] if they are required and missing.
    pub fn memfd(name: &str, len_bytes: u64, huge_pages: HugePages) -> Result<Self, MemoryError> {
        Mapping::memfd(name, len_bytes, huge_pages).map(Self::from)
    }

    /// Memory in a file on tmpfs or hugetlbfs, created or emptied for us and locked against other processes while this
    /// lives. The file stays when it is dropped. Prefault it before use: a full file system shows there as an error,
    /// later as SIGBUS.
    ///
    /// # Errors
    /// [`MemoryError::FileSystem`] elsewhere, [`MemoryError::InUse`] if another process has it.
    pub fn file(path: &Path, len_bytes: u64) -> Result<Self, MemoryError> {
        Mapping::file(path, len_bytes).map(Self::from)
    }

    /// Takes over a vector: private memory with its content.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Mapping::from_vec(bytes).into()
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.mapping.len_bytes()
    }

    /// Size in bytes of the pages it lies on.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.mapping.page_bytes()
    }

    /// A counted reference to a range.
    ///
    /// # Errors
    /// [`MemoryError::OutOfRange`].
    pub fn slice(self: &Arc<Self>, range: Range<u64>) -> Result<Slice, MemoryError> {
        self.whole().subslice(range)
    }

    /// A counted reference to all of it.
    #[must_use]
    pub fn whole(self: &Arc<Self>) -> Slice {
        Slice::whole(Arc::clone(self))
    }

    /// The address of `len_bytes` bytes at `offset_bytes`, all of which are mapped while `self` lives.
    fn address(&self, offset_bytes: u64, len_bytes: u64) -> Result<*mut u8, MemoryError> {
        let memory_bytes = self.len_bytes();
        match offset_bytes.checked_add(len_bytes) {
            Some(end) if end <= memory_bytes => Ok(self.mapping.start().wrapping_add(to_usize(offset_bytes))),
            _ => Err(MemoryError::OutOfRange {
                offset_bytes,
                len_bytes,
                memory_bytes,
            }),
        }
    }

    /// As [`Memory::address`], with the length of the range as the system wants it.
    fn address_of(&self, range: &Range<u64>) -> Result<(*mut u8, usize), MemoryError> {
        let len_bytes = range.end.checked_sub(range.start).ok_or(MemoryError::OutOfRange {
            offset_bytes: range.start,
            len_bytes: 0,
            memory_bytes: self.len_bytes(),
        })?;
        Ok((self.address(range.start, len_bytes)?, to_usize(len_bytes)))
    }
}

impl From<Mapping> for Memory {
    fn from(mapping: Mapping) -> Self {
        Self { mapping }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len_bytes", &self.len_bytes())
            .field("page_bytes", &self.page_bytes())
            .finish_non_exhaustive()
    }
}

const _: () = assert!(
    usize::BITS == 64,
    "offsets into memory are u64 on the wire and usize in this process"
);

/// Offsets and lengths in this process.
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits: asserted above")]
const fn to_usize(value: u64) -> usize {
    value as usize
}

/// Lengths on the wire and in the interface.
const fn to_u64(value: usize) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests;

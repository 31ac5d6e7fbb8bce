//! Memory that only one owner can reach, as ordinary bytes.

use std::ops::Range;
use std::slice;

use super::Memory;

/// A range of a memory that nobody else can touch: no other process has it mapped, and no other reference to it exists.
pub(super) struct PrivateBytes {
    start: *const u8,
    len: usize,
    #[expect(dead_code, reason = "keeps the bytes; gives them back when dropped")]
    memory: Memory,
}

// SAFETY: it owns the memory, which may be sent; the pointer is into it.
unsafe impl Send for PrivateBytes {}
// SAFETY: through a shared reference the bytes can only be read, and nobody can write them.
unsafe impl Sync for PrivateBytes {}

impl PrivateBytes {
    /// Takes the memory over, and so the only way to touch it. Gives it back if other processes may have it mapped, or
    /// the range does not lie inside.
    pub(super) fn new(memory: Memory, range: Range<u64>) -> Result<Self, Memory> {
        match memory.address_of(&range) {
            Ok((start, len)) if memory.mapping.is_private() => Ok(Self {
                start: start.cast_const(),
                len,
                memory,
            }),
            _ => Err(memory),
        }
    }
}

impl AsRef<[u8]> for PrivateBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `len` mapped, initialised bytes at `start`, kept by `self.memory`. Nothing writes them while this
        // lives: the memory is private to the process (checked), and `self` owns the only `Memory` through which they
        // can be reached.
        unsafe { slice::from_raw_parts(self.start, self.len) }
    }
}

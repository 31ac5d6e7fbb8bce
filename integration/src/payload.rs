//! Bytes that say what they are, so that one test can tell any object's bytes from any other's.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};

/// Lengths around the borders that matter: one byte, below a TCP frame's minimum, exactly one piece.
pub const SMALL_LENGTHS: [usize; 3] = [1, (64 << 10) - 1, 1 << 20];
/// A large object: many pieces, more than one request in flight.
pub const LARGE_LENGTH: usize = 200 << 20;

/// Random bytes are repeated after so many: a prime, so that no two pieces of an object are alike.
const BLOCK_BYTES: usize = 65_521;

/// `len` bytes that are the same for the same `seed`, and differ between seeds almost everywhere: random blocks, each with its number in front.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut block = vec![0; len.min(BLOCK_BYTES)];
    StdRng::seed_from_u64(seed).fill(&mut block[..]);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let start = bytes.len();
        bytes.extend_from_slice(&block[..(len - start).min(BLOCK_BYTES)]);
        for (byte, number) in bytes[start..].iter_mut().zip((start as u64).to_le_bytes()) {
            *byte ^= number;
        }
    }
    bytes
}

/// Panics if `found` is not `expected`, with the first difference instead of both texts.
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if found == expected {
        return;
    }
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!(
            "{what}: byte {at} is {:#04x} instead of {:#04x}",
            found[at], expected[at]
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_reproducible_and_tell_seed_and_place() {
        assert_eq!(payload(1, 3 * BLOCK_BYTES + 5), payload(1, 3 * BLOCK_BYTES + 5));
        assert_ne!(payload(1, 1000), payload(2, 1000));
        let bytes = payload(1, 3 * BLOCK_BYTES);
        assert_ne!(bytes[..BLOCK_BYTES], bytes[BLOCK_BYTES..2 * BLOCK_BYTES]);
    }
}

//! Bytes that say what they are, so that one test can tell any object's bytes from any other's.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng};

/// Lengths around the borders that matter: one byte, below a TCP frame's minimum, exactly one piece.
pub const SMALL_LENGTHS: [usize; 3] = [1, (64 << 10) - 1, 1 << 20];
/// A large object: many pieces, more than one request in flight.
pub const LARGE_LENGTH: usize = 200 << 20;

/// `len` bytes that are the same for the same `seed`, and differ between seeds almost everywhere.
pub fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    StdRng::seed_from_u64(seed).fill(&mut bytes[..]);
    bytes
}

/// Panics if `found` is not `expected`, with the first difference instead of both texts.
pub fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!(
            "{what}: byte {at} is {:#04x} instead of {:#04x}",
            found[at], expected[at]
        );
    }
}

//! CRC-64/NVME over pieces of [`PIECE_BYTES`] and over the whole object. The checksum of a whole is combined from its
//! pieces
//! without reading the bytes again.

use crate::limits::PIECE_BYTES;
use crc_fast::CrcAlgorithm::Crc64Nvme;
use serde::{Deserialize, Serialize};

/// CRC-64/NVME of `bytes`.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// CRC-64/NVME of a first part followed by a second part of `second_len_bytes`.
///
/// A checksum is the remainder of a polynomial, so the first part's is multiplied by x to the power of the bits that
/// follow it. (`crc_fast` combines
/// by squaring matrices, which takes longer than sending the piece.)
pub fn combine(first: u64, second: u64, second_len_bytes: u64) -> u64 {
    let mut shifted = first;
    let mut rest = second_len_bytes;
    while rest != 0 {
        shifted = multiply(POWERS[rest.trailing_zeros() as usize], shifted);
        rest &= rest - 1;
    }
    shifted ^ second
}

/// The polynomial of CRC-64/NVME, its highest coefficient in the lowest bit as everywhere in this algorithm, without
/// x^64.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x to the power of 8 · 2^index: what a checksum is multiplied by when 2^index bytes follow.
const POWERS: [u64; 64] = {
    // x^8; the coefficient of x^0 is the highest bit.
    let mut power = 1 << (63 - 8);
    let mut powers = [0; 64];
    let mut at = 0;
    while at < 64 {
        powers[at] = power;
        power = multiply(power, power);
        at += 1;
    }
    powers
};

/// The product of two polynomials, modulo the polynomial of the checksum.
const fn multiply(a: u64, mut b: u64) -> u64 {
    let mut product = 0;
    let mut coefficients = a;
    while coefficients != 0 {
        if coefficients >> 63 != 0 {
            product ^= b;
        }
        coefficients <<= 1;
        b = if b & 1 == 0 { b >> 1 } else { b >> 1 ^ POLYNOMIAL };
    }
    product
}

/// How many pieces an object of `len_bytes` has.
pub const fn piece_count(len_bytes: u64) -> u64 {
    len_bytes.div_ceil(PIECE_BYTES)
}

/// The length of piece `index` of an object of `len_bytes`; 0 beyond its end.
pub const fn piece_len_bytes(len_bytes: u64, index: u64) -> u64 {
    let start = index * PIECE_BYTES;
    if start >= len_bytes {
        return 0;
    }
    let rest = len_bytes - start;
    if rest < PIECE_BYTES { rest } else { PIECE_BYTES }
}

/// The checksums of one object: one per piece, and the whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksums {
    /// Of all bytes.
    pub whole: u64,
    /// Of each piece, in order.
    pub pieces: Vec<u64>,
}

impl Checksums {
    /// The checksums of an object of `len_bytes` from those of its pieces.
    pub fn from_pieces(len_bytes: u64, pieces: Vec<u64>) -> Self {
        let whole = combine_pieces(len_bytes, &pieces);
        Self { whole, pieces }
    }

    /// The checksums of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let piece_bytes = usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX);
        Self::from_pieces(bytes.len() as u64, bytes.chunks(piece_bytes).map(crc64).collect())
    }

    /// Whether there is one checksum per piece of `len_bytes` and they combine to the whole.
    pub fn is_consistent(&self, len_bytes: u64) -> bool {
        self.pieces.len() as u64 == piece_count(len_bytes) && combine_pieces(len_bytes, &self.pieces) == self.whole
    }
}

/// The checksum of a whole of `len_bytes` from its pieces'.
pub fn combine_pieces(len_bytes: u64, pieces: &[u64]) -> u64 {
    let lengths = (0..).map(|index| piece_len_bytes(len_bytes, index));
    pieces
        .iter()
        .zip(lengths)
        .fold(None, |whole, (&piece, piece_len)| match whole {
            None => Some(piece),
            Some(whole) => Some(combine(whole, piece, piece_len)),
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_algorithm_is_crc_64_nvme() {
        assert_eq!(crc64(b"123456789"), 0xAE8B_1486_0A79_9888);
    }

    proptest! {
        #[test]
        fn combining_is_what_the_library_says(first: u64, second: u64, second_len_bytes: u64, bits in 0u32..64) {
            let second_len_bytes = second_len_bytes >> bits;
            let expected = crc_fast::checksum_combine(Crc64Nvme, first, second, second_len_bytes);
            prop_assert_eq!(combine(first, second, second_len_bytes), expected);
        }
    }

    #[test]
    fn parts_of_any_lengths_combine() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i.wrapping_mul(i).to_le_bytes()[2]).collect();
        for cut in [0, 1, 63, 64, 4_095, 34_464, 99_999, 100_000] {
            let (first, second) = bytes.split_at(cut);
            let combined = combine(crc64(first), crc64(second), second.len() as u64);
            assert_eq!(combined, crc64(&bytes), "cut at {cut}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn pieces_combine_to_the_whole(extra in 0usize..3 * (1 << 20), seed: u8) {
            let bytes: Vec<u8> = (0..=extra).map(|i| (i.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ seed).collect();
            let sums = Checksums::of(&bytes);
            prop_assert_eq!(sums.whole, crc64(&bytes));
            prop_assert!(sums.is_consistent(bytes.len() as u64));
            prop_assert!(!sums.is_consistent(bytes.len() as u64 + PIECE_BYTES));
        }
    }

    #[test]
    fn piece_lengths_add_up() {
        for len in [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES + 7] {
            let sum: u64 = (0..piece_count(len)).map(|i| piece_len_bytes(len, i)).sum();
            assert_eq!(sum, len);
            assert_eq!(piece_len_bytes(len, piece_count(len)), 0);
        }
    }
}

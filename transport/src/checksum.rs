//! CRC-64/NVME: the checksum of bytes on the move. It combines across pieces.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of `bytes`.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// Checksum of two pieces put together, from the checksum of each and the length of the second.
///
/// The first is multiplied by x to the power of the second's length in bits. That power is put together from a table,
/// so the cost is one short product for each set bit of the length.
#[must_use]
pub fn combine(first: u64, second: u64, second_len_bytes: u64) -> u64 {
    let mut shifted = first;
    for (bit, power) in POWERS.iter().enumerate() {
        if second_len_bytes >> bit & 1 == 1 {
            shifted = product(shifted, *power);
        }
    }
    shifted ^ second
}

/// The polynomial of CRC-64/NVME, lowest power in the highest bit, as all polynomials here.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// x to the power of 8 · 2^i: the factors for 2^i bytes.
const POWERS: [u64; 64] = {
    let mut powers = [0; 64];
    let mut power = 1 << (63 - 8);
    let mut i = 0;
    while i < 64 {
        powers[i] = power;
        power = product(power, power);
        i += 1;
    }
    powers
};

/// x to this power, modulo [`POLYNOMIAL`].
pub(crate) const fn power(exponent: u64) -> u64 {
    let mut power = 1 << (63 - exponent % 8);
    let mut bit = 0;
    while bit < 61 {
        if (exponent / 8) >> bit & 1 == 1 {
            power = product(power, POWERS[bit]);
        }
        bit += 1;
    }
    power
}

/// Product of two polynomials, modulo [`POLYNOMIAL`].
const fn product(a: u64, mut b: u64) -> u64 {
    let mut sum = 0;
    let mut bit = 64;
    while bit > 0 {
        bit -= 1;
        if a >> bit & 1 == 1 {
            sum ^= b;
        }
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    sum
}

/// A checksum in the making.
#[derive(Clone, Debug)]
pub struct Crc64 {
    digest: crc_fast::Digest,
}

impl Crc64 {
    /// The checksum of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            digest: crc_fast::Digest::new(Crc64Nvme),
        }
    }

    /// Adds bytes at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// What the bytes so far leave behind for the next ones.
    pub(crate) fn state(&self) -> u64 {
        self.digest.get_state()
    }

    /// Goes on as if there had been these bytes alone, from state zero on.
    pub(crate) fn restart(&mut self, bytes: &[u8]) {
        self.digest = crc_fast::Digest::new_with_init_state(Crc64Nvme, 0);
        self.digest.update(bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.digest.finalize()
    }
}

impl Default for Crc64 {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_value_and_combines() {
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        let mut running = Crc64::new();
        running.update(b"1234");
        running.update(b"56789");
        assert_eq!(running.value(), crc64(b"123456789"));
        assert_eq!(combine(crc64(b"1234"), crc64(b"56789"), 5), crc64(b"123456789"));
        assert_eq!(combine(crc64(b"1234"), crc64(b""), 0), crc64(b"1234"));
    }

    #[test]
    fn pieces_of_any_length_combine() {
        let bytes: Vec<u8> = (0..300_000_u32)
            .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
            .collect();
        for cut in [0, 1, 7, 8, 1_000, 65_536, 262_143, 299_999, 300_000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(
                combine(crc64(first), crc64(second), second.len() as u64),
                crc64(&bytes),
                "cut at {cut}"
            );
        }
    }
}

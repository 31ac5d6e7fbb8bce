//! CRC-64/NVME: the checksum of bytes on the move. It combines across pieces.

use crc_fast::CrcAlgorithm::Crc64Nvme;

/// CRC-64/NVME of `bytes`.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
}

/// Checksum of two pieces put together, from the checksum of each and the length of the second.
#[must_use]
pub fn combine(first: u64, second: u64, second_len_bytes: u64) -> u64 {
    crc_fast::checksum_combine(Crc64Nvme, first, second, second_len_bytes)
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
}

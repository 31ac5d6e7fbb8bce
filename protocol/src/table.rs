//! The table beside a segment: what a reader needs to know of a region, and what a later process needs to adopt the
//! segment.
//!
//! The table is one mapping of its own with three parts:
//!
//! | part | entry | indexed by |
//! |---|---|---|
//! | descriptors | [`Descriptor`], one aligned 64-byte line | slot |
//! | rows | [`KeyRow`], 1,216 bytes | slot |
//! | piece sums | CRC-64/NVME of a full piece, 8 bytes | the MiB boundary of the segment that the piece covers |
//!
//! *Piece sums.* Piece p of an object at segment offset o covers the bytes o + p MiB up to (not including) o + (p + 1)
//! MiB. If the piece is full,
//! exactly one multiple of 1 MiB lies in (o + p MiB, o + (p + 1) MiB], and since regions do not overlap, no other full
//! piece covers it. So
//! the boundary names the piece, the table needs 8 bytes per MiB whatever the objects' sizes are, and the sums of one
//! object are contiguous.
//! A last piece that is not full has its sum in the row.
//!
//! *Order.* The owner seals by writing the piece sums, the row and the descriptor's first 56 bytes, and then the
//! generation with one
//! 8-byte release store. It invalidates with one 8-byte store of [`Generation::NONE`] before the region or the slot is
//! used again. A reader reads the
//! payload first, then sums, row and descriptor; the same generation in the row and the descriptor, and a row whose
//! checksum the
//! descriptor names, say that all of it belongs to one object. All integers are little-endian.

use crate::checksum::crc64;
use crate::ids::{Epoch, Generation, KeyHash, PutId, Slot, Version};
use crate::limits::{FINGERPRINT_LEN_BYTES_MAX, KEY_LEN_BYTES_MAX, NAMESPACE_LEN_BYTES_MAX, PIECE_BYTES};
use crate::name::{Namespace, ObjectName};

/// Size of a descriptor.
pub const DESCRIPTOR_BYTES: usize = 64;
/// Where the generation lies in a descriptor: its last 8 bytes.
pub const GENERATION_AT_BYTE: usize = 56;
/// Size of a row before the name.
pub const ROW_HEADER_BYTES: usize = 128;
/// Size of a row.
pub const ROW_BYTES: usize = 1216;
/// Size of one piece sum.
pub const SUM_BYTES: u64 = 8;

const MAGIC: u32 = u32::from_le_bytes(*b"TNDS");
const FORMAT_VERSION: u16 = 1;
const STATE_SEALED: u8 = 1;

const _: () = assert!(ROW_HEADER_BYTES + NAMESPACE_LEN_BYTES_MAX + KEY_LEN_BYTES_MAX <= ROW_BYTES);
const _: () = assert!(ROW_BYTES.is_multiple_of(64));

/// Why bytes of a table describe no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The slot's generation is [`Generation::NONE`].
    #[error("the slot describes no object")]
    Vacant,
    /// Not the magic, format version, state or reserved bits that this version writes.
    #[error("the {part} has {field} {value:#x}, which this version does not write")]
    Field {
        /// `descriptor` or `row`.
        part: &'static str,
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Fewer bytes than the format has.
    #[error("the {part} has {len_bytes} bytes, {needed_bytes} are needed")]
    Short {
        /// `descriptor` or `row`.
        part: &'static str,
        /// What there was.
        len_bytes: usize,
        /// What is needed.
        needed_bytes: usize,
    },
    /// The row's name is no valid object name.
    #[error("the row names no object")]
    Name,
}

/// What a slot says of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Which key.
    pub key_hash: KeyHash,
    /// Payload length.
    pub len_bytes: u64,
    /// CRC-64/NVME of the whole payload.
    pub checksum: u64,
    /// CRC-64/NVME of the row's used bytes (header and name).
    pub row_checksum: u64,
    /// Which use of the region.
    pub generation: Generation,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn id_at(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[at..at + 16]);
    id
}

impl Descriptor {
    /// The line as it lies in the table.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        let mut line = [0; DESCRIPTOR_BYTES];
        line[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        line[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        line[6] = STATE_SEALED;
        line[8..24].copy_from_slice(&self.key_hash.to_bytes());
        line[24..32].copy_from_slice(&self.len_bytes.to_le_bytes());
        line[32..40].copy_from_slice(&self.checksum.to_le_bytes());
        line[40..48].copy_from_slice(&self.row_checksum.to_le_bytes());
        line[GENERATION_AT_BYTE..].copy_from_slice(&self.generation.0.to_le_bytes());
        line
    }

    /// Reads a line.
    pub fn decode(line: &[u8; DESCRIPTOR_BYTES]) -> Result<Self, TableError> {
        let generation = Generation(u64_at(line, GENERATION_AT_BYTE));
        if generation == Generation::NONE {
            return Err(TableError::Vacant);
        }
        let head = u64_at(line, 0);
        let expected = u64::from(MAGIC) | u64::from(FORMAT_VERSION) << 32 | u64::from(STATE_SEALED) << 48;
        if head != expected {
            return Err(TableError::Field {
                part: "descriptor",
                field: "head",
                value: head,
            });
        }
        if u64_at(line, 48) != 0 {
            return Err(TableError::Field {
                part: "descriptor",
                field: "reserved",
                value: u64_at(line, 48),
            });
        }
        Ok(Self {
            key_hash: KeyHash::from_bytes(id_at(line, 8)),
            len_bytes: u64_at(line, 24),
            checksum: u64_at(line, 32),
            row_checksum: u64_at(line, 40),
            generation,
        })
    }
}

/// What only fits beside the descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRow {
    /// The same as the descriptor's.
    pub generation: Generation,
    /// Where the region begins in the segment.
    pub offset_bytes: u64,
    /// Which object of the key.
    pub version: Version,
    /// CRC-64/NVME of the last piece if it is not full, else 0.
    pub tail_checksum: u64,
    /// When the object was sealed, by the owner's wall clock. For people; nothing is decided by it.
    pub sealed_unix_ms: u64,
    /// Stored with the object for a reader who wants it to match; empty if there is none.
    pub fingerprint: Vec<u8>,
    /// Namespace and key.
    pub name: ObjectName,
}

impl KeyRow {
    /// The row's used bytes: header and name.
    ///
    /// # Panics
    /// If the fingerprint is longer than [`FINGERPRINT_LEN_BYTES_MAX`], which the service refuses at the door.
    pub fn encode(&self) -> Vec<u8> {
        assert!(
            self.fingerprint.len() <= FINGERPRINT_LEN_BYTES_MAX,
            "fingerprint of {} bytes",
            self.fingerprint.len()
        );
        let (namespace, key) = (self.name.namespace().as_str(), self.name.key());
        let mut row = vec![0; ROW_HEADER_BYTES];
        row[0..8].copy_from_slice(&self.generation.0.to_le_bytes());
        row[8..16].copy_from_slice(&self.offset_bytes.to_le_bytes());
        row[16..24].copy_from_slice(&self.version.epoch.0.to_le_bytes());
        row[24..40].copy_from_slice(&self.version.put_id.to_bytes());
        row[40..48].copy_from_slice(&self.tail_checksum.to_le_bytes());
        row[48..56].copy_from_slice(&self.sealed_unix_ms.to_le_bytes());
        row[56] = low_byte(self.fingerprint.len());
        row[57] = low_byte(namespace.len());
        row[58] = low_byte(key.len());
        row[59] = low_byte(key.len() >> 8);
        row[64..64 + self.fingerprint.len()].copy_from_slice(&self.fingerprint);
        row.extend_from_slice(namespace.as_bytes());
        row.extend_from_slice(key.as_bytes());
        row
    }

    /// Reads a row of at least [`KeyRow::used_bytes`] for its name; more bytes are passed over.
    pub fn decode(row: &[u8]) -> Result<Self, TableError> {
        let short = |needed_bytes| TableError::Short {
            part: "row",
            len_bytes: row.len(),
            needed_bytes,
        };
        if row.len() < ROW_HEADER_BYTES {
            return Err(short(ROW_HEADER_BYTES));
        }
        let generation = Generation(u64_at(row, 0));
        if generation == Generation::NONE {
            return Err(TableError::Vacant);
        }
        let fingerprint_len = usize::from(row[56]);
        if fingerprint_len > FINGERPRINT_LEN_BYTES_MAX {
            return Err(TableError::Field {
                part: "row",
                field: "fingerprint length",
                value: u64::from(row[56]),
            });
        }
        let namespace_end = ROW_HEADER_BYTES + usize::from(row[57]);
        let key_end = namespace_end + (usize::from(row[58]) | usize::from(row[59]) << 8);
        let namespace = row.get(ROW_HEADER_BYTES..namespace_end).ok_or_else(|| short(key_end))?;
        let key = row.get(namespace_end..key_end).ok_or_else(|| short(key_end))?;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| TableError::Name);
        let namespace = Namespace::new(text(namespace)?).map_err(|_| TableError::Name)?;
        Ok(Self {
            generation,
            offset_bytes: u64_at(row, 8),
            version: Version {
                epoch: Epoch(u64_at(row, 16)),
                put_id: PutId::from_bytes(id_at(row, 24)),
            },
            tail_checksum: u64_at(row, 40),
            sealed_unix_ms: u64_at(row, 48),
            fingerprint: row[64..64 + fingerprint_len].to_vec(),
            name: ObjectName::new(&namespace, text(key)?).map_err(|_| TableError::Name)?,
        })
    }

    /// How many bytes of a row an object of this name uses.
    pub fn used_bytes(name: &ObjectName) -> usize {
        ROW_HEADER_BYTES + name.namespace().as_str().len() + name.key().len()
    }
}

fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

/// The checksum of a row that [`Descriptor::row_checksum`] holds.
pub fn row_checksum(used: &[u8]) -> u64 {
    crc64(used)
}

/// Where things lie in the table of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableLayout {
    slots: u32,
    segment_bytes: u64,
}

impl TableLayout {
    /// The layout for a segment of `segment_bytes` with `slots` descriptors.
    pub const fn new(segment_bytes: u64, slots: u32) -> Self {
        Self { slots, segment_bytes }
    }

    /// How many descriptors there are.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// The table's length.
    pub const fn len_bytes(&self) -> u64 {
        self.sums_at() + self.segment_bytes / PIECE_BYTES * SUM_BYTES
    }

    /// Where the descriptor of `slot` begins.
    pub const fn descriptor_at(&self, slot: Slot) -> u64 {
        slot.0 as u64 * DESCRIPTOR_BYTES as u64
    }

    /// Where the row of `slot` begins.
    pub const fn row_at(&self, slot: Slot) -> u64 {
        self.slots as u64 * DESCRIPTOR_BYTES as u64 + slot.0 as u64 * ROW_BYTES as u64
    }

    const fn sums_at(&self) -> u64 {
        self.slots as u64 * (DESCRIPTOR_BYTES + ROW_BYTES) as u64
    }

    /// Where the sums of the full pieces of an object at `offset_bytes` in the segment begin.
    pub const fn piece_sums_at(&self, offset_bytes: u64) -> u64 {
        self.sums_at() + offset_bytes / PIECE_BYTES * SUM_BYTES
    }

    /// The length of the sums of the full pieces of an object of `len_bytes`.
    pub const fn piece_sums_len_bytes(len_bytes: u64) -> u64 {
        len_bytes / PIECE_BYTES * SUM_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn row(name: &str) -> KeyRow {
        KeyRow {
            generation: Generation(7),
            offset_bytes: 4096,
            version: Version {
                epoch: Epoch(3),
                put_id: PutId::from_bytes([9; 16]),
            },
            tail_checksum: 11,
            sealed_unix_ms: 12,
            fingerprint: vec![1, 2, 3],
            name: ObjectName::new(&Namespace::new("ns").unwrap(), name).unwrap(),
        }
    }

    #[test]
    fn a_descriptor_survives_its_encoding_and_ends_with_the_generation() {
        let descriptor = Descriptor {
            key_hash: KeyHash::from_bytes([5; 16]),
            len_bytes: 1 << 40,
            checksum: 2,
            row_checksum: 3,
            generation: Generation(4),
        };
        let line = descriptor.encode();
        assert_eq!(line[GENERATION_AT_BYTE..], 4u64.to_le_bytes());
        assert_eq!(Descriptor::decode(&line), Ok(descriptor));
    }

    #[test]
    fn a_zeroed_line_is_vacant_and_a_foreign_one_is_refused() {
        assert_eq!(Descriptor::decode(&[0; 64]), Err(TableError::Vacant));
        assert!(matches!(
            Descriptor::decode(&[0xff; 64]),
            Err(TableError::Field { field: "head", .. })
        ));
    }

    #[test]
    fn a_row_survives_its_encoding_with_the_longest_name() {
        for key in ["k", &"é".repeat(512)] {
            let row = row(key);
            let mut bytes = row.encode();
            assert_eq!(bytes.len(), KeyRow::used_bytes(&row.name));
            bytes.resize(ROW_BYTES, 0xee);
            assert_eq!(KeyRow::decode(&bytes), Ok(row));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_a_row_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let _ = KeyRow::decode(&bytes);
        }

        #[test]
        fn any_line_decodes_to_a_descriptor_or_an_error(line: [u8; 32], tail: [u8; 32]) {
            let mut whole = [0; 64];
            whole[..32].copy_from_slice(&line);
            whole[32..].copy_from_slice(&tail);
            if let Ok(descriptor) = Descriptor::decode(&whole) {
                prop_assert_eq!(&descriptor.encode()[8..], &whole[8..]);
            }
        }

        /// Regions laid one behind the other with gaps: no two full pieces share a sum, and every sum lies in the
        /// table.
        #[test]
        fn piece_sums_of_disjoint_regions_are_disjoint(
            regions in proptest::collection::vec((0u64..3 * PIECE_BYTES, 1u64..5 * PIECE_BYTES), 1..40)
        ) {
            let mut end = 0;
            let mut placed = Vec::new();
            for (gap, len) in regions {
                placed.push((end + gap, len));
                end += gap + len;
            }
            let layout = TableLayout::new(end, 8);
            let mut seen = HashSet::new();
            for (offset, len) in placed {
                let (at, sums_len) = (layout.piece_sums_at(offset), TableLayout::piece_sums_len_bytes(len));
                prop_assert!(at + sums_len <= layout.len_bytes());
                for sum in (at..at + sums_len).step_by(8) {
                    prop_assert!(seen.insert(sum), "sum at {} is used twice", sum);
                }
            }
        }
    }
}

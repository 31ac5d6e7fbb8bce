//! Frames of a data lane: a header of fixed size, then the payload.
//!
//! The header's checksum covers the header and, in frames that carry no bulk data, the payload: a bit that flips there
//! ends the lane. Bulk payloads have no checksum on the wire: whoever receives them computes one over the bytes where
//! they landed, and the layers above compare it with the one they expect.

use std::io;

use crate::checksum::Crc64;
use crate::engine::TransferError;
use crate::ids::RemoteKey;
use crate::limits::{MAX_BATCH_TRANSFERS, MAX_DATA_FRAME_BYTES};
use crate::wire::{Fields, decode_transfer_error, encode_transfer_error};

const MAGIC: u16 = 0x6474;
pub(super) const HEADER_BYTES: usize = 40;
/// The part of the header that its checksum covers; the checksum itself is the rest.
const CHECKED_BYTES: usize = 32;
const READ_BYTES: usize = 24;
/// Largest payload of a frame that carries no bulk data.
const MAX_SMALL_BYTES: usize = MAX_BATCH_TRANSFERS * READ_BYTES;

/// What a frame is. Those of the initiator first, then those of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// Bulk payload for `a` = key, at `b` = offset.
    Write = 1,
    /// The payload lists reads; their requests are numbered from `request` on. Data comes in frames of at most `a`
    /// bytes.
    Reads = 2,
    /// Nobody waits any more for the `a` requests from `request` on.
    Cancel = 3,
    /// Bulk payload of a read, at `a` = offset within it.
    Data = 4,
    /// All data of a read was sent, under the stamp `a`.
    Done = 5,
    /// The request failed; the payload says why. Data of it that was sent is void.
    Failed = 6,
    /// The payload of a write is in memory, with the checksum `a`.
    Wrote = 7,
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Write,
            2 => Self::Reads,
            3 => Self::Cancel,
            4 => Self::Data,
            5 => Self::Done,
            6 => Self::Failed,
            7 => Self::Wrote,
            _ => return None,
        })
    }

    pub(super) fn is_bulk(self) -> bool {
        matches!(self, Self::Write | Self::Data)
    }
}

/// What stands before a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) payload_bytes: u32,
    pub(super) request: u64,
    pub(super) a: u64,
    pub(super) b: u64,
}

impl Header {
    /// A frame without bulk data, or the header of one with it.
    pub(super) fn new(kind: Kind, request: u64, a: u64) -> Self {
        Self {
            kind,
            payload_bytes: 0,
            request,
            a,
            b: 0,
        }
    }

    /// The header, for a payload of which `small` is known: all of it, or nothing if it is bulk.
    pub(super) fn encode(&self, small: &[u8]) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[2] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.a.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.b.to_le_bytes());
        let check = check(&bytes, small);
        bytes[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The header and the checksum that it and a small payload must have. That of a bulk frame is checked already.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self, u64), LaneError> {
        let mut fields = Fields::new(bytes);
        let mut read = || {
            let (magic, kind) = (fields.u16()?, fields.u8()?);
            fields.u8()?;
            let payload_bytes = fields.u32()?;
            Some((
                magic,
                kind,
                payload_bytes,
                fields.u64()?,
                fields.u64()?,
                fields.u64()?,
                fields.u64()?,
            ))
        };
        let (magic, kind, payload_bytes, request, a, b, expected) = read().ok_or(LaneError::Magic)?;
        if magic != MAGIC {
            return Err(LaneError::Magic);
        }
        let kind = Kind::decode(kind).ok_or(LaneError::Kind(kind))?;
        let bulk = kind.is_bulk();
        if payload_bytes > MAX_DATA_FRAME_BYTES || (!bulk && payload_bytes as usize > MAX_SMALL_BYTES) {
            return Err(LaneError::Length { kind, payload_bytes });
        }
        if bulk && check(bytes, &[]) != expected {
            return Err(LaneError::Damaged);
        }
        Ok((
            Self {
                kind,
                payload_bytes,
                request,
                a,
                b,
            },
            expected,
        ))
    }
}

/// Checksum of a header and a small payload.
pub(super) fn check(header: &[u8; HEADER_BYTES], small: &[u8]) -> u64 {
    let mut crc = Crc64::new();
    crc.update(&header[..CHECKED_BYTES]);
    crc.update(small);
    crc.value()
}

/// Why a lane ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    #[error("the peer closed the connection")]
    End,
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("what the peer sent is no frame")]
    Magic,
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame ({kind:?}) with a payload of {payload_bytes} bytes")]
    Length { kind: Kind, payload_bytes: u32 },
    #[error("a frame was damaged on its way")]
    Damaged,
    #[error("protocol violation: {0}")]
    Protocol(&'static str),
}

/// One read of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadEntry {
    pub(super) key: RemoteKey,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
}

/// Appends a whole frame that asks for reads.
pub(super) fn put_reads(to: &mut Vec<u8>, first: u64, frame_bytes: u32, entries: &[ReadEntry]) {
    let mut payload = Vec::with_capacity(entries.len() * READ_BYTES);
    for entry in entries {
        payload.extend_from_slice(&entry.key.0.to_le_bytes());
        payload.extend_from_slice(&entry.offset_bytes.to_le_bytes());
        payload.extend_from_slice(&entry.len_bytes.to_le_bytes());
    }
    put_small(to, Header::new(Kind::Reads, first, u64::from(frame_bytes)), &payload);
}

pub(super) fn decode_reads(payload: &[u8]) -> Option<Vec<ReadEntry>> {
    let (entries, rest) = payload.as_chunks::<READ_BYTES>();
    if entries.is_empty() || !rest.is_empty() {
        return None;
    }
    let entry = |bytes: &[u8; READ_BYTES]| {
        let mut fields = Fields::new(bytes);
        Some(ReadEntry {
            key: RemoteKey(fields.u64()?),
            offset_bytes: fields.u64()?,
            len_bytes: fields.u64()?,
        })
    };
    entries.iter().map(entry).collect()
}

/// Appends a whole frame without bulk data.
pub(super) fn put_small(to: &mut Vec<u8>, header: Header, payload: &[u8]) {
    let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    to.extend_from_slice(
        &Header {
            payload_bytes,
            ..header
        }
        .encode(payload),
    );
    to.extend_from_slice(payload);
}

/// Why a request failed, as far as the target can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The initiator asked for it.
    Cancelled,
    Transfer(TransferError),
}

/// Unlike any tag of an error.
const CANCELLED: u8 = 1;

/// Appends a whole frame that says that a request failed.
pub(super) fn put_failed(to: &mut Vec<u8>, request: u64, failure: &Failure) {
    put_small(to, Header::new(Kind::Failed, request, 0), &encode_failure(failure));
}

fn encode_failure(failure: &Failure) -> Vec<u8> {
    match failure {
        Failure::Cancelled => vec![CANCELLED],
        Failure::Transfer(error) => encode_transfer_error(error),
    }
}

pub(super) fn decode_failure(payload: &[u8]) -> Option<Failure> {
    match payload {
        [CANCELLED] => Some(Failure::Cancelled),
        _ => decode_transfer_error(payload).map(Failure::Transfer),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Op;

    fn any_failure() -> impl Strategy<Value = Failure> {
        let key = any::<u64>().prop_map(RemoteKey);
        prop_oneof![
            Just(Failure::Cancelled),
            Just(Failure::Transfer(TransferError::Revoked)),
            key.clone()
                .prop_map(|key| Failure::Transfer(TransferError::UnknownKey { key })),
            key.clone()
                .prop_map(|key| Failure::Transfer(TransferError::Forbidden { key, op: Op::Read })),
            key.prop_map(|key| Failure::Transfer(TransferError::Forbidden { key, op: Op::Write })),
            any::<(u64, u64, u64)>().prop_map(|(offset_bytes, len_bytes, export_bytes)| {
                Failure::Transfer(TransferError::OutOfRange {
                    offset_bytes,
                    len_bytes,
                    export_bytes,
                })
            }),
            (any::<u16>(), ".{0,100}")
                .prop_map(|(code, message)| Failure::Transfer(TransferError::Refused { code, message })),
        ]
    }

    proptest! {
        #[test]
        fn headers_come_back(kind in 1_u8..=7, payload in 0_u32..1_000, numbers in any::<(u64, u64, u64)>()) {
            let kind = Kind::decode(kind).unwrap();
            let header = Header { kind, payload_bytes: payload, request: numbers.0, a: numbers.1, b: numbers.2 };
            let small = [1, 2, 3];
            let small = if kind.is_bulk() { &[][..] } else { &small[..] };
            let bytes = header.encode(small);
            let (decoded, expected) = Header::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, header);
            prop_assert_eq!(check(&bytes, small), expected);
        }

        #[test]
        fn a_flipped_bit_in_a_header_never_passes(at in 0_usize..HEADER_BYTES, bit in 0_u8..8, kind in 1_u8..=7) {
            let header = Header::new(Kind::decode(kind).unwrap(), 77, 78);
            let mut bytes = header.encode(&[]);
            bytes[at] ^= 1 << bit;
            let passed = Header::decode(&bytes).is_ok_and(|(_, expected)| check(&bytes, &[]) == expected);
            prop_assert!(!passed);
        }

        #[test]
        fn reads_and_failures_come_back(
            entries in proptest::collection::vec(any::<(u64, u64, u64)>(), 1..20),
            failure in any_failure(),
        ) {
            let entries: Vec<_> = entries
                .into_iter()
                .map(|(key, offset_bytes, len_bytes)| ReadEntry { key: RemoteKey(key), offset_bytes, len_bytes })
                .collect();
            let mut frame = Vec::new();
            put_reads(&mut frame, 9, 1 << 20, &entries);
            let (header, expected) = Header::decode(frame.first_chunk().unwrap()).unwrap();
            let payload = &frame[HEADER_BYTES..];
            prop_assert_eq!(header.payload_bytes as usize, payload.len());
            prop_assert_eq!(check(frame.first_chunk().unwrap(), payload), expected);
            prop_assert_eq!(decode_reads(payload), Some(entries));
            prop_assert_eq!(decode_failure(&encode_failure(&failure)), Some(failure));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = decode_reads(&bytes);
            _ = decode_failure(&bytes);
            if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
                let mut header = *header;
                _ = Header::decode(&header);
                header[..2].copy_from_slice(&MAGIC.to_le_bytes());
                _ = Header::decode(&header);
            }
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for (kind, payload_bytes) in [(Kind::Write, MAX_DATA_FRAME_BYTES + 1), (Kind::Reads, 1 << 20)] {
            let header = Header {
                payload_bytes,
                ..Header::new(kind, 1, 1)
            };
            assert!(matches!(
                Header::decode(&header.encode(&[])),
                Err(LaneError::Length { .. })
            ));
        }
        assert_eq!(decode_reads(&[]), None);
        assert_eq!(decode_reads(&[0; READ_BYTES + 1]), None);
    }
}

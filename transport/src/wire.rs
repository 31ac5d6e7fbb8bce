//! Fixed-width little-endian fields, and what engines write with them alike.

use crate::engine::{Op, TransferError};
use crate::ids::RemoteKey;
use crate::limits::MAX_REFUSAL_TEXT_BYTES;

/// Takes fields from the front of received bytes. `None`: there are not enough.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Text with its length before it.
    pub(crate) fn text(&mut self) -> Option<&'a str> {
        let len = self.u16()?;
        std::str::from_utf8(self.bytes(usize::from(len))?).ok()
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Succeeds if nothing is left over.
    pub(crate) fn end(self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}

/// Appends text with its length before it, cut to `max_bytes` at a character.
pub(crate) fn put_text(to: &mut Vec<u8>, text: &str, max_bytes: u16) {
    let cut = &text[..text.floor_char_boundary(usize::from(max_bytes))];
    let len = u16::try_from(cut.len()).unwrap_or(max_bytes);
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(cut.as_bytes());
}

/// What an owner says went wrong with a transfer. Errors that are the initiator's own are told in words.
pub(crate) fn encode_transfer_error(error: &TransferError) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |tag: u8, words: &[u64]| {
        bytes.push(tag);
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    };
    match error {
        TransferError::UnknownKey { key } => put(2, &[key.0]),
        TransferError::Forbidden { key, op: Op::Read } => put(3, &[key.0]),
        TransferError::Forbidden { key, op: Op::Write } => put(4, &[key.0]),
        &TransferError::OutOfRange {
            offset_bytes,
            len_bytes,
            export_bytes,
        } => put(5, &[offset_bytes, len_bytes, export_bytes]),
        TransferError::Refused { code, message } => {
            put(6, &[]);
            bytes.extend_from_slice(&code.to_le_bytes());
            put_text(&mut bytes, message, MAX_REFUSAL_TEXT_BYTES);
        }
        TransferError::Revoked => put(7, &[]),
        TransferError::Disconnected { reason } => {
            put(8, &[]);
            put_text(&mut bytes, reason, MAX_REFUSAL_TEXT_BYTES);
        }
        &TransferError::Deadline { moved_bytes, len_bytes } => put(9, &[moved_bytes, len_bytes]),
        other => {
            put(6, &[]);
            bytes.extend_from_slice(&0_u16.to_le_bytes());
            put_text(&mut bytes, &other.to_string(), MAX_REFUSAL_TEXT_BYTES);
        }
    }
    bytes
}

/// `None`: it is none.
pub(crate) fn decode_transfer_error(bytes: &[u8]) -> Option<TransferError> {
    let mut fields = Fields::new(bytes);
    let error = match fields.u8()? {
        2 => TransferError::UnknownKey {
            key: RemoteKey(fields.u64()?),
        },
        3 => TransferError::Forbidden {
            key: RemoteKey(fields.u64()?),
            op: Op::Read,
        },
        4 => TransferError::Forbidden {
            key: RemoteKey(fields.u64()?),
            op: Op::Write,
        },
        5 => TransferError::OutOfRange {
            offset_bytes: fields.u64()?,
            len_bytes: fields.u64()?,
            export_bytes: fields.u64()?,
        },
        6 => TransferError::Refused {
            code: fields.u16()?,
            message: fields.text()?.to_owned(),
        },
        7 => TransferError::Revoked,
        8 => TransferError::Disconnected {
            reason: fields.text()?.to_owned(),
        },
        9 => TransferError::Deadline {
            moved_bytes: fields.u64()?,
            len_bytes: fields.u64()?,
        },
        _ => return None,
    };
    fields.end()?;
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_in_order_and_end_when_they_end() {
        let mut bytes = vec![7];
        bytes.extend_from_slice(&0x0102_u16.to_le_bytes());
        put_text(&mut bytes, "grüße", 100);
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.u8(), Some(7));
        assert_eq!(fields.u16(), Some(0x0102));
        assert_eq!(fields.text(), Some("grüße"));
        assert_eq!(fields.u64(), None);
        assert_eq!(fields.end(), Some(()));
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let mut bytes = Vec::new();
        put_text(&mut bytes, "aü", 2);
        assert_eq!(Fields::new(&bytes).text(), Some("a"));
    }
}

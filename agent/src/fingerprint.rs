//! Fingerprints as people write them.

use serde::Deserialize;
use std::str::FromStr;
use tenon_protocol::limits::FINGERPRINT_LEN_BYTES_MAX;

/// Bytes from hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Fingerprint(pub(crate) Vec<u8>);

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || format!("expected 1 to {FINGERPRINT_LEN_BYTES_MAX} bytes as pairs of hexadecimal digits");
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.is_empty() || pairs.len() > FINGERPRINT_LEN_BYTES_MAX || !rest.is_empty() {
            return Err(refused());
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |&[high, low]: &[u8; 2]| Some(digit(high)? << 4 | digit(low)?);
        pairs
            .iter()
            .map(byte)
            .collect::<Option<_>>()
            .map(Self)
            .ok_or_else(refused)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Sizes in bytes as people write them: `1048576`, `"512MiB"`, `"1 GiB"`.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// A text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a whole number with one of the units.
    #[error("expected a whole number of bytes, or of KiB, MiB, GiB or TiB, such as 1GiB")]
    NotASize,
    /// Over 2^64 - 1 bytes.
    #[error("more than 2^64 - 1 bytes")]
    TooLarge,
}

/// Bytes of a text such as `512MiB`.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits_end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    if digits.is_empty() {
        return Err(SizeError::NotASize);
    }
    let unit_bytes = match unit.trim_start() {
        "" => 1,
        unit => {
            let known = UNITS.iter().find(|(name, _)| *name == unit);
            known.ok_or(SizeError::NotASize)?.1
        }
    };
    let count: u64 = digits.parse().map_err(|_| SizeError::TooLarge)?;
    count.checked_mul(unit_bytes).ok_or(SizeError::TooLarge)
}

/// The shortest exact text of a size: the largest unit that divides it.
pub fn format(len_bytes: u64) -> String {
    let (name, unit_bytes) = UNITS
        .iter()
        .find(|(_, unit_bytes)| len_bytes >= *unit_bytes && len_bytes.is_multiple_of(*unit_bytes))
        .unwrap_or(&("B", 1));
    match *name {
        "B" => len_bytes.to_string(),
        name => format!("{}{name}", len_bytes / unit_bytes),
    }
}

/// A size as it was written: an integer or a text. Its value is checked later, where an error can name the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SizeText(pub(super) String);

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SizeText {
    type Err = std::convert::Infallible;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextOrInteger;

        impl Visitor<'_> for TextOrInteger {
            type Value = SizeText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size: an integer of bytes or a text such as \"1GiB\"")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<SizeText, E> {
                Ok(SizeText(value.to_string()))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<SizeText, E> {
                Ok(SizeText(value.to_string()))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<SizeText, E> {
                Ok(SizeText(text.to_owned()))
            }
        }

        deserializer.deserialize_any(TextOrInteger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_binary_units_are_sizes() {
        for (text, len_bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("16KiB", 16 << 10),
            ("1GiB", 1 << 30),
            (" 1 GiB ", 1 << 30),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(len_bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "GiB", "1GB", "1gib", "-1", "1.5GiB", "1GiB!", "0x10", "1 000"] {
            assert_eq!(parse(text), Err(SizeError::NotASize), "{text}");
        }
        for text in ["99999999999999999999", "16777216TiB"] {
            assert_eq!(parse(text), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn formatting_is_exact_and_parses_back() {
        for (len_bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1536, "1536"),
            (2048, "2KiB"),
            (1 << 30, "1GiB"),
            (3 << 29, "1536MiB"),
        ] {
            assert_eq!(format(len_bytes), text);
            assert_eq!(parse(text), Ok(len_bytes));
        }
    }
}

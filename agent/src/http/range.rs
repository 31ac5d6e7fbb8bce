//! The `Range` header, as far as it is served: one range of bytes.

use std::ops::Range;

/// What a request wants of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it.
    Whole,
    /// These bytes, at least one.
    Part(Range<u64>),
    /// Bytes of which it has none.
    Nothing,
}

impl Wanted {
    /// What the value of a `Range` header asks of an object of `len_bytes`. A header that is not understood, or that
    /// names several ranges, counts as absent, as HTTP has it.
    pub(super) fn parse(header: Option<&str>, len_bytes: u64) -> Self {
        let range = header.and_then(|value| value.trim().strip_prefix("bytes="));
        match range.and_then(|range| range.trim().split_once('-')) {
            Some(("", last)) => number(last).map_or(Self::Whole, |count| Self::suffix(count, len_bytes)),
            Some((first, "")) => number(first).map_or(Self::Whole, |first| Self::between(first, u64::MAX, len_bytes)),
            Some((first, last)) => match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => Self::between(first, last, len_bytes),
                _ => Self::Whole,
            },
            None => Self::Whole,
        }
    }

    fn suffix(count: u64, len_bytes: u64) -> Self {
        match count {
            0 => Self::Nothing,
            count => Self::Part(len_bytes.saturating_sub(count)..len_bytes),
        }
    }

    fn between(first: u64, last: u64, len_bytes: u64) -> Self {
        if first >= len_bytes {
            return Self::Nothing;
        }
        Self::Part(first..last.saturating_add(1).min(len_bytes))
    }
}

/// Digits alone: a sign or a space makes a header that is not understood. Numbers beyond 64 bits lie beyond every
/// object.
fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_range_is_cut_to_the_object() {
        for (header, expected) in [
            ("bytes=0-0", Wanted::Part(0..1)),
            ("bytes=0-99", Wanted::Part(0..100)),
            ("bytes=10-19", Wanted::Part(10..20)),
            ("bytes=99-", Wanted::Part(99..100)),
            ("bytes=90-1000", Wanted::Part(90..100)),
            ("bytes=-1", Wanted::Part(99..100)),
            ("bytes=-1000", Wanted::Part(0..100)),
            ("bytes=0-99999999999999999999999", Wanted::Part(0..100)),
        ] {
            assert_eq!(Wanted::parse(Some(header), 100), expected, "{header}");
        }
    }

    #[test]
    fn ranges_beyond_the_object_are_not_satisfiable() {
        for header in ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=99999999999999999999-"] {
            assert_eq!(Wanted::parse(Some(header), 100), Wanted::Nothing, "{header}");
        }
    }

    #[test]
    fn what_is_not_understood_asks_for_the_whole() {
        assert_eq!(Wanted::parse(None, 100), Wanted::Whole);
        for header in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5",
            "bytes=7-5",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=0-1,3-4",
            "items=0-1",
        ] {
            assert_eq!(Wanted::parse(Some(header), 100), Wanted::Whole, "{header}");
        }
    }
}

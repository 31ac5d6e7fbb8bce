//! Which bytes of a piece were written since its region was reserved.
//!
//! Memory that is reserved has the bytes of whatever lay there before, and a commit says what bytes it expects: a holder
//! that compared the two without asking who wrote them would tell what others had stored.

use crate::limits::WRITTEN_PARTS_PER_PIECE_MAX;
use std::ops::Range;

/// The written bytes of one piece: a bounded number of parts, none of which overlaps or touches another. What would be
/// a part too many counts as not written.
#[derive(Debug, Default)]
pub(super) struct WrittenParts {
    /// Empty if nothing was written. All there is, if the piece is written in order.
    first: Range<u32>,
    /// The parts that do not touch it, in no order.
    others: Vec<Range<u32>>,
}

impl WrittenParts {
    /// These bytes, at least one, were written.
    pub(super) fn add(&mut self, range: &Range<u32>) {
        // Parts do not touch each other, so those that touch the new one are all that it is to be joined with.
        let mut joined = range.clone();
        self.others.retain(|part| {
            let joins = touch(part, range);
            if joins {
                joined = union(part, &joined);
            }
            !joins
        });
        if self.first.is_empty() {
            self.first = joined;
        } else if touch(&self.first, range) {
            self.first = union(&self.first, &joined);
        } else if self.others.len() + 1 < WRITTEN_PARTS_PER_PIECE_MAX {
            self.others.push(joined);
        }
    }

    /// The first byte of a piece of this length that was not written.
    pub(super) fn first_missing(&self, len_bytes: u32) -> Option<u32> {
        let from_start = std::iter::once(&self.first).chain(&self.others);
        let end = from_start
            .filter(|part| part.start == 0)
            .map(|part| part.end)
            .max()
            .unwrap_or(0);
        (end < len_bytes).then_some(end)
    }
}

/// Whether two ranges overlap or one begins where the other ends.
fn touch(one: &Range<u32>, other: &Range<u32>) -> bool {
    one.start <= other.end && other.start <= one.end
}

fn union(one: &Range<u32>, other: &Range<u32>) -> Range<u32> {
    one.start.min(other.start)..one.end.max(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One flag per byte.
    fn first_missing(written: &[bool]) -> Option<u32> {
        let missing = written.iter().position(|is_written| !is_written);
        missing.map(|at| u32::try_from(at).unwrap())
    }

    /// At most half of these bytes can be parts of their own, so no part is too many.
    const LEN: u32 = 2 * 64;

    #[test]
    fn in_order_nothing_is_allocated_and_every_byte_counts() {
        let mut written = WrittenParts::default();
        assert_eq!(written.first_missing(3), Some(0));
        for at in 0..3 {
            written.add(&(at..at + 1));
            assert_eq!(written.first_missing(3), (at < 2).then_some(at + 1));
            assert_eq!(written.others.capacity(), 0);
        }
    }

    #[test]
    fn a_part_too_many_counts_as_not_written_until_there_is_room() {
        let mut written = WrittenParts::default();
        let parts_max = u32::try_from(WRITTEN_PARTS_PER_PIECE_MAX).unwrap();
        for part in 1..=parts_max {
            written.add(&(2 * part..2 * part + 1));
        }
        written.add(&(0..1));
        assert_eq!(written.others.len() + 1, WRITTEN_PARTS_PER_PIECE_MAX);
        assert_eq!(written.first_missing(1), Some(0));
        written.add(&(2..5));
        written.add(&(0..1));
        assert_eq!(written.first_missing(2), Some(1));
        written.add(&(0..3 * parts_max));
        assert_eq!(written.first_missing(3 * parts_max), None);
        assert!(written.others.is_empty());
    }

    proptest! {
        #[test]
        fn parts_and_a_flag_per_byte_agree(writes in prop::collection::vec((0..LEN, 1..=LEN), 1..200)) {
            let mut written = WrittenParts::default();
            let mut flags = vec![false; LEN as usize];
            for (start, len) in writes {
                let range = start..LEN.min(start + len.div_ceil(8));
                flags[range.start as usize..range.end as usize].fill(true);
                written.add(&range);
                let parts = flags.chunk_by(|one, next| one == next).filter(|run| run[0]).count();
                prop_assert_eq!(written.others.len() + 1, parts);
                for len in 1..=LEN {
                    prop_assert_eq!(written.first_missing(len), first_missing(&flags[..len as usize]));
                }
            }
        }
    }
}

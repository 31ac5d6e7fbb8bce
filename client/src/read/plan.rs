//! Which pieces of an object are read, and where to: whole pieces straight into the destination, cut ones into scratch memory from
//! which the asked part is copied once the piece is verified.

use crate::error::ClientError;
use std::ops::Range;
use std::sync::Arc;
use tenon_protocol::checksum::piece_len_bytes;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_transport::{Memory, Slice};

/// What of an object is wanted.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    /// Only what the table says of it.
    Table,
    /// All of it, or a range, into memory of exactly that length.
    Into {
        /// `None`: all.
        range: Option<Range<u64>>,
        /// The destination.
        slice: Slice,
    },
    /// All of it, into memory that is allocated when the length is known.
    Fresh {
        /// Longer objects are refused.
        limit_bytes: u64,
    },
}

/// One piece to read, whole.
#[derive(Debug, Clone)]
pub(crate) struct PieceRead {
    /// Index of the piece in its object.
    pub(crate) piece: u64,
    /// Exactly as long as the piece.
    pub(crate) into: Slice,
}

/// A verified part to copy out of scratch memory.
#[derive(Debug)]
struct CopyOut {
    from: Slice,
    to: Slice,
}

/// How one object of known length is read.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The pieces, in order and without gaps.
    pub(crate) pieces: Vec<PieceRead>,
    /// The destination.
    pub(crate) data: Option<Slice>,
    copies: Vec<CopyOut>,
}

impl Plan {
    /// Plans to read `target` of an object of `len_bytes`.
    pub(crate) fn new(target: &Target, len_bytes: u64) -> Result<Self, ClientError> {
        match target {
            Target::Table => Ok(Self::default()),
            Target::Fresh { limit_bytes } if len_bytes > *limit_bytes => Err(ClientError::TooLargeAtOnce { len_bytes }),
            Target::Fresh { .. } => Ok(Self::of_range(0..len_bytes, &allocate(len_bytes)?, len_bytes, None)),
            Target::Into { range, slice } => {
                let range = range.clone().unwrap_or(0..len_bytes);
                check(&range, slice, len_bytes)?;
                let cut_bytes = cut_pieces(&range, len_bytes)
                    .map(|at| piece_len_bytes(len_bytes, at))
                    .sum();
                let scratch = if cut_bytes == 0 {
                    None
                } else {
                    Some(allocate(cut_bytes)?)
                };
                Ok(Self::of_range(range, slice, len_bytes, scratch))
            }
        }
    }

    fn of_range(range: Range<u64>, data: &Slice, len_bytes: u64, scratch: Option<Slice>) -> Self {
        let mut plan = Self {
            data: Some(data.clone()),
            ..Self::default()
        };
        let mut scratch_at = 0;
        for piece in range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES) {
            let (start, piece_len) = (piece * PIECE_BYTES, piece_len_bytes(len_bytes, piece));
            let wanted = start.max(range.start)..(start + piece_len).min(range.end);
            let to = part(data, wanted.start - range.start..wanted.end - range.start);
            let into = match &scratch {
                Some(scratch) if to.len_bytes() < piece_len => {
                    let into = part(scratch, scratch_at..scratch_at + piece_len);
                    scratch_at += piece_len;
                    let from = part(&into, wanted.start - start..wanted.end - start);
                    plan.copies.push(CopyOut { from, to });
                    into
                }
                _ => to,
            };
            plan.pieces.push(PieceRead { piece, into });
        }
        plan
    }

    /// Copies what was read into scratch memory to the destination. Only for pieces that are verified.
    pub(crate) fn deliver(&self) {
        for CopyOut { from, to } in &self.copies {
            let range = from.offset_bytes()..from.offset_bytes() + from.len_bytes();
            from.memory()
                .copy_within(range, to.memory(), to.offset_bytes())
                .expect("both slices lie inside their memories and have the same length");
        }
    }
}

/// The at most two pieces of which `range` wants only a part.
fn cut_pieces(range: &Range<u64>, len_bytes: u64) -> impl Iterator<Item = u64> + use<> {
    let (first, last) = (range.start / PIECE_BYTES, (range.end - 1) / PIECE_BYTES);
    let first_cut = !range.start.is_multiple_of(PIECE_BYTES);
    let last_cut = !range.end.is_multiple_of(PIECE_BYTES) && range.end != len_bytes;
    let both_same = first == last && first_cut;
    first_cut
        .then_some(first)
        .into_iter()
        .chain((last_cut && !both_same).then_some(last))
}

fn check(range: &Range<u64>, slice: &Slice, object_bytes: u64) -> Result<(), ClientError> {
    if range.start >= range.end || range.end > object_bytes {
        return Err(ClientError::Range {
            start: range.start,
            end: range.end,
            object_bytes,
        });
    }
    let (asked_bytes, destination_bytes) = (range.end - range.start, slice.len_bytes());
    if asked_bytes != destination_bytes {
        return Err(ClientError::SizeMismatch {
            asked_bytes,
            destination_bytes,
        });
    }
    Ok(())
}

/// Private memory of this process.
pub(crate) fn allocate(len_bytes: u64) -> Result<Slice, ClientError> {
    match Memory::anonymous(len_bytes) {
        Ok(memory) => Ok(Arc::new(memory).whole()),
        Err(error) => Err(ClientError::Memory {
            len_bytes,
            reason: error.to_string(),
        }),
    }
}

/// A part of a slice that is known to lie inside.
pub(crate) fn part(slice: &Slice, range: Range<u64>) -> Slice {
    slice.subslice(range).expect("the range lies inside the slice")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT_BYTES: u64 = 3 * PIECE_BYTES + 100;

    fn plan(range: Option<Range<u64>>, destination_bytes: u64) -> Result<Plan, ClientError> {
        let slice = allocate(destination_bytes).unwrap();
        Plan::new(&Target::Into { range, slice }, OBJECT_BYTES)
    }

    #[test]
    fn whole_pieces_land_in_the_destination() {
        let plan = plan(None, OBJECT_BYTES).unwrap();
        assert_eq!(plan.pieces.len(), 4);
        assert!(plan.copies.is_empty());
        let data = plan.data.unwrap();
        for read in &plan.pieces {
            assert!(Arc::ptr_eq(read.into.memory(), data.memory()));
            assert_eq!(read.into.offset_bytes(), read.piece * PIECE_BYTES);
        }
    }

    /// For ranges of every kind of edge, delivers pieces that hold their own offsets and compares each byte.
    #[test]
    fn ranges_get_exactly_their_bytes() {
        let byte_at = |offset: u64| (offset / 7 + offset).to_le_bytes()[0];
        let edges = [
            0,
            1,
            PIECE_BYTES - 1,
            PIECE_BYTES,
            PIECE_BYTES + 1,
            2 * PIECE_BYTES,
            3 * PIECE_BYTES,
            OBJECT_BYTES - 1,
            OBJECT_BYTES,
        ];
        for start in edges {
            for end in edges.into_iter().filter(|&end| end > start) {
                let plan = plan(Some(start..end), end - start).unwrap();
                for read in &plan.pieces {
                    assert_eq!(
                        read.into.len_bytes(),
                        piece_len_bytes(OBJECT_BYTES, read.piece),
                        "{start}..{end}"
                    );
                    let at = read.piece * PIECE_BYTES;
                    let bytes: Vec<u8> = (at..at + read.into.len_bytes()).map(byte_at).collect();
                    read.into.copy_in(0, &bytes).unwrap();
                }
                plan.deliver();
                let expected: Vec<u8> = (start..end).map(byte_at).collect();
                assert!(plan.data.unwrap().to_vec() == expected, "{start}..{end}");
            }
        }
    }

    #[test]
    fn sizes_that_do_not_match_are_refused_with_both_numbers() {
        for destination_bytes in [OBJECT_BYTES - 1, OBJECT_BYTES + 1] {
            assert_eq!(
                plan(None, destination_bytes).unwrap_err(),
                ClientError::SizeMismatch {
                    asked_bytes: OBJECT_BYTES,
                    destination_bytes
                }
            );
        }
        assert!(matches!(plan(Some(0..10), 11), Err(ClientError::SizeMismatch { .. })));
    }

    #[test]
    fn ranges_outside_the_object_are_refused() {
        for (start, end) in [(0, OBJECT_BYTES + 1), (OBJECT_BYTES, OBJECT_BYTES + 1), (5, 5), (6, 5)] {
            let error = plan(Some(start..end), 1).unwrap_err();
            assert_eq!(
                error,
                ClientError::Range {
                    start,
                    end,
                    object_bytes: OBJECT_BYTES
                }
            );
        }
    }

    #[test]
    fn an_object_over_the_callers_limit_is_not_allocated() {
        let target = Target::Fresh { limit_bytes: 10 };
        assert_eq!(
            Plan::new(&target, 11).unwrap_err(),
            ClientError::TooLargeAtOnce { len_bytes: 11 }
        );
        assert_eq!(Plan::new(&target, 10).unwrap().data.unwrap().len_bytes(), 10);
    }
}

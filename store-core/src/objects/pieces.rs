//! What arrived: which bytes, and the checksums of pieces that arrived whole, so that a commit need not read them again.
//!
//! A checksum is kept for a piece only if exactly that piece arrived as one write and no other write touched it at the
//! same time or later. What begins to be written is unknown from that moment on, even if the write then fails.

use super::written::WrittenParts;
use std::ops::Range;
use tenon_protocol::checksum::{piece_count, piece_len_bytes};
use tenon_protocol::limits::PIECE_BYTES;

/// What arrived in one region.
#[derive(Debug, Default)]
pub(super) struct ArrivedPieces {
    len_bytes: u64,
    pieces: Vec<Piece>,
}

#[derive(Debug, Default)]
struct Piece {
    written: WrittenParts,
    checksum: Option<u64>,
    /// Writes under way that touch this piece.
    writers: u32,
    /// Two writes touched it at the same time; nobody knows what it holds until all are over.
    is_contested: bool,
}

impl ArrivedPieces {
    /// Nothing arrived yet in an object of `len_bytes`.
    pub(super) fn new(len_bytes: u64) -> Self {
        let pieces = usize::try_from(piece_count(len_bytes)).expect("regions lie in memory");
        Self {
            len_bytes,
            pieces: std::iter::repeat_with(Piece::default).take(pieces).collect(),
        }
    }

    /// A write of these bytes, at least one, begins.
    pub(super) fn begin(&mut self, range: &Range<u64>) {
        for piece in self.touched(range) {
            piece.checksum = None;
            piece.writers += 1;
            piece.is_contested |= piece.writers > 1;
        }
    }

    /// These bytes have arrived with this checksum, in a write that has begun and not ended.
    pub(super) fn arrived(&mut self, range: &Range<u64>, checksum: u64) {
        let index = range.start / PIECE_BYTES;
        for (at, piece) in (index..).zip(self.touched(range)) {
            piece.written.add(&within_piece(at, range));
        }
        let is_whole = range.start.is_multiple_of(PIECE_BYTES)
            && range.end - range.start == piece_len_bytes(self.len_bytes, index);
        if !is_whole {
            return;
        }
        for piece in self.touched(range) {
            if !piece.is_contested {
                piece.checksum = Some(checksum);
            }
        }
    }

    /// A write of these bytes is over, well or not.
    pub(super) fn end(&mut self, range: &Range<u64>) {
        for piece in self.touched(range) {
            piece.writers -= 1;
            piece.is_contested &= piece.writers > 0;
        }
    }

    /// The checksum of each piece, `None` where it is not known.
    pub(super) fn checksums(&self) -> impl Iterator<Item = Option<u64>> + '_ {
        self.pieces.iter().map(|piece| piece.checksum)
    }

    /// The first byte that no write has brought.
    pub(super) fn first_missing(&self) -> Option<u64> {
        (0..).zip(&self.pieces).find_map(|(index, piece)| {
            let piece_range = within_piece(index, &(0..self.len_bytes));
            let missing = piece.written.first_missing(piece_range.end)?;
            Some(index * PIECE_BYTES + u64::from(missing))
        })
    }

    fn touched(&mut self, range: &Range<u64>) -> &mut [Piece] {
        let index = |at: u64| usize::try_from(at / PIECE_BYTES).expect("regions lie in memory");
        &mut self.pieces[index(range.start)..=index(range.end - 1)]
    }
}

/// The part of a range of the object that lies in one piece, counted from the start of that.
fn within_piece(index: u64, range: &Range<u64>) -> Range<u32> {
    let start_bytes = index * PIECE_BYTES;
    let within = |at: u64| u32::try_from(at.saturating_sub(start_bytes).min(PIECE_BYTES)).expect("a piece is short");
    within(range.start)..within(range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 2 * PIECE_BYTES + 10;
    const FIRST: Range<u64> = 0..PIECE_BYTES;
    const LAST: Range<u64> = 2 * PIECE_BYTES..LEN;

    fn known(pieces: &ArrivedPieces) -> Vec<Option<u64>> {
        pieces.checksums().collect()
    }

    fn write(pieces: &mut ArrivedPieces, range: Range<u64>, checksum: u64) {
        pieces.begin(&range);
        pieces.arrived(&range, checksum);
        pieces.end(&range);
    }

    #[test]
    fn only_what_arrived_is_there_whatever_began() {
        let mut pieces = ArrivedPieces::new(LEN);
        let all = 0..LEN;
        pieces.begin(&all);
        pieces.end(&all);
        assert_eq!(pieces.first_missing(), Some(0));
        write(&mut pieces, 1..LEN, 0);
        assert_eq!(pieces.first_missing(), Some(0));
        write(&mut pieces, 0..1, 0);
        assert_eq!(pieces.first_missing(), None);
    }

    #[test]
    fn the_first_missing_byte_is_found_in_its_piece() {
        let mut pieces = ArrivedPieces::new(LEN);
        for (range, missing) in [
            (0..PIECE_BYTES + 3, Some(PIECE_BYTES + 3)),
            (PIECE_BYTES + 4..LEN - 1, Some(PIECE_BYTES + 3)),
            (PIECE_BYTES + 3..PIECE_BYTES + 4, Some(LEN - 1)),
            (LEN - 1..LEN, None),
        ] {
            write(&mut pieces, range, 0);
            assert_eq!(pieces.first_missing(), missing);
        }
    }

    #[test]
    fn full_pieces_and_the_short_last_one_are_remembered() {
        let mut pieces = ArrivedPieces::new(LEN);
        write(&mut pieces, FIRST, 1);
        write(&mut pieces, LAST, 3);
        assert_eq!(known(&pieces), [Some(1), None, Some(3)]);
    }

    #[test]
    fn parts_and_runs_of_pieces_are_not() {
        let mut pieces = ArrivedPieces::new(LEN);
        write(&mut pieces, 0..PIECE_BYTES - 1, 1);
        write(&mut pieces, 1..PIECE_BYTES, 1);
        write(&mut pieces, PIECE_BYTES..LEN, 2);
        assert_eq!(known(&pieces), [None; 3]);
    }

    #[test]
    fn a_later_write_of_any_byte_makes_a_piece_unknown_as_it_begins() {
        let mut pieces = ArrivedPieces::new(LEN);
        write(&mut pieces, FIRST, 1);
        pieces.begin(&(PIECE_BYTES - 1..PIECE_BYTES + 1));
        assert_eq!(known(&pieces), [None; 3]);
        pieces.end(&(PIECE_BYTES - 1..PIECE_BYTES + 1));
        assert_eq!(known(&pieces), [None; 3]);
        write(&mut pieces, FIRST, 4);
        assert_eq!(known(&pieces), [Some(4), None, None]);
    }

    #[test]
    fn writes_that_meet_in_a_piece_leave_it_unknown_whatever_the_order_of_their_ends() {
        for first_ends_first in [true, false] {
            let mut pieces = ArrivedPieces::new(LEN);
            pieces.begin(&FIRST);
            pieces.begin(&FIRST);
            for checksum in [1, 2] {
                pieces.arrived(&FIRST, checksum);
                if first_ends_first {
                    pieces.end(&FIRST);
                }
            }
            assert_eq!(known(&pieces)[0], None);
        }
    }
}

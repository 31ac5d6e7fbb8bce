//! Writes into reserved regions.

use super::{HoldError, Holder, RegionId, SegmentTable};
use crate::time::Time;
use std::ops::Range;

/// A write that is under way. Give it to [`Holder::end_write`] when nothing can touch the bytes any more, whatever
/// happened.
#[derive(Debug)]
#[must_use = "the region stays held"]
pub struct WriteHold {
    region: RegionId,
    range: Range<u64>,
}

impl<T: SegmentTable> Holder<T> {
    /// A write of bytes of a reserved region, counted from the region's start, is about to begin. Until it is over,
    /// what these bytes are is unknown, whatever [`Self::wrote`] said of them before.
    pub fn begin_write(&mut self, region: RegionId, offset_bytes: u64, len_bytes: u64) -> Result<WriteHold, HoldError> {
        let record = self.record_mut(region).ok_or(HoldError::Stale)?;
        let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(HoldError::OutOfRange)?;
        if len_bytes == 0 || end_bytes > record.len_bytes() {
            return Err(HoldError::OutOfRange);
        }
        let reservation = record.reservation().ok_or(HoldError::Stale)?;
        if reservation.commit.is_some() {
            return Err(HoldError::Committing);
        }
        record.hold()?;
        let range = offset_bytes..end_bytes;
        if let Some(reservation) = record.reservation_mut() {
            reservation.pieces.begin(&range);
        }
        self.segment_of(region).count_transfer();
        Ok(WriteHold { region, range })
    }

    /// These bytes are in memory with this checksum, by a write that is still held. It extends the reservation.
    pub fn wrote(&mut self, now: Time, region: RegionId, offset_bytes: u64, len_bytes: u64, checksum: u64) {
        let reservation = self.record_mut(region).and_then(|record| record.reservation_mut());
        if let Some(reservation) = reservation {
            reservation
                .pieces
                .arrived(&(offset_bytes..offset_bytes + len_bytes), checksum);
            reservation.expires_at = now.after_ms(reservation.ttl_ms.into());
        }
    }

    /// A write is over. A region that was given up meanwhile is freed with the last of them.
    pub fn end_write(&mut self, hold: WriteHold) {
        let WriteHold { region, range } = hold;
        let record = self.record_mut(region).expect("a held region is recorded");
        if let Some(reservation) = record.reservation_mut() {
            reservation.pieces.end(&range);
        }
        self.release(region);
    }
}

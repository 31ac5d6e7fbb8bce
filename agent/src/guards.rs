//! The guards of exported memory: each access of a peer is resolved to one live region of the holder, which stays as it
//! is until the access is
//! over.

use crate::holder::HolderDriver;
use std::sync::Weak;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::SegmentId;
use tenon_store_core::objects::{HoldError, RegionId};
use tenon_transport::{Guard, Hold, Refused};

fn refused(error: HoldError) -> Refused {
    let message = match error {
        HoldError::Stale => "the region does not hold this any more",
        HoldError::OutOfRange => "the range is not inside one region",
        HoldError::Committing => "the put is being committed, nothing more may be written",
        HoldError::TooMany => "too many transfers are under way in the region",
    };
    refusal(ErrorCode::GrantRefused, message)
}

const fn refusal(code: ErrorCode, message: &'static str) -> Refused {
    Refused {
        code: code as u16,
        message,
    }
}

const STOPPED: Refused = refusal(ErrorCode::Draining, "the node is stopping");

/// Resolves each read of a segment's payload to the one live object that it lies in, and holds that. The reader's stamp
/// is the generation.
#[derive(Debug)]
pub(crate) struct ReadGuard {
    /// Whose segment.
    pub holder: Weak<HolderDriver>,
    /// Which.
    pub segment: SegmentId,
}

impl Guard for ReadGuard {
    fn begin_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused> {
        let holder = self.holder.upgrade().ok_or(STOPPED)?;
        let hold = holder
            .begin_read(self.segment, offset_bytes..offset_bytes + len_bytes)
            .map_err(refused)?;
        let stamp = hold.generation().0;
        Ok(Hold::with_release(stamp, move || holder.end_read(hold, len_bytes)))
    }

    fn begin_write(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<Hold, Refused> {
        Err(refusal(
            ErrorCode::Forbidden,
            "segments are read-only; a put has a grant of its own",
        ))
    }

    fn wrote(&self, _offset_bytes: u64, _len_bytes: u64, _crc64: u64) {}
}

/// Lets one put write into its own region, until it is committed or ends.
#[derive(Debug)]
pub(crate) struct WriteGuard {
    /// Whose region.
    pub holder: Weak<HolderDriver>,
    /// Which.
    pub region: RegionId,
}

impl Guard for WriteGuard {
    fn begin_read(&self, _offset_bytes: u64, _len_bytes: u64) -> Result<Hold, Refused> {
        Err(refusal(ErrorCode::Forbidden, "a put's grant does not allow reading"))
    }

    fn begin_write(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused> {
        let holder = self.holder.upgrade().ok_or(STOPPED)?;
        let hold = holder
            .begin_write(self.region, offset_bytes..offset_bytes + len_bytes)
            .map_err(refused)?;
        Ok(Hold::with_release(0, move || holder.end_write(hold)))
    }

    fn wrote(&self, offset_bytes: u64, len_bytes: u64, crc64: u64) {
        if let Some(holder) = self.holder.upgrade() {
            holder.wrote(self.region, offset_bytes..offset_bytes + len_bytes, crc64);
        }
    }
}

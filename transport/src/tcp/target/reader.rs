//! Reads the frames of a lane and lands writes.

use std::sync::Arc;

use crate::checksum::Crc64;
use crate::engine::{Op, TransferError};
use crate::exports::Wanted;
use crate::ids::RemoteKey;
use crate::limits::MAX_DATA_FRAME_BYTES;
use crate::tcp::lane::{Frame, Inbox};
use crate::tcp::target::queue::{Queue, Reply, Share};
use crate::tcp::target::{AccessSpan, LaneContext};
use crate::tcp::wire::{Failure, Header, Kind, LaneError, decode_reads};

/// Runs until the initiator closes the lane, or breaks it.
pub(super) async fn run(mut inbox: Inbox, queue: Arc<Queue>, context: Arc<LaneContext>) -> Result<(), LaneError> {
    while let Some(frame) = inbox.frame().await? {
        let Frame { header, small } = frame;
        match header.kind {
            Kind::Write => {
                let reply = write(&mut inbox, header, &context).await?;
                queue.reply(reply).await;
            }
            Kind::Reads => queue.serve(share(header, &small)?).await.map_err(LaneError::Protocol)?,
            Kind::Cancel => queue.cancel(&(header.request..header.request.saturating_add(header.a))),
            Kind::Data | Kind::Done | Kind::Failed | Kind::Wrote => {
                return Err(LaneError::Protocol("the initiator sent a frame of the target"));
            }
        }
    }
    Ok(())
}

fn share(header: Header, payload: &[u8]) -> Result<Share, LaneError> {
    let entries = decode_reads(payload).ok_or(LaneError::Protocol("a list of reads that cannot be understood"))?;
    let frame_bytes = header.a;
    if !(1..=u64::from(MAX_DATA_FRAME_BYTES)).contains(&frame_bytes) {
        return Err(LaneError::Protocol("data is asked for in frames of an impossible size"));
    }
    Ok(Share {
        first: header.request,
        frame_bytes,
        entries,
    })
}

/// Lands one write, or throws its payload away and says why.
async fn write(inbox: &mut Inbox, header: Header, context: &LaneContext) -> Result<Reply, LaneError> {
    let request = header.request;
    let len_bytes = u64::from(header.payload_bytes);
    let wanted = Wanted {
        op: Op::Write,
        key: RemoteKey(header.a),
        offset_bytes: header.b,
        len_bytes,
    };
    let failed = |error| Reply::Failed {
        request,
        failure: Failure::Transfer(error),
    };
    let access = match context.exports.begin(context.session, &wanted) {
        Ok(access) => access,
        Err(error) => {
            inbox.discard(len_bytes).await?;
            return Ok(failed(error));
        }
    };
    let mut crc = Crc64::new();
    let span = AccessSpan {
        access: &access,
        start_bytes: 0,
    };
    if !inbox.land(&span, len_bytes, &mut crc).await? {
        return Ok(failed(TransferError::Revoked));
    }
    let crc64 = crc.value();
    access.wrote(crc64);
    Ok(Reply::Wrote { request, crc64 })
}

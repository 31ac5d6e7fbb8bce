//! Sends replies, and the data of reads under their holds.

use std::sync::Arc;

use crate::engine::{Op, TransferError};
use crate::exports::{Access, Wanted};
use crate::tcp::lane::Outbox;
use crate::tcp::target::queue::{Queue, Share, Work};
use crate::tcp::target::{AccessSpan, LaneContext};
use crate::tcp::wire::{Failure, Header, Kind, LaneError, put_failed, put_small};

/// Runs until the lane breaks.
pub(super) async fn run(mut outbox: Outbox, queue: Arc<Queue>, context: Arc<LaneContext>) -> Result<(), LaneError> {
    loop {
        match queue.next(outbox.waiting()) {
            Work::Serve(share) => {
                serve(&mut outbox, &queue, &context, &share).await?;
                queue.served(share.entries.len());
            }
            Work::Told => outbox.relieve().await?,
            Work::Nothing => {
                outbox.flush().await?;
                queue.wait_for_work().await;
            }
        }
    }
}

/// Serves reads that were asked for together: all holds are taken before the first byte is sent, and kept until the
/// last has been.
async fn serve(outbox: &mut Outbox, queue: &Queue, context: &LaneContext, share: &Share) -> Result<(), LaneError> {
    let begin = |entry: &_| {
        let &crate::tcp::wire::ReadEntry {
            key,
            offset_bytes,
            len_bytes,
        } = entry;
        context.exports.begin(
            context.session,
            &Wanted {
                op: Op::Read,
                key,
                offset_bytes,
                len_bytes,
            },
        )
    };
    let accesses: Vec<Result<Access, TransferError>> = share.entries.iter().map(begin).collect();
    for (request, access) in (share.first..).zip(&accesses) {
        let outcome = match access {
            Ok(access) => send(outbox, queue, request, access, share.frame_bytes).await?,
            Err(error) => Err(Failure::Transfer(error.clone())),
        };
        match outcome {
            Ok(stamp) => put_small(outbox.waiting(), Header::new(Kind::Done, request, stamp), &[]),
            Err(failure) => put_failed(outbox.waiting(), request, &failure),
        }
        outbox.relieve().await?;
    }
    Ok(())
}

/// Sends the data of one read; returns its stamp.
async fn send(
    outbox: &mut Outbox,
    queue: &Queue,
    request: u64,
    access: &Access,
    frame_bytes: u64,
) -> Result<Result<u64, Failure>, LaneError> {
    let len_bytes = access.len_bytes();
    let mut start_bytes = 0;
    while start_bytes < len_bytes {
        if queue.is_cancelled(request) {
            return Ok(Err(Failure::Cancelled));
        }
        queue.tell(outbox.waiting());
        let payload_bytes = u32::try_from(frame_bytes.min(len_bytes - start_bytes)).unwrap_or(u32::MAX);
        let header = Header {
            payload_bytes,
            ..Header::new(Kind::Data, request, start_bytes)
        };
        if !outbox.send(header, &AccessSpan { access, start_bytes }, None).await? {
            return Ok(Err(Failure::Transfer(TransferError::Revoked)));
        }
        start_bytes += u64::from(payload_bytes);
    }
    Ok(Ok(access.stamp()))
}

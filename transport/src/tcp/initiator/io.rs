//! The initiator's end of a lane: one task sends requests and the payloads of writes, another lands what comes back.

use std::sync::Arc;

use crate::checksum::Crc64;
use crate::engine::{Op, TransferError};
use crate::tcp::initiator::batch::{BatchSpan, PartDone};
use crate::tcp::initiator::requests::{Outgoing, Requests};
use crate::tcp::lane::{Frame, Inbox, Outbox};
use crate::tcp::wire::{Failure, Header, Kind, LaneError, decode_failure, put_reads, put_small};

/// Sends until the lane breaks.
pub(super) async fn send(mut outbox: Outbox, requests: Arc<Requests>, frame_bytes: u32) -> LaneError {
    loop {
        let sent = match requests.next() {
            Some(Outgoing::Reads { first, entries }) => {
                put_reads(outbox.waiting(), first, frame_bytes, &entries);
                outbox.relieve().await
            }
            Some(Outgoing::Cancel { requests }) => {
                let count = requests.end - requests.start;
                put_small(outbox.waiting(), Header::new(Kind::Cancel, requests.start, count), &[]);
                outbox.relieve().await
            }
            Some(Outgoing::Write { request }) => write(&mut outbox, &requests, request).await,
            None => {
                let flushed = outbox.flush().await;
                if flushed.is_ok() {
                    requests.wait_for_work().await;
                }
                flushed
            }
        };
        if let Err(error) = sent {
            return error;
        }
    }
}

/// Sends one write, unless its batch was closed before. If it is closed on the way, zeroes fill the frame: the owner is
/// told nothing of it, since whoever gave up the write cannot rely on the range anyway.
async fn write(outbox: &mut Outbox, requests: &Requests, request: u64) -> Result<(), LaneError> {
    let Some((batch, plan)) = requests.write(request) else {
        return Ok(());
    };
    if batch.is_closed() {
        drop(requests.take(request));
        return Ok(());
    }
    let payload_bytes = u32::try_from(plan.len_bytes).unwrap_or(u32::MAX);
    let header = Header {
        kind: Kind::Write,
        payload_bytes,
        request,
        a: plan.key.0,
        b: plan.remote_offset_bytes,
    };
    let span = BatchSpan {
        batch: &batch,
        transfer: plan.transfer,
        start_bytes: plan.start_bytes,
    };
    let mut crc = Crc64::new();
    if outbox.send(header, &span, Some(&mut crc)).await? {
        requests.sent(request, crc.value());
    }
    Ok(())
}

/// Lands what comes back until the lane breaks.
pub(super) async fn receive(mut inbox: Inbox, requests: Arc<Requests>) -> LaneError {
    loop {
        let handled = match inbox.frame().await {
            Ok(Some(frame)) => handle(&mut inbox, &requests, frame).await,
            Ok(None) => Err(LaneError::End),
            Err(error) => Err(error),
        };
        if let Err(error) = handled {
            return error;
        }
    }
}

async fn handle(inbox: &mut Inbox, requests: &Requests, frame: Frame) -> Result<(), LaneError> {
    let Frame { header, small } = frame;
    match header.kind {
        Kind::Data => return land(inbox, requests, header).await,
        Kind::Wrote if requests.wrote(header.request, header.a) => return Ok(()),
        _ => {}
    }
    let Some(part) = requests.take(header.request) else {
        return Err(LaneError::Protocol("an outcome of a request that is not under way"));
    };
    match (header.kind, part.plan.op) {
        (Kind::Done, Op::Read) if part.received_bytes == part.plan.len_bytes => {
            let crc64 = part.crc.value();
            part.end(Ok(PartDone {
                crc64,
                stamp: Some(header.a),
                sent_crc64: None,
            }));
        }
        (Kind::Failed, _) => match decode_failure(&small) {
            Some(Failure::Transfer(error)) => part.end(Err(error)),
            // Nobody waits for it.
            Some(Failure::Cancelled) => drop(part),
            None => return Err(LaneError::Protocol("a failure that cannot be understood")),
        },
        _ => return Err(LaneError::Protocol("an outcome that does not fit its request")),
    }
    Ok(())
}

/// Lands data of a read. Of a batch that was closed, it is thrown away.
async fn land(inbox: &mut Inbox, requests: &Requests, header: Header) -> Result<(), LaneError> {
    let len_bytes = u64::from(header.payload_bytes);
    let Some(mut part) = requests.take(header.request) else {
        return Err(LaneError::Protocol("data of a request that is not under way"));
    };
    let left = part.plan.len_bytes - part.received_bytes;
    if part.plan.op != Op::Read || header.a != part.received_bytes || len_bytes == 0 || len_bytes > left {
        return Err(LaneError::Protocol("data that does not fit its request"));
    }
    let (span, crc) = part.landing();
    if let Err(error) = inbox.land(&span, len_bytes, crc).await {
        part.end(Err(TransferError::Disconnected {
            reason: error.to_string(),
        }));
        return Err(error);
    }
    part.received_bytes += len_bytes;
    requests.put_back(header.request, part);
    Ok(())
}

//! The owner's end of a lane: lands writes, serves reads, and asks the guards.
//!
//! One task reads frames and lands writes; another sends replies and data. Neither waits for the other, except that the
//! reader stops while as much waits to be sent as may.

mod queue;
mod reader;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::exports::{Access, Exports};
use crate::ids::SessionId;
use crate::memory::Memory;
use crate::stream::{DetachedStream, Stream};
use crate::task::OwnedTask;
use crate::tcp::lane::{Inbox, Outbox, Progress, Span};

use queue::Queue;

/// What a lane's target side works with.
#[derive(Debug)]
pub(crate) struct LaneContext {
    pub(crate) session: SessionId,
    pub(crate) exports: Arc<Exports>,
    pub(crate) progress_timeout: Duration,
}

/// Serves one lane on the runtime this is called on, until it ends or `shutdown` says so.
pub(crate) async fn serve_lane(stream: DetachedStream, context: LaneContext, mut shutdown: watch::Receiver<bool>) {
    let stream = match Stream::attach(stream) {
        Ok(stream) => Arc::new(stream),
        Err(error) => return tracing::warn!(%error, "cannot put a data lane on its runtime"),
    };
    let context = Arc::new(context);
    let progress = Arc::new(Progress::new(Arc::clone(&stream)));
    let queue = Arc::new(Queue::default());
    let inbox = Inbox::new(Arc::clone(&stream), Arc::clone(&progress));
    let outbox = Outbox::new(stream, Arc::clone(&progress));
    let mut reader = OwnedTask::spawn(reader::run(inbox, Arc::clone(&queue), Arc::clone(&context)));
    let mut writer = OwnedTask::spawn(writer::run(outbox, queue, Arc::clone(&context)));
    let ended = tokio::select! {
        ended = reader.ended() => ended,
        ended = writer.ended() => ended,
        () = progress.stalled(context.progress_timeout, || false) => {
            tracing::info!(session = %context.session, "no byte moved on a data lane for too long: closing it");
            None
        }
        _ = shutdown.wait_for(|stop| *stop) => None,
    };
    if let Some(Err(error)) = ended {
        tracing::debug!(session = %context.session, %error, "data lane ended");
    }
    reader.stop().await;
    writer.stop().await;
}

/// Part of an access, as the payload of one frame.
struct AccessSpan<'a> {
    access: &'a Access,
    start_bytes: u64,
}

impl Span for AccessSpan<'_> {
    fn touch<T>(&self, offset_bytes: u64, touch: impl FnOnce(&Memory, u64, u64) -> T) -> Option<T> {
        let offset_bytes = self.start_bytes + offset_bytes;
        let room = self.access.len_bytes() - offset_bytes;
        self.access
            .touch(offset_bytes, |memory, at| touch(memory, at, room))
            .ok()
    }
}

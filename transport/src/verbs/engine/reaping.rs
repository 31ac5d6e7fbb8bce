//! Taking completions from their queues and giving them to whom they belong: by the reaper of a queue, which sleeps until an event
//! comes, and by whoever posts what is complete soon, and polls first.

use std::time::Duration;

use super::flight::Ticket;
use crate::verbs::{Completion, CompletionChannel, CompletionQueue};

/// Gives completions to whom they belong, for ever.
pub(super) async fn reap(rail: String, mut channel: CompletionChannel<Ticket>, spin: Duration) {
    let mut found = Vec::new();
    loop {
        if let Err(error) = channel.reap(spin, &mut found).await {
            tracing::error!(rail, %error, "a device gives no completions any more");
            return;
        }
        deliver(found.drain(..));
    }
}

pub(super) fn deliver(completions: impl Iterator<Item = Completion<Ticket>>) {
    for completion in completions {
        // What it read into or from is let go of before its owner hears of it.
        drop(completion.parts);
        completion.context.complete(completion.status);
    }
}

/// Gives what is complete now to whom it belongs. A queue that cannot be asked is the reaper's to report.
pub(super) fn deliver_complete(queue: &CompletionQueue<Ticket>) {
    let mut found = Vec::new();
    _ = queue.poll(&mut found);
    deliver(found.drain(..));
}

/// Stands for requests that were posted without asking for an event. Dropped before that is made up for, it leaves them to the
/// reaper.
pub(super) struct Unwatched<'a> {
    queue: &'a CompletionQueue<Ticket>,
    is_over: bool,
}

impl<'a> Unwatched<'a> {
    pub(super) fn new(queue: &'a CompletionQueue<Ticket>) -> Self {
        Self { queue, is_over: false }
    }

    /// They are complete.
    pub(super) fn end(mut self) {
        self.is_over = true;
    }

    /// They are to be waited for.
    pub(super) fn watch(mut self) {
        self.is_over = self.queue.arm().is_ok();
        deliver_complete(self.queue);
    }
}

impl Drop for Unwatched<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.queue.wake();
        }
    }
}

//! Waiting for completions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;

use super::completion_queue::CompletionQueue;
use super::error::VerbsError;
use super::raw;
use super::request::Completion;

/// The one reaper of a completion queue. It keeps the order that loses nothing: poll; while something is posted, ask for an
/// event and poll again; and only if there is still nothing, wait, and take *all* events that are there, since the
/// descriptor tells of the first. While nothing is posted it asks for none: whoever posts does
/// ([`QueuePair::post_send`](super::QueuePair::post_send)).
#[derive(Debug)]
pub struct CompletionChannel<T> {
    events: AsyncFd<Arc<raw::Channel>>,
    queue: Arc<CompletionQueue<T>>,
}

impl<T: Send + 'static> CompletionChannel<T> {
    /// Watches a queue. Have one of these per queue, and call it inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// [`VerbsError::System`] if the descriptor cannot be watched.
    pub fn new(queue: &Arc<CompletionQueue<T>>) -> Result<Self, VerbsError> {
        let events = queue
            .raw()
            .channel
            .watch()
            .map_err(|source| queue.device().failed("watch a completion channel", source))?;
        Ok(Self {
            events,
            queue: Arc::clone(queue),
        })
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Arc<CompletionQueue<T>> {
        &self.queue
    }

    /// Appends what is complete, and waits until something is. It polls for `spin` before it asks for an event and
    /// sleeps; between two polls the runtime's other tasks run. On a host with one processor, or beside a peer that
    /// shares it, `spin` must be zero: a spinning reaper keeps from working whom it waits for.
    ///
    /// Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// [`VerbsError::System`]: nothing will complete here any more.
    pub async fn reap(&mut self, mut spin: Duration, into: &mut Vec<Completion<T>>) -> Result<(), VerbsError> {
        loop {
            if self.queue.poll(into)? > 0 {
                return Ok(());
            }
            if self.queue.has_posted() {
                let start = Instant::now();
                // After a wait there is no more to be won.
                let spin = std::mem::take(&mut spin);
                while !spin.is_zero() && start.elapsed() < spin {
                    yield_now().await;
                    if self.queue.poll(into)? > 0 {
                        return Ok(());
                    }
                }
                self.queue.arm()?;
                if self.queue.poll(into)? > 0 {
                    return Ok(());
                }
            }
            self.wait().await?;
        }
    }

    /// Waits for an event of the device, or for somebody who wants the reaper to look.
    async fn wait(&self) -> Result<(), VerbsError> {
        let failed = |source| self.queue.device().failed("read a completion channel", source);
        tokio::select! {
            () = self.queue.woken() => Ok(()),
            ready = self.events.readable() => {
                let mut ready = ready.map_err(failed)?;
                ready.get_inner().drain().map_err(failed)?;
                ready.clear_ready();
                self.queue.disarmed();
                Ok(())
            }
        }
    }
}

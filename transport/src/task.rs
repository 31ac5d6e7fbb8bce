//! Tasks that do not outlive their owner.

use std::future::Future;

use tokio::task::{JoinError, JoinHandle};

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedTask<T = ()> {
    handle: JoinHandle<T>,
}

impl<T: Send + 'static> OwnedTask<T> {
    pub(crate) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self {
            handle: tokio::spawn(future),
        }
    }

    /// Waits until it has ended; `None` if it failed. Must not be called again after that.
    pub(crate) async fn ended(&mut self) -> Option<T> {
        (&mut self.handle).await.inspect_err(log_failure).ok()
    }

    /// Stops it where it waits, and returns when nothing of it runs any more. Fine if it has ended already.
    pub(crate) async fn stop(mut self) {
        self.handle.abort();
        if !self.handle.is_finished() {
            _ = (&mut self.handle).await;
        }
    }
}

fn log_failure(error: &JoinError) {
    if error.is_panic() {
        tracing::error!(%error, "a task failed");
    }
}

impl<T> Drop for OwnedTask<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

//! Tasks that do not outlive their owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedTask {
    handle: JoinHandle<()>,
}

impl OwnedTask {
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self {
            handle: tokio::spawn(future),
        }
    }

    /// Waits until it has ended. Must not be called again after that.
    pub(crate) async fn ended(&mut self) {
        if let Err(error) = (&mut self.handle).await {
            tracing::error!(%error, "a task failed");
        }
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

//! Memory windows of type 2: access to a part of a region, given and taken back by requests of a queue pair.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::VerbsError;
use super::memory_region::{Access, Local, RegionKey};
use super::queue_pair::{QueuePair, Shared};
use super::raw;
use super::request::{Binding, PostError, PostFailure, SendRequest};

/// A window of one queue pair: only the peer of that queue pair can use its key. Whether the device holds the peer to
/// the window's bounds must be probed: software devices do not.
///
/// A window keeps the region it is bound to, and its queue pair: it is released before either, since a device does not let go
/// of a region that has a window bound to it. Dropping it takes the access away, and is safe at any time; but a bound window
/// should be invalidated first, or its queue pair be in ERR.
pub struct MemoryWindow<T: Send + 'static> {
    /// Released first.
    raw: Arc<raw::Mw>,
    bound: Mutex<Bound>,
    queue_pair: Arc<Shared<T>>,
}

struct Bound {
    is_bound: bool,
    /// What the device may have it bound to: the part that it gives access to last, before it those whose invalidation was
    /// posted and is not known to have been carried out.
    parts: Vec<Local>,
    /// The key of the last binding, or the one it was made with.
    key: RegionKey,
}

impl<T: Send + fmt::Debug + 'static> MemoryWindow<T> {
    /// A new window, not bound to anything.
    ///
    /// # Errors
    /// [`VerbsError::System`]: the device has none, or no more.
    pub fn new(queue_pair: &QueuePair<T>) -> Result<Self, VerbsError> {
        let queue_pair = Arc::clone(queue_pair.shared());
        let raw = raw::Mw::new(&queue_pair.raw.pd);
        let raw = raw.map_err(|source| queue_pair.device().failed("allocate a memory window", source))?;
        let bound = Mutex::new(Bound {
            is_bound: false,
            parts: Vec::new(),
            key: RegionKey(raw.key),
        });
        Ok(Self {
            raw: Arc::new(raw),
            bound,
            queue_pair,
        })
    }

    /// Posts a request that gives the peer access to a part, of a region registered with
    /// [`Access::BIND_WINDOWS`], under the key that is returned: tell it once the request is complete. Each binding has
    /// another key.
    ///
    /// # Errors
    /// [`PostFailure::Window`] if it is bound, and those of [`QueuePair::post_send`], with the context.
    pub fn bind(&self, part: Local, access: Access, context: T) -> Result<RegionKey, PostError<T>> {
        let mut bound = self.bound.lock();
        if bound.is_bound {
            return Err(rejected(PostFailure::Window { bound: true }, context));
        }
        let key = next_key(bound.key);
        let binding = Binding {
            window: Arc::downgrade(&self.raw),
            key,
            part: part.clone(),
            access,
        };
        self.post(SendRequest::bind(binding, context))?;
        self.raw.bound(key.0);
        bound.parts.push(part);
        (bound.is_bound, bound.key) = (true, key);
        Ok(key)
    }

    /// Posts a request that takes the access away: once it is complete the key is no good any more, and what the peer
    /// had under way is refused. The window may be bound again at once: the queue pair keeps the order. Once it is complete
    /// with success, say so by [`MemoryWindow::invalidated`]; if it fails, the window stays what it was.
    ///
    /// # Errors
    /// [`PostFailure::Window`] if it is not bound, and those of [`QueuePair::post_send`], with the context.
    pub fn invalidate(&self, context: T) -> Result<(), PostError<T>> {
        let mut bound = self.bound.lock();
        let part = bound.parts.last().filter(|_| bound.is_bound);
        let Some(part) = part.cloned() else {
            return Err(rejected(PostFailure::Window { bound: false }, context));
        };
        self.post(SendRequest::invalidate(bound.key, part, context))?;
        bound.is_bound = false;
        Ok(())
    }

    /// The device has invalidated it, as often as was posted: it lets go of what it was bound to.
    pub fn invalidated(&self) {
        let mut bound = self.bound.lock();
        let kept = usize::from(bound.is_bound);
        let gone = bound.parts.len().saturating_sub(kept);
        let gone: Vec<Local> = bound.parts.drain(..gone).collect();
        drop(bound);
        // Deregistering takes time: without the lock.
        drop(gone);
    }

    /// Posts a request of this window. One that is refused is taken apart: it must not be posted later, when the window
    /// may be gone.
    fn post(&self, request: SendRequest<T>) -> Result<(), PostError<T>> {
        let posted = self.queue_pair.post_send(vec![request], true);
        posted.map_err(|error| PostError {
            failure: error.failure,
            rejected: error.rejected.into_iter().map(SendRequest::into_context).collect(),
        })
    }
}

fn rejected<T: fmt::Debug>(failure: PostFailure, context: T) -> PostError<T> {
    PostError {
        failure,
        rejected: vec![context],
    }
}

/// The key of the next binding: the last byte counts, the rest names the window.
fn next_key(key: RegionKey) -> RegionKey {
    RegionKey((key.0 & !0xff) | (key.0.wrapping_add(1) & 0xff))
}

impl<T: Send + 'static> fmt::Debug for MemoryWindow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryWindow")
            .field("parts", &self.bound.lock().parts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_binding_has_another_key_of_the_same_window() {
        assert_eq!(next_key(RegionKey(0x1234_5600)), RegionKey(0x1234_5601));
        assert_eq!(next_key(RegionKey(0x1234_56ff)), RegionKey(0x1234_5600));
        assert_eq!(next_key(RegionKey(u32::MAX)), RegionKey(0xffff_ff00));
    }
}

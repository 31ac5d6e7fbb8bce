//! What devices say unasked, and what follows from it for rails and paths; and how many paths ended otherwise than they should.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::rails::Rails;
use crate::limits::VERBS_LOOK_PERIOD;
use crate::verbs::{AsyncEvent, AsyncEvents, devices};

/// What asynchronous events were about, counted since the start.
#[derive(Debug, Default)]
pub struct EventCounts {
    /// A port went up.
    pub port_active: AtomicU64,
    /// A port went down.
    pub port_error: AtomicU64,
    /// Addresses or other properties of a port changed.
    pub port_change: AtomicU64,
    /// A queue pair failed: its device did, or its peer asked for what it may not have.
    pub queue_pair: AtomicU64,
    /// A device or completion queue failed for good.
    pub device: AtomicU64,
}

/// Paths that ended otherwise than they should, counted since the start.
#[derive(Debug, Default)]
pub struct Losses {
    /// Those that this side had connected.
    pub paths: AtomicU64,
    /// Those among them that the peer's device ended because a key was not good any more.
    pub refused: AtomicU64,
    /// Times that a peer lost all of its, because it did not forget in time where memory of this side lay.
    pub cut_off: AtomicU64,
}

impl EventCounts {
    /// Each with its name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 5] {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("port_active", of(&self.port_active)),
            ("port_error", of(&self.port_error)),
            ("port_change", of(&self.port_change)),
            ("queue_pair", of(&self.queue_pair)),
            ("device", of(&self.device)),
        ]
    }

    /// Counts an event, unless it is of no consequence.
    fn count(&self, event: AsyncEvent) {
        let count = match event {
            AsyncEvent::PortActive(_) => &self.port_active,
            AsyncEvent::PortError(_) => &self.port_error,
            AsyncEvent::GidChange(_) | AsyncEvent::PortChange(_) => &self.port_change,
            AsyncEvent::QueuePairFatal(_)
            | AsyncEvent::QueuePairRequestError(_)
            | AsyncEvent::QueuePairAccessError(_) => &self.queue_pair,
            AsyncEvent::DeviceFatal | AsyncEvent::CompletionQueueError => &self.device,
            AsyncEvent::LastRequest(_) | AsyncEvent::QueuePairOther(..) | AsyncEvent::Unknown(_) => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Acts on the events of one device, whose rails are `own`, until it fails. To look at a port may take long, with the experiment
/// with its windows some seconds: that is done on threads that may block.
pub(super) async fn follow(mut events: AsyncEvents, rails: Weak<Rails>, own: Vec<usize>) {
    let own: Arc<[usize]> = own.into();
    loop {
        let event = events.next().await;
        let Some(rails) = rails.upgrade() else { return };
        match event {
            Ok(event) => {
                rails.events().count(event);
                let own = Arc::clone(&own);
                let goes_on = spawn_blocking(move || act(&rails, &own, event)).await;
                if !goes_on.unwrap_or(false) {
                    return;
                }
            }
            Err(error) => return rails.device_gone(&own, &error.to_string()),
        }
    }
}

/// Lets go of devices that the system does not list any more: not all say that they are removed, and their removal waits
/// for those who use them.
pub(super) async fn look(rails: Weak<Rails>) {
    loop {
        sleep(VERBS_LOOK_PERIOD).await;
        let listed = spawn_blocking(devices).await;
        let Some(rails) = rails.upgrade() else { return };
        if let Ok(Ok(listed)) = listed {
            rails.keep_listed(&listed);
        }
    }
}

/// False if no more events are to come.
fn act(rails: &Rails, own: &[usize], event: AsyncEvent) -> bool {
    match event {
        AsyncEvent::PortActive(port)
        | AsyncEvent::PortError(port)
        | AsyncEvent::GidChange(port)
        | AsyncEvent::PortChange(port) => {
            for rail in own {
                if u32::from(rails.all()[*rail].port) == port {
                    rails.examine(*rail);
                }
            }
        }
        AsyncEvent::QueuePairFatal(number)
        | AsyncEvent::QueuePairRequestError(number)
        | AsyncEvent::QueuePairAccessError(number) => {
            tracing::debug!(?event, "a queue pair has failed");
            rails.lose_paths(|path| own.contains(&path.rail) && path.queue_pair_number() == number);
        }
        AsyncEvent::DeviceFatal | AsyncEvent::CompletionQueueError => {
            rails.device_gone(own, "the device has failed");
            return false;
        }
        AsyncEvent::LastRequest(_) | AsyncEvent::QueuePairOther(..) | AsyncEvent::Unknown(_) => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_of_consequence_is_counted_under_its_name() {
        let counts = EventCounts::default();
        let events = [
            AsyncEvent::PortActive(1),
            AsyncEvent::PortError(1),
            AsyncEvent::PortError(2),
            AsyncEvent::GidChange(1),
            AsyncEvent::QueuePairAccessError(7),
            AsyncEvent::DeviceFatal,
            AsyncEvent::LastRequest(7),
            AsyncEvent::Unknown(99),
        ];
        for event in events {
            counts.count(event);
        }
        let wanted = [
            ("port_active", 1),
            ("port_error", 2),
            ("port_change", 1),
            ("queue_pair", 1),
            ("device", 1),
        ];
        assert_eq!(counts.named(), wanted);
    }
}

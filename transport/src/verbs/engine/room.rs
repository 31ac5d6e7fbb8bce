//! Making room for queue pairs: a peer is asked to close paths that it does not use. Whether it does, it alone knows: reads
//! are seen by none but their initiator.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::message::Tell;

/// What one peer is asked to close.
#[derive(Debug, Default)]
pub(super) struct Room {
    wanted: watch::Sender<Option<Wanted>>,
}

#[derive(Debug)]
struct Wanted {
    paths: Vec<u8>,
    idle: Duration,
}

impl Room {
    /// Asks for those of these paths that were not used for some time.
    pub(super) fn ask(&self, paths: Vec<u8>, idle: Duration) {
        self.wanted.send_replace(Some(Wanted { paths, idle }));
    }

    /// Nothing will be asked any more: who listens is answered.
    pub(super) fn close(&self) {
        self.ask(Vec::new(), Duration::ZERO);
    }

    /// What the peer is to be told: what is asked for, as soon as something is, or after a while that it is nothing.
    pub(super) async fn next(&self, wait: Duration) -> Tell {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as this; what is there after the wait is taken either way.
        _ = timeout(wait, wanted.wait_for(Option::is_some)).await;
        let taken = self.wanted.send_replace(None);
        let (paths, idle) = taken.map_or_else(Default::default, |taken| (taken.paths, taken.idle));
        Tell::Crowded {
            paths,
            idle_ms: u32::try_from(idle.as_millis()).unwrap_or(u32::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_hears_once_what_is_asked_and_after_a_while_that_it_is_nothing() {
        let (room, wait) = (Room::default(), Duration::from_secs(30));
        room.ask(vec![1, 2], Duration::from_millis(70));
        let asked = Tell::Crowded {
            paths: vec![1, 2],
            idle_ms: 70,
        };
        assert_eq!(room.next(wait).await, asked);
        let (nothing, ()) = tokio::join!(room.next(wait), async {
            tokio::time::sleep(wait / 2).await;
        });
        assert_eq!(
            nothing,
            Tell::Crowded {
                paths: vec![],
                idle_ms: 0
            }
        );
        let (asked_late, ()) = tokio::join!(room.next(wait), async {
            tokio::time::sleep(wait / 2).await;
            room.ask(vec![3], Duration::ZERO);
        });
        assert_eq!(
            asked_late,
            Tell::Crowded {
                paths: vec![3],
                idle_ms: 0
            }
        );
    }
}

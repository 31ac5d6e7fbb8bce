//! Making room for queue pairs: a peer is asked to close paths that it does not use. Whether it does, it alone knows: reads
//! are seen by none but their initiator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::message::Tell;

/// What one peer is asked to close: paths, by the time that they must not have been used for. Several rails may want room
/// before it listens again.
#[derive(Debug, Default)]
pub(super) struct Room {
    wanted: watch::Sender<Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    paths: BTreeMap<Duration, BTreeSet<u8>>,
    /// Nothing will be asked any more.
    is_closed: bool,
}

impl Room {
    /// Asks for those of these paths that were not used for some time.
    pub(super) fn ask(&self, paths: impl IntoIterator<Item = u8>, idle: Duration) {
        self.wanted
            .send_modify(|wanted| wanted.paths.entry(idle).or_default().extend(paths));
    }

    /// Nothing will be asked any more: all who listen are answered.
    pub(super) fn close(&self) {
        self.wanted.send_modify(|wanted| wanted.is_closed = true);
    }

    /// What the peer is to be told: what is asked for, as soon as something is, or after a while that it is nothing.
    pub(super) async fn next(&self, wait: Duration) -> Tell {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as this; what is there after the wait is taken either way.
        let is_over = |wanted: &Wanted| wanted.is_closed || !wanted.paths.is_empty();
        _ = timeout(wait, wanted.wait_for(is_over)).await;
        let mut taken = None;
        self.wanted.send_if_modified(|wanted| {
            taken = wanted.paths.pop_first();
            false
        });
        let (idle, paths) = taken.unwrap_or_default();
        Tell::Crowded {
            paths: paths.into_iter().collect(),
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
        room.ask([1, 2], Duration::from_millis(70));
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
            room.ask([3], Duration::ZERO);
        });
        assert_eq!(
            asked_late,
            Tell::Crowded {
                paths: vec![3],
                idle_ms: 0
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_listen_are_answered_when_nothing_will_be_asked_any_more() {
        let (room, wait) = (Room::default(), Duration::from_secs(30));
        let start = tokio::time::Instant::now();
        let (one, other, ()) = tokio::join!(room.next(wait), room.next(wait), async { room.close() });
        assert_eq!((one, start.elapsed()), (other, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn what_several_rails_ask_for_at_once_is_told_whole() {
        let (room, wait) = (Room::default(), Duration::from_secs(30));
        let (long, short) = (Duration::from_secs(60), Duration::from_secs(1));
        room.ask([1], long);
        room.ask([2, 1], long);
        room.ask([2], short);
        let asked = |paths: &[u8], idle_ms| Tell::Crowded {
            paths: paths.to_vec(),
            idle_ms,
        };
        assert_eq!(room.next(wait).await, asked(&[2], 1_000));
        assert_eq!(room.next(wait).await, asked(&[1, 2], 60_000));
        assert_eq!(room.next(wait).await, asked(&[], 0));
    }
}

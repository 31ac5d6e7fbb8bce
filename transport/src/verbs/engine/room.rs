//! What an owner wants of a peer: to make room for queue pairs it is asked to close paths that it does not use, and before memory is
//! deregistered, to forget the keys to it. Whether it uses them, it alone knows: reads are seen by none but their initiator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::message::Tell;
use crate::ids::RemoteKey;
use crate::limits::VERBS_FORGET_KEYS_MAX;

/// What one peer is asked for: paths to be closed, by the time that they must not have been used for, and keys to be forgotten. Several
/// rails may want room, and many keys go, before it listens again.
#[derive(Debug, Default)]
pub(super) struct Room {
    wanted: watch::Sender<Wanted>,
}

#[derive(Debug, Default)]
struct Wanted {
    paths: BTreeMap<Duration, BTreeSet<u8>>,
    keys: BTreeSet<RemoteKey>,
    /// Nothing will be asked any more.
    is_closed: bool,
}

impl Room {
    /// Asks for those of these paths that were not used for some time.
    pub(super) fn ask(&self, paths: impl IntoIterator<Item = u8>, idle: Duration) {
        self.wanted
            .send_modify(|wanted| wanted.paths.entry(idle).or_default().extend(paths));
    }

    /// Asks for this key to be forgotten.
    pub(super) fn ask_to_forget(&self, key: RemoteKey) {
        self.wanted.send_modify(|wanted| _ = wanted.keys.insert(key));
    }

    /// It does not matter any more whether these are forgotten.
    pub(super) fn no_matter(&self, keys: impl IntoIterator<Item = RemoteKey>) {
        self.wanted.send_if_modified(|wanted| {
            for key in keys {
                wanted.keys.remove(&key);
            }
            false
        });
    }

    /// Nothing will be asked any more: all who listen are answered.
    pub(super) fn close(&self) {
        self.wanted.send_modify(|wanted| wanted.is_closed = true);
    }

    /// What the peer is to be told: what is asked for, as soon as something is, or after a while that it is nothing.
    pub(super) async fn next(&self, wait: Duration) -> Tell {
        let mut wanted = self.wanted.subscribe();
        // The sender lives as long as this; what is there after the wait is taken either way.
        let is_over = |wanted: &Wanted| wanted.is_closed || !wanted.paths.is_empty() || !wanted.keys.is_empty();
        _ = timeout(wait, wanted.wait_for(is_over)).await;
        let (mut room, mut keys) = (None, BTreeSet::new());
        self.wanted.send_if_modified(|wanted| {
            room = wanted.paths.pop_first();
            keys = std::mem::take(&mut wanted.keys);
            if let Some(first_later) = keys.iter().nth(VERBS_FORGET_KEYS_MAX).copied() {
                wanted.keys = keys.split_off(&first_later);
            }
            false
        });
        let (idle, paths) = room.unwrap_or_default();
        Tell::Wanted {
            paths: paths.into_iter().collect(),
            idle_ms: u32::try_from(idle.as_millis()).unwrap_or(u32::MAX),
            keys: keys.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(paths: &[u8], idle_ms: u32, keys: &[u64]) -> Tell {
        Tell::Wanted {
            paths: paths.to_vec(),
            idle_ms,
            keys: keys.iter().copied().map(RemoteKey).collect(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_hears_once_what_is_asked_and_after_a_while_that_it_is_nothing() {
        let (room, wait) = (Room::default(), Duration::from_secs(30));
        room.ask([1, 2], Duration::from_millis(70));
        assert_eq!(room.next(wait).await, wanted(&[1, 2], 70, &[]));
        let (nothing, ()) = tokio::join!(room.next(wait), async {
            tokio::time::sleep(wait / 2).await;
        });
        assert_eq!(nothing, wanted(&[], 0, &[]));
        let (asked_late, ()) = tokio::join!(room.next(wait), async {
            tokio::time::sleep(wait / 2).await;
            room.ask([3], Duration::ZERO);
        });
        assert_eq!(asked_late, wanted(&[3], 0, &[]));
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
        assert_eq!(room.next(wait).await, wanted(&[2], 1_000, &[]));
        assert_eq!(room.next(wait).await, wanted(&[1, 2], 60_000, &[]));
        assert_eq!(room.next(wait).await, wanted(&[], 0, &[]));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_are_told_together_once_each_and_no_more_than_fit_into_a_message() {
        let (room, wait) = (Room::default(), Duration::from_secs(30));
        let (told, ()) = tokio::join!(room.next(wait), async {
            tokio::time::sleep(wait / 2).await;
            room.ask_to_forget(RemoteKey(7));
        });
        assert_eq!(told, wanted(&[], 0, &[7]));
        let many: Vec<u64> = (0..2 * VERBS_FORGET_KEYS_MAX as u64 + 1).collect();
        many.iter().for_each(|key| room.ask_to_forget(RemoteKey(*key)));
        room.ask([1], Duration::ZERO);
        // The last one ended by itself meanwhile.
        room.no_matter([RemoteKey(2 * VERBS_FORGET_KEYS_MAX as u64)]);
        let parts: Vec<&[u64]> = many.chunks(VERBS_FORGET_KEYS_MAX).collect();
        assert_eq!(room.next(wait).await, wanted(&[1], 0, parts[0]));
        assert_eq!(room.next(wait).await, wanted(&[], 0, parts[1]));
        assert_eq!(room.next(wait).await, wanted(&[], 0, &[]));
    }
}

//! Where exports of a peer lie, as far as that was asked, and how that is forgotten when the peer wants its memory back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::message::Named;
use crate::ids::RemoteKey;
use crate::limits::{VERBS_FORGET_KEYS_MAX, VERBS_KEYS_MAX};
use crate::verbs::Remote;

/// Where an export of the peer lies, as each path names it. Who reads there keeps it until nothing of that is under way any more.
#[derive(Debug)]
pub(super) struct Place {
    key: RemoteKey,
    pub(super) len_bytes: u64,
    at: Vec<Named>,
    is_withdrawn: AtomicBool,
    ended: Arc<Notify>,
}

impl Place {
    /// Where a slice of it begins, on a path.
    pub(super) fn on(&self, path: u8, offset_bytes: u64) -> Option<Remote> {
        self.at.iter().find(|named| named.path == path)?.at(offset_bytes)
    }

    /// The same on each path.
    pub(super) fn on_all(&self, offset_bytes: u64) -> Vec<(u8, Remote)> {
        let at = |named: &Named| Some((named.path, named.at(offset_bytes)?));
        self.at.iter().filter_map(at).collect()
    }

    /// The peer wants it forgotten: nothing is to be begun there any more.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if *self.is_withdrawn.get_mut() {
            self.ended.notify_one();
        }
    }
}

/// The places of one connection.
#[derive(Debug, Default)]
pub(super) struct Places {
    state: Mutex<State>,
    /// A place that was withdrawn is not used any more.
    ended: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<RemoteKey, Arc<Place>>,
    /// Those that are to be asked for anew, and may still be used.
    old: Vec<Weak<Place>>,
    /// What the peer wants forgotten, with those that may still be used.
    leaving: Vec<(RemoteKey, Vec<Weak<Place>>)>,
    /// How many times it wanted something forgotten, or all was to be asked for anew.
    turns: u64,
}

/// What was known when a place was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    turns: u64,
}

impl Places {
    /// One that was asked for, if it is still good, and something of it.
    pub(super) fn known<T>(&self, key: RemoteKey, of: impl FnOnce(&Arc<Place>) -> Option<T>) -> Option<T> {
        of(self.state.lock().known.get(&key)?)
    }

    /// The peer is about to be asked for a place.
    pub(super) fn ask(&self) -> Asked {
        let turns = self.state.lock().turns;
        Asked { turns }
    }

    /// The answer. `None` if the peer wanted something forgotten meanwhile, it may have been this, or a path came that it does not name.
    pub(super) fn learn(&self, asked: Asked, key: RemoteKey, len_bytes: u64, at: Vec<Named>) -> Option<Arc<Place>> {
        let mut state = self.state.lock();
        if state.turns != asked.turns {
            return None;
        }
        let place = Arc::new(Place {
            key,
            len_bytes,
            at,
            is_withdrawn: AtomicBool::new(false),
            ended: Arc::clone(&self.ended),
        });
        if state.known.len() >= VERBS_KEYS_MAX {
            state.age(|_| true);
        }
        let before = state.known.insert(key, Arc::clone(&place));
        state.old.extend(before.iter().map(Arc::downgrade));
        Some(place)
    }

    /// Its key is not good any more: it is to be asked for anew.
    pub(super) fn remove(&self, key: RemoteKey) {
        self.state.lock().age(|of| of == key);
    }

    /// All are to be asked for anew.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        state.turns += 1;
        state.age(|_| true);
    }

    /// The peer wants these forgotten. A peer that wants more than there can be is not answered for the rest.
    pub(super) fn withdraw(&self, keys: &[RemoteKey]) {
        let mut state = self.state.lock();
        state.turns += 1;
        for key in keys {
            let uses = state.uses(*key);
            for place in uses.iter().filter_map(Weak::upgrade) {
                place.is_withdrawn.store(true, Ordering::Relaxed);
            }
            if state.leaving.len() < VERBS_KEYS_MAX {
                state.leaving.push((*key, uses));
            }
        }
        drop(state);
        self.ended.notify_one();
    }

    /// Keys that the peer wanted forgotten and that nothing is read under any more, as soon as there are some.
    pub(super) async fn forgotten(&self) -> Vec<RemoteKey> {
        loop {
            let forgotten = self.state.lock().forgotten();
            if !forgotten.is_empty() {
                return forgotten;
            }
            self.ended.notified().await;
        }
    }
}

impl State {
    /// These are not known any more. Who uses one goes on.
    fn age(&mut self, is_meant: impl Fn(RemoteKey) -> bool) {
        let aged = self.known.extract_if(|key, _| is_meant(*key));
        self.old.extend(aged.map(|(_, place)| Arc::downgrade(&place)));
        self.old.retain(|place| place.strong_count() > 0);
    }

    /// All places of a key that may be used; none is known any more.
    fn uses(&mut self, key: RemoteKey) -> Vec<Weak<Place>> {
        self.age(|of| of == key);
        let is_of_key = |place: &mut Weak<Place>| place.upgrade().is_some_and(|place| place.key == key);
        self.old.extract_if(.., is_of_key).collect()
    }

    /// As many as fit into a message.
    fn forgotten(&mut self) -> Vec<RemoteKey> {
        let is_over = |(_, uses): &mut (_, Vec<Weak<Place>>)| uses.iter().all(|place| place.strong_count() == 0);
        let over = self.leaving.extract_if(.., is_over).take(VERBS_FORGET_KEYS_MAX);
        over.map(|(key, _)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const KEY: RemoteKey = RemoteKey(7);

    async fn is_forgotten(places: &Places) -> Vec<RemoteKey> {
        let forgotten = timeout(Duration::from_secs(1), places.forgotten()).await;
        forgotten.unwrap_or_default()
    }

    fn learn(places: &Places, key: RemoteKey) -> Arc<Place> {
        places.learn(places.ask(), key, 100, Vec::new()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_forgotten_when_the_last_of_all_its_places_is_not_used_any_more() {
        let places = Places::default();
        let first = learn(&places, KEY);
        places.clear();
        let second = learn(&places, KEY);
        places.remove(KEY);
        let third = learn(&places, KEY);
        let other = learn(&places, RemoteKey(8));
        places.withdraw(&[KEY]);
        assert!(first.is_withdrawn() && second.is_withdrawn() && third.is_withdrawn());
        assert!(!other.is_withdrawn());
        assert!(places.known(KEY, |_| Some(())).is_none());
        for place in [third, first] {
            drop(place);
            assert_eq!(is_forgotten(&places).await, []);
        }
        let (forgotten, ()) = tokio::join!(is_forgotten(&places), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            drop(second);
        });
        assert_eq!(forgotten, [KEY]);
        assert_eq!(is_forgotten(&places).await, []);
        assert!(places.known(RemoteKey(8), |_| Some(())).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_is_not_known_is_forgotten_at_once() {
        let places = Places::default();
        drop(learn(&places, KEY));
        places.withdraw(&[KEY, RemoteKey(8)]);
        assert_eq!(is_forgotten(&places).await, [KEY, RemoteKey(8)]);
    }

    #[tokio::test]
    async fn an_answer_that_crosses_with_a_withdrawal_is_not_used() {
        let places = Places::default();
        let asked = places.ask();
        places.withdraw(&[KEY]);
        assert!(places.learn(asked, KEY, 100, Vec::new()).is_none());
        assert!(places.known(KEY, |_| Some(())).is_none());
    }

    #[tokio::test]
    async fn an_answer_that_crosses_with_a_new_path_is_not_used() {
        let places = Places::default();
        let asked = places.ask();
        places.clear();
        assert!(places.learn(asked, KEY, 100, Vec::new()).is_none());
        assert!(places.learn(places.ask(), KEY, 100, Vec::new()).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_wants_more_forgotten_than_there_can_be_takes_bounded_memory() {
        let places = Places::default();
        let many: Vec<RemoteKey> = (0..3 * VERBS_KEYS_MAX as u64).map(RemoteKey).collect();
        many.chunks(VERBS_FORGET_KEYS_MAX)
            .for_each(|keys| places.withdraw(keys));
        assert_eq!(places.state.lock().leaving.len(), VERBS_KEYS_MAX);
        for _ in 0..VERBS_KEYS_MAX / VERBS_FORGET_KEYS_MAX {
            assert_eq!(is_forgotten(&places).await.len(), VERBS_FORGET_KEYS_MAX);
        }
        assert_eq!(is_forgotten(&places).await, []);
    }
}

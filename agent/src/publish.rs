//! Telling homes of objects that they may not know: what one home accepted alone is told to both, in case it dies before
//! it can tell the other one.

use crate::deciding::Decision;
use crate::limits::{PUBLISH_PAUSE_MAX, PUBLISH_PAUSE_MIN, PUBLISH_TIMEOUT, PUBLISHED_KEYS_MAX};
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId};
use tenon_protocol::limits::PAGE_KEYS_MAX;
use tenon_protocol::member::{HomeEvent, HomeEventKind, Homes};
use tokio::time::Instant;

/// An object that is to be told.
#[derive(Debug, Clone, Copy)]
struct Unpublished {
    homes: Homes,
    /// The home's life when it was not told. A later life asks for everything by itself.
    life: Option<Incarnation>,
}

/// What is still to be told, by home; there is a task for each home that is here.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    by_home: Mutex<BTreeMap<NodeId, BTreeMap<KeyHash, Unpublished>>>,
}

impl Publisher {
    /// Adds an object; says whether a task is to be started. Beyond the bound the home that accepted is left to tell the
    /// other one.
    fn add(&self, home: NodeId, key_hash: KeyHash, unpublished: Unpublished) -> bool {
        let mut by_home = self.by_home.lock();
        let is_new = !by_home.contains_key(&home);
        let open = by_home.entry(home).or_default();
        if open.len() < PUBLISHED_KEYS_MAX {
            open.insert(key_hash, unpublished);
        }
        is_new
    }

    /// Some of what is to be told. The first life in which a home is seen is not taken for another one.
    fn some(&self, home: NodeId, life: Option<Incarnation>) -> Vec<(KeyHash, Unpublished)> {
        let mut by_home = self.by_home.lock();
        let open = by_home.get_mut(&home).into_iter().flatten();
        let some = open.take(PAGE_KEYS_MAX).map(|(key, open)| {
            open.life = open.life.or(life);
            (*key, *open)
        });
        some.collect()
    }

    /// Says whether more is to be told to the home; if not, its task ends.
    fn remove(&self, home: NodeId, keys: impl Iterator<Item = KeyHash>) -> bool {
        let mut by_home = self.by_home.lock();
        let Some(open) = by_home.get_mut(&home) else {
            return false;
        };
        for key in keys {
            open.remove(&key);
        }
        let has_more = !open.is_empty();
        if !has_more {
            by_home.remove(&home);
        }
        has_more
    }
}

impl Node {
    /// Tells both homes of an object that is held here, until each has taken it, has begun another life, or the object
    /// is not held any more.
    pub(crate) fn publish(self: &Arc<Self>, key_hash: KeyHash, homes: Homes) {
        for home in [Some(homes.first), homes.second].into_iter().flatten() {
            let life = self.known_incarnation(home);
            if self.publisher().add(home, key_hash, Unpublished { homes, life }) {
                tokio::spawn(Arc::clone(self).publish_to(home));
            }
        }
    }

    /// How many objects are still to be told to a home.
    pub(crate) fn unpublished(&self) -> usize {
        self.publisher().by_home.lock().values().map(BTreeMap::len).sum()
    }

    async fn publish_to(self: Arc<Self>, home: NodeId) {
        let mut pause = PUBLISH_PAUSE_MIN;
        loop {
            let open = self.publisher().some(home, self.known_incarnation(home));
            let told = self.tell(home, &open).await;
            let has_told = !told.is_empty();
            if !self.publisher().remove(home, told.into_iter()) {
                return;
            }
            if has_told {
                pause = PUBLISH_PAUSE_MIN;
                continue;
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PUBLISH_PAUSE_MAX);
        }
    }

    /// Tells a home of objects; answers which need not be told again.
    async fn tell(self: &Arc<Self>, home: NodeId, open: &[(KeyHash, Unpublished)]) -> Vec<KeyHash> {
        let (mut over, mut keys, mut events) = (Vec::new(), Vec::new(), Vec::<HomeEvent>::new());
        for &(key_hash, Unpublished { homes, life }) in open {
            match self.holder().held(key_hash) {
                Some(entry) if self.known_incarnation(home) == life => {
                    let kind = HomeEventKind::Publish(entry);
                    keys.push(key_hash);
                    events.push(Decision { key_hash, homes, kind }.event());
                }
                _ => over.push(key_hash),
            }
        }
        if !events.is_empty() {
            let answers = self.ask_home(home, events, Instant::now() + PUBLISH_TIMEOUT).await;
            let told = keys.into_iter().zip(answers).filter(|(_, answer)| answer.is_ok());
            over.extend(told.map(|(key, _)| key));
        }
        over
    }
}

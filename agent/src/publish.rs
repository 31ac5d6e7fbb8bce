//! Telling homes of objects that they may not know: what one home accepted alone is told to the other one too, in case
//! the first dies before it can tell it.

use crate::home::Decision;
use crate::limits::{PUBLISH_PAUSE_MAX, PUBLISH_PAUSE_MIN, PUBLISH_TIMEOUT, PUBLISHED_AT_ONCE_MAX};
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::ids::{Incarnation, KeyHash, NodeId};
use tenon_protocol::member::{HomeEvent, HomeEventKind, Homes, MirrorEntry};
use tokio::time::Instant;

/// What is still to be told.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    open: Mutex<BTreeSet<(NodeId, KeyHash)>>,
}

impl Node {
    /// Tells both homes of an object that is held here, until each has taken it, has begun another life and so asks for
    /// everything, or the object is not held any more.
    pub(crate) fn publish(self: &Arc<Self>, key_hash: KeyHash, homes: Homes) {
        for home in [Some(homes.first), homes.second].into_iter().flatten() {
            let mut open = self.publisher().open.lock();
            // Beyond the bound the home that accepted is left to tell the other one.
            if open.len() < PUBLISHED_AT_ONCE_MAX && open.insert((home, key_hash)) {
                tokio::spawn(Arc::clone(self).tell(home, key_hash, homes));
            }
        }
    }

    /// How many objects are still to be told to a home.
    pub(crate) fn unpublished(&self) -> usize {
        self.publisher().open.lock().len()
    }

    async fn tell(self: Arc<Self>, home: NodeId, key_hash: KeyHash, homes: Homes) {
        let life = self.known_incarnation(home);
        let mut pause = PUBLISH_PAUSE_MIN;
        while !self.is_told(home, life, key_hash, homes).await {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PUBLISH_PAUSE_MAX);
        }
        self.publisher().open.lock().remove(&(home, key_hash));
    }

    async fn is_told(
        self: &Arc<Self>,
        home: NodeId,
        life: Option<Incarnation>,
        key_hash: KeyHash,
        homes: Homes,
    ) -> bool {
        let Some(entry) = self
            .holder()
            .held(key_hash)
            .filter(|_| self.known_incarnation(home) == life)
        else {
            return true;
        };
        let told = MirrorEntry {
            sealed: Some(entry),
            ..MirrorEntry::default()
        };
        let event = Decision {
            key_hash,
            homes,
            kind: HomeEventKind::Share(told),
        };
        let events: Vec<HomeEvent> = vec![event.event()];
        let answers = self.ask_home(home, events, Instant::now() + PUBLISH_TIMEOUT).await;
        answers.into_iter().all(|answer| answer.is_ok())
    }
}

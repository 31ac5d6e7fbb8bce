//! Pages of what a node knows, for members that learn it: made in steps, between which others get their turn.
//!
//! A page looks at many objects that lie anywhere in memory, which takes milliseconds. A get that comes meanwhile needs
//! the same lock and the same processor.

use crate::holder::TableWriter;
use crate::limits::{PAGE_KEYS_ENOUGH, PAGE_STEPS_MAX};
use crate::node::Node;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::member::Page;
use tenon_protocol::name::Namespace;
use tenon_store_core::membership::IndexNodes;
use tenon_store_core::objects::Tellable;

impl Node {
    /// A page of what this node holds of which `home` is a home.
    pub(crate) async fn announce_to(self: &Arc<Self>, home: NodeId, after: Option<KeyHash>) -> Page {
        let of_all = self.view().index_nodes_of_all();
        // Neighbouring objects are mostly of one namespace.
        let mut last = None::<(Namespace, IndexNodes)>;
        let mut homes_of = |object: &Tellable<'_, TableWriter>| {
            let key_hash = object.key_hash;
            if let Some(index_nodes) = &of_all {
                return index_nodes.homes(key_hash);
            }
            let namespace = object.name().namespace();
            match &last {
                Some((known, index_nodes)) if known == namespace => index_nodes.homes(key_hash),
                _ => {
                    let (_, index_nodes) = last.insert((namespace.clone(), self.index_nodes(namespace)));
                    index_nodes.homes(key_hash)
                }
            }
        };
        in_steps(after, |after| {
            self.holder().announce(after, |object| {
                Some(homes_of(object)).filter(|homes| homes.includes(home))
            })
        })
        .await
    }

    /// A page of what this home keeps of the keys that it shares with another.
    pub(crate) async fn hand_over_to(self: &Arc<Self>, partner: NodeId, after: Option<KeyHash>) -> Page {
        in_steps(after, |after| self.homes().hand_over(partner, after)).await
    }
}

/// A page of the keys after one, put together from what each step gives.
async fn in_steps(mut after: Option<KeyHash>, mut step: impl FnMut(Option<KeyHash>) -> Page) -> Page {
    let mut keys = Vec::new();
    for _ in 0..PAGE_STEPS_MAX {
        let page = step(after);
        keys.extend(page.keys);
        after = page.next;
        if after.is_none() || keys.len() >= PAGE_KEYS_ENOUGH {
            break;
        }
        tokio::task::yield_now().await;
    }
    Page { keys, next: after }
}

/// One step under a lock, which goes to whoever waited for it: by itself the next step could be faster than they.
pub(crate) fn step<T, R>(lock: &Mutex<T>, step: impl FnOnce(&mut T) -> R) -> R {
    let mut locked = lock.lock();
    let result = step(&mut locked);
    MutexGuard::unlock_fair(locked);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::limits::PAGE_KEYS_MAX;
    use tenon_protocol::member::{Homes, MirrorEntry, PageKey};
    use tenon_store_core::limits::PAGE_STEP_KEYS_MAX;

    fn key(number: usize) -> KeyHash {
        KeyHash::from_bytes((number as u128).to_be_bytes())
    }

    /// A step over `total` keys that sees `seen` of them and tells every `told`th.
    fn steps(total: usize, seen: usize, told: usize) -> impl FnMut(Option<KeyHash>) -> Page {
        let node = NodeId::from_bytes([1; 16]);
        move |after| {
            let from = (0..total).position(|number| Some(key(number)) > after).unwrap_or(total);
            let until = total.min(from + seen);
            let told = (from..until).filter(|number| number % told == 0);
            Page {
                keys: told
                    .map(|number| PageKey {
                        key_hash: key(number),
                        homes: Homes {
                            first: node,
                            second: None,
                        },
                        entry: MirrorEntry::default(),
                    })
                    .collect(),
                next: (until < total).then(|| key(until - 1)),
            }
        }
    }

    async fn all(total: usize, seen: usize, told: usize) -> (Vec<KeyHash>, usize) {
        let (mut keys, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let page = in_steps(after, steps(total, seen, told)).await;
            assert!(page.keys.len() <= PAGE_KEYS_MAX);
            keys.extend(page.keys.iter().map(|key| key.key_hash));
            pages += 1;
            match page.next {
                None => return (keys, pages),
                next => after = next,
            }
        }
    }

    #[tokio::test]
    async fn pages_of_many_steps_tell_each_key_once_and_in_order() {
        for (total, told) in [
            (0, 1),
            (1, 1),
            (PAGE_KEYS_MAX, 1),
            (3 * PAGE_KEYS_MAX + 5, 1),
            (10_000, 7),
        ] {
            let (keys, _) = all(total, PAGE_STEP_KEYS_MAX, told).await;
            assert!(keys.into_iter().eq((0..total).step_by(told).map(key)), "{total} keys");
        }
    }

    #[tokio::test]
    async fn a_page_ends_after_so_many_steps_though_few_keys_were_told() {
        let total = 3 * PAGE_STEPS_MAX * PAGE_STEP_KEYS_MAX;
        let (keys, pages) = all(total, PAGE_STEP_KEYS_MAX, total).await;
        assert_eq!((keys.len(), pages), (1, 3));
    }
}

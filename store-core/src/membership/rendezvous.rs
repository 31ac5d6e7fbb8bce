//! Rendezvous hashing: every member gets a score for a thing, and the highest scores have it.
//!
//! Scores are 64-bit XXH3 of the member's 16 id bytes followed by what is ranked, with a seed that says what that is:
//! [`INDEX_SEED`] and the namespace's bytes, or [`HOME_SEED`] and the 16 bytes of the key hash. The highest score is
//! first; of equal scores the lower id is. This is part of what members must agree on: changing it is a new protocol
//! version.

use super::view::View;
use crate::limits::{INDEX_CACHE_NAMESPACES_MAX, INDEX_NODES_MAX};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::limits::NAMESPACE_LEN_BYTES_MAX;
use tenon_protocol::member::Homes;
use tenon_protocol::name::Namespace;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The seed of scores that choose the index nodes of a namespace.
pub const INDEX_SEED: u64 = 1;
/// The seed of scores that rank the homes of a key.
pub const HOME_SEED: u64 = 2;

const NODE_ID_BYTES: usize = 16;

/// The score of `node` for keeping index entries of `namespace`.
pub fn index_score(node: NodeId, namespace: &Namespace) -> u64 {
    let text = namespace.as_str().as_bytes();
    let mut input = [0; NODE_ID_BYTES + NAMESPACE_LEN_BYTES_MAX];
    let len = NODE_ID_BYTES + text.len();
    input[..NODE_ID_BYTES].copy_from_slice(&node.to_bytes());
    input[NODE_ID_BYTES..len].copy_from_slice(text);
    xxh3_64_with_seed(&input[..len], INDEX_SEED)
}

/// The score of `node` for being a home of the key.
pub fn home_score(node: NodeId, key_hash: KeyHash) -> u64 {
    let mut input = [0; 2 * NODE_ID_BYTES];
    input[..NODE_ID_BYTES].copy_from_slice(&node.to_bytes());
    input[NODE_ID_BYTES..].copy_from_slice(&key_hash.to_bytes());
    xxh3_64_with_seed(&input, HOME_SEED)
}

/// The nodes among which the homes of a namespace's keys are: at most [`INDEX_NODES_MAX`], so that a batch of keys asks
/// few nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexNodes(Box<[NodeId]>);

impl IndexNodes {
    pub(super) fn choose(members: &[NodeId], namespace: &Namespace) -> Self {
        let mut ranked: Vec<_> = members
            .iter()
            .map(|&node| (Reverse(index_score(node, namespace)), node))
            .collect();
        ranked.sort_unstable();
        ranked.truncate(INDEX_NODES_MAX);
        Self(ranked.into_iter().map(|(_, node)| node).collect())
    }

    /// Those of every namespace, if there are so few members.
    pub(super) fn of_all(members: &[NodeId]) -> Self {
        Self(members.into())
    }

    /// The nodes, highest score first, or by id if they are those of every namespace.
    pub fn nodes(&self) -> &[NodeId] {
        &self.0
    }

    /// The homes of a key of the namespace.
    ///
    /// # Panics
    /// Never: a view has at least one member.
    pub fn homes(&self, key_hash: KeyHash) -> Homes {
        let mut best: [Option<(Reverse<u64>, NodeId)>; 2] = [None, None];
        for &node in &self.0 {
            let ranked = (Reverse(home_score(node, key_hash)), node);
            if best[0].is_none_or(|first| ranked < first) {
                best = [Some(ranked), best[0]];
            } else if best[1].is_none_or(|second| ranked < second) {
                best[1] = Some(ranked);
            }
        }
        let [first, second] = best.map(|ranked| ranked.map(|(_, node)| node));
        Homes {
            first: first.expect("a view has at least one member"),
            second,
        }
    }
}

/// Index nodes of namespaces that were asked for lately, so that a view is not ranked for every call.
#[derive(Debug, Default)]
pub struct IndexCache {
    revision: u64,
    chosen: BTreeMap<Namespace, IndexNodes>,
}

impl IndexCache {
    /// The index nodes of `namespace` under `view`. Another revision empties the cache, and so does a full one.
    pub fn index_nodes(&mut self, view: &View, namespace: &Namespace) -> &IndexNodes {
        let is_full = self.chosen.len() >= INDEX_CACHE_NAMESPACES_MAX && !self.chosen.contains_key(namespace);
        if self.revision != view.revision() || is_full {
            self.chosen.clear();
            self.revision = view.revision();
        }
        self.chosen
            .entry(namespace.clone())
            .or_insert_with(|| view.index_nodes(namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ViewSource;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn node(id: u16) -> NodeId {
        NodeId::from_bytes((u128::from(id) << 64 | 7).to_be_bytes())
    }

    fn view(ids: impl IntoIterator<Item = u16>) -> View {
        View::new(ViewSource::Static, 1, ids.into_iter().map(node).collect()).unwrap()
    }

    fn key(id: u128) -> KeyHash {
        KeyHash::from_bytes(id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_be_bytes())
    }

    /// Members of different versions must rank alike: these scores were fixed when the rule was made.
    #[test]
    fn scores_are_fixed() {
        assert_eq!(
            home_score(NodeId::from_bytes([1; 16]), KeyHash::from_bytes([2; 16])),
            HOME_SCORE
        );
        let default = Namespace::new(Namespace::DEFAULT).unwrap();
        assert_eq!(index_score(NodeId::from_bytes([1; 16]), &default), INDEX_SCORE);
    }
    const HOME_SCORE: u64 = 3_544_930_356_181_972_912;
    const INDEX_SCORE: u64 = 13_491_450_620_864_262_045;

    #[test]
    fn one_member_is_the_only_home() {
        let homes = View::standalone(node(1)).homes(&Namespace::new("a").unwrap(), key(1));
        assert_eq!(
            homes,
            Homes {
                first: node(1),
                second: None
            }
        );
    }

    #[test]
    fn a_namespace_has_at_most_eight_index_nodes_and_namespaces_differ() {
        let view = view(0..100);
        let (one, other) = (Namespace::new("one").unwrap(), Namespace::new("other").unwrap());
        assert_eq!(view.index_nodes(&one).nodes().len(), INDEX_NODES_MAX);
        assert_ne!(view.index_nodes(&one), view.index_nodes(&other));
    }

    #[test]
    fn few_members_are_the_index_nodes_of_every_namespace() {
        let few = view(0..8);
        let of_all = few.index_nodes_of_all().unwrap();
        for namespace in ["one", "other"].map(|name| Namespace::new(name).unwrap()) {
            let index = few.index_nodes(&namespace);
            assert!((0..1_000).all(|id| index.homes(key(id)) == of_all.homes(key(id))));
        }
        assert_eq!(view(0..9).index_nodes_of_all(), None);
    }

    #[test]
    fn first_homes_are_spread_evenly() {
        let view = view(0..5);
        let index = view.index_nodes(&Namespace::new("n").unwrap());
        let mut keys_of = BTreeMap::new();
        for id in 0..10_000 {
            *keys_of.entry(index.homes(key(id)).first).or_insert(0) += 1;
        }
        assert!(
            keys_of.len() == 5 && keys_of.values().all(|keys| (1_800..2_200).contains(keys)),
            "{keys_of:?}"
        );
    }

    #[test]
    fn the_cache_answers_as_the_view_does_and_follows_its_revision() {
        let (old, new) = (
            view(0..20),
            View::new(ViewSource::Static, 2, (5..30).map(node).collect()).unwrap(),
        );
        let mut cache = IndexCache::default();
        for round in 0..3 * INDEX_CACHE_NAMESPACES_MAX {
            let namespace = Namespace::new(&format!("n{}", round % (INDEX_CACHE_NAMESPACES_MAX + 5))).unwrap();
            let view = if round % 100 < 50 { &old } else { &new };
            assert_eq!(cache.index_nodes(view, &namespace), &view.index_nodes(&namespace));
            assert!(cache.chosen.len() <= INDEX_CACHE_NAMESPACES_MAX);
        }
    }

    proptest! {
        /// What a full ranking says, and what makes rendezvous hashing worth it: a member that leaves moves only its
        /// own keys.
        #[test]
        fn homes_are_the_two_best_and_survive_the_departure_of_others(
            ids in proptest::collection::btree_set(0u16..50, 3..8), at: proptest::sample::Index, seed: u128
        ) {
            let namespace = Namespace::new("n").unwrap();
            let homes = view(ids.iter().copied()).homes(&namespace, key(seed));
            let mut ranked: Vec<NodeId> = ids.iter().copied().map(node).collect();
            ranked.sort_by_key(|&node| (Reverse(home_score(node, key(seed))), node));
            prop_assert_eq!((homes.first, homes.second), (ranked[0], Some(ranked[1])));
            let gone = *at.get(&ids.iter().copied().collect::<Vec<_>>());
            let left: BTreeSet<u16> = ids.into_iter().filter(|&id| id != gone).collect();
            if !homes.includes(node(gone)) {
                prop_assert_eq!(view(left).homes(&namespace, key(seed)), homes);
            }
        }
    }
}

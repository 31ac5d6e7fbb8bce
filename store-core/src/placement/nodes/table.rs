//! What is known of the nodes, and the choice of one.

use std::fmt;
use std::str::FromStr;

use rand::{Rng, RngExt};
use thiserror::Error;

use super::weights::Weights;
use crate::limits::{DISTINCT_DRAWS_NODES_MAX, LEVEL_TOLERANCE, MEAN_LEN_QUESTIONS, NODE_DRAWS_MAX};
use crate::names::{self, UnknownName};
use crate::placement::{EntryIndex, Fit, FitIndex};

/// The position of a node in a [`NodeTable`]; it stays the same for as long as the table does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIndex(pub usize);

/// What a node says of its space, with every reply and heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeHint {
    /// Which life of the node, then which state in it: a higher one is newer.
    pub version: (u64, u64),
    /// Bytes that can be allocated when none are.
    pub capacity_bytes: u64,
    /// Bytes that are not allocated.
    pub free_bytes: u64,
    /// A size that no free region of the node exceeded at that moment.
    pub largest_free_upper_bound_bytes: u64,
}

/// Why a node is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// It is the node that decides, and not as full yet as it may be.
    Local,
    /// It was drawn by its capacity, or is the emptier of two that were.
    Drawn,
    /// Of those that may have room its largest free region is the smallest.
    Tightest,
    /// It was known to have no room, and all others have none: it is looked at, and asked for room in spite of a hint if it has said that it may have some.
    Confirmation,
}

impl Why {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Local, Self::Drawn, Self::Tightest, Self::Confirmation];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Drawn => "drawn",
            Self::Tightest => "tightest",
            Self::Confirmation => "confirmation",
        }
    }
}

/// Which node is tried first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Affinity {
    /// The node that decides, until it is as full as [`NodePolicy::local_until_percent`] says; then as [`Self::Spread`].
    #[default]
    Local,
    /// The emptier of two nodes drawn in proportion to their capacity.
    Spread,
}

impl Affinity {
    const ALL: [Self; 2] = [Self::Local, Self::Spread];

    fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Spread => "spread",
        }
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Affinity {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        names::choose("placement affinity", name, &Self::ALL, Self::name)
    }
}

/// How nodes are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePolicy {
    /// Which node is tried first.
    pub affinity: Affinity,
    /// How full in percent of its capacity the local node may be and still come first.
    pub local_until_percent: u8,
}

impl Default for NodePolicy {
    fn default() -> Self {
        Self {
            affinity: Affinity::default(),
            local_until_percent: 80,
        }
    }
}

/// Why a policy cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// A node cannot be fuller than full.
    #[error("local_until of {percent} % is more than 100 %")]
    LocalUntil {
        /// What was asked for.
        percent: u8,
    },
}

#[derive(Clone, Debug)]
struct Node {
    hint: Option<NodeHint>,
    is_usable: bool,
    /// Bytes asked of the node whose answer, and so whose hint, is still to come.
    asked_bytes: u64,
}

/// The nodes that a decision may choose from, by what they last said.
#[derive(Clone, Debug)]
pub struct NodeTable {
    policy: NodePolicy,
    local: Option<NodeIndex>,
    nodes: Vec<Node>,
    /// Capacities in MiB of the usable nodes, those unknown counted as the mean of the others.
    weights: Weights,
    /// Bounds of the usable nodes.
    bounds: FitIndex,
    known: usize,
    known_mib: u64,
    /// Mean length in bytes of what nodes were asked for lately.
    mean_len_bytes: f64,
}

impl NodeTable {
    /// A table without nodes.
    ///
    /// # Errors
    ///
    /// [`PolicyError`] names the value that cannot be.
    pub fn new(policy: NodePolicy) -> Result<Self, PolicyError> {
        if policy.local_until_percent > 100 {
            return Err(PolicyError::LocalUntil {
                percent: policy.local_until_percent,
            });
        }
        Ok(Self {
            policy,
            local: None,
            nodes: Vec::new(),
            weights: Weights::default(),
            bounds: FitIndex::new(0),
            known: 0,
            known_mib: 0,
            mean_len_bytes: 0.0,
        })
    }

    /// Adds a usable node of which nothing is known yet.
    pub fn add(&mut self) -> NodeIndex {
        self.nodes.push(Node {
            hint: None,
            is_usable: true,
            asked_bytes: 0,
        });
        self.weights.push();
        self.bounds.push();
        let node = NodeIndex(self.nodes.len() - 1);
        self.note(node);
        node
    }

    /// Says which node is the one that decides.
    pub fn set_local(&mut self, node: NodeIndex) {
        self.local = Some(node);
    }

    /// Says whether a node may be chosen: one that is unreachable, draining or gone may not.
    ///
    /// # Panics
    /// If there is no such node, as all methods that name one.
    pub fn set_usable(&mut self, node: NodeIndex, is_usable: bool) {
        self.nodes[node.0].is_usable = is_usable;
        self.note(node);
    }

    /// Takes note of a hint, unless a newer one is known.
    pub fn hear(&mut self, node: NodeIndex, hint: NodeHint) {
        let known = &mut self.nodes[node.0].hint;
        if known.is_some_and(|known| known.version > hint.version) {
            return;
        }
        let old_mib = known.replace(hint).map(|old| mib(old.capacity_bytes));
        self.known += usize::from(old_mib.is_none());
        self.known_mib = self.known_mib - old_mib.unwrap_or(0) + mib(hint.capacity_bytes);
        self.note(node);
        if old_mib.is_none() && self.known.is_power_of_two() {
            // The mean has changed; later ones change it less, and a node does not stay unknown for long.
            let unknown = (0..self.nodes.len()).filter(|&other| self.nodes[other].hint.is_none());
            unknown
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|other| self.note(NodeIndex(other)));
        }
    }

    /// What a node last said.
    #[must_use]
    pub fn hint(&self, node: NodeIndex) -> Option<NodeHint> {
        self.nodes[node.0].hint
    }

    /// Number of nodes ever added.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no node was ever added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Whether a node can hold `len_bytes`, as far as its hint tells.
    #[must_use]
    pub fn fit(&self, node: NodeIndex, len_bytes: u64) -> Fit {
        match self.nodes[node.0].hint {
            None => Fit::Unknown,
            Some(hint) if hint.largest_free_upper_bound_bytes < len_bytes => Fit::NoFit,
            Some(_) => Fit::MayFit,
        }
    }

    /// The node to ask for `len_bytes` among those that `may_use` accepts, or nothing if all of them are known to have no room.
    pub(super) fn choose<R: Rng + ?Sized>(
        &self,
        len_bytes: u64,
        may_use: &dyn Fn(NodeIndex) -> bool,
        rng: &mut R,
    ) -> Option<(NodeIndex, Why)> {
        let is_candidate =
            |node: NodeIndex| self.is_usable(node) && self.fit(node, len_bytes) != Fit::NoFit && may_use(node);
        if let Some(local) = self.local
            && self.policy.affinity == Affinity::Local
            && is_candidate(local)
            && self.is_local_open(local)
        {
            return Some((local, Why::Local));
        }
        match self.drawn(len_bytes, &is_candidate, rng) {
            Some(node) if !self.takes_most_of(node, len_bytes) => Some((node, Why::Drawn)),
            // Candidates are rare, or the largest region of this one would be gone: the order of bounds knows whose is the tightest.
            _ => {
                let may_use = |entry: EntryIndex| is_candidate(NodeIndex(entry.0));
                self.bounds
                    .tightest(len_bytes, &may_use)
                    .map(|entry| (NodeIndex(entry.0), Why::Tightest))
            }
        }
    }

    /// The emptier of two nodes drawn by their capacity, or one so drawn.
    ///
    /// Who carries the bytes levels the nodes: an object shorter than the mean takes the second draw with as small a probability as it
    /// is short. It could not level anything, and would only send its writes to the emptiest node.
    fn drawn<R: Rng + ?Sized>(
        &self,
        len_bytes: u64,
        is_candidate: &dyn Fn(NodeIndex) -> bool,
        rng: &mut R,
    ) -> Option<NodeIndex> {
        let draw = |rng: &mut R| {
            let mut drawn = (0..NODE_DRAWS_MAX).filter_map(|_| self.weights.draw(rng).map(NodeIndex));
            drawn.find(|&node| is_candidate(node))
        };
        let first = draw(rng)?;
        let has_weight = rng.random_range(0.0..1.0) * self.mean_len_bytes <= len_bytes as f64;
        let mut second = if has_weight { draw(rng) } else { None };
        if self.nodes.len() <= DISTINCT_DRAWS_NODES_MAX {
            // One node drawn twice levels nothing, and of few nodes that is often so.
            for _ in 0..NODE_DRAWS_MAX {
                second = second.and_then(|second| if second == first { draw(rng) } else { Some(second) });
            }
        }
        Some(second.map_or(first, |second| self.emptier(first, second)))
    }

    /// Whether a request takes more than half of the largest region that a node may have.
    fn takes_most_of(&self, node: NodeIndex, len_bytes: u64) -> bool {
        let bound_bytes = self.nodes[node.0].hint.map(|hint| hint.largest_free_upper_bound_bytes);
        bound_bytes.is_some_and(|bound_bytes| len_bytes > bound_bytes / 2)
    }

    /// Usable nodes.
    pub(super) fn usable(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.nodes.len())
            .map(NodeIndex)
            .filter(|&node| self.is_usable(node))
    }

    /// Bytes that a node has for questions beyond those under way; unlimited as long as nothing is known.
    pub(super) fn room_bytes(&self, node: NodeIndex) -> u64 {
        let Node { hint, asked_bytes, .. } = &self.nodes[node.0];
        hint.map_or(u64::MAX, |hint| hint.free_bytes.saturating_sub(*asked_bytes))
    }

    /// A question of so many bytes is under way to a node.
    pub(super) fn asked(&mut self, node: NodeIndex, len_bytes: u64) {
        self.nodes[node.0].asked_bytes += len_bytes;
        self.note_len(len_bytes);
    }

    /// A node is asked whether it may have room for so many bytes: a question too, but nothing of its room goes with it.
    pub(super) fn looked_at(&mut self, len_bytes: u64) {
        self.note_len(len_bytes);
    }

    fn note_len(&mut self, len_bytes: u64) {
        self.mean_len_bytes += (len_bytes as f64 - self.mean_len_bytes) / MEAN_LEN_QUESTIONS;
    }

    /// A question of so many bytes is over.
    pub(super) fn answered(&mut self, node: NodeIndex, len_bytes: u64) {
        let asked_bytes = &mut self.nodes[node.0].asked_bytes;
        *asked_bytes = asked_bytes.checked_sub(len_bytes).expect("a question that was asked");
    }

    /// Whether a node may be chosen.
    #[must_use]
    pub fn is_usable(&self, node: NodeIndex) -> bool {
        self.nodes[node.0].is_usable
    }

    fn is_local_open(&self, local: NodeIndex) -> bool {
        let full_ratio = self.free_ratio(local).map_or(0.0, |ratio| 1.0 - ratio);
        full_ratio < f64::from(self.policy.local_until_percent) / 100.0
    }

    fn free_ratio(&self, node: NodeIndex) -> Option<f64> {
        let hint = self.nodes[node.0].hint?;
        Some(self.room_bytes(node) as f64 / hint.capacity_bytes.max(1) as f64)
    }

    /// The emptier of two nodes; the first if they are level or one is unknown. Being level within a tolerance, they share the load
    /// evenly instead of taking turns in long runs.
    fn emptier(&self, first: NodeIndex, second: NodeIndex) -> NodeIndex {
        match (self.free_ratio(first), self.free_ratio(second)) {
            (Some(ratio), Some(other)) if other > ratio + LEVEL_TOLERANCE => second,
            _ => first,
        }
    }

    /// Brings weight and bound of a node up to date.
    fn note(&mut self, node: NodeIndex) {
        let Node { hint, is_usable, .. } = &self.nodes[node.0];
        let mean_mib = (self.known_mib / self.known.max(1) as u64).max(1);
        let weight = hint.map_or(mean_mib, |hint| mib(hint.capacity_bytes));
        let bound = if *is_usable {
            hint.map(|hint| hint.largest_free_upper_bound_bytes)
        } else {
            Some(0)
        };
        self.weights.set(node.0, if *is_usable { weight } else { 0 });
        self.bounds.set(EntryIndex(node.0), bound);
    }
}

/// A capacity as a weight: a node that has any counts.
fn mib(capacity_bytes: u64) -> u64 {
    capacity_bytes.div_ceil(1 << 20)
}

//! Simulated nodes: several segments each, reached by what they last said.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tenon_store_core::allocator::{PackedSegments, RegionAllocator, SegmentIndex};
use tenon_store_core::placement::nodes::{
    Action, Affinity, Event, ItemOutcome, NodeHint, NodeIndex, NodePlan, NodePolicy, NodeTable, PlanItem,
};
use tenon_store_core::placement::{EntryIndex, IndexedPool, Pool as _};

use super::subject::{self, Object, Subject, Way};

/// Nodes with segments of one size, and a way to place objects on them.
pub(super) enum Cluster {
    /// All segments of all nodes are one pool.
    Flat {
        /// The pool.
        subject: Box<dyn Subject>,
        /// How many segments following each other are of one node.
        segments_per_node: usize,
    },
    /// A node is chosen by its hint, and packs.
    Nodes(Box<Nodes>),
}

/// An object on a node.
pub(super) struct Held {
    /// The node.
    pub(super) node: usize,
    object: Object,
}

impl Cluster {
    /// Empty nodes. [`Way::Default`] and [`Way::Indexed`] choose nodes by their hints; the other ways see all segments at
    /// once.
    #[must_use]
    pub(super) fn new(way: Way, nodes: usize, segments_per_node: usize, segment_bytes: u64, seed: u64) -> Self {
        match way {
            Way::Default | Way::Indexed => {
                let new_node = || Space::new(way, &vec![segment_bytes; segments_per_node]);
                let spaces = (0..nodes).map(|_| new_node()).collect();
                Self::Nodes(Box::new(Nodes::new(spaces, seed)))
            }
            way => Self::Flat {
                subject: subject::new(way, &vec![segment_bytes; nodes * segments_per_node], seed),
                segments_per_node,
            },
        }
    }

    /// Puts an object.
    pub(super) fn put(&mut self, len_bytes: u64) -> Option<Held> {
        match self {
            Self::Flat {
                subject,
                segments_per_node,
            } => {
                let object = subject.place(len_bytes)?;
                Some(Held {
                    node: object.0 / *segments_per_node,
                    object,
                })
            }
            Self::Nodes(nodes) => nodes.put(len_bytes),
        }
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, held: Held) {
        match self {
            Self::Flat { subject, .. } => subject.free(held.object),
            Self::Nodes(nodes) => nodes.remove(held),
        }
    }

    /// All nodes say how they are.
    pub(super) fn heartbeat(&mut self) {
        if let Self::Nodes(nodes) = self {
            (0..nodes.nodes.len()).for_each(|node| nodes.tell(node));
        }
    }
}

/// The segments of one node.
pub(super) enum Space {
    /// Under one index of regions.
    Packed(PackedSegments),
    /// Each with an allocator of its own, in the order of their hints.
    Indexed {
        pool: IndexedPool<RegionAllocator>,
        capacity_bytes: u64,
    },
}

impl Space {
    /// Empty ones.
    pub(super) fn new(way: Way, segments_bytes: &[u64]) -> Self {
        match way {
            Way::Default => Self::Packed(subject::Packed::new(segments_bytes).0),
            _ => Self::Indexed {
                pool: IndexedPool::new(subject::segments(segments_bytes)),
                capacity_bytes: segments_bytes.iter().sum(),
            },
        }
    }

    fn allocate(&mut self, len_bytes: u64) -> Option<Object> {
        match self {
            Self::Packed(space) => {
                let (segment, region) = space.allocate(len_bytes).ok()?;
                Some((segment.0, region))
            }
            Self::Indexed { pool, .. } => {
                let entry = pool.tightest(len_bytes, &|_| true)?;
                let region = pool.allocate(entry, 0, len_bytes)?;
                Some((entry.0, region))
            }
        }
    }

    fn free(&mut self, (segment, region): Object) {
        let freed = match self {
            Self::Packed(space) => space.free(SegmentIndex(segment), region),
            Self::Indexed { pool, .. } => pool.change(EntryIndex(segment), |segment| segment.free(region)),
        };
        freed.expect("allocated there");
    }

    /// Capacity, free bytes and the bound of the largest free region.
    fn room(&self) -> (u64, u64, u64) {
        match self {
            Self::Packed(space) => (space.capacity_bytes(), space.free_bytes(), space.largest_free_bytes()),
            Self::Indexed { pool, capacity_bytes } => {
                let summary = pool.summary();
                let bound_bytes = summary.largest_free_upper_bound_bytes.expect("all hints are known");
                (*capacity_bytes, summary.free_bytes, bound_bytes)
            }
        }
    }
}

/// Nodes behind a table of hints.
pub(super) struct Nodes {
    nodes: Vec<Space>,
    versions: Vec<u64>,
    table: NodeTable,
    rng: ChaCha8Rng,
}

impl Nodes {
    /// Nodes that know each other's hints.
    pub(super) fn new(nodes: Vec<Space>, seed: u64) -> Self {
        let policy = NodePolicy {
            affinity: Affinity::Spread,
            ..NodePolicy::default()
        };
        let mut cluster = Self {
            versions: Vec::new(),
            nodes: Vec::new(),
            table: NodeTable::new(policy).expect("a valid policy"),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        for node in nodes {
            cluster.join(node);
        }
        cluster
    }

    /// A node comes to the others, which know its hint. Answers its position.
    pub(super) fn join(&mut self, node: Space) -> usize {
        self.nodes.push(node);
        self.versions.push(0);
        self.table.add();
        self.tell(self.nodes.len() - 1);
        self.nodes.len() - 1
    }

    /// How much of each node is used.
    pub(super) fn used_fractions(&self) -> Vec<f64> {
        let used = |space: &Space| {
            let (capacity_bytes, free_bytes, _) = space.room();
            1.0 - free_bytes as f64 / capacity_bytes as f64
        };
        self.nodes.iter().map(used).collect()
    }

    fn hint(&mut self, node: usize) -> NodeHint {
        self.versions[node] += 1;
        let (capacity_bytes, free_bytes, largest_free_upper_bound_bytes) = self.nodes[node].room();
        NodeHint {
            version: (1, self.versions[node]),
            capacity_bytes,
            free_bytes,
            largest_free_upper_bound_bytes,
        }
    }

    fn tell(&mut self, node: usize) {
        let hint = self.hint(node);
        self.table.hear(NodeIndex(node), hint);
    }

    /// Puts an object.
    pub(super) fn put(&mut self, len_bytes: u64) -> Option<Held> {
        let mut plan = NodePlan::new(&[PlanItem { len_bytes, replicas: 1 }]).expect("a valid item");
        let mut objects: Vec<(usize, Object)> = Vec::new();
        let mut actions = std::collections::VecDeque::from(plan.start(&mut self.table, &mut self.rng));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Reserve { node, .. } => {
                    let object = self.nodes[node.0].allocate(len_bytes);
                    let items = vec![(0, object.is_some())];
                    objects.extend(object.map(|object| (node.0, object)));
                    let event = Event::Answered {
                        node,
                        items,
                        hint: self.hint(node.0),
                    };
                    actions.extend(plan.on(event, &mut self.table, &mut self.rng));
                }
                Action::Look { node, .. } => {
                    let hint = self.hint(node.0);
                    let items = vec![(0, len_bytes <= hint.largest_free_upper_bound_bytes)];
                    let event = Event::Looked { node, items, hint };
                    actions.extend(plan.on(event, &mut self.table, &mut self.rng));
                }
                Action::Release { node, .. } => {
                    let position = objects
                        .iter()
                        .position(|&(at, _)| at == node.0)
                        .expect("room was set aside");
                    self.nodes[node.0].free(objects.swap_remove(position).1);
                }
                Action::Finish => {}
            }
        }
        match plan.outcomes(&self.table).remove(0) {
            ItemOutcome::Placed(_) => {
                let (node, object) = objects.pop().expect("room was set aside");
                Some(Held { node, object })
            }
            ItemOutcome::NoSpace(_) => None,
        }
    }

    fn remove(&mut self, held: Held) {
        self.nodes[held.node].free(held.object);
    }
}

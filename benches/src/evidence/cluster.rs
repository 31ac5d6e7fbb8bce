//! Simulated nodes: several segments each, reached by what they last said.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use tenon_store_core::allocator::{PackedSegments, Region, SegmentIndex};
use tenon_store_core::placement::nodes::{
    Action, Affinity, Event, ItemOutcome, NodeHint, NodeIndex, NodePlan, NodePolicy, NodeTable, PlanItem,
};

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
    /// Empty nodes. [`Way::Packed`] chooses nodes by their hints; the other ways see all segments at once.
    #[must_use]
    pub(super) fn new(way: Way, nodes: usize, segments_per_node: usize, segment_bytes: u64, seed: u64) -> Self {
        match way {
            Way::Packed => Self::Nodes(Box::new(Nodes::new(nodes, segments_per_node, segment_bytes, seed))),
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

/// Nodes that pack, behind a table of hints.
pub(super) struct Nodes {
    nodes: Vec<PackedSegments>,
    versions: Vec<u64>,
    table: NodeTable,
    rng: ChaCha8Rng,
}

impl Nodes {
    fn new(nodes: usize, segments_per_node: usize, segment_bytes: u64, seed: u64) -> Self {
        let policy = NodePolicy {
            affinity: Affinity::Spread,
            ..NodePolicy::default()
        };
        let mut cluster = Self {
            nodes: Vec::new(),
            versions: vec![0; nodes],
            table: NodeTable::new(policy).expect("a valid policy"),
            rng: ChaCha8Rng::seed_from_u64(seed),
        };
        for node in 0..nodes {
            cluster
                .nodes
                .push(subject::Packed::new(&vec![segment_bytes; segments_per_node]).0);
            cluster.table.add();
            cluster.tell(node);
        }
        cluster
    }

    fn hint(&mut self, node: usize) -> NodeHint {
        self.versions[node] += 1;
        let space = &self.nodes[node];
        NodeHint {
            version: (1, self.versions[node]),
            capacity_bytes: space.capacity_bytes(),
            free_bytes: space.free_bytes(),
            largest_free_upper_bound_bytes: space.largest_free_bytes(),
        }
    }

    fn tell(&mut self, node: usize) {
        let hint = self.hint(node);
        self.table.hear(NodeIndex(node), hint);
    }

    fn put(&mut self, len_bytes: u64) -> Option<Held> {
        let mut plan = NodePlan::new(&[PlanItem { len_bytes, replicas: 1 }]).expect("a valid item");
        let mut regions: Vec<(usize, (SegmentIndex, Region))> = Vec::new();
        let mut actions = std::collections::VecDeque::from(plan.start(&mut self.table, &mut self.rng));
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Reserve { node, .. } => {
                    let region = self.nodes[node.0].allocate(len_bytes).ok();
                    let items = vec![(0, region.is_some())];
                    regions.extend(region.map(|region| (node.0, region)));
                    let event = Event::Answered {
                        node,
                        items,
                        hint: self.hint(node.0),
                    };
                    actions.extend(plan.on(event, &mut self.table, &mut self.rng));
                }
                Action::Release { node, .. } => {
                    let position = regions
                        .iter()
                        .position(|&(at, _)| at == node.0)
                        .expect("room was set aside");
                    let (_, (segment, region)) = regions.swap_remove(position);
                    self.nodes[node.0].free(segment, region).expect("allocated there");
                }
                Action::Finish => {}
            }
        }
        match plan.outcomes(&self.table).remove(0) {
            ItemOutcome::Placed(_) => {
                let (node, (segment, region)) = regions.pop().expect("room was set aside");
                Some(Held {
                    node,
                    object: (segment.0, region),
                })
            }
            ItemOutcome::NoSpace(_) => None,
        }
    }

    fn remove(&mut self, held: Held) {
        let (segment, region) = held.object;
        self.nodes[held.node]
            .free(SegmentIndex(segment), region)
            .expect("allocated there");
    }
}

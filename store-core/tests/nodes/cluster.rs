//! A cluster of simulated nodes: each counts bytes, answers questions, and its hints reach the table when the test says so.

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::placement::nodes::{
    Action, Affinity, Event, ItemOutcome, NodeHint, NodeIndex, NodePlan, NodePolicy, NodeTable, PlanItem,
};

pub(crate) const SPREAD: NodePolicy = NodePolicy {
    affinity: Affinity::Spread,
    local_until_percent: 80,
};

pub(crate) struct Node {
    pub(crate) capacity_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) is_silent: bool,
    version: u64,
}

pub(crate) struct Cluster {
    pub(crate) table: NodeTable,
    pub(crate) nodes: Vec<Node>,
    /// Questions for room put to nodes, in order.
    pub(crate) asked: Vec<(usize, Vec<usize>)>,
    /// Nodes that were looked at, in order.
    pub(crate) looked_at: Vec<usize>,
    rng: ChaCha8Rng,
}

impl Cluster {
    pub(crate) fn new(policy: NodePolicy, seed: u64) -> Self {
        Self {
            table: NodeTable::new(policy).expect("a valid policy"),
            nodes: Vec::new(),
            asked: Vec::new(),
            looked_at: Vec::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Adds an empty node whose hint is known.
    pub(crate) fn join(&mut self, capacity_bytes: u64) -> NodeIndex {
        let node = self.table.add();
        self.nodes.push(Node {
            capacity_bytes,
            free_bytes: capacity_bytes,
            is_silent: false,
            version: 1,
        });
        self.tell(node.0);
        node
    }

    pub(crate) fn join_all<const N: usize>(&mut self, capacities_bytes: [u64; N]) {
        for capacity_bytes in capacities_bytes {
            self.join(capacity_bytes);
        }
    }

    pub(crate) fn hint(&self, node: usize) -> NodeHint {
        let Node {
            capacity_bytes,
            free_bytes,
            version,
            ..
        } = self.nodes[node];
        NodeHint {
            version: (1, version),
            capacity_bytes,
            free_bytes,
            largest_free_upper_bound_bytes: free_bytes,
        }
    }

    /// Lets the table know what a node has.
    pub(crate) fn tell(&mut self, node: usize) {
        let hint = self.hint(node);
        self.table.hear(NodeIndex(node), hint);
    }

    /// Changes the free bytes of a node without telling the table.
    pub(crate) fn set_free(&mut self, node: usize, free_bytes: u64) {
        self.nodes[node].free_bytes = free_bytes;
        self.nodes[node].version += 1;
    }

    /// Runs a batch to its end and returns what has become of its items.
    pub(crate) fn put(&mut self, items: &[PlanItem]) -> Vec<ItemOutcome> {
        let mut plan = NodePlan::new(items).expect("valid items");
        let mut pending = plan.start(&mut self.table, &mut self.rng);
        let mut is_finished = false;
        while let Some(action) = (!pending.is_empty()).then(|| pending.remove(0)) {
            if action == Action::Finish {
                assert!(!is_finished, "a plan finishes once");
                is_finished = true;
            }
            pending.extend(self.act(&mut plan, items, action));
        }
        assert!(is_finished, "a plan without open questions is finished");
        plan.outcomes(&self.table)
    }

    /// Runs several puts of one object each at the same time, the next step of which one is drawn each time.
    pub(crate) fn put_at_once(&mut self, lens_bytes: &[u64], steps: &mut ChaCha8Rng) -> Vec<ItemOutcome> {
        let items: Vec<[PlanItem; 1]> = lens_bytes
            .iter()
            .map(|&len_bytes| [PlanItem { len_bytes, replicas: 1 }])
            .collect();
        let mut puts: Vec<(NodePlan, Vec<Action>)> = Vec::new();
        for items in &items {
            let mut plan = NodePlan::new(items).expect("valid items");
            let actions = plan.start(&mut self.table, &mut self.rng);
            puts.push((plan, actions));
        }
        loop {
            let open: Vec<usize> = (0..puts.len()).filter(|&put| !puts[put].1.is_empty()).collect();
            if open.is_empty() {
                break;
            }
            let put = open[steps.random_range(0..open.len())];
            let (plan, pending) = &mut puts[put];
            let action = pending.remove(steps.random_range(0..pending.len()));
            pending.extend(self.act(plan, &items[put], action));
        }
        puts.iter()
            .map(|(plan, _)| plan.outcomes(&self.table).remove(0))
            .collect()
    }

    /// Runs a batch whose questions are answered in any order.
    pub(crate) fn put_in_any_order(&mut self, items: &[PlanItem], steps: &mut ChaCha8Rng) -> Vec<ItemOutcome> {
        let mut plan = NodePlan::new(items).expect("valid items");
        let mut pending = plan.start(&mut self.table, &mut self.rng);
        while !pending.is_empty() {
            let action = pending.remove(steps.random_range(0..pending.len()));
            pending.extend(self.act(&mut plan, items, action));
        }
        plan.outcomes(&self.table)
    }

    /// Does what a plan wants; answers what it wants then.
    fn act(&mut self, plan: &mut NodePlan, items: &[PlanItem], action: Action) -> Vec<Action> {
        let event = match action {
            Action::Reserve { node, items: asked, .. } => {
                self.asked.push((node.0, asked.clone()));
                self.answer(node, &asked, items)
            }
            Action::Look { node, items: asked } => {
                self.looked_at.push(node.0);
                self.look(node, &asked, items)
            }
            Action::Release { node, item } => {
                if !self.nodes[node.0].is_silent {
                    self.set_free(node.0, self.nodes[node.0].free_bytes + items[item].len_bytes);
                    self.tell(node.0);
                }
                return Vec::new();
            }
            Action::Finish => return Vec::new(),
        };
        plan.on(event, &mut self.table, &mut self.rng)
    }

    fn look(&self, node: NodeIndex, asked: &[usize], items: &[PlanItem]) -> Event {
        let Node {
            free_bytes, is_silent, ..
        } = self.nodes[node.0];
        if is_silent {
            return Event::Silent { node };
        }
        Event::Looked {
            node,
            items: asked
                .iter()
                .map(|&item| (item, items[item].len_bytes <= free_bytes))
                .collect(),
            hint: self.hint(node.0),
        }
    }

    fn answer(&mut self, node: NodeIndex, asked: &[usize], items: &[PlanItem]) -> Event {
        if self.nodes[node.0].is_silent {
            return Event::Silent { node };
        }
        let mut answers = Vec::new();
        for &item in asked {
            let len_bytes = items[item].len_bytes;
            let has_room = self.nodes[node.0].free_bytes >= len_bytes;
            if has_room {
                self.set_free(node.0, self.nodes[node.0].free_bytes - len_bytes);
            }
            answers.push((item, has_room));
        }
        Event::Answered {
            node,
            items: answers,
            hint: self.hint(node.0),
        }
    }

    /// Puts one object of `len_bytes` and returns the node that has it, if one does.
    pub(crate) fn put_one(&mut self, len_bytes: u64) -> Option<usize> {
        match self.put(&[PlanItem { len_bytes, replicas: 1 }]).remove(0) {
            ItemOutcome::Placed(nodes) => Some(nodes[0].0),
            ItemOutcome::NoSpace(_) => None,
        }
    }
}

//! One put or one batch on its way through the nodes: events in, actions out.

use std::collections::BTreeMap;

use rand::Rng;
use thiserror::Error;

use super::table::{NodeHint, NodeIndex, NodeTable, Why};
use crate::placement::Fit;

/// One object of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanItem {
    /// Length of each replica in bytes.
    pub len_bytes: u64,
    /// Replicas wanted, each on a node of its own.
    pub replicas: u32,
}

/// Why a batch cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A replica has at least one byte.
    #[error("invalid argument: item {item} has 0 B")]
    ZeroLength {
        /// Position in the batch.
        item: usize,
    },
    /// At least one replica must be wanted.
    #[error("invalid argument: 0 replicas of item {item}")]
    ZeroReplicas {
        /// Position in the batch.
        item: usize,
    },
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node has answered a question: whether it set room aside, for each item that it was asked for.
    Answered {
        /// The node.
        node: NodeIndex,
        /// Items, and whether each has its room.
        items: Vec<(usize, bool)>,
        /// The space of the node after that.
        hint: NodeHint,
    },
    /// A node has said whether it may have room, for each item that it was asked for. It has set nothing aside.
    Looked {
        /// The node.
        node: NodeIndex,
        /// Items, and whether it may have room for each.
        items: Vec<(usize, bool)>,
        /// The space of the node at that moment.
        hint: NodeHint,
    },
    /// A node will not answer the questions it was asked.
    Silent {
        /// The node.
        node: NodeIndex,
    },
    /// The time for this batch is over.
    Deadline,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a node for room for some items, in one question.
    Reserve {
        /// The node.
        node: NodeIndex,
        /// Positions in the batch.
        items: Vec<usize>,
        /// Why it.
        why: Why,
    },
    /// Ask a node whether it may have room for each of some items. It is to set nothing aside: what a question holds that is not needed
    /// another put would be refused.
    Look {
        /// The node.
        node: NodeIndex,
        /// Positions in the batch.
        items: Vec<usize>,
    },
    /// Give up the room that a node has, or may have, set aside for an item.
    Release {
        /// The node.
        node: NodeIndex,
        /// Position in the batch.
        item: usize,
    },
    /// The plan is finished: see [`NodePlan::outcomes`]. Comes once, after all other actions.
    Finish,
}

/// Why no further node was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanStop {
    /// Every usable node has refused.
    AllRefused,
    /// Every usable node has refused or was silent.
    SomeSilent,
    /// The time was over.
    Deadline,
}

/// Why an item has no room, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodesNoSpace {
    /// Length of a replica in bytes.
    pub len_bytes: u64,
    /// Free bytes of all usable nodes, as far as they are known.
    pub free_bytes: u64,
    /// The largest size that a free region of a usable node may have, as far as they are known.
    pub largest_free_upper_bound_bytes: u64,
    /// Nodes that were asked.
    pub asked: usize,
    /// Those that said no.
    pub refused: usize,
    /// Why no further one was asked.
    pub stop: PlanStop,
}

/// What has become of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemOutcome {
    /// The nodes that have room set aside: at least one, and at most as many as were wanted.
    Placed(Vec<NodeIndex>),
    /// No node has.
    NoSpace(NodesNoSpace),
}

#[derive(Debug)]
struct ItemState {
    item: PlanItem,
    placed: Vec<NodeIndex>,
    /// Nodes that were asked for room, and whose answer is to come.
    asked: Vec<NodeIndex>,
    /// Nodes that were asked whether they may have room, and whose answer is to come.
    looking: Vec<NodeIndex>,
    /// Nodes that have answered so that they may.
    hopeful: Vec<NodeIndex>,
    /// All nodes that were asked for room for this item, none of them twice, and those that were looked at and have none.
    tried: Vec<NodeIndex>,
    refused: usize,
    /// Whether the nodes that were passed over have been looked at.
    is_confirmed: bool,
}

impl ItemState {
    /// Replicas that no node has been asked for.
    fn missing(&self) -> usize {
        let wanted = usize::try_from(self.item.replicas).unwrap_or(usize::MAX);
        wanted.saturating_sub(self.placed.len() + self.asked.len())
    }

    fn is_surplus(&self) -> bool {
        self.placed.len() >= usize::try_from(self.item.replicas).unwrap_or(usize::MAX)
    }

    /// Whether a node is to be chosen for it: it needs one, and no answer to a look is to come that may name one, or one has.
    fn wants_node(&self) -> bool {
        let is_hopeful = || self.hopeful.iter().any(|node| !self.tried.contains(node));
        self.missing() > 0 && (self.looking.is_empty() || is_hopeful())
    }

    /// Whether an answer may change what becomes of it.
    fn is_open(&self) -> bool {
        !self.asked.is_empty() || !self.looking.is_empty() && self.missing() > 0
    }

    fn looked(&mut self, node: NodeIndex, may_fit: bool) {
        let Some(position) = self.looking.iter().position(|&looking| looking == node) else {
            return;
        };
        self.looking.swap_remove(position);
        // What it hinted at meanwhile may have led to a question already.
        if self.tried.contains(&node) {
            return;
        }
        if may_fit {
            self.hopeful.push(node);
        } else {
            self.tried.push(node);
            self.refused += 1;
        }
    }
}

fn no_longer_awaited(awaited: &mut BTreeMap<NodeIndex, usize>, node: NodeIndex) {
    let count = awaited.get_mut(&node).expect("a question that was asked");
    *count -= 1;
    if *count == 0 {
        awaited.remove(&node);
    }
}

/// A put or a batch in progress.
///
/// The batch is placed by one decision: its items go to the same node as far as that has room, in one question. What is refused is
/// decided anew, with the hints that came with the refusals. Nodes known to have no room are passed over until nothing else is left; then all of them
/// are looked at at once, since a hint may be old, and those that may have room are asked for it one after the other.
///
/// A plan never holds room that it has no use for, as long as nodes answer. So of several plans that find all nodes full but for as many holes as they have
/// items, all are served: where one is refused another one keeps what it got.
#[derive(Debug)]
pub struct NodePlan {
    items: Vec<ItemState>,
    /// How many questions for room each node has still to answer, counted by items.
    awaited: BTreeMap<NodeIndex, usize>,
    is_over_time: bool,
    is_finished: bool,
}

impl NodePlan {
    /// A plan for these items, of which nothing is asked yet.
    ///
    /// # Errors
    ///
    /// [`PlanError`] names the item that cannot be.
    pub fn new(items: &[PlanItem]) -> Result<Self, PlanError> {
        for (number, item) in items.iter().enumerate() {
            if item.len_bytes == 0 {
                return Err(PlanError::ZeroLength { item: number });
            }
            if item.replicas == 0 {
                return Err(PlanError::ZeroReplicas { item: number });
            }
        }
        let state = |&item: &PlanItem| ItemState {
            item,
            placed: Vec::new(),
            asked: Vec::new(),
            looking: Vec::new(),
            hopeful: Vec::new(),
            tried: Vec::new(),
            refused: 0,
            is_confirmed: false,
        };
        Ok(Self {
            items: items.iter().map(state).collect(),
            awaited: BTreeMap::new(),
            is_over_time: false,
            is_finished: false,
        })
    }

    /// The first questions.
    pub fn start<R: Rng + ?Sized>(&mut self, table: &mut NodeTable, rng: &mut R) -> Vec<Action> {
        let mut actions = Vec::new();
        self.advance(table, rng, &mut actions);
        actions
    }

    /// What follows from an event. After [`Action::Finish`], late answers only lead to releases.
    pub fn on<R: Rng + ?Sized>(&mut self, event: Event, table: &mut NodeTable, rng: &mut R) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Answered { node, items, hint } => {
                table.hear(node, hint);
                for (item, has_room) in items {
                    self.answered(node, item, has_room, table, &mut actions);
                }
            }
            Event::Looked { node, items, hint } => {
                table.hear(node, hint);
                for (item, may_fit) in items {
                    self.items[item].looked(node, may_fit);
                }
            }
            Event::Silent { node } => self.drop_questions(Some(node), table, &mut actions),
            Event::Deadline => {
                self.is_over_time = true;
                self.drop_questions(None, table, &mut actions);
            }
        }
        if !self.is_finished {
            self.advance(table, rng, &mut actions);
        }
        actions
    }

    /// What has become of each item; to be asked after [`Action::Finish`].
    #[must_use]
    pub fn outcomes(&self, table: &NodeTable) -> Vec<ItemOutcome> {
        self.items.iter().map(|state| self.outcome(state, table)).collect()
    }

    fn outcome(&self, state: &ItemState, table: &NodeTable) -> ItemOutcome {
        if !state.placed.is_empty() {
            return ItemOutcome::Placed(state.placed.clone());
        }
        let hints = || table.usable().filter_map(|node| table.hint(node));
        let stop = if self.is_over_time {
            PlanStop::Deadline
        } else if state.refused < state.tried.len() {
            PlanStop::SomeSilent
        } else {
            PlanStop::AllRefused
        };
        ItemOutcome::NoSpace(NodesNoSpace {
            len_bytes: state.item.len_bytes,
            free_bytes: hints().map(|hint| hint.free_bytes).sum(),
            largest_free_upper_bound_bytes: hints()
                .map(|hint| hint.largest_free_upper_bound_bytes)
                .max()
                .unwrap_or(0),
            asked: state.tried.len(),
            refused: state.refused,
            stop,
        })
    }

    fn answered(
        &mut self,
        node: NodeIndex,
        item: usize,
        has_room: bool,
        table: &mut NodeTable,
        actions: &mut Vec<Action>,
    ) {
        let state = &mut self.items[item];
        let Some(position) = state.asked.iter().position(|&asked| asked == node) else {
            // It was given up before, and is again in case the first release came too early.
            if has_room {
                actions.push(Action::Release { node, item });
            }
            return;
        };
        state.asked.swap_remove(position);
        table.answered(node, state.item.len_bytes);
        no_longer_awaited(&mut self.awaited, node);
        match (has_room, state.is_surplus()) {
            (true, false) => state.placed.push(node),
            (true, true) => actions.push(Action::Release { node, item }),
            (false, _) => state.refused += 1,
        }
    }

    /// Gives up the questions to one node or to all; what they have led to is not known.
    fn drop_questions(&mut self, of: Option<NodeIndex>, table: &mut NodeTable, actions: &mut Vec<Action>) {
        let is_kept = |node| of.is_some_and(|of| of != node);
        for (item, state) in self.items.iter_mut().enumerate() {
            let len_bytes = state.item.len_bytes;
            let silent = state.looking.extract_if(.., |node| !is_kept(*node));
            let silent: Vec<NodeIndex> = silent.filter(|node| !state.tried.contains(node)).collect();
            state.tried.extend(silent);
            state.asked.retain(|&node| {
                let is_kept = is_kept(node);
                if !is_kept {
                    table.answered(node, len_bytes);
                    no_longer_awaited(&mut self.awaited, node);
                    actions.push(Action::Release { node, item });
                }
                is_kept
            });
        }
    }

    fn advance<R: Rng + ?Sized>(&mut self, table: &mut NodeTable, rng: &mut R, actions: &mut Vec<Action>) {
        if !self.is_over_time {
            let mut open: Vec<usize> = (0..self.items.len())
                .filter(|&item| self.items[item].wants_node())
                .collect();
            // The largest first: what the others leave over is hardest for it.
            open.sort_by_key(|&item| std::cmp::Reverse(self.items[item].item.len_bytes));
            while !open.is_empty() {
                open = self.ask_one_node(open, table, rng, actions);
            }
            self.confirm(table, actions);
        }
        if !self.items.iter().any(ItemState::is_open) {
            self.is_finished = true;
            actions.push(Action::Finish);
        }
    }

    /// Chooses a node for the first of the open items and gives it the others too as far as it has room. Returns what is left open.
    fn ask_one_node<R: Rng + ?Sized>(
        &mut self,
        open: Vec<usize>,
        table: &mut NodeTable,
        rng: &mut R,
        actions: &mut Vec<Action>,
    ) -> Vec<usize> {
        let Some((node, why)) = self.choose_for(open[0], table, rng) else {
            return open[1..].to_vec();
        };
        let (mut asked, mut left) = (Vec::new(), Vec::new());
        for (position, item) in open.into_iter().enumerate() {
            let state = &mut self.items[item];
            let len_bytes = state.item.len_bytes;
            let has_room = len_bytes <= table.room_bytes(node) && table.fit(node, len_bytes) != Fit::NoFit;
            if position == 0 || has_room && !state.tried.contains(&node) {
                state.asked.push(node);
                state.tried.push(node);
                table.asked(node, len_bytes);
                *self.awaited.entry(node).or_default() += 1;
                asked.push(item);
            }
            if state.missing() > 0 {
                left.push(item);
            }
        }
        actions.push(Action::Reserve {
            node,
            items: asked,
            why,
        });
        left
    }

    /// A node that was not tried for an item: one with room beyond what is asked of it already, or else one that only its hint speaks for, or else one that
    /// has said yes and hints otherwise since. What another item of the plan is about to take is not asked for beside it: which of the two the node
    /// hears first is chance.
    fn choose_for<R: Rng + ?Sized>(&self, item: usize, table: &NodeTable, rng: &mut R) -> Option<(NodeIndex, Why)> {
        let state = &self.items[item];
        let len_bytes = state.item.len_bytes;
        let is_new = |node: NodeIndex| !state.tried.contains(&node);
        let has_room = |node: NodeIndex| is_new(node) && len_bytes <= table.room_bytes(node);
        let is_free = |node: NodeIndex| is_new(node) && !self.awaited.contains_key(&node);
        let with_room = table.choose(len_bytes, &has_room, rng);
        with_room
            .or_else(|| table.choose(len_bytes, &is_free, rng))
            .or_else(|| {
                let hopeful = state.hopeful.iter().copied().find(|&node| is_free(node));
                hopeful.map(|node| (node, Why::Confirmation))
            })
    }

    /// Whether a node that answers another item of the plan may have room for this one then.
    fn may_follow(&self, state: &ItemState, table: &NodeTable) -> bool {
        let may_fit = |node| table.fit(node, state.item.len_bytes) != Fit::NoFit || state.hopeful.contains(&node);
        let mut awaited = self.awaited.keys().copied();
        awaited.any(|node| !state.tried.contains(&node) && table.is_usable(node) && may_fit(node))
    }

    /// Looks at all nodes that were passed over, for the items that would have no room otherwise.
    fn confirm(&mut self, table: &mut NodeTable, actions: &mut Vec<Action>) {
        let nodes: Vec<NodeIndex> = table.usable().collect();
        let mut questions = vec![Vec::new(); nodes.len()];
        for item in 0..self.items.len() {
            let state = &self.items[item];
            let is_served = !state.placed.is_empty() || !state.asked.is_empty();
            if state.is_confirmed || is_served || self.may_follow(state, table) {
                continue;
            }
            let state = &mut self.items[item];
            state.is_confirmed = true;
            for (&node, question) in nodes.iter().zip(&mut questions) {
                if !state.tried.contains(&node) {
                    state.looking.push(node);
                    table.looked_at(state.item.len_bytes);
                    question.push(item);
                }
            }
        }
        let asked = nodes.into_iter().zip(questions).filter(|(_, items)| !items.is_empty());
        actions.extend(asked.map(|(node, items)| Action::Look { node, items }));
    }
}

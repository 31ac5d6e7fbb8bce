//! Placement across nodes: which node holds a replica. Where in the node is its owner's decision.
//!
//! A node is known by a hint: how much is free, how large the largest free region may be, possibly a moment old. A [`NodeTable`] keeps the hints and
//! chooses; a [`NodePlan`] takes one put or one batch from the first question to the last answer: events in, actions out.
//!
//! Hints spare questions, they never decide. A hint that is too high costs a refusal, which carries the fresh one. A hint that is too low must
//! not fail a put: before a plan says that there is no space, it looks at every node that was passed over, once and all at the same time, and asks
//! those for room, one after the other, that may have some.

mod plan;
mod table;
mod weights;

pub use self::plan::{Action, Event, ItemOutcome, NodePlan, NodesNoSpace, PlanError, PlanItem, PlanStop};
pub use self::table::{Affinity, NodeHint, NodeIndex, NodePolicy, NodeTable, PolicyError, Why};

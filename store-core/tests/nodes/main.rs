//! Placement across nodes: the choice of one, and plans in which nodes refuse, are silent or know better than their hints.

mod choice;
mod cluster;
mod plan;

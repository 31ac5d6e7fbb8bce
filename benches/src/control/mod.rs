//! What calls of the index cost: between nodes, after a death, and in memory.

pub mod calls;
pub mod frames;
pub mod kill_holder;
pub mod memory;
pub mod program;

//! What the bench of transfers moves, with whom, and beside what.

pub mod buffers;
pub mod cpu;
pub mod objects;
pub mod pump;

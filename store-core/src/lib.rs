//! The decisions of Tenon, without I/O.
//!
//! Nothing here reads a clock, opens a socket or draws a random number of its own: the time and a random generator are
//! arguments, what happened comes in as calls and events, what is to be done goes out as answers and actions. So every
//! decision can be replayed.
//!
//! * [`allocator`] – which bytes of a segment belong to whom.
//! * [`placement`] – which entry of a pool gets a new region.
//! * [`objects`] – the life of the objects that one node holds: reserved, sealed, removed.
//! * [`eviction`] – in which order they go when room is needed.
//! * [`directory`] – one node as a home: which object a key has.
//! * [`coordinator`] – whom to ask about a key, and what the answers say together.
//! * [`membership`] – the member list, the homes that follow from it, and who answers.
//! * [`names`] – choices that configuration makes by name.
//! * [`time`] – points in time.
//! * [`limits`] – every bound of the above.
//!
//! The feature `planted-bugs` lets tests plant known bugs, to show that they would be found.
#![forbid(unsafe_code)]

pub mod allocator;
pub mod coordinator;
pub mod directory;
pub mod eviction;
pub mod limits;
pub mod membership;
pub mod names;
pub mod objects;
mod outcomes;
pub mod placement;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod time;

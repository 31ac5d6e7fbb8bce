//! Moving bytes between registered memory, and frames between peers.
//!
//! This crate knows nothing of objects, keys of objects, leases or HTTP. It knows [`Memory`] that may be touched by
//! several parties at once, [`Exports`] that say what a peer may touch, the [`Connection`] trait through which batches
//! of one-sided reads and writes are submitted, and the [`link`]: an authenticated, framed, multiplexed control
//! channel.
//!
//! Engines: [`tcp`] (TCP and unix stream sockets), [`local`] (one process), [`sim`] (seeded faults). All pass the suite
//! in `conformance`.
//!
//! [`verbs`] has the objects of RDMA, on which an engine can be built.
//!
//! Architecture invariant: `unsafe` code lives in the `memory` module and in `verbs/raw.rs` alone.
#![deny(unsafe_code)]

mod carry;
pub mod checksum;
#[cfg(feature = "conformance")]
pub mod conformance;
mod engine;
mod exports;
mod ids;
pub mod limits;
pub mod link;
pub mod local;
mod memory;
pub mod sim;
mod stream;
mod task;
pub mod tcp;
pub mod verbs;
mod wire;

pub use engine::{Connection, Done, Op, Submission, Transfer, TransferError, TransferResult};
pub use exports::{Export, Exports, ExportsError, Guard, Hold, Refused, Rights, Scope, Unguarded};
pub use ids::{ClusterId, PeerId, RemoteKey, SessionId};
pub use memory::{HugePages, Memory, MemoryError, Slice};

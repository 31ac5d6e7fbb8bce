//! The node agent: configuration, identity, HTTP, metrics, and the seam between decisions and transport.
#![forbid(unsafe_code)]

mod alarms;
pub mod assemble;
pub mod cli;
mod clock;
mod commit;
pub mod config;
mod copies;
mod deciding;
mod embedded;
mod evict;
mod fingerprint;
mod front;
mod guards;
pub mod holder;
mod home;
mod http;
pub mod identity;
mod late;
pub mod limits;
pub mod lives;
pub mod metrics;
pub mod node;
mod pages;
mod peers;
mod publish;
mod rdma;
mod refusals;
mod rooms;
pub mod segments;
pub mod service;
mod sessions;
pub mod startup;

/// The program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

//! The node agent: configuration, identity, HTTP, metrics, and the seam between decisions and transport.
#![forbid(unsafe_code)]

pub mod config;
pub mod identity;
pub mod limits;
pub mod metrics;

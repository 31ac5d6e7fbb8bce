//! What the benches of Tenon share.
#![forbid(unsafe_code)]

pub mod cluster;
pub mod control;
pub mod evidence;
pub mod full;
pub mod metrics;
pub mod rdma;
pub mod report;
pub mod scale;
pub mod transfer;

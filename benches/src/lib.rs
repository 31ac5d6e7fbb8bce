//! What the benches of Tenon share.
#![forbid(unsafe_code)]

pub mod report;
pub mod transfer;

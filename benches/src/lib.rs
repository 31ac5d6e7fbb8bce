//! What the benches of Tenon share.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod report;
pub mod transfer;

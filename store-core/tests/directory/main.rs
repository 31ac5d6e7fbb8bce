//! The homes of keys, by behaviour and under random orders of messages and failures.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;
mod copies;
mod evicted;
mod learning;
mod missed;
mod one_home;
#[cfg(feature = "planted-bugs")]
mod planted;
mod random;
mod two_homes;

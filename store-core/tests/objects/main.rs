//! The life of the objects of one node, by behaviour and against a naive model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod behaviour;
mod comings;
mod commits;
mod copies;
mod eviction;
mod fixture;
mod map;
mod model;
mod operation;
mod operations;
mod steps;
mod table;

//! Whole-system tests of Tenon: real `tenond` and `tenon` processes on loopback addresses.
//!
//! This crate is the harness; the tests lie in `tests/`, one file per behaviour. It may use what a program outside may use: the
//! binaries, HTTP, the client crate, and the link itself for callers that behave badly. It never links the agent.
//!
//! * [`cluster`] – starts nodes with a static view and looks after them; [`node`] – one of them.
//! * [`http`], [`raw`] – a small HTTP client, and a client of the link that does exactly what it is told.
//! * [`machine`] – a machine with RDMA devices, in which programs run; [`rails`] – what tests that run there see and do.
//! * [`network`] – namespaces for nodes, joined by links that can be cut.
//! * [`objects`] – what was put into a cluster, and whether it is found again.
//! * [`proxy`] – stands between nodes and damages, stalls or cuts.
//! * [`account`] – the account that must balance after every test.
//! * [`sources`] – the text of the project itself.
//! * [`address`], [`binaries`], [`payload`], [`wait`] – loopback addresses, executables, bytes, and bounded waiting.
//!
//! The harness panics when it cannot do what it was asked: its callers are tests.
#![forbid(unsafe_code)]

pub mod account;
pub mod address;
pub mod binaries;
pub mod cluster;
pub mod http;
pub mod machine;
pub mod network;
pub mod node;
pub mod objects;
pub mod payload;
pub mod proxy;
pub mod rails;
pub mod raw;
pub mod sources;
pub mod wait;

/// Holds the README's Rust: it must compile.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

//! The client against nodes in this process, with the faults that reality does not produce on demand.
#![expect(unreachable_pub, reason = "helpers of a test binary have no outside")]
#![expect(clippy::unwrap_used, reason = "helpers of a test fail as a test does")]

mod agent;
mod control;
mod get;
mod get_faults;
mod node;
mod put;
mod put_faults;
mod remote;
mod served;
mod stream;
mod support;
mod wire;

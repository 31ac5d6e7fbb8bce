//! The engine over RDMA.
//!
//! *Rails* are the ports of this host's devices ([`Rails`]), used while they are active: what devices say unasked is acted
//! on at once. A connection has one *path* per rail that finds a partner at the peer: a queue pair on the same network,
//! tried with a few bytes before it is used. Transfers are cut in slices, which
//! go over whatever path has least to do; a slice whose path fails goes over another, or over the same when it is up
//! again.
//!
//! *Reads* are one-sided: the peer's processor takes no part, so nothing is held there and no stamp comes back
//! ([`Connection::guards_reads`](crate::Connection::guards_reads) is false). *Writes* are pulled: the initiator offers its
//! bytes, and the owner reads them: memory that this process has registered is readable as a whole while it is, other memory
//! for that time and range. Nobody has the right to write to an owner. Where the owner lets peers *push* ([`PushPolicy`]), a
//! write that stands alone is an RDMA WRITE by the initiator, under a memory window that the owner binds for exactly that
//! range and takes back before the write counts as ended.
//!
//! Beside the queue pairs there is a link ([`Channel::Rdma`](crate::link::Channel)), which authenticates the peer; over it
//! queue pairs are connected, keys resolved and bytes offered. When it ends, the paths do.
//!
//! *Room.* A port has a bounded number of queue pairs. Where one more is wanted, those that this side has not used for the
//! longest time are closed, and peers are asked to close what they have not used; they are connected again when they are
//! wanted.
//!
//! *Memory.* What its owner registered ([`Rails::register`]) is transferred from and to as it is. Small reads into other memory land in registered memory of
//! the rail's and are copied; for larger ones, and for writes, other memory is registered while the transfer lasts.
//!
//! *Keys.* A device ends the queue pair of whoever uses a key that is not good any more. So an owner that revokes an export asks the peers that were told of it to
//! forget it, and has it deregistered when they have, or when it has ended the queue pairs of those that did not in time. Until then they may read there.
//!
//! *Deadlines.* What is under way when a deadline passes is ended by moving its queue pair to ERR and waiting for the
//! flush; other transfers on that path go over another one meanwhile. A submission that is *dropped* does the same without
//! waiting: its memory stays counted, and may be written to, until the device has flushed.

mod carry;
mod connection;
mod events;
mod flight;
mod grants;
mod keys;
mod message;
mod offer;
mod path;
mod paths;
mod places;
mod plan;
mod pool;
mod push;
mod push_policy;
mod rail;
mod rails;
mod reach;
mod reaping;
mod registered;
#[cfg(feature = "conformance")]
mod rogue;
mod room;
mod small;
mod subnet;
mod supervisor;
mod target;
mod window;

pub use connection::{OpenError, RdmaConnection};
pub use events::{EventCounts, Losses};
pub use push_policy::{PushPolicy, Writes, WritesOfAWay};
pub use rails::{NoRails, Rails, RailsOptions, Registration};
pub use reach::{RailReach, Reach, reach};
#[cfg(feature = "conformance")]
pub use rogue::{Rogue, RogueGrant};
pub use target::RdmaTarget;

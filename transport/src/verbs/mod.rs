//! RDMA verbs: the objects of libibverbs, safe to use.
//!
//! One file per object, each over `raw.rs`, the only one with `unsafe` code. libibverbs is loaded when the program
//! starts, if it is there: [`devices`] says so if it is not, and everything starts there.
//!
//! # Who keeps what
//! Parents are counted: a queue pair keeps its completion queue, its domain and its device, a region its domain and its
//! memory, a part of a region the region. So nothing can be released before what stands on it.
//!
//! *Buffers* belong to the queue pair from posting to completion: [`SendRequest`] and [`ReceiveRequest`] are moved in and
//! [`Completion`] gives the parts back. When a [`QueuePair`] is dropped it goes to ERR, its completions still arrive, and
//! what the device had not completed when the object was destroyed is told of as [`Status::Flushed`].
//!
//! *Contexts* travel with requests and come back. One that held a count of its queue pair would keep it from ending.
//!
//! # What does not compile
//! A request that is posted is not the caller's any more, nor are the buffers that it names:
//! ```no_run
//! # use tenon_transport::verbs::*;
//! # fn post(queue_pair: &QueuePair<u64>, remote: Remote, into: Local) {
//! let read = SendRequest::read(remote, vec![into], 1);
//! queue_pair.post_send(vec![read]).unwrap();
//! # }
//! ```
//! ```compile_fail,E0382
//! # use tenon_transport::verbs::*;
//! # fn post(queue_pair: &QueuePair<u64>, remote: Remote, into: Local) {
//! let read = SendRequest::read(remote, vec![into], 1);
//! queue_pair.post_send(vec![read]).unwrap();
//! queue_pair.post_send(vec![read]).unwrap();
//! # }
//! ```
//! Only registered memory can be named, and only through its region, which is kept:
//! ```compile_fail,E0308
//! # use tenon_transport::verbs::*;
//! # fn post(queue_pair: &QueuePair<u64>, remote: Remote, into: &mut [u8]) {
//! let read = SendRequest::read(remote, vec![into], 1);
//! # }
//! ```
//! ```compile_fail,E0451
//! # use tenon_transport::verbs::*;
//! # fn part(region: std::sync::Arc<MemoryRegion>) -> Local {
//! Local { region, offset_bytes: 0, len_bytes: u32::MAX }
//! # }
//! ```
//! A queue pair has one owner, whose drop ends it; a region cannot be taken from under a part:
//! ```compile_fail,E0308
//! # use tenon_transport::verbs::*;
//! # fn copy(queue_pair: &QueuePair<u64>) -> QueuePair<u64> {
//! queue_pair.clone()
//! # }
//! ```
//! ```compile_fail,E0507
//! # use tenon_transport::verbs::*;
//! # fn release(part: &Local) {
//! let region: MemoryRegion = **part.region();
//! # }
//! ```
//! What a request carries outlives the caller's frame, and goes where the reaper runs:
//! ```compile_fail,E0597
//! # use tenon_transport::verbs::*;
//! # fn borrow(device: &std::sync::Arc<Device>, queue_pair: &QueuePair<&'static u8>, remote: Remote, into: Local) {
//! let on_the_stack = 1;
//! let read = SendRequest::read(remote, vec![into], &on_the_stack);
//! queue_pair.post_send(vec![read]).unwrap();
//! # }
//! ```
//! ```compile_fail,E0599
//! # use tenon_transport::verbs::*;
//! # fn not_sent(device: &std::sync::Arc<Device>) {
//! let queue = CompletionQueue::<std::rc::Rc<()>>::new(device, 16);
//! # }
//! ```
//! A completion queue's channel has one reaper at a time:
//! ```no_run
//! # use {std::time::Duration, tenon_transport::verbs::*};
//! # async fn reap(channel: &mut CompletionChannel<u64>, one: &mut Vec<Completion<u64>>, two: &mut Vec<Completion<u64>>) {
//! channel.reap(Duration::ZERO, one).await.unwrap();
//! channel.reap(Duration::ZERO, two).await.unwrap();
//! # }
//! ```
//! ```compile_fail,E0499
//! # use {std::time::Duration, tenon_transport::verbs::*};
//! # async fn reap(channel: &mut CompletionChannel<u64>, one: &mut Vec<Completion<u64>>, two: &mut Vec<Completion<u64>>) {
//! let first = channel.reap(Duration::ZERO, one);
//! let second = channel.reap(Duration::ZERO, two);
//! first.await.unwrap();
//! # }
//! ```

mod async_events;
mod completion_channel;
mod completion_queue;
mod device;
mod error;
mod gid;
mod memory_region;
mod memory_window;
mod posted;
mod protection_domain;
mod queue_pair;
mod raw;
mod request;
mod timing;
mod transition;
mod window_probe;

pub mod engine;

use std::{fmt, io};

use parking_lot::Mutex;

pub use async_events::{AsyncEvent, AsyncEvents};
pub use completion_channel::CompletionChannel;
pub use completion_queue::CompletionQueue;
pub use device::{Device, DeviceAttributes, LinkLayer, Mtu, Port, PortState, devices};
pub use error::VerbsError;
pub use gid::{Gid, GidEntry, GidKind, GidVerdict, choose_gid, judge_gids};
pub use memory_region::{Access, Local, MemoryRegion, RegionKey};
pub use memory_window::MemoryWindow;
pub use protection_domain::ProtectionDomain;
pub use queue_pair::{Endpoint, QueuePair, QueuePairOptions};
pub use request::{Completion, Done, Payload, PostError, PostFailure, ReceiveRequest, Remote, SendRequest, Status};
pub use timing::Timing;
pub use transition::{Attribute, QueuePairState};
pub use window_probe::{Enforced, Windows, probe_windows};

/// Objects that a device refused to release, in the life of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedReleases {
    /// How many there were.
    pub count: u64,
    /// What the first one was, and why: others may follow from it, such as a domain from a region in it.
    pub first: Option<String>,
}

static FAILED_RELEASES: Mutex<FailedReleases> = Mutex::new(FailedReleases { count: 0, first: None });

/// Objects that a device refused to release, in the life of this process. What they could still touch is kept for good:
/// any but none is a leak, and a bug here or in a driver.
#[must_use]
pub fn failed_releases() -> FailedReleases {
    FAILED_RELEASES.lock().clone()
}

/// Logs and counts an object that could not be released; true if it could not.
fn not_released(object: impl fmt::Display, result: io::Result<()>) -> bool {
    let Err(error) = result else {
        return false;
    };
    tracing::error!(%error, %object, "an RDMA object could not be released and is leaked");
    let mut failed = FAILED_RELEASES.lock();
    failed.count += 1;
    failed.first.get_or_insert_with(|| format!("{object}: {error}"));
    true
}

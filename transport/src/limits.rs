//! Every limit of this crate, with its reason.

use std::time::Duration;

/// Largest payload of one control frame. A batch of some thousand entries fits; one frame cannot exhaust memory.
pub const MAX_LINK_FRAME_BYTES: u32 = 4 << 20;
/// Calls one side keeps open on one link, and the most the acceptor works on at once for one session.
pub const MAX_LINK_CALLS: usize = 128;
/// Largest credential in a hello.
pub const MAX_CREDENTIAL_BYTES: usize = 1024;
/// Shortest cluster secret: guessing it offline from a recorded handshake must be out of reach.
pub const MIN_SECRET_BYTES: usize = 16;
/// Most lanes of one connection.
pub const MAX_LANES: usize = 16;
/// Largest payload of one data frame.
pub const MAX_DATA_FRAME_BYTES: u32 = 16 << 20;
/// Most transfers in one batch.
pub const MAX_BATCH_TRANSFERS: usize = 4096;
/// Threads that prefault one memory: beyond that the kernel's locks, not the zeroing, set the pace.
pub const PREFAULT_THREADS_MAX: usize = 8;
/// Bytes a thread prefaults between two reports of progress; a multiple of every huge page size but 1 GiB.
pub const PREFAULT_SLICE_BYTES: u64 = 64 << 20;
/// Ranges that one process exports at once: one per segment, and one per reservation that waits for its bytes.
pub const MAX_EXPORTS: usize = 1 << 18;
/// An idle TCP connection is probed after this time.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Time between two probes of an idle TCP connection.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
/// Unanswered probes after which an idle TCP connection is dead.
pub const KEEPALIVE_PROBES: u32 = 3;

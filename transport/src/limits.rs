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
/// Largest body of a handshake message: a hello with the largest credential fits.
pub const MAX_HANDSHAKE_BODY_BYTES: usize = 2048;
/// Longest text of a refusal.
pub const MAX_REFUSAL_TEXT_BYTES: u16 = 512;

const _: () = assert!(
    MAX_CREDENTIAL_BYTES + 256 <= MAX_HANDSHAKE_BODY_BYTES,
    "a hello fits in one message"
);
const _: () = assert!(MAX_HANDSHAKE_BODY_BYTES <= 0xffff, "the length has 16 bits");
/// Longest wait for a refused peer to hang up.
pub const FINISH_TIMEOUT: Duration = Duration::from_millis(500);
/// Reads of at most 1 KiB each that a refused peer is granted before we hang up.
pub const FINISH_READS_MAX: usize = 64;
/// Handshakes under way at once on one listener; more wait in the system's backlog. With the time that one may take
/// this bounds how many silent connections per second shut honest peers out: about a hundred.
pub const MAX_HALF_OPEN: usize = 512;
/// Time a dialler has for its whole handshake, unless the listener is told otherwise.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Control links of one listener: agents of the cluster and programs of the host.
pub const MAX_LINKS: usize = 4096;
/// Data lanes of one listener.
pub const MAX_LANES_TOTAL: usize = 4096;
/// Data lanes of one session on one listener.
pub const MAX_LANES_PER_SESSION: usize = 64;
/// Pause after a connection could not be accepted, so that running out of descriptors does not become a spin.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A control link whose peer takes nothing for this long is closed.
pub const LINK_WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A data lane on which something is under way and no byte moves for this long is closed, unless told otherwise.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that calls under way get to finish when a listener shuts down.
pub const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

const _: () = assert!(
    MAX_LANES <= MAX_LANES_PER_SESSION,
    "one connection's lanes are always let in"
);
/// Reads that wait on one lane at its owner; the initiator's next requests wait in its socket.
pub const MAX_QUEUED_READS: usize = 2 * MAX_BATCH_TRANSFERS;
/// Outcomes that wait on one lane at its owner to be told.
pub const MAX_QUEUED_REPLIES: usize = 8192;
/// Smallest frames that data is cut in: smaller ones cost more calls than they carry.
pub const MIN_DATA_FRAME_BYTES: u32 = 64 << 10;
/// Send buffer of a data lane. The system's own choice grows to several MiB, so that bytes go through main memory on
/// their way between two processes of one host; this much stays in a core's second-level cache. Between hosts it covers
/// a round trip of 100 µs at 5 GB/s per lane.
pub const LANE_SEND_BUFFER_BYTES: usize = 512 << 10;
/// Requests that one connection has under way at once.
pub const MAX_IN_FLIGHT_REQUESTS: usize = 8192;
/// Bytes that one connection has under way at once.
pub const MAX_IN_FLIGHT_BYTES: u64 = 256 << 20;
/// Requests that a batch sends in one go, unless a group is larger.
pub const STEP_PARTS: usize = 1024;
/// Bytes that a batch sends in one go, unless a group is larger: a quarter of what may be under way, so that batches
/// interleave.
pub const STEP_BYTES: u64 = MAX_IN_FLIGHT_BYTES / 4;
/// First pause before a dead lane is dialled again; it doubles each time.
pub const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// Longest pause before a dead lane is dialled again.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A lane that lived this long starts with the shortest pause again.
pub const BACKOFF_RESET: Duration = Duration::from_secs(5);
/// Time for dialling a dead lane again.
pub const REDIAL_TIMEOUT: Duration = Duration::from_secs(3);

const _: () = assert!(
    MAX_BATCH_TRANSFERS <= MAX_QUEUED_READS,
    "the largest group fits in an owner's queue"
);
/// Completions taken from a device in one go: more would keep the queue's lock from posters and other reapers for long.
pub const COMPLETIONS_PER_POLL: usize = 32;
/// Requests of a queue pair's send queue unless told otherwise: with those of some MiB far beyond what fills any link, and
/// small enough for many hundred queue pairs.
pub const VERBS_SEND_REQUESTS: u32 = 128;
/// Parts of one request unless told otherwise, clamped to the device: a send queue's memory grows with it.
pub const VERBS_PARTS_MAX: u32 = 8;
/// Bytes that a request carries in itself unless told otherwise: what one cache line or a small message has.
pub const VERBS_INLINE_BYTES: u32 = 64;
/// Most retries after silence, and after answers that the peer is not ready. Seven means for ever to some devices, and
/// no request may hang.
pub const VERBS_RETRIES_MAX: u8 = 6;
/// Largest exponent of the acknowledgement timeout: 4.3 s, so that a dead peer is noticed within half a minute.
pub const VERBS_TIMEOUT_EXPONENT_MAX: u8 = 20;
/// Queue pairs of one port: with the largest queues, what one completion queue of common devices has room for.
pub const VERBS_QUEUE_PAIRS_MAX: u32 = 128;
/// How often it is looked whether devices in use are still listed: whoever removes one waits for so long.
pub const VERBS_LOOK_PERIOD: Duration = Duration::from_secs(3);
/// How often it is looked whether a device that is gone is still in use.
pub const VERBS_LET_GO_PERIOD: Duration = Duration::from_millis(100);
/// A path that was used more lately than this is not closed to make room for another: else more peers than there is room
/// for would do nothing but connect.
pub const VERBS_IDLE_MIN: Duration = Duration::from_secs(1);
/// Paths that were not used for so long are the first that peers are asked to close.
pub const VERBS_IDLE_LONG: Duration = Duration::from_secs(60);
/// Time that peers have for closing paths, when a queue pair is wanted and there is no room.
pub const VERBS_ROOM_TIMEOUT: Duration = Duration::from_millis(500);
/// How often it is looked meanwhile whether there is room.
pub const VERBS_ROOM_POLL: Duration = Duration::from_millis(25);
/// A peer listens for so long to whether it is to close paths, and then listens anew.
pub const VERBS_LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Before it listens again to a peer that gave no answer.
pub const VERBS_LISTEN_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time from one question for what to close to the next: a peer that answers at once, and again, costs little. Far
/// below [`VERBS_ROOM_TIMEOUT`], so that an honest one is heard in time.
pub const VERBS_LISTEN_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Calls of one peer that an owner works on at once. Their deadlines do not end those that must end in order, so the calls
/// that the link counts are not all.
pub const VERBS_ANSWERS_MAX: usize = MAX_LINK_CALLS;
/// Longest read of one request. Reads are cut so where one path alone leads to the peer, since each request has a cost of its own at both
/// ends. The regions of memory that is registered in parts reach so far into the next part.
pub const VERBS_READ_BYTES_MAX: u64 = 4 << 20;
/// Reads are cut so where several paths share them; and writes, each slice of which is pulled or pushed, and verified, in one piece.
pub const VERBS_SLICE_BYTES: u64 = 1 << 20;
/// Parts of local memory of one read: what every device takes.
pub const VERBS_READ_PARTS_MAX: usize = 4;
/// Bytes of a batch of reads that goes over one path as it is: so few that a second rail would save less time than
/// dealing them out takes.
pub const VERBS_SMALL_BYTES: u64 = 64 << 10;
/// Reads of such a batch: an object and its lines, for some objects.
pub const VERBS_SMALL_READS: usize = 32;
/// Paths of one connection: a host has few ports.
pub const VERBS_PATHS_MAX: usize = 16;
/// Offered ranges of one call: with [`VERBS_SLICE_BYTES`] each, 64 MiB.
pub const VERBS_PULLS_MAX: usize = 64;
/// Times that a read is tried, over whatever path is up.
pub const VERBS_ATTEMPTS_MAX: usize = 4;
/// Time that a device has for flushing a queue pair.
pub const VERBS_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// Time that a new path has to be connected and to carry a few bytes.
pub const VERBS_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// What an owner has for ending a pull after its initiator's deadline; until then the offered memory stays registered.
pub const VERBS_PULL_GRACE: Duration = Duration::from_secs(6);
/// A connection all of whose paths are lost ends after so many tries to connect one again.
pub const VERBS_RECONNECTS_MAX: u32 = 2;
/// Bytes that a new path is tried with.
pub const VERBS_PROBE_BYTES: usize = 64;
/// Longest read that lands in memory of the rail's and is copied: beyond it copying comes to cost what registering does.
pub const VERBS_POOL_SLOT_BYTES: usize = 4 << 10;
/// Such reads under way at once on one rail: gets of 128 objects have three for each. Together 2 MiB, of the 8 MiB that programs without privilege
/// usually may lock.
pub const VERBS_POOL_SLOTS: usize = 512;
/// How long a transfer waits for memory that may not be locked now: what other transfers have locked is let go of as they land, within
/// milliseconds each.
pub const VERBS_LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
pub const VERBS_LOCK_POLL: Duration = Duration::from_millis(5);
/// Time that a device has for one request of the experiment with memory windows, which takes microseconds.
pub const VERBS_WINDOW_PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two questions for a completion of that experiment.
pub const VERBS_WINDOW_PROBE_PAUSE: Duration = Duration::from_micros(200);
/// Windows that one peer has at once: four calls' worth. Further writes are pulled.
pub const VERBS_GRANTS_MAX: usize = 4 * VERBS_PULLS_MAX;
/// Calls for windows that one batch of writes makes at once.
pub const VERBS_GRANT_CALLS_MAX: usize = 2;
/// Exports whose places one connection remembers, and that one peer is told of: segments and their tables.
pub const VERBS_KEYS_MAX: usize = 4096;
/// What a peer has for forgetting keys that it was told of, with the reads under way under them; then its queue pairs are ended, so that memory goes. Longer than
/// one that hears nothing for [`VERBS_LISTEN_PAUSE`] needs.
pub const VERBS_FORGET_TIMEOUT: Duration = Duration::from_secs(4);
/// Memory is registered as a whole in parts of so many bytes: some seconds' work each, so that threads share it and progress is seen.
pub const VERBS_REGION_BYTES: u64 = 16 << 30;
/// Parts of one memory; they are longer where it has more. What is told of them to a peer, for all paths, is 64 KiB.
pub const VERBS_REGIONS_MAX: usize = 1024;
/// Threads that register one memory: beyond that the kernel's locks set the pace, as for [`PREFAULT_THREADS_MAX`].
pub const VERBS_REGISTER_THREADS_MAX: usize = PREFAULT_THREADS_MAX;
/// Keys that are to be forgotten, or are, in one message; the next one follows.
pub const VERBS_FORGET_KEYS_MAX: usize = 1024;

const _: () = assert!(
    VERBS_IDLE_MIN.as_millis() < VERBS_IDLE_LONG.as_millis()
        && 2 * VERBS_ROOM_TIMEOUT.as_millis() < VERBS_CONNECT_TIMEOUT.as_millis(),
    "both steps of making room fit into the time for connecting"
);
const _: () = assert!(
    2 * VERBS_LISTEN_PAUSE.as_millis() < VERBS_FORGET_TIMEOUT.as_millis(),
    "a peer that had a pause hears in time what it is to forget"
);
const _: () = assert!(
    VERBS_SLICE_BYTES <= VERBS_READ_BYTES_MAX && VERBS_SMALL_BYTES <= VERBS_READ_BYTES_MAX,
    "whatever is one request lies in the region that it begins in"
);
const _: () = assert!(
    VERBS_FLUSH_TIMEOUT.as_millis() < VERBS_PULL_GRACE.as_millis(),
    "an owner has flushed before the memory it reads goes"
);

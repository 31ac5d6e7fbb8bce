//! Every bound of the agent, with its reason. Units are in the names.

use std::time::Duration;
use tenon_protocol::limits::{BATCH_KEYS_MAX, KEY_LEN_BYTES_MAX, MESSAGE_LEN_BYTES_MAX, PAGE_KEYS_MAX, PIECE_BYTES};

/// Longest configuration file. A list of 1,024 members takes about 100 KiB.
pub const CONFIG_FILE_LEN_BYTES_MAX: u64 = 1 << 20;
/// Longest name of a cluster.
pub const CLUSTER_NAME_LEN_BYTES_MAX: usize = 128;
/// Most failed handshakes that are kept, so that the same is not told again (about 64 KiB).
pub const FAILED_HANDSHAKES_KEPT_MAX: usize = 256;
/// A handshake that fails as before is told again after this.
pub const FAILED_HANDSHAKE_TOLD_AGAIN: Duration = Duration::from_secs(600);
/// Most members of a list that a refusal names: they fit into its text.
pub const REFUSAL_MEMBERS_NAMED_MAX: usize = 8;
/// Shortest cluster secret.
pub const SECRET_LEN_BYTES_MIN: usize = tenon_transport::limits::MIN_SECRET_BYTES;
/// Longest cluster secret: a file longer than this is something else.
pub const SECRET_LEN_BYTES_MAX: usize = 4096;
/// Longest path of a unix socket: `sun_path` has 108 bytes, one of which ends it.
pub const SOCKET_PATH_LEN_BYTES_MAX: usize = 107;
/// Most segments of a node.
pub const SEGMENTS_MAX: usize = 1024;
/// Most segments that are being mounted at run time at once.
pub const MOUNTS_AT_ONCE_MAX: usize = 16;
/// Segments that are gone and are still listed.
pub const GONE_SEGMENTS_KEPT_MAX: usize = 16;
/// Longest time that those who use a segment may be given before it is unmounted.
pub const GRACEFUL_MS_MAX: u64 = 24 * 3_600_000;
/// Objects that are moved to other nodes at once.
pub const MOVES_AT_ONCE_MAX: usize = 16;
/// Objects of a draining segment that are listed to be moved at once.
pub const MOVES_LISTED_MAX: usize = 256;
/// Pieces of one object that is moved that are written at once.
pub const MOVE_PIECES_AT_ONCE_MAX: usize = 4;
/// Nodes that are asked to take one object in one try.
pub const MOVE_NODES_MAX: usize = 8;
/// First pause before objects that were not moved are tried again.
pub const MOVE_PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest such pause.
pub const MOVE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a member may take to hear that the room of this node has changed.
pub const ROOM_NEWS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long memory that was given up may be in use before that is logged.
pub const RELEASE_PATIENCE: Duration = Duration::from_secs(15);

const _: () = assert!(
    2 * tenon_transport::limits::VERBS_FORGET_TIMEOUT.as_millis() < RELEASE_PATIENCE.as_millis(),
    "a peer that does not forget memory is cut off from it while that is waited for"
);
/// Smallest segment: one piece.
pub const SEGMENT_LEN_BYTES_MIN: u64 = PIECE_BYTES;
/// Largest segment if the configuration names none; a quarter of the memory if that is less.
pub const DEFAULT_SEGMENT_LEN_BYTES_MAX: u64 = 1 << 30;
/// One descriptor slot for so many bytes of segment, unless configured otherwise.
pub const SLOT_BYTES: u64 = 64 << 10;
/// Most descriptor slots of a segment: their table has 86 GB.
pub const SLOTS_MAX: u32 = 1 << 26;
/// Fewest workers of a runtime: one may be in a long step without the others waiting.
pub const WORKERS_MIN: usize = 2;
/// Most workers that serve control calls.
pub const CONTROL_WORKERS_MAX: usize = 8;
/// Most workers that move data: beyond that memory, not the processor, sets the pace.
pub const DATA_WORKERS_MAX: usize = 64;
/// How long the workers of a stopped node may take for their last step.
pub const RUNTIME_STOP_MS_MAX: u64 = 1_000;
/// Longest timeout that can be configured: an hour.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;

/// Largest incarnation that is believed: generations are made from it by a shift of 20 bits. Unix time in milliseconds
/// reaches this in the year 2248.
pub use tenon_protocol::limits::INCARNATION_MAX;
/// Longest file in the state directory: an id or a number.
pub const STATE_FILE_LEN_BYTES_MAX: u64 = 4096;

/// How often an object is opened for one `GET` whose object is replaced each time before its first byte is read.
pub(crate) const GET_OPENINGS_MAX: u32 = 4;

/// Connections that the HTTP front holds at once; more wait in the kernel's queue.
pub const HTTP_CONNECTIONS_MAX: usize = 1024;
/// Requests of the HTTP front that move objects at once. Each holds at most some 16 pieces.
pub const HTTP_TRANSFERS_MAX: usize = 32;
/// Other calls of the HTTP front at once, each with a body of at most [`HTTP_MESSAGE_LEN_BYTES_MAX`].
pub const HTTP_CALLS_MAX: usize = 64;
/// Longest JSON body of a call.
pub const HTTP_MESSAGE_LEN_BYTES_MAX: usize = MESSAGE_LEN_BYTES_MAX;
/// Longest request line and header fields together.
pub const HTTP_HEAD_LEN_BYTES_MAX: usize = 16 << 10;
/// Most header fields: the HTTP library takes no more.
pub const HTTP_HEAD_FIELDS_MAX: usize = 100;
/// A connection without a request under way is closed after this long: it also bounds how long a head may take to
/// arrive.
pub const HTTP_IDLE_MS_MAX: u64 = 10_000;
/// A peer that neither sends an awaited byte nor takes one for this long loses its request.
pub const HTTP_STALL_MS_MAX: u64 = 10_000;
/// The body of a refused request is read and thrown away for at most this long, so that its sender gets to read the
/// answer.
pub const HTTP_DISCARD_MS_MAX: u64 = 5_000;
/// Puts that are under way over HTTP by reserve and commit.
pub const HTTP_PUTS_MAX: usize = 4096;
/// Longest deadline that a caller may ask for: an hour.
pub const CALL_TIMEOUT_MS_MAX: u64 = 3_600_000;

// A full batch of the longest keys fits in one JSON body unless every byte of them is escaped.
const _: () = assert!(BATCH_KEYS_MAX * (KEY_LEN_BYTES_MAX + 512) < HTTP_MESSAGE_LEN_BYTES_MAX);
const _: () = assert!(PAGE_KEYS_ENOUGH + tenon_store_core::limits::PAGE_STEP_KEYS_MAX <= PAGE_KEYS_MAX);
// The longest key fits in a request line with each of its bytes percent-encoded.
const _: () = assert!(3 * KEY_LEN_BYTES_MAX + 1024 < HTTP_HEAD_LEN_BYTES_MAX);

/// A token may be used for new links for this long: long enough for a program to reach every holder it needs, short
/// enough to be worthless when found in a dump.
pub const TOKEN_LIFE_MS: u64 = 300_000;
/// How long the end of a client's session is relayed to another holder. Where it does not arrive, reservations run out
/// by themselves.
pub const SESSION_END_RELAY: Duration = Duration::from_secs(5);
/// How long room that a put does not need is given back to another node. Where that does not arrive, it runs out by
/// itself.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Most nodes that are asked to evict for one call, one after the other. The first that has as many evictable bytes as are needed nearly always
/// makes a hole; a cluster in which so many do not is full of pins.
pub const EVICTION_QUESTIONS_MAX: usize = 32;
/// How long homes are told of a proposal that was given up. Where that does not arrive, they ask the holder.
pub const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a look-up goes on asking homes that do not know yet: longer than it takes to find a silent member
/// unreachable, after which it is not waited for.
pub const UNKNOWN_WAIT_MAX: Duration = Duration::from_secs(4);
/// The same while members have different lists, so that homes learn nothing before an operator has mended that.
pub const REFUSED_WAIT_MAX: Duration = Duration::from_millis(250);
/// First pause before homes that do not know yet are asked again.
pub const UNKNOWN_PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest such pause.
pub const UNKNOWN_PAUSE_MAX: Duration = Duration::from_millis(250);
/// How long the keys of one frame wait for each other at a home: longer than a decision takes among nodes that answer,
/// and much shorter than the time after which one that stands still is unreachable.
pub const FRAME_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long they wait at least: what timers can tell apart. A deadline that has just passed is asked about no faster.
pub const FRAME_WAIT_MIN: Duration = Duration::from_millis(1);
/// Most keys that are not decided by then and kept until they are asked for: as many as requests may wait at a home.
pub const LATE_KEYS_MAX: usize = tenon_store_core::limits::DIRECTORY_REQUESTS_MAX;
/// How long a key is kept for that nobody asks for, decided or not. Whoever is there asks at once;
/// for one that stood still for longer it is as if the home had not answered in time.
pub const LATE_KEPT_MAX: Duration = Duration::from_secs(5);
/// How often they are looked through: all of them each time, so rarely beside how long they are kept.
pub const LATE_FORGOTTEN_EVERY: Duration = Duration::from_secs(1);

const _: () = assert!(FRAME_WAIT_MIN.as_millis() < FRAME_WAIT_MAX.as_millis());
// A home that asks the other one is never too late for its ticket.
const _: () = assert!(LATE_KEPT_MAX.as_secs() * 1_000 > tenon_store_core::limits::DIRECTORY_QUESTION_MS);
const _: () = assert!(2 * LATE_FORGOTTEN_EVERY.as_millis() < LATE_KEPT_MAX.as_millis());

/// How long one attempt to tell homes of an object that they may not know may take.
pub const PUBLISH_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause before the next such attempt.
pub const PUBLISH_PAUSE_MIN: Duration = Duration::from_millis(250);
/// Longest such pause.
pub const PUBLISH_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Most objects of which one home is still to be told.
pub const PUBLISHED_KEYS_MAX: usize = 1 << 16;
/// How long one attempt to tell homes of evictions may take.
pub const EVICTION_REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// First pause before the next such attempt.
pub const EVICTION_REPORT_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest such pause.
pub const EVICTION_REPORT_PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long an unmount waits, all together, for homes of which many are to be told already. A home that does not answer holds nothing up: it finds out later.
pub const CROWDED_PATIENCE: Duration = Duration::from_secs(10);
/// Most evictions of which one home is still to be told (about 10 MiB).
pub const EVICTIONS_UNTOLD_MAX: usize = 1 << 16;
/// A page of what a member is told ends once it has so many keys: small ones often keep a processor for less time in one go
/// than large ones rarely.
pub const PAGE_KEYS_ENOUGH: usize = PAGE_KEYS_MAX / 2;
/// Most steps of a page: it ends then, though few keys were told.
pub const PAGE_STEPS_MAX: usize = 64;
/// How often reservations, outcomes and waiting questions are looked at. An eviction must be reported within 100 ms.
pub const TICK_EVERY: Duration = Duration::from_millis(10);
/// A call is answered so much before its deadline that the answer still arrives: a tenth of the time, at most this.
pub const ANSWER_MARGIN_MAX: Duration = Duration::from_millis(100);
/// File descriptors that the agent asks the system for: connections of both fronts, lanes, segments, and room to spare.
pub const DESCRIPTORS_WANTED: u64 = 65_536;

const _: () =
    assert!(DESCRIPTORS_WANTED > 4 * (HTTP_CONNECTIONS_MAX as u64 + tenon_transport::limits::MAX_HALF_OPEN as u64));

/// Largest row of a GID table that a configuration may name: requests have 8 bits for it.
pub const GID_INDEX_MAX: u32 = 255;

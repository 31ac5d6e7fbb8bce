//! Every bound of the command line, with its reason. Units are in the names.

use std::time::Duration;
use tenon_protocol::limits::PIECE_BYTES;

/// Most bytes that a put from a pipe holds in memory: a pipe's length is known only at its end, and a put must say its length at its
/// beginning.
pub(super) const PIPE_LEN_BYTES_MAX: u64 = 8 << 30;
/// Files are read in chunks of this many bytes: whole pieces, which are sent without another copy.
pub(super) const READ_CHUNK_BYTES: usize = 1 << 20;
/// Chunks that are read ahead of the sending.
pub(super) const READ_AHEAD_CHUNKS: usize = 8;
/// Transfers of at least so many bytes show a progress bar at a terminal; shorter ones end before it could be read.
pub(super) const PROGRESS_LEN_BYTES_MIN: u64 = 64 << 20;
/// Most keys that one listing prints, unless told otherwise.
pub(super) const LIST_ENTRIES_DEFAULT: u64 = 100_000;
/// Longest `--timeout-ms`: a day.
pub(super) const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// Most keys of one `rm`, `touch`, `pin` or `unpin`: what one message to the agent holds.
pub(super) const KEYS_MAX: usize = tenon_protocol::limits::BATCH_KEYS_MAX;
/// Peers that `doctor` dials at once: enough for the largest cluster to take seconds, few enough not to be a storm.
pub(super) const DOCTOR_PEERS_AT_ONCE: usize = 64;
/// Calls to each of them, of which the quickest counts: what delays one seldom delays all.
pub(super) const DOCTOR_CALLS: usize = 5;
/// Queue pairs of one port that `doctor` has at once: one for each peer that it dials.
pub(super) const DOCTOR_QUEUE_PAIRS_MAX: u32 = 64;

// Peers that are tried at once have a queue pair each.
const _: () = assert!(DOCTOR_QUEUE_PAIRS_MAX as usize == DOCTOR_PEERS_AT_ONCE);
// Chunks of a file, read from its start, are the object's pieces.
const _: () = assert!(READ_CHUNK_BYTES as u64 == PIECE_BYTES);

/// How often it is asked how far a segment is.
pub(super) const SEGMENT_POLL: Duration = Duration::from_millis(200);

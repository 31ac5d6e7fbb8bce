//! Every limit of this crate, with its reason. Units are in the names.

use tenon_protocol::limits::{
    BATCH_KEYS_MAX, ERROR_MESSAGE_LEN_BYTES_MAX, FINGERPRINT_LEN_BYTES_MAX, MESSAGE_LEN_BYTES_MAX, PIECE_BYTES,
};
use tenon_transport::limits::MAX_BATCH_TRANSFERS;

// Links and the calls that they carry change versions together.
const _: () = assert!(tenon_transport::link::VERSIONS.1 == tenon_protocol::WIRE_VERSION);

/// An operation's deadline, unless the caller's: this much …
pub const DEADLINE_BASE_MS: u64 = 5_000;
/// … and one second more for so many bytes.
pub const DEADLINE_BYTES_PER_S: u64 = 8 << 20;

/// Longest time for dialling and shaking hands with an agent.
pub const DIAL_TIMEOUT_MS: u64 = 3_000;
/// How long a caller waits for a peer whose last attempt failed. A peer that is back answers well within it; one that is dead costs
/// no more than this, once per back-off.
pub const SECOND_DIAL_PATIENCE_MS: u64 = 250;
/// First pause after a failed attempt to reach a peer.
pub const BACK_OFF_MIN_MS: u64 = 50;
/// Longest pause after failed attempts to reach a peer.
pub const BACK_OFF_MAX_MS: u64 = 5_000;
/// Holders that are remembered at once. Beyond it, those whose attempts failed are forgotten first.
pub const HOLDERS_MAX: usize = tenon_protocol::limits::NODES_MAX;

/// Message bytes that a batch's items may fill in one frame; the rest is for the frame's own fields.
pub const FRAME_ITEMS_BYTES_MAX: usize = MESSAGE_LEN_BYTES_MAX - (64 << 10);
/// Frames of one batch under way at once.
pub const FRAMES_IN_FLIGHT_MAX: usize = 4;

/// Payload bytes of one submission of a put: small enough that checksums of the next are computed while it is being sent.
pub const PUT_SUBMIT_BYTES_MAX: u64 = 2 << 20;
/// Submissions of one put under way at once to one holder.
pub const PUT_SUBMITS_IN_FLIGHT_MAX: usize = 8;
/// Payload bytes of one submission of a get.
pub const GET_SUBMIT_BYTES_MAX: u64 = 8 << 20;
/// Pieces of one transfer, where nobody stamps or checks each: as many as one submission has room for.
pub const TRANSFER_PIECES_MAX: usize = 8;
/// Submissions of one get under way at once to one holder.
pub const GET_SUBMITS_IN_FLIGHT_MAX: usize = 8;
/// Transfers in one submission.
pub const SUBMIT_TRANSFERS_MAX: usize = 1024;
/// Objects of at most so many pieces are read under one hold, with their table entries, on one lane. Larger ones are striped over
/// lanes: each of their pieces proves its generation by itself.
pub const GROUP_PIECES_MAX: usize = 4;

/// Pause between two tries of a commit that got no answer.
pub const COMMIT_RETRY_PAUSE_MS: u64 = 100;
/// Times a commit is asked for whose holder does not answer the agent. The agent tells that at once, so more would only cost time.
pub const COMMIT_UNAVAILABLE_TRIES_MAX: u32 = 3;
/// Longest time for giving reservations back after a put failed or was dropped. The holder ends them by itself later.
pub const ABORT_TIMEOUT_MS: u64 = 1_000;

/// Times that a piece is sent: again if its lane broke or the bytes that arrived were others.
pub const PIECE_WRITES_MAX: u32 = 2;

/// Fresh looks at where an object is within one get, when it keeps changing.
pub const RELOCATIONS_MAX: u32 = 4;
/// Reads of one object that gave wrong bytes before the get fails.
pub const CORRUPT_READS_MAX: u32 = 2;
/// Times that the way to one replica may break within one get before the replica counts as unreachable.
pub const BROKEN_READS_MAX: u32 = 2;

/// Pieces of one [`PutStream`](crate::PutStream) under way at once.
pub const STREAM_PUT_PIECES_MAX: usize = 16;
/// Pieces that an [`ObjectReader`](crate::ObjectReader) reads ahead.
pub const STREAM_READ_AHEAD_PIECES: u64 = 8;
/// Largest object that [`Client::get`](crate::Client::get) takes into memory of its own; larger ones are read through
/// [`Client::open`](crate::Client::open).
pub const GET_WHOLE_BYTES_MAX: u64 = 8 << 30;

/// A token is used until this much of its life is left.
pub const TOKEN_RENEW_BEFORE_MS: u64 = 10_000;

/// Keys that are removed in one call, where all that begins with a prefix is: a call of more would keep others waiting.
pub const REMOVE_PAGE_KEYS: u32 = 128;
/// Reads past their owner are told to it as uses this long after the first of them …
pub const MARKS_EVERY_MS: u64 = 200;
/// … at most so many at once …
pub const MARKS_MAX: usize = 4 * BATCH_KEYS_MAX;
/// … and not at all if the agent does not answer in this time.
pub const MARKS_TIMEOUT_MS: u64 = 1_000;

// A submission of whole pieces holds at least one, and stays within what a connection takes.
const _: () =
    assert!(PUT_SUBMIT_BYTES_MAX >= PIECE_BYTES && GET_SUBMIT_BYTES_MAX >= GROUP_PIECES_MAX as u64 * PIECE_BYTES);
const _: () = assert!(TRANSFER_PIECES_MAX as u64 * PIECE_BYTES == GET_SUBMIT_BYTES_MAX);
// An object that is read in one group fits in one submission together with its three table entries.
const _: () = assert!(GROUP_PIECES_MAX + 3 < SUBMIT_TRANSFERS_MAX && SUBMIT_TRANSFERS_MAX <= MAX_BATCH_TRANSFERS);
// The answer to a full frame fits in a message even if every key of it gets the longest error.
const _: () =
    assert!(BATCH_KEYS_MAX * (ERROR_MESSAGE_LEN_BYTES_MAX + FINGERPRINT_LEN_BYTES_MAX + 256) < MESSAGE_LEN_BYTES_MAX);

/// A holder that is reached over TCP because RDMA did not work is tried over RDMA again after this time, …
pub const RDMA_RETRY_MIN_MS: u64 = 30_000;
/// … and after twice the last time whenever it did not work again, up to this one: each try sets up all connections to the holder anew.
pub const RDMA_RETRY_MAX_MS: u64 = 480_000;

/// Segments of one holder that are remembered to be gone; asked for again beyond that.
pub const GONE_SEGMENTS_MAX: usize = 1024;

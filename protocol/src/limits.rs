//! Every bound of the formats and messages. Units are in the names.

/// Longest key, in bytes of UTF-8.
pub const KEY_LEN_BYTES_MAX: usize = 1024;
/// Longest namespace name, in bytes of ASCII.
pub const NAMESPACE_LEN_BYTES_MAX: usize = 63;
/// Longest opaque fingerprint stored with an object.
pub const FINGERPRINT_LEN_BYTES_MAX: usize = 32;
/// A checksum is kept for every piece of this many payload bytes (the last piece may be shorter).
pub const PIECE_BYTES: u64 = 1 << 20;
/// Largest object. Its piece checksums must fit in one commit message.
pub const OBJECT_LEN_BYTES_MAX: u64 = 256 << 30;
/// Most keys in one request.
pub const BATCH_KEYS_MAX: usize = 1024;
/// Largest encoded control message.
pub const MESSAGE_LEN_BYTES_MAX: usize = 4 << 20;
/// Most replicas of one object.
pub const REPLICAS_MAX: u8 = 8;
/// Most entries in one page of a listing.
pub const LIST_ENTRIES_MAX: u32 = 1000;
/// Most payload bytes of one node (a pebibyte): those of all nodes of a cluster can be added up.
pub const CAPACITY_BYTES_MAX: u64 = 1 << 50;
/// Most objects in one dry run: it says of each which nodes were asked.
pub const DRY_RUN_ITEMS_MAX: usize = 64;
/// Most runs in one page of a segment's map (about 100 KiB).
pub const MAP_RUNS_MAX: u32 = 4096;
/// Most keys in one page of an announcement or a hand-over.
pub const PAGE_KEYS_MAX: usize = 512;
/// Lives of nodes are numbered below this: milliseconds since 1970 until the year 2248.
pub const INCARNATION_MAX: u64 = 1 << 43;
/// Epochs of keys are below this; no key is removed so often.
pub const EPOCH_MAX: u64 = 1 << 62;
/// Most drops that one member tells another to be owed of one key.
pub const OWED_DROPS_TOLD_MAX: usize = 64;
/// Most ends of puts that one member tells another of one key.
pub const PUT_ENDS_MAX: usize = 4;
/// Most nodes of a cluster.
pub const NODES_MAX: usize = 1024;
/// Longest outside message of an error.
pub const ERROR_MESSAGE_LEN_BYTES_MAX: usize = 1024;
/// Longest time to live that a reservation may ask for, in milliseconds.
pub const RESERVATION_TTL_MS_MAX: u32 = 600_000;
/// Longest soft pin in milliseconds: a week.
pub const SOFT_PIN_MS_MAX: u64 = 7 * 24 * 3_600_000;

const _: () = assert!(CAPACITY_BYTES_MAX.checked_mul(NODES_MAX as u64).is_some());
// A page of a map, of at most 32 bytes per run, fits in one message; so does a dry run in which each node refuses each
// item, with an error of the longest kind for each item of one step and numbers of at most 128 bytes for the others.
const _: () = assert!(MAP_RUNS_MAX as usize * 32 < MESSAGE_LEN_BYTES_MAX);
// The largest object's piece checksums (8 bytes each; 10 bytes in the varint encoding) leave room for the rest of a
// commit.
const _: () = assert!(OBJECT_LEN_BYTES_MAX / PIECE_BYTES * 10 + 65_536 < MESSAGE_LEN_BYTES_MAX as u64);
// A full batch of keys of the longest kind fits in one message.
const _: () = assert!(BATCH_KEYS_MAX * (KEY_LEN_BYTES_MAX + 512) < MESSAGE_LEN_BYTES_MAX);
// A page of keys with as many replicas, owed drops and ended puts as they may have, each of at most 96 bytes, fits in one
// message.
const _: () = assert!(PAGE_KEYS_MAX * (2 * REPLICAS_MAX as usize + 64 + PUT_ENDS_MAX) * 96 < MESSAGE_LEN_BYTES_MAX);
// The key table stores the key's length in 16 bits, the namespace's and the fingerprint's in 8.
const _: () =
    assert!(KEY_LEN_BYTES_MAX < 1 << 16 && NAMESPACE_LEN_BYTES_MAX < 1 << 8 && FINGERPRINT_LEN_BYTES_MAX < 1 << 8);

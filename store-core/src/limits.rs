//! Every limit of this crate, with its unit in its name.

// ---- Region allocator ----

/// Smallest alignment of a region in bytes: one cache line, the size of a descriptor.
pub const ALIGNMENT_BYTES_MIN: u64 = 64;

/// Bits of the mantissa of a size class: neighbouring classes differ by at most 1/64, about 1.6 %.
pub const CLASS_MANTISSA_BITS: u32 = 6;

/// Bits of the mantissa of a size class under the peer's rule: neighbouring classes differ by at most 1/8.
pub const PEER_CLASS_MANTISSA_BITS: u32 = 3;

/// Number of size classes under the peer's rule.
pub const PEER_CLASSES: usize = 256;

/// Most blocks, free and allocated together, that one segment can be cut into (3 GiB of records).
pub const BLOCKS_MAX: u32 = 1 << 26;

/// Most blocks, free and allocated together, that all segments of one owner can be cut into under one index (12 GiB of records).
pub const PACKED_BLOCKS_MAX: u32 = 1 << 28;

/// Shortest request for which it is looked at what would be left of the tightest free region. What is left by shorter ones
/// serves others as short.
pub const REST_MATTERS_BYTES_MIN: u64 = 1 << 20;

/// Such a request does not take the tightest free region if more than one of so many parts of its own length would be left, as long as another region
/// has room for two of it.
pub const REST_PARTS: u64 = 10;

/// A segment that had as many regions in use as it may have stands apart until one of so many can be in use again: the
/// eighth pays for moving its free regions there and back.
pub const SCARCE_UNTIL_DIVISOR: u32 = 8;

// One word of the class bitmap holds the classes of one power of two.
const _: () = assert!(1 << CLASS_MANTISSA_BITS == u64::BITS);
// A block that is free has allocated neighbours, so a full table still has room for the free record of each.
const _: () = assert!(BLOCKS_MAX >= 2);

// ---- Placement ----

/// Entries that `free_ratio_first` samples for each replica still missing.
pub const SAMPLED_ENTRIES_PER_REPLICA: usize = 6;

/// Most positions of one scan that may cost an allocation attempt.
pub const CHARGEABLE_POSITIONS_MAX: usize = 100;

/// Most positions that one fit-aware scan may visit, credited ones included.
pub const SCANNED_POSITIONS_MAX: usize = 200;

/// Largest pool in which no hint is read: the chargeable budget already reaches every entry.
pub const HINTLESS_ENTRIES_MAX: usize = CHARGEABLE_POSITIONS_MAX;

/// A sample is large if it has at least one of so many entries of the pool: `retry_control` then scans only the others.
pub const LARGE_SAMPLE_DIVISOR: usize = 4;

/// Weight that `fragmentation_aware` gives to the share of the free space that lies in one region; the rest goes to the free ratio.
pub const CONTIGUITY_WEIGHT: f64 = 0.70;

/// Draws of a node by its capacity, for each of two choices, before the order of bounds is asked instead.
pub const NODE_DRAWS_MAX: usize = 8;

/// Among at most so many nodes the second of two choices is another one than the first, if there is one. Of more nodes a single one that has joined empty
/// would be one of the two too often: it is to get at most three times its share.
pub const DISTINCT_DRAWS_NODES_MAX: usize = 4;

/// Questions to nodes over which the mean length of what is placed is taken.
pub const MEAN_LEN_QUESTIONS: f64 = 1024.0;

/// Difference of free ratios below which two nodes are level.
pub const LEVEL_TOLERANCE: f64 = 1.0 / 256.0;

// Credits extend a scan; they can't if the scan budget ends first.
const _: () = assert!(SCANNED_POSITIONS_MAX > CHARGEABLE_POSITIONS_MAX);

// ---- Membership ----

/// Most nodes among which the homes of a namespace's keys are: a batch of keys asks no more nodes than this.
pub const INDEX_NODES_MAX: usize = 8;

/// Most namespaces whose index nodes are cached.
pub const INDEX_CACHE_NAMESPACES_MAX: usize = 1024;

/// First wait before a member that did not answer is probed again.
pub const PROBE_BACKOFF_MS_MIN: u64 = 50;

/// Longest wait between two probes of a member that does not answer.
pub const PROBE_BACKOFF_MS_MAX: u64 = 5_000;

/// Members that fall silent within so long of each other do so together.
pub const SILENT_TOGETHER_MS: u64 = 10_000;

// ---- Objects and outcomes ----

/// How long a put's outcome is remembered for retries.
pub const OUTCOME_LIFE_MS: u64 = 300_000;

/// Most outcomes remembered at once (about 25 MiB).
pub const OUTCOMES_MAX: usize = 1 << 18;

/// Most segments that one node has mounted at once.
pub const SEGMENTS_MAX: usize = 1024;

/// Most free regions that are looked at to tell how large the largest one of each segment is (a few milliseconds).
pub const BOUND_VISITS_MAX: usize = 1 << 14;

/// Most of the owner's own transfers that may be under way in one region.
pub const HOLDS_PER_REGION_MAX: u32 = 1 << 20;

/// Most separate parts of one piece that are kept of what was written (half a KiB): frames are a quarter of a piece or
/// longer, so four would do for them in any order.
pub const WRITTEN_PARTS_PER_PIECE_MAX: usize = 64;

// ---- Eviction ----

/// Most objects that go in one step in the background (about 50 µs).
pub const EVICTED_AT_ONCE_MAX: usize = 32;

/// Most regions of a segment that is unmounted that are looked at in one step (about 100 µs).
pub const DROPPED_AT_ONCE_MAX: usize = 64;

/// Most objects that are looked at in one step for one that may go.
pub const EVICTION_PASSES_AT_ONCE_MAX: usize = 256;

/// Of a node with at most so many regions all are looked at for the cheapest hole; with more as many around those that
/// are to go next (about 0.2 ms).
pub const HOLE_REGIONS_SEEN_MAX: usize = 1 << 11;

/// Most objects around which a hole is looked for then.
pub const HOLE_SEEDS_MAX: usize = 32;

/// What an object costs beside its bytes when it goes: who misses it comes back with as much trouble as for so many bytes.
pub const OBJECT_COST_BYTES: u64 = 64 << 10;

/// How much more it costs to let an object go that was used since it came or was last spared.
pub const VISITED_WEIGHT: u64 = 4;

/// How much more it costs to let an object go that is pinned softly.
pub const SOFT_PIN_WEIGHT: u64 = 1 << 10;

// Age counts up to sixteen fold.
const _: () = assert!(SOFT_PIN_WEIGHT > 16 * VISITED_WEIGHT);

// ---- Directory ----

/// Most keys of which one node keeps entries as a home (about 100 bytes each).
pub const DIRECTORY_KEYS_MAX: usize = 1 << 26;

/// Most requests that one home has not answered yet, those that wait for a decision included.
pub const DIRECTORY_REQUESTS_MAX: usize = 1 << 16;

/// Most proposals and removals that wait for what is under way on one key.
pub const WAITING_PER_KEY_MAX: usize = 256;

/// How long a home waits for its partner or a holder before it goes on as if they were unreachable.
pub const DIRECTORY_QUESTION_MS: u64 = 2_000;

/// How long an accepted object may stay unsealed before the home asks its holder.
pub const PENDING_CHECK_MS: u64 = 10_000;

/// The same, once another put waits for it.
pub const CONTESTED_CHECK_MS: u64 = 1_000;

/// How long a tombstone is kept.
pub const TOMBSTONE_LIFE_MS: u64 = 3_600_000;

/// Most tombstones kept at once (about 25 MiB); the oldest goes first.
pub const TOMBSTONES_MAX: usize = 1 << 18;

/// Most drops that one key may owe: further removals wait until holders have come back.
pub const OWED_DROPS_MAX: usize = tenon_protocol::limits::OWED_DROPS_TOLD_MAX;

/// Most keys per partner that a home remembers to have decided without it (about 8 MiB); beyond them the partner must
/// take a hand-over.
pub const UNTOLD_KEYS_MAX: usize = 1 << 16;

/// Most keys that a partner is told of later in one go.
pub const RETOLD_AT_ONCE_MAX: usize = 128;

/// Shortest time between two pages of one member, so that calls are served between them: less than a tick, so that there
/// is a page per tick.
pub const LEARNING_PAUSE_MS: u64 = 5;

/// Most pages that a home asks for at once, each of another member: one that stands still holds up one of them.
pub const LEARNING_AT_ONCE_MAX: usize = 3;

/// How long a home waits before it asks a member again that did not answer, or looks again at what waits.
pub const RETRY_MS: u64 = 250;

/// Most keys that one step of a page gives. Whoever makes a page of steps lets others in between them.
pub const PAGE_STEP_KEYS_MAX: usize = 1 << 6;

/// Most keys that are looked at for one step of a hand-over, from each place where they are kept.
pub const HAND_OVER_KEYS_SEEN_MAX: usize = 1 << 7;

/// Most objects that a holder looks at for one step of an announcement: 0.2 ms if nothing of them is in the caches.
pub const ANNOUNCED_KEYS_SEEN_MAX: usize = 1 << 6;

const _: () = assert!(ANNOUNCED_KEYS_SEEN_MAX <= PAGE_STEP_KEYS_MAX);

/// Most drops that are asked for at once, removals aside.
pub const PAID_AT_ONCE_MAX: usize = 256;

/// How often holders are asked for the drops that they owe.
pub const COLLECT_MS: u64 = 1_000;

/// Most claims that wait until it can be said whether the key's present object is still there.
pub const CONTESTED_MAX: usize = 1 << 14;

/// Most keys that are looked at in one tick for what lies in earlier lives (about a millisecond).
pub const SWEPT_AT_ONCE_MAX: usize = 1 << 14;

// A holder that answers late still answers before its silence is taken for a refusal to report.
const _: () = assert!(DIRECTORY_QUESTION_MS < PENDING_CHECK_MS);

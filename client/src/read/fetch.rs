//! The transfers of a read: payload pieces and table entries of many objects of one holder, in as few submissions as sensible.

use crate::get::Check;
use crate::holders::HolderAccess;
use crate::limits::{
    GET_SUBMIT_BYTES_MAX, GET_SUBMITS_IN_FLIGHT_MAX, GROUP_PIECES_MAX, SUBMIT_TRANSFERS_MAX, TRANSFER_PIECES_MAX,
};
use crate::read::Trouble;
use crate::read::plan::{PieceRead, part};
use crate::read::verify::TableBytes;
use futures_util::{StreamExt, stream};
use std::ops::Range;
use std::sync::Arc;
use tenon_protocol::checksum::piece_count;
use tenon_protocol::ids::SegmentId;
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{AttachedSegment, Replica};
use tenon_protocol::name::ObjectName;
use tenon_protocol::table::{DESCRIPTOR_BYTES, KeyRow, TableLayout};
use tenon_transport::{Done, Memory, Op, RemoteKey, Slice, Transfer, TransferError, TransferResult};
use tokio::time::Instant;

/// How much of an object's table entries is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableWanted {
    /// Piece sums, row and descriptor.
    Full,
    /// The descriptor: whether the region is still the same object.
    Descriptor,
    /// Nothing: the owner's stamps say that.
    Nothing,
}

/// What to read of one replica.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    pub(crate) name: &'a ObjectName,
    pub(crate) len_bytes: u64,
    pub(crate) replica: Replica,
    pub(crate) pieces: &'a [PieceRead],
    pub(crate) table: TableWanted,
    pub(crate) check: Check,
}

/// What was read of one replica; not verified.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The checksum of each piece as it landed; `None` if the engine computed none and none was asked for.
    pub(crate) piece_sums: Vec<Option<u64>>,
    /// What was wanted of the table.
    pub(crate) table: TableBytes,
}

/// Reads from one holder; one result per fetch. Payload is read before the table entries that describe it, and the descriptor last.
pub(crate) async fn fetch(
    access: &HolderAccess,
    fetches: &[Fetch<'_>],
    deadline: Instant,
) -> Vec<Result<Fetched, Trouble>> {
    let mut scratch = Scratch::new(fetches);
    let mut tallies: Vec<Tally> = fetches
        .iter()
        .map(|fetch| Tally::new(access, fetch, &mut scratch))
        .collect();
    let [payload, table] = [true, false].map(|with_pieces| submits(access, fetches, &tallies, with_pieces));
    run(access, fetches, payload, &mut tallies, deadline).await;
    run(access, fetches, table, &mut tallies, deadline).await;
    tallies.into_iter().map(Tally::finish).collect()
}

/// Which transfer of which fetch.
#[derive(Debug, Clone)]
struct Tag {
    fetch: usize,
    /// The places of its pieces in the fetch; none for a table entry.
    pieces: Range<usize>,
}

/// One call of [`Connection::submit`](tenon_transport::Connection::submit) in the making.
#[derive(Debug, Default)]
struct Submit {
    transfers: Vec<Transfer>,
    tags: Vec<Tag>,
    len_bytes: u64,
}

/// Cuts transfers into submissions; those of one unit stay together.
#[derive(Debug, Default)]
struct Cutter {
    submits: Vec<Submit>,
}

impl Cutter {
    fn push(&mut self, unit: Vec<(Tag, Transfer)>) {
        let len_bytes: u64 = unit.iter().map(|(_, transfer)| transfer.len_bytes()).sum();
        let fits = |last: &Submit| {
            last.len_bytes + len_bytes <= GET_SUBMIT_BYTES_MAX
                && last.transfers.len() + unit.len() <= SUBMIT_TRANSFERS_MAX
        };
        if !self.submits.last().is_some_and(fits) {
            self.submits.push(Submit::default());
        }
        if let Some(last) = self.submits.last_mut() {
            last.len_bytes += len_bytes;
            for (tag, transfer) in unit {
                last.tags.push(tag);
                last.transfers.push(transfer);
            }
        }
    }
}

/// The submissions of the first round (`with_pieces`) or the second. An owner that guards reads gives each piece its exact stamp, so all goes in
/// the first round; of a small object under one hold. Otherwise the table entries follow when all payload has landed, and pieces that
/// nobody checks one by one are long transfers, which the engine cuts as it likes.
fn submits(access: &HolderAccess, fetches: &[Fetch<'_>], tallies: &[Tally], with_pieces: bool) -> Vec<Submit> {
    let guarded = access.connection.guards_reads();
    let mut cutter = Cutter::default();
    for (at, (fetch, tally)) in fetches.iter().zip(tallies).enumerate() {
        let Some(segment) = tally.segment else { continue };
        let group = u32::try_from(at + 1).unwrap_or(0);
        let one_group = guarded && fetch.pieces.len() <= GROUP_PIECES_MAX;
        let transfer_pieces = match fetch.check {
            Check::Generation if !guarded => TRANSFER_PIECES_MAX,
            _ => 1,
        };
        let pieces = (0..fetch.pieces.len()).step_by(transfer_pieces).map(|start| {
            let pieces = start..fetch.pieces.len().min(start + transfer_pieces);
            let group = if one_group { group } else { 0 };
            let transfer = piece_transfer(&segment, fetch, &fetch.pieces[pieces.clone()], group);
            (Tag { fetch: at, pieces }, transfer)
        });
        let table = tally.table.transfers(&segment, fetch, group).map(|transfer| {
            let tag = Tag {
                fetch: at,
                pieces: 0..0,
            };
            (tag, transfer)
        });
        match (guarded, with_pieces) {
            (true, true) if one_group => cutter.push(pieces.chain(table).collect()),
            (true, true) => {
                pieces.for_each(|piece| cutter.push(vec![piece]));
                cutter.push(table.collect());
            }
            (true, false) => {}
            (false, true) => pieces.for_each(|piece| cutter.push(vec![piece])),
            (false, false) => cutter.push(table.collect()),
        }
    }
    cutter.submits.retain(|submit| !submit.transfers.is_empty());
    cutter.submits
}

/// Reads pieces that follow each other in their object.
fn piece_transfer(segment: &AttachedSegment, fetch: &Fetch<'_>, pieces: &[PieceRead], group: u32) -> Transfer {
    let mut local: Vec<Slice> = Vec::new();
    for PieceRead { into, .. } in pieces {
        match local.last_mut().and_then(|last| Some((last.joined(into)?, last))) {
            Some((joined, last)) => *last = joined,
            None => local.push(into.clone()),
        }
    }
    Transfer {
        op: Op::Read,
        key: RemoteKey(segment.data_key),
        remote_offset_bytes: fetch.replica.offset_bytes + pieces[0].piece * PIECE_BYTES,
        local,
        group,
    }
}

async fn run(
    access: &HolderAccess,
    fetches: &[Fetch<'_>],
    submits: Vec<Submit>,
    tallies: &mut [Tally],
    deadline: Instant,
) {
    let mut under_way = stream::iter(submits)
        .map(|Submit { transfers, tags, .. }| async move {
            let results = access.connection.submit(transfers, deadline).await;
            (tags, results)
        })
        .buffer_unordered(GET_SUBMITS_IN_FLIGHT_MAX);
    let guarded = access.connection.guards_reads();
    while let Some((tags, results)) = under_way.next().await {
        assert_eq!(tags.len(), results.len(), "an engine gives one result per transfer");
        for (tag, result) in tags.into_iter().zip(results) {
            tallies[tag.fetch].take(&fetches[tag.fetch], tag.pieces, result, guarded);
        }
    }
}

/// What came of one fetch so far.
#[derive(Debug)]
struct Tally {
    segment: Option<AttachedSegment>,
    table: TableSpots,
    piece_sums: Vec<Option<u64>>,
    trouble: Option<Trouble>,
}

impl Tally {
    fn new(access: &HolderAccess, fetch: &Fetch<'_>, scratch: &mut Scratch) -> Self {
        let segment = access.segment(fetch.replica.segment);
        Self {
            segment,
            table: TableSpots::new(fetch, scratch),
            piece_sums: vec![None; fetch.pieces.len()],
            trouble: segment.is_none().then(|| not_attached(access, fetch.replica.segment)),
        }
    }

    fn take(&mut self, fetch: &Fetch<'_>, pieces: Range<usize>, result: TransferResult, guarded: bool) {
        match result {
            Ok(done) => self.take_pieces(pieces, fetch, done, guarded),
            Err(error) => self.fail(trouble_of(error)),
        }
    }

    fn take_pieces(&mut self, pieces: Range<usize>, fetch: &Fetch<'_>, done: Done, guarded: bool) {
        if guarded && !pieces.is_empty() && done.stamp != Some(fetch.replica.generation.0) {
            self.fail(Trouble::Gone);
        }
        // The engine's checksum is that of the whole transfer.
        let of_engine = done.crc64.filter(|_| pieces.len() == 1);
        for n in pieces {
            let compute = || (fetch.check == Check::Checksums).then(|| fetch.pieces[n].into.crc64());
            self.piece_sums[n] = of_engine.or_else(compute);
        }
    }

    /// Keeps what says most: that the object is gone outweighs that the way to it broke.
    fn fail(&mut self, trouble: Trouble) {
        if self.trouble.is_none() || matches!(trouble, Trouble::Gone) {
            self.trouble = Some(trouble);
        }
    }

    fn finish(self) -> Result<Fetched, Trouble> {
        match self.trouble {
            Some(trouble) => Err(trouble),
            None => Ok(Fetched {
                piece_sums: self.piece_sums,
                table: self.table.read(),
            }),
        }
    }
}

fn not_attached(access: &HolderAccess, segment: SegmentId) -> Trouble {
    if access.is_gone(segment) {
        return Trouble::Gone;
    }
    let node = access.node;
    Trouble::Broken(format!("node {node} grants no access to its segment {segment}"))
}

fn trouble_of(error: TransferError) -> Trouble {
    match error {
        TransferError::Refused { .. } | TransferError::Torn { .. } => Trouble::Gone,
        TransferError::Deadline { .. } => Trouble::Late,
        TransferError::UnknownKey { .. } | TransferError::Revoked => Trouble::Withdrawn,
        error => Trouble::Broken(error.to_string()),
    }
}

/// Memory for the table entries of one call.
#[derive(Debug)]
struct Scratch {
    memory: Option<Arc<Memory>>,
    at: u64,
}

impl Scratch {
    fn new(fetches: &[Fetch<'_>]) -> Self {
        let needed: u64 = fetches.iter().map(|fetch| table_lens(fetch).iter().sum::<u64>()).sum();
        let bytes = vec![0; usize::try_from(needed).unwrap_or(0)];
        Self {
            memory: (needed > 0).then(|| Arc::new(Memory::from_vec(bytes))),
            at: 0,
        }
    }

    fn take(&mut self, len_bytes: u64) -> Option<Slice> {
        let memory = self.memory.as_ref().filter(|_| len_bytes > 0)?;
        let slice = part(&memory.whole(), self.at..self.at + len_bytes);
        self.at += len_bytes;
        Some(slice)
    }
}

/// Lengths of the piece sums, row and descriptor to read. An object of one piece has the whole's checksum for its sum.
fn table_lens(fetch: &Fetch<'_>) -> [u64; 3] {
    let sums = match piece_count(fetch.len_bytes) {
        0 | 1 => 0,
        _ => TableLayout::piece_sums_len_bytes(fetch.len_bytes),
    };
    match fetch.table {
        TableWanted::Full => [sums, KeyRow::used_bytes(fetch.name) as u64, DESCRIPTOR_BYTES as u64],
        TableWanted::Descriptor => [0, 0, DESCRIPTOR_BYTES as u64],
        TableWanted::Nothing => [0; 3],
    }
}

/// Where the table entries of one fetch land: piece sums, row, descriptor.
#[derive(Debug)]
struct TableSpots([Option<Slice>; 3]);

impl TableSpots {
    fn new(fetch: &Fetch<'_>, scratch: &mut Scratch) -> Self {
        Self(table_lens(fetch).map(|len_bytes| scratch.take(len_bytes)))
    }

    fn transfers(&self, segment: &AttachedSegment, fetch: &Fetch<'_>, group: u32) -> impl Iterator<Item = Transfer> {
        let layout = TableLayout::new(segment.segment_bytes, segment.slots);
        let Replica { offset_bytes, slot, .. } = fetch.replica;
        let at = [
            layout.piece_sums_at(offset_bytes),
            layout.row_at(slot),
            layout.descriptor_at(slot),
        ];
        let key = RemoteKey(segment.table_key);
        self.0.iter().zip(at).filter_map(move |(spot, remote_offset_bytes)| {
            spot.clone().map(|slice| Transfer {
                op: Op::Read,
                key,
                remote_offset_bytes,
                local: vec![slice],
                group,
            })
        })
    }

    fn read(self) -> TableBytes {
        let [sums, row, descriptor] = self.0.map(|spot| spot.map_or_else(Vec::new, |slice| slice.to_vec()));
        TableBytes { sums, row, descriptor }
    }
}

//! Names, puts and holders for tests.

use crate::table::CheckedTable;
use tenon_protocol::checksum::{Checksums, piece_count};
use tenon_protocol::ids::{ClusterId, Incarnation, NodeId, PutId, SessionId};
use tenon_protocol::message::Pin;
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_store_core::objects::{CommitSpec, Holder, HolderConfig, Owner, ReserveSpec, SegmentSpec, Watermarks};
use tenon_store_core::placement::Policy;

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);
pub(crate) const NODE: NodeId = NodeId::from_bytes([1; 16]);
pub(crate) const INCARNATION: Incarnation = Incarnation(1_790_000_000_000);
pub(crate) const TTL_MS: u32 = 30_000;
pub(crate) const ALIGNMENT_BYTES: u64 = 64;

pub(crate) fn name(key: &str) -> ObjectName {
    ObjectName::new(&Namespace::new(Namespace::DEFAULT).unwrap(), key).unwrap()
}

pub(crate) fn put(id: u8) -> PutId {
    PutId::from_bytes([id; 16])
}

pub(crate) fn owner(session: u8) -> Owner {
    Owner {
        coordinator: NODE,
        session: SessionId::from_bytes([session; 16]),
    }
}

/// A holder with segments of these lengths and slots, and their tables.
pub(crate) fn holder(segments: &[(u64, u32)]) -> (Holder<CheckedTable>, Vec<CheckedTable>) {
    holder_with(segments, None)
}

/// The same, and it evicts between these watermarks.
pub(crate) fn holder_with(
    segments: &[(u64, u32)],
    eviction: Option<Watermarks>,
) -> (Holder<CheckedTable>, Vec<CheckedTable>) {
    holder_that_places(Policy::default(), segments, eviction)
}

/// The same, and it places by this policy.
pub(crate) fn holder_that_places(
    policy: Policy,
    segments: &[(u64, u32)],
    eviction: Option<Watermarks>,
) -> (Holder<CheckedTable>, Vec<CheckedTable>) {
    let mut holder = Holder::new(HolderConfig {
        node: NODE,
        incarnation: INCARNATION,
        cluster: CLUSTER,
        reservation_ttl_ms: TTL_MS,
        policy,
        eviction,
    });
    let tables: Vec<_> = segments.iter().map(|_| CheckedTable::default()).collect();
    for (&(len_bytes, slots), table) in segments.iter().zip(&tables) {
        let spec = SegmentSpec { len_bytes, slots };
        let id = holder.new_segment_id().unwrap();
        holder.mount(id, &spec, table.clone()).unwrap();
    }
    (holder, tables)
}

pub(crate) fn reserve_spec(put_id: u8, key: &str, len_bytes: u64) -> ReserveSpec {
    ReserveSpec {
        put_id: put(put_id),
        name: name(key),
        len_bytes,
        owner: owner(put_id),
        ttl_ms: None,
        pin: Pin::None,
        replace: false,
    }
}

/// Checksums of an object whose pieces have these checksums: as good as any, since they combine.
pub(crate) fn checksums(len_bytes: u64, seed: u64) -> Checksums {
    let pieces = (0..piece_count(len_bytes))
        .map(|piece| piece_checksum(seed, piece))
        .collect();
    Checksums::from_pieces(len_bytes, pieces)
}

pub(crate) fn piece_checksum(seed: u64, piece: u64) -> u64 {
    (seed * 1000 + piece + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(crate) fn commit_spec(put_id: u8, key: &str, len_bytes: u64) -> CommitSpec {
    CommitSpec {
        put_id: put(put_id),
        name: name(key),
        checksums: checksums(len_bytes, put_id.into()),
        fingerprint: vec![put_id; 3],
    }
}

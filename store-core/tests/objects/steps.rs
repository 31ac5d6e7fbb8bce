//! The steps of a put, for tests.

use crate::fixture::*;
use crate::table::CheckedTable;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_protocol::ids::{Epoch, Version};
use tenon_protocol::message::Committed;
use tenon_store_core::objects::*;
use tenon_store_core::time::Time;

pub(crate) type TestHolder = Holder<CheckedTable>;

pub(crate) const ACCEPTED: Accepted = Accepted {
    epoch: Epoch(1),
    degraded: false,
};

pub(crate) fn at(ms: u64) -> Time {
    Time::from_ms(ms)
}

pub(crate) fn reserve(holder: &mut TestHolder, now: Time, spec: ReserveSpec) -> Result<Reserved, ReserveError> {
    holder.reserve(now, &mut ChaCha8Rng::seed_from_u64(1), spec)
}

pub(crate) fn begin(holder: &mut TestHolder, put_id: u8, key: &str, len_bytes: u64) -> Result<Unverified, CommitError> {
    match holder.begin_commit(Time::ZERO, commit_spec(put_id, key, len_bytes))? {
        CommitStep::Verify(unverified) => Ok(unverified),
        other => panic!("expected a commit that begins, got {other:?}"),
    }
}

pub(crate) fn verified(holder: &mut TestHolder, put_id: u8, key: &str, len_bytes: u64) -> Verified {
    let unverified = begin(holder, put_id, key, len_bytes).unwrap();
    let pieces = unverified.unknown_pieces().to_vec();
    let found: Vec<_> = pieces
        .iter()
        .map(|&piece| piece_checksum(put_id.into(), piece))
        .collect();
    holder.verify(unverified, &found).unwrap()
}

/// Reserves and writes all bytes, in two parts: so no piece that has more than one byte is known from its arrival.
pub(crate) fn fill(holder: &mut TestHolder, now: Time, spec: ReserveSpec) -> RegionId {
    let Reserved { region, len_bytes, .. } = reserve(holder, now, spec).unwrap();
    let half = len_bytes / 2;
    write(holder, now, region, half, len_bytes - half, 0);
    if half > 0 {
        write(holder, now, region, 0, half, 0);
    }
    region
}

/// A put from reservation to outcome.
pub(crate) fn store(holder: &mut TestHolder, put_id: u8, key: &str, len_bytes: u64) -> Committed {
    fill(holder, Time::ZERO, reserve_spec(put_id, key, len_bytes));
    let verified = verified(holder, put_id, key, len_bytes);
    let unreported = holder.seal(verified, ACCEPTED, 5);
    holder.report(Time::ZERO, unreported)
}

pub(crate) fn version(put_id: u8) -> Version {
    Version {
        epoch: Epoch(1),
        put_id: put(put_id),
    }
}

pub(crate) fn hash(key: &str) -> tenon_protocol::ids::KeyHash {
    name(key).hash(CLUSTER)
}

/// capacity = free, and no slot is in use.
pub(crate) fn assert_empty(holder: &TestHolder) {
    holder.check_invariants();
    let account = holder.account();
    assert_eq!(account.free_bytes, account.capacity_bytes, "{account:?}");
    assert!(holder.segments().all(|segment| segment.slots_used == 0));
}

pub(crate) fn write(
    holder: &mut TestHolder,
    now: Time,
    region: RegionId,
    offset_bytes: u64,
    len_bytes: u64,
    checksum: u64,
) {
    let hold = holder.begin_write(region, offset_bytes, len_bytes).unwrap();
    holder.wrote(now, region, offset_bytes, len_bytes, checksum);
    holder.end_write(hold);
}

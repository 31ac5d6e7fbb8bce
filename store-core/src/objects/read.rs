//! Reading, looking up, listing and removing sealed objects.

use super::region::{Record, Report, Standing};
use super::{HoldError, Holder, RegionId, SegmentTable};
use crate::time::Time;
use tenon_protocol::ids::{Generation, KeyHash, SegmentId, Version};
use tenon_protocol::message::{ListEntry, Pin, Replica};
use tenon_protocol::name::{Namespace, ObjectName};

/// A read by the owner that is under way. Give it to [`Holder::end_read`] when the last byte has left, whatever
/// happened.
#[derive(Debug)]
#[must_use = "the region stays held"]
pub struct ReadHold {
    region: RegionId,
}

impl ReadHold {
    /// The use of the region that is read: it does not change while the hold lasts.
    pub fn generation(&self) -> Generation {
        self.region.generation
    }
}

/// What a holder knows of one of its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Which object of the key.
    pub version: Version,
    /// Its length.
    pub len_bytes: u64,
    /// CRC-64/NVME of all its bytes.
    pub checksum: u64,
    /// What was stored with it.
    pub fingerprint: Box<[u8]>,
    /// When it was sealed, by the owner's wall clock.
    pub sealed_unix_ms: u64,
    /// Where it lies.
    pub replica: Replica,
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In byte order of the keys.
    pub entries: Vec<ListEntry>,
    /// There are more after the last entry.
    pub more: bool,
}

impl<T: SegmentTable> Holder<T> {
    /// A read of bytes of a segment is about to begin. All of them must lie in one sealed object, which is used thereby.
    pub fn begin_read(&mut self, segment: SegmentId, offset_bytes: u64, len_bytes: u64) -> Result<ReadHold, HoldError> {
        let now = self.now;
        let mounted = self.segment_mut(segment).ok_or(HoldError::Stale)?;
        let end_bytes = offset_bytes.checked_add(len_bytes).ok_or(HoldError::OutOfRange)?;
        let record = mounted.at_or_before(offset_bytes).ok_or(HoldError::Stale)?;
        let start_bytes = record.region.offset_bytes();
        let region_end_bytes = start_bytes + record.len_bytes();
        if offset_bytes >= region_end_bytes || record.object().is_none() {
            return Err(HoldError::Stale);
        }
        if len_bytes == 0 || end_bytes > region_end_bytes {
            return Err(HoldError::OutOfRange);
        }
        record.hold()?;
        let region = RegionId {
            segment,
            offset_bytes: start_bytes,
            generation: record.generation,
        };
        let object = record.object_mut().expect("it was just seen");
        object.used_at = now;
        let standing = object.standing;
        mounted.count_transfer();
        self.eviction.mark(standing);
        Ok(ReadHold { region })
    }

    /// A read is over. A region whose object was removed meanwhile is freed with the last of them.
    pub fn end_read(&mut self, hold: ReadHold) {
        self.release(hold.region);
    }

    /// The object of a key, if it is here.
    pub fn lookup(&self, name: &ObjectName) -> Option<ObjectInfo> {
        self.info(self.names.get(name)?)
    }

    /// The object of a key, if it is here.
    pub fn lookup_hash(&self, key_hash: KeyHash) -> Option<ObjectInfo> {
        self.info(*self.by_hash.get(&key_hash)?)
    }

    /// A home asks whether exactly this object is here, sealed. If so the home knows of it from now on, whether its
    /// seal was reported or not.
    pub fn confirm(&mut self, now: Time, key_hash: KeyHash, version: Version) -> bool {
        let region = self.object_of(key_hash, version);
        if let Some(region) = region {
            self.home_knows(now, region);
        }
        region.is_some()
    }

    /// A home has exactly this object dropped, which was the key's until then. False if it is not here. Its descriptor
    /// describes nothing when this returns.
    pub fn remove(&mut self, now: Time, key_hash: KeyHash, version: Version) -> bool {
        if let Some(region) = self.object_of(key_hash, version) {
            self.home_knows(now, region);
        }
        self.drop_object(key_hash, version)
    }

    /// A home has exactly this object dropped, which was sealed too late to be the key's: its put has ended otherwise, and
    /// who repeats it is told by the homes how. False if it is not here.
    pub fn refuse(&mut self, key_hash: KeyHash, version: Version) -> bool {
        self.drop_object(key_hash, version)
    }

    /// A home knows of a sealed object, so its put is stored, whatever becomes of the report of the seal: who repeats
    /// the put is told so, also once the object is gone.
    fn home_knows(&mut self, now: Time, region: RegionId) {
        let object = self.record_mut(region).and_then(Record::object_mut);
        if let Some(object) = object.filter(|object| object.report != Report::Taken) {
            object.report = Report::Taken;
            let (outcome, key_hash) = (object.outcome(), object.key_hash);
            let put_id = outcome.committed.version.put_id;
            self.outcomes.remember(now, put_id, key_hash, outcome);
        }
    }

    /// Drops exactly this object. False if it is not here.
    pub(super) fn drop_object(&mut self, key_hash: KeyHash, version: Version) -> bool {
        let Some(region) = self.object_of(key_hash, version) else {
            return false;
        };
        self.drop_region(region);
        true
    }

    /// Keys that begin with `prefix` and come after `after`, at most `limit`.
    pub fn list(&self, namespace: &Namespace, prefix: &str, after: Option<&str>, limit: u32) -> Page {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut regions = self.names.list(namespace, prefix, after);
        let entries: Vec<_> = regions
            .by_ref()
            .take(limit)
            .map(|region| self.list_entry(region))
            .collect();
        Page {
            entries,
            more: regions.next().is_some(),
        }
    }

    fn list_entry(&self, region: RegionId) -> ListEntry {
        let record = self.record(region).expect("named objects are recorded");
        let object = record.object().expect("named objects are sealed");
        ListEntry {
            key: object.name.key().to_owned(),
            len_bytes: record.len_bytes(),
            version: object.version,
            holders: vec![self.config.node],
            sealed_unix_ms: object.sealed_unix_ms,
            pin: match object.standing {
                Standing::Queued(_) => Pin::None,
                Standing::Soft { until } => Pin::Soft {
                    for_ms: until.since_ms(self.now),
                },
                Standing::Hard => Pin::Hard,
            },
        }
    }

    pub(super) fn object_of(&self, key_hash: KeyHash, version: Version) -> Option<RegionId> {
        let region = *self.by_hash.get(&key_hash)?;
        let object = self.record(region)?.object()?;
        (object.version == version).then_some(region)
    }

    fn info(&self, region: RegionId) -> Option<ObjectInfo> {
        let record = self.record(region)?;
        let object = record.object()?;
        Some(ObjectInfo {
            version: object.version,
            len_bytes: record.len_bytes(),
            checksum: object.checksum,
            fingerprint: object.fingerprint.clone(),
            sealed_unix_ms: object.sealed_unix_ms,
            replica: self.replica(region, record),
        })
    }

    /// Where a region lies, for others.
    pub(super) fn replica(&self, region: RegionId, record: &Record) -> Replica {
        Replica {
            holder: self.config.node,
            incarnation: self.config.incarnation,
            segment: region.segment,
            offset_bytes: region.offset_bytes,
            slot: record.slot,
            generation: region.generation,
            is_copy: record.object().is_some_and(|object| object.is_copy),
        }
    }
}

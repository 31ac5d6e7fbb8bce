//! Announcements: what is held, told to a home of its keys that does not know yet.

use super::region::{Object, Record};
use super::{Holder, RegionId, SegmentTable};
use std::ops::Bound;
use tenon_protocol::ids::KeyHash;
use tenon_protocol::member::{HomeEntry, Homes, MirrorEntry, Page, PageKey};
use tenon_protocol::name::ObjectName;

use crate::limits::ANNOUNCED_KEYS_SEEN_MAX;

/// A sealed object that may be told to a home.
#[derive(Debug)]
pub struct Tellable<'a, T> {
    /// Its key.
    pub key_hash: KeyHash,
    region: RegionId,
    holder: &'a Holder<T>,
}

impl<T: SegmentTable> Tellable<'_, T> {
    /// The object's name. It lies elsewhere in memory than the hashes: where it is not needed, not asking for it spares
    /// most of the time that looking at an object takes.
    pub fn name(&self) -> &ObjectName {
        &self.holder.announced(self.region).1.name
    }
}

impl<T: SegmentTable> Holder<T> {
    /// The sealed objects whose key hashes come after `after`, in their order, a step of a page. `homes_of` gives the
    /// homes of an object's key, or `None` if it is not to be told.
    pub fn announce(
        &self,
        after: Option<KeyHash>,
        mut homes_of: impl FnMut(&Tellable<'_, T>) -> Option<Homes>,
    ) -> Page {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Page::default();
        let mut held = self.by_hash.range((from, Bound::Unbounded)).peekable();
        for (key_hash, region) in held.by_ref().take(ANNOUNCED_KEYS_SEEN_MAX) {
            page.next = Some(*key_hash);
            let object = Tellable {
                key_hash: *key_hash,
                region: *region,
                holder: self,
            };
            if let Some(homes) = homes_of(&object) {
                let entry = MirrorEntry {
                    sealed: Some(self.entry_of(*region)),
                    ..MirrorEntry::default()
                };
                page.keys.push(PageKey {
                    key_hash: *key_hash,
                    homes,
                    entry,
                });
            }
        }
        if held.peek().is_none() {
            page.next = None;
        }
        page
    }

    /// One sealed object, for homes that may not know of it; `None` if it is not held any more.
    pub fn held(&self, key_hash: KeyHash) -> Option<HomeEntry> {
        Some(self.entry_of(*self.by_hash.get(&key_hash)?))
    }

    fn entry_of(&self, region: RegionId) -> HomeEntry {
        let (record, object) = self.announced(region);
        HomeEntry {
            version: object.version,
            len_bytes: record.len_bytes(),
            replicas: vec![self.replica(region, record)],
        }
    }

    fn announced(&self, region: RegionId) -> (&Record, &Object) {
        let record = self.record(region).expect("objects are recorded");
        (record, record.object().expect("what is found by its hash is sealed"))
    }
}

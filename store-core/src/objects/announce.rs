//! Announcements: what is held, told to a home of its keys that does not know yet.

use super::{Holder, RegionId, SegmentTable};
use std::ops::Bound;
use tenon_protocol::ids::KeyHash;
use tenon_protocol::limits::PAGE_KEYS_MAX;
use tenon_protocol::member::{HomeEntry, Homes, MirrorEntry, Page, PageKey};
use tenon_protocol::name::ObjectName;

use crate::limits::ANNOUNCED_KEYS_SEEN_MAX;

impl<T: SegmentTable> Holder<T> {
    /// The sealed objects whose key hashes come after `after`, in their order, a page of them. `homes_of` gives the
    /// homes of a key, or `None` if the key is not to be told.
    pub fn announce(&self, after: Option<KeyHash>, homes_of: impl Fn(&ObjectName, KeyHash) -> Option<Homes>) -> Page {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Page::default();
        let mut held = self.by_hash.range((from, Bound::Unbounded)).peekable();
        for (key_hash, region) in held.by_ref().take(ANNOUNCED_KEYS_SEEN_MAX) {
            page.next = Some(*key_hash);
            let (name, entry) = self.announced(*region);
            if let Some(homes) = homes_of(name, *key_hash) {
                let entry = MirrorEntry {
                    sealed: Some(entry),
                    ..MirrorEntry::default()
                };
                page.keys.push(PageKey {
                    key_hash: *key_hash,
                    homes,
                    entry,
                });
                if page.keys.len() == PAGE_KEYS_MAX {
                    break;
                }
            }
        }
        if held.peek().is_none() {
            page.next = None;
        }
        page
    }

    /// One sealed object, for homes that may not know of it; `None` if it is not held any more.
    pub fn held(&self, key_hash: KeyHash) -> Option<HomeEntry> {
        let region = *self.by_hash.get(&key_hash)?;
        Some(self.announced(region).1)
    }

    fn announced(&self, region: RegionId) -> (&ObjectName, HomeEntry) {
        let record = self.record(region).expect("objects are recorded");
        let object = record.object().expect("what is found by its hash is sealed");
        let entry = HomeEntry {
            version: object.version,
            len_bytes: record.len_bytes(),
            replicas: vec![self.replica(region, record)],
        };
        (&object.name, entry)
    }
}

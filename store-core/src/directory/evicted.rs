//! Objects that their holders have evicted.

use super::Directory;
use super::entry::{Object, is_region_of};
use super::work::{Asker, Decision};
use tenon_protocol::ids::{KeyHash, Version};
use tenon_protocol::member::{HomeAnswer, PutEnd, Withdrawal};
use tenon_protocol::message::{Committed, PutOutcome};

/// A region that held a key's object until its holder evicted it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone {
    pub(super) version: Version,
    pub(super) region: Withdrawal,
}

impl Directory {
    /// A holder has evicted an object, which was the key's until then: its put stays stored. The partner is told also if nothing is known here, since it
    /// may know of the object.
    pub(super) fn evicted(&mut self, key: KeyHash, asker: Asker, gone: Gone) {
        let Gone { version, region } = gone;
        let is_elsewhere = self
            .entries
            .sealed(key)
            .is_some_and(|object| object.version == version && !object.is_withdrawn_by(&region));
        if is_elsewhere {
            // Another try of the put.
            return self.reply(asker.token, Ok(HomeAnswer::Done { changed: false }));
        }
        let is_pending = self
            .entries
            .pending(key)
            .is_some_and(|pending| pending.object.is_withdrawn_by(&region));
        if is_pending {
            self.set_pending(key, None);
        }
        let is_left = self.entries.change(key, |entry| {
            entry.unheard.retain(|replica| !is_region_of(replica, &region));
            let is_meant = |object: &&mut Object| object.is_withdrawn_by(&region);
            let Some(object) = entry.sealed.as_mut().filter(is_meant) else {
                return false;
            };
            let is_lost = object.lose(|replica| is_region_of(replica, &region));
            if is_lost {
                entry.sealed = None;
            }
            !is_lost
        });
        // So far the object said it.
        self.remember_stored(key, version);
        let stored = Committed {
            outcome: PutOutcome::Stored,
            version,
            degraded: false,
            copies: 0,
        };
        let end = PutEnd {
            put_id: version.put_id,
            outcome: stored,
        };
        let withdrawn = (!is_left).then_some(version);
        let decision = Decision::Evicted { withdrawn, region, end };
        self.mirror(key, asker, decision);
    }
}

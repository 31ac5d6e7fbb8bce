//! Marks of objects that were read past their owner, who would take them for unused: told in batches, a moment later.

use crate::batch;
use crate::control::{Service, reply};
use crate::limits::{MARKS_EVERY_MS, MARKS_MAX, MARKS_TIMEOUT_MS};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::message::{Keep, KeepRequest, Request};
use tenon_protocol::name::ObjectName;
use tokio::time::Instant;

/// What is still to be told.
#[derive(Debug, Default)]
struct Open {
    keys: BTreeMap<String, Vec<String>>,
    count: usize,
    /// There is a task that will tell it.
    is_awaited: bool,
}

impl Open {
    /// Notes a key unless it is noted already, or there are too many.
    fn note(&mut self, name: &ObjectName) {
        if self.count >= MARKS_MAX {
            return;
        }
        let keys = self.keys.entry(name.namespace().to_string()).or_default();
        if keys.last().is_none_or(|last| last != name.key()) {
            keys.push(name.key().to_owned());
            self.count += 1;
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Marks {
    service: Service,
    open: Arc<Mutex<Open>>,
}

impl Marks {
    pub(crate) fn new(service: Service) -> Self {
        Self {
            service,
            open: Arc::default(),
        }
    }

    /// These objects were read. Beyond [`MARKS_MAX`] in one batch they are left out: what is read so often is marked soon.
    pub(crate) fn note<'a>(&self, names: impl Iterator<Item = &'a ObjectName>) {
        let mut open = self.open.lock();
        names.for_each(|name| open.note(name));
        if open.count > 0 && !std::mem::replace(&mut open.is_awaited, true) {
            tokio::spawn(tell(self.service.clone(), Arc::clone(&self.open)));
        }
    }
}

async fn tell(service: Service, open: Arc<Mutex<Open>>) {
    tokio::time::sleep(Duration::from_millis(MARKS_EVERY_MS)).await;
    let Open { mut keys, .. } = std::mem::take(&mut *open.lock());
    for (namespace, keys) in &mut keys {
        keys.sort_unstable();
        keys.dedup();
        for keys in batch::frames(std::mem::take(keys), String::len) {
            let request = Request::Keep(KeepRequest {
                namespace: namespace.clone(),
                keys,
                keep: Keep::Touch,
            });
            let deadline = Instant::now() + Duration::from_millis(MARKS_TIMEOUT_MS);
            // Objects whose mark is lost may be evicted sooner; nothing else comes of it.
            if let Err(error) = service.call(request, deadline, reply!(Keep)).await {
                tracing::debug!(%error, "objects that were read were not marked as used");
            }
        }
    }
}

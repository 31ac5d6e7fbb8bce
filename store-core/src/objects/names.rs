//! Objects by name, in the order of listings.

use super::region::RegionId;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tenon_protocol::name::{Namespace, ObjectName};

/// A name ordered by its key alone, within one namespace.
#[derive(Debug)]
struct ByKey(Arc<ObjectName>);

impl Borrow<str> for ByKey {
    fn borrow(&self) -> &str {
        self.0.key()
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key().cmp(other.0.key())
    }
}

/// The sealed objects by namespace and key.
#[derive(Debug, Default)]
pub(super) struct Names {
    namespaces: BTreeMap<Namespace, BTreeMap<ByKey, RegionId>>,
}

impl Names {
    /// Sets the object of a name; answers the one before.
    pub(super) fn insert(&mut self, name: Arc<ObjectName>, region: RegionId) -> Option<RegionId> {
        let keys = self.namespaces.entry(name.namespace().clone()).or_default();
        keys.insert(ByKey(name), region)
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<RegionId> {
        self.namespaces.get(name.namespace())?.get(name.key()).copied()
    }

    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<RegionId> {
        let keys = self.namespaces.get_mut(name.namespace())?;
        let region = keys.remove(name.key());
        if keys.is_empty() {
            self.namespaces.remove(name.namespace());
        }
        region
    }

    /// Regions of the keys that begin with `prefix` and come after `after`, in byte order of the keys.
    pub(super) fn list<'a>(
        &'a self,
        namespace: &Namespace,
        prefix: &'a str,
        after: Option<&str>,
    ) -> impl Iterator<Item = RegionId> + 'a {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let keys = self.namespaces.get(namespace);
        let range = keys.map(|keys| keys.range::<str, _>((from, Bound::Unbounded)));
        let entries = range.into_iter().flatten();
        entries
            .take_while(move |(name, _)| name.0.key().starts_with(prefix))
            .map(|(_, region)| *region)
    }

    /// All, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectName, RegionId)> {
        let keys = self.namespaces.values().flatten();
        keys.map(|(name, region)| (&*name.0, *region))
    }
}

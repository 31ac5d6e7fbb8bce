//! The keys to this process's memory that one peer was told of, and how that ends: an export that is revoked is deregistered when the peer says that it has
//! forgotten the key, or its queue pairs are ended, because a device ends the queue pair of whoever reads under a key that is not good any more, with all that is
//! under way there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep_until};

use super::registered::Regions;
use super::target::{Connected, Inner};
use crate::ids::RemoteKey;
use crate::limits::{VERBS_FORGET_TIMEOUT, VERBS_KEYS_MAX};
use crate::verbs::VerbsError;

/// What one peer was told of.
#[derive(Debug, Default)]
pub(super) struct Keys {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Exports that it may read.
    told: HashMap<RemoteKey, ByRail>,
    /// Exports that are revoked and that it may still read.
    withdrawn: HashMap<RemoteKey, Withdrawn>,
    /// Somebody waits for what is not forgotten in time.
    is_watched: bool,
}

/// By rail. They are registered as long as they stand here, at least.
type ByRail = HashMap<usize, Regions>;

#[derive(Debug)]
struct Withdrawn {
    regions: ByRail,
    until: Instant,
}

/// Regions that nobody is to use any more.
pub(super) type Released = Vec<Regions>;

/// What becomes of a key that is withdrawn.
#[derive(Debug, PartialEq, Eq)]
enum Withdrawal {
    /// The peer was not told of it.
    Unknown,
    /// The peer is to be asked; whether somebody is to wait for it from now on.
    Asked { is_first: bool },
}

impl Keys {
    /// Held while it is decided whether the peer may be told of an export: who revokes it waits, and finds what was told.
    pub(super) fn telling(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The peer may use the key until `until`, or until it has forgotten it.
    fn withdraw(&self, key: RemoteKey, until: Instant) -> Withdrawal {
        let mut state = self.state.lock();
        let Some(regions) = state.told.remove(&key) else {
            return Withdrawal::Unknown;
        };
        state.withdrawn.insert(key, Withdrawn { regions, until });
        let is_first = !std::mem::replace(&mut state.is_watched, true);
        Withdrawal::Asked { is_first }
    }

    /// The peer uses these no more. What it was not asked to forget stays: it was told of that anew.
    fn forgotten(&self, keys: &[RemoteKey]) -> Released {
        let mut state = self.state.lock();
        let forgotten = keys.iter().filter_map(|key| state.withdrawn.remove(key));
        forgotten
            .flat_map(|withdrawn| withdrawn.regions.into_values())
            .collect()
    }

    /// When the next key should be forgotten; `None`: nothing is left to wait for, and nobody waits from now on.
    fn due(&self) -> Option<Instant> {
        let mut state = self.state.lock();
        let due = state.withdrawn.values().map(|withdrawn| withdrawn.until).min();
        state.is_watched = due.is_some();
        due
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.state
            .lock()
            .withdrawn
            .values()
            .any(|withdrawn| withdrawn.until <= now)
    }

    /// All that is revoked, for when the peer's queue pairs are ended.
    fn cut_off(&self) -> (Vec<RemoteKey>, Released) {
        let withdrawn = std::mem::take(&mut self.state.lock().withdrawn);
        let (keys, regions): (Vec<_>, Vec<_>) = withdrawn.into_iter().map(|(key, of)| (key, of.regions)).unzip();
        (keys, regions.into_iter().flat_map(ByRail::into_values).collect())
    }

    /// What is registered with devices that are gone.
    fn of_rails(&self, is_gone: impl Fn(usize) -> bool) -> Released {
        let mut state = self.state.lock();
        let State { told, withdrawn, .. } = &mut *state;
        let all = told.values_mut();
        let all = all.chain(withdrawn.values_mut().map(|withdrawn| &mut withdrawn.regions));
        all.flat_map(|regions| regions.extract_if(|rail, _| is_gone(*rail)))
            .map(|(_, region)| region)
            .collect()
    }

    /// Everything: its link has ended, and its queue pairs with it.
    fn all(&self) -> Released {
        let State { told, withdrawn, .. } = std::mem::take(&mut *self.state.lock());
        let withdrawn = withdrawn.into_values().map(|withdrawn| withdrawn.regions);
        told.into_values()
            .chain(withdrawn)
            .flat_map(ByRail::into_values)
            .collect()
    }
}

impl State {
    /// Whether the peer may be told of one more export.
    pub(super) fn has_room_for(&self, key: RemoteKey) -> bool {
        self.told.contains_key(&key) || self.told.len() + self.withdrawn.len() < VERBS_KEYS_MAX
    }

    /// The regions that the peer is told of, which are registered from now on for as long as the peer may use it.
    pub(super) fn tell(
        &mut self,
        key: RemoteKey,
        rail: usize,
        regions: impl FnOnce() -> Result<Regions, VerbsError>,
    ) -> Result<Regions, VerbsError> {
        if let Some(regions) = self.told.get(&key).and_then(|by_rail| by_rail.get(&rail)) {
            return Ok(regions.clone());
        }
        let regions = regions()?;
        self.told.entry(key).or_default().insert(rail, regions.clone());
        Ok(regions)
    }
}

impl Inner {
    /// An export is revoked. Until the peer has forgotten the key, it may still read.
    pub(super) fn withdraw(self: &Arc<Self>, connected: &Arc<Connected>, key: RemoteKey) {
        let until = Instant::now() + VERBS_FORGET_TIMEOUT;
        let Withdrawal::Asked { is_first } = connected.keys.withdraw(key, until) else {
            return;
        };
        connected.room.ask_to_forget(key);
        if is_first {
            let (inner, connected) = (Arc::clone(self), Arc::clone(connected));
            self.runtime
                .spawn(async move { inner.cut_off_in_time(&connected).await });
        }
    }

    /// The peer says that it uses these no more.
    pub(super) fn forgotten(&self, connected: &Connected, keys: &[RemoteKey]) {
        self.release(connected.keys.forgotten(keys));
    }

    /// Ends the queue pairs of a peer that does not forget in time, as long as there is anything to forget.
    async fn cut_off_in_time(&self, connected: &Arc<Connected>) {
        while let Some(due) = connected.keys.due() {
            sleep_until(due).await;
            if !connected.keys.is_overdue(Instant::now()) {
                continue;
            }
            // Before the queue pairs: on one that it connects from here on, it has been told of none of these.
            let (keys, regions) = connected.keys.cut_off();
            let up = connected.paths.up();
            up.iter().for_each(|path| connected.paths.lose(path));
            self.grants_lost(connected, |_| true);
            let (session, paths, keys_left) = (connected.session, up.len(), keys.len());
            tracing::warn!(%session, paths, keys_left, "a peer did not forget memory that is gone: its queue pairs are ended");
            self.rails.losses().cut_off.fetch_add(1, Ordering::Relaxed);
            connected.room.no_matter(keys);
            self.release(regions);
        }
    }

    /// Forgets what is registered with devices that are gone.
    pub(super) fn keys_lost(&self, connected: &Connected, is_gone: impl Fn(usize) -> bool) {
        self.release(connected.keys.of_rails(is_gone));
    }

    /// The link has ended.
    pub(super) fn keys_ended(&self, connected: &Connected) {
        self.release(connected.keys.all());
    }

    /// Lets go of regions. Deregistering takes time, and so does giving memory back: no worker waits for it.
    fn release(&self, regions: Released) {
        if !regions.is_empty() {
            self.runtime.spawn_blocking(move || drop(regions));
        }
    }
}

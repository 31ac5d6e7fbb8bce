//! The owner's side of writes under windows: what its peers may write to, and how that ends.
//!
//! A grant is an access that has begun, held by its guard, with a window bound to its range. It ends once: when the peer
//! settles it, when the deadline of its call has passed, when its export is revoked, when its path is closed or its device gone, or when the link ends. In each case
//! the window is taken back first, and the access ends after that: so the guard's hold lasts as long as anything may land,
//! and nothing lands in a range that its guard has let go of.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::message::{Given, Settle, Want};
use super::path::Path;
use super::target::{Connected, Inner, landed, sound_range};
use super::window::Opened;
use crate::engine::{Op, TransferError};
use crate::exports::{Access as Granted, Wanted};
use crate::ids::RemoteKey;
use crate::limits::VERBS_GRANTS_MAX;
use crate::task::OwnedTask;

/// What one peer may write to now.
#[derive(Debug)]
pub(super) struct Grants {
    state: Mutex<State>,
    /// One permit per window that is bound, or about to be. Closed with the link.
    room: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, Grant>,
    last: u64,
}

#[derive(Debug)]
struct Grant {
    key: RemoteKey,
    /// Goes before the access.
    window: Opened,
    access: Granted,
    _room: OwnedSemaphorePermit,
    /// Ends it at its deadline.
    _timer: OwnedTask,
}

impl Grants {
    /// None yet.
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            room: Arc::new(Semaphore::new(VERBS_GRANTS_MAX)),
        }
    }

    fn take(&self, grant: u64) -> Option<Grant> {
        self.state.lock().open.remove(&grant)
    }

    fn take_all(&self, is_meant: impl Fn(&Grant) -> bool) -> Vec<Grant> {
        let mut state = self.state.lock();
        let meant = state.open.extract_if(|_, grant| is_meant(grant));
        meant.map(|(_, grant)| grant).collect()
    }
}

impl Inner {
    /// Lets a peer write, as far as it may and can; one answer each.
    pub(super) async fn grant(
        self: &Arc<Self>,
        connected: &Arc<Connected>,
        wants: Vec<Want>,
        deadline: Instant,
    ) -> Vec<Result<Option<Given>, TransferError>> {
        let wants = wants.into_iter();
        join_all(wants.map(|want| self.grant_one(connected, want, deadline))).await
    }

    /// `Ok(None)`: it may, and no window could be given.
    async fn grant_one(
        self: &Arc<Self>,
        connected: &Arc<Connected>,
        want: Want,
        deadline: Instant,
    ) -> Result<Option<Given>, TransferError> {
        let wanted = Wanted {
            op: Op::Write,
            key: want.key,
            offset_bytes: want.offset_bytes,
            len_bytes: want.len_bytes,
        };
        sound_range(&wanted)?;
        let access = self.exports.begin(connected.session, &wanted)?;
        // It may have been revoked while the guard was asked.
        access.touch(0, |_, _| ())?;
        let up = connected.paths.up();
        let path = up.iter().find(|path| path.number == want.path && path.pushes);
        let (Some(path), Ok(room)) = (path, Arc::clone(&connected.grants.room).try_acquire_owned()) else {
            return Ok(None);
        };
        let part = match self.rails.for_window(path.rail, &access.memory()) {
            Ok(part) => part,
            Err(error) => {
                tracing::debug!(%error, "no window can be bound to an export");
                return Ok(None);
            }
        };
        let Some(window) = Opened::new(&connected.paths, path, part, deadline).await else {
            return Ok(None);
        };
        let made = |timer| Grant {
            key: want.key,
            window,
            access,
            _room: room,
            _timer: timer,
        };
        self.record(connected, made, deadline)
    }

    /// From here on the grant is ended by whoever comes first; `Ok(None)` if its path has ended by now.
    fn record(
        self: &Arc<Self>,
        connected: &Arc<Connected>,
        made: impl FnOnce(OwnedTask) -> Grant,
        deadline: Instant,
    ) -> Result<Option<Given>, TransferError> {
        let mut state = connected.grants.state.lock();
        state.last += 1;
        let grant = state.last;
        let (inner, of) = (Arc::clone(self), Arc::clone(connected));
        let made = made(OwnedTask::spawn(async move {
            sleep_until(deadline).await;
            let late = of.grants.take(grant);
            inner.take_back(&of, late);
        }));
        // Whoever revokes it, or ends the link or the path, from here on waits for the lock and finds the grant; who did
        // before is found here.
        let is_open = match connected.grants.room.is_closed() {
            true => Err(TransferError::Revoked),
            false => made
                .access
                .touch(0, |_, _| ())
                .map(|()| connected.paths.has(made.window.path())),
        };
        if is_open != Ok(true) {
            drop(state);
            self.take_back(connected, [made]);
            return is_open.map(|_| None);
        }
        let to = made.window.remote();
        state.open.insert(grant, made);
        Ok(Some(Given { grant, to }))
    }

    /// Takes grants back that the peer is done with; one answer each. `Ok(None)`: it is to be offered.
    pub(super) async fn settle(
        &self,
        connected: &Connected,
        settles: Vec<Settle>,
    ) -> Vec<Result<Option<u64>, TransferError>> {
        let one = async |settle: Settle| {
            let Some(grant) = connected.grants.take(settle.grant) else {
                // Ended without the peer. Whether it may still write what it did, it learns when it offers it.
                return Ok(None);
            };
            grant.window.close(&connected.paths).await;
            if !settle.landed {
                return Ok(None);
            }
            let len_bytes = grant.access.len_bytes();
            let crc64 = landed(&grant.access, len_bytes)?;
            self.rails.writes().pushed.add(len_bytes);
            Ok(Some(crc64))
        };
        join_all(settles.into_iter().map(one)).await
    }

    /// An export is revoked: nobody writes there any more, once the devices have been told.
    pub(super) fn grants_revoked(&self, connected: &Arc<Connected>, key: RemoteKey) {
        self.take_back(connected, connected.grants.take_all(|grant| grant.key == key));
    }

    /// Paths have ended, and whoever wants their room or their device waits for what is left of them.
    pub(super) fn grants_lost(&self, connected: &Arc<Connected>, is_lost: impl Fn(&Path) -> bool) {
        let lost = connected.grants.take_all(|grant| is_lost(grant.window.path()));
        self.take_back(connected, lost);
    }

    /// The link has ended.
    pub(super) fn grants_ended(&self, connected: &Arc<Connected>) {
        connected.grants.room.close();
        self.take_back(connected, connected.grants.take_all(|_| true));
    }

    /// Ends grants that the peer did not settle, in a task of its own: a window is taken back whoever waits for it.
    fn take_back(&self, connected: &Arc<Connected>, grants: impl IntoIterator<Item = Grant>) {
        let grants: Vec<Grant> = grants.into_iter().collect();
        if grants.is_empty() {
            return;
        }
        let connected = Arc::clone(connected);
        self.runtime.spawn(async move {
            let close = async |grant: Grant| {
                grant.window.close(&connected.paths).await;
                drop(grant.access);
            };
            join_all(grants.into_iter().map(close)).await;
        });
    }
}

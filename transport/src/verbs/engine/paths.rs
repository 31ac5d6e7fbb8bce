//! The paths to one peer: which are up, which rest, and how one that is lost is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::events::Losses;
use super::path::{Load, Path};
use crate::verbs::Status;

/// The paths to one peer: those that are up, until all is closed.
#[derive(Debug)]
pub(super) struct Paths {
    /// Whether this side connects them and knows how much they are used, and may put them to rest: reads are seen by none
    /// but their initiator, which holds the paths over which its peer pulls too.
    is_initiator: bool,
    state: watch::Sender<State>,
    /// Paths that were lost, since the beginning.
    lost: AtomicU64,
    losses: Arc<Losses>,
}

#[derive(Debug)]
struct State<P = Path> {
    up: Vec<Arc<P>>,
    /// Numbers of paths that were closed to make room for others, until they are wanted again.
    resting: Vec<u8>,
    /// Those that the peer has not been told of.
    untold: Vec<u8>,
    closed: Option<String>,
}

impl<P> Default for State<P> {
    fn default() -> Self {
        Self {
            up: Vec::new(),
            resting: Vec::new(),
            untold: Vec::new(),
            closed: None,
        }
    }
}

/// Those that are up, once one is. Whatever rests until then is wanted again, also what is put to rest meanwhile.
async fn some_up<P>(state: &watch::Sender<State<P>>) -> Result<Vec<Arc<P>>, String> {
    let mut seen = state.subscribe();
    loop {
        state.send_if_modified(|state| !std::mem::take(&mut state.resting).is_empty());
        let is_ready = |state: &State<P>| !state.up.is_empty() || !state.resting.is_empty() || state.closed.is_some();
        let Ok(now) = seen.wait_for(is_ready).await else {
            return Err("it is gone".to_owned());
        };
        match &now.closed {
            Some(reason) => return Err(reason.clone()),
            None if !now.up.is_empty() => return Ok(now.up.clone()),
            None => {}
        }
    }
}

impl Paths {
    pub(super) fn new(is_initiator: bool, losses: &Arc<Losses>) -> Self {
        Self {
            is_initiator,
            state: watch::Sender::new(State::default()),
            lost: AtomicU64::new(0),
            losses: Arc::clone(losses),
        }
    }

    /// A path is up, in the place of one of the same number.
    pub(super) fn add(&self, path: Arc<Path>) {
        path.start();
        self.state.send_modify(|state| {
            let place = state.up.iter().position(|other| other.number == path.number);
            if let Some(place) = place {
                state.up.swap_remove(place).fail();
            }
            state.resting.retain(|number| *number != path.number);
            state.untold.retain(|number| *number != path.number);
            match state.closed {
                Some(_) => path.fail(),
                None => state.up.push(path),
            }
            state.up.sort_by_key(|path| path.number);
        });
    }

    pub(super) fn up(&self) -> Vec<Arc<Path>> {
        self.state.borrow().up.clone()
    }

    /// The path that is up and has the least to do.
    pub(super) fn least_used(&self) -> Option<Arc<Path>> {
        let state = self.state.borrow();
        state.up.iter().min_by_key(|path| path.open_bytes()).cloned()
    }

    /// Whether it is up still.
    pub(super) fn has(&self, path: &Path) -> bool {
        let state = self.state.borrow();
        state.up.iter().any(|other| std::ptr::eq(&**other, path))
    }

    /// The paths that are up, once one is; those that rest are wanted again. Why there will be none, if all is closed. An
    /// owner waits for none: its peer connects them, and hears from it that they are not up.
    pub(super) async fn some_up(&self) -> Result<Vec<Arc<Path>>, String> {
        if self.is_initiator {
            return some_up(&self.state).await;
        }
        match self.up() {
            up if up.is_empty() => Err(self.closed().unwrap_or_else(|| "no path is up".to_owned())),
            up => Ok(up),
        }
    }

    /// Holds all paths that are up: none of them is put to rest until what is returned is dropped.
    pub(super) fn hold(&self) -> Vec<Load> {
        let state = self.state.borrow();
        state.up.iter().map(|path| path.load(0)).collect()
    }

    /// A path does not carry any more: a request ended so.
    pub(super) fn lose_as(&self, path: &Arc<Path>, status: Status) {
        let is_refused = status == Status::RemoteAccess && self.has(path);
        self.losses.refused.fetch_add(is_refused.into(), Ordering::Relaxed);
        self.lose(path);
    }

    /// A path does not carry any more.
    pub(super) fn lose(&self, path: &Arc<Path>) {
        path.fail();
        let removed = self.state.send_if_modified(|state| {
            let before = state.up.len();
            state.up.retain(|other| !Arc::ptr_eq(other, path));
            state.up.len() != before
        });
        if removed {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.losses.paths.fetch_add(self.is_initiator.into(), Ordering::Relaxed);
        }
    }

    /// Closes a path, if nothing moves over it, to make room for others.
    pub(super) fn rest(&self, path: &Arc<Path>) {
        self.state.send_if_modified(|state| {
            // Nobody holds it from here on: that takes the same lock.
            if path.idle().is_none() {
                return false;
            }
            let before = state.up.len();
            state.up.retain(|other| !Arc::ptr_eq(other, path));
            let has_rest = state.up.len() != before;
            if has_rest {
                path.fail();
                state.resting.push(path.number);
                state.untold.push(path.number);
            }
            has_rest
        });
    }

    /// The paths of a rail that may be put to rest, with the time since they were used.
    pub(super) fn idle(&self, rail: usize) -> Vec<(Duration, Arc<Path>)> {
        let up = if self.is_initiator { self.up() } else { Vec::new() };
        let of_rail = up.into_iter().filter(|path| path.rail == rail);
        of_rail.filter_map(|path| Some((path.idle()?, path))).collect()
    }

    /// Resolves when paths rest that the peer has not been told of: it is to be told of these now.
    pub(super) async fn rested(&self) -> Vec<u8> {
        let mut state = self.state.subscribe();
        // The sender lives as long as this.
        _ = state.wait_for(|state| !state.untold.is_empty()).await;
        let mut untold = Vec::new();
        self.state.send_if_modified(|state| {
            untold = std::mem::take(&mut state.untold);
            false
        });
        untold
    }

    /// The peer has put these to rest: they end here too.
    pub(super) fn end(&self, numbers: &[u8]) {
        self.state.send_modify(|state| {
            state.up.retain(|path| {
                let is_ended = numbers.contains(&path.number);
                if is_ended {
                    path.fail();
                }
                !is_ended
            });
        });
    }

    /// Resolves when a path with one of these numbers is not up, and does not rest.
    pub(super) async fn missing(&self, numbers: &[u8]) -> Vec<u8> {
        let missing = |state: &State| {
            let is_up = |number: &u8| state.up.iter().any(|path| path.number == *number);
            numbers
                .iter()
                .copied()
                .filter(|number| !is_up(number) && !state.resting.contains(number))
                .collect::<Vec<u8>>()
        };
        let mut state = self.state.subscribe();
        match state
            .wait_for(|state| !missing(state).is_empty() || state.closed.is_some())
            .await
        {
            Ok(state) => missing(&state),
            Err(_) => Vec::new(),
        }
    }

    /// Whether one rests, and is only to be connected again when it is wanted.
    pub(super) fn has_resting(&self) -> bool {
        !self.state.borrow().resting.is_empty()
    }

    /// Ends all; nothing comes up any more.
    pub(super) fn close(&self, reason: &str) {
        self.state.send_modify(|state| {
            state.closed.get_or_insert_with(|| reason.to_owned());
            for path in state.up.drain(..) {
                path.fail();
            }
        });
    }

    pub(super) fn closed(&self) -> Option<String> {
        self.state.borrow().closed.clone()
    }

    /// How many were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        self.close("it is not used any more");
    }
}

/// The pause before a lost path is tried again: `failures` tries have failed in a row.
pub(super) fn pause(failures: u32) -> Duration {
    let doubled = crate::limits::BACKOFF_MIN.saturating_mul(1 << failures.min(16));
    doubled.min(crate::limits::BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_path_wakes_one_that_is_put_to_rest_meanwhile() {
        let state = watch::Sender::new(State::<()>::default());
        let mut waiting = pin!(some_up(&state));
        assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        state.send_modify(|state| state.resting.push(3));
        assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        assert!(state.borrow().resting.is_empty(), "it is wanted again");
        state.send_modify(|state| state.up.push(Arc::new(())));
        assert_eq!(waiting.await.map(|up| up.len()), Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_path_hears_why_there_will_be_none() {
        let state = watch::Sender::new(State::<()>::default());
        let (found, ()) = tokio::join!(some_up(&state), async {
            state.send_modify(|state| state.closed = Some("closed".to_owned()));
        });
        assert_eq!(found, Err("closed".to_owned()));
    }
}

//! The paths of an initiator's connection: connected, tried, connected again where they were lost, closed where the peer
//! needs room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::connection::Shared;
use super::flight::{Flight, Ticket};
use super::message::{Ask, Offer, Tell};
use super::path::{Path, ReadRequest, connect};
use super::paths::pause;
use crate::limits::{
    VERBS_CONNECT_TIMEOUT, VERBS_LISTEN_PAUSE, VERBS_LISTEN_PAUSE_MIN, VERBS_LISTEN_TIMEOUT, VERBS_PATHS_MAX,
    VERBS_PROBE_BYTES, VERBS_RECONNECTS_MAX,
};
use crate::memory::Memory;
use crate::verbs::{Access, GidEntry, QueuePair, Remote, Status, VerbsError};

/// Connects lost paths again, until the link ends.
pub(super) async fn supervise(shared: Arc<Shared>, any_subnet: bool) {
    let mut changes = shared.rails.changes();
    let mut failures = 0;
    loop {
        changes.mark_unchanged();
        let wanted = shared.wanted();
        let missing = tokio::select! {
            biased;
            reason = shared.link.closed() => return shared.paths.close(&reason),
            rested = shared.paths.rested() => {
                shared.tell_rested(rested).await;
                continue;
            }
            // A port that is active again is tried at once.
            _ = changes.changed() => {
                failures = 0;
                continue;
            }
            missing = shared.due(&wanted, failures) => missing,
        };
        if shared.paths.closed().is_some() {
            return;
        }
        let Some(missing) = missing else {
            failures = 0;
            continue;
        };
        let reasons = shared
            .connect(&missing, any_subnet, Instant::now() + VERBS_CONNECT_TIMEOUT)
            .await;
        failures = if reasons.is_empty() { 0 } else { failures + 1 };
        if failures >= VERBS_RECONNECTS_MAX && shared.paths.up().is_empty() && !shared.paths.has_resting() {
            // Whoever uses it may have another way to the peer.
            return shared.close("no path to the peer over RDMA is up any more");
        }
        for reason in reasons {
            tracing::debug!(peer = %shared.peer, reason, "a path is not up");
        }
    }
}

/// Closes paths that are not used, and forgets keys, when the peer asks for that, until the link ends.
pub(super) async fn listen(shared: Arc<Shared>) {
    while !shared.link.is_closed() {
        // A peer that has nothing to say, or too much, is not asked without end.
        let not_before = Instant::now() + VERBS_LISTEN_PAUSE_MIN;
        let told = shared
            .ask(&Ask::Listen, Instant::now() + 2 * VERBS_LISTEN_TIMEOUT)
            .await;
        match told {
            Ok(Tell::Wanted { paths, idle_ms, keys }) => {
                if !keys.is_empty() {
                    shared.places.withdraw(&keys);
                }
                shared.rest_unused(&paths, Duration::from_millis(idle_ms.into()));
                sleep_until(not_before).await;
            }
            // Also a peer that stands still or does not understand.
            _ => sleep(VERBS_LISTEN_PAUSE).await,
        }
    }
}

/// Tells the peer which of the keys that it wants forgotten are, until the link ends.
pub(super) async fn forget(shared: Arc<Shared>) {
    loop {
        let forgotten = tokio::select! {
            _ = shared.link.closed() => return,
            forgotten = shared.places.forgotten() => forgotten,
        };
        tracing::debug!(peer = %shared.peer, keys = forgotten.len(), "memory of the peer is forgotten");
        // A peer that does not hear of it ends the queue pairs.
        _ = shared
            .ask(&Ask::Forgot(forgotten), Instant::now() + VERBS_CONNECT_TIMEOUT)
            .await;
    }
}

/// A path that carries, and is not in use yet.
pub(super) struct Tried {
    pub(super) path: Arc<Path>,
    gid: GidEntry,
    /// What it was tried with.
    probe: Remote,
}

/// A queue pair that the peer is asked to connect to one of its own.
struct Offered {
    queue_pair: QueuePair<Ticket>,
    gid: GidEntry,
    offer: Offer,
}

impl Shared {
    /// One path per rail that can be used, named alike.
    pub(super) fn usable(&self) -> Vec<u8> {
        let rails = self.rails.all().iter().take(VERBS_PATHS_MAX).enumerate();
        let up = rails.filter(|(_, rail)| rail.is_up());
        up.filter_map(|(number, _)| u8::try_from(number).ok()).collect()
    }

    /// The paths that are to be up: of all rails, while none can be used.
    fn wanted(&self) -> Vec<u8> {
        let usable = self.usable();
        match usable.is_empty() {
            true => (0..u8::try_from(self.rails.all().len().min(VERBS_PATHS_MAX)).unwrap_or(0)).collect(),
            false => usable,
        }
    }

    /// Those of these paths that are to be connected, after the pause that so many failures cost; `None` if others are
    /// wanted or lost meanwhile: all are tried at once then. Resolves at once when all is closed.
    async fn due(&self, wanted: &[u8], failures: u32) -> Option<Vec<u8>> {
        let missing = self.paths.missing(wanted).await;
        if self.paths.closed().is_some() {
            return None;
        }
        let others: Vec<u8> = wanted.iter().copied().filter(|path| !missing.contains(path)).collect();
        tokio::select! {
            biased;
            _ = self.paths.missing(&others) => None,
            () = sleep(self.pause(failures)) => Some(missing),
        }
    }

    /// The pause before lost paths are tried again. A host all of whose ports are down may have them back soon: that is
    /// waited for as long as a silent peer is.
    fn pause(&self, failures: u32) -> Duration {
        match self.usable().is_empty() {
            true => pause(failures).max(self.rails.timing().silence()),
            false => pause(failures),
        }
    }

    /// A peer that does not hear of it has queue pairs that lead nowhere, until they are connected anew.
    async fn tell_rested(&self, paths: Vec<u8>) {
        _ = self
            .ask(&Ask::Rest(paths), Instant::now() + VERBS_CONNECT_TIMEOUT)
            .await;
    }

    /// Closes those of these paths that were not used for some time.
    fn rest_unused(&self, numbers: &[u8], least: Duration) {
        for path in self.paths.up() {
            if numbers.contains(&path.number) && path.idle().is_some_and(|idle| idle >= least) {
                tracing::debug!(peer = %self.peer, path = path.number, "a path is closed to make room at the peer");
                self.paths.rest(&path);
            }
        }
    }

    /// A queue pair to be connected over a rail.
    fn offer(&self, number: u8) -> Result<Offered, String> {
        let rail = &self.rails.all()[usize::from(number)];
        let address = rail.address().map_err(|reason| format!("{}: {reason}", rail.name))?;
        let made = self
            .rails
            .queue_pair(number.into(), Access::REMOTE_READ)
            .and_then(|queue_pair| {
                let endpoint = queue_pair.endpoint(&address.gid, rand::random())?;
                Ok((queue_pair, endpoint))
            });
        let (queue_pair, endpoint) = made.map_err(|error| format!("{}: {error}", rail.name))?;
        Ok(Offered {
            queue_pair,
            gid: address.gid,
            offer: Offer {
                path: number,
                subnet: address.subnet,
                endpoint,
            },
        })
    }

    /// Connects paths that carry; says why those are not up that are not.
    pub(super) async fn connect(&self, numbers: &[u8], any_subnet: bool, deadline: Instant) -> Vec<String> {
        let (tried, reasons) = self.try_paths(numbers, any_subnet, deadline).await;
        for Tried { path, gid, .. } in tried {
            // It may lead to another device of the peer, which names its memory otherwise.
            self.places.clear();
            self.paths.add(Arc::clone(&path));
            // What changed while it was tried has not ended it.
            if !self.rails.has(path.rail, &gid) {
                self.paths.lose(&path);
            }
        }
        reasons
    }

    /// Connects and tries paths: those that carry, and why others do not.
    pub(super) async fn try_paths(
        &self,
        numbers: &[u8],
        any_subnet: bool,
        deadline: Instant,
    ) -> (Vec<Tried>, Vec<String>) {
        let (mut made, mut reasons) = (HashMap::new(), Vec::new());
        for number in numbers {
            match self.offer(*number) {
                Ok(offered) => _ = made.insert(*number, offered),
                Err(reason) => reasons.push(reason),
            }
        }
        if made.is_empty() {
            return (Vec::new(), reasons);
        }
        let offers = made.values().map(|offered| offered.offer).collect();
        let accepted = match self.ask(&Ask::Connect { any_subnet, offers }, deadline).await {
            Ok(Tell::Connected { accepted, refused }) => {
                reasons.extend((!refused.is_empty()).then_some(refused));
                accepted
            }
            Ok(_) => vec![],
            Err(error) => {
                reasons.push(error.to_string());
                return (Vec::new(), reasons);
            }
        };
        let tries = accepted.into_iter().filter_map(|accept| {
            let Offered { queue_pair, gid, offer } = made.remove(&accept.path)?;
            Some(async move {
                let timing = self.rails.timing();
                let queue_pair = connect(queue_pair, offer.endpoint, gid, accept.endpoint, timing).await?;
                let path = Path::new(accept.path, accept.path.into(), accept.pushes, queue_pair);
                let tried = Tried {
                    path,
                    gid,
                    probe: accept.probe,
                };
                self.probe(&tried, deadline).await?;
                Ok::<_, Unusable>(tried)
            })
        });
        let mut carrying = Vec::new();
        for tried in join_all(tries).await {
            match tried {
                Ok(tried) => carrying.push(tried),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        (carrying, reasons)
    }

    /// Reads a few bytes over a new path. Returns how long that took.
    pub(super) async fn probe(&self, tried: &Tried, deadline: Instant) -> Result<Duration, Unusable> {
        let Tried { path, probe, .. } = tried;
        let scratch = Arc::new(Memory::from_vec(vec![0; VERBS_PROBE_BYTES])).whole();
        let into = self
            .rails
            .lend(path.rail, &scratch, Access::LOCAL_WRITE)?
            .part_of(&scratch)?;
        let flight = Flight::new(1);
        let read = ReadRequest {
            request: 0,
            from: *probe,
            place: None,
            into: vec![into],
            slots: Vec::new(),
            access: None,
        };
        let begun = Instant::now();
        let trying = async {
            path.post(&flight, vec![read]).await;
            flight.landed().await;
        };
        let in_time = timeout_at(deadline, trying).await;
        match (in_time, flight.statuses()[0]) {
            (Ok(()), Some(Status::Success)) => Ok(begun.elapsed()),
            (_, status) => {
                path.fail();
                Err(Unusable::Probe(status))
            }
        }
    }
}

/// Why a new path is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    #[error("a path was connected and does not carry: {}", .0.map_or("no answer".to_owned(), |status| status.to_string()))]
    Probe(Option<Status>),
}

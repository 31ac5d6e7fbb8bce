//! The owner's side: it connects queue pairs, says where exports lie, and reads what is offered.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::carry::{Piece, PieceError, carry};
use super::flight::Ticket;
use super::grants::Grants;
use super::keys::Keys;
use super::message::{Accept, Ask, Offer, Pull, Tell};
use super::path::{Path, connect};
use super::paths::Paths;
use super::plan::window;
use super::rails::{Rails, Registration};
use super::registered::Regions;
use super::room::Room;
use crate::engine::{Op, TransferError};
use crate::exports::{Access as Granted, Exports, Wanted};
use crate::ids::{RemoteKey, SessionId};
use crate::limits::{
    VERBS_ANSWERS_MAX, VERBS_IDLE_LONG, VERBS_IDLE_MIN, VERBS_KEYS_MAX, VERBS_LISTEN_TIMEOUT, VERBS_PATHS_MAX,
    VERBS_PROBE_BYTES, VERBS_PULL_GRACE, VERBS_ROOM_POLL, VERBS_ROOM_TIMEOUT, VERBS_SLICE_BYTES,
};
use crate::link::{BoxFuture, Service, Session};
use crate::memory::{Memory, Slice};
use crate::verbs::{Access, GidEntry, QueuePair, Remote, VerbsError};

/// Answers the calls of RDMA connections to the exports of this process. Give it to the listener
/// ([`Serving::rdma`](crate::link::Serving)).
pub struct RdmaTarget {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) rails: Arc<Rails>,
    pub(super) exports: Arc<Exports>,
    pub(super) runtime: Handle,
    /// What new paths are tried with.
    probe: Registration,
    probed: Arc<Memory>,
    sessions: Mutex<HashMap<usize, Arc<Connected>>>,
}

/// What one link has set up.
pub(super) struct Connected {
    pub(super) session: SessionId,
    pub(super) paths: Arc<Paths>,
    pub(super) grants: Grants,
    pub(super) keys: Keys,
    pub(super) room: Room,
    /// A permit per call that is worked on, which goes on when nobody waits for its answer any more.
    answers: Arc<Semaphore>,
    /// Held while queue pairs are made for it: what it has at once beyond what it may keep is one call's.
    connecting: tokio::sync::Mutex<()>,
}

impl RdmaTarget {
    /// A target whose pulls run on `runtime`. Memory that is exported often is best registered before, by
    /// [`Rails::register`].
    ///
    /// # Errors
    /// [`VerbsError`], if not even a few bytes can be registered.
    pub fn new(rails: Arc<Rails>, exports: Arc<Exports>, runtime: Handle) -> Result<Self, VerbsError> {
        let probed = Arc::new(Memory::from_vec(vec![0; VERBS_PROBE_BYTES]));
        let probe = rails.register(&probed)?;
        let inner = Arc::new(Inner {
            rails,
            exports,
            runtime,
            probe,
            probed,
            sessions: Mutex::default(),
        });
        let watching = Arc::downgrade(&inner);
        inner.exports.when_revoked(move |key| {
            if let Some(inner) = watching.upgrade() {
                inner.revoked(key);
            }
        });
        inner
            .runtime
            .spawn(let_go(Arc::downgrade(&inner), inner.rails.changes()));
        Ok(Self { inner })
    }
}

impl fmt::Debug for RdmaTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaTarget")
            .field("rails", &self.inner.rails)
            .field("sessions", &self.inner.sessions.lock().len())
            .field("probe", &self.inner.probe)
            .finish_non_exhaustive()
    }
}

impl Service for RdmaTarget {
    fn call(&self, session: Arc<Session>, deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let told = inner.answer_apart(session, deadline, request).await;
            told.encode().into()
        })
    }

    fn session_opened(&self, session: &Arc<Session>) {
        let connected = Connected {
            session: session.session,
            paths: self.inner.rails.paths(false),
            grants: Grants::new(),
            keys: Keys::default(),
            room: Room::default(),
            answers: Arc::new(Semaphore::new(VERBS_ANSWERS_MAX)),
            connecting: tokio::sync::Mutex::default(),
        };
        let mut sessions = self.inner.sessions.lock();
        sessions.insert(name_of(session), Arc::new(connected));
    }

    fn session_closed(&self, session: &Arc<Session>) {
        let connected = self.inner.sessions.lock().remove(&name_of(session));
        if let Some(connected) = connected {
            connected.paths.close("the peer's link has ended");
            self.inner.grants_ended(&connected);
            self.inner.keys_ended(&connected);
            connected.room.close();
        }
    }
}

/// Forgets what is registered with devices that are gone, as long as somebody uses the rails.
async fn let_go(inner: Weak<Inner>, mut changes: watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {
        let Some(inner) = inner.upgrade() else { return };
        let sessions: Vec<Arc<Connected>> = inner.sessions.lock().values().cloned().collect();
        for connected in sessions {
            let is_gone = |rail: usize| inner.rails.all()[rail].opened().is_err();
            inner.keys_lost(&connected, is_gone);
            inner.grants_lost(&connected, |path| is_gone(path.rail));
        }
    }
}

fn name_of(session: &Arc<Session>) -> usize {
    Arc::as_ptr(session).addr()
}

fn failed(reason: &str) -> Tell {
    Tell::Failed(TransferError::Disconnected {
        reason: reason.to_owned(),
    })
}

impl Inner {
    /// Answers in a task of its own: what it reads into memory is ended in order, also when nobody waits for the answer.
    async fn answer_apart(self: Arc<Self>, session: Arc<Session>, deadline: Instant, request: Bytes) -> Tell {
        // A call may come after its link has ended. Nobody would end what is set up for it then.
        let known = || self.sessions.lock().get(&name_of(&session)).cloned();
        let Some(answers) = known().map(|connected| Arc::clone(&connected.answers)) else {
            return failed("the link has ended");
        };
        // The semaphore is never closed.
        let Ok(place) = answers.acquire_owned().await else {
            return failed("the link has ended");
        };
        let Some(connected) = known() else {
            return failed("the link has ended");
        };
        let (inner, runtime) = (Arc::clone(&self), self.runtime.clone());
        let answering = runtime.spawn(async move {
            let told = inner.answer(&connected, deadline, &request).await;
            drop(place);
            told
        });
        answering.await.unwrap_or_else(|error| failed(&error.to_string()))
    }

    async fn answer(self: &Arc<Self>, connected: &Arc<Connected>, deadline: Instant, request: &[u8]) -> Tell {
        let Some(ask) = Ask::decode(request) else {
            return failed("the request cannot be understood");
        };
        match ask {
            Ask::Connect { any_subnet, offers } => self.connect(connected, any_subnet, offers).await,
            Ask::Rest(paths) => {
                connected.paths.end(&paths);
                self.grants_lost(connected, |path| paths.contains(&path.number));
                Tell::Done
            }
            Ask::Listen => connected.room.next(VERBS_LISTEN_TIMEOUT).await,
            Ask::Forgot(keys) => {
                self.forgotten(connected, &keys);
                Tell::Done
            }
            Ask::Resolve { key } => self.resolve(connected, key),
            Ask::Pull(pulls) => {
                let deadline = deadline.checked_sub(VERBS_PULL_GRACE).unwrap_or(deadline);
                let named = named_paths(&pulls);
                let results = self.pull(connected, pulls, deadline).await;
                let is_up = |number: &u8| connected.paths.up().iter().any(|path| path.number == *number);
                let away = named.into_iter().filter(|number| !is_up(number)).collect();
                Tell::Pulled { results, away }
            }
            Ask::Grant(wants) => Tell::Granted(self.grant(connected, wants, deadline).await),
            Ask::Settle(settles) => Tell::Settled(self.settle(connected, settles).await),
        }
    }

    async fn connect(&self, connected: &Arc<Connected>, any_subnet: bool, offers: Vec<Offer>) -> Tell {
        let _one_at_a_time = connected.connecting.lock().await;
        let (mut chosen, mut accepted, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        // A path that is replaced makes room on its rail: so it leads to the same device again, where what is known of memory is good.
        let is_replaced = |path: &Arc<Path>| offers.iter().any(|offer| offer.path == path.number);
        let up = connected.paths.up();
        let mut used: Vec<usize> = up
            .iter()
            .filter(|path| !is_replaced(path))
            .map(|path| path.rail)
            .collect();
        for offer in &offers {
            if usize::from(offer.path) >= VERBS_PATHS_MAX {
                refused.push(format!("there are no more than {VERBS_PATHS_MAX} paths"));
                continue;
            }
            let rails = self.rails.all().iter().enumerate();
            let up = rails.filter_map(|(number, rail)| Some((number, rail.address().ok()?)));
            let fits = up.filter(|(_, address)| any_subnet || address.subnet == offer.subnet);
            let paths = |rail: usize| used.iter().filter(|of| **of == rail).count();
            match fits.min_by_key(|(rail, _)| paths(*rail)) {
                Some((rail, address)) => {
                    used.push(rail);
                    chosen.push((rail, address.gid, offer));
                }
                None => refused.push(format!("the peer has no port in {}", offer.subnet)),
            }
        }
        // At once: a rail may have to wait until there is room.
        let made = chosen
            .iter()
            .map(|(rail, gid, offer)| self.accept(connected, *rail, gid, offer));
        for (made, (rail, ..)) in join_all(made).await.into_iter().zip(&chosen) {
            match made {
                Ok(accept) => accepted.push(accept),
                Err(error) => refused.push(format!("{}: {error}", self.rails.all()[*rail].name)),
            }
        }
        Tell::Connected {
            accepted,
            refused: refused.join("; "),
        }
    }

    async fn accept(
        &self,
        connected: &Arc<Connected>,
        number: usize,
        gid: &GidEntry,
        offer: &Offer,
    ) -> Result<Accept, VerbsError> {
        let pushes = self.rails.all()[number].pushes();
        let access = match pushes {
            true => Access::REMOTE_READ | Access::REMOTE_WRITE,
            false => Access::REMOTE_READ,
        };
        let queue_pair = self.queue_pair(number, access).await?;
        let endpoint = queue_pair.endpoint(gid, rand::random())?;
        let queue_pair = connect(queue_pair, endpoint, *gid, offer.endpoint, self.rails.timing()).await?;
        let path = Path::new(offer.path, number, pushes, queue_pair);
        connected.paths.add(Arc::clone(&path));
        // One that it replaced goes with the windows on it.
        self.grants_lost(connected, |path| !connected.paths.has(path));
        // What changed before it was added has not ended it.
        let probe = self.rails.region(number, &self.probed.whole());
        let probe = probe.filter(|_| self.rails.has(number, gid)).ok_or_else(|| {
            connected.paths.lose(&path);
            VerbsError::Gone {
                port: self.rails.all()[number].name.clone(),
            }
        })?;
        Ok(Accept {
            path: offer.path,
            endpoint,
            probe: Remote {
                address: probe.address(),
                key: probe.key(),
            },
            pushes,
        })
    }

    /// A new queue pair; peers are asked for room where there is none.
    async fn queue_pair(&self, rail: usize, access: Access) -> Result<QueuePair<Ticket>, VerbsError> {
        for idle in [VERBS_IDLE_LONG, VERBS_IDLE_MIN] {
            let is_full = |made: &Result<_, _>| matches!(made, Err(VerbsError::CompletionQueueFull { .. }));
            let mut made = self.rails.queue_pair(rail, access);
            if !is_full(&made) {
                return made;
            }
            self.ask_for_room(rail, idle);
            let until = Instant::now() + VERBS_ROOM_TIMEOUT;
            while is_full(&made) && Instant::now() < until {
                sleep(VERBS_ROOM_POLL).await;
                made = self.rails.queue_pair(rail, access);
            }
            if !is_full(&made) {
                return made;
            }
        }
        self.rails.queue_pair(rail, access)
    }

    fn ask_for_room(&self, rail: usize, idle: Duration) {
        for connected in self.sessions.lock().values() {
            let up = connected.paths.up();
            let of_rail = up.iter().filter(|path| path.rail == rail);
            let mut paths = of_rail.map(|path| path.number).peekable();
            if paths.peek().is_some() {
                connected.room.ask(paths, idle);
            }
        }
    }

    fn resolve(&self, connected: &Connected, key: RemoteKey) -> Tell {
        let mut keys = connected.keys.telling();
        let memory = match self.exports.readable(connected.session, key) {
            Ok(memory) => memory,
            Err(error) => return Tell::Failed(error),
        };
        if !keys.has_room_for(key) {
            return failed(&format!(
                "the peer was told of {VERBS_KEYS_MAX} exports, the most there may be"
            ));
        }
        let mut at = Vec::new();
        for path in connected.paths.up() {
            match keys.tell(key, path.rail, || self.readable_regions(path.rail, &memory)) {
                Ok(regions) => at.extend(regions.named(path.number, &memory)),
                // Its paths end too.
                Err(VerbsError::Gone { .. }) => {}
                Err(error) => return failed(&error.to_string()),
            }
        }
        Tell::Resolved {
            len_bytes: memory.len_bytes(),
            at,
        }
    }

    /// An export as its owner registered it, or registered alone.
    fn readable_regions(&self, rail: usize, memory: &Slice) -> Result<Regions, VerbsError> {
        match self.rails.regions(rail, memory.memory()) {
            Some(regions) => Ok(regions),
            None => Ok(Regions::alone(self.rails.lend(rail, memory, Access::REMOTE_READ)?)),
        }
    }

    /// An export is revoked: nobody writes there any more, and peers that were told where it lies are to forget it.
    fn revoked(self: &Arc<Self>, key: RemoteKey) {
        let sessions: Vec<Arc<Connected>> = self.sessions.lock().values().cloned().collect();
        for connected in sessions {
            self.grants_revoked(&connected, key);
            self.withdraw(&connected, key);
        }
    }

    /// Reads what is offered; groups in order, everything else at once.
    async fn pull(
        &self,
        connected: &Arc<Connected>,
        pulls: Vec<Pull>,
        deadline: Instant,
    ) -> Vec<Result<u64, TransferError>> {
        let units: Vec<&[Pull]> = pulls.chunk_by(|a, b| a.group != 0 && a.group == b.group).collect();
        let unit = async |unit: &[Pull]| {
            let mut results = Vec::with_capacity(unit.len());
            for pull in unit {
                results.push(self.pull_one(connected, pull, deadline).await);
            }
            results
        };
        join_all(units.into_iter().map(unit))
            .await
            .into_iter()
            .flatten()
            .collect()
    }

    async fn pull_one(&self, connected: &Connected, pull: &Pull, deadline: Instant) -> Result<u64, TransferError> {
        let lens = pull.sources.iter().map(|source| source.len_bytes);
        let len_bytes = lens.fold(0_u64, u64::saturating_add);
        let wanted = Wanted {
            op: Op::Write,
            key: pull.key,
            offset_bytes: pull.offset_bytes,
            len_bytes,
        };
        sound_range(&wanted)?;
        // What reads into it keeps it too: a device that does not flush in time keeps the memory from whoever would have it next.
        let granted = Arc::new(self.exports.begin(connected.session, &wanted)?);
        // It may have been revoked while the guard was asked.
        granted.touch(0, |_, _| ())?;
        let (memory, mut at, mut pieces) = (granted.memory(), 0, Vec::new());
        for source in &pull.sources {
            pieces.push(Piece {
                from: source.from.clone(),
                into: window(std::slice::from_ref(&memory), at, source.len_bytes),
                len_bytes: source.len_bytes,
                group: 0,
                place: None,
                access: Some(Arc::clone(&granted)),
            });
            at += source.len_bytes;
        }
        let carried = carry(&self.rails, &connected.paths, &pieces, deadline).await;
        if let Some(error) = carried.into_iter().find_map(Result::err) {
            return Err(told(error, len_bytes));
        }
        let crc64 = landed(&granted, len_bytes)?;
        self.rails.writes().pulled.add(len_bytes);
        Ok(crc64)
    }
}

/// Refuses ranges that no initiator asks for in one piece: what one of them costs is bounded, the checksum of what landed
/// among it.
pub(super) fn sound_range(wanted: &Wanted) -> Result<(), TransferError> {
    match (1..=VERBS_SLICE_BYTES).contains(&wanted.len_bytes) {
        true => Ok(()),
        false => Err(TransferError::Invalid {
            reason: format!(
                "a range of {} bytes, which is none to write in one piece",
                wanted.len_bytes
            ),
        }),
    }
}

/// All bytes of a write are in memory.
pub(super) fn landed(granted: &Granted, len_bytes: u64) -> Result<u64, TransferError> {
    let sum = granted.touch(0, |memory, offset_bytes| {
        memory.crc64(offset_bytes..offset_bytes + len_bytes)
    })?;
    let crc64 = sum.map_err(|error| TransferError::Disconnected {
        reason: error.to_string(),
    })?;
    granted.wrote(crc64);
    Ok(crc64)
}

/// The paths on which what is to be pulled is named: as many as there may be at most.
fn named_paths(pulls: &[Pull]) -> Vec<u8> {
    let sources = pulls.iter().flat_map(|pull| &pull.sources);
    let named: BTreeSet<u8> = sources.flat_map(|source| &source.from).map(|(path, _)| *path).collect();
    named.into_iter().take(VERBS_PATHS_MAX).collect()
}

fn told(error: PieceError, len_bytes: u64) -> TransferError {
    match error {
        PieceError::Access => TransferError::Disconnected {
            reason: "the offered memory cannot be read any more".to_owned(),
        },
        PieceError::Deadline => TransferError::Deadline {
            moved_bytes: 0,
            len_bytes,
        },
        PieceError::Unnamed => TransferError::Disconnected {
            reason: "no path on which the offered memory is named is up".to_owned(),
        },
        PieceError::Lost(reason) | PieceError::Local(reason) => TransferError::Disconnected { reason },
    }
}

//! Clients: what they do, and how they go on when something does not answer.

use crate::executor::Slot;
use crate::message::{Answered, Ask, Body, Call, NoAnswer, Packet, Party, Tell};
use crate::model::{Manner, Read, Refusal, RemovalEnd};
use crate::promises;
use crate::world::{Sim, World};
use rand::RngExt;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{PutId, SessionId, Version};
use tenon_protocol::message::{Committed, Located};

/// A reader that finds an object gone asks again so often.
const RELOCATIONS_MAX: u32 = 4;

/// Operations of a hasty client, and its longest pause between two.
const HASTY_OPERATIONS: u32 = 15;
const HASTY_PAUSE_MS_MAX: u64 = 30;

/// One reader in so many takes an object for gone that is there.
const MISTAKEN_ONE_IN: u32 = 20;

/// A client that asks late how a put has ended takes one whose own tries were over so long ago.
const LATE_MS_MIN: u64 = 1_000;

/// Tries of one put.
const PUT_TRIES_MAX: u32 = 3;

/// Tries of one removal.
const REMOVE_TRIES_MAX: u32 = 3;

/// How a client's call has failed.
#[derive(Debug, Clone)]
enum Failure {
    /// With an answer.
    Refused(ServiceError),
    /// Without: it may be done or not.
    Unanswered,
}

impl From<NoAnswer> for Failure {
    fn from(_: NoAnswer) -> Self {
        Self::Unanswered
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        Self::Refused(error)
    }
}

impl Failure {
    /// Whether the answer says for sure that nothing was done.
    fn is_final(&self) -> bool {
        let Self::Refused(error) = self else { return false };
        !matches!(
            error.code,
            ErrorCode::Unavailable | ErrorCode::DeadlineExceeded | ErrorCode::Overloaded | ErrorCode::Internal
        )
    }
}

/// Until when an operation may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until(pub(crate) u64);

impl Sim {
    /// What one client does until the quiet time begins.
    pub(crate) async fn be_client(self) {
        while self.with(|world| world.now < world.plan.quiet_from) {
            let pause_ms_max = self.with(|world| world.plan.pause_ms_max);
            self.operate(pause_ms_max).await;
        }
    }

    /// What a client does that has only waited for a fault to end.
    pub(crate) async fn be_hasty_client(self) {
        for _ in 0..HASTY_OPERATIONS {
            if self.with(|world| world.now >= world.plan.quiet_from) {
                return;
            }
            self.operate(HASTY_PAUSE_MS_MAX).await;
        }
    }

    /// What a client does that repeats puts which were over long ago, until the quiet time begins: of objects that are there
    /// still or were removed, and whatever became of homes since.
    pub(crate) async fn be_late_client(self) {
        while self.with(|world| world.now < world.plan.quiet_from) {
            let pause_ms_max = self.with(|world| world.plan.pause_ms_max);
            let Some((host, until)) = self.turn(pause_ms_max).await else {
                continue;
            };
            let over_by = self.with(|world| world.now).saturating_sub(LATE_MS_MIN);
            let put_id = self.with(|world| {
                let over = world.model.puts_over(over_by);
                (!over.is_empty()).then(|| over[world.rng.random_range(0..over.len())].1)
            });
            if let Some(put_id) = put_id {
                self.try_put(host, put_id, until).await;
            }
        }
    }

    /// A node that runs and a deadline, after a pause. `None`: the node that was chosen does not run.
    async fn turn(&self, pause_ms_max: u64) -> Option<(usize, Until)> {
        let pause_ms = self.with(|world| world.rng.random_range(1..=pause_ms_max));
        self.client_sleep(pause_ms).await;
        self.with(|world| {
            let host = world.rng.random_range(0..world.nodes.len());
            let may_take = [500, 2_000, 5_000, 10_000][world.rng.random_range(0..4)];
            let runs = world.nodes[host].process.is_some();
            runs.then_some((host, Until(world.now + may_take)))
        })
    }

    /// One operation on any key at any node that runs, after a pause.
    async fn operate(&self, pause_ms_max: u64) {
        let Some((host, until)) = self.turn(pause_ms_max).await else {
            return;
        };
        let (key, what) = self.with(|world| {
            let key = world.rng.random_range(0..world.keys.len());
            (key, world.rng.random_range(0..100))
        });
        match what {
            0..45 => self.put(host, key, until).await,
            45..75 => drop(self.get(host, key, until).await),
            75..85 => self.exists(host, key, until).await,
            _ => self.remove(host, key, until).await,
        }
    }

    async fn client_sleep(&self, ms: u64) {
        let bell = Slot::new();
        let ring = bell.clone();
        self.with(|world| world.set_alarm(ms, Box::new(move || ring.fill(()))));
        bell.await;
    }

    /// A call of a client on `host` to a process.
    async fn client_call(&self, host: usize, to: usize, ask: Ask, until: Until) -> Answered {
        let answer = Slot::new();
        let late = answer.clone();
        self.with(|world| {
            let (call, to_life) = (world.next(), world.nodes[to].life);
            let left_ms = until.0.saturating_sub(world.now);
            world.client_calls.insert(call, (to, to_life, answer.clone()));
            world.set_alarm(left_ms, Box::new(move || late.fill(Err(NoAnswer::Late))));
            world.send(Packet {
                from: Party::Client(host),
                from_life: 0,
                to: Party::Node(to),
                to_life,
                call,
                body: Body::Ask { ask, left_ms },
            });
        });
        answer.await
    }

    async fn put(&self, host: usize, key: usize, until: Until) {
        let put_id = self.with(|world| {
            let put_id = PutId::from_bytes(world.rng.random());
            let manner = draw_manner(world);
            world.model.put_begins(put_id, key, manner, world.now);
            put_id
        });
        self.try_put(host, put_id, until).await;
        self.with(|world| world.model.put_is_over(put_id, world.now));
    }

    /// Tries a put, perhaps not for the first time, until it is answered or its time is over.
    async fn try_put(&self, first_host: usize, put_id: PutId, until: Until) {
        let (key, manner) = self.with(|world| (world.model.puts[&put_id].key, world.model.puts[&put_id].manner));
        let mut host = first_host;
        for tries in 1..=PUT_TRIES_MAX {
            let (holders, began) = self.with(|world| {
                let holder = match world.rng.random_range(0..3) {
                    0 => host,
                    _ => world.rng.random_range(0..world.nodes.len()),
                };
                (draw_holders(world, holder, manner), world.now)
            });
            self.tell(|| format!("CLIENT at {host} puts {put_id} as key {key} on {holders:?} {manner:?}, try {tries}"));
            let ended = self.put_once(host, holders, put_id, key, until).await;
            self.tell(|| format!("CLIENT at {host} has put {put_id}: {ended:?}"));
            let is_over = self.with(|world| {
                let time = (began, world.now);
                match &ended {
                    Ok(committed) => promises::put_answered(world, put_id, time, committed),
                    Err(failure) if failure.is_final() => world.model.put_refused(put_id, time, Refusal::Final),
                    Err(_) => world.model.put_refused(put_id, time, Refusal::Unknown),
                }
                // Now and then a client has lost the answer and asks again.
                let chance = if ended.is_ok() { 5 } else { 1 };
                world.now >= until.0 || world.rng.random_range(0..6) < chance
            });
            if is_over {
                return;
            }
            host = self.with(|world| world.rng.random_range(0..world.nodes.len()));
            self.client_sleep(100).await;
        }
    }

    /// One try: the first of the holders commits, those of the others that have the bytes commit copies.
    async fn put_once(
        &self,
        host: usize,
        holders: Vec<usize>,
        put_id: PutId,
        key: usize,
        until: Until,
    ) -> Result<Committed, Failure> {
        let holder = holders[0];
        self.set_down(host, holder, put_id, key, until).await?;
        let mut further = Vec::new();
        for other in holders.into_iter().skip(1) {
            // What can't be had costs that replica.
            if self.set_down(host, other, put_id, key, until).await.is_ok() {
                further.push(other);
            }
        }
        let commit = Call::Commit {
            put_id,
            key,
            holder,
            further,
        };
        match self.client_call(host, host, Ask::Serve(commit), until).await? {
            Tell::Committed(committed) => Ok(committed?),
            other => unreachable!("a commit is answered by {other:?}"),
        }
    }

    /// Has a region set aside and writes there.
    async fn set_down(
        &self,
        host: usize,
        holder: usize,
        put_id: PutId,
        key: usize,
        until: Until,
    ) -> Result<(), Failure> {
        let reserve = Call::Reserve {
            put_id,
            key,
            holder,
            session: SessionId::from_bytes(put_id.to_bytes()),
            replace: self.with(|world| world.model.puts[&put_id].manner.replace),
        };
        let region = match self.client_call(host, host, Ask::Serve(reserve), until).await? {
            Tell::Reserved(region) => region?,
            other => unreachable!("a reservation is answered by {other:?}"),
        };
        let written = self
            .client_call(host, holder, Ask::Write { region, put_id }, until)
            .await?;
        if !matches!(written, Tell::Written(true)) {
            // Another try of the put has the region, or it has ended. The commit will tell.
            self.tell(|| format!("CLIENT at {host} could not write {put_id}"));
        }
        Ok(())
    }

    /// A get, as its reader reports it.
    pub(crate) async fn get(&self, host: usize, key: usize, until: Until) -> Read {
        let began = self.with(|world| world.now);
        let found = self.find(host, key, until).await;
        self.tell(|| format!("CLIENT at {host} has got key {key} since {began}: {found:?}"));
        self.with(|world| promises::got(world, key, host, began, &found));
        found
    }

    async fn exists(&self, host: usize, key: usize, until: Until) {
        let began = self.with(|world| world.now);
        let located = self.locate_at(host, Call::Locate { key }, until).await;
        self.tell(|| format!("CLIENT at {host} asked for key {key} since {began}: {located:?}"));
        if matches!(located, Ok(None)) {
            self.with(|world| promises::got(world, key, host, began, &Read::Miss));
        }
    }

    async fn locate_at(&self, host: usize, call: Call, until: Until) -> Result<Option<Located>, Failure> {
        match self.client_call(host, host, Ask::Serve(call), until).await? {
            Tell::Located(located) => Ok(located?),
            other => unreachable!("a look-up is answered by {other:?}"),
        }
    }

    /// Locates and reads, and where an object is gone looks again.
    async fn find(&self, host: usize, key: usize, until: Until) -> Read {
        let mut gone: Option<Located> = None;
        for _ in 0..=RELOCATIONS_MAX {
            let call = match &gone {
                None => Call::Locate { key },
                Some(gone) => Call::Relocate {
                    key,
                    missed: gone.version,
                },
            };
            let located = match self.locate_at(host, call, until).await {
                Err(_) => return Read::Failed,
                Ok(None) => return Read::Miss,
                Ok(Some(located)) => located,
            };
            for replica in &located.replicas {
                let ask = Ask::Read {
                    replica: *replica,
                    len_bytes: located.len_bytes,
                };
                let holder = self.with(|world| world.index_of(replica.holder));
                let Ok(Tell::Read(seen)) = self.client_call(host, holder, ask, until).await else {
                    return Read::Failed;
                };
                let hash = self.with(|world| world.keys[key].hash);
                let is_right = |seen: &crate::message::Seen| {
                    let is_here = seen.incarnation == replica.incarnation && seen.generation == replica.generation;
                    is_here && seen.key_hash == hash
                };
                if let Some(seen) = seen.filter(is_right) {
                    if self.with(|world| {
                        world.now < world.plan.quiet_from && world.rng.random_range(0..MISTAKEN_ONE_IN) == 0
                    }) {
                        return self.doubt_by_mistake(host, key, located.version, until).await;
                    }
                    return Read::Hit {
                        holder,
                        generation: seen.generation,
                        bytes: seen.bytes,
                    };
                }
            }
            // The index only lags behind the holders, who know.
            if gone.as_ref().is_some_and(|gone| {
                gone.version == located.version && located.replicas.iter().all(|one| gone.replicas.contains(one))
            }) {
                return Read::Miss;
            }
            gone = Some(located);
        }
        Read::Failed
    }

    /// A reader takes what is there for gone, as one does that was slow and found another use of the region. It has the
    /// homes look, which must find the object.
    async fn doubt_by_mistake(&self, host: usize, key: usize, missed: Version, until: Until) -> Read {
        match self.locate_at(host, Call::Relocate { key, missed }, until).await {
            Ok(None) => Read::Miss,
            Ok(Some(_)) | Err(_) => Read::Failed,
        }
    }

    async fn remove(&self, first_host: usize, key: usize, until: Until) {
        let mut host = first_host;
        for _ in 0..REMOVE_TRIES_MAX {
            let removal = self.with(|world| world.model.removal_begins(key, host, world.now));
            let answer = match self
                .client_call(host, host, Ask::Serve(Call::Remove { key }), until)
                .await
            {
                Ok(Tell::Removed(Ok(changed))) => RemovalEnd::Done { changed },
                Ok(Tell::Removed(Err(error))) if error.code == ErrorCode::Unavailable => {
                    let silent = error.node.map(|node| self.with(|world| world.index_of(node)));
                    RemovalEnd::Unavailable {
                        silent: silent.expect("an unavailable node has a name"),
                    }
                }
                _ => RemovalEnd::Unknown,
            };
            self.tell(|| format!("CLIENT at {host} has removed key {key}: {answer:?}"));
            let is_over = self.with(|world| {
                world.model.removal_ends(removal, answer, world.now);
                matches!(answer, RemovalEnd::Done { .. }) || world.now >= until.0
            });
            if is_over {
                return;
            }
            host = self.with(|world| world.rng.random_range(0..world.nodes.len()));
            self.client_sleep(300).await;
        }
    }
}

/// What a put asks for. In runs without variety nothing is drawn.
fn draw_manner(world: &mut World) -> Manner {
    let (copied, replaced) = (world.plan.variety.copied_percent, world.plan.variety.replaced_percent);
    let mut is_one_of = |percent| percent > 0 && world.rng.random_range(0..100) < percent;
    let replace = is_one_of(replaced);
    let is_copied = is_one_of(copied);
    let replicas = if is_copied { world.rng.random_range(2..=3) } else { 1 };
    Manner { replace, replicas }
}

/// The holders of a try, of which the first is chosen already.
fn draw_holders(world: &mut World, first: usize, manner: Manner) -> Vec<usize> {
    let mut holders = vec![first];
    for _ in 1..manner.replicas {
        let other = world.rng.random_range(0..world.nodes.len());
        if !holders.contains(&other) {
            holders.push(other);
        }
    }
    holders
}

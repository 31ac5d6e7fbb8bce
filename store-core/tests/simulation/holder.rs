//! What a node does as a holder: sets regions aside, takes bytes, commits, shows what it has, publishes.

use crate::executor::Slot;
use crate::message::{ReserveAsk, Seen};
use crate::model::Object;
use crate::promises;
use crate::world::{Sim, World};
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, PutId, Version};
use tenon_protocol::member::{HomeAnswer, HomeEventKind, Withdrawal};
use tenon_protocol::message::{Committed, KeyResult, Pin, Replica};
use tenon_store_core::objects::{
    CommitSpec, CommitStep, HoldError, Proposed, RegionId, Reported, ReserveError, ReserveSpec, Unreported, Verified,
};
use tenon_store_core::time::Time;

/// How long homes are told of a proposal that was given up.
const WITHDRAW_MS: u64 = 5_000;
/// How long one attempt to publish takes, and the pauses between two.
const PUBLISH_MS: u64 = 2_000;
const PUBLISH_PAUSE_MS_MIN: u64 = 250;
const PUBLISH_PAUSE_MS_MAX: u64 = 5_000;

/// How long the object of a put is: one to five units of alignment.
pub(crate) fn len_bytes(put_id: PutId) -> u64 {
    1 + u64::from(put_id.to_bytes()[15]) * 5 / 4
}

/// The checksum of a put's bytes, which are one piece.
fn sum(put_id: PutId) -> u64 {
    u64::from_le_bytes(put_id.to_bytes()[..8].try_into().unwrap())
}

/// How far a commit has come when it begins.
pub(crate) enum Begun {
    Verified(Verified),
    Sealed(Unreported),
    Done(Committed),
}

impl Sim {
    /// Sets a region aside here.
    pub(crate) fn reserve(&self, me: usize, ask: ReserveAsk) -> KeyResult<RegionId> {
        let ReserveAsk {
            put_id,
            key,
            owner,
            replace,
        } = ask;
        let reserved = self.with(|world| {
            let now = world.clock(me);
            let name = world.keys[key].name.clone();
            let spec = ReserveSpec {
                put_id,
                name,
                len_bytes: len_bytes(put_id),
                owner,
                ttl_ms: None,
                pin: Pin::None,
                replace,
            };
            let process = world.nodes[me].process.as_mut().expect("it runs");
            if process.is_draining {
                return Err(ServiceError::new(ErrorCode::NoSpace, "the node drains"));
            }
            let reserved = match process.holder.reserve(now, &mut world.rng, spec.clone()) {
                Err(ReserveError::NoSpace(_)) if world.plan.evicts && process.holder.make_room(now, spec.len_bytes) => {
                    process.holder.reserve(now, &mut world.rng, spec)?
                }
                reserved => reserved?,
            };
            process.granted.insert(reserved.region);
            Ok(reserved.region)
        });
        let evicted = self.with(|world| world.process(me).holder.take_evicted());
        self.tell_of(me, evicted);
        reserved
    }

    /// A client's bytes arrive. False if it may not write there.
    pub(crate) async fn write(&self, me: usize, region: RegionId, put_id: PutId, takes_ms: u64) -> bool {
        let begun = self.with(|world| {
            let process = world.process(me);
            if !process.granted.contains(&region) {
                return Err(HoldError::Stale);
            }
            let hold = process.holder.begin_write(region, 0, len_bytes(put_id))?;
            process.memory.insert((region.segment, region.offset_bytes), put_id);
            Ok(hold)
        });
        let Ok(hold) = begun else { return false };
        self.sleep(me, takes_ms).await;
        self.with(|world| {
            let now = world.clock(me);
            let process = world.process(me);
            process.holder.wrote(now, region, 0, len_bytes(put_id), sum(put_id));
            process.holder.end_write(hold);
            process.wake_commits();
        });
        true
    }

    /// What a client finds here.
    pub(crate) fn read(&self, me: usize, replica: &Replica, len_bytes: u64) -> Option<Seen> {
        self.with(|world| {
            let incarnation = Incarnation(world.nodes[me].life);
            let process = world.process(me);
            let hold = process
                .holder
                .begin_read(replica.segment, replica.offset_bytes, len_bytes)
                .ok()?;
            process.holder.end_read(hold);
            let (generation, key_hash) = *process.tables.get(&replica.segment)?.0.borrow().get(&replica.slot)?;
            Some(Seen {
                incarnation,
                generation,
                key_hash,
                bytes: *process.memory.get(&(replica.segment, replica.offset_bytes))?,
            })
        })
    }

    /// A put's commit: check the bytes, ask the homes, seal, tell the homes, and only then answer.
    pub(crate) async fn commit(&self, me: usize, put_id: PutId, key: usize, deadline: Time) -> KeyResult<Committed> {
        let verified = match self.begin_commit(me, put_id, key, deadline).await? {
            Begun::Verified(verified) => verified,
            Begun::Sealed(unreported) => return self.report(me, key, unreported, deadline).await,
            Begun::Done(committed) => return Ok(committed),
        };
        let answer = self.decide(me, key, verified.proposal(), deadline).await;
        self.tell(|| format!("{me} proposed {put_id}: {answer:?}"));
        let proposed = self.with(|world| {
            let (now, at) = (world.clock(me), world.now);
            let process = world.process(me);
            let proposed = process.holder.proposed(now, verified, answer, at);
            process.settle();
            process.wake_commits();
            proposed
        });
        match proposed {
            Proposed::Sealed(unreported) => {
                self.note_sealed(me, key, unreported.version());
                self.report(me, key, unreported, deadline).await
            }
            Proposed::Over(committed) => Ok(committed),
            Proposed::Failed { error, withdrawal } => {
                self.withdraw(me, key, withdrawal);
                Err(error)
            }
        }
    }

    /// The commit is begun and its bytes are right, or its object was sealed before, or it has its outcome.
    pub(crate) async fn begin_commit(&self, me: usize, put_id: PutId, key: usize, deadline: Time) -> KeyResult<Begun> {
        loop {
            let ended = Slot::new();
            let step = self.with(|world| {
                let now = world.clock(me);
                let spec = CommitSpec {
                    put_id,
                    name: world.keys[key].name.clone(),
                    checksums: Checksums::from_pieces(len_bytes(put_id), vec![sum(put_id)]),
                    fingerprint: Vec::new(),
                };
                let process = world.process(me);
                let step = process.holder.begin_commit(now, spec);
                process.settle();
                if matches!(step, Ok(CommitStep::Wait)) {
                    process.waiting.push(ended.clone());
                }
                step
            });
            match step? {
                CommitStep::Done(committed) => return Ok(Begun::Done(committed)),
                CommitStep::Report(unreported) => return Ok(Begun::Sealed(unreported)),
                CommitStep::Wait => {}
                CommitStep::Verify(unverified) => {
                    let verified = self.with(|world| {
                        let process = world.process(me);
                        let found: Vec<u64> = unverified.unknown_pieces().iter().map(|_| sum(put_id)).collect();
                        let verified = process.holder.verify(unverified, &found);
                        process.settle();
                        verified
                    });
                    return Ok(Begun::Verified(verified?));
                }
            }
            if self.clock(me) >= deadline {
                let message = "another commit of the put did not end by the deadline";
                return Err(ServiceError::new(ErrorCode::DeadlineExceeded, message));
            }
            let left_ms = deadline.since_ms(self.clock(me));
            let (sim, bell) = (self.clone(), ended.clone());
            self.spawn(Some(me), async move {
                sim.sleep(me, left_ms).await;
                bell.fill(());
            });
            ended.await;
        }
    }

    /// An object lies here now.
    pub(crate) fn note_sealed(&self, me: usize, key: usize, version: Version) {
        self.with(|world| {
            let hash = world.keys[key].hash;
            let life = world.nodes[me].life;
            let replica = world
                .process(me)
                .holder
                .held(hash)
                .expect("it was just sealed")
                .replicas[0];
            let mut object = Object::new(key, version, me, life, replica.generation, world.now);
            object.is_copy = replica.is_copy;
            promises::sealed(world, &object);
            let now = world.now;
            world.model.dropped(me, key, |_| true, now);
            world.model.sealed(object);
        });
        self.tell(|| format!("{me} sealed {version} for key {key}"));
    }

    async fn report(&self, me: usize, key: usize, unreported: Unreported, deadline: Time) -> KeyResult<Committed> {
        let version = unreported.version();
        let report = unreported.report(self.id(me));
        let HomeEventKind::Sealed { generation, .. } = report else {
            unreachable!("a seal is reported")
        };
        self.with(|world| world.process(me).reporting.insert(version.put_id));
        let answer = self.decide(me, key, report, deadline).await;
        self.tell(|| format!("{me} reported {version}: {answer:?}"));
        let reported = self.with(|world| {
            let now = world.clock(me);
            let silent = silent_node(world, &answer);
            let process = world.process(me);
            process.reporting.remove(&version.put_id);
            let reported = process.holder.reported(now, unreported, answer);
            process.settle();
            process.wake_commits();
            if let Reported::Done(committed) = &reported {
                let at = world.now;
                world.model.reported(me, generation, at, committed.degraded);
            } else if let Some(silent) = silent {
                let at = world.now;
                world.model.left_open(me, generation, at, silent);
            }
            reported
        });
        match reported {
            Reported::Done(committed) => {
                if committed.degraded {
                    self.publish(me, key);
                }
                Ok(committed)
            }
            Reported::Failed { error, withdrawal } => {
                match withdrawal {
                    Some(withdrawal) => self.withdraw(me, key, withdrawal),
                    // The homes may not know of the object: it stays, so they are told of it.
                    None => self.publish(me, key),
                }
                Err(error)
            }
        }
    }

    /// Tells the homes that a proposal is given up; nobody waits for that.
    fn withdraw(&self, me: usize, key: usize, withdrawal: Withdrawal) {
        let sim = self.clone();
        let deadline = self.clock(me).after_ms(WITHDRAW_MS);
        self.spawn(Some(me), async move {
            let kind = HomeEventKind::Withdrawn(withdrawal);
            let _ = sim.decide(me, key, kind, deadline).await;
        });
    }

    /// Tells both homes of an object that is held here, until each has taken it, has begun another life, or the object
    /// is not held any more.
    pub(crate) fn publish(&self, me: usize, key: usize) {
        let hash = self.with(|world| world.keys[key].hash);
        let homes = self.with(|world| world.keys[key].home_nodes.clone());
        for home in homes {
            let id = self.id(home);
            if self.with(|world| world.process(me).published.insert((id, hash))) {
                let sim = self.clone();
                self.spawn(Some(me), async move {
                    sim.publish_to(me, home, key).await;
                    sim.with(|world| world.process(me).published.remove(&(id, hash)));
                });
            }
        }
    }

    async fn publish_to(&self, me: usize, home: usize, key: usize) {
        let mut life = self.known_life(me, home);
        let mut pause_ms = PUBLISH_PAUSE_MS_MIN;
        loop {
            let hash = self.with(|world| world.keys[key].hash);
            let held = self.with(|world| world.process(me).holder.held(hash));
            // A home that was not heard of before is not told by its first life that it has begun another one.
            life = life.or(self.known_life(me, home));
            let Some(entry) = held.filter(|_| self.known_life(me, home) == life) else {
                return;
            };
            let event = self.home_event(key, HomeEventKind::Publish(entry));
            let deadline = self.clock(me).after_ms(PUBLISH_MS);
            if self.ask_home(me, self.id(home), event, deadline).await.is_ok() {
                return;
            }
            self.sleep(me, pause_ms).await;
            pause_ms = (2 * pause_ms).min(PUBLISH_PAUSE_MS_MAX);
        }
    }

    /// The life in which a node was last seen; this node's own.
    pub(crate) fn known_life(&self, me: usize, other: usize) -> Option<Incarnation> {
        self.with(|world| {
            if me == other {
                return Some(Incarnation(world.nodes[me].life));
            }
            world.process(me).peers[&other].reach.incarnation()
        })
    }
}

/// The node that did not answer, if that is why a home could not say that all is done.
fn silent_node(world: &World, answer: &KeyResult<HomeAnswer>) -> Option<usize> {
    let error = answer.as_ref().err()?;
    let node = error.node.filter(|_| error.code == ErrorCode::Unavailable)?;
    Some(world.index_of(node))
}

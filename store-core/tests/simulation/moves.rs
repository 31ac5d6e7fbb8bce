//! Moves: a holder hands an object over to another node and lets its own go then. In a drain it does so with all that it holds.

use crate::executor::Slot;
use crate::message::{Ask, ReserveAsk, Tell};
use crate::world::Sim;
use rand::RngExt;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{KeyHash, SessionId};
use tenon_protocol::member::{HomeEntry, HomeEventKind};
use tenon_protocol::message::KeyResult;
use tenon_store_core::objects::Owner;
use tenon_store_core::time::Time;

/// How long one move may take.
const MOVE_MS: u64 = 3_000;

/// The pause of a drain after it has tried to move everything.
const DRAIN_PAUSE_MS: u64 = 100;

impl Sim {
    /// At a tick: hands one object over, if the run is one in which nodes do.
    pub(crate) fn move_one(&self, me: usize) {
        let hash = self.with(|world| {
            let one_in = world.plan.variety.moves_one_in;
            if one_in == 0 || world.now >= world.plan.quiet_from || world.rng.random_range(0..one_in) > 0 {
                return None;
            }
            let key = world.rng.random_range(0..world.keys.len());
            Some(world.keys[key].hash)
        });
        if let Some(hash) = hash {
            let sim = self.clone();
            self.spawn(Some(me), async move { sim.hand_over(me, hash).await });
        }
    }

    /// Moves everything away, and takes nothing new, until the drain is over.
    pub(crate) fn begin_drain(&self, me: usize) {
        let begins = self.with(|world| {
            let process = world.nodes[me].process.as_mut()?;
            process.is_draining = true;
            Some(())
        });
        if begins.is_some() {
            let sim = self.clone();
            self.spawn(Some(me), async move {
                while sim.with(|world| world.process(me).is_draining) {
                    sim.move_all(me).await;
                    sim.sleep(me, DRAIN_PAUSE_MS).await;
                }
            });
        }
    }

    pub(crate) fn end_drain(&self, me: usize) {
        self.with(|world| {
            if let Some(process) = &mut world.nodes[me].process {
                process.is_draining = false;
            }
        });
    }

    async fn move_all(&self, me: usize) {
        let hashes: Vec<KeyHash> = self.with(|world| world.keys.iter().map(|key| key.hash).collect());
        let mut moved = Vec::new();
        for hash in hashes {
            let (sim, done) = (self.clone(), Slot::new());
            moved.push(done.clone());
            self.spawn(Some(me), async move {
                sim.hand_over(me, hash).await;
                done.fill(());
            });
        }
        for done in moved {
            done.await;
        }
    }

    /// Has another node take an object over, and lets the own one go then.
    async fn hand_over(&self, me: usize, hash: KeyHash) {
        let Some(entry) = self.movable(me, hash) else { return };
        if !self.with(|world| world.process(me).moving.insert(hash)) {
            return;
        }
        let key = self.key_of(hash);
        let to = self.with(|world| {
            let nodes = world.nodes.len();
            (me + world.rng.random_range(1..nodes)) % nodes
        });
        let deadline = self.clock(me).after_ms(MOVE_MS);
        let ask = Ask::Take {
            key,
            entry: entry.clone(),
        };
        let taken = match self.call(me, to, ask, deadline).await {
            Ok(Tell::Copied(taken)) => taken,
            Ok(other) => unreachable!("a move is answered by {other:?}"),
            Err(error) => Err(error),
        };
        self.tell(|| format!("{me} had {to} take {} over: {taken:?}", entry.version));
        if taken.is_ok() && self.movable(me, hash).as_ref() == Some(&entry) {
            self.let_go(me, key, &entry);
        }
        self.with(|world| world.process(me).moving.remove(&hash));
    }

    /// What is held of a key, unless its homes are just being told of it.
    fn movable(&self, me: usize, hash: KeyHash) -> Option<HomeEntry> {
        self.with(|world| {
            let process = world.process(me);
            let held = process.holder.held(hash)?;
            (!process.reporting.contains(&held.version.put_id)).then_some(held)
        })
    }

    /// The object goes, and the homes are told as of an eviction.
    fn let_go(&self, me: usize, key: usize, entry: &HomeEntry) {
        let (version, generation) = (entry.version, entry.replicas[0].generation);
        self.with(|world| {
            let (now, at) = (world.clock(me), world.now);
            let hash = world.keys[key].hash;
            let process = world.process(me);
            assert!(process.holder.remove(now, hash, version), "it was just seen");
            process.settle();
            world.model.moved(me, generation, at);
        });
        let holder = self.id(me);
        let report = HomeEventKind::Evicted {
            version,
            holder,
            generation,
        };
        self.tell_of_one(me, key, report);
    }

    /// Takes an object over from the node that holds it: reads it, and commits a copy.
    pub(crate) async fn take_over(
        &self,
        me: usize,
        from: usize,
        key: usize,
        entry: HomeEntry,
        deadline: Time,
    ) -> KeyResult<()> {
        let (version, replica) = (entry.version, entry.replicas[0]);
        let ask = Ask::Read {
            replica,
            len_bytes: entry.len_bytes,
        };
        let Tell::Read(seen) = self.call(me, from, ask, deadline).await? else {
            unreachable!("a read is answered as one");
        };
        let is_there = seen.is_some_and(|seen| {
            let is_here = (seen.incarnation, seen.generation) == (replica.incarnation, replica.generation);
            is_here && seen.bytes == version.put_id
        });
        if !is_there {
            return Err(ServiceError::new(ErrorCode::Conflict, "it is gone"));
        }
        let session = SessionId::from_bytes(self.with(|world| world.rng.random()));
        let coordinator = self.id(me);
        let ask = ReserveAsk {
            put_id: version.put_id,
            key,
            owner: Owner { coordinator, session },
            replace: false,
        };
        let region = self.reserve(me, ask)?;
        let takes_ms = self.with(|world| world.rng.random_range(0..20));
        // If it lies here already, the commit tells.
        self.write(me, region, version.put_id, takes_ms).await;
        self.commit_copy(me, key, version, deadline).await
    }
}

//! Moves: what lies in a draining segment goes once another node has said that it has it where nothing drains.

use crate::executor::Slot;
use crate::message::{Ask, ReserveAsk, Tell};
use crate::plan::Drain;
use crate::replaced;
use crate::world::Sim;
use rand::RngExt;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Generation, KeyHash, NodeId, SegmentId, SessionId, Version};
use tenon_protocol::member::{HolderAnswer, HolderQuestion, HolderQuestionKind, HomeEntry, MemberReply, MemberRequest};
use tenon_protocol::message::{KeyResult, Replica};
use tenon_store_core::objects::{Movable, Owner};
use tenon_store_core::time::Time;

/// How long one move may take.
const MOVE_MS: u64 = 3_000;

/// The pause of a drain after it has tried to move everything.
const DRAIN_PAUSE_MS: u64 = 100;

/// How long a segment drains in whose place another one was taken into use.
const RENEWAL_MS_MAX: u64 = 3_000;

impl Sim {
    /// At a tick: takes another segment into use and drains the one before, if the run is one in which nodes do.
    pub(crate) fn renew(&self, me: usize) {
        let begins = self.with(|world| {
            let one_in = world.plan.variety.renewals_one_in;
            if one_in == 0 || world.now >= world.plan.quiet_from || world.rng.random_range(0..one_in) > 0 {
                return None;
            }
            let lasts_ms = world.rng.random_range(0..RENEWAL_MS_MAX);
            let process = world.process(me);
            if !process.leaving.is_empty() {
                return None;
            }
            let begins = process.drain();
            process.mount();
            Some((begins, lasts_ms))
        });
        if let Some((begins, lasts_ms)) = begins {
            self.begin_leaving(me, begins, lasts_ms);
        }
    }

    /// The node takes nothing new, and moves everything away, until the drain is over.
    pub(crate) fn begin_drain(&self, drain: Drain) {
        let begins = self.with(|world| {
            let process = world.nodes[drain.node].process.as_mut()?;
            process.is_draining = true;
            Some(process.drain())
        });
        if let Some(begins) = begins {
            self.begin_leaving(drain.node, begins, drain.until - drain.from);
        }
    }

    pub(crate) fn end_drain(&self, me: usize) {
        self.with(|world| {
            if let Some(process) = world.nodes[me].process.as_mut().filter(|process| process.is_draining) {
                process.is_draining = false;
                process.mount();
            }
        });
    }

    fn begin_leaving(&self, me: usize, segments: Vec<SegmentId>, lasts_ms: u64) {
        self.tell(|| format!("{me} drains {segments:?} for {lasts_ms} ms"));
        let until = self.clock(me).after_ms(lasts_ms);
        for segment in segments {
            let sim = self.clone();
            self.spawn(Some(me), async move { sim.leave(me, segment, until).await });
        }
    }

    /// Moves what a segment holds, again and again; drops what is left when its time is over, and unmounts it.
    async fn leave(&self, me: usize, segment: SegmentId, until: Time) {
        while self.clock(me) < until {
            self.move_all(me, segment).await;
            self.sleep(me, DRAIN_PAUSE_MS).await;
        }
        loop {
            let dropped = self.with(|world| {
                let now = world.clock(me);
                let process = world.process(me);
                let mut from_bytes = Some(0);
                while let Some(from) = from_bytes {
                    from_bytes = process.holder.drop_some(now, segment, from).next_bytes;
                }
                process.settle();
                process.holder.take_evicted()
            });
            self.tell_of(me, dropped);
            if self.with(|world| world.process(me).unmount(segment)) {
                return;
            }
            self.sleep(me, DRAIN_PAUSE_MS).await;
        }
    }

    async fn move_all(&self, me: usize, segment: SegmentId) {
        let listed = self.with(|world| {
            let now = world.clock(me);
            world.process(me).holder.movable(now, segment, 0, usize::MAX)
        });
        let mut moved = Vec::new();
        for object in listed.into_iter().flat_map(|(listed, _)| listed) {
            let (sim, done) = (self.clone(), Slot::new());
            moved.push(done.clone());
            self.spawn(Some(me), async move {
                sim.move_object(me, object).await;
                done.fill(());
            });
        }
        for done in moved {
            done.await;
        }
    }

    /// Lets an object go that another node has, or has one take it over first.
    async fn move_object(&self, me: usize, object: Movable) {
        let key = self.key_of(object.key_hash);
        let deadline = self.clock(me).after_ms(MOVE_MS);
        let Ok(found) = self.find_at(me, key, false, deadline).await else {
            return;
        };
        let asked_at = self.with(|world| world.now);
        let id = self.id(me);
        for replica in others_of(id, &object, found) {
            let stays = self.stays_at(me, replica.holder, (object.key_hash, object.version), deadline);
            if stays.await == Some(replica.generation) {
                return self.let_go(me, &object, asked_at);
            }
        }
        let held = self.with(|world| world.process(me).holder.held(object.key_hash));
        let Some(entry) = held.filter(|held| held.replicas[0].generation == object.region.generation) else {
            return;
        };
        let to = self.with(|world| {
            let nodes = world.nodes.len();
            (me + world.rng.random_range(1..nodes)) % nodes
        });
        let taken = match self.call(me, to, Ask::Take { key, entry }, deadline).await {
            Ok(Tell::Copied(taken)) => taken,
            Ok(other) => unreachable!("a move is answered by {other:?}"),
            Err(error) => Err(error),
        };
        self.tell(|| format!("{me} had {to} take {} over: {taken:?}", object.version));
        let asked_at = self.with(|world| world.now);
        let to = self.id(to);
        let asked = (object.key_hash, object.version);
        if taken.is_ok() && self.stays_at(me, to, asked, deadline).await.is_some() {
            self.let_go(me, &object, asked_at);
        }
    }

    /// The region in which a node has an object, if it keeps it whoever else lets go. No answer is none.
    pub(crate) async fn stays_at(
        &self,
        me: usize,
        node: NodeId,
        (key_hash, version): (KeyHash, Version),
        deadline: Time,
    ) -> Option<Generation> {
        let question = HolderQuestion {
            key_hash,
            version,
            kind: HolderQuestionKind::Stay,
        };
        let answer = if node == self.id(me) {
            self.answer_as_holder(me, &question).ok()
        } else {
            let reply = self.ask_member(me, node, MemberRequest::Holder(vec![question]), deadline);
            match reply.await {
                Ok(MemberReply::Holder(mut answers)) => answers.pop()?.ok(),
                _ => None,
            }
        };
        match answer {
            Some(HolderAnswer::Stays { generation }) => generation,
            _ => None,
        }
    }

    /// The object goes by the word of another holder, which was asked since then; the homes are told as of an eviction.
    fn let_go(&self, me: usize, object: &Movable, asked_at: u64) {
        let evicted = self.with(|world| {
            let now = world.clock(me);
            let process = world.process(me);
            process.holder.moved(now, object.region);
            process.holder.take_evicted()
        });
        for evicted in &evicted {
            self.with(|world| replaced::let_go(world, me, evicted.generation, asked_at));
        }
        self.tell_of(me, evicted);
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

/// The replicas of an object at other nodes, if a home knows them beside the own one.
fn others_of(me: NodeId, object: &Movable, found: Option<HomeEntry>) -> Vec<Replica> {
    let entry = found.filter(|entry| entry.version == object.version);
    let (own, others): (Vec<Replica>, Vec<Replica>) = entry
        .into_iter()
        .flat_map(|entry| entry.replicas)
        .partition(|replica| replica.holder == me);
    let is_known = own.iter().any(|own| own.generation == object.region.generation);
    if is_known { others } else { Vec::new() }
}

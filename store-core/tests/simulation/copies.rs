//! Copies: further replicas of objects that another holder has committed.

use crate::executor::Slot;
use crate::holder::Begun;
use crate::message::{Ask, Tell};
use crate::replaced;
use crate::world::Sim;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{PutId, Version};
use tenon_protocol::member::HomeEventKind;
use tenon_protocol::message::{Committed, KeyResult, PutOutcome};
use tenon_store_core::time::Time;

impl Sim {
    /// Has the further holders of a put commit copies of what the first has stored, and has still.
    pub(crate) async fn commit_further(
        &self,
        me: usize,
        (first, further): (usize, Vec<usize>),
        put_id: PutId,
        key: usize,
        known: &Committed,
        deadline: Time,
    ) {
        if further.is_empty() || known.outcome != PutOutcome::Stored || known.version.put_id != put_id {
            return;
        }
        let version = known.version;
        let hash = self.with(|world| world.keys[key].hash);
        let first = self.id(first);
        if self.stays_at(me, first, (hash, version), deadline).await.is_none() {
            // It may be evicted since, and does not come back.
            return;
        }
        let mut copied = Vec::new();
        for holder in further {
            let (sim, done) = (self.clone(), Slot::new());
            copied.push(done.clone());
            self.spawn(Some(me), async move {
                let result = match holder == me {
                    true => sim.commit_copy(me, key, version, deadline).await,
                    false => match sim.call(me, holder, Ask::Copy { key, version }, deadline).await {
                        Ok(Tell::Copied(result)) => result,
                        Ok(other) => unreachable!("a copy is answered by {other:?}"),
                        Err(error) => Err(error),
                    },
                };
                sim.tell(|| format!("{me} had {holder} copy {version}: {result:?}"));
                done.fill(());
            });
        }
        for done in copied {
            done.await;
        }
    }

    /// Commits a copy whose bytes lie here, and tells the homes. It is done once a home has taken it; the other one is told until it has.
    pub(crate) async fn commit_copy(&self, me: usize, key: usize, version: Version, deadline: Time) -> KeyResult<()> {
        self.seal_copy(me, key, version, deadline).await?;
        self.tell_of_copy(me, key, version, deadline).await
    }

    async fn seal_copy(&self, me: usize, key: usize, version: Version, deadline: Time) -> KeyResult<()> {
        match self.begin_commit(me, version.put_id, key, deadline).await? {
            Begun::Verified(verified) => {
                let is_sealed = self.with(|world| {
                    let (now, at) = (world.clock(me), world.now);
                    let process = world.process(me);
                    let is_sealed = process.holder.seal_copy(now, verified, version.epoch, at);
                    process.settle();
                    process.wake_commits();
                    is_sealed
                });
                if !is_sealed {
                    return Err(superseded(version));
                }
                self.note_sealed(me, key, version);
                self.tell(|| format!("{me} sealed a copy of {version} for key {key}"));
                Ok(())
            }
            Begun::Done(known) if known.version == version => Ok(()),
            Begun::Done(_) => Err(superseded(version)),
            Begun::Sealed(unreported) => {
                let error = ServiceError::new(ErrorCode::Overloaded, "the put itself has no answer yet");
                self.with(|world| {
                    let now = world.clock(me);
                    let process = world.process(me);
                    let _ = process.holder.reported(now, unreported, Err(error.clone()));
                    process.wake_commits();
                });
                Err(error)
            }
        }
    }

    async fn tell_of_copy(&self, me: usize, key: usize, version: Version, deadline: Time) -> KeyResult<()> {
        let hash = self.with(|world| world.keys[key].hash);
        let held = self.with(|world| world.process(me).holder.held(hash));
        let Some(entry) = held.filter(|entry| entry.version == version) else {
            return Err(superseded(version));
        };
        let generation = entry.replicas[0].generation;
        let homes = self.with(|world| world.keys[key].home_nodes.clone());
        let mut asked = Vec::new();
        for home in homes {
            let (sim, home, answer) = (self.clone(), self.id(home), Slot::new());
            asked.push(answer.clone());
            let event = self.home_event(key, HomeEventKind::Publish(entry.clone()));
            self.spawn(Some(me), async move {
                answer.fill(sim.ask_home(me, home, event, deadline).await.map(drop));
            });
        }
        let mut answers: Vec<KeyResult<()>> = Vec::new();
        for answer in asked {
            answers.push(answer.await);
        }
        self.tell(|| format!("{me} told the homes of its copy of {version}: {answers:?}"));
        let is_known_to_all = answers.iter().all(Result::is_ok);
        if !is_known_to_all {
            self.publish(me, key);
        }
        let is_known = answers.iter().any(Result::is_ok);
        if is_known {
            self.with(|world| replaced::copied(world, me, generation, !is_known_to_all));
            return Ok(());
        }
        answers.pop().expect("a key has a home")
    }
}

fn superseded(version: Version) -> ServiceError {
    let message = format!("version {version} is not the key's object any more, or was not asked for here");
    ServiceError::new(ErrorCode::Conflict, message)
}

//! Eviction: now and then a node lets go of all that may go, and tells the homes of it.

use crate::world::Sim;
use rand::RngExt;
use tenon_protocol::ids::KeyHash;
use tenon_protocol::member::HomeEventKind;
use tenon_store_core::objects::{EvictReason, Evicted, Watermarks};

/// Eviction begins with the first byte and ends with the last one.
pub(crate) const WATERMARKS: Watermarks = Watermarks {
    from_percent: 1,
    to_percent: 0,
};

/// A node evicts at one tick in so many, half of them.
const EVICTS_ONE_IN: u32 = 40;

/// How long one attempt to tell of an eviction takes, and the pause before the next one.
const REPORT_MS: u64 = 2_000;
const REPORT_PAUSE_MS: u64 = 250;

impl Sim {
    /// At a tick: lets objects go, if the run is one in which they do.
    pub(crate) fn evict(&self, me: usize) {
        let evicted = self.with(|world| {
            let is_time = world.plan.evicts && world.rng.random_range(0..EVICTS_ONE_IN) == 0;
            if !is_time || world.now >= world.plan.quiet_from {
                return Vec::new();
            }
            let now = world.clock(me);
            let process = world.process(me);
            // The second time those go that were read before the first time.
            process.holder.evict_some(now);
            process.holder.evict_some(now);
            process.holder.take_evicted()
        });
        self.tell_of(me, evicted);
    }

    /// Objects have gone here: the model knows, and the homes are told.
    pub(crate) fn tell_of(&self, me: usize, evicted: Vec<Evicted>) {
        for evicted in evicted {
            self.tell(|| format!("{me} evicted {} of {:?}", evicted.version, evicted.key_hash));
            self.with(|world| {
                let now = world.now;
                match evicted.reason {
                    EvictReason::Moved => world.model.moved(me, evicted.generation, now),
                    _ => world.model.evicted(me, evicted.generation, now),
                }
            });
            let key = self.key_of(evicted.key_hash);
            self.tell_of_one(me, key, evicted.report(self.id(me)));
        }
    }

    /// Has the homes told of one object.
    pub(crate) fn tell_of_one(&self, me: usize, key: usize, report: HomeEventKind) {
        self.with(|world| world.process(me).untold_evictions += 1);
        let sim = self.clone();
        self.spawn(Some(me), async move { sim.report_eviction(me, key, report).await });
    }

    /// Tells the homes of one object until they have taken it.
    async fn report_eviction(self, me: usize, key: usize, report: HomeEventKind) {
        loop {
            let deadline = self.clock(me).after_ms(REPORT_MS);
            if self.decide(me, key, report.clone(), deadline).await.is_ok() {
                break;
            }
            self.sleep(me, REPORT_PAUSE_MS).await;
        }
        self.with(|world| world.process(me).untold_evictions -= 1);
    }

    pub(crate) fn key_of(&self, hash: KeyHash) -> usize {
        self.with(|world| world.keys.iter().position(|key| key.hash == hash))
            .expect("objects have one of the keys")
    }
}

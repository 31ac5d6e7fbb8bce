//! One run from its seed to its verdict.

use crate::client::Until;
use crate::executor::{Slot, Tasks};
use crate::message::{Packet, Party};
use crate::model::{Counts, Read};
use crate::plan::{Plan, QUIET_MS};
use crate::seeds::Seed;
use crate::settled;
use crate::world::{Event, Sim, World};

/// How long the last gets may take.
const LAST_GETS_MS: u64 = 5_000;

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) plan: Plan,
    /// The promise that was broken.
    pub(crate) violation: Option<String>,
    /// Stands for everything that happened.
    pub(crate) digest: u64,
    /// The last lines of the trace, if they were wanted.
    pub(crate) lines: Vec<String>,
    pub(crate) counts: Counts,
}

struct Run {
    sim: Sim,
    tasks: Tasks,
}

/// Runs a seed. `is_told`: the trace is wanted.
pub(crate) fn run(seed: Seed, is_told: bool) -> Outcome {
    let mut run = Run {
        sim: Sim::new(seed, is_told),
        tasks: Tasks::default(),
    };
    let verdict = run.all();
    run.sim.with(|world| Outcome {
        plan: world.plan.clone(),
        violation: verdict.err(),
        digest: world.trace.digest(),
        lines: world.trace.lines().cloned().collect(),
        counts: world.model.counts,
    })
}

impl Run {
    fn all(&mut self) -> Result<(), String> {
        let sim = self.sim.clone();
        let (nodes, keys, clients) = sim.with(|world| (world.plan.nodes, world.plan.keys, world.plan.clients));
        sim.with(|world| {
            for fault in world.plan.faults.clone() {
                world.schedule(fault.from, Event::Begin(fault.clone()));
                world.schedule(fault.until, Event::End(fault));
            }
            for drain in world.plan.variety.drains.clone() {
                world.schedule(drain.from, Event::Drain(drain));
                world.schedule(drain.until, Event::Drained(drain));
            }
        });
        sim.with(World::tell_names);
        (0..nodes).for_each(|node| sim.start(node));
        for _ in 0..clients {
            sim.spawn(None, sim.clone().be_client());
        }
        sim.spawn(None, sim.clone().be_late_client());
        let quiet_until = sim.with(|world| world.plan.quiet_from) + QUIET_MS;
        self.go_on(quiet_until)?;
        let mut reads = Vec::new();
        for key in 0..keys {
            reads.push(self.last_gets(key, nodes)?);
        }
        sim.with(settled::check_rest)?;
        sim.with(settled::check_objects)?;
        for (key, reads) in reads.iter().enumerate() {
            sim.with(|world| settled::check_reads(world, key, reads))?;
        }
        Ok(())
    }

    /// Lets readers on all nodes get a key.
    fn last_gets(&mut self, key: usize, nodes: usize) -> Result<Vec<Read>, String> {
        let until = Until(self.sim.with(|world| world.now) + LAST_GETS_MS);
        let found: Vec<Slot<Read>> = (0..nodes).map(|_| Slot::new()).collect();
        for (node, slot) in found.iter().enumerate() {
            let (sim, slot) = (self.sim.clone(), slot.clone());
            self.sim
                .spawn(None, async move { slot.fill(sim.get(node, key, until).await) });
        }
        self.go_on(until.0 + 1)?;
        Ok(found
            .into_iter()
            .map(|slot| slot.take().unwrap_or(Read::Failed))
            .collect())
    }

    /// Lets everything happen that is due by a time.
    fn go_on(&mut self, until: u64) -> Result<(), String> {
        loop {
            self.run_tasks();
            if let Some(violation) = self.sim.with(|world| world.model.violation.clone()) {
                return Err(violation);
            }
            match self.sim.with(|world| world.next_event(until)) {
                Some(event) => self.happen(event),
                None => return Ok(()),
            }
        }
    }

    fn run_tasks(&mut self) {
        loop {
            let spawned = self.sim.with(|world| std::mem::take(&mut world.spawned));
            for (owner, work) in spawned {
                self.tasks.spawn(owner, work);
            }
            if !self.tasks.run_one() && self.sim.with(|world| world.spawned.is_empty()) {
                return;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(node) = for_process(&event) {
            let is_kept = self.sim.with(|world| keep_for_later(world, node, &event));
            if is_kept {
                return;
            }
        }
        match event {
            Event::Deliver(packet) => self.sim.deliver(packet),
            Event::Wake { node } => self.sim.wake(node),
            Event::Broke { at, peer, life } => self.sim.notice_death(at, peer, life),
            Event::Begin(fault) => self.sim.begin_fault(&mut self.tasks, &fault),
            Event::End(fault) => self.sim.end_fault(&fault),
            Event::Drain(drain) => self.sim.begin_drain(drain),
            Event::Drained(drain) => self.sim.end_drain(drain.node),
            Event::Alarm(alarm) => self.sim.with(|world| world.ring(alarm)),
        }
    }
}

/// The process that takes an event in.
fn for_process(event: &Event) -> Option<usize> {
    match event {
        Event::Deliver(Packet {
            to: Party::Node(node), ..
        })
        | Event::Wake { node }
        | Event::Broke {
            at: Party::Node(node), ..
        } => Some(*node),
        _ => None,
    }
}

/// A process that hangs takes in what has come when it goes on.
fn keep_for_later(world: &mut World, node: usize, event: &Event) -> bool {
    let node = &mut world.nodes[node];
    if node.is_hung && !matches!(event, Event::Wake { .. }) {
        node.queued.push(event.clone());
    }
    node.is_hung
}

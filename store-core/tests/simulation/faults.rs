//! Faults as they begin and end, and the lives of processes.

use crate::executor::Tasks;
use crate::message::{Body, Packet, Party};
use crate::node::{Process, Timer};
use crate::plan::{Fault, What};
use crate::world::{Event, Sim, TICK_MS, World};
use rand::RngExt;
use rand::seq::SliceRandom;
use tenon_protocol::ids::Incarnation;
use tenon_store_core::directory;

impl World {
    /// Changes the links of a fault: `begins`, or ends.
    fn change_links(&mut self, what: &What, begins: bool) {
        let nodes = self.nodes.len();
        let mut cut = |from: usize, to: usize| {
            let cuts = &mut self.network.link(from, to).cuts;
            *cuts = if begins { *cuts + 1 } else { *cuts - 1 };
        };
        match *what {
            What::Split { ref side } => {
                for from in 0..nodes {
                    for to in (0..nodes).filter(|&to| side[to] != side[from]) {
                        cut(from, to);
                    }
                }
            }
            What::Cut { from, to, both } => {
                cut(from, to);
                if both {
                    cut(to, from);
                }
            }
            What::Loss { from, to, permille } => {
                for (from, to) in [(from, to), (to, from)] {
                    self.network.link(from, to).lost_permille = if begins { permille } else { 0 };
                }
            }
            What::Slow { from, to, delay_ms } => {
                for (from, to) in [(from, to), (to, from)] {
                    self.network.link(from, to).delay_ms = if begins { delay_ms } else { 0 };
                }
            }
            What::Crash { .. } | What::Hang { .. } | What::Jump { .. } => {}
        }
    }

    /// Everybody who can notice that a process is gone will.
    fn tell_of_death(&mut self, node: usize) {
        let life = self.nodes[node].life;
        for other in 0..self.nodes.len() {
            for at in [Party::Node(other), Party::Client(other)] {
                if at == Party::Node(node) {
                    continue;
                }
                let in_ms = if other == node {
                    Some(0)
                } else {
                    self.network.news(&mut self.rng, node, other)
                };
                if let Some(in_ms) = in_ms {
                    self.schedule(in_ms, Event::Broke { at, peer: node, life });
                }
            }
        }
    }
}

impl Sim {
    pub(crate) fn begin_fault(&self, tasks: &mut Tasks, fault: &Fault) {
        self.tell(|| format!("FAULT begins: {:?} until {}", fault.what, fault.until));
        self.with(|world| world.change_links(&fault.what, true));
        match fault.what {
            What::Crash { node, is_host_up } => self.crash(tasks, node, is_host_up),
            What::Hang { node } => self.with(|world| {
                world.nodes[node].is_hung |= world.nodes[node].process.is_some();
            }),
            What::Jump { node, ms } => self.with(|world| {
                world.nodes[node].ahead_ms += ms;
                world.nodes[node].runs_since = world.clock(node);
                world.schedule(0, Event::Wake { node });
            }),
            _ => {}
        }
    }

    pub(crate) fn end_fault(&self, fault: &Fault) {
        self.tell(|| format!("FAULT ends: {:?}", fault.what));
        self.with(|world| world.change_links(&fault.what, false));
        match fault.what {
            What::Crash { node, .. } => self.start(node),
            What::Hang { node } => self.resume(node),
            _ => {}
        }
        // What goes wrong often goes wrong right after.
        self.spawn(None, self.clone().be_hasty_client());
    }

    /// A process begins its life, with nothing.
    pub(crate) fn start(&self, node: usize) {
        let begins = self.with(|world| {
            if world.nodes[node].process.is_some() {
                return false;
            }
            let steps = world.rng.random_range(1..=1_000);
            world.nodes[node].life += steps;
            let (id, life) = (world.nodes[node].id, world.nodes[node].life);
            let others = (0..world.nodes.len()).filter(|&other| other != node);
            let process = Process::new(id, life, others);
            world.nodes[node].process = Some(process);
            world.nodes[node].is_host_up = true;
            world.nodes[node].runs_since = world.clock(node);
            let soon = world.clock(node).after_ms(world.rng.random_range(0..TICK_MS));
            world.set_timer(node, soon, Timer::Tick);
            true
        });
        if begins {
            let (members, id, life) = self.with(|world| {
                let node = &world.nodes[node];
                (world.view.members().to_vec(), node.id, node.life)
            });
            let own_life = directory::Event::Life {
                node: id,
                incarnation: Incarnation(life),
            };
            self.tell_homes(node, [own_life, directory::Event::View { members }]);
        }
    }

    fn crash(&self, tasks: &mut Tasks, node: usize, is_host_up: bool) {
        tasks.kill(node);
        let process = self.with(|world| {
            let process = world.nodes[node].process.take();
            if process.is_some() {
                world.nodes[node].is_host_up = is_host_up;
                world.nodes[node].is_hung = false;
                let queued = std::mem::take(&mut world.nodes[node].queued);
                if is_host_up {
                    world.tell_of_death(node);
                    for event in queued {
                        if let Event::Deliver(packet) = event {
                            world.bounce(&packet);
                        }
                    }
                }
                let spawned = std::mem::take(&mut world.spawned);
                world.spawned = spawned.into_iter().filter(|(owner, _)| *owner != Some(node)).collect();
            }
            process
        });
        drop(process);
    }

    fn resume(&self, node: usize) {
        self.with(|world| {
            if !world.nodes[node].is_hung {
                return;
            }
            world.nodes[node].is_hung = false;
            world.nodes[node].runs_since = world.clock(node);
            let mut queued = std::mem::take(&mut world.nodes[node].queued);
            queued.push(Event::Wake { node });
            // Its threads go on in any order.
            if world.rng.random() {
                queued.shuffle(&mut world.rng);
            }
            for event in queued {
                world.schedule(0, event);
            }
        });
    }

    /// An event that is for a process, which runs.
    pub(crate) fn deliver(&self, packet: Packet) {
        match packet.to {
            Party::Client(_) => {
                let open = self.with(|world| world.client_calls.remove(&packet.call));
                if let (Some((_, _, answer)), Body::Tell(tell)) = (open, packet.body) {
                    answer.fill(Ok(tell));
                }
            }
            Party::Node(node) => {
                let is_connected = self.with(|world| {
                    let is_connected = world.nodes[node].is_connected(&packet);
                    if !is_connected {
                        world.bounce(&packet);
                    }
                    is_connected
                });
                if is_connected {
                    self.arrived(node, packet);
                }
            }
        }
    }

    /// The process of `peer` in a life is gone, and `at` notices.
    pub(crate) fn notice_death(&self, at: Party, peer: usize, life: u64) {
        match at {
            Party::Client(_) => self.with(|world| world.client_broke(peer, life)),
            Party::Node(node) if self.with(|world| world.nodes[node].process.is_some()) => self.broke(node, peer, life),
            Party::Node(_) => {}
        }
    }

    /// Does what is due on a process's clock.
    pub(crate) fn wake(&self, node: usize) {
        loop {
            let timer = self.with(|world| {
                let now = world.clock(node);
                let timers = &mut world.nodes[node].process.as_mut()?.timers;
                let first = timers.first_entry().filter(|first| first.key().0 <= now)?;
                Some(first.remove())
            });
            match timer {
                None => return,
                Some(Timer::Ring(ring)) => ring(),
                Some(Timer::Probe(other)) => self.probe(node, other),
                Some(Timer::Tick) => self.tick(node),
            }
        }
    }

    fn tick(&self, node: usize) {
        let others: Vec<usize> = self.with(|world| {
            let now = world.clock(node);
            let process = world.process(node);
            process.holder.expire(now);
            process.settle();
            let others = process.peers.keys().copied().collect();
            world.set_timer(node, now.after_ms(TICK_MS), Timer::Tick);
            others
        });
        self.tell_homes(node, [directory::Event::Tick]);
        self.evict(node);
        self.renew(node);
        for other in others {
            self.probe(node, other);
        }
    }
}

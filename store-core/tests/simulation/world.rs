//! Everything there is in a run: time, events, hosts, links, and what has happened.

use crate::executor::{Owner, Slot, Work};
use crate::message::{Answered, Ask, Body, NoAnswer, Packet, Party, Tell};
use crate::model::Model;
use crate::network::Network;
use crate::node::{Node, Process, Timer};
use crate::plan::{Drain, Fault, Plan};
use crate::seeds::Seed;
use crate::trace::Trace;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use tenon_protocol::ids::{ClusterId, KeyHash, NodeId};
use tenon_protocol::member::{Homes, MemberReply, MemberRequest};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_store_core::membership::{View, ViewSource};
use tenon_store_core::time::Time;

pub(crate) const CLUSTER: ClusterId = ClusterId::from_bytes([7; 16]);

/// How often a process looks at the time. Its clock is told in ms since its host began.
pub(crate) const TICK_MS: u64 = 50;

/// The clocks of hosts do not begin at 0.
const CLOCK_BEGINS_MS: u64 = 10_000;

/// The first life of a node.
const FIRST_LIFE: u64 = 1_000;

/// A key, and what follows from its name.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: ObjectName,
    pub(crate) hash: KeyHash,
    pub(crate) homes: Homes,
    /// The same as indices of nodes.
    pub(crate) home_nodes: Vec<usize>,
}

/// What is to happen at a time.
#[derive(Clone)]
pub(crate) enum Event {
    /// A packet arrives.
    Deliver(Packet),
    /// A process's next timer may be due.
    Wake { node: usize },
    /// `at` notices that the process of `peer` in this life is gone.
    Broke { at: Party, peer: usize, life: u64 },
    /// A fault of the plan begins.
    Begin(Fault),
    /// A fault ends.
    End(Fault),
    /// A node is to be drained.
    Drain(Drain),
    /// That is over.
    Drained(Drain),
    /// A client's time is over.
    Alarm(u64),
}

/// See the module.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: u64,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) keys: Vec<Key>,
    pub(crate) view: View,
    pub(crate) model: Model,
    pub(crate) trace: Trace,
    events: BTreeMap<(u64, u64), Event>,
    last: u64,
    pub(crate) spawned: Vec<(Owner, Work)>,
    /// Calls of clients that are not answered yet: where they went, in which life, and who waits.
    pub(crate) client_calls: BTreeMap<u64, (usize, u64, Slot<Answered>)>,
    alarms: BTreeMap<u64, Box<dyn FnOnce()>>,
}

impl World {
    pub(crate) fn new(seed: Seed, is_told: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.number);
        let plan = Plan::draw(seed.profile, &mut rng);
        let ids: Vec<NodeId> = (0..plan.nodes).map(|_| NodeId::from_bytes(rng.random())).collect();
        let view = View::new(ViewSource::Static, 1, ids.clone()).unwrap();
        let namespace = Namespace::new(Namespace::DEFAULT).unwrap();
        let key = |index: usize| {
            let name = ObjectName::new(&namespace, &format!("key{index}-{}", plan.salt)).unwrap();
            let hash = name.hash(CLUSTER);
            let homes = view.homes(&namespace, hash);
            let index_of = |home: NodeId| ids.iter().position(|id| *id == home).unwrap();
            Key {
                name,
                hash,
                homes,
                home_nodes: [Some(homes.first), homes.second]
                    .into_iter()
                    .flatten()
                    .map(index_of)
                    .collect(),
            }
        };
        let keys = (0..plan.keys).map(key).collect();
        let mut network = Network::new(plan.nodes);
        network.repeated_permille = plan.repeated_permille;
        network.late_permille = plan.late_permille;
        let node = |id: &NodeId| Node {
            id: *id,
            life: FIRST_LIFE,
            ahead_ms: CLOCK_BEGINS_MS,
            process: None,
            is_host_up: true,
            is_hung: false,
            queued: Vec::new(),
            runs_since: Time::ZERO,
        };
        Self {
            nodes: ids.iter().map(node).collect(),
            model: Model::new(),
            plan,
            now: 0,
            rng,
            network,
            keys,
            view,
            trace: Trace::new(is_told),
            events: BTreeMap::new(),
            last: 0,
            spawned: Vec::new(),
            client_calls: BTreeMap::new(),
            alarms: BTreeMap::new(),
        }
    }

    /// The clock of a node's host.
    pub(crate) fn clock(&self, node: usize) -> Time {
        Time::from_ms(self.now + self.nodes[node].ahead_ms)
    }

    /// Says which node and which key has which id in what follows.
    pub(crate) fn tell_names(&mut self) {
        for (index, node) in self.nodes.iter().enumerate() {
            self.trace.tell(0, || format!("NODE {index} is {:?}", node.id));
        }
        for (index, key) in self.keys.iter().enumerate() {
            self.trace.tell(0, || {
                format!("KEY {index} is {:?}, its homes are {:?}", key.hash, key.home_nodes)
            });
        }
    }

    /// A number that was not used before in this run.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn schedule(&mut self, in_ms: u64, event: Event) {
        let at = (self.now + in_ms, self.next());
        self.events.insert(at, event);
    }

    /// Takes the next event that is due by `until`, and moves time on to it.
    pub(crate) fn next_event(&mut self, until: u64) -> Option<Event> {
        let entry = self.events.first_entry()?;
        if entry.key().0 > until {
            return None;
        }
        let ((at, number), event) = entry.remove_entry();
        self.now = at;
        self.trace.mix(at, number);
        Some(event)
    }

    /// The node with an id.
    pub(crate) fn index_of(&self, id: NodeId) -> usize {
        self.nodes.iter().position(|node| node.id == id).expect("a member")
    }

    /// The process of a node, which must be alive.
    pub(crate) fn process(&mut self, node: usize) -> &mut Process {
        self.nodes[node]
            .process
            .as_mut()
            .expect("only a live process does something")
    }

    /// Something is to happen at a time of a process's clock.
    pub(crate) fn set_timer(&mut self, node: usize, at: Time, timer: Timer) {
        let number = self.next();
        let in_ms = at.since_ms(self.clock(node));
        self.process(node).timers.insert((at, number), timer);
        self.schedule(in_ms, Event::Wake { node });
    }

    /// A client is to be told that its time is over.
    pub(crate) fn set_alarm(&mut self, in_ms: u64, ring: Box<dyn FnOnce()>) {
        let number = self.next();
        self.alarms.insert(number, ring);
        self.schedule(in_ms, Event::Alarm(number));
    }

    pub(crate) fn ring(&mut self, alarm: u64) {
        if let Some(ring) = self.alarms.remove(&alarm) {
            ring();
        }
    }

    /// Sends a packet.
    pub(crate) fn send(&mut self, packet: Packet) {
        let arrivals = self.network.arrivals(&mut self.rng, &packet);
        let now = self.now;
        if !is_heartbeat(&packet.body) {
            self.trace.tell(now, || format!("{} in {arrivals:?} ms", told(&packet)));
        }
        for in_ms in arrivals {
            self.schedule(in_ms, Event::Deliver(packet.clone()));
        }
    }

    /// A packet's connection leads to nobody: its sender learns so, unless it is an answer.
    pub(crate) fn bounce(&mut self, packet: &Packet) {
        let to = packet.to.host();
        let Body::Ask { .. } = packet.body else { return };
        if !self.nodes[to].is_host_up {
            return;
        }
        if let Some(in_ms) = self.network.news(&mut self.rng, to, packet.from.host()) {
            let (at, peer, life) = (packet.from, to, packet.to_life);
            self.schedule(in_ms, Event::Broke { at, peer, life });
        }
    }

    /// A client notices that the process of `peer` in this life is gone.
    pub(crate) fn client_broke(&mut self, peer: usize, life: u64) {
        let broken: Vec<u64> = self
            .client_calls
            .iter()
            .filter(|(_, (to, to_life, _))| (*to, *to_life) == (peer, life))
            .map(|(call, _)| *call)
            .collect();
        for call in broken {
            if let Some((_, _, answer)) = self.client_calls.remove(&call) {
                answer.fill(Err(NoAnswer::Broken));
            }
        }
    }
}

fn is_heartbeat(body: &Body) -> bool {
    matches!(
        body,
        Body::Ask {
            ask: Ask::Member(MemberRequest::Heartbeat(_)),
            ..
        } | Body::Tell(Tell::Member(MemberReply::Heartbeat(_)))
    )
}

fn told(packet: &Packet) -> String {
    let Packet {
        from,
        to,
        to_life,
        call,
        body,
        ..
    } = packet;
    format!("{from:?} -> {to:?}.{to_life} #{call} {body:?}")
}

/// What tasks share.
#[derive(Clone)]
pub(crate) struct Sim(pub(crate) Rc<RefCell<World>>);

impl Sim {
    pub(crate) fn new(seed: Seed, is_told: bool) -> Self {
        Self(Rc::new(RefCell::new(World::new(seed, is_told))))
    }

    /// Looks at, or changes, the world. Never across a wait.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut World) -> R) -> R {
        look(&mut self.0.borrow_mut())
    }

    pub(crate) fn spawn(&self, owner: Owner, work: impl Future<Output = ()> + 'static) {
        self.with(|world| world.spawned.push((owner, Box::pin(work))));
    }

    pub(crate) fn clock(&self, node: usize) -> Time {
        self.with(|world| world.clock(node))
    }

    /// Lets time pass on a process's clock.
    pub(crate) async fn sleep(&self, node: usize, ms: u64) {
        let bell = Slot::new();
        let ring = bell.clone();
        self.with(|world| {
            let at = world.clock(node).after_ms(ms);
            world.set_timer(node, at, Timer::Ring(Box::new(move || ring.fill(()))));
        });
        bell.await;
    }

    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        self.with(|world| {
            let now = world.now;
            world.trace.tell(now, line);
        });
    }
}

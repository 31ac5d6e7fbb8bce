//! Calls between members, and heartbeats: what is known of each member, and what homes are told of it.

use crate::executor::Slot;
use crate::message::{Answered, Ask, Body, NoAnswer, Packet, Party, Tell};
use crate::node::{OpenCall, Timer};
use crate::world::Sim;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::member::{Heartbeat, MemberReply, MemberRequest};
use tenon_protocol::message::NodeState;
use tenon_protocol::placement::FitHint;
use tenon_store_core::directory::Event;
use tenon_store_core::membership::{Life, ProbeFailure};
use tenon_store_core::time::Time;

/// How long a probe waits.
const PROBE_MS: u64 = 3_000;

impl Sim {
    /// One call to another member. It ends at once when the member becomes unreachable.
    pub(crate) async fn call(&self, from: usize, to: usize, ask: Ask, deadline: Time) -> Result<Tell, ServiceError> {
        let unavailable = |sim: &Self| ServiceError::unavailable(sim.id(to), "it was asked");
        if !self.with(|world| world.process(from).may_ask(to)) {
            return Err(unavailable(self));
        }
        match self.exchange(from, to, ask, deadline, false).await {
            Ok(tell) => Ok(tell),
            Err(NoAnswer::Broken) => {
                self.link_failed(from, to);
                Err(unavailable(self))
            }
            Err(NoAnswer::Late | NoAnswer::Unreachable) => Err(unavailable(self)),
        }
    }

    /// The same to whatever node, this one included.
    pub(crate) async fn ask_member(
        &self,
        from: usize,
        to: NodeId,
        request: MemberRequest,
        deadline: Time,
    ) -> Result<MemberReply, ServiceError> {
        let to = self.with(|world| world.index_of(to));
        match self.call(from, to, Ask::Member(request), deadline).await? {
            Tell::Member(reply) => Ok(reply),
            other => Err(ServiceError::new(ErrorCode::Internal, format!("{other:?}"))),
        }
    }

    fn exchange(&self, from: usize, to: usize, ask: Ask, deadline: Time, is_heartbeat: bool) -> Slot<Answered> {
        let answer = Slot::new();
        let late = answer.clone();
        self.with(|world| {
            let call = world.next();
            let to_life = world.nodes[to].life;
            let left_ms = deadline.since_ms(world.clock(from));
            let open = OpenCall {
                to,
                to_life,
                is_heartbeat,
                answer: answer.clone(),
            };
            world.process(from).calls.insert(call, open);
            world.set_timer(
                from,
                deadline,
                Timer::Ring(Box::new(move || late.fill(Err(NoAnswer::Late)))),
            );
            let from_life = world.nodes[from].life;
            world.send(Packet {
                from: Party::Node(from),
                from_life,
                to: Party::Node(to),
                to_life,
                call,
                body: Body::Ask { ask, left_ms },
            });
        });
        answer
    }

    pub(crate) fn id(&self, node: usize) -> NodeId {
        self.with(|world| world.nodes[node].id)
    }

    /// A call of this process was answered by a member in this life.
    pub(crate) fn call_answered(&self, me: usize, call: u64, life: u64, tell: Tell) {
        let open = self.with(|world| world.process(me).calls.remove(&call));
        let Some(OpenCall { to, answer, .. }) = open else {
            return;
        };
        let incarnation = Incarnation(life);
        let is_new = self.with(|world| {
            let peer = world.process(me).peers.get_mut(&to).expect("a member");
            peer.met.replace(incarnation) != Some(incarnation)
        });
        if is_new {
            let life = self.with(|world| {
                let now = world.clock(me);
                let peer = world.process(me).peers.get_mut(&to).expect("a member");
                peer.reach.seen(now, incarnation)
            });
            self.note(me, to, life, incarnation);
            self.probe_now(me, to);
        }
        answer.fill(Ok(tell));
    }

    /// The process of a member in this life is gone: what it was asked is not answered any more.
    pub(crate) fn broke(&self, me: usize, peer: usize, life: u64) {
        self.fail_calls(me, NoAnswer::Broken, |open| open.to == peer && open.to_life == life);
    }

    fn fail_calls(&self, me: usize, failure: NoAnswer, is_meant: impl Fn(&OpenCall) -> bool) {
        self.with(|world| {
            let calls = &mut world.process(me).calls;
            let failed: Vec<u64> = calls
                .iter()
                .filter(|(_, open)| is_meant(open))
                .map(|(call, _)| *call)
                .collect();
            for call in failed {
                if let Some(open) = calls.remove(&call) {
                    open.answer.fill(Err(failure));
                }
            }
        });
    }

    fn link_failed(&self, me: usize, other: usize) {
        self.with(|world| {
            let now = world.clock(me);
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            peer.reach.link_broke(now);
        });
        self.probe_now(me, other);
    }

    fn note(&self, me: usize, other: usize, life: Life, incarnation: Incarnation) {
        if matches!(life, Life::New { .. }) {
            let node = self.id(other);
            self.tell_homes(me, [Event::Life { node, incarnation }]);
        }
    }

    fn probe_now(&self, me: usize, other: usize) {
        self.with(|world| {
            let now = world.clock(me);
            world.set_timer(me, now, Timer::Probe(other));
        });
    }

    /// Looks whether a member is to be probed.
    pub(crate) fn probe(&self, me: usize, other: usize) {
        let due = self.with(|world| {
            let now = world.clock(me);
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            let is_due = peer.reach.tick(now);
            peer.probes += u64::from(is_due);
            is_due.then_some(peer.probes)
        });
        if let Some(probe) = due {
            let sim = self.clone();
            self.spawn(Some(me), async move { sim.beat(me, other, probe).await });
        }
        self.publish_state(me, other);
    }

    async fn beat(self, me: usize, other: usize, probe: u64) {
        let ask = Ask::Member(MemberRequest::Heartbeat(self.heartbeat(me, other)));
        let asked_at = self.clock(me);
        let deadline = asked_at.after_ms(PROBE_MS);
        let answered = self.exchange(me, other, ask, deadline, true).await;
        let is_given_up = self.with(|world| world.process(me).peers[&other].probes) != probe;
        if is_given_up && answered.is_err() {
            return;
        }
        let failure = match answered {
            Ok(Tell::Member(MemberReply::Heartbeat(heartbeat))) => {
                self.alive(me, other, &heartbeat, asked_at);
                None
            }
            Err(NoAnswer::Broken) => {
                self.link_failed(me, other);
                Some(ProbeFailure::Broken)
            }
            Ok(_) | Err(_) => Some(ProbeFailure::Silent),
        };
        let is_lost = self.with(|world| {
            let now = world.clock(me);
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            if let Some(failure) = failure {
                peer.reach.probe_failed(now, failure);
            }
            failure.is_some() && peer.reach.state() == NodeState::Unreachable
        });
        self.publish_state(me, other);
        if is_lost {
            let node = self.id(other);
            self.tell_homes(me, [Event::Lost { node }]);
        }
    }

    /// What this node says of itself to a member.
    pub(crate) fn heartbeat(&self, me: usize, other: usize) -> Heartbeat {
        let member = self.id(other);
        self.with(|world| Heartbeat {
            incarnation: Incarnation(world.nodes[me].life),
            version: String::new(),
            is_draining: false,
            space: world.process(me).holder.account(),
            untold_keys: world.process(me).directory.untold_keys(member),
            hint: FitHint {
                incarnation: Incarnation(world.nodes[me].life),
                version: 0,
                capacity_bytes: 0,
                free_bytes: 0,
                largest_free_upper_bound_bytes: 0,
            },
        })
    }

    /// A member has answered a probe.
    fn alive(&self, me: usize, other: usize, heartbeat: &Heartbeat, asked_at: Time) {
        let life = self.with(|world| {
            let now = world.clock(me);
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            peer.reach.answered(now, heartbeat.incarnation)
        });
        self.note(me, other, life, heartbeat.incarnation);
        self.publish_state(me, other);
        if !matches!(life, Life::Stale { .. }) {
            self.hear(me, other, heartbeat, Some(asked_at));
        }
    }

    /// A member's own heartbeat has arrived.
    pub(crate) fn heard(&self, me: usize, other: usize, heartbeat: &Heartbeat) {
        let (life, state) = self.with(|world| {
            let now = world.clock(me);
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            (peer.reach.seen(now, heartbeat.incarnation), peer.reach.state())
        });
        self.note(me, other, life, heartbeat.incarnation);
        if matches!(life, Life::Stale { .. }) {
            return;
        }
        if state != NodeState::Alive || matches!(life, Life::New { .. }) {
            self.with(|world| {
                let now = world.clock(me);
                let peer = world.process(me).peers.get_mut(&other).expect("a member");
                peer.probes += 1;
                peer.reach.probe_given_up(now);
            });
            self.probe_now(me, other);
        }
        self.hear(me, other, heartbeat, None);
    }

    fn hear(&self, me: usize, other: usize, heartbeat: &Heartbeat, asked_at: Option<Time>) {
        let event = Event::Heard {
            node: self.id(other),
            incarnation: heartbeat.incarnation,
            untold_keys: heartbeat.untold_keys,
            asked_at,
        };
        self.tell_homes(me, [event]);
    }

    /// Makes known where a member stands.
    fn publish_state(&self, me: usize, other: usize) {
        let changed = self.with(|world| {
            let peer = world.process(me).peers.get_mut(&other).expect("a member");
            let state = peer.reach.state();
            (std::mem::replace(&mut peer.state, state) != state).then_some(state)
        });
        let Some(state) = changed else { return };
        self.tell(|| format!("{me} sees {other} {state:?}"));
        if !matches!(state, NodeState::Alive | NodeState::Unknown) {
            self.fail_calls(me, NoAnswer::Unreachable, |open| open.to == other && !open.is_heartbeat);
        }
        if state == NodeState::Unreachable {
            let node = self.id(other);
            self.tell_homes(me, [Event::Lost { node }]);
        }
    }
}

//! One node: its host, and the process that runs there.

use crate::evictions::WATERMARKS;
use crate::executor::Slot;
use crate::message::{Answered, Packet};
use crate::world::{CLUSTER, Event};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tenon_protocol::ids::{Generation, Incarnation, KeyHash, NodeId, PutId, SegmentId, Slot as TableSlot};
use tenon_protocol::member::HomeAnswer;
use tenon_protocol::message::{KeyResult, NodeState};
use tenon_store_core::directory::{Directory, RequestToken};
use tenon_store_core::membership::{ProbeTiming, Reachability};
use tenon_store_core::objects::{Holder, HolderConfig, RegionId, SealPlan, SegmentSpec, SegmentTable};
use tenon_store_core::placement::Policy;
use tenon_store_core::time::Time;

const TIMING: ProbeTiming = ProbeTiming {
    heartbeat_ms: 1_000,
    unreachable_after_ms: 3_000,
};

/// A reservation without a commit ends after this.
const RESERVATION_TTL_MS: u32 = 6_000;

/// So small that regions and slots are used again soon, and sometimes run out.
const SEGMENT: SegmentSpec = SegmentSpec {
    len_bytes: 1_536,
    slots: 12,
};

/// The table beside the segment, as readers see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Table(pub(crate) Rc<RefCell<BTreeMap<TableSlot, (Generation, KeyHash)>>>);

impl SegmentTable for Table {
    fn seal(&mut self, plan: &SealPlan) {
        let line = (plan.descriptor.generation, plan.descriptor.key_hash);
        self.0.borrow_mut().insert(plan.slot, line);
    }

    fn invalidate(&mut self, slot: TableSlot) {
        self.0.borrow_mut().remove(&slot);
    }
}

/// What a process does at a time on its own clock.
pub(crate) enum Timer {
    /// What it does all the time.
    Tick,
    /// Looks whether a member is to be probed.
    Probe(usize),
    /// Something that a task waits for.
    Ring(Box<dyn FnOnce()>),
}

/// A call that was not answered yet.
pub(crate) struct OpenCall {
    pub(crate) to: usize,
    /// The life in which the other one was when the call was sent.
    pub(crate) to_life: u64,
    /// Heartbeats go on, whatever is known of the member.
    pub(crate) is_heartbeat: bool,
    pub(crate) answer: Slot<Answered>,
}

/// What a process knows of another member.
pub(crate) struct Peer {
    pub(crate) reach: Reachability,
    /// As it was made known.
    pub(crate) state: NodeState,
    /// Probes so far, those that were given up among them.
    pub(crate) probes: u64,
    /// The life that the present connection leads to.
    pub(crate) met: Option<Incarnation>,
}

/// One life of a node: gone with all its memory when it ends.
pub(crate) struct Process {
    pub(crate) directory: Directory,
    pub(crate) holder: Holder<Table>,
    pub(crate) tables: BTreeMap<SegmentId, Table>,
    /// The bytes in the segments, by where their region begins.
    pub(crate) memory: BTreeMap<(SegmentId, u64), PutId>,
    pub(crate) peers: BTreeMap<usize, Peer>,
    pub(crate) timers: BTreeMap<(Time, u64), Timer>,
    pub(crate) calls: BTreeMap<u64, OpenCall>,
    /// Requests to this home that are not answered yet.
    pub(crate) requests: BTreeMap<RequestToken, Slot<KeyResult<HomeAnswer>>>,
    pub(crate) last_request: u64,
    /// Commits that wait for something to end.
    pub(crate) waiting: Vec<Slot<()>>,
    /// What is still to be told to homes.
    pub(crate) published: BTreeSet<(NodeId, KeyHash)>,
    /// Puts whose objects were sealed here and are just being reported.
    pub(crate) reporting: BTreeSet<PutId>,
    /// It takes nothing new, and all of its segments drain.
    pub(crate) is_draining: bool,
    /// Segments that drain.
    pub(crate) leaving: BTreeSet<SegmentId>,
    /// Evictions of which the homes are still to be told.
    pub(crate) untold_evictions: usize,
    /// Where clients may write.
    pub(crate) granted: BTreeSet<RegionId>,
    pub(crate) events: u64,
}

impl Process {
    pub(crate) fn new(node: NodeId, life: u64, others: impl Iterator<Item = usize>) -> Self {
        let holder = Holder::new(HolderConfig {
            node,
            incarnation: Incarnation(life),
            cluster: CLUSTER,
            reservation_ttl_ms: RESERVATION_TTL_MS,
            policy: Policy::default(),
            eviction: Some(WATERMARKS),
        });
        let peer = |other| {
            let peer = Peer {
                reach: Reachability::new(TIMING),
                state: NodeState::Unknown,
                probes: 0,
                met: None,
            };
            (other, peer)
        };
        let mut process = Self {
            directory: Directory::new(node, TIMING.pause_ms()),
            holder,
            tables: BTreeMap::new(),
            memory: BTreeMap::new(),
            peers: others.map(peer).collect(),
            timers: BTreeMap::new(),
            calls: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_request: 0,
            waiting: Vec::new(),
            published: BTreeSet::new(),
            reporting: BTreeSet::new(),
            is_draining: false,
            leaving: BTreeSet::new(),
            untold_evictions: 0,
            granted: BTreeSet::new(),
            events: 0,
        };
        process.mount();
        process
    }

    /// Takes another segment into use.
    pub(crate) fn mount(&mut self) {
        let (id, table) = (self.holder.new_segment_id().unwrap(), Table::default());
        self.holder.mount(id, &SEGMENT, table.clone()).unwrap();
        self.tables.insert(id, table);
    }

    /// From now on the segments that are in use drain. Answers which.
    pub(crate) fn drain(&mut self) -> Vec<SegmentId> {
        let begins: Vec<SegmentId> = self
            .tables
            .keys()
            .copied()
            .filter(|id| !self.leaving.contains(id))
            .collect();
        for id in &begins {
            self.holder.drain(*id).unwrap();
            self.leaving.insert(*id);
        }
        begins
    }

    /// Gives a segment back that drains, if nothing is left there.
    pub(crate) fn unmount(&mut self, segment: SegmentId) -> bool {
        let is_gone = self.holder.unmount(segment).is_ok();
        if is_gone {
            self.leaving.remove(&segment);
            self.tables.remove(&segment);
            self.memory.retain(|(id, _), _| *id != segment);
        }
        is_gone
    }

    /// Whether a call to a member is worth trying.
    pub(crate) fn may_ask(&self, other: usize) -> bool {
        let state = self.peers.get(&other).map(|peer| peer.state);
        state.is_some_and(|state| matches!(state, NodeState::Alive | NodeState::Unknown))
    }

    /// Forgets the grants of reservations that have ended, and wakes the commits that waited for that.
    pub(crate) fn settle(&mut self) {
        let ended = self.holder.take_ended();
        for ended in &ended {
            self.granted.remove(&ended.region);
        }
        if !ended.is_empty() {
            self.wake_commits();
        }
    }

    /// A commit or a write has ended: commits that wait look again.
    pub(crate) fn wake_commits(&mut self) {
        for waiting in std::mem::take(&mut self.waiting) {
            waiting.fill(());
        }
    }
}

/// See the module.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    /// The present life, or the last one.
    pub(crate) life: u64,
    /// How far this host's clock is ahead.
    pub(crate) ahead_ms: u64,
    pub(crate) process: Option<Process>,
    /// Whether the host is there to refuse connections while the process is not.
    pub(crate) is_host_up: bool,
    pub(crate) is_hung: bool,
    /// What has come while it hangs.
    pub(crate) queued: Vec<Event>,
    /// Since when it has not stood still and its clock has not jumped, on its own clock.
    pub(crate) runs_since: Time,
}

impl Node {
    /// Whether a packet's connection still leads to somebody.
    pub(crate) fn is_connected(&self, packet: &Packet) -> bool {
        self.process.is_some() && packet.to_life == self.life
    }
}

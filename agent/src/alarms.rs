//! What an operator should look at: members that fell silent together, members that refuse each other.
//!
//! Under a list of members that is configured nobody is ever gone, so nothing is dropped because of such an alarm or in
//! spite of it: a node whose keys' homes are all out of reach says so call by call. The alarm says that it is more likely the network
//! than the members.

use crate::clock;
use parking_lot::Mutex;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Alarm, AlarmKind};
use tenon_store_core::limits::SILENT_TOGETHER_MS;
use tenon_store_core::membership::Departures;

/// Which members have fallen silent, and whether they did so together.
#[derive(Debug)]
pub(crate) struct Silence {
    /// All members of the view.
    members: usize,
    silent: Mutex<Departures>,
}

impl Silence {
    /// Nobody is silent. `members` are all of the view, this node among them.
    pub(crate) fn new(members: usize) -> Self {
        Self {
            members,
            silent: Mutex::new(Departures::new(SILENT_TOGETHER_MS)),
        }
    }

    /// A member does not answer any more; said again, it changes nothing.
    pub(crate) fn fell_silent(&self, node: NodeId) {
        self.change(|silent| silent.expired(clock::now(), node, self.members));
    }

    /// A member answers.
    pub(crate) fn answered(&self, node: NodeId) {
        self.change(|silent| silent.returned(node));
    }

    fn change(&self, change: impl FnOnce(&mut Departures)) {
        let mut silent = self.silent.lock();
        let was_alarmed = silent.is_alarmed();
        change(&mut silent);
        match (was_alarmed, silent.is_alarmed()) {
            (false, true) => {
                tracing::warn!(members = ?silent.waiting().collect::<Vec<_>>(), "members fell silent together")
            }
            (true, false) => tracing::info!("all members that fell silent together have answered again"),
            _ => {}
        }
    }

    /// Whether they did, and still are.
    pub(crate) fn alarm(&self) -> Option<Alarm> {
        let silent = self.silent.lock();
        if !silent.is_alarmed() {
            return None;
        }
        let nodes: Vec<NodeId> = silent.waiting().collect();
        let message = format!(
            "{} of {} members fell silent together: look at the network between them and this node first",
            nodes.len(),
            self.members
        );
        Some(Alarm {
            kind: AlarmKind::MembersSilent,
            nodes,
            message,
        })
    }
}

/// A member is refused, or refuses this node, and why.
pub(crate) fn refused(node: NodeId, message: String) -> Alarm {
    Alarm {
        kind: AlarmKind::MemberRefused,
        nodes: vec![node],
        message,
    }
}

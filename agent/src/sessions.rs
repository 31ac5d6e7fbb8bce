//! The sessions of clients: who they are, how many links they have, and which other holders must hear when they end.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_transport::PeerId;

#[derive(Debug)]
struct Open {
    peer: PeerId,
    links: usize,
    holders: BTreeSet<NodeId>,
}

/// The open sessions. Bounded by the listeners, which bound links.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<SessionId, Open>>);

impl Sessions {
    /// A link of the session is up.
    pub(crate) fn opened(&self, session: SessionId, peer: PeerId) {
        let mut open = self.0.lock();
        open.entry(session)
            .or_insert_with(|| Open {
                peer,
                links: 0,
                holders: BTreeSet::new(),
            })
            .links += 1;
    }

    /// A link of the session has ended. If it was the last one the session has ended, and this answers the other
    /// holders that have reservations of it.
    pub(crate) fn closed(&self, session: SessionId) -> Option<BTreeSet<NodeId>> {
        let mut open = self.0.lock();
        let state = open.get_mut(&session)?;
        state.links -= 1;
        if state.links > 0 {
            return None;
        }
        open.remove(&session).map(|ended| ended.holders)
    }

    /// A put of the session was placed on another node.
    pub(crate) fn note_holder(&self, session: SessionId, holder: NodeId) {
        if let Some(state) = self.0.lock().get_mut(&session) {
            state.holders.insert(holder);
        }
    }

    /// Whose session it is, while it is open.
    pub(crate) fn peer_of(&self, session: SessionId) -> Option<PeerId> {
        self.0.lock().get(&session).map(|open| open.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_with_its_last_link_and_names_its_holders_once() {
        let (sessions, session) = (Sessions::default(), SessionId::from_bytes([1; 16]));
        let holder = NodeId::from_bytes([2; 16]);
        sessions.opened(session, PeerId([3; 16]));
        sessions.opened(session, PeerId([3; 16]));
        sessions.note_holder(session, holder);
        assert_eq!(sessions.closed(session), None);
        assert_eq!(sessions.peer_of(session), Some(PeerId([3; 16])));
        assert_eq!(sessions.closed(session), Some(BTreeSet::from([holder])));
        assert_eq!(sessions.closed(session), None);
        assert_eq!(sessions.peer_of(session), None);
    }
}

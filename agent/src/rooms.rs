//! What is known of the room of every member, and the choice of the one that gets a put.
//!
//! Hints come with heartbeats and with every answer that a member gives on behalf of a client. The lock is held for one
//! step of a plan and never while anybody is asked.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::placement::{DryRunNode, FitHint, FitVerdict};
use tenon_store_core::placement::Fit;
use tenon_store_core::placement::nodes::{
    Action, Event, ItemOutcome, NodeHint, NodeIndex, NodePlan, NodePolicy, NodeTable,
};

/// The hint of a node as others are told of it.
pub(crate) fn told(hint: NodeHint) -> FitHint {
    FitHint {
        incarnation: Incarnation(hint.version.0),
        version: hint.version.1,
        capacity_bytes: hint.capacity_bytes,
        free_bytes: hint.free_bytes,
        largest_free_upper_bound_bytes: hint.largest_free_upper_bound_bytes,
    }
}

fn heard(hint: &FitHint) -> NodeHint {
    NodeHint {
        version: (hint.incarnation.0, hint.version),
        capacity_bytes: hint.capacity_bytes,
        free_bytes: hint.free_bytes,
        largest_free_upper_bound_bytes: hint.largest_free_upper_bound_bytes,
    }
}

#[derive(Debug, Clone)]
struct Known {
    table: NodeTable,
    /// Which member is at which place of the table.
    ids: Vec<NodeId>,
    places: BTreeMap<NodeId, NodeIndex>,
}

/// The members of the view as a put sees them.
#[derive(Debug)]
pub(crate) struct Rooms(Mutex<Known>);

impl Rooms {
    /// Nothing is known yet of `own` and the others.
    ///
    /// # Panics
    /// If the policy is none; a checked configuration's is one.
    pub(crate) fn new(policy: NodePolicy, own: NodeId, others: impl Iterator<Item = NodeId>) -> Self {
        let mut known = Known {
            table: NodeTable::new(policy).expect("the configuration was checked"),
            ids: Vec::new(),
            places: BTreeMap::new(),
        };
        for node in std::iter::once(own).chain(others) {
            known.places.insert(node, known.table.add());
            known.ids.push(node);
        }
        known.table.set_local(known.places[&own]);
        Self(Mutex::new(known))
    }

    /// A member has said this of itself; older news are not believed, and neither is what no sound member says.
    pub(crate) fn hear(&self, node: NodeId, hint: &FitHint) {
        if !hint.is_sound() {
            tracing::warn!(%node, ?hint, "a member says of its room what cannot be");
            return;
        }
        let mut known = self.0.lock();
        if let Some(&place) = known.places.get(&node) {
            known.table.hear(place, heard(hint));
        }
    }

    /// Whether puts may be placed on a member.
    pub(crate) fn set_usable(&self, node: NodeId, is_usable: bool) {
        let mut known = self.0.lock();
        if let Some(&place) = known.places.get(&node) {
            known.table.set_usable(place, is_usable);
        }
    }

    /// The same knowledge, to play through what is not done.
    pub(crate) fn snapshot(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }

    /// What is known of each member, ordered by id.
    pub(crate) fn describe(&self, len_bytes: u64) -> Vec<DryRunNode> {
        let known = self.0.lock();
        let describe = |(&node, &place): (&NodeId, &NodeIndex)| DryRunNode {
            node,
            usable: known.table.is_usable(place),
            hint: known.table.hint(place).map(told),
            fit: match known.table.fit(place, len_bytes) {
                Fit::NoFit => FitVerdict::NoFit,
                Fit::MayFit => FitVerdict::MayFit,
                Fit::Unknown => FitVerdict::Unknown,
            },
        };
        known.places.iter().map(describe).collect()
    }

    /// The members that may be given puts, in an order drawn by their capacity: one of twice the capacity comes first twice as often.
    pub(crate) fn drawn_by_capacity(&self) -> Vec<NodeId> {
        let known = self.0.lock();
        let drawn = |place: NodeIndex| {
            let capacity_bytes = known.table.hint(place).map_or(1, |hint| hint.capacity_bytes.max(1));
            // Of exponential times, the one with the highest rate is the first with the probability of its share.
            #[expect(clippy::cast_precision_loss, reason = "a weight")]
            let time = -rand::random::<f64>().max(f64::MIN_POSITIVE).ln() / capacity_bytes as f64;
            (time, known.ids[place.0])
        };
        let places = (0..known.ids.len()).map(NodeIndex);
        let usable = places.filter(|&place| known.table.is_usable(place));
        let mut nodes: Vec<(f64, NodeId)> = usable.map(drawn).collect();
        nodes.sort_by(|one, other| one.0.total_cmp(&other.0));
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    pub(crate) fn start(&self, plan: &mut NodePlan) -> Vec<Action> {
        plan.start(&mut self.0.lock().table, &mut rand::rng())
    }

    pub(crate) fn on(&self, plan: &mut NodePlan, event: Event) -> Vec<Action> {
        plan.on(event, &mut self.0.lock().table, &mut rand::rng())
    }

    /// A node has answered, with this hint.
    pub(crate) fn answered(
        &self,
        plan: &mut NodePlan,
        node: NodeIndex,
        items: Vec<(usize, bool)>,
        hint: &FitHint,
    ) -> Vec<Action> {
        let hint = heard(hint);
        self.on(plan, Event::Answered { node, items, hint })
    }

    /// A node has been looked at, and has this room.
    pub(crate) fn looked(
        &self,
        plan: &mut NodePlan,
        node: NodeIndex,
        items: Vec<(usize, bool)>,
        hint: &FitHint,
    ) -> Vec<Action> {
        let hint = heard(hint);
        self.on(plan, Event::Looked { node, items, hint })
    }

    pub(crate) fn outcomes(&self, plan: &NodePlan) -> Vec<ItemOutcome> {
        plan.outcomes(&self.0.lock().table)
    }

    /// Who is at this place of the table.
    pub(crate) fn id(&self, place: NodeIndex) -> NodeId {
        self.0.lock().ids[place.0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_store_core::placement::nodes::PlanItem;

    const OWN: NodeId = NodeId::from_bytes([1; 16]);
    const OTHER: NodeId = NodeId::from_bytes([2; 16]);

    fn hint(incarnation: u64, version: u64, free_bytes: u64) -> FitHint {
        FitHint {
            incarnation: Incarnation(incarnation),
            version,
            capacity_bytes: 1000,
            free_bytes,
            largest_free_upper_bound_bytes: free_bytes,
        }
    }

    fn first_asked(rooms: &Rooms, len_bytes: u64) -> Vec<NodeId> {
        let mut plan = NodePlan::new(&[PlanItem { len_bytes, replicas: 1 }]).unwrap();
        let asked = rooms.start(&mut plan).into_iter().filter_map(|action| match action {
            Action::Reserve { node, .. } | Action::Look { node, .. } => Some(rooms.id(node)),
            _ => None,
        });
        let asked = asked.collect();
        rooms.on(&mut plan, Event::Deadline);
        asked
    }

    #[test]
    fn the_own_node_comes_first_until_it_is_as_full_as_it_may_be() {
        let rooms = Rooms::new(NodePolicy::default(), OWN, [OTHER].into_iter());
        rooms.hear(OWN, &hint(1, 1, 300));
        rooms.hear(OTHER, &hint(1, 1, 1000));
        assert_eq!(first_asked(&rooms, 10), [OWN]);
        rooms.hear(OWN, &hint(1, 2, 5));
        assert_eq!(first_asked(&rooms, 10), [OTHER]);
        rooms.set_usable(OTHER, false);
        assert_eq!(first_asked(&rooms, 10), [OWN], "it alone is left to confirm");
    }

    #[test]
    fn older_news_are_not_believed_and_a_new_life_is() {
        let rooms = Rooms::new(NodePolicy::default(), OWN, [OTHER].into_iter());
        let known = |rooms: &Rooms| rooms.describe(500)[1].hint.unwrap().free_bytes;
        rooms.hear(OTHER, &hint(7, 5, 400));
        rooms.hear(OTHER, &hint(7, 4, 900));
        rooms.hear(OTHER, &hint(6, 9, 900));
        assert_eq!((known(&rooms), rooms.describe(500)[1].fit), (400, FitVerdict::NoFit));
        rooms.hear(OTHER, &hint(8, 1, 900));
        assert_eq!((known(&rooms), rooms.describe(500)[1].fit), (900, FitVerdict::MayFit));
        assert_eq!(rooms.describe(500)[0].fit, FitVerdict::Unknown);
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let rooms = Rooms::new(NodePolicy::default(), OWN, [OTHER].into_iter());
        for hint in [
            hint(u64::MAX, 1, 10),
            hint(1, 1, 1001),
            FitHint {
                largest_free_upper_bound_bytes: 11,
                ..hint(1, 1, 10)
            },
            FitHint {
                capacity_bytes: u64::MAX,
                ..hint(1, 1, 10)
            },
        ] {
            rooms.hear(OTHER, &hint);
            assert_eq!(rooms.describe(1)[1].hint, None, "{hint:?}");
        }
    }

    #[test]
    fn a_snapshot_changes_nothing() {
        let rooms = Rooms::new(NodePolicy::default(), OWN, [OTHER].into_iter());
        let snapshot = rooms.snapshot();
        snapshot.hear(OTHER, &hint(1, 1, 1));
        snapshot.set_usable(OWN, false);
        let described = rooms.describe(1);
        assert_eq!((described[1].hint, described[0].usable), (None, true));
    }
}

//! Under which conditions a promise holds: when nodes reach each other.

use crate::plan::{BEARABLE_DELAY_MS, Fault, What};
use crate::world::World;

/// After a fault has ended nodes find each other again within this: the longest back-off of a probe, and a hand-over.
pub(crate) const RECOVERY_MS: u64 = 10_000;

/// What must be well for a promise about one key to hold.
#[derive(Debug, Clone)]
pub(crate) struct Sound<'a> {
    pub(crate) key: usize,
    /// From when until when.
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// Nodes that took part, and must have been well.
    pub(crate) actors: &'a [usize],
    /// This node may have been in any trouble.
    pub(crate) besides: Option<usize>,
    /// This node may have stood still.
    pub(crate) hung: Option<usize>,
    /// The homes must not lose each other alone. Otherwise other nodes may reach both of them, and what one of them
    /// decides alone is then not known to the other.
    pub(crate) homes_meet: bool,
    /// A home must not die. Otherwise one that has begun another life learns again what others know.
    pub(crate) homes_remember: bool,
}

impl Sound<'_> {
    /// Promise 2's condition: all live nodes reached each other, except for at most one home of the key, the same one
    /// all the time.
    ///
    /// A dead or hanging node that is no home and took no part does not matter: it is no live node. A home that is dead
    /// or hangs is the one that others do not reach. Trouble counts until some time after it has ended: until then
    /// nodes do not know that they reach each other, and homes have not exchanged what they decided alone; a second
    /// home that is lost within that time is a second home out of reach.
    pub(crate) fn holds(&self, world: &World) -> bool {
        let homes = &world.keys[self.key].home_nodes;
        let troubles: Vec<&Fault> = world.plan.faults.iter().filter(|fault| self.matters(fault)).collect();
        let excused = homes.iter().map(|home| Some(*home)).chain([None]);
        excused.into_iter().any(|excused| {
            let is_excused = |fault: &&Fault| self.is_excused(fault, excused, homes);
            troubles.iter().all(is_excused)
        })
    }

    /// Whether a fault, or what it leaves behind for a while, lies in the time that is looked at.
    fn matters(&self, fault: &Fault) -> bool {
        fault.from <= self.until && over(fault) + RECOVERY_MS >= self.from
    }

    /// The fault has ended a short time before the end: others may reach the home again before the homes do each other.
    fn is_back(&self, fault: &Fault) -> bool {
        let dies = matches!(fault.what, What::Crash { .. });
        !dies && fault.until < self.until && self.until <= fault.until + 2 * RECOVERY_MS
    }

    fn is_excused(&self, fault: &Fault, excused: Option<usize>, homes: &[usize]) -> bool {
        let what = &fault.what;
        if matches!(what, What::Hang { node } if self.hung == Some(*node)) {
            return true;
        }
        let is_besides = self.besides.is_some_and(|node| is_about(what, node));
        if is_besides {
            return true;
        }
        if let Some(home) = excused.filter(|home| is_about(what, *home)) {
            // Of two homes that do not reach each other, each is the one out of reach for the other.
            let is_cut_off = |actor: &usize| *actor == home || (is_between(what, homes) && homes.contains(actor));
            let may_part = is_between(what, homes) || self.is_back(fault);
            let is_wrong = self.actors.iter().any(is_cut_off) || (self.homes_meet && may_part);
            return !is_wrong;
        }
        match what {
            What::Crash { .. } if !self.homes_remember => true,
            What::Crash { node, .. } | What::Hang { node } | What::Jump { node, .. } => {
                !homes.contains(node) && !self.actors.contains(node)
            }
            // Questions are answered in time.
            What::Slow { delay_ms, .. } => *delay_ms <= BEARABLE_DELAY_MS,
            What::Split { .. } | What::Cut { .. } | What::Loss { .. } => false,
        }
    }
}

/// When a fault is over.
pub(crate) fn over(fault: &Fault) -> u64 {
    match fault.what {
        What::Jump { .. } => fault.from,
        _ => fault.until,
    }
}

/// Whether it would not have happened without this node.
fn is_about(what: &What, about: usize) -> bool {
    match what {
        What::Crash { node, .. } | What::Hang { node } | What::Jump { node, .. } => *node == about,
        What::Split { side } => (0..side.len()).all(|other| other == about || side[other] != side[about]),
        What::Cut { from, to, .. } | What::Loss { from, to, .. } | What::Slow { from, to, .. } => {
            *from == about || *to == about
        }
    }
}

/// Whether it is trouble of the link between the homes.
fn is_between(what: &What, homes: &[usize]) -> bool {
    homes.len() == 2 && !is_whole(what) && homes.iter().all(|home| is_about(what, *home))
}

/// Whether the node is then out of reach for all others.
fn is_whole(what: &What) -> bool {
    matches!(what, What::Crash { .. } | What::Hang { .. } | What::Split { .. })
}

//! Whether a put that is repeated must end as before.
//!
//! A home that has decided a put tells the other one before it answers, and if that one is out of reach later. So it is not
//! asked whether the homes were in trouble at any time since, but whether they had time to exchange, and what came after.

use crate::model::{Put, Refusal, Try};
use crate::plan::{BEARABLE_DELAY_MS, Fault, What};
use crate::soundness::{RECOVERY_MS, over};
use crate::world::World;
use tenon_protocol::message::Committed;
use tenon_store_core::limits::OUTCOME_LIFE_MS;

/// What befalls the homes of a key and the link between them.
struct Homes<'a> {
    faults: Vec<&'a Fault>,
}

/// Whether a try in this time must end as the earlier ones did.
///
/// It must if both homes knew that end and one of them did not die since; or if one home was well all the time, whatever
/// the other one has forgotten, and however often. Not if the end is so old by now that it is forgotten, nor where tries of the put have
/// ended differently before.
pub(crate) fn must_repeat(world: &World, put: &Put, (began, ended): (u64, u64)) -> bool {
    let Some(first) = put.outcomes.first() else {
        return false;
    };
    let homes = &world.keys[put.key].home_nodes;
    let faults = world.plan.faults.iter().filter(|fault| befalls(fault, homes));
    let befallen = Homes {
        faults: faults.collect(),
    };
    let is_one = put.outcomes.iter().all(|other| other.end.outcome == first.end.outcome);
    let is_remembered = befallen.pass_ms(put.began, ended) < OUTCOME_LIFE_MS;
    let is_well = |dying: &usize| befallen.are_calm(first.began.saturating_sub(RECOVERY_MS), ended, Some(*dying));
    is_one && is_remembered && (homes.iter().any(is_well) || befallen.have_met(put, first, (began, ended)))
}

/// Whether a fault keeps one of these homes from knowing what the other one does.
fn befalls(fault: &Fault, homes: &[usize]) -> bool {
    match &fault.what {
        What::Crash { node, .. } | What::Hang { node } | What::Jump { node, .. } => homes.contains(node),
        What::Split { side } => homes.iter().any(|home| side[*home] != side[homes[0]]),
        What::Slow { from, to, delay_ms } => {
            *delay_ms > BEARABLE_DELAY_MS && homes.contains(from) && homes.contains(to)
        }
        What::Cut { from, to, .. } | What::Loss { from, to, .. } => homes.contains(from) && homes.contains(to),
    }
}

/// The node that a fault kills.
fn dies(fault: &Fault) -> Option<usize> {
    match fault.what {
        What::Crash { node, .. } => Some(node),
        _ => None,
    }
}

impl Homes<'_> {
    /// Nothing befell them in a time but that `dying` died.
    fn are_calm(&self, from: u64, until: u64, dying: Option<usize>) -> bool {
        let mut faults = self
            .faults
            .iter()
            .filter(|fault| fault.from <= until && over(fault) >= from);
        faults.all(|fault| dying.is_some() && dies(fault) == dying)
    }

    /// The most that passes by the clock of a home in a time.
    fn pass_ms(&self, from: u64, until: u64) -> u64 {
        let leaps = self.faults.iter().map(|fault| match fault.what {
            What::Jump { ms, .. } if (from..=until).contains(&fault.from) => ms,
            _ => 0,
        });
        until - from + leaps.sum::<u64>()
    }

    /// Whether the homes have exchanged how the put had ended, before it was tried again in this time, and not lost it since.
    fn have_met(&self, put: &Put, first: &Try<Committed>, (began, ended): (u64, u64)) -> bool {
        let lost = put.refusals.iter().filter(|one| one.end == Refusal::Unknown);
        let lost_first = lost.map(|one| one.began).min().unwrap_or(u64::MAX);
        let from = first.began.min(lost_first).saturating_sub(RECOVERY_MS);
        let told_before = self.are_calm(from, first.ended, None) && self.still_know(first.ended, ended);
        let calm_since = self.faults.iter().map(|fault| over(fault) + 1).chain([first.ended]);
        let mut met = calm_since
            .filter(|since| *since >= first.ended)
            .map(|since| (since, since + RECOVERY_MS));
        told_before
            || met.any(|(since, met)| {
                met <= began
                    && met <= lost_first
                    && self.nobody_died(first.began, met)
                    && self.are_calm(since, met, None)
                    && self.still_know(met, ended)
            })
    }

    fn nobody_died(&self, from: u64, until: u64) -> bool {
        let mut deaths = self.faults.iter().filter(|fault| dies(fault).is_some());
        deaths.all(|death| death.from > until || death.until < from)
    }

    /// Whether both homes, which knew it once, know it still or could ask: none has died since, or one has and the other is well.
    fn still_know(&self, since: u64, until: u64) -> bool {
        let deaths = self.faults.iter().filter(|fault| dies(fault).is_some());
        let deaths: Vec<_> = deaths
            .filter(|death| death.from <= until && death.until >= since)
            .collect();
        let Some(first) = deaths.iter().map(|death| death.from).min() else {
            return true;
        };
        self.are_calm(first.saturating_sub(RECOVERY_MS), until, dies(deaths[0]))
    }
}

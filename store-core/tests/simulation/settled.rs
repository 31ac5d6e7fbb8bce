//! What is promised once everything is mended and has had time to settle.

use crate::model::{Object, Read, Refusal, RemovalEnd};
use crate::promises::{is_held, is_removed, may_be_gone, stays_removed, was_there_at};
use crate::replaced::{is_replaced, may_be_replaced};
use crate::soundness::Sound;
use crate::world::World;
use std::collections::BTreeSet;
use tenon_protocol::ids::Version;
use tenon_protocol::member::{HomeAnswer, HomeEvent, HomeEventKind};
use tenon_store_core::directory::{Action, Event, RequestToken};

type Verdict = Result<(), String>;

/// Nothing is left over anywhere.
pub(crate) fn check_rest(world: &mut World) -> Verdict {
    for node in 0..world.nodes.len() {
        let process = world.process(node);
        process.directory.check_invariants();
        process.holder.check_invariants();
        let counts = process.directory.counts();
        let rest = [
            ("pending entries", counts.pending),
            ("requests", counts.requests),
            ("questions", counts.questions),
            ("waiting decisions", counts.waiting),
            ("untold keys", counts.untold),
            ("owed drops", counts.owed),
            ("requests without an answer", process.requests.len()),
            ("commits that wait", process.waiting.len()),
            ("objects to publish", process.published.len()),
            ("evictions to tell", process.untold_evictions),
            ("grants", process.granted.len()),
            ("segments that drain", process.leaving.len()),
        ];
        if let Some((what, many)) = rest.into_iter().find(|(_, many)| *many > 0) {
            return Err(format!("{node} has {many} {what} left: {counts:?}"));
        }
        if !counts.is_settled() {
            return Err(format!("{node} has not settled: {counts:?}"));
        }
        let account = process.holder.account();
        let used = account.reserved_bytes + account.held_bytes + account.reservations;
        let adds_up = account.capacity_bytes == account.free_bytes + account.sealed_bytes;
        if used > 0 || !adds_up {
            return Err(format!("{node} leaks memory: {account:?}"));
        }
        world.model.counts.losers += counts.losers;
    }
    Ok(())
}

/// Objects are what the model says they may be, and the homes know all of them.
pub(crate) fn check_objects(world: &mut World) -> Verdict {
    let held: Vec<Object> = world
        .model
        .objects
        .iter()
        .filter(|object| is_held(world, object))
        .cloned()
        .collect();
    let kept: u64 = (0..world.nodes.len())
        .map(|node| world.process(node).holder.account().objects)
        .sum();
    if held.len() as u64 != kept {
        return Err(format!("{kept} objects are held, of which {} were sealed", held.len()));
    }
    for key in 0..world.keys.len() {
        let here: Vec<&Object> = held.iter().filter(|object| object.key == key).collect();
        let versions: BTreeSet<_> = here.iter().map(|object| text(object.version)).collect();
        if versions.len() > 1 {
            return Err(format!("key {key} has more than one object: {here:?}"));
        }
        for home in world.keys[key].home_nodes.clone() {
            check_home(world, home, key, &here)?;
        }
    }
    held.iter().try_for_each(|object| check_standing(world, object))
}

fn text(version: Version) -> String {
    version.to_string()
}

/// A home knows a key's object, where it is, and nothing else.
///
/// Of an object that was copied it may know a place besides where it is no more: after the homes parted the second has not heard of every eviction.
/// Readers and proposals ask the next replica then. All that are there must be known.
fn check_home(world: &mut World, home: usize, key: usize, here: &[&Object]) -> Verdict {
    let known = match locate(world, home, key) {
        HomeAnswer::Hit(entry) => entry.replicas,
        HomeAnswer::Miss => Vec::new(),
        other => return Err(format!("{home} says {other:?} of key {key}")),
    };
    let known: BTreeSet<_> = known
        .iter()
        .map(|one| (world.index_of(one.holder), one.generation))
        .collect();
    let held: BTreeSet<_> = here.iter().map(|object| (object.holder, object.generation)).collect();
    let was_copied = here.iter().any(|object| {
        let mut objects = world.model.objects.iter();
        objects.any(|one| one.is_copy && (one.key, one.version) == (key, object.version))
    });
    if known == held || (was_copied && held.is_subset(&known)) {
        return Ok(());
    }
    Err(format!(
        "{home} knows {known:?} of key {key}, and its holders have {here:?}"
    ))
}

fn locate(world: &mut World, home: usize, key: usize) -> HomeAnswer {
    let event = HomeEvent {
        key_hash: world.keys[key].hash,
        homes: world.keys[key].homes,
        kind: HomeEventKind::Locate,
    };
    let now = world.clock(home);
    let token = RequestToken(u64::MAX);
    let deadline = now.after_ms(1);
    let actions = world
        .process(home)
        .directory
        .handle(now, Event::Request { token, deadline, event });
    match actions.as_slice() {
        [Action::Reply { answer: Ok(answer), .. }] => answer.clone(),
        other => panic!("a look-up is answered at once, not by {other:?}"),
    }
}

/// What is held still was not removed, and its put was not refused.
fn check_standing(world: &World, object: &Object) -> Verdict {
    for removal in world.model.removals.iter().filter(|removal| removal.key == object.key) {
        let Some((ended, end)) = removal.end else { continue };
        if !was_there_at(world, object, removal.began) {
            continue;
        }
        let must_be_gone = match end {
            RemovalEnd::Done { .. } => is_removed(world, object, removal, ended),
            RemovalEnd::Unavailable { silent } => stays_removed(world, object, removal, silent, removal.coordinator),
            RemovalEnd::Unknown => false,
        };
        if must_be_gone {
            return Err(format!("{object:?} is there in spite of {removal:?}"));
        }
    }
    if let Some(later) = is_replaced(world, object, object.holder, world.now) {
        return Err(format!("{object:?} is there in spite of {later:?}"));
    }
    let put = &world.model.puts[&object.version.put_id];
    if put.outcomes.is_empty() && matches!(put.refusals.as_slice(), [one] if one.end == Refusal::Final) {
        return Err(format!("{object:?} is there although its put has failed"));
    }
    Ok(())
}

/// What readers on all nodes find at the end: the same, and what is held.
pub(crate) fn check_reads(world: &World, key: usize, reads: &[Read]) -> Verdict {
    let held = world
        .model
        .objects
        .iter()
        .find(|object| object.key == key && is_held(world, object));
    for (node, read) in reads.iter().enumerate() {
        let is_right = match read {
            Read::Hit { bytes, .. } => held.is_some_and(|object| object.version.put_id == *bytes),
            Read::Miss => held.is_none(),
            Read::Failed => false,
        };
        if !is_right {
            return Err(format!(
                "a last get of key {key} at {node} answered {read:?}, and there is {held:?}"
            ));
        }
    }
    let objects = world.model.objects.iter().filter(|object| object.key == key);
    let mut lost = objects.filter(|object| object.reported_at.is_some() && !is_held(world, object));
    lost.try_for_each(|object| check_lost(world, object))
}

/// An object whose put is done is not there any more: there is a reason for that.
fn check_lost(world: &World, object: &Object) -> Verdict {
    let is_evicted = object.evicted_at.is_some();
    let may_be_gone = may_be_gone(world, object) || may_be_replaced(world, object);
    if is_evicted || has_died(world, object) || may_be_gone || was_beaten(world, object) {
        return Ok(());
    }
    Err(format!("{object:?} is lost"))
}

/// Its holder has begun another life.
fn has_died(world: &World, object: &Object) -> bool {
    world.nodes[object.holder].life != object.life
}

/// It lost against another object of the key, of no lower epoch, which homes accepted while nodes did not reach each
/// other; and the winner is there, or gone rightly.
fn was_beaten(world: &World, object: &Object) -> bool {
    let rivals = world.model.objects.iter().filter(|rival| {
        let is_other = (rival.holder, rival.generation) != (object.holder, object.generation);
        rival.key == object.key && rival.version.epoch >= object.version.epoch && is_other
    });
    let mut winners = rivals.filter(|rival| {
        let sound = Sound {
            key: object.key,
            from: world.model.put_began(object).min(world.model.put_began(rival)),
            until: object.sealed_at.max(rival.sealed_at),
            actors: &[object.holder, rival.holder],
            besides: None,
            hung: None,
            homes_meet: true,
            homes_remember: true,
        };
        !sound.holds(world)
    });
    winners.any(|winner| {
        let may_be_gone = may_be_gone(world, winner) || may_be_replaced(world, winner);
        let is_gone = winner.evicted_at.is_some() || has_died(world, winner) || may_be_gone;
        is_held(world, winner) || is_gone
    })
}

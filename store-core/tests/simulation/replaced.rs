//! What is promised of objects that others have taken the place of, and of those that lie elsewhere now.

use crate::model::Object;
use crate::promises::{is_held, may_be_gone};
use crate::soundness::Sound;
use crate::world::World;
use tenon_protocol::ids::Generation;

/// A holder whose copy a home has taken in.
///
/// Promises hold for it as for what was committed there, if the object was there at another holder still: then the key had no
/// room for another one. Otherwise the homes may have decided for one meanwhile, and have the copy dropped.
pub(crate) fn copied(world: &mut World, holder: usize, generation: Generation, degraded: bool) {
    let mut objects = world.model.objects.iter();
    let copy = objects.find(|object| (object.holder, object.generation) == (holder, generation));
    let copy = copy.expect("it was sealed");
    let others = world.model.objects.iter().filter(|other| is_same(other, copy));
    let is_backed = others
        .filter(|other| (other.holder, other.generation) != (holder, generation) && other.reported_at.is_some())
        .any(|other| is_held(world, other));
    if is_backed {
        let now = world.now;
        world.model.copied(holder, generation, now, degraded);
    }
}

/// A holder is about to let an object go by the word of another one, which it asked since a time: that one had it then, and did not let it go since by such a
/// word alone.
pub(crate) fn let_go(world: &mut World, holder: usize, generation: Generation, asked_at: u64) {
    let mut objects = world.model.objects.iter();
    let object = objects.find(|object| (object.holder, object.generation) == (holder, generation));
    let object = object.expect("it was sealed");
    let others = world.model.objects.iter().filter(|other| is_same(other, object));
    let is_backed = others
        .filter(|other| (other.holder, other.generation) != (holder, generation))
        .any(|other| {
            let is_dead = world.nodes[other.holder].life != other.life || world.nodes[other.holder].process.is_none();
            let has_gone = other.dropped_at.or(other.evicted_at.filter(|_| !other.is_moved));
            is_dead || is_held(world, other) || has_gone.is_some_and(|at| at >= asked_at)
        });
    if !is_backed {
        let what = format!("{object:?} goes, and there is no other one");
        world.model.violated(what);
    }
}

fn is_same(one: &Object, other: &Object) -> bool {
    (one.key, one.version) == (other.key, other.version)
}

/// Whether an object was to take the place of another one.
fn takes_place(world: &World, later: &Object, object: &Object) -> bool {
    later.key == object.key && later.version.epoch > object.version.epoch && world.model.replaces(later)
}

/// Whether an object that was to take its place may have done so.
pub(crate) fn may_be_replaced(world: &World, object: &Object) -> bool {
    let mut objects = world.model.objects.iter();
    objects.any(|later| takes_place(world, later, object))
}

/// The holders over which an object that was done can be found now: its own, or, if it was moved or another one has taken its place, those
/// of its heirs. `None` if it may be gone.
pub(crate) fn standing(world: &World, object: &Object) -> Option<Vec<usize>> {
    if may_be_gone(world, object) {
        return None;
    }
    if is_held(world, object) {
        return Some(vec![object.holder]);
    }
    let gone_at = object.evicted_at.or(object.dropped_at)?;
    let is_heir = |other: &&Object| match object.evicted_at {
        Some(_) if object.is_moved => is_same(object, other) && other.reported_at.is_some_and(|at| at <= gone_at),
        Some(_) => false,
        None => !other.is_copy && takes_place(world, other, object) && other.sealed_at <= gone_at,
    };
    // It came before the other one went, and stayed longer.
    let is_later = |other: &&Object| other.evicted_at.or(other.dropped_at).is_none_or(|at| at > gone_at);
    let mut heirs = world.model.objects.iter().filter(is_later).filter(is_heir);
    let mut holders = heirs.find_map(|heir| standing(world, heir))?;
    holders.push(object.holder);
    Some(holders)
}

/// Whether an object must not be found because one that has taken its place was answered to be stored, or to stand, before `by`.
///
/// The conditions are those of removals: see [`crate::promises::is_removed`] and [`crate::promises::stays_removed`].
pub(crate) fn is_replaced(world: &World, object: &Object, coordinator: usize, by: u64) -> Option<Object> {
    let mut later = world
        .model
        .objects
        .iter()
        .filter(|later| !later.is_copy && takes_place(world, later, object));
    later
        .find(|later| has_replaced(world, object, later, by) || stays_replaced(world, object, later, coordinator, by))
        .cloned()
}

fn has_replaced(world: &World, object: &Object, later: &Object, by: u64) -> bool {
    let Some(done_at) = later.reported_at.filter(|at| *at < by) else {
        return false;
    };
    // A copy that came later the homes must have dropped again.
    let is_late = object.sealed_at > done_at;
    let sound = Sound {
        key: object.key,
        from: began(world, object, later),
        until: if is_late { world.now } else { done_at },
        actors: &[object.holder, later.holder],
        besides: None,
        hung: None,
        homes_meet: true,
        homes_remember: true,
    };
    sound.holds(world)
}

fn stays_replaced(world: &World, object: &Object, later: &Object, coordinator: usize, by: u64) -> bool {
    let Some((_, silent)) = later.left_open.filter(|(at, _)| *at < by) else {
        return false;
    };
    let is_home = world.keys[object.key].home_nodes.contains(&silent);
    let sound = Sound {
        key: object.key,
        from: began(world, object, later),
        until: world.now,
        actors: &[later.holder, coordinator],
        besides: Some(object.holder),
        hung: None,
        homes_meet: true,
        homes_remember: true,
    };
    silent == object.holder && !is_home && sound.holds(world)
}

fn began(world: &World, object: &Object, later: &Object) -> u64 {
    world.model.put_began(object).min(world.model.put_began(later))
}

/// A holder seals an object: it comes after what objects that were done before its put began had replaced.
///
/// What was evicted by then is not replaced, and does not come back either.
pub(crate) fn sealed(world: &mut World, object: &Object) {
    let began = world.model.put_began(object);
    let mut broken = None;
    for later in world.model.objects.iter().filter(|later| later.key == object.key) {
        let Some(done_at) = later.reported_at.filter(|at| *at < began) else {
            continue;
        };
        let mut replaced = world.model.objects.iter().filter(|earlier| {
            let was_there = earlier.reported_at.is_some_and(|at| at < later.sealed_at);
            let is_there = earlier.evicted_at.is_none_or(|at| at > done_at);
            let is_above = earlier.version.epoch >= object.version.epoch;
            was_there && is_there && is_above && takes_place(world, later, earlier)
        });
        let is_broken = replaced.any(|earlier| {
            let sound = Sound {
                key: object.key,
                from: world.model.put_began(earlier),
                until: world.now,
                actors: &[object.holder, earlier.holder, later.holder],
                besides: None,
                hung: None,
                homes_meet: true,
                homes_remember: true,
            };
            sound.holds(world)
        });
        if is_broken {
            broken = Some(format!("{object:?} does not come after what {later:?} had replaced"));
        }
    }
    if let Some(what) = broken {
        world.model.violated(what);
    }
}

//! What is promised of each answer. An exception stands as a condition with its reason.

use crate::model::{LATE_REQUEST_MS, Object, Read, Removal, RemovalEnd};
use crate::plan::What;
use crate::repeats;
use crate::replaced;
use crate::soundness::Sound;
use crate::world::World;
use tenon_protocol::ids::{Generation, PutId};
use tenon_protocol::message::Committed;

/// A try of a put, in this time, was answered.
pub(crate) fn put_answered(world: &mut World, put_id: PutId, time: (u64, u64), committed: &Committed) {
    let put = &world.model.puts[&put_id];
    let must_repeat = repeats::must_repeat(world, put, time);
    let is_other = must_repeat && put.outcomes.iter().any(|other| other.end.outcome != committed.outcome);
    let outcomes = format!("put {put_id} has two outcomes: {:?} and {committed:?}", put.outcomes);
    let mut objects = world.model.objects.iter();
    let is_known = objects.any(|object| object.version == committed.version);
    world.model.counts.repeats_judged += u64::from(must_repeat);
    if is_other {
        world.model.violated(outcomes);
    }
    if !is_known {
        world.model.violated(format!(
            "put {put_id} was answered {committed:?}, and no such object was sealed"
        ));
    }
    world.model.put_ends(put_id, time, *committed);
}

/// A reader got an answer.
pub(crate) fn got(world: &mut World, key: usize, coordinator: usize, began: u64, found: &Read) {
    let verdict = match *found {
        Read::Hit {
            holder,
            generation,
            bytes,
        } => {
            world.model.counts.hits += 1;
            hit(world, key, coordinator, began, (holder, generation, bytes))
        }
        Read::Miss => {
            world.model.counts.misses += 1;
            missed(world, key, coordinator, began)
        }
        Read::Failed => Ok(()),
    };
    if let Err(what) = verdict {
        world.model.violated(what);
    }
}

/// What is read was sealed under this key, and was not removed before.
fn hit(
    world: &mut World,
    key: usize,
    coordinator: usize,
    began: u64,
    (holder, generation, bytes): (usize, Generation, PutId),
) -> Result<(), String> {
    let sealed =
        world.model.objects.iter().find(|object| {
            object.holder == holder && object.generation == generation && object.version.put_id == bytes
        });
    let Some(object) = sealed.filter(|object| object.key == key).cloned() else {
        return Err(format!(
            "a get of key {key} answered {bytes} of {holder}, which was never sealed under the key"
        ));
    };
    if object.evicted_at.is_some_and(|at| at < began) {
        return Err(format!(
            "a get of key {key} at {coordinator} since {began} answered {object:?}, which was evicted"
        ));
    }
    let removals: Vec<Removal> = world
        .model
        .removals
        .iter()
        .filter(|removal| removal.key == key)
        .cloned()
        .collect();
    for removal in removals {
        let Some((ended, end)) = removal.end else { continue };
        let is_meant = was_there_at(world, &object, removal.began) && ended < began;
        if !is_meant {
            continue;
        }
        let must_be_gone = match end {
            RemovalEnd::Done { .. } => is_removed(world, &object, &removal, ended),
            RemovalEnd::Unavailable { silent } => stays_removed(world, &object, &removal, silent, coordinator),
            RemovalEnd::Unknown => false,
        };
        world.model.counts.hits_judged += 1;
        if must_be_gone {
            return Err(format!(
                "a get of key {key} at {coordinator} since {began} answered {object:?} after {removal:?}"
            ));
        }
    }
    world.model.counts.replaced_judged += u64::from(replaced::may_be_replaced(world, &object));
    match replaced::is_replaced(world, &object, coordinator, began) {
        Some(later) => Err(format!(
            "a get of key {key} at {coordinator} since {began} answered {object:?}, of which {later:?} has taken the place"
        )),
        None => Ok(()),
    }
}

/// Whether the put of an object, of which this may be a copy that came later, was done before a time, and the object was not evicted. If it
/// was, a removal finds none; and whoever repeats the put with several replicas then puts it there again, as a copy.
pub(crate) fn was_there_at(world: &World, object: &Object, at: u64) -> bool {
    let mut objects = world.model.objects.iter();
    objects.any(|one| {
        let is_same = (one.key, one.version) == (object.key, object.version);
        let is_itself = (one.holder, one.generation) == (object.holder, object.generation);
        let was_there = is_itself || one.is_moved || one.evicted_at.is_none_or(|gone| gone > at);
        is_same && was_there && one.reported_at.is_some_and(|reported| reported < at)
    })
}

/// A removal that was acknowledged has covered the object.
///
/// Not if homes of the key did not reach each other when the object was put or the removal decided: then one home may
/// have said that there is nothing to remove, while the object stands with the other one.
pub(crate) fn is_removed(world: &World, object: &Object, removal: &Removal, ended: u64) -> bool {
    let sound = Sound {
        key: object.key,
        from: world.model.put_began(object),
        // A copy that came later the homes must have dropped again.
        until: if object.sealed_at > removal.began {
            world.now
        } else {
            ended
        },
        actors: &[object.holder, removal.coordinator],
        besides: None,
        hung: None,
        homes_meet: true,
        homes_remember: true,
    };
    sound.holds(world)
}

/// A removal that was answered `unavailable` for want of the holder stands: the object is not found any more.
///
/// Where the holder is a home too, or both homes lost their memory or each other, or a reader is on another side of a
/// partition than they are, nobody who knows of the removal is asked.
pub(crate) fn stays_removed(
    world: &World,
    object: &Object,
    removal: &Removal,
    silent: usize,
    coordinator: usize,
) -> bool {
    let is_home = world.keys[object.key].home_nodes.contains(&silent);
    let sound = Sound {
        key: object.key,
        from: world.model.put_began(object),
        until: world.now,
        actors: &[removal.coordinator, coordinator],
        besides: Some(object.holder),
        hung: None,
        homes_meet: true,
        homes_remember: true,
    };
    silent == object.holder && !is_home && sound.holds(world)
}

/// A holder seals an object: its epoch is higher than that of each object of the key that was removed before.
///
/// Not if homes lost each other, or both lost their memory.
pub(crate) fn sealed(world: &mut World, object: &Object) {
    replaced::sealed(world, object);
    let began = world.model.put_began(object);
    let removals = world.model.removals.iter().filter(|removal| removal.key == object.key);
    let done = removals.filter_map(|removal| match removal.end {
        Some((ended, RemovalEnd::Done { .. })) if ended < began => Some((removal, ended)),
        _ => None,
    });
    let mut broken = None;
    for (removal, ended) in done {
        let earlier = world.model.objects.iter().filter(|earlier| {
            let was_done = earlier.reported_at.is_some_and(|at| at < removal.began);
            // What was evicted by then is not removed, and does not come back either.
            let is_there = earlier.evicted_at.is_none_or(|at| at > ended);
            let is_earlier = earlier.key == object.key && earlier.version.epoch >= object.version.epoch;
            was_done && is_there && is_earlier
        });
        for earlier in earlier.filter(|earlier| is_removed(world, earlier, removal, ended)) {
            let sound = Sound {
                key: object.key,
                from: world.model.put_began(earlier),
                until: world.now,
                actors: &[object.holder],
                besides: None,
                hung: None,
                homes_meet: true,
                homes_remember: true,
            };
            if sound.holds(world) {
                broken = Some(format!(
                    "{object:?} does not come after {earlier:?}, which {removal:?} removed"
                ));
            }
        }
    }
    if let Some(what) = broken {
        world.model.violated(what);
    }
}

/// A miss says that there is no object of a put that is done, unless it may have been removed.
fn missed(world: &mut World, key: usize, coordinator: usize, began: u64) -> Result<(), String> {
    let objects = world.model.objects.iter().filter(|object| object.key == key);
    let done = objects.filter(|object| object.reported_at.is_some_and(|at| at < began));
    let standing: Vec<(Object, Vec<usize>)> = done
        .filter_map(|object| Some((object.clone(), replaced::standing(world, object)?)))
        .collect();
    world.model.counts.misses_judged += u64::from(!standing.is_empty());
    for (object, holders) in standing {
        world.model.counts.heirs_judged += u64::from(holders.len() > 1);
        let actors: Vec<usize> = holders.iter().copied().chain([coordinator]).collect();
        let sound = Sound {
            key,
            from: world.model.put_began(&object),
            until: world.now,
            actors: &actors,
            besides: None,
            hung: None,
            homes_meet: false,
            homes_remember: object.degraded,
        };
        if sound.holds(world) {
            return Err(format!(
                "a get of key {key} at {coordinator} since {began} missed {object:?}, held by {holders:?}"
            ));
        }
    }
    Ok(())
}

/// One home says that a key has no object. It says so only if it knows all there is to know.
pub(crate) fn home_missed(world: &mut World, home: usize, key: usize) {
    let objects = world.model.objects.iter().filter(|object| object.key == key);
    let done = objects.filter(|object| object.reported_at.is_some_and(|at| at < world.now));
    let wrong = done
        .filter(|object| is_held(world, object) && !may_be_missed(world, object))
        .find(|object| home_must_know(world, home, object));
    if let Some(object) = wrong {
        let what = format!("{home} as a home says that key {key} has no object, and there is {object:?}");
        world.model.violated(what);
    }
}

/// A home knows of an object that both homes were told of, also after it has begun another life. And of one that the
/// other home accepted alone while this one stood still.
///
/// Not if it was, or is, cut off itself: it takes those that it does not reach for dead.
fn home_must_know(world: &World, home: usize, object: &Object) -> bool {
    let told = Sound {
        key: object.key,
        from: world.model.put_began(object),
        until: world.now,
        actors: &[home, object.holder],
        besides: None,
        hung: None,
        homes_meet: false,
        homes_remember: object.degraded,
    };
    let homes = &world.keys[object.key].home_nodes;
    let actors: Vec<usize> = homes.iter().copied().chain([object.holder]).collect();
    let withheld = Sound {
        actors: &actors,
        hung: Some(home),
        homes_remember: true,
        ..told.clone()
    };
    (!object.degraded && told.holds(world)) || withheld.holds(world)
}

/// Whether the holder has it now, and runs.
pub(crate) fn is_held(world: &World, object: &Object) -> bool {
    let node = &world.nodes[object.holder];
    let Some(process) = node.process.as_ref().filter(|_| node.life == object.life) else {
        return false;
    };
    let held = process.holder.held(world.keys[object.key].hash);
    held.is_some_and(|held| held.version == object.version && held.replicas[0].generation == object.generation)
}

/// Whether nobody needs to find it any more, or whoever finds another one in its place.
fn may_be_missed(world: &World, object: &Object) -> bool {
    may_be_gone(world, object) || replaced::may_be_replaced(world, object)
}

/// Whether a removal may have removed it.
pub(crate) fn may_be_gone(world: &World, object: &Object) -> bool {
    let put_began = world.model.put_began(object);
    let mut removals = world.model.removals.iter().filter(|removal| removal.key == object.key);
    removals.any(|removal| removal.may_cover(put_began) || is_begun_late(world, removal, put_began))
}

/// A removal that was not answered may begin late: a coordinator that hung when it was asked finds the request when its
/// caller has given it up, and looks only then what there is to remove.
fn is_begun_late(world: &World, removal: &Removal, put_began: u64) -> bool {
    let Some((ended, RemovalEnd::Unknown)) = removal.end else {
        return false;
    };
    world.plan.faults.iter().any(|fault| {
        matches!(fault.what, What::Hang { node } if node == removal.coordinator)
            && fault.from <= ended
            && fault.until >= removal.began
            && put_began <= fault.until + LATE_REQUEST_MS
    })
}

//! The order in which an owner gives objects up: CLOCK, or second chance.
//!
//! Objects stand in a queue in the order in which they came. A use moves nothing, it only marks. When one is to go, the oldest is looked at: if it is
//! marked, it loses the mark and stands behind all others once more; if not, it may go. So what is used stays for another round, and what was put and
//! never used goes first.

use std::ops::{Index, IndexMut};

/// Where an object stands in a [`SecondChance`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(u32);

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Link<T> {
    value: T,
    /// Counts arrivals at the end of the queue: who came later has a higher number.
    arrival: u64,
    newer: u32,
    older: u32,
    is_visited: bool,
    /// A place that is not used links to the next one of these by `newer`.
    is_used: bool,
}

#[derive(Debug)]
struct Links<T>(Vec<Link<T>>);

/// A queue of objects with marks; see the module.
///
/// All calls are O(1), [`Self::candidate`] for each object that it puts behind the others: over time these are as many as were marked, or must
/// not go when they are looked at. Memory: the size of a `T` and 24 B per object, of the most objects there ever were.
#[derive(Debug)]
pub struct SecondChance<T> {
    links: Links<T>,
    newest: u32,
    oldest: u32,
    spare: u32,
    len: usize,
    arrivals: u64,
}

impl<T> Default for SecondChance<T> {
    fn default() -> Self {
        Self {
            links: Links(Vec::new()),
            newest: NONE,
            oldest: NONE,
            spare: NONE,
            len: 0,
            arrivals: 0,
        }
    }
}

impl<T: Copy> SecondChance<T> {
    /// How many objects stand in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An object has come.
    ///
    /// # Panics
    /// If 2^32 − 1 objects stand in it.
    pub fn insert(&mut self, value: T) -> Place {
        let link = Link {
            value,
            arrival: 0,
            newer: NONE,
            older: NONE,
            is_visited: false,
            is_used: true,
        };
        let place = if self.spare == NONE {
            let place = u32::try_from(self.links.0.len()).expect("fewer than 2^32 objects");
            assert_ne!(place, NONE, "fewer than 2^32 - 1 objects");
            self.links.0.push(link);
            place
        } else {
            let place = self.spare;
            self.spare = self.links[place].newer;
            self.links[place] = link;
            place
        };
        self.append(place);
        self.len += 1;
        Place(place)
    }

    /// Puts a place behind all others.
    fn append(&mut self, place: u32) {
        let (newest, arrival) = (self.newest, self.arrivals);
        let link = &mut self.links[place];
        (link.older, link.newer, link.arrival) = (newest, NONE, arrival);
        match newest {
            NONE => self.oldest = place,
            newest => self.links[newest].newer = place,
        }
        self.newest = place;
        self.arrivals += 1;
    }

    /// An object was used.
    ///
    /// # Panics
    /// If no object stands there.
    pub fn visit(&mut self, place: Place) {
        self.used_mut(place).is_visited = true;
    }

    /// Whether it was used since it came or was last put behind the others.
    ///
    /// # Panics
    /// If no object stands there.
    #[must_use]
    pub fn is_visited(&self, place: Place) -> bool {
        self.used(place).is_visited
    }

    /// How late an object came, or was last put behind the others, in sixteenths of all that have since the oldest one: 0 is old, 15 is new.
    ///
    /// # Panics
    /// If no object stands there.
    #[must_use]
    pub fn sixteenth(&self, place: Place) -> u64 {
        let oldest = self.links[self.oldest].arrival;
        16 * (self.used(place).arrival - oldest) / (self.arrivals - oldest)
    }

    /// An object goes, by eviction or otherwise.
    ///
    /// # Panics
    /// If no object stands there.
    pub fn remove(&mut self, place: Place) -> T {
        let value = self.used(place).value;
        self.unlink(place.0);
        let spare = self.spare;
        let link = &mut self.links[place.0];
        link.is_used = false;
        link.newer = spare;
        self.spare = place.0;
        self.len -= 1;
        value
    }

    fn unlink(&mut self, place: u32) {
        let &Link { newer, older, .. } = &self.links[place];
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older].newer = newer,
        }
    }

    /// The oldest object that may go. Those before it that are marked, or must not go, are put behind the others without a mark; at most
    /// `passes_max` objects are looked at, and what is left of that number is left there.
    pub fn candidate(&mut self, passes_max: &mut usize, mut may_go: impl FnMut(&T) -> bool) -> Option<(Place, T)> {
        while self.len > 0 && *passes_max > 0 {
            *passes_max -= 1;
            let place = self.oldest;
            let link = &mut self.links[place];
            let value = link.value;
            if !std::mem::take(&mut link.is_visited) && may_go(&value) {
                return Some((Place(place), value));
            }
            self.unlink(place);
            self.append(place);
        }
        None
    }

    /// All objects, the oldest first.
    pub fn oldest_first(&self) -> impl Iterator<Item = (Place, T)> {
        let next = |&place: &u32| Some(self.links[place].newer).filter(|&newer| newer != NONE);
        let places = std::iter::successors(Some(self.oldest).filter(|&oldest| oldest != NONE), next);
        places.map(|place| (Place(place), self.links[place].value))
    }

    fn used(&self, place: Place) -> &Link<T> {
        let link = &self.links[place.0];
        assert!(link.is_used, "no object stands at {place:?}");
        link
    }

    fn used_mut(&mut self, place: Place) -> &mut Link<T> {
        let link = &mut self.links[place.0];
        assert!(link.is_used, "no object stands at {place:?}");
        link
    }

    /// Panics if the links do not agree. O(n): for tests.
    pub fn check_invariants(&self) {
        let (mut place, mut older, mut seen) = (self.oldest, NONE, 0);
        while place != NONE {
            let link = &self.links[place];
            assert!(link.is_used && link.older == older, "the queue is broken at {place}");
            assert!(
                older == NONE || self.links[older].arrival < link.arrival,
                "the queue is out of order"
            );
            (older, place) = (place, link.newer);
            seen += 1;
        }
        assert_eq!(
            (older, seen),
            (self.newest, self.len),
            "objects are missing in the queue"
        );
    }
}

impl<T> Index<u32> for Links<T> {
    type Output = Link<T>;

    fn index(&self, place: u32) -> &Link<T> {
        &self.0[place as usize]
    }
}

impl<T> IndexMut<u32> for Links<T> {
    fn index_mut(&mut self, place: u32) -> &mut Link<T> {
        &mut self.0[place as usize]
    }
}

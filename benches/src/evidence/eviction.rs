//! Orders of eviction over numbered objects, for experiments without a store: the store's own, others to compare it with, and one that knows what will
//! be asked for.

use std::collections::{BTreeSet, VecDeque};

use tenon_store_core::eviction::{Place, SecondChance};

/// Which object goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eviction {
    /// None ever goes.
    Off,
    /// The one that came first.
    Fifo,
    /// The one that was asked for least recently.
    Lru,
    /// The oldest that was not asked for since a hand last passed it.
    Sieve,
    /// The store's own: the oldest; one that was asked for is put behind the others once instead.
    Clock,
    /// The one that will be asked for latest, or never again: the optimum for objects of one size (Belady 1966), if each that is asked for is let in.
    Offline,
}

impl Eviction {
    pub(super) const ALL: [Self; 6] = [
        Self::Off,
        Self::Fifo,
        Self::Lru,
        Self::Sieve,
        Self::Clock,
        Self::Offline,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Sieve => "sieve",
            Self::Clock => "clock",
            Self::Offline => "offline",
        }
    }
}

const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    newer: usize,
    older: usize,
    is_visited: bool,
}

/// Objects in an order of eviction.
#[derive(Debug)]
pub(super) enum Queue {
    /// Those that are compared with.
    Listed(Listed),
    /// The store's own.
    Own {
        queue: SecondChance<usize>,
        places: Vec<Option<Place>>,
    },
    /// The one that knows what comes.
    Foreseeing(Foreseeing),
}

impl Queue {
    /// No objects yet, of which the numbers are below `numbers` and will be asked for in this order.
    pub(super) fn new(eviction: Eviction, numbers: usize, order: impl Iterator<Item = usize>) -> Self {
        match eviction {
            Eviction::Offline => Self::Foreseeing(Foreseeing::new(numbers, order)),
            Eviction::Clock => Self::Own {
                queue: SecondChance::default(),
                places: vec![None; numbers],
            },
            eviction => Self::Listed(Listed::new(eviction, numbers)),
        }
    }

    /// An object is asked for, whether it is there or not; it is then visited, or inserted, or not let in.
    pub(super) fn asked(&mut self, number: usize) {
        if let Self::Foreseeing(foreseeing) = self {
            foreseeing.asked(number);
        }
    }

    /// An object has come.
    pub(super) fn insert(&mut self, number: usize) {
        match self {
            Self::Foreseeing(foreseeing) => foreseeing.insert(number),
            Self::Listed(listed) => listed.insert(number),
            Self::Own { queue, places } => places[number] = Some(queue.insert(number)),
        }
    }

    /// An object was asked for.
    pub(super) fn visit(&mut self, number: usize) {
        match self {
            // It was put where it belongs when it was asked for.
            Self::Foreseeing(_) => {}
            Self::Listed(listed) => listed.visit(number),
            Self::Own { queue, places } => queue.visit(places[number].expect("it is there")),
        }
    }

    /// Takes out the object that is to go, if one is.
    pub(super) fn evict(&mut self) -> Option<usize> {
        match self {
            Self::Foreseeing(foreseeing) => foreseeing.present.pop_last().map(|(_, number)| number),
            Self::Listed(listed) => listed.evict(),
            Self::Own { queue, places } => {
                let mut passes = usize::MAX;
                let (place, number) = queue.candidate(&mut passes, |_| true)?;
                places[number] = None;
                Some(queue.remove(place))
            }
        }
    }
}

/// Objects in the order in which they will be asked for.
#[derive(Debug)]
pub(super) struct Foreseeing {
    /// When each object will be asked for.
    uses: Vec<VecDeque<usize>>,
    /// Those that are there, by when they will be asked for next.
    present: BTreeSet<(usize, usize)>,
}

impl Foreseeing {
    fn new(numbers: usize, order: impl Iterator<Item = usize>) -> Self {
        let mut uses = vec![VecDeque::new(); numbers];
        for (time, number) in order.enumerate() {
            uses[number].push_back(time);
        }
        let present = BTreeSet::new();
        Self { uses, present }
    }

    fn next(&self, number: usize) -> usize {
        self.uses[number].front().copied().unwrap_or(NONE)
    }

    fn asked(&mut self, number: usize) {
        let is_present = self.present.remove(&(self.next(number), number));
        self.uses[number].pop_front();
        if is_present {
            self.insert(number);
        }
    }

    fn insert(&mut self, number: usize) {
        self.present.insert((self.next(number), number));
    }
}

/// Objects in the order in which they came, or were last asked for.
#[derive(Debug)]
pub(super) struct Listed {
    eviction: Eviction,
    links: Vec<Links>,
    newest: usize,
    oldest: usize,
    /// Where the hand of [`Eviction::Sieve`] stands.
    hand: usize,
}

impl Listed {
    fn new(eviction: Eviction, numbers: usize) -> Self {
        let none = Links {
            newer: NONE,
            older: NONE,
            is_visited: false,
        };
        Self {
            eviction,
            links: vec![none; numbers],
            newest: NONE,
            oldest: NONE,
            hand: NONE,
        }
    }

    fn insert(&mut self, number: usize) {
        self.links[number] = Links {
            newer: NONE,
            older: self.newest,
            is_visited: false,
        };
        match self.newest {
            NONE => self.oldest = number,
            newest => self.links[newest].newer = number,
        }
        self.newest = number;
    }

    fn visit(&mut self, number: usize) {
        match self.eviction {
            Eviction::Lru => {
                self.remove(number);
                self.insert(number);
            }
            Eviction::Sieve => self.links[number].is_visited = true,
            Eviction::Off | Eviction::Fifo | Eviction::Clock | Eviction::Offline => {}
        }
    }

    fn evict(&mut self) -> Option<usize> {
        let victim = match self.eviction {
            Eviction::Off | Eviction::Clock | Eviction::Offline => return None,
            Eviction::Fifo | Eviction::Lru => self.oldest,
            Eviction::Sieve => self.sieved(),
        };
        if victim == NONE {
            return None;
        }
        self.remove(victim);
        Some(victim)
    }

    fn sieved(&mut self) -> usize {
        let mut hand = if self.hand == NONE { self.oldest } else { self.hand };
        while hand != NONE && self.links[hand].is_visited {
            self.links[hand].is_visited = false;
            hand = match self.links[hand].newer {
                NONE => self.oldest,
                newer => newer,
            };
        }
        if hand != NONE {
            self.hand = self.links[hand].newer;
        }
        hand
    }

    fn remove(&mut self, number: usize) {
        let Links { newer, older, .. } = self.links[number];
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older].newer = newer,
        }
        if self.hand == number {
            self.hand = newer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt as _, SeedableRng as _};
    use rand_chacha::ChaCha8Rng;

    /// Objects 0 to 3 come, 0 and 2 are asked for: who goes, one after the other?
    fn gone(eviction: Eviction) -> Vec<usize> {
        let mut queue = Queue::new(eviction, 4, [0, 1, 2, 3, 0, 2].into_iter());
        (0..4).for_each(|number| queue.insert(number));
        [0, 2].into_iter().for_each(|number| queue.visit(number));
        std::iter::from_fn(|| queue.evict()).collect()
    }

    #[test]
    fn each_order_lets_its_own_go_first() {
        assert!(gone(Eviction::Off).is_empty());
        assert_eq!(gone(Eviction::Fifo), [0, 1, 2, 3]);
        assert_eq!(gone(Eviction::Lru), [1, 3, 0, 2]);
        assert_eq!(gone(Eviction::Sieve), [1, 3, 0, 2]);
        assert_eq!(gone(Eviction::Clock), [1, 3, 0, 2]);
    }

    /// Hits of a cache of `room` objects.
    fn hits(eviction: Eviction, order: &[usize], room: usize) -> usize {
        let mut queue = Queue::new(eviction, 5, order.iter().copied());
        let mut present = BTreeSet::new();
        let is_hit = |&&number: &&usize| {
            queue.asked(number);
            if present.contains(&number) {
                queue.visit(number);
                return true;
            }
            if present.len() == room {
                present.remove(&queue.evict().expect("something is there"));
            }
            present.insert(number);
            queue.insert(number);
            false
        };
        order.iter().filter(is_hit).count()
    }

    /// All ways to choose what goes.
    fn most_hits(order: &[usize], present: &BTreeSet<usize>, room: usize) -> usize {
        let Some((&number, rest)) = order.split_first() else {
            return 0;
        };
        if present.contains(&number) {
            return 1 + most_hits(rest, present, room);
        }
        let with = |gone: Option<usize>| {
            let mut present = present.clone();
            gone.map(|gone| present.remove(&gone));
            present.insert(number);
            most_hits(rest, &present, room)
        };
        match present.len() < room {
            true => with(None),
            false => present.iter().map(|&gone| with(Some(gone))).max().unwrap_or(0),
        }
    }

    #[test]
    fn no_choice_has_more_hits_than_the_one_that_knows_what_comes() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..200 {
            let order: Vec<usize> = (0..12).map(|_| rng.random_range(0..5)).collect();
            let best = hits(Eviction::Offline, &order, 3);
            assert_eq!(best, most_hits(&order, &BTreeSet::new(), 3), "{order:?}");
            assert!(Eviction::ALL[1..].iter().all(|&other| hits(other, &order, 3) <= best));
        }
    }

    #[test]
    fn what_was_evicted_may_come_again() {
        let mut queue = Queue::new(Eviction::Sieve, 2, std::iter::empty());
        queue.insert(0);
        assert_eq!((queue.evict(), queue.evict()), (Some(0), None));
        queue.insert(1);
        queue.insert(0);
        queue.visit(1);
        assert_eq!((queue.evict(), queue.evict(), queue.evict()), (Some(0), Some(1), None));
    }
}

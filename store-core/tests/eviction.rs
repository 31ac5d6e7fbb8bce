//! The order of eviction, beside a list that is searched from end to end.

use proptest::prelude::*;
use tenon_store_core::eviction::{Place, SecondChance};

/// The same, as plainly as possible: the oldest first, with their marks.
#[derive(Debug, Default)]
struct Model(Vec<(u32, bool)>);

impl Model {
    fn position(&self, object: u32) -> usize {
        self.0
            .iter()
            .position(|(other, _)| *other == object)
            .expect("it is there")
    }

    fn remove(&mut self, object: u32) {
        self.0.remove(self.position(object));
    }

    fn candidate(&mut self, passes_max: usize, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..passes_max {
            let &(object, is_visited) = self.0.first()?;
            if !is_visited && may_go(object) {
                return Some(object);
            }
            self.0.rotate_left(1);
            self.0.last_mut()?.1 = false;
        }
        None
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Insert,
    Visit(usize),
    Remove(usize),
    /// At most so many are looked at; objects whose number this divides must not go.
    Candidate {
        passes_max: usize,
        kept: u32,
    },
    Evict,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => Just(Operation::Insert),
        4 => any::<usize>().prop_map(Operation::Visit),
        1 => any::<usize>().prop_map(Operation::Remove),
        2 => (0usize..20, 2u32..5).prop_map(|(passes_max, kept)| Operation::Candidate { passes_max, kept }),
        3 => Just(Operation::Evict),
    ]
}

proptest! {
    #[test]
    fn objects_go_in_the_same_order_as_from_a_plain_list(operations in prop::collection::vec(operation(), 1..200)) {
        let (mut queue, mut model) = (SecondChance::default(), Model::default());
        let mut places: Vec<(u32, Place)> = Vec::new();
        for (number, operation) in (0..).zip(operations) {
            match operation {
                Operation::Insert => {
                    places.push((number, queue.insert(number)));
                    model.0.push((number, false));
                }
                Operation::Visit(which) if !places.is_empty() => {
                    let (object, place) = places[which % places.len()];
                    queue.visit(place);
                    let position = model.position(object);
                    model.0[position].1 = true;
                }
                Operation::Remove(which) if !places.is_empty() => {
                    let (object, place) = places.remove(which % places.len());
                    prop_assert_eq!(queue.remove(place), object);
                    model.remove(object);
                }
                Operation::Candidate { passes_max, kept } => {
                    let mut left = passes_max;
                    let found = queue.candidate(&mut left, |object| object % kept != 0);
                    prop_assert_eq!(found.map(|(_, object)| object), model.candidate(passes_max, |object| object % kept != 0));
                }
                Operation::Evict => {
                    let mut left = usize::MAX;
                    let found = queue.candidate(&mut left, |_| true);
                    prop_assert_eq!(found.map(|(_, object)| object), model.candidate(usize::MAX, |_| true));
                    if let Some((place, object)) = found {
                        prop_assert_eq!(queue.remove(place), object);
                        model.remove(object);
                        places.retain(|(other, _)| *other != object);
                    }
                }
                _ => {}
            }
            queue.check_invariants();
            prop_assert_eq!(queue.len(), model.0.len());
            let found: Vec<u32> = queue.oldest_first().map(|(_, object)| object).collect();
            let expected: Vec<u32> = model.0.iter().map(|(object, _)| *object).collect();
            prop_assert_eq!(found, expected);
            for (object, place) in &places {
                prop_assert_eq!(queue.is_visited(*place), model.0[model.position(*object)].1);
            }
        }
    }
}

#[test]
fn what_is_used_stays_for_another_round_and_what_is_not_goes() {
    let mut queue = SecondChance::default();
    let places: Vec<Place> = (0..4).map(|object| queue.insert(object)).collect();
    for used in [0, 2] {
        queue.visit(places[used]);
    }
    let gone = std::iter::from_fn(|| {
        let (place, _) = queue.candidate(&mut 100, |_| true)?;
        Some(queue.remove(place))
    });
    assert_eq!(gone.collect::<Vec<_>>(), [1, 3, 0, 2]);
}

#[test]
fn what_must_not_go_is_passed_and_no_more_is_passed_than_may_be() {
    let mut queue = SecondChance::default();
    let places: Vec<Place> = (0..10).map(|object| queue.insert(object)).collect();
    let mut passes = 4;
    assert_eq!(queue.candidate(&mut passes, |_| false), None);
    assert_eq!(passes, 0);
    let mut passes = 1;
    assert_eq!(queue.candidate(&mut passes, |_| true), Some((places[4], 4)));
    assert_eq!(queue.candidate(&mut 100, |object| *object == 2), Some((places[2], 2)));
}

#[test]
fn age_is_told_in_sixteenths_of_what_came_since_the_oldest() {
    let mut queue = SecondChance::default();
    let places: Vec<Place> = (0..32).map(|object| queue.insert(object)).collect();
    assert_eq!(queue.sixteenth(places[0]), 0);
    assert_eq!(queue.sixteenth(places[31]), 15);
    for place in &places[..16] {
        queue.remove(*place);
    }
    assert_eq!((queue.sixteenth(places[16]), queue.sixteenth(places[24])), (0, 8));
}

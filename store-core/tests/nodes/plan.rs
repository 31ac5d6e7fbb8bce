//! Plans: refusals, silence, old hints, batches, replicas.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tenon_store_core::placement::nodes::{
    Action, Event, ItemOutcome, NodeIndex, NodePlan, NodePolicy, PlanError, PlanItem, PlanStop, Why,
};

use crate::cluster::{Cluster, SPREAD};

fn one(len_bytes: u64) -> [PlanItem; 1] {
    [PlanItem { len_bytes, replicas: 1 }]
}

fn cluster(frees_bytes: &[u64]) -> Cluster {
    let mut cluster = Cluster::new(SPREAD, 7);
    for (node, &free_bytes) in frees_bytes.iter().enumerate() {
        cluster.join(1000);
        cluster.set_free(node, free_bytes);
        cluster.tell(node);
    }
    cluster
}

#[test]
fn a_wrong_hope_costs_one_refusal_which_brings_the_fresh_hint() {
    let mut cluster = cluster(&[900, 100]);
    cluster.set_free(0, 50);
    assert_eq!(cluster.put_one(80), Some(1));
    assert_eq!(cluster.asked, [(0, vec![0]), (1, vec![0])]);
    assert_eq!(cluster.table.hint(NodeIndex(0)).unwrap().free_bytes, 50);
    cluster.asked.clear();
    assert_eq!(cluster.put_one(20), Some(0));
    assert_eq!(cluster.asked.len(), 1, "what is known to have no room is not asked");
}

#[test]
fn before_there_is_no_space_all_passed_over_nodes_are_looked_at_at_once() {
    let mut cluster = cluster(&[10, 10, 10, 10]);
    // Node 2 has been freed since it last said something.
    cluster.set_free(2, 800);
    let mut plan = NodePlan::new(&one(500)).unwrap();
    let actions = plan.start(&mut cluster.table, &mut ChaCha8Rng::seed_from_u64(1));
    let look = |node| Action::Look {
        node: NodeIndex(node),
        items: vec![0],
    };
    assert_eq!(actions, [0, 1, 2, 3].map(look));
    assert_eq!(cluster.put_one(500), Some(2));
    assert_eq!(cluster.asked, [(2, vec![0])], "only who may have room is asked for it");
    cluster.asked.clear();
    cluster.looked_at.clear();
    match cluster.put(&one(500)).remove(0) {
        ItemOutcome::NoSpace(no_space) => {
            assert_eq!(
                (no_space.asked, no_space.refused, no_space.stop),
                (4, 4, PlanStop::AllRefused)
            );
            assert_eq!(
                (
                    no_space.len_bytes,
                    no_space.free_bytes,
                    no_space.largest_free_upper_bound_bytes
                ),
                (500, 330, 300)
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        (cluster.looked_at.len(), cluster.asked.len()),
        (4, 0),
        "each node is looked at once"
    );
}

#[test]
fn a_confirmation_sets_nothing_aside_that_is_not_needed() {
    let mut cluster = cluster(&[10, 10, 10]);
    (0..3).for_each(|node| cluster.set_free(node, 500));
    assert!(cluster.put_one(400).is_some());
    assert_eq!((cluster.looked_at.len(), cluster.asked.len()), (3, 1));
    let free_bytes: u64 = cluster.nodes.iter().map(|node| node.free_bytes).sum();
    assert_eq!(free_bytes, 3 * 500 - 400);
}

#[test]
fn a_node_that_hints_otherwise_after_it_said_yes_is_asked_all_the_same() {
    let mut cluster = cluster(&[10, 10]);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut plan = NodePlan::new(&one(400)).unwrap();
    assert_eq!(plan.start(&mut cluster.table, &mut rng).len(), 2);
    cluster.set_free(0, 500);
    let yes = Event::Looked {
        node: NodeIndex(0),
        items: vec![(0, true)],
        hint: cluster.hint(0),
    };
    // What it says later is heard first.
    cluster.set_free(0, 5);
    cluster.tell(0);
    let ask = Action::Reserve {
        node: NodeIndex(0),
        items: vec![0],
        why: Why::Confirmation,
    };
    assert_eq!(plan.on(yes, &mut cluster.table, &mut rng), [ask]);
    let no = Event::Looked {
        node: NodeIndex(1),
        items: vec![(0, false)],
        hint: cluster.hint(1),
    };
    assert_eq!(plan.on(no, &mut cluster.table, &mut rng), []);
    let refused = Event::Answered {
        node: NodeIndex(0),
        items: vec![(0, false)],
        hint: cluster.hint(0),
    };
    assert_eq!(plan.on(refused, &mut cluster.table, &mut rng), [Action::Finish]);
    match &plan.outcomes(&cluster.table)[0] {
        ItemOutcome::NoSpace(no_space) => assert_eq!((no_space.stop, no_space.refused), (PlanStop::AllRefused, 2)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_as_many_puts_at_once_as_there_are_holes_none_is_refused() {
    for seed in 0..2_000 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut cluster = Cluster::new(if seed % 2 == 0 { SPREAD } else { NodePolicy::default() }, seed);
        let mut holes = 0;
        for node in 0..random.random_range(2..6) {
            cluster.join(1000);
            let holes_here = random.random_range(0..3);
            holes += holes_here;
            // What is told is right, too little or too much.
            cluster.set_free(node, [holes_here * 100 + 50, 10, 800][random.random_range(0..3)]);
            cluster.tell(node);
            cluster.set_free(node, holes_here * 100 + 50);
        }
        cluster.table.set_local(NodeIndex(0));
        let lens_bytes = vec![100; usize::try_from(holes).unwrap()];
        let outcomes = cluster.put_at_once(&lens_bytes, &mut random);
        let is_placed = |outcome: &ItemOutcome| matches!(outcome, ItemOutcome::Placed(_));
        assert!(outcomes.iter().all(is_placed), "seed {seed}: {outcomes:?}");
    }
}

#[test]
fn a_silent_node_is_given_up_and_another_one_asked() {
    let mut cluster = cluster(&[900, 100]);
    cluster.nodes[0].is_silent = true;
    assert_eq!(cluster.put_one(80), Some(1));
    cluster.nodes[1].is_silent = true;
    match cluster.put(&one(80)).remove(0) {
        ItemOutcome::NoSpace(no_space) => assert_eq!((no_space.stop, no_space.refused), (PlanStop::SomeSilent, 0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn after_the_deadline_everything_under_way_is_released() {
    let mut cluster = cluster(&[900]);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut plan = NodePlan::new(&one(80)).unwrap();
    let node = NodeIndex(0);
    assert_eq!(
        plan.start(&mut cluster.table, &mut rng),
        [Action::Reserve {
            node,
            items: vec![0],
            why: Why::Drawn
        }]
    );
    let release = Action::Release { node, item: 0 };
    let actions = plan.on(Event::Deadline, &mut cluster.table, &mut rng);
    assert_eq!(actions, [release.clone(), Action::Finish]);
    let late = Event::Answered {
        node,
        items: vec![(0, true)],
        hint: cluster.hint(0),
    };
    assert_eq!(plan.on(late, &mut cluster.table, &mut rng), [release]);
    match &plan.outcomes(&cluster.table)[0] {
        ItemOutcome::NoSpace(no_space) => assert_eq!(no_space.stop, PlanStop::Deadline),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_item_of_a_batch_goes_where_another_one_is_about_to_take_the_room() {
    for lens_bytes in [vec![40, 40, 40, 20, 20, 20], vec![60, 60, 60, 4, 4, 4]] {
        for seed in 0..50 {
            for policy in [SPREAD, NodePolicy::default()] {
                let mut cluster = Cluster::new(policy, seed);
                cluster.join_all([64, 64, 64]);
                cluster.table.set_local(NodeIndex(0));
                let item = |&len_bytes: &u64| PlanItem { len_bytes, replicas: 1 };
                let items: Vec<PlanItem> = lens_bytes.iter().map(item).collect();
                let outcomes = cluster.put(&items);
                let is_placed = |outcome: &ItemOutcome| matches!(outcome, ItemOutcome::Placed(_));
                assert!(
                    outcomes.iter().all(is_placed),
                    "{lens_bytes:?}, seed {seed}: {outcomes:?}"
                );
            }
        }
    }
}

#[test]
fn items_of_a_batch_do_not_race_for_the_room_of_one_node() {
    for (lens_bytes, told_bytes, free_bytes) in [
        // The short one has a node that is known to have no room until it is looked at.
        ([60, 20], [64, 10], [64, 24]),
        // Or one that has nothing to do with it.
        ([60, 20], [64, 24], [64, 24]),
        ([60, 40], [64, 10], [70, 45]),
    ] {
        for seed in 0..500 {
            let mut cluster = Cluster::new(SPREAD, seed);
            for node in 0..2 {
                cluster.join(100);
                cluster.set_free(node, told_bytes[node]);
                cluster.tell(node);
                cluster.set_free(node, free_bytes[node]);
            }
            let items = lens_bytes.map(|len_bytes| PlanItem { len_bytes, replicas: 1 });
            let outcomes = cluster.put_in_any_order(&items, &mut ChaCha8Rng::seed_from_u64(seed));
            let is_placed = |outcome: &ItemOutcome| matches!(outcome, ItemOutcome::Placed(_));
            assert!(
                outcomes.iter().all(is_placed),
                "{lens_bytes:?}, seed {seed}: {outcomes:?}"
            );
        }
    }
}

#[test]
fn a_batch_goes_to_one_node_in_one_question_as_far_as_that_has_room() {
    let mut cluster = cluster(&[800, 800, 800]);
    let items = [PlanItem {
        len_bytes: 10,
        replicas: 1,
    }; 64];
    cluster.put(&items);
    assert_eq!(cluster.asked.len(), 1);
    cluster.asked.clear();
    let outcomes = cluster.put(
        &[PlanItem {
            len_bytes: 100,
            replicas: 1,
        }; 15],
    );
    assert!(outcomes.iter().all(|outcome| matches!(outcome, ItemOutcome::Placed(_))));
    assert!(cluster.asked.len() <= 3, "{:?}", cluster.asked);
}

#[test]
fn replicas_are_on_different_nodes_and_fewer_are_a_success() {
    let mut cluster = cluster(&[500, 500, 0, 500]);
    let outcome = cluster
        .put(&[PlanItem {
            len_bytes: 400,
            replicas: 4,
        }])
        .remove(0);
    let ItemOutcome::Placed(mut nodes) = outcome else {
        panic!("{outcome:?}")
    };
    nodes.sort_unstable();
    assert_eq!(nodes, [0, 1, 3].map(NodeIndex));
}

#[test]
fn items_that_cannot_be_are_named() {
    let items = [one(1)[0], one(0)[0]];
    assert_eq!(NodePlan::new(&items).err(), Some(PlanError::ZeroLength { item: 1 }));
    let item = PlanItem {
        len_bytes: 1,
        replicas: 0,
    };
    assert_eq!(NodePlan::new(&[item]).err(), Some(PlanError::ZeroReplicas { item: 0 }));
}

proptest! {
    /// Hints may be old in either direction, nodes silent: no put of one item fails while a node that answers could hold it.
    #[test]
    fn a_put_fails_only_if_no_node_that_answers_has_room(
        nodes in prop::collection::vec((0..1000_u64, 0..1000_u64, prop::bool::weighted(0.2)), 1..12),
        lengths in prop::collection::vec((1..600_u64, 1..3_u32), 1..8),
        seed in any::<u64>(),
    ) {
        let mut cluster = Cluster::new(SPREAD, seed);
        for (node, &(told_bytes, free_bytes, is_silent)) in nodes.iter().enumerate() {
            cluster.join(1000);
            cluster.set_free(node, told_bytes);
            cluster.tell(node);
            cluster.set_free(node, free_bytes);
            cluster.nodes[node].is_silent = is_silent;
        }
        let free_bytes = |cluster: &Cluster| cluster.nodes.iter().map(|node| node.free_bytes).sum::<u64>();
        for (len_bytes, replicas) in lengths {
            let before_bytes = free_bytes(&cluster);
            let fitting = cluster.nodes.iter().filter(|node| !node.is_silent && node.free_bytes >= len_bytes).count();
            let outcome = cluster.put(&[PlanItem { len_bytes, replicas }]).remove(0);
            let placed = match outcome {
                ItemOutcome::Placed(nodes) => nodes,
                ItemOutcome::NoSpace(_) => Vec::new(),
            };
            prop_assert_eq!(placed.is_empty(), fitting == 0);
            prop_assert!(placed.len() <= replicas as usize);
            prop_assert_eq!(free_bytes(&cluster) + placed.len() as u64 * len_bytes, before_bytes, "room leaks");
        }
    }
}

//! Which node is asked first.

use std::collections::VecDeque;

use tenon_store_core::placement::nodes::{Affinity, NodeHint, NodeIndex, NodePolicy, NodeTable, PolicyError};

use crate::cluster::{Cluster, SPREAD};

const UNIT: u64 = 1 << 20;

#[test]
fn a_node_that_joins_empty_gets_at_most_three_times_its_share_in_any_window() {
    for seed in 0..5 {
        let mut cluster = Cluster::new(SPREAD, seed);
        cluster.join_all([4000 * UNIT; 7]);
        for _ in 0..7 * 2800 {
            cluster.put_one(UNIT).unwrap();
        }
        let joined = cluster.join(4000 * UNIT).0;
        let mut window = VecDeque::new();
        let mut most = 0;
        for _ in 0..4000 {
            window.push_back(cluster.put_one(UNIT).unwrap());
            if window.len() == 200 {
                most = most.max(window.iter().filter(|&&node| node == joined).count());
                window.pop_front();
            }
        }
        assert!(most <= 3 * 200 / 8, "{most} of 200 puts went to the new node");
        assert!(most > 200 / 8, "the new node is not filled up");
    }
}

#[test]
fn unequal_nodes_stay_level_while_they_fill() {
    for seed in 0..100 {
        let mut cluster = Cluster::new(SPREAD, seed);
        let capacities = [400, 1000];
        cluster.join_all(capacities.map(|units| units * UNIT));
        for put in 1..=1400 {
            cluster.put_one(UNIT).expect("room until the last unit");
            if put >= 700 && put % 140 == 0 {
                let used = |node: usize| {
                    1.0 - cluster.nodes[node].free_bytes as f64 / cluster.nodes[node].capacity_bytes as f64
                };
                let difference = (used(0) - used(1)).abs();
                assert!(difference <= 0.01, "seed {seed}: {difference} apart after {put} puts");
            }
        }
        assert_eq!(cluster.put_one(UNIT), None);
    }
}

#[test]
fn the_local_node_comes_first_until_it_is_as_full_as_its_limit() {
    let mut cluster = Cluster::new(
        NodePolicy {
            affinity: Affinity::Local,
            local_until_percent: 60,
        },
        1,
    );
    cluster.join_all([100 * UNIT; 4]);
    cluster.table.set_local(NodeIndex(2));
    for _ in 0..60 {
        assert_eq!(cluster.put_one(UNIT), Some(2));
    }
    let elsewhere = (0..90).filter(|_| cluster.put_one(UNIT) != Some(2)).count();
    assert!(elsewhere >= 80, "{elsewhere} of 90");
}

#[test]
fn an_unusable_node_is_never_asked() {
    let mut cluster = Cluster::new(SPREAD, 1);
    cluster.join_all([100 * UNIT; 3]);
    cluster.table.set_usable(NodeIndex(1), false);
    while cluster.put_one(UNIT).is_some() {}
    assert!(cluster.asked.iter().all(|&(node, _)| node != 1));
    cluster.table.set_usable(NodeIndex(1), true);
    assert_eq!(cluster.put_one(UNIT), Some(1));
}

#[test]
fn a_node_of_which_nothing_is_known_is_asked() {
    let mut cluster = Cluster::new(SPREAD, 3);
    cluster.join_all([100 * UNIT; 3]);
    let mut table = NodeTable::new(SPREAD).unwrap();
    for _ in 0..3 {
        table.add();
    }
    (0..2).for_each(|node| table.hear(NodeIndex(node), cluster.hint(node)));
    cluster.table = table;
    let to_unknown = (0..60).filter(|_| cluster.put_one(UNIT) == Some(2)).count();
    assert!(to_unknown > 0);
    assert!(
        cluster.table.hint(NodeIndex(2)).is_some(),
        "the first answer brings the hint"
    );
}

#[test]
fn of_two_hints_the_newer_one_stays() {
    let mut table = NodeTable::new(SPREAD).unwrap();
    assert!(table.is_empty());
    let node = table.add();
    let hint = |version, free_bytes| NodeHint {
        version,
        capacity_bytes: 100,
        free_bytes,
        largest_free_upper_bound_bytes: free_bytes,
    };
    table.hear(node, hint((1, 9), 40));
    table.hear(node, hint((1, 8), 50));
    assert_eq!(table.hint(node).unwrap().free_bytes, 40);
    table.hear(node, hint((2, 1), 90));
    assert_eq!((table.hint(node).unwrap().free_bytes, table.len()), (90, 1));
}

#[test]
fn names_and_limits_that_cannot_be_are_refused() {
    assert_eq!("local".parse(), Ok(Affinity::Local));
    assert_eq!("spread".parse(), Ok(Affinity::Spread));
    let error = "near".parse::<Affinity>().unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"unknown placement affinity "near": expected one of local, spread"#
    );
    let policy = NodePolicy {
        local_until_percent: 101,
        ..SPREAD
    };
    assert_eq!(
        NodeTable::new(policy).err(),
        Some(PolicyError::LocalUntil { percent: 101 })
    );
}

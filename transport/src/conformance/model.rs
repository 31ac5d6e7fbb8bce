//! Random batches, compared with the plainest thing that could be right.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::{Fixture, SESSION, assert_done, soon};
use crate::engine::{Op, Transfer};
use crate::exports::{Export, Rights, Scope, Unguarded};
use crate::memory::{Memory, Slice};

/// Bytes of the owner's and of our memory.
const LEN: usize = 5 << 20;
const BATCHES: usize = 25;
const SEEDS: u64 = 3;

/// Random batches of reads and writes over ranges that do not overlap within a batch leave both memories as a model of
/// two vectors says. A failure names its seed.
pub async fn random_batches_match_a_naive_model(fixture: &impl Fixture) {
    for seed in 0..SEEDS {
        let mut chance = StdRng::seed_from_u64(seed);
        let owner = Arc::new(Memory::from_vec(vec![1; LEN])).whole();
        let ours = Arc::new(Memory::from_vec(vec![2; LEN]));
        let export = |rights| Export {
            memory: owner.clone(),
            rights,
            scope: Scope::Session(SESSION),
            guard: Arc::new(Unguarded),
        };
        let read_key = fixture
            .exports()
            .add(export(Rights::Read))
            .expect("there is room for an export");
        let write_key = fixture
            .exports()
            .add(export(Rights::Write))
            .expect("there is room for an export");
        let connection = fixture.connect(SESSION).await;
        let (mut model_owner, mut model_ours) = (vec![1; LEN], vec![2; LEN]);
        for batch_number in 0..BATCHES {
            let moves = random_moves(&mut chance);
            // What is written is fresh, so that a write that does not land shows.
            for step in moves.iter().filter(|step| step.op == Op::Write) {
                let fresh: Vec<u8> = (0..step.len).map(|_| chance.random()).collect();
                ours.copy_in(step.ours as u64, &fresh).expect("it lies inside");
                model_ours[step.ours..step.ours + step.len].copy_from_slice(&fresh);
            }
            let batch = moves
                .iter()
                .map(|step| Transfer {
                    op: step.op,
                    key: if step.op == Op::Read { read_key } else { write_key },
                    remote_offset_bytes: step.owners as u64,
                    local: scatter(&ours, step, &mut chance),
                    group: step.group,
                })
                .collect();
            let results = connection.submit(batch, soon()).await;
            for (step, result) in moves.iter().zip(&results) {
                let (owners, here) = (step.owners..step.owners + step.len, step.ours..step.ours + step.len);
                match step.op {
                    Op::Read => model_ours[here.clone()].copy_from_slice(&model_owner[owners]),
                    Op::Write => model_owner[owners].copy_from_slice(&model_ours[here.clone()]),
                }
                assert_done(result, &model_ours[here]);
            }
            assert!(
                owner.to_vec() == model_owner,
                "seed {seed}, batch {batch_number}: the owner's memory"
            );
            assert!(
                ours.whole().to_vec() == model_ours,
                "seed {seed}, batch {batch_number}: our memory"
            );
        }
        fixture.exports().revoke(read_key);
        fixture.exports().revoke(write_key);
    }
}

/// A range to move.
#[derive(Debug)]
struct Move {
    op: Op,
    owners: usize,
    ours: usize,
    len: usize,
    group: u32,
}

/// Up to a dozen moves: the ranges of each side do not overlap each other, and groups have one direction.
fn random_moves(chance: &mut StdRng) -> Vec<Move> {
    let mut lens: Vec<usize> = (0..chance.random_range(1..12))
        .map(|_| {
            if chance.random_bool(0.3) {
                chance.random_range(1..1 << 20)
            } else {
                chance.random_range(1..20_000)
            }
        })
        .collect();
    while lens.iter().sum::<usize>() > LEN {
        lens.pop();
    }
    let owners = random_places(&lens, chance);
    let ours = random_places(&lens, chance);
    let random_move = |((len, owners), ours)| {
        let op = if chance.random_bool(0.5) { Op::Read } else { Op::Write };
        let group = chance.random_range(0..3) * if op == Op::Read { 1 } else { 10 };
        Move {
            op,
            owners,
            ours,
            len,
            group,
        }
    };
    lens.into_iter().zip(owners).zip(ours).map(random_move).collect()
}

/// Places for ranges of these lengths, side by side in random order with random gaps.
fn random_places(lens: &[usize], chance: &mut StdRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.shuffle(chance);
    let mut spare = LEN - lens.iter().sum::<usize>();
    let mut places = vec![0; lens.len()];
    let mut next = 0;
    for i in order {
        let gap = chance.random_range(0..=spare / 2);
        spare -= gap;
        places[i] = next + gap;
        next = places[i] + lens[i];
    }
    places
}

/// Our range of a move, cut at random.
fn scatter(ours: &Arc<Memory>, step: &Move, chance: &mut StdRng) -> Vec<Slice> {
    let mut slices = Vec::new();
    let mut start = step.ours;
    let end = step.ours + step.len;
    while start < end {
        let cut = if chance.random_bool(0.5) {
            end
        } else {
            chance.random_range(start + 1..=end)
        };
        slices.push(ours.slice(start as u64..cut as u64).expect("it lies inside"));
        start = cut;
    }
    slices
}

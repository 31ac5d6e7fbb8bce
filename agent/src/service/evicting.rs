//! Room for what no node has room for: nodes are asked to let objects go, one after the other, until one has.

use super::batch::per_key;
use super::drive::{Driving as _, Fate};
use super::place::Reserving;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{KeyResult, Reservation};
use tokio::time::Instant;

/// Goes on with what the nodes have refused, where eviction may help.
pub(super) async fn evict_for(reserving: &mut Reserving, fates: &mut [Fate<Reservation>], deadline: Instant) {
    let may_help = |fate: &Fate<Reservation>| matches!(fate, Fate::Refused(refusals) if refusals.are_in_time());
    let mut open: Vec<usize> = (0..fates.len()).filter(|&item| may_help(&fates[item])).collect();
    if open.is_empty() {
        return;
    }
    for node in reserving.nodes_by_capacity() {
        if open.is_empty() || Instant::now() >= deadline {
            return;
        }
        let answers = ask(reserving, node, &open).await;
        let mut left = Vec::new();
        for (item, answer) in open.into_iter().zip(answers) {
            match (answer, &mut fates[item]) {
                (Ok(reservation), fate) => *fate = Fate::Answered(Ok(reservation)),
                (Err(error), Fate::Refused(refusals)) => {
                    refusals.evicted_in_vain(&error);
                    left.push(item);
                }
                (Err(_), Fate::Answered(_)) => unreachable!("only what was refused is open"),
            }
        }
        open = left;
    }
}

async fn ask(reserving: &mut Reserving, node: NodeId, items: &[usize]) -> Vec<KeyResult<Reservation>> {
    let answer = reserving.ask_to_evict(node, items).await;
    if answer.hint.is_none() {
        // It may have set something aside.
        items.iter().for_each(|&item| reserving.release(node, item));
    }
    per_key(answer.items, items.len())
}

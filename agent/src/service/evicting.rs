//! Room for what no node has room for: nodes that may have some once they let objects go are asked to, one after the other, until one has.

use super::batch::per_key;
use super::drive::{Driving as _, Fate};
use super::reserving::Reserving;
use crate::limits::EVICTION_QUESTIONS_MAX;
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
    let mut questions = 0;
    for node in reserving.nodes_by_capacity() {
        if open.is_empty() || questions >= EVICTION_QUESTIONS_MAX || Instant::now() >= deadline {
            return;
        }
        let may_evict = |item: &usize| matches!(&fates[*item], Fate::Refused(refusals) if refusals.may_evict(node));
        let (asked, mut left): (Vec<usize>, Vec<usize>) = open.into_iter().partition(may_evict);
        if asked.is_empty() {
            open = left;
            continue;
        }
        questions += 1;
        let answers = ask(reserving, node, &asked).await;
        for (item, answer) in asked.into_iter().zip(answers) {
            match (answer, &mut fates[item]) {
                (Ok(reservation), fate) => {
                    let (first, more) = (Ok(reservation), Vec::new());
                    *fate = Fate::Answered { first, more };
                }
                (Err(error), Fate::Refused(refusals)) => {
                    refusals.evicted_in_vain(&error);
                    left.push(item);
                }
                (Err(_), Fate::Answered { .. }) => unreachable!("only what was refused is open"),
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

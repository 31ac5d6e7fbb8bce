//! Writes: the initiator offers its bytes, and the owner reads them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout_at};

use super::connection::Shared;
use super::message::{Ask, Pull, Source, Tell};
use super::path::Load;
use super::plan::{Cut, cuts};
use crate::checksum;
use crate::engine::{Done, Transfer, TransferError, TransferResult};
use crate::ids::RemoteKey;
use crate::limits::{
    VERBS_ATTEMPTS_MAX, VERBS_LOCK_POLL, VERBS_LOCK_TIMEOUT, VERBS_PULL_GRACE, VERBS_PULLS_MAX, VERBS_SLICE_BYTES,
};
use crate::verbs::{MemoryRegion, VerbsError};

/// A range of one transfer that the owner is to read in one go.
struct Item {
    /// Its place in the order of results.
    transfer: usize,
    key: RemoteKey,
    /// From the start of the export.
    offset_bytes: u64,
    group: u32,
    cut: Cut,
    /// What became of it, the last time that it was offered: the checksum where it landed.
    result: Option<Result<u64, TransferError>>,
}

/// An item that is offered.
struct Offered {
    item: usize,
    pull: Pull,
    /// What is offered stays registered while this lives.
    lent: Vec<Arc<MemoryRegion>>,
}

/// What became of an offered item.
struct Ended {
    item: usize,
    result: Result<u64, TransferError>,
    /// It was not read since a path was lost: it may be over another.
    is_again: bool,
}

impl Shared {
    /// Carries out writes by offering them; one result each, in the order of `indices`.
    pub(super) async fn have_pulled(
        self: &Arc<Self>,
        batch: &[Transfer],
        indices: &[usize],
        deadline: Instant,
    ) -> Vec<TransferResult> {
        let mut items = Vec::new();
        for (transfer, index) in indices.iter().enumerate() {
            let wanted = &batch[*index];
            items.extend(cuts(&wanted.local, VERBS_SLICE_BYTES).into_iter().map(|cut| Item {
                transfer,
                key: wanted.key,
                offset_bytes: wanted.remote_offset_bytes.saturating_add(cut.offset_bytes),
                group: wanted.group,
                cut,
                result: None,
            }));
        }
        let mut left: Vec<usize> = (0..items.len()).collect();
        let mut tries = 0;
        while tries < VERBS_ATTEMPTS_MAX && !left.is_empty() {
            let is_lost;
            (left, is_lost) = self.offer_all(&mut items, &left, deadline).await;
            tries += usize::from(is_lost);
        }
        let mut tallies: Vec<Vec<(u64, Result<u64, TransferError>)>> = vec![Vec::new(); indices.len()];
        for item in items {
            let result = item.result.unwrap_or_else(|| Err(disconnected("it was not offered")));
            tallies[item.transfer].push((item.cut.len_bytes, result));
        }
        let results = tallies.into_iter().zip(indices);
        results
            .map(|(tally, index)| judge(batch[*index].len_bytes(), tally))
            .collect()
    }

    /// Offers items once. Returns those that are to be offered still, and whether any of them was lost on its way.
    async fn offer_all(self: &Arc<Self>, items: &mut [Item], left: &[usize], deadline: Instant) -> (Vec<usize>, bool) {
        let failure = match timeout_at(deadline, self.paths.some_up()).await {
            Ok(Ok(_)) if Instant::now() >= deadline => Some(late()),
            Ok(Ok(_)) => None,
            Ok(Err(reason)) => Some(disconnected(&reason)),
            Err(_) => Some(late()),
        };
        if let Some(failure) = failure {
            for at in left {
                items[*at].result = Some(Err(failure.clone()));
            }
            return (Vec::new(), false);
        }
        // The owner's reads are seen by none here: the paths are in use for as long as it may read over them.
        let held = Arc::new(self.paths.hold());
        let (mut alone, mut groups) = (Vec::new(), BTreeMap::<u32, Vec<Offered>>::new());
        let (lent, later) = self.lend_all(items, left, &held, deadline).await;
        for offered in lent {
            match offered.pull.group {
                0 => alone.push(offered),
                group => groups.entry(group).or_default().push(offered),
            }
        }
        let mut units = Vec::new();
        while !alone.is_empty() {
            let rest = alone.split_off(alone.len().min(VERBS_PULLS_MAX));
            units.push(std::mem::replace(&mut alone, rest));
        }
        units.extend(groups.into_values());
        let units = units.into_iter().map(|unit| self.unit(unit, &held, deadline));
        // A group is carried out in order, so from its first item again.
        let (mut again, mut torn) = (Vec::new(), HashMap::new());
        for ended in join_all(units).await.into_iter().flatten() {
            let group = items[ended.item].group;
            if ended.is_again && group != 0 {
                torn.entry(group).or_insert(ended.item);
            }
            if ended.is_again || torn.contains_key(&group) {
                again.push(ended.item);
            }
            items[ended.item].result = Some(ended.result);
        }
        let is_again = !again.is_empty();
        again.extend(later);
        again.sort_unstable();
        (again, is_again)
    }

    /// Registers what is to be offered, and says what is to be offered after that, since its memory may not be locked now. A transfer
    /// whose memory cannot be is not offered at all.
    async fn lend_all<'a>(
        &self,
        items: &mut [Item],
        left: &'a [usize],
        held: &[Load],
        deadline: Instant,
    ) -> (Vec<Offered>, &'a [usize]) {
        let (mut offered, mut unfit, mut later) = (Vec::new(), HashMap::new(), &left[left.len()..]);
        let give_up = deadline.min(Instant::now() + VERBS_LOCK_TIMEOUT);
        for (done, at) in left.iter().enumerate() {
            let mut lent = self.lend_item(*at, &items[*at], held);
            while offered.is_empty() && must_wait(&lent) && Instant::now() < give_up {
                sleep(VERBS_LOCK_POLL).await;
                lent = self.lend_item(*at, &items[*at], held);
            }
            match lent {
                Ok(lent) => offered.push(lent),
                // That its time is over is told by the next round.
                Err(error) if error.may_lock_later() && (!offered.is_empty() || Instant::now() >= deadline) => {
                    later = &left[done..];
                    break;
                }
                Err(error) => _ = unfit.insert(items[*at].transfer, error.to_string()),
            }
        }
        let left = &left[..left.len() - later.len()];
        for at in left {
            if let Some(reason) = unfit.get(&items[*at].transfer) {
                // If it was offered before, some of it may have been read: then that failure stays.
                let reason = reason.clone();
                items[*at].result.get_or_insert(Err(TransferError::Invalid { reason }));
            }
        }
        offered.retain(|offered| !unfit.contains_key(&items[offered.item].transfer));
        (offered, later)
    }

    fn lend_item(&self, at: usize, item: &Item, held: &[Load]) -> Result<Offered, VerbsError> {
        let (mut sources, mut lent) = (Vec::new(), Vec::new());
        for slice in &item.cut.local {
            let mut offered = self.lend(slice, held)?;
            lent.append(&mut offered.regions);
            sources.push(Source {
                len_bytes: slice.len_bytes(),
                from: offered.named,
            });
        }
        Ok(Offered {
            item: at,
            pull: Pull {
                key: item.key,
                offset_bytes: item.offset_bytes,
                group: item.group,
                sources,
            },
            lent,
        })
    }

    /// Offers items, in as many calls as are needed, one after the other.
    async fn unit(self: &Arc<Self>, mut offered: Vec<Offered>, held: &Arc<Vec<Load>>, deadline: Instant) -> Vec<Ended> {
        let mut ended = Vec::with_capacity(offered.len());
        while !offered.is_empty() {
            let rest = offered.split_off(offered.len().min(VERBS_PULLS_MAX));
            let now = std::mem::replace(&mut offered, rest);
            ended.extend(self.call(now, held, deadline).await);
        }
        ended
    }

    /// One call. The owner may read what was offered for a while after the deadline, also if nobody waits any more: so
    /// long it stays registered, and the paths in use. Those that the owner says are lost are lost here too.
    async fn call(self: &Arc<Self>, offered: Vec<Offered>, held: &Arc<Vec<Load>>, deadline: Instant) -> Vec<Ended> {
        let (mut named, mut pulls, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for item in offered {
            named.push(item.item);
            pulls.push(item.pull);
            lent.push(item.lent);
        }
        let (shared, held) = (Arc::clone(self), Arc::clone(held));
        let calling = tokio::spawn(async move {
            let told = shared.ask(&Ask::Pull(pulls), deadline + VERBS_PULL_GRACE).await;
            if let Ok(Tell::Pulled { away, .. }) = &told {
                let paths = held.iter().map(Load::path);
                shared.lose(paths.filter(|path| away.contains(&path.number)));
            }
            drop((lent, held));
            told
        });
        let failed = |error: TransferError| {
            let named = named.iter();
            named
                .map(|&item| Ended {
                    item,
                    result: Err(error.clone()),
                    is_again: false,
                })
                .collect()
        };
        match timeout_at(deadline, calling).await {
            Ok(Ok(Ok(Tell::Pulled { results, away }))) if results.len() == named.len() => {
                let ended = named.iter().zip(results);
                ended
                    .map(|(&item, result)| Ended {
                        item,
                        is_again: !away.is_empty() && matches!(result, Err(TransferError::Disconnected { .. })),
                        result,
                    })
                    .collect()
            }
            Ok(Ok(Err(error))) => failed(error),
            Ok(Ok(Ok(_)) | Err(_)) => failed(another_question()),
            Err(_) => failed(late()),
        }
    }
}

fn must_wait(lent: &Result<Offered, VerbsError>) -> bool {
    lent.as_ref().is_err_and(VerbsError::may_lock_later)
}

fn disconnected(reason: &str) -> TransferError {
    TransferError::Disconnected {
        reason: reason.to_owned(),
    }
}

pub(super) fn another_question() -> TransferError {
    disconnected("the peer answered another question than it was asked")
}

/// Nothing of an item is known to have moved; [`judge`] says how much of its transfer has.
pub(super) fn late() -> TransferError {
    TransferError::Deadline {
        moved_bytes: 0,
        len_bytes: 0,
    }
}

/// What became of a write whose items, in order, ended so.
pub(super) fn judge(len_bytes: u64, items: Vec<(u64, Result<u64, TransferError>)>) -> TransferResult {
    let moved = items.iter().filter(|(_, result)| result.is_ok());
    let moved_bytes = moved.map(|(len_bytes, _)| len_bytes).sum();
    let (mut whole, mut failure) = (None::<u64>, None);
    for (item_bytes, result) in items {
        match result {
            Ok(crc64) => whole = Some(whole.map_or(crc64, |before| checksum::combine(before, crc64, item_bytes))),
            Err(error) => _ = failure.get_or_insert(error),
        }
    }
    match failure {
        Some(TransferError::Deadline { .. }) => Err(TransferError::Deadline { moved_bytes, len_bytes }),
        Some(error) => Err(error),
        None => Ok(Done {
            bytes: moved_bytes,
            stamp: None,
            crc64: whole,
            sent_crc64: None,
        }),
    }
}

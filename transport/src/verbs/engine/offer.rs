//! Writes: the initiator offers its bytes, and the owner reads them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::connection::Shared;
use super::message::{Ask, Pull, Source, Tell};
use super::plan::{Cut, cuts};
use crate::checksum;
use crate::engine::{Done, Transfer, TransferError, TransferResult};
use crate::limits::{VERBS_PULL_GRACE, VERBS_PULLS_MAX};
use crate::verbs::MemoryRegion;

/// A range of one transfer that the owner is to read in one go.
struct Item {
    /// Its place in the order of results.
    transfer: usize,
    len_bytes: u64,
    pull: Pull,
    /// What is offered stays registered while this lives.
    lent: Vec<Arc<MemoryRegion>>,
}

/// What became of an item: its transfer, its length, and the checksum where it landed.
type Ended = (usize, u64, Result<u64, TransferError>);

impl Shared {
    /// Carries out writes; one result each, in the order of `indices`.
    pub(super) async fn write(
        self: &Arc<Self>,
        batch: &[Transfer],
        indices: &[usize],
        deadline: Instant,
    ) -> Vec<TransferResult> {
        let (mut alone, mut groups) = (Vec::new(), BTreeMap::<u32, Vec<Item>>::new());
        let mut failures: Vec<Option<TransferError>> = vec![None; indices.len()];
        for (at, index) in indices.iter().enumerate() {
            let transfer = &batch[*index];
            match self.items(at, transfer) {
                Ok(items) if transfer.group == 0 => alone.extend(items),
                Ok(items) => groups.entry(transfer.group).or_default().extend(items),
                Err(error) => failures[at] = Some(error),
            }
        }
        let mut units = Vec::new();
        while !alone.is_empty() {
            let rest = alone.split_off(alone.len().min(VERBS_PULLS_MAX));
            units.push(std::mem::replace(&mut alone, rest));
        }
        units.extend(groups.into_values());
        let ended = join_all(units.into_iter().map(|unit| self.unit(unit, deadline))).await;
        let mut tallies: Vec<Vec<(u64, Result<u64, TransferError>)>> = vec![Vec::new(); indices.len()];
        for (transfer, len_bytes, result) in ended.into_iter().flatten() {
            tallies[transfer].push((len_bytes, result));
        }
        let results = tallies.into_iter().zip(failures).zip(indices);
        results
            .map(|((tally, failure), index)| judge(batch[*index].len_bytes(), tally, failure))
            .collect()
    }

    fn items(&self, transfer: usize, wanted: &Transfer) -> Result<Vec<Item>, TransferError> {
        let item = |cut: Cut| {
            let (mut sources, mut lent) = (Vec::new(), Vec::new());
            for slice in &cut.local {
                let mut offered = self.lend(slice).map_err(|error| TransferError::Invalid {
                    reason: error.to_string(),
                })?;
                lent.append(&mut offered.regions);
                sources.push(Source {
                    len_bytes: slice.len_bytes(),
                    from: offered.named,
                });
            }
            Ok(Item {
                transfer,
                len_bytes: cut.len_bytes,
                pull: Pull {
                    key: wanted.key,
                    offset_bytes: wanted.remote_offset_bytes.saturating_add(cut.offset_bytes),
                    group: wanted.group,
                    sources,
                },
                lent,
            })
        };
        cuts(&wanted.local).into_iter().map(item).collect()
    }

    /// Offers items, in as many calls as are needed, one after the other.
    async fn unit(self: &Arc<Self>, mut items: Vec<Item>, deadline: Instant) -> Vec<Ended> {
        let mut ended = Vec::with_capacity(items.len());
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(VERBS_PULLS_MAX));
            let now = std::mem::replace(&mut items, rest);
            ended.extend(self.call(now, deadline).await);
        }
        ended
    }

    /// One call. The owner may read what was offered for a while after the deadline, also if nobody waits any more: so
    /// long it stays registered.
    async fn call(self: &Arc<Self>, items: Vec<Item>, deadline: Instant) -> Vec<Ended> {
        let (mut named, mut pulls, mut lent) = (Vec::new(), Vec::new(), Vec::new());
        for item in items {
            named.push((item.transfer, item.len_bytes));
            pulls.push(item.pull);
            lent.push(item.lent);
        }
        let shared = Arc::clone(self);
        let calling = tokio::spawn(async move {
            let told = shared.ask(&Ask::Pull(pulls), deadline + VERBS_PULL_GRACE).await;
            drop(lent);
            told
        });
        let failed = |error: TransferError| {
            let named = named.iter();
            named
                .map(|&(transfer, len_bytes)| (transfer, len_bytes, Err(error.clone())))
                .collect()
        };
        match timeout_at(deadline, calling).await {
            Ok(Ok(Ok(Tell::Pulled(results)))) if results.len() == named.len() => {
                let ended = named.iter().zip(results);
                ended
                    .map(|(&(transfer, len_bytes), result)| (transfer, len_bytes, result))
                    .collect()
            }
            Ok(Ok(Err(error))) => failed(error),
            Ok(Ok(Ok(_)) | Err(_)) => failed(TransferError::Disconnected {
                reason: "the peer answered another question than it was asked".to_owned(),
            }),
            Err(_) => failed(TransferError::Deadline {
                moved_bytes: 0,
                len_bytes: 0,
            }),
        }
    }
}

/// What became of a write whose items, in order, ended so.
fn judge(
    len_bytes: u64,
    items: Vec<(u64, Result<u64, TransferError>)>,
    failure: Option<TransferError>,
) -> TransferResult {
    let moved = items.iter().filter(|(_, result)| result.is_ok());
    let moved_bytes = moved.map(|(len_bytes, _)| len_bytes).sum();
    let mut whole = None::<u64>;
    let mut failure = failure;
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

//! Writes by the initiator itself, under windows that the owner binds for just that. What cannot be written so is offered
//! for the owner to read, as without any windows.
//!
//! Nothing is written twice over: when a path fails in between, this side has flushed it and the owner has taken the window
//! back before the same bytes are offered.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};

use super::connection::Shared;
use super::flight::Flight;
use super::message::{Ask, Given, Settle, Tell, Want};
use super::offer::{another_question, judge, late};
use super::path::{Load, Path, WriteRequest};
use super::paths::Paths;
use super::plan::{Cut, cuts};
use crate::engine::{Transfer, TransferError, TransferResult};
use crate::limits::{VERBS_GRANT_CALLS_MAX, VERBS_PULLS_MAX, VERBS_SLICE_BYTES};
use crate::verbs::{Local, Status, VerbsError};

/// A part of one transfer that gets a window of its own.
struct Item {
    /// Its place in the order of results.
    transfer: usize,
    cut: Cut,
    path: Arc<Path>,
    want: Want,
    _load: Load,
}

/// What became of a part: its transfer, its length, and the checksum where it landed.
type Ended = (usize, u64, Result<u64, TransferError>);

/// The parts of a transfer that ended.
type Tally = Vec<(u64, Result<u64, TransferError>)>;

impl Shared {
    /// Carries out writes; one result each, in the order of `indices`.
    pub(super) async fn write(
        self: &Arc<Self>,
        batch: &[Transfer],
        indices: &[usize],
        deadline: Instant,
    ) -> Vec<TransferResult> {
        let mut results = self.push(batch, indices, deadline).await;
        let left: Vec<usize> = (0..indices.len()).filter(|&at| results[at].is_none()).collect();
        let named: Vec<usize> = left.iter().map(|&at| indices[at]).collect();
        let offered = self.have_pulled(batch, &named, deadline).await;
        for (at, result) in left.into_iter().zip(offered) {
            results[at] = Some(result);
        }
        results.into_iter().flatten().collect()
    }

    /// Writes what stands alone; `None` for what is left to be offered: groups, whose order needs more than windows, and
    /// what no window was given for, or whose path failed.
    async fn push(
        self: &Arc<Self>,
        batch: &[Transfer],
        indices: &[usize],
        deadline: Instant,
    ) -> Vec<Option<TransferResult>> {
        // The owner may have bound a window, or be about to: so long the paths are in use, though nothing moves over them.
        let held = self.paths.hold();
        let mut items = Vec::new();
        for (at, index) in indices.iter().enumerate() {
            let transfer = &batch[*index];
            if transfer.group == 0 {
                let cuts = cuts(&transfer.local, VERBS_SLICE_BYTES).into_iter();
                items.extend(cuts.map_while(|cut| item(&held, at, transfer, cut)));
            }
        }
        let mut calls = Vec::new();
        while !items.is_empty() {
            let rest = items.split_off(items.len().min(VERBS_PULLS_MAX));
            calls.push(std::mem::replace(&mut items, rest));
        }
        let calls = stream::iter(calls).map(|items| self.under_windows(items, deadline));
        let ended: Vec<_> = calls.buffered(VERBS_GRANT_CALLS_MAX).collect().await;
        let mut tallies: Vec<Tally> = vec![Vec::new(); indices.len()];
        for (transfer, len_bytes, result) in ended.into_iter().flatten().flatten() {
            tallies[transfer].push((len_bytes, result));
        }
        let lens = indices.iter().map(|index| batch[*index].len_bytes());
        tallies
            .into_iter()
            .zip(lens)
            .map(|(tally, len_bytes)| {
                let known_bytes: u64 = tally.iter().map(|(len_bytes, _)| len_bytes).sum();
                let is_final = known_bytes == len_bytes || tally.iter().any(|(_, result)| result.is_err());
                is_final.then(|| judge(len_bytes, tally))
            })
            .collect()
    }

    /// Asks for windows, writes, and has them taken back. `None` for an item that may be offered instead.
    async fn under_windows(self: &Arc<Self>, items: Vec<Item>, deadline: Instant) -> Vec<Option<Ended>> {
        let named: Vec<(usize, u64)> = items.iter().map(|item| (item.transfer, item.cut.len_bytes)).collect();
        let results = match self.granted(&items, deadline).await {
            Ok(granted) => self.written(&items, granted, deadline).await,
            Err(error) => vec![Some(Err(error)); items.len()],
        };
        let results = named.into_iter().zip(results);
        results
            .map(|((transfer, len_bytes), result)| Some((transfer, len_bytes, result?)))
            .collect()
    }

    async fn granted(
        &self,
        items: &[Item],
        deadline: Instant,
    ) -> Result<Vec<Result<Option<Given>, TransferError>>, TransferError> {
        let wants = items.iter().map(|item| item.want).collect();
        match self.ask_in_time(&Ask::Grant(wants), deadline).await? {
            Tell::Granted(granted) if granted.len() == items.len() => Ok(granted),
            _ => Err(another_question()),
        }
    }

    /// Asks the owner, which hears the deadline too: grants end with it.
    async fn ask_in_time(&self, ask: &Ask, deadline: Instant) -> Result<Tell, TransferError> {
        match timeout_at(deadline, self.ask(ask, deadline)).await {
            Ok(Ok(told)) => Ok(told),
            // The call ends at the same time, and says so in its own way.
            Ok(Err(error)) if Instant::now() < deadline => Err(error),
            Ok(Err(_)) | Err(_) => Err(late()),
        }
    }

    /// Writes what was granted and settles it; one result per item.
    async fn written(
        &self,
        items: &[Item],
        granted: Vec<Result<Option<Given>, TransferError>>,
        deadline: Instant,
    ) -> Vec<Option<Result<u64, TransferError>>> {
        let mut results: Vec<Option<Result<u64, TransferError>>> = vec![None; items.len()];
        let mut given = Vec::new();
        for (at, granted) in granted.into_iter().enumerate() {
            match granted {
                Ok(found) => given.extend(found.map(|given| (at, given))),
                Err(error) => results[at] = Some(Err(error)),
            }
        }
        if given.is_empty() {
            return results;
        }
        let Some(landed) = self.fly(items, &given, deadline).await else {
            // The owner takes the windows back at the same deadline.
            given.iter().for_each(|(at, _)| results[*at] = Some(Err(late())));
            return results;
        };
        let settles = given.iter().zip(&landed);
        let settles = settles.map(|((_, given), &landed)| Settle {
            grant: given.grant,
            landed,
        });
        let ask = Ask::Settle(settles.collect());
        let told = match self.ask_in_time(&ask, deadline).await {
            Ok(Tell::Settled(told)) if told.len() == given.len() => told,
            Ok(_) => vec![Err(another_question()); given.len()],
            Err(error) => vec![Err(error); given.len()],
        };
        for ((at, _), told) in given.into_iter().zip(told) {
            results[at] = told.transpose();
        }
        results
    }

    /// Writes, and says of each whether its bytes are at the owner; `None` if the deadline passed first. Either way nothing
    /// touches the local memory any more.
    async fn fly(&self, items: &[Item], given: &[(usize, Given)], deadline: Instant) -> Option<Vec<bool>> {
        let flight = Flight::new(given.len());
        let mut flying = Flying {
            paths: &self.paths,
            flight: Arc::clone(&flight),
            over: Vec::new(),
        };
        let mut posts: Vec<(Arc<Path>, Vec<WriteRequest>)> = Vec::new();
        for (request, (at, given)) in given.iter().enumerate() {
            let item = &items[*at];
            let Ok(from) = self.sources(item) else {
                flight.land(request, Status::LocalProtection);
                continue;
            };
            let to = given.to;
            let write = WriteRequest { request, to, from };
            match posts.iter_mut().find(|(path, _)| Arc::ptr_eq(path, &item.path)) {
                Some((_, writes)) => writes.push(write),
                None => posts.push((Arc::clone(&item.path), vec![write])),
            }
        }
        flying.over = posts.iter().map(|(path, _)| Arc::clone(path)).collect();
        let all = async {
            for (path, writes) in posts {
                path.post_writes(&flight, writes).await;
            }
            flight.landed().await;
        };
        if timeout_at(deadline, all).await.is_err() {
            flying.end();
            for path in &flying.over {
                path.flushed(&flight).await;
            }
            return None;
        }
        let statuses = flight.statuses();
        for (status, (at, _)) in statuses.iter().zip(given) {
            let is_local = matches!(status, Some(Status::LocalProtection | Status::LocalOperation));
            if *status != Some(Status::Success) && !is_local {
                self.paths.lose(&items[*at].path);
            }
        }
        Some(statuses.iter().map(|status| *status == Some(Status::Success)).collect())
    }

    /// The local memory of an item, registered for its path.
    fn sources(&self, item: &Item) -> Result<Vec<Local>, VerbsError> {
        let slices = item.cut.local.iter();
        slices.map(|slice| self.rails.source(item.path.rail, slice)).collect()
    }
}

/// Gives a part to the path that has the least to do; `None` if the owner lets nobody write.
fn item(held: &[Load], transfer: usize, wanted: &Transfer, cut: Cut) -> Option<Item> {
    let paths = held.iter().map(Load::path).filter(|path| path.pushes);
    let path = paths.min_by_key(|path| path.open_bytes())?;
    let want = Want {
        key: wanted.key,
        offset_bytes: wanted.remote_offset_bytes.saturating_add(cut.offset_bytes),
        len_bytes: cut.len_bytes,
        path: path.number,
    };
    Some(Item {
        transfer,
        path: Arc::clone(path),
        want,
        _load: path.load(cut.len_bytes),
        cut,
    })
}

/// Writes under way. Dropped before they have ended, they are flushed by the device on its own, which keeps their memory
/// until it has; the owner takes the windows back at the deadline or when their export is revoked.
struct Flying<'a> {
    paths: &'a Paths,
    flight: Arc<Flight>,
    over: Vec<Arc<Path>>,
}

impl Flying<'_> {
    fn end(&self) {
        if self.flight.is_under_way() {
            self.over.iter().for_each(|path| self.paths.lose(path));
        }
    }
}

impl Drop for Flying<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

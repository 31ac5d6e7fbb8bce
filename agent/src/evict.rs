//! Eviction in the background, and telling the homes of what has gone: each within a tick, as long as they answer.
//!
//! A home that was not told finds out when a reader does not find the object.

use crate::clock;
use crate::deciding::Decision;
use crate::limits::{
    EVICTION_REPORT_PAUSE_MAX, EVICTION_REPORT_PAUSE_MIN, EVICTION_REPORT_TIMEOUT, EVICTIONS_UNTOLD_MAX, TICK_EVERY,
};
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::BATCH_KEYS_MAX;
use tenon_store_core::time::Time;
use tokio::time::{Instant, timeout};

/// Evictions of which homes are still to be told, by the first home of the key; there is a task for each home that is here.
#[derive(Debug, Default)]
pub(crate) struct Untold {
    by_home: Mutex<BTreeMap<NodeId, VecDeque<Report>>>,
}

/// An eviction that is to be told.
#[derive(Debug, Clone)]
struct Report {
    decision: Decision,
    /// When the object has gone.
    evicted_at: Time,
}

/// What has become of an eviction that is to be told.
enum Added {
    /// It stands behind others.
    Queued,
    /// A task is to be started.
    First,
    /// There are too many.
    Dropped,
}

impl Untold {
    fn add(&self, report: Report) -> Added {
        let mut by_home = self.by_home.lock();
        let home = report.decision.homes.first;
        let is_first = !by_home.contains_key(&home);
        let open = by_home.entry(home).or_default();
        if open.len() >= EVICTIONS_UNTOLD_MAX {
            return Added::Dropped;
        }
        open.push_back(report);
        if is_first { Added::First } else { Added::Queued }
    }

    /// Some of what is to be told; `None` if that is nothing: then the task ends.
    fn take(&self, home: NodeId) -> Option<Vec<Report>> {
        let mut by_home = self.by_home.lock();
        let open = by_home.get_mut(&home)?;
        if open.is_empty() {
            by_home.remove(&home);
            return None;
        }
        let some = open.len().min(BATCH_KEYS_MAX);
        Some(open.drain(..some).collect())
    }

    /// So much is to be told that what is not urgent waits.
    pub(crate) fn is_crowded(&self) -> bool {
        let by_home = self.by_home.lock();
        by_home.values().any(|open| open.len() >= EVICTIONS_UNTOLD_MAX / 2)
    }

    fn give_back(&self, home: NodeId, reports: Vec<Report>) {
        let mut by_home = self.by_home.lock();
        let open = by_home.entry(home).or_default();
        for report in reports.into_iter().rev() {
            open.push_front(report);
        }
    }
}

impl Node {
    /// Evicts while the node is too full, and has the homes told of whatever was evicted.
    pub(crate) async fn evict_for_ever(self: Arc<Self>) {
        loop {
            // Soft pins end, and transfers: it is looked each tick whether more may go.
            let _ = timeout(TICK_EVERY, self.holder().too_full()).await;
            while self.holder().evict_some() {
                self.report_evictions();
                // A node that is full has calls to serve.
                tokio::task::yield_now().await;
            }
            self.report_evictions();
        }
    }

    /// Has the homes told of whatever was evicted.
    pub(crate) fn report_evictions(self: &Arc<Self>) {
        for evicted in self.holder().take_evicted() {
            self.metrics().evicted(&evicted);
            let homes = self.index_nodes(evicted.name.namespace()).homes(evicted.key_hash);
            let home = homes.first;
            let decision = Decision {
                key_hash: evicted.key_hash,
                homes,
                kind: evicted.report(self.id()),
            };
            let report = Report {
                decision,
                evicted_at: evicted.at,
            };
            match self.untold_evictions().add(report) {
                Added::First => drop(tokio::spawn(Arc::clone(self).report_to(home))),
                Added::Queued => {}
                Added::Dropped => self.metrics().eviction_unreported(),
            }
        }
    }

    /// Tells the homes of the keys of which this is the first, until all is told.
    async fn report_to(self: Arc<Self>, home: NodeId) {
        let mut pause = EVICTION_REPORT_PAUSE_MIN;
        while let Some(reports) = self.untold_evictions().take(home) {
            let decisions = reports.iter().map(|report| report.decision.clone()).collect();
            let answers = self.decide(decisions, Instant::now() + EVICTION_REPORT_TIMEOUT).await;
            let (told, open): (Vec<_>, Vec<_>) =
                reports.into_iter().zip(answers).partition(|(_, answer)| answer.is_ok());
            let now = clock::now();
            for (report, _) in told {
                self.metrics().eviction_told(now.since_ms(report.evicted_at));
            }
            let open: Vec<Report> = open.into_iter().map(|(report, _)| report).collect();
            if open.is_empty() {
                pause = EVICTION_REPORT_PAUSE_MIN;
                continue;
            }
            self.untold_evictions().give_back(home, open);
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(EVICTION_REPORT_PAUSE_MAX);
        }
    }
}

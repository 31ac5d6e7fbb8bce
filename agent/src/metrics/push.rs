//! Writes over RDMA to this node's segments, and whether peers may make them themselves. The engine counts them.

use std::sync::atomic::Ordering;

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};
use tenon_transport::verbs::engine::Rails;

use super::Maker;

/// Set when somebody asks.
#[derive(Debug)]
pub(super) struct OfPush {
    writes: IntCounterVec,
    bytes: IntCounterVec,
    push_rails: IntGauge,
    enforced: IntGaugeVec,
}

impl OfPush {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        Self {
            writes: make.counters(
                "tenon_rdma_writes_total",
                "Ranges that were written to this node's segments over RDMA: by the peer itself (push) or read from it (pull).",
                &["way"],
            ),
            bytes: make.counters(
                "tenon_rdma_written_bytes_total",
                "Bytes of these ranges, by the way they came.",
                &["way"],
            ),
            push_rails: make.gauge("tenon_rdma_push_rails", "Ports of RDMA devices over which peers may write."),
            enforced: make.gauges(
                "tenon_rdma_windows_enforced",
                "1 if the device of this port holds peers to what their memory windows allow, 0 if it was seen not to; tried unless rdma.push is off.",
                &["rail"],
            ),
        }
    }

    pub(super) fn set(&self, rails: &Rails) {
        self.push_rails.set(i64::try_from(rails.pushing()).unwrap_or(i64::MAX));
        for (name, windows) in rails.windows() {
            let enforced = self.enforced.with_label_values(&[name.as_str()]);
            enforced.set(i64::from(windows.are_enforced()));
        }
        let writes = rails.writes();
        for (way, of) in [("push", &writes.pushed), ("pull", &writes.pulled)] {
            for (counters, now) in [(&self.writes, &of.count), (&self.bytes, &of.bytes)] {
                let counter = counters.with_label_values(&[way]);
                counter.inc_by(now.load(Ordering::Relaxed).saturating_sub(counter.get()));
            }
        }
    }
}

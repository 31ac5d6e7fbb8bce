//! Over what transfers of this agent go. The client's code counts it; here it is given names.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tenon_client::{TransportCounts, Transports};

use super::Maker;

/// Set when somebody asks.
#[derive(Debug)]
pub(super) struct OfTransports {
    connections: IntCounterVec,
    fallbacks: IntCounter,
    rails: IntGauge,
    counts: OnceLock<Arc<TransportCounts>>,
}

impl OfTransports {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        Self {
            connections: make.counters(
                "tenon_holder_connections_total",
                "Connections of this agent to other holders, by transport.",
                &["transport"],
            ),
            fallbacks: make.counter(
                "tenon_rdma_fallbacks_total",
                "Connections over TCP because RDMA, which both ends have, did not work.",
            ),
            rails: make.gauge("tenon_rdma_rails", "Ports of RDMA devices that this agent uses."),
            counts: OnceLock::new(),
        }
    }

    pub(super) fn watch(&self, transports: &Transports) {
        let rails = transports.rails.as_ref().map_or(0, |rails| rails.names().count());
        self.rails.set(i64::try_from(rails).unwrap_or(i64::MAX));
        self.counts.get_or_init(|| Arc::clone(&transports.counts));
    }

    pub(super) fn set(&self) {
        let Some(counts) = self.counts.get() else { return };
        let counters = [
            (self.connections.with_label_values(&["rdma"]), &counts.rdma),
            (self.connections.with_label_values(&["tcp"]), &counts.tcp),
            (self.fallbacks.clone(), &counts.fallbacks),
        ];
        for (counter, count) in counters {
            let now = count.load(Ordering::Relaxed);
            counter.inc_by(now.saturating_sub(counter.get()));
        }
    }
}

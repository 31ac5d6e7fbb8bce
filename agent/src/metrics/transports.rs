//! Over what transfers of this agent go. The client's code counts it; here it is given names.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::{IntCounter, IntCounterVec, IntGauge};
use tenon_client::Transports;

use super::Maker;
use super::push::OfPush;

/// Set when somebody asks.
#[derive(Debug)]
pub(super) struct OfTransports {
    connections: IntCounterVec,
    fallbacks: IntCounter,
    rails: IntGauge,
    events: IntCounterVec,
    paths_lost: IntCounterVec,
    cut_off: IntCounter,
    push: OfPush,
    transports: OnceLock<Transports>,
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
            rails: make.gauge("tenon_rdma_rails", "Ports of RDMA devices that this agent can use now."),
            events: make.counters(
                "tenon_rdma_events_total",
                "What RDMA devices said unasked: ports that went up, down or changed, queue pairs and devices that failed.",
                &["event"],
            ),
            paths_lost: make.counters(
                "tenon_rdma_paths_lost_total",
                "Queue pairs to other nodes that failed, what was under way there goes over others: because memory was gone (refused), or otherwise (other).",
                &["reason"],
            ),
            cut_off: make.counter(
                "tenon_rdma_cut_off_total",
                "Times that a peer lost its queue pairs to this node, because it did not forget memory that was unmounted in time.",
            ),
            push: OfPush::new(make),
            transports: OnceLock::new(),
        }
    }

    pub(super) fn watch(&self, transports: &Transports) {
        self.transports.get_or_init(|| transports.clone());
    }

    pub(super) fn set(&self) {
        let Some(transports) = self.transports.get() else {
            return;
        };
        let counts = &transports.counts;
        let mut counters = vec![
            (self.connections.with_label_values(&["rdma"]), count(&counts.rdma)),
            (self.connections.with_label_values(&["tcp"]), count(&counts.tcp)),
            (self.fallbacks.clone(), count(&counts.fallbacks)),
        ];
        if let Some(rails) = &transports.rails {
            self.push.set(rails);
            self.rails.set(i64::try_from(rails.names().count()).unwrap_or(i64::MAX));
            let losses = rails.losses();
            let refused = count(&losses.refused);
            let other = count(&losses.paths).saturating_sub(refused);
            for (reason, lost) in [("refused", refused), ("other", other)] {
                counters.push((self.paths_lost.with_label_values(&[reason]), lost));
            }
            counters.push((self.cut_off.clone(), count(&losses.cut_off)));
            let events = rails.events().named().into_iter();
            counters.extend(events.map(|(name, count)| (self.events.with_label_values(&[name]), count)));
        }
        for (counter, now) in counters {
            counter.inc_by(now.saturating_sub(counter.get()));
        }
    }
}

fn count(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

//! What was evicted, and what is kept from it.

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec};
use tenon_store_core::objects::{Evicted, PinAccount};

use super::Maker;
use super::labels::{EvictedBecause, Keeping};
use super::scrape::gauge;

/// Upper bounds of ages, from a second to a week.
const AGES_S: &[f64] = &[
    0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0,
];

/// Upper bounds of the time until homes know: they are to within 100 ms.
const TOLD_S: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

/// Counters of what has gone, and gauges of what is there.
#[derive(Debug)]
pub(super) struct EvictionCounters {
    evictions: IntCounterVec,
    bytes: IntCounterVec,
    age_seconds: HistogramVec,
    idle_seconds: HistogramVec,
    told_seconds: Histogram,
    unreported: IntCounter,
    kept_objects: IntGaugeVec,
    kept_bytes: IntGaugeVec,
}

impl EvictionCounters {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        let ages = |name: &str, help: &str| {
            let made = HistogramVec::new(HistogramOpts::new(name, help).buckets(AGES_S.to_vec()), &["reason"]);
            make.add(made)
        };
        Self {
            evictions: make.counters(
                "tenon_evictions_total",
                "Objects that were evicted, by reason.",
                &["reason"],
            ),
            bytes: make.counters(
                "tenon_evicted_bytes_total",
                "Bytes of objects that were evicted, by reason.",
                &["reason"],
            ),
            age_seconds: ages(
                "tenon_eviction_age_seconds",
                "How long evicted objects were there, by reason.",
            ),
            idle_seconds: ages(
                "tenon_eviction_idle_seconds",
                "How long evicted objects were not used, by reason.",
            ),
            told_seconds: make.add(Histogram::with_opts(
                HistogramOpts::new(
                    "tenon_eviction_told_seconds",
                    "How long it took until the homes of an evicted object knew of it.",
                )
                .buckets(TOLD_S.to_vec()),
            )),
            unreported: make.counter(
                "tenon_evictions_unreported_total",
                "Evicted objects of which no home was told, because too many are to be told already.",
            ),
            kept_objects: make.gauges(
                "tenon_objects",
                "Objects of this node by what keeps them from being evicted.",
                &["pin"],
            ),
            kept_bytes: make.gauges(
                "tenon_objects_bytes",
                "Occupied bytes of objects of this node by what keeps them from being evicted.",
                &["pin"],
            ),
        }
    }

    /// See [`super::Metrics::show_zeroes`].
    pub(super) fn show_zeroes(&self) {
        for reason in EvictedBecause::ALL {
            self.evictions.with_label_values(&[reason.as_str()]);
            self.bytes.with_label_values(&[reason.as_str()]);
            self.age_seconds.with_label_values(&[reason.as_str()]);
            self.idle_seconds.with_label_values(&[reason.as_str()]);
        }
        for keeping in Keeping::ALL {
            self.kept_objects.with_label_values(&[keeping.as_str()]);
            self.kept_bytes.with_label_values(&[keeping.as_str()]);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
    pub(super) fn evicted(&self, evicted: &Evicted) {
        let reason = [EvictedBecause::of(evicted.reason).as_str()];
        self.evictions.with_label_values(&reason).inc();
        self.bytes.with_label_values(&reason).inc_by(evicted.len_bytes);
        let seconds = |ms: u64| ms as f64 / 1e3;
        self.age_seconds
            .with_label_values(&reason)
            .observe(seconds(evicted.age_ms));
        self.idle_seconds
            .with_label_values(&reason)
            .observe(seconds(evicted.idle_ms));
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
    pub(super) fn told(&self, after_ms: u64) {
        self.told_seconds.observe(after_ms as f64 / 1e3);
    }

    pub(super) fn unreported(&self) {
        self.unreported.inc();
    }

    pub(super) fn keep(&self, account: &PinAccount) {
        for (keeping, share) in [
            (Keeping::None, account.evictable),
            (Keeping::Soft, account.soft),
            (Keeping::Hard, account.hard),
        ] {
            let pin = [keeping.as_str()];
            self.kept_objects.with_label_values(&pin).set(gauge(share.objects));
            self.kept_bytes.with_label_values(&pin).set(gauge(share.bytes));
        }
    }
}

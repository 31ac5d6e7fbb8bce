//! What placement requests cost that had to search. `store-core` counts it; here it is given names.

use prometheus::proto::{Bucket, Counter, Histogram, Metric, MetricFamily, MetricType};
use tenon_store_core::placement::{self, PlacementCounters};

/// All families, from the sums as they are now.
pub(super) fn families(sums: &PlacementCounters) -> Vec<MetricFamily> {
    vec![
        counter(
            "armed_total",
            "Placement requests whose scan came to read hints.",
            sums.armed_requests,
        ),
        counter(
            "hints_examined_total",
            "Scanned segments whose hints were read.",
            sums.hints_examined,
        ),
        counter(
            "no_fit_credits_total",
            "Scanned segments that cost nothing because they were known to have no room.",
            sums.no_fit_credits,
        ),
        counter(
            "armed_calls_total",
            "Allocate calls in scans while hints were read.",
            sums.armed_calls,
        ),
        counter(
            "recovered_total",
            "Replicas that were placed only because of credits.",
            sums.recovered,
        ),
        counter(
            "chargeable_exhaustions_total",
            "Requests that ended short because their chargeable positions were spent.",
            sums.chargeable_exhaustions,
        ),
        counter(
            "scan_cap_exhaustions_total",
            "Requests that ended short because the scan visited as many positions as it may.",
            sums.scan_cap_exhaustions,
        ),
        histogram(
            "scanned_positions",
            "Positions that the scan of an armed request visited.",
            &sums.scanned_positions,
        ),
        histogram(
            "chargeable_positions",
            "Positions that the scan of an armed request paid for.",
            &sums.chargeable_positions,
        ),
        histogram("credits", "Credits of an armed request.", &sums.credits),
    ]
}

fn family(name: &str, help: &str, kind: MetricType, metric: Metric) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(format!("tenon_placement_{name}"));
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(vec![metric]);
    family
}

/// Prometheus's numbers are floating point; counts beyond 2^53 lose their last digits.
#[expect(clippy::cast_precision_loss, reason = "the format has no other numbers")]
fn float(value: u64) -> f64 {
    value as f64
}

fn counter(name: &str, help: &str, value: u64) -> MetricFamily {
    let (mut counter, mut metric) = (Counter::default(), Metric::default());
    counter.set_value(float(value));
    metric.set_counter(counter);
    family(name, help, MetricType::COUNTER, metric)
}

fn histogram(name: &str, help: &str, counts: &placement::Histogram) -> MetricFamily {
    let bucket = |(upper_bound, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(float(upper_bound));
        bucket.set_cumulative_count(count);
        bucket
    };
    let (mut histogram, mut metric) = (Histogram::default(), Metric::default());
    histogram.set_bucket(counts.cumulative().map(bucket).collect());
    histogram.set_sample_count(counts.count());
    histogram.set_sample_sum(float(counts.sum()));
    metric.set_histogram(histogram);
    family(name, help, MetricType::HISTOGRAM, metric)
}

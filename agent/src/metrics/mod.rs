//! What the agent counts, for Prometheus. Every metric is recorded through one method of [`Metrics`]; labels come from
//! enums, so their number is bounded.

mod eviction;
mod labels;
mod lives;
mod placement;
mod push;
mod room;
mod scrape;
#[cfg(test)]
mod tests;
mod transports;

use std::time::Duration;

use parking_lot::Mutex;
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use tenon_client::Transports;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Alarm, IndexInfo, KeyResult, NodeInfo, Reservation};
use tenon_protocol::segments::SegmentInfo;
use tenon_store_core::objects::{Evicted, PinAccount};
use tenon_store_core::placement::PlacementCounters;
use tenon_store_core::placement::nodes::Why;

pub use labels::{
    AllocationFailure, EvictedBecause, Keeping, Place, PlacedOn, PutOutcome, ReadOutcome, RefusedBecause, RoomAnswer,
    Verb,
};

use eviction::EvictionCounters;
use lives::LivesCounters;
use room::RoomCounters;
use scrape::{AtScrape, gauge};
use transports::OfTransports;

/// Upper bounds of durations, from a call within the process to one that met its deadline.
const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];
/// All metrics of an agent.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    http_requests: IntCounterVec,
    http_seconds: HistogramVec,
    locates: IntCounterVec,
    gets: IntCounterVec,
    puts: IntCounterVec,
    received_bytes: IntCounterVec,
    sent_bytes: IntCounterVec,
    room: RoomCounters,
    eviction: EvictionCounters,
    refused_handshakes: IntCounterVec,
    degraded_answers: IntCounter,
    transports: OfTransports,
    lives: LivesCounters,
    /// Gauges are set and read out as one step.
    at_scrape: Mutex<AtScrape>,
}

/// The state of a node at a moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The members of the view.
    pub nodes: Vec<NodeInfo>,
    /// What this node keeps as a home of keys.
    pub index: IndexInfo,
    /// What an operator should look at.
    pub alarms: Vec<Alarm>,
    /// This node's segments.
    pub segments: Vec<SegmentInfo>,
    /// What placement has cost so far.
    pub placement: PlacementCounters,
}

/// Makes metrics in a registry. Names and labels are constants, so that failing is a fault of this file, which its
/// tests show.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn add<C: prometheus::core::Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let metric = made.expect("names, labels and buckets are valid");
        self.0.register(Box::new(metric.clone())).expect("names are distinct");
        metric
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help))
    }

    fn ratios(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> HistogramVec {
        self.add(HistogramVec::new(
            HistogramOpts::new(name, help).buckets(SECONDS.to_vec()),
            labels,
        ))
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics at zero. `tenon_build_info` says which program this is.
    pub fn new() -> Self {
        let registry = Registry::new();
        let make = Maker(&registry);
        let build = make.gauges("tenon_build_info", "The program; always 1.", &["version", "profile"]);
        let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), profile]).set(1);
        let started = make.gauge("tenon_start_time_seconds", "Unix time at which the program started.");
        started.set(unix_seconds());
        let metrics = Self {
            calls: make.counters(
                "tenon_calls_total",
                "Calls of the control service by verb and result.",
                &["verb", "result"],
            ),
            call_seconds: make.histograms(
                "tenon_call_duration_seconds",
                "Duration of calls of the control service.",
                &["verb"],
            ),
            http_requests: make.counters(
                "tenon_http_requests_total",
                "HTTP requests by route, method and status.",
                &["route", "method", "status"],
            ),
            http_seconds: make.histograms(
                "tenon_http_request_duration_seconds",
                "Time until the head of an HTTP answer.",
                &["route"],
            ),
            locates: make.counters(
                "tenon_locates_total",
                "Keys that were to be located, by outcome.",
                &["outcome"],
            ),
            gets: make.counters(
                "tenon_gets_total",
                "Objects that were to be read by this agent, by outcome.",
                &["outcome"],
            ),
            puts: make.counters(
                "tenon_puts_total",
                "Objects that were to be put through this agent, by outcome.",
                &["outcome"],
            ),
            received_bytes: make.counters(
                "tenon_received_bytes_total",
                "Payload bytes received, by place.",
                &["place"],
            ),
            sent_bytes: make.counters("tenon_sent_bytes_total", "Payload bytes sent, by place.", &["place"]),
            room: RoomCounters::new(&make),
            eviction: EvictionCounters::new(&make),
            refused_handshakes: make.counters(
                "tenon_handshakes_refused_total",
                "Peers that were not let in, by reason.",
                &["reason"],
            ),
            degraded_answers: make.counter(
                "tenon_degraded_answers_total",
                "Keys about which one home decided alone.",
            ),
            transports: OfTransports::new(&make),
            lives: LivesCounters::new(&make),
            at_scrape: Mutex::new(AtScrape::new(&make)),
            registry,
        };
        metrics.show_zeroes();
        metrics
    }

    /// Series that exist from the start can be told from series that are missing.
    fn show_zeroes(&self) {
        for outcome in ReadOutcome::ALL {
            self.locates.with_label_values(&[outcome.as_str()]);
            self.gets.with_label_values(&[outcome.as_str()]);
        }
        for outcome in PutOutcome::ALL {
            self.puts.with_label_values(&[outcome.as_str()]);
        }
        for place in Place::ALL {
            self.received_bytes.with_label_values(&[place.as_str()]);
            self.sent_bytes.with_label_values(&[place.as_str()]);
        }
        self.room.show_zeroes();
        self.eviction.show_zeroes();
        self.lives.show_zeroes();
        for reason in RefusedBecause::ALL {
            self.refused_handshakes.with_label_values(&[reason.as_str()]);
        }
        for verb in Verb::ALL {
            self.calls.with_label_values(&[verb.as_str(), "ok"]);
        }
    }

    /// A call of the control service has been answered; `failed` if it failed as a whole.
    pub fn called(&self, verb: Verb, failed: Option<ErrorCode>, duration: Duration) {
        let result = failed.map_or("ok", ErrorCode::as_str);
        self.calls.with_label_values(&[verb.as_str(), result]).inc();
        self.call_seconds
            .with_label_values(&[verb.as_str()])
            .observe(duration.as_secs_f64());
    }

    /// An HTTP request has got its answer's head. `route` is the pattern of a route and `method` one of its methods,
    /// not what the request says.
    pub fn http_answered(&self, route: &str, method: &'static str, status: u16, duration: Duration) {
        let status = status.to_string();
        self.http_requests.with_label_values(&[route, method, &status]).inc();
        self.http_seconds
            .with_label_values(&[route])
            .observe(duration.as_secs_f64());
    }

    /// A key was located, or not.
    pub fn located(&self, outcome: ReadOutcome) {
        self.locates.with_label_values(&[outcome.as_str()]).inc();
    }

    /// This agent itself has read an object, or not.
    pub fn got(&self, outcome: ReadOutcome) {
        self.gets.with_label_values(&[outcome.as_str()]).inc();
    }

    /// An object was put, or not.
    pub fn put(&self, outcome: PutOutcome) {
        self.puts.with_label_values(&[outcome.as_str()]).inc();
    }

    /// This node has set no region aside.
    pub fn allocation_failed(&self, reason: AllocationFailure) {
        self.room.allocation_failed(reason);
    }

    /// It was decided by `own`, this node, where an object goes.
    pub fn placed(&self, own: NodeId, result: &KeyResult<Reservation>) {
        self.room.placed(own, result);
    }

    /// A node that was asked for room has answered so about so many objects, or about none.
    pub fn room_answered(&self, why: Why, answer: RoomAnswer, objects: usize) {
        self.room.answered(why, answer, objects);
    }

    /// An object was evicted.
    pub fn evicted(&self, evicted: &Evicted) {
        self.eviction.evicted(evicted);
    }

    /// The homes of an evicted object know of it, so long after it has gone.
    pub fn eviction_told(&self, after_ms: u64) {
        self.eviction.told(after_ms);
    }

    /// The homes of an evicted object are not told.
    pub fn eviction_unreported(&self) {
        self.eviction.unreported();
    }

    /// So many objects are here, by what keeps them from being evicted.
    pub fn objects_kept(&self, account: &PinAccount) {
        self.eviction.keep(account);
    }

    /// Payload bytes have arrived.
    pub fn received(&self, place: Place, len_bytes: u64) {
        self.received_bytes
            .with_label_values(&[place.as_str()])
            .inc_by(len_bytes);
    }

    /// Payload bytes have left.
    pub fn sent(&self, place: Place, len_bytes: u64) {
        self.sent_bytes.with_label_values(&[place.as_str()]).inc_by(len_bytes);
    }

    /// A peer was not let in.
    pub fn refused(&self, because: RefusedBecause) {
        self.refused_handshakes.with_label_values(&[because.as_str()]).inc();
    }

    /// One home decided alone about a key.
    pub fn degraded(&self) {
        self.degraded_answers.inc();
    }

    /// A segment was mounted at run time.
    pub fn segment_mounted(&self) {
        self.lives.mounted("mounted");
    }

    /// A segment was to be mounted at run time, and is not.
    pub fn segment_mount_failed(&self) {
        self.lives.mounted("failed");
    }

    /// A segment was unmounted.
    pub fn segment_unmounted(&self) {
        self.lives.unmounted();
    }

    /// Has it told over what this agent's transfers go.
    pub fn watch_transports(&self, transports: &Transports) {
        self.transports.watch(transports);
    }

    /// All metrics in Prometheus's text format, with the state of things that are not counted but looked up.
    pub fn render(&self, now: &Snapshot) -> String {
        let at_scrape = self.at_scrape.lock();
        at_scrape.set(now);
        self.transports.set();
        self.lives.set(&now.segments);
        let mut families = self.registry.gather();
        families.extend(placement::families(&now.placement));
        let mut text = String::new();
        match TextEncoder::new().encode_utf8(&families, &mut text) {
            Ok(()) => text,
            Err(error) => format!("# {error}\n"),
        }
    }
}

fn unix_seconds() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    gauge(since.unwrap_or_default().as_secs())
}

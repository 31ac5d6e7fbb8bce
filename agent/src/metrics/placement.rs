//! What placement requests cost that had to search.

use prometheus::{Histogram, IntCounter};
use tenon_store_core::placement::{PlacementFigures, StopReason};

use super::Maker;

const SCANNED_POSITIONS: &[f64] = &[1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 125.0, 150.0, 175.0, 200.0];
const CHARGEABLE_POSITIONS: &[f64] = &[1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0];
const CREDITS: &[f64] = &[0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 125.0, 150.0, 175.0, 200.0];

#[derive(Debug)]
pub(super) struct Placement {
    armed: IntCounter,
    examined: IntCounter,
    credits: IntCounter,
    armed_calls: IntCounter,
    recovered: IntCounter,
    chargeable_exhaustions: IntCounter,
    scan_cap_exhaustions: IntCounter,
    scanned_per_request: Histogram,
    chargeable_per_request: Histogram,
    credits_per_request: Histogram,
}

impl Placement {
    pub(super) fn new(make: &Maker<'_>) -> Self {
        Self {
            armed: make.counter(
                "tenon_placement_armed_total",
                "Placement requests whose scan came to read hints.",
            ),
            examined: make.counter(
                "tenon_placement_hints_examined_total",
                "Scanned segments whose hints were read.",
            ),
            credits: make.counter(
                "tenon_placement_no_fit_credits_total",
                "Scanned segments that cost nothing because they were known to have no room.",
            ),
            armed_calls: make.counter(
                "tenon_placement_armed_calls_total",
                "Allocate calls in scans while hints were read.",
            ),
            recovered: make.counter(
                "tenon_placement_recovered_total",
                "Replicas that were placed only because of credits.",
            ),
            chargeable_exhaustions: make.counter(
                "tenon_placement_chargeable_exhaustions_total",
                "Requests that ended short because their chargeable positions were spent.",
            ),
            scan_cap_exhaustions: make.counter(
                "tenon_placement_scan_cap_exhaustions_total",
                "Requests that ended short because the scan visited as many positions as it may.",
            ),
            scanned_per_request: make.histogram(
                "tenon_placement_scanned_positions",
                "Positions that the scan of an armed request visited.",
                SCANNED_POSITIONS,
            ),
            chargeable_per_request: make.histogram(
                "tenon_placement_chargeable_positions",
                "Positions that the scan of an armed request paid for.",
                CHARGEABLE_POSITIONS,
            ),
            credits_per_request: make.histogram("tenon_placement_credits", "Credits of an armed request.", CREDITS),
        }
    }

    pub(super) fn record(&self, figures: &PlacementFigures) {
        if !figures.armed {
            return;
        }
        self.armed.inc();
        self.examined.inc_by(figures.hints_examined.into());
        self.credits.inc_by(figures.no_fit_credits.into());
        self.armed_calls.inc_by(figures.armed_calls.into());
        self.recovered.inc_by(figures.recovered.into());
        match figures.stop {
            Some(StopReason::ChargeableBudget) => self.chargeable_exhaustions.inc(),
            Some(StopReason::ScanCap) => self.scan_cap_exhaustions.inc(),
            _ => {}
        }
        self.scanned_per_request.observe(figures.scanned_positions.into());
        self.chargeable_per_request.observe(figures.chargeable_positions.into());
        self.credits_per_request.observe(figures.no_fit_credits.into());
    }
}

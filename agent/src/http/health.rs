//! Whether the process lives, whether the node serves, what it counted, and what HTTP offers.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use serde::Serialize;
use tenon_protocol::message::Alarm;
use tokio::time::Instant;

use super::Front;
use super::error::ApiError;
use crate::metrics::Snapshot;

/// The document that describes this interface.
pub(super) const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// How long the answer to `/metrics` may take: everything in it is known to this process.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to `/livez`.
#[derive(Debug, Serialize)]
pub(super) struct Live {
    live: bool,
}

/// `GET /livez`: the process can answer.
pub(super) async fn live() -> Json<Live> {
    Json(Live { live: true })
}

/// The answer to `/readyz`.
#[derive(Debug, Serialize)]
pub(super) struct Readiness {
    ready: bool,
    reasons: Vec<String>,
    /// They do not make it unready by themselves.
    alarms: Vec<Alarm>,
}

/// `GET /readyz`: segments are registered, the view is known, and the node is not stopping.
pub(super) async fn ready(State(front): State<Front>) -> (StatusCode, Json<Readiness>) {
    let reasons = front.backend.unready();
    let status = if reasons.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let ready = reasons.is_empty();
    let alarms = front.backend.alarms();
    (status, Json(Readiness { ready, reasons, alarms }))
}

type Typed = [(HeaderName, &'static str); 1];

/// `GET /metrics`.
pub(super) async fn metrics(State(front): State<Front>) -> Result<(Typed, String), ApiError> {
    let deadline = Instant::now() + SCRAPE_TIMEOUT;
    let nodes = front.nodes(deadline).await?;
    let segments = front.segments(Some(front.backend.id()), deadline).await?;
    let text = front.metrics.render(&Snapshot {
        nodes: nodes.nodes,
        index: *nodes.index,
        alarms: nodes.alarms,
        segments: segments.segments,
        placement: front.backend.placement_counters(),
    });
    Ok(([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text))
}

/// `GET /openapi.json`.
pub(super) async fn openapi() -> (Typed, &'static str) {
    ([(CONTENT_TYPE, "application/json")], OPENAPI)
}

//! Placement as operators look at it: where puts would go and why, and what a segment is used for.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::Uri;
use serde::{Deserialize, Serialize};
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::MAP_RUNS_MAX;
use tenon_protocol::message::{Reply, Request as ServiceRequest};
use tenon_protocol::placement::{
    DryRunAnswer, DryRunNode, DryRunPlace, DryRunReply, DryRunRequest, DryRunStep, PlacementPolicy, SegmentMapReply,
    SegmentMapRequest,
};

use super::Front;
use super::calls::{Item, OwnedError, body_of, items};
use super::error::ApiError;
use super::extract::{Patience, Query, TimeLimit};
use super::path;

/// The answer to `POST /v1/placement/dry-run`: the protocol's, with errors in the form that they have over HTTP.
#[derive(Debug, Serialize)]
pub(super) struct ShownDryRun {
    policy: PlacementPolicy,
    nodes: Vec<DryRunNode>,
    steps: Vec<ShownStep>,
    items: Vec<Item<DryRunPlace>>,
}

#[derive(Debug, Serialize)]
struct ShownStep {
    node: NodeId,
    because: String,
    answers: Vec<ShownAnswer>,
}

#[derive(Debug, Serialize)]
struct ShownAnswer {
    item: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<DryRunPlace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<OwnedError>,
}

impl From<DryRunReply> for ShownDryRun {
    fn from(reply: DryRunReply) -> Self {
        let answer = |answer: DryRunAnswer| ShownAnswer {
            item: answer.item,
            place: answer.place,
            refusal: answer.refusal.map(OwnedError),
        };
        let step = |step: DryRunStep| ShownStep {
            node: step.node,
            because: step.because,
            answers: step.answers.into_iter().map(answer).collect(),
        };
        Self {
            policy: reply.policy,
            nodes: reply.nodes,
            steps: reply.steps.into_iter().map(step).collect(),
            items: items(reply.items, |place| place),
        }
    }
}

/// `POST /v1/placement/dry-run`.
pub(super) async fn dry_run(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<ShownDryRun>, ApiError> {
    let (request, deadline) = body_of::<DryRunRequest>(&front, request, limit).await?;
    match front.call(deadline, ServiceRequest::DryRun(request)).await? {
        Reply::DryRun(reply) => Ok(Json((*reply).into())),
        _ => Err(ApiError::unexpected_reply()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MapQuery {
    node: Option<NodeId>,
    #[serde(default)]
    from_bytes: u64,
    limit: Option<u32>,
    timeout_ms: Option<u64>,
}

/// `GET /v1/segments/{id}/map`.
pub(super) async fn segment_map(
    State(front): State<Front>,
    Query(asked): Query<MapQuery>,
    uri: Uri,
) -> Result<Json<SegmentMapReply>, ApiError> {
    let request = ServiceRequest::SegmentMap(SegmentMapRequest {
        node: asked.node,
        segment: path::segment(&uri)?,
        from_bytes: asked.from_bytes,
        limit: asked.limit.unwrap_or(MAP_RUNS_MAX),
    });
    let deadline = Patience::new(asked.timeout_ms)?.deadline(0);
    match front.call(deadline, request).await? {
        Reply::SegmentMap(reply) => Ok(Json(reply)),
        _ => Err(ApiError::unexpected_reply()),
    }
}

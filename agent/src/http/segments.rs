//! Segments over HTTP: which there are, and how they come and go.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use serde::{Deserialize, Serialize};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{Reply, Request as ServiceRequest};
use tenon_protocol::segments::{HugePageUse, MountSpec, SegmentCall, SegmentChange, SegmentInfo, SegmentState};
use tokio::time::Instant;

use super::Front;
use super::calls::body_of;
use super::error::ApiError;
use super::extract::{Patience, Query, TimeLimit};
use super::path;

/// The body of `POST /v1/segments`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MountBody {
    #[serde(default)]
    node: Option<NodeId>,
    len_bytes: u64,
    #[serde(default)]
    slots: Option<u32>,
    #[serde(default)]
    huge_pages: Option<HugePageUse>,
    #[serde(default)]
    file: Option<String>,
}

/// The query of `POST /v1/segments/{id}/drain`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DrainQuery {
    node: Option<NodeId>,
    timeout_ms: Option<u64>,
}

/// The query of `DELETE /v1/segments/{id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnmountQuery {
    node: Option<NodeId>,
    #[serde(default)]
    graceful_ms: u64,
    #[serde(default)]
    force: bool,
    timeout_ms: Option<u64>,
}

type Changed = (StatusCode, Json<SegmentInfo>);

/// `POST /v1/segments`: 201 once the segment is in use, 202 while it is being mounted.
pub(super) async fn mount(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Changed, ApiError> {
    let (body, deadline) = body_of::<MountBody>(&front, request, limit).await?;
    let spec = MountSpec {
        len_bytes: body.len_bytes,
        slots: body.slots,
        huge_pages: body.huge_pages,
        file: body.file,
    };
    let info = change(&front, body.node, SegmentChange::Mount(spec), deadline).await?;
    let status = match info.state {
        SegmentState::Mounting => StatusCode::ACCEPTED,
        _ => StatusCode::CREATED,
    };
    Ok((status, Json(info)))
}

/// `POST /v1/segments/{id}/drain`.
pub(super) async fn drain(
    State(front): State<Front>,
    uri: Uri,
    Query(query): Query<DrainQuery>,
) -> Result<Changed, ApiError> {
    let segment = path::segment(&uri)?;
    let deadline = Patience::new(query.timeout_ms)?.deadline(0);
    let info = change(&front, query.node, SegmentChange::Drain { segment }, deadline).await?;
    Ok((StatusCode::OK, Json(info)))
}

/// `DELETE /v1/segments/{id}`: 200 once the segment is gone, 202 while it is not.
pub(super) async fn unmount(
    State(front): State<Front>,
    uri: Uri,
    Query(query): Query<UnmountQuery>,
) -> Result<Changed, ApiError> {
    let deadline = Patience::new(query.timeout_ms)?.deadline(0);
    let wanted = SegmentChange::Unmount {
        segment: path::segment(&uri)?,
        graceful_ms: query.graceful_ms,
        force: query.force,
    };
    let info = change(&front, query.node, wanted, deadline).await?;
    let status = match info.state {
        SegmentState::Gone => StatusCode::OK,
        _ => StatusCode::ACCEPTED,
    };
    Ok((status, Json(info)))
}

async fn change(
    front: &Front,
    node: Option<NodeId>,
    change: SegmentChange,
    deadline: Instant,
) -> Result<SegmentInfo, ApiError> {
    let call = ServiceRequest::Segment(SegmentCall { node, change });
    match front.call(deadline, call).await? {
        Reply::Segment(info) => Ok(*info),
        _ => Err(ApiError::unexpected_reply()),
    }
}

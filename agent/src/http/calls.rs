//! The verbs of the control service as `POST` of JSON, and the questions that are `GET`.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::Uri;
use serde::{Deserialize, Serialize};
use tenon_client::limits::REMOVE_PAGE_KEYS;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::limits::LIST_ENTRIES_MAX;
use tenon_protocol::message::{
    AbortRequest, CommitRequest, Committed, ExistsReply, ExistsRequest, KeepRequest, KeyResult, KeysRequest, ListReply,
    ListRequest, Located, NodeRef, NodesReply, Reply, Request as ServiceRequest, Reservation, ReserveRequest,
};
use tenon_protocol::segments::SegmentsReply;
use tokio::time::Instant;

use super::Front;
use super::body::Incoming;
use super::error::{ApiError, ErrorObject};
use super::extract::{Patience, Query, TimeLimit, message};
use super::path;
use super::puts::{AbortBody, CommitBody};

/// The result of one item of a batch: `{"ok": …}` or `{"error": {…}}`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Item<T> {
    Ok(T),
    Error(OwnedError),
}

/// An error that outlives the answer it came with.
#[derive(Debug)]
pub(super) struct OwnedError(pub(super) ServiceError);

impl Serialize for OwnedError {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ErrorObject::from(&self.0).serialize(serializer)
    }
}

pub(super) fn items<T, U>(results: Vec<KeyResult<T>>, show: impl Fn(T) -> U) -> Vec<Item<U>> {
    let item = |result: KeyResult<T>| match result {
        Ok(value) => Item::Ok(show(value)),
        Err(error) => Item::Error(OwnedError(error)),
    };
    results.into_iter().map(item).collect()
}

/// `{"items": […]}`.
#[derive(Debug, Serialize)]
pub(super) struct Items<T> {
    items: Vec<Item<T>>,
}

/// `{"nodes": […], "items": […]}`.
#[derive(Debug, Serialize)]
pub(super) struct ItemsOnNodes<T> {
    nodes: Vec<NodeRef>,
    items: Vec<Item<T>>,
}

/// A reservation without the keys of this agent's session, which are of no use to others.
#[derive(Debug, Serialize)]
pub(super) struct ShownReservation {
    replicas: Vec<ShownRegion>,
}

#[derive(Debug, Serialize)]
struct ShownRegion {
    holder: NodeId,
    segment: SegmentId,
    offset_bytes: u64,
    ttl_ms: u32,
}

impl From<Reservation> for ShownReservation {
    fn from(reservation: Reservation) -> Self {
        let shown = reservation.replicas.into_iter().map(|region| ShownRegion {
            holder: region.holder,
            segment: region.segment,
            offset_bytes: region.offset_bytes,
            ttl_ms: region.ttl_ms,
        });
        Self {
            replicas: shown.collect(),
        }
    }
}

/// Reads the body of a call. A call that is refused reads the rest too.
pub(super) async fn body_of<T: serde::de::DeserializeOwned + Serialize>(
    front: &Front,
    request: Request,
    limit: TimeLimit,
) -> Result<(T, Instant), ApiError> {
    let (_, mut incoming) = Incoming::of(request);
    let read = async {
        let deadline = limit.patience()?.deadline(0);
        let _permit = front.admit_call(deadline).await?;
        let body = incoming.message(deadline).await?;
        Ok((message(&body)?, deadline))
    };
    let read = read.await;
    incoming.discard();
    read
}

/// `POST /v1/reserve`.
pub(super) async fn reserve(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<ItemsOnNodes<ShownReservation>>, ApiError> {
    let (request, deadline) = body_of::<ReserveRequest>(&front, request, limit).await?;
    front.puts.check_room(request.items.len())?;
    let Reply::Reserve(reply) = front.call(deadline, ServiceRequest::Reserve(request.clone())).await? else {
        return Err(ApiError::unexpected_reply());
    };
    front.puts.remember(&request, &reply);
    Ok(Json(ItemsOnNodes {
        nodes: reply.nodes,
        items: items(reply.items, ShownReservation::from),
    }))
}

/// `POST /v1/commit`.
pub(super) async fn commit(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<Items<Committed>>, ApiError> {
    let (body, deadline) = body_of::<CommitBody>(&front, request, limit).await?;
    let (namespace, put_id) = (body.namespace.clone(), body.put_id);
    let filled = front.puts.fill_commit(body);
    let results = with_filled(filled, async |items| {
        let request = CommitRequest {
            namespace,
            put_id,
            items,
        };
        match front.call(deadline, ServiceRequest::Commit(request)).await? {
            Reply::Commit(results) => Ok(results),
            _ => Err(ApiError::unexpected_reply()),
        }
    });
    Ok(Json(Items {
        items: items(results.await?, |committed| committed),
    }))
}

/// `POST /v1/abort`.
pub(super) async fn abort(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<Items<bool>>, ApiError> {
    let (body, deadline) = body_of::<AbortBody>(&front, request, limit).await?;
    let (namespace, put_id) = (body.namespace.clone(), body.put_id);
    let filled = front.puts.fill_abort(body);
    let results = with_filled(filled, async |items| {
        let request = AbortRequest {
            namespace,
            put_id,
            items,
        };
        match front.call(deadline, ServiceRequest::Abort(request)).await? {
            Reply::Abort(results) => Ok(results),
            _ => Err(ApiError::unexpected_reply()),
        }
    });
    Ok(Json(Items {
        items: items(results.await?, |was_there| was_there),
    }))
}

/// Asks about the items that could be completed and puts the answers where the items stood, among the errors of the
/// others.
async fn with_filled<T, U>(
    filled: Vec<KeyResult<T>>,
    ask: impl AsyncFnOnce(Vec<T>) -> Result<Vec<KeyResult<U>>, ApiError>,
) -> Result<Vec<KeyResult<U>>, ApiError> {
    let mut asked = Vec::new();
    let places: Vec<KeyResult<()>> = filled
        .into_iter()
        .map(|item| item.map(|item| asked.push(item)))
        .collect();
    // A batch without any item is refused by the service, in its words.
    let answers = if asked.is_empty() && !places.is_empty() {
        Vec::new()
    } else {
        ask(asked).await?
    };
    let mut answers = answers.into_iter();
    let mut results = Vec::with_capacity(places.len());
    for place in places {
        results.push(match place {
            Ok(()) => answers.next().ok_or_else(ApiError::unexpected_reply)?,
            Err(error) => Err(error),
        });
    }
    Ok(results)
}

/// `POST /v1/locate`.
pub(super) async fn locate(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<ItemsOnNodes<Option<Located>>>, ApiError> {
    let (request, deadline) = body_of::<KeysRequest>(&front, request, limit).await?;
    let Reply::Locate(reply) = front.call(deadline, ServiceRequest::Locate(request)).await? else {
        return Err(ApiError::unexpected_reply());
    };
    Ok(Json(ItemsOnNodes {
        nodes: reply.nodes,
        items: items(reply.items, |located| located),
    }))
}

/// The answer to `POST /v1/exists`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", untagged)]
pub(super) enum Existing {
    Each(Items<bool>),
    LeadingRun { leading_run: u32 },
}

/// `POST /v1/exists`.
pub(super) async fn exists(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<Existing>, ApiError> {
    let (request, deadline) = body_of::<ExistsRequest>(&front, request, limit).await?;
    let Reply::Exists(reply) = front.call(deadline, ServiceRequest::Exists(request)).await? else {
        return Err(ApiError::unexpected_reply());
    };
    Ok(Json(match reply {
        ExistsReply::Each(results) => Existing::Each(Items {
            items: items(results, |exists| exists),
        }),
        ExistsReply::LeadingRun(leading_run) => Existing::LeadingRun { leading_run },
    }))
}

/// `POST /v1/remove`.
pub(super) async fn remove(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<Items<bool>>, ApiError> {
    let (request, deadline) = body_of::<KeysRequest>(&front, request, limit).await?;
    let Reply::Remove(results) = front.call(deadline, ServiceRequest::Remove(request)).await? else {
        return Err(ApiError::unexpected_reply());
    };
    Ok(Json(Items {
        items: items(results, |was_there| was_there),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// Named also where it is empty: nobody removes a whole namespace by leaving something out.
    prefix: String,
    after: Option<String>,
    limit: Option<u32>,
    timeout_ms: Option<u64>,
}

/// What became of a page of keys that were to be removed.
#[derive(Debug, Serialize)]
pub(super) struct RemovedPage {
    removed: u64,
    failed: Vec<FailedKey>,
    next: Option<String>,
    complete: bool,
    missing: Vec<NodeId>,
}

#[derive(Debug, Serialize)]
struct FailedKey {
    key: String,
    error: OwnedError,
}

/// `DELETE /v1/objects` and `DELETE /v1/namespaces/{namespace}/objects`: of a page of the keys that begin so.
pub(super) async fn remove_page(
    State(front): State<Front>,
    Query(asked): Query<PageQuery>,
    uri: Uri,
) -> Result<Json<RemovedPage>, ApiError> {
    let namespace = path::namespace(&uri)?;
    let deadline = Patience::new(asked.timeout_ms)?.deadline(0);
    let (after, limit) = (asked.after, asked.limit.unwrap_or(REMOVE_PAGE_KEYS));
    let removing = front
        .backend
        .remove_page(&namespace, &asked.prefix, after, limit, deadline);
    let page = removing.await?;
    let failed = page.failed.into_iter().map(|(key, error)| FailedKey {
        key,
        error: OwnedError(error.into()),
    });
    Ok(Json(RemovedPage {
        removed: page.removed,
        failed: failed.collect(),
        next: page.next,
        complete: page.missing.is_empty(),
        missing: page.missing,
    }))
}

/// `POST /v1/keep`.
pub(super) async fn keep(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    request: Request,
) -> Result<Json<Items<bool>>, ApiError> {
    let (request, deadline) = body_of::<KeepRequest>(&front, request, limit).await?;
    let Reply::Keep(results) = front.call(deadline, ServiceRequest::Keep(request)).await? else {
        return Err(ApiError::unexpected_reply());
    };
    Ok(Json(Items {
        items: items(results, |was_there| was_there),
    }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    prefix: String,
    after: Option<String>,
    limit: Option<u32>,
    timeout_ms: Option<u64>,
}

/// `GET /v1/objects` and `GET /v1/namespaces/{namespace}/objects`.
pub(super) async fn list(
    State(front): State<Front>,
    Query(asked): Query<ListQuery>,
    uri: Uri,
) -> Result<Json<ListReply>, ApiError> {
    let request = ServiceRequest::List(ListRequest {
        namespace: path::namespace(&uri)?.to_string(),
        prefix: asked.prefix,
        after: asked.after,
        limit: asked.limit.unwrap_or(LIST_ENTRIES_MAX),
    });
    let deadline = Patience::new(asked.timeout_ms)?.deadline(0);
    match front.call(deadline, request).await? {
        Reply::List(reply) => Ok(Json(reply)),
        _ => Err(ApiError::unexpected_reply()),
    }
}

/// `GET /v1/nodes`.
pub(super) async fn nodes(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
) -> Result<Json<NodesReply>, ApiError> {
    front.nodes(limit.patience()?.deadline(0)).await.map(Json)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SegmentsQuery {
    node: Option<NodeId>,
    timeout_ms: Option<u64>,
}

/// `GET /v1/segments`.
pub(super) async fn segments(
    State(front): State<Front>,
    Query(asked): Query<SegmentsQuery>,
) -> Result<Json<SegmentsReply>, ApiError> {
    let deadline = Patience::new(asked.timeout_ms)?.deadline(0);
    front.segments(asked.node, deadline).await.map(Json)
}

//! Whole objects: `PUT`, `GET` (with ranges), `HEAD`, `DELETE`.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use tenon_client::{ObjectInfo, PutOptions};
use tenon_protocol::checksum::piece_len_bytes;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, PutId};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Committed, KeysRequest, Pin, PutOutcome, Reply, Request as ServiceRequest};
use tenon_protocol::name::ObjectName;
use tokio::time::Instant;

use super::Front;
use super::backend::{ObjectSink, ObjectSource};
use super::body::{Incoming, content_length};
use super::connection::{ConnectionHandle, UnderWay};
use super::error::ApiError;
use super::extract::{Patience, Query, TimeLimit, query};
use super::path;
use super::range::Wanted;
use crate::fingerprint::{Fingerprint, hex};
use crate::limits::GET_OPENINGS_MAX;
use crate::metrics::{self, Metrics, ReadOutcome};

const OCTET_STREAM: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// The object's checksum, CRC-64/NVME, in 16 hexadecimal digits.
const CHECKSUM: HeaderName = HeaderName::from_static("tenon-crc64nvme");
/// What the object was stored with, in hexadecimal digits; empty if with nothing.
const FINGERPRINT: HeaderName = HeaderName::from_static("tenon-fingerprint");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PutQuery {
    node: Option<NodeId>,
    put_id: Option<PutId>,
    pin: Option<bool>,
    soft_pin_ms: Option<u64>,
    replicas: Option<u8>,
    replace: Option<bool>,
    fingerprint: Option<Fingerprint>,
    timeout_ms: Option<u64>,
}

impl PutQuery {
    fn pin(&self) -> Result<Pin, ApiError> {
        match (self.pin.unwrap_or(false), self.soft_pin_ms) {
            (false, None) => Ok(Pin::None),
            (true, None) => Ok(Pin::Hard),
            (false, Some(for_ms)) => Ok(Pin::Soft { for_ms }),
            (true, Some(_)) => {
                let message = "pin and soft_pin_ms exclude each other";
                Err(ApiError::new(ErrorCode::InvalidArgument, message))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetQuery {
    fingerprint: Option<Fingerprint>,
    timeout_ms: Option<u64>,
}

impl GetQuery {
    /// An object with another fingerprint than was asked for is a miss.
    fn check(&self, source: Box<dyn ObjectSource>) -> Result<Box<dyn ObjectSource>, ApiError> {
        let info = source.info();
        match &self.fingerprint {
            Some(wanted) if wanted.0 != info.fingerprint => Err(not_found(&info.name)),
            _ => Ok(source),
        }
    }
}

/// `PUT` of an object.
pub(super) async fn put(
    State(front): State<Front>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, mut incoming) = Incoming::of(request);
    let stored = store(&front, &connection, &parts.uri, &parts.headers, &mut incoming).await;
    // Whatever was refused, its sender gets to read why.
    incoming.discard();
    let committed = stored?;
    let status = match committed.outcome {
        PutOutcome::Stored => StatusCode::CREATED,
        PutOutcome::AlreadyExists => StatusCode::OK,
    };
    Ok((status, Json(committed)).into_response())
}

async fn store(
    front: &Front,
    connection: &ConnectionHandle,
    uri: &Uri,
    headers: &HeaderMap,
    incoming: &mut Incoming,
) -> Result<Committed, ApiError> {
    let name = path::object_name(uri)?;
    let asked: PutQuery = query(uri)?;
    let len_bytes = content_length(headers)?;
    if len_bytes == 0 {
        return Err(ApiError::new(ErrorCode::EmptyObject, "an object has at least one byte"));
    }
    let patience = Patience::new(asked.timeout_ms)?;
    let _permit = front.admit_transfer(patience.deadline(0)).await?;
    let options = PutOptions {
        node: asked.node,
        put_id: asked.put_id,
        pin: asked.pin()?,
        replicas: asked.replicas,
        replace: asked.replace.unwrap_or(false),
        fingerprint: asked.fingerprint.map(|fingerprint| fingerprint.0).unwrap_or_default(),
        ..PutOptions::default()
    };
    let deadline = patience.deadline(len_bytes);
    let mut sink = front.backend.put(&name, len_bytes, &options, deadline).await?;
    let filled = fill(front, &mut *sink, incoming, deadline).await;
    match filled.and_then(|()| refuse_surplus(connection)) {
        Ok(()) => Ok(sink.finish().await?),
        Err(error) => {
            sink.abort().await;
            Err(error)
        }
    }
}

async fn fill(
    front: &Front,
    sink: &mut dyn ObjectSink,
    incoming: &mut Incoming,
    deadline: Instant,
) -> Result<(), ApiError> {
    while let Some(bytes) = incoming.next(deadline).await? {
        front.metrics.received(metrics::Place::Http, bytes.len() as u64);
        sink.write(bytes).await?;
    }
    Ok(())
}

/// Refuses a body that is longer than it was announced.
pub(super) fn refuse_surplus(connection: &ConnectionHandle) -> Result<(), ApiError> {
    if connection.has_surplus() {
        let message = "more bytes came than Content-Length announced (requests are not pipelined)";
        return Err(ApiError::new(ErrorCode::LengthMismatch, message));
    }
    Ok(())
}

/// `GET` of an object.
pub(super) async fn get(
    State(front): State<Front>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    Query(asked): Query<GetQuery>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let name = path::object_name(&uri)?;
    let patience = Patience::new(asked.timeout_ms)?;
    let mut openings = 0;
    loop {
        openings += 1;
        match begin(&front, &connection, &name, (patience, &asked), &headers).await {
            // Another object took its place before the first byte: that one is as good.
            Err(error) if error.code() == ErrorCode::Conflict && openings < GET_OPENINGS_MAX => {}
            begun => return begun,
        }
    }
}

/// Opens an object and reads its first piece; the rest is read as it is taken.
async fn begin(
    front: &Front,
    connection: &ConnectionHandle,
    name: &ObjectName,
    (patience, asked): (Patience, &GetQuery),
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let place = front.admit_transfer(patience.deadline(0)).await?;
    let source = open(front, name, patience).await.and_then(|source| asked.check(source));
    let source = source.inspect_err(|error| {
        front.metrics.got(ReadOutcome::of_error(error.code()));
    })?;
    let (wanted, mut answer_headers) = (wanted(source.info(), headers), object_headers(source.info()));
    let len_bytes = source.info().len_bytes;
    let (status, range) = match wanted {
        Wanted::Whole => (StatusCode::OK, 0..len_bytes),
        Wanted::Part(range) => {
            let part = format!("bytes {}-{}/{len_bytes}", range.start, range.end - 1);
            answer_headers.insert(CONTENT_RANGE, header_value(&part));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Wanted::Nothing => {
            let message = format!("the object has {len_bytes} bytes, none of which were asked for");
            let error = ApiError::new(ErrorCode::RangeNotSatisfiable, message);
            return Err(error.with_header(CONTENT_RANGE, header_value(&format!("bytes */{len_bytes}"))));
        }
    };
    answer_headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
    let deadline = patience.deadline(range.end - range.start);
    let under_way = connection.streaming(deadline, place);
    let mut delivery = Delivery::new(source, range, deadline, &front.metrics, under_way);
    // An object that cannot be read at all is an error with a name; only what breaks later breaks the connection.
    let first = delivery.next().await?;
    Ok((status, answer_headers, delivery.into_body(first)).into_response())
}

/// `HEAD` of an object.
pub(super) async fn head(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let name = path::object_name(&uri)?;
    let source = open(&front, &name, limit.patience()?).await?;
    let mut headers = object_headers(source.info());
    headers.insert(CONTENT_LENGTH, source.info().len_bytes.into());
    Ok((headers, Body::empty()).into_response())
}

/// `DELETE` of an object.
pub(super) async fn delete(
    State(front): State<Front>,
    Query(limit): Query<TimeLimit>,
    uri: Uri,
) -> Result<StatusCode, ApiError> {
    let name = path::object_name(&uri)?;
    let request = ServiceRequest::Remove(KeysRequest {
        namespace: name.namespace().to_string(),
        keys: vec![name.key().to_owned()],
    });
    let Reply::Remove(mut items) = front.call(limit.patience()?.deadline(0), request).await? else {
        return Err(ApiError::unexpected_reply());
    };
    match items.pop() {
        Some(Ok(true)) => Ok(StatusCode::NO_CONTENT),
        Some(Ok(false)) => Err(not_found(&name)),
        Some(Err(error)) => Err(error.into()),
        None => Err(ApiError::unexpected_reply()),
    }
}

fn not_found(name: &ObjectName) -> ApiError {
    ApiError::new(ErrorCode::NotFound, format!("there is no object {name}"))
}

async fn open(front: &Front, name: &ObjectName, patience: Patience) -> Result<Box<dyn ObjectSource>, ApiError> {
    let found = front.backend.open(name, patience.deadline(0)).await?;
    found.ok_or_else(|| not_found(name))
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("digits and a few signs make a header")
}

fn etag(info: &ObjectInfo) -> HeaderValue {
    header_value(&format!("\"{}\"", info.version))
}

fn object_headers(info: &ObjectInfo) -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, OCTET_STREAM),
        (ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (ETAG, etag(info)),
        (CHECKSUM, header_value(&format!("{:016x}", info.checksums.whole))),
        (FINGERPRINT, header_value(&hex(&info.fingerprint))),
    ])
}

/// A range counts only if it is one of the very object that the caller means.
fn wanted(info: &ObjectInfo, headers: &HeaderMap) -> Wanted {
    let means_another = headers.get(IF_RANGE).is_some_and(|condition| *condition != etag(info));
    let mut ranges = headers.get_all(RANGE).iter();
    match (means_another, ranges.next(), ranges.next()) {
        (false, Some(range), None) => Wanted::parse(range.to_str().ok(), info.len_bytes),
        _ => Wanted::Whole,
    }
}

/// Bytes of an object on their way to the caller, piece by piece. At most one piece waits here to be taken.
struct Delivery {
    source: Box<dyn ObjectSource>,
    range: Range<u64>,
    deadline: Instant,
    metrics: Arc<Metrics>,
    failed: Option<ErrorCode>,
    _under_way: UnderWay,
}

impl Delivery {
    fn new(
        mut source: Box<dyn ObjectSource>,
        range: Range<u64>,
        deadline: Instant,
        metrics: &Arc<Metrics>,
        under_way: UnderWay,
    ) -> Self {
        source.read_ahead_until(range.end.div_ceil(PIECE_BYTES));
        Self {
            source,
            range,
            deadline,
            metrics: Arc::clone(metrics),
            failed: None,
            _under_way: under_way,
        }
    }

    /// The next bytes, at most a piece.
    async fn next(&mut self) -> Result<Bytes, ServiceError> {
        let piece = self.range.start / PIECE_BYTES;
        let bytes = match self.source.read_piece(piece, self.deadline).await {
            Ok(bytes) => bytes,
            Err(error) => {
                self.failed = Some(error.code);
                return Err(error);
            }
        };
        debug_assert_eq!(bytes.len() as u64, piece_len_bytes(self.source.info().len_bytes, piece));
        let piece_start = piece * PIECE_BYTES;
        let end = self.range.end.min(piece_start + PIECE_BYTES);
        let within = |offset: u64| usize::try_from(offset - piece_start).expect("an offset within a piece");
        let part = bytes.slice(within(self.range.start)..within(end));
        self.metrics.sent(metrics::Place::Http, part.len() as u64);
        self.range.start = end;
        Ok(part)
    }

    fn into_body(self, first: Bytes) -> Body {
        let rest = stream::unfold(Some(self), |delivery| async move {
            let mut delivery = delivery.filter(|delivery| !delivery.range.is_empty())?;
            match delivery.next().await {
                Ok(bytes) => Some((Ok(bytes), Some(delivery))),
                Err(error) => {
                    let name = &delivery.source.info().name;
                    tracing::warn!(%name, %error, "an answer was broken off because its object could not be read on");
                    Some((Err(io::Error::other(error)), None))
                }
            }
        });
        Body::from_stream(stream::once(async { Ok(first) }).chain(rest))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.metrics
            .got(self.failed.map_or(ReadOutcome::Hit, ReadOutcome::of_error));
    }
}

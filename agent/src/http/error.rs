//! The one place where errors become HTTP: a status, and a JSON body with the stable code and a message for people.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Serialize;
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::name::NameError;

/// An error on its way to the caller.
#[derive(Debug)]
pub(super) struct ApiError(Box<Parts>);

#[derive(Debug)]
struct Parts {
    status: StatusCode,
    error: ServiceError,
    header: Option<(HeaderName, HeaderValue)>,
}

impl ApiError {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        ServiceError::new(code, message).into()
    }

    /// The same with another status than the code's own.
    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = status;
        self
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.header = Some((name, value));
        self
    }

    pub(super) fn code(&self) -> ErrorCode {
        self.0.error.code
    }

    pub(super) fn deadline(during: &str) -> Self {
        Self::new(
            ErrorCode::DeadlineExceeded,
            format!("the deadline passed while {during}"),
        )
    }

    /// The service answered another question than it was asked.
    pub(super) fn unexpected_reply() -> Self {
        Self::new(
            ErrorCode::Internal,
            "the control service gave an answer of another kind",
        )
    }
}

impl ApiError {
    /// The bytes of an answer on a connection that ends with it.
    pub(super) fn into_last_answer(self) -> Bytes {
        let Parts { status, error, .. } = *self.0;
        tracing::debug!(%error, "bytes that are no HTTP request were refused");
        let body = serde_json::to_string(&ErrorBody::from(&error)).expect("an error is JSON");
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nx-content-type-options: nosniff\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        answer.into()
    }
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        Self(Box::new(Parts {
            status: status_of(error.code),
            error,
            header: None,
        }))
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        ServiceError::from(error).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Parts { status, error, header } = *self.0;
        match error.code {
            ErrorCode::Internal => tracing::error!(%error, "an HTTP request failed"),
            ErrorCode::FailedRead => tracing::warn!(%error, "an object could not be read"),
            _ => tracing::debug!(%error, "an HTTP request was refused"),
        }
        let mut response = (status, Json(ErrorBody::from(&error))).into_response();
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// `{"error": {…}}`.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

impl<'a> From<&'a ServiceError> for ErrorBody<'a> {
    fn from(error: &'a ServiceError) -> Self {
        Self { error: error.into() }
    }
}

/// What an error says, alone in a body or for one item of a batch.
#[derive(Debug, Serialize)]
pub(super) struct ErrorObject<'a> {
    code: ErrorCode,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    no_space: Option<&'a NoSpace>,
}

impl<'a> From<&'a ServiceError> for ErrorObject<'a> {
    fn from(error: &'a ServiceError) -> Self {
        Self {
            code: error.code,
            message: &error.message,
            node: error.node,
            no_space: error.no_space.as_deref(),
        }
    }
}

fn status_of(code: ErrorCode) -> StatusCode {
    match code {
        ErrorCode::InvalidName
        | ErrorCode::InvalidArgument
        | ErrorCode::EmptyObject
        | ErrorCode::LengthMismatch
        | ErrorCode::MalformedRequest => StatusCode::BAD_REQUEST,
        ErrorCode::Forbidden | ErrorCode::GrantRefused => StatusCode::FORBIDDEN,
        ErrorCode::NotFound | ErrorCode::UnknownNode | ErrorCode::UnknownSegment | ErrorCode::UnknownPut => {
            StatusCode::NOT_FOUND
        }
        ErrorCode::Conflict | ErrorCode::PutIdReused | ErrorCode::PinnedObjects => StatusCode::CONFLICT,
        ErrorCode::LengthRequired => StatusCode::LENGTH_REQUIRED,
        ErrorCode::ObjectTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorCode::RangeNotSatisfiable => StatusCode::RANGE_NOT_SATISFIABLE,
        ErrorCode::ChecksumMismatch | ErrorCode::BytesMissing => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorCode::FailedRead => StatusCode::BAD_GATEWAY,
        ErrorCode::Unavailable | ErrorCode::Overloaded | ErrorCode::Draining | ErrorCode::RdmaRequired => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ErrorCode::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorCode::NoSpace | ErrorCode::NoMemory => StatusCode::INSUFFICIENT_STORAGE,
        ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_an_error_status() {
        for code in ErrorCode::ALL {
            let status = status_of(*code);
            assert!(status.is_client_error() || status.is_server_error(), "{code}");
        }
    }

    #[tokio::test]
    async fn a_body_names_code_node_and_numbers() {
        let node = NodeId::from_bytes([7; 16]);
        let numbers = NoSpace {
            asked_bytes: 9,
            free_bytes: 8,
            largest_free_bytes: 7,
            evictable_bytes: 6,
            held_bytes: 5,
            largest_segment_bytes: 10,
            entries_looked_at: 4,
            stop_reason: "pool_exhausted".into(),
        };
        for (error, status, expected) in [
            (
                ServiceError::unavailable(node, "reading"),
                503,
                serde_json::json!({"error": {
                    "code": "unavailable",
                    "message": format!("node {node} does not answer: reading"),
                    "node": node,
                }}),
            ),
            (
                ServiceError::no_space(numbers.clone()),
                507,
                serde_json::json!({"error": {
                    "code": "no_space",
                    "message": ServiceError::no_space(numbers.clone()).message,
                    "no_space": numbers,
                }}),
            ),
        ] {
            let response = ApiError::from(error).into_response();
            assert_eq!(response.status().as_u16(), status);
            let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), expected);
        }
    }
}

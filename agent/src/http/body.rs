//! Bodies of requests: read piecewise, never longer than announced, never waited for without end.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use tenon_protocol::error::ErrorCode;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::ApiError;
use crate::limits::{HTTP_DISCARD_MS_MAX, HTTP_MESSAGE_LEN_BYTES_MAX, HTTP_STALL_MS_MAX};

/// The announced length of a body.
pub(super) fn content_length(headers: &HeaderMap) -> Result<u64, ApiError> {
    let Some(value) = headers.get(header::CONTENT_LENGTH) else {
        let message = "the request has no Content-Length: say how many bytes there are, do not send them chunked";
        return Err(ApiError::new(ErrorCode::LengthRequired, message));
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.ok_or_else(|| {
        ApiError::new(
            ErrorCode::InvalidArgument,
            format!("Content-Length {value:?} is no length"),
        )
    })
}

/// The body of a request under way.
#[derive(Debug)]
pub(super) struct Incoming {
    stream: BodyDataStream,
    announced_bytes: Option<u64>,
    received_bytes: u64,
}

impl Incoming {
    /// Takes a request apart.
    pub(super) fn of(request: Request) -> (Parts, Self) {
        let (parts, body) = request.into_parts();
        let incoming = Self::new(body, &parts.headers);
        (parts, incoming)
    }

    fn new(body: Body, headers: &HeaderMap) -> Self {
        Self {
            stream: body.into_data_stream(),
            announced_bytes: content_length(headers).ok(),
            received_bytes: 0,
        }
    }

    /// Bytes that are still to come, if that was announced.
    fn rest_bytes(&self) -> u64 {
        self.announced_bytes.unwrap_or(0).saturating_sub(self.received_bytes)
    }

    /// The next bytes, at least one; `None` after the last that was announced. A sender may be slow until the deadline,
    /// but not stop.
    pub(super) async fn next(&mut self, deadline: Instant) -> Result<Option<Bytes>, ApiError> {
        loop {
            let stalled = Instant::now() + Duration::from_millis(HTTP_STALL_MS_MAX);
            match timeout_at(deadline.min(stalled), self.stream.next()).await {
                Err(_) => return Err(self.late(stalled < deadline)),
                Ok(Some(Ok(bytes))) if bytes.is_empty() => {}
                Ok(Some(Ok(bytes))) => {
                    self.received_bytes += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Ok(None) if self.rest_bytes() == 0 => return Ok(None),
                Ok(None) => return Err(self.broken_off("the sender ended it")),
                Ok(Some(Err(error))) => return Err(self.broken_off(&error.to_string())),
            }
        }
    }

    fn late(&self, stalled: bool) -> ApiError {
        let error = match stalled {
            true => ApiError::new(
                ErrorCode::DeadlineExceeded,
                format!("no byte of the body came for {HTTP_STALL_MS_MAX} ms"),
            ),
            false => ApiError::deadline(&format!(
                "the body was read, of which {} bytes had come",
                self.received_bytes
            )),
        };
        error.with_status(StatusCode::REQUEST_TIMEOUT)
    }

    fn broken_off(&self, reason: &str) -> ApiError {
        let received = self.received_bytes;
        let message = match self.announced_bytes {
            Some(announced) => format!("the body broke off after {received} of {announced} bytes: {reason}"),
            None => format!("the body broke off after {received} bytes: {reason}"),
        };
        ApiError::new(ErrorCode::LengthMismatch, message)
    }

    /// The whole body of a call.
    pub(super) async fn message(&mut self, deadline: Instant) -> Result<Bytes, ApiError> {
        let check = |len_bytes: u64| {
            if len_bytes <= HTTP_MESSAGE_LEN_BYTES_MAX as u64 {
                return Ok(());
            }
            let message =
                format!("a call's body has at most {HTTP_MESSAGE_LEN_BYTES_MAX} bytes; ask for fewer keys at a time");
            Err(ApiError::new(ErrorCode::InvalidArgument, message).with_status(StatusCode::PAYLOAD_TOO_LARGE))
        };
        check(self.announced_bytes.unwrap_or(0))?;
        let mut whole = BytesMut::new();
        while let Some(bytes) = self.next(deadline).await? {
            check(self.received_bytes)?;
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }

    /// Reads the rest for a while and throws it away. A sender that writes its whole body before it reads would
    /// otherwise lose the answer to a closed connection.
    pub(super) fn discard(mut self) {
        if self.announced_bytes == Some(self.received_bytes) {
            return;
        }
        tokio::spawn(async move {
            let read = async { while let Some(Ok(_)) = self.stream.next().await {} };
            let _ = timeout(Duration::from_millis(HTTP_DISCARD_MS_MAX), read).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use std::convert::Infallible;

    fn incoming(parts: &'static [&'static str], announced: Option<&str>) -> Incoming {
        let chunks = parts
            .iter()
            .map(|part| Ok::<_, Infallible>(Bytes::from_static(part.as_bytes())));
        let mut headers = HeaderMap::new();
        if let Some(announced) = announced {
            headers.insert(header::CONTENT_LENGTH, announced.parse().unwrap());
        }
        Incoming::new(Body::from_stream(stream::iter(chunks)), &headers)
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[tokio::test]
    async fn a_body_comes_as_announced_or_is_an_error() {
        let mut body = incoming(&["ab", "", "c"], Some("3"));
        assert_eq!(body.next(soon()).await.unwrap().unwrap(), "ab");
        assert_eq!(body.next(soon()).await.unwrap().unwrap(), "c");
        assert!(body.next(soon()).await.unwrap().is_none());
        let mut body = incoming(&["ab"], Some("3"));
        body.next(soon()).await.unwrap();
        assert_eq!(body.next(soon()).await.unwrap_err().code(), ErrorCode::LengthMismatch);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_stops_is_not_waited_for() {
        let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        let mut body = Incoming::new(endless, &HeaderMap::new());
        let start = Instant::now();
        let error = body.next(start + Duration::from_secs(60)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
        assert_eq!(start.elapsed().as_millis(), u128::from(HTTP_STALL_MS_MAX));
        let error = body.next(start).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::DeadlineExceeded);
    }

    #[tokio::test]
    async fn messages_have_a_longest() {
        assert_eq!(incoming(&["{}", " "], None).message(soon()).await.unwrap(), "{} ");
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_LENGTH, (HTTP_MESSAGE_LEN_BYTES_MAX + 1).into());
        let announced = Incoming::new(Body::empty(), &headers).message(soon()).await;
        assert_eq!(announced.unwrap_err().code(), ErrorCode::InvalidArgument);
        let chunk = Bytes::from(vec![b' '; 1 << 20]);
        let chunks = stream::repeat(Ok::<_, Infallible>(chunk));
        let mut endless = Incoming::new(Body::from_stream(chunks), &HeaderMap::new());
        assert_eq!(
            endless.message(soon()).await.unwrap_err().code(),
            ErrorCode::InvalidArgument
        );
    }

    #[test]
    fn a_length_is_needed() {
        let mut headers = HeaderMap::new();
        assert_eq!(content_length(&headers).unwrap_err().code(), ErrorCode::LengthRequired);
        headers.insert(header::CONTENT_LENGTH, "17".parse().unwrap());
        assert_eq!(content_length(&headers).unwrap(), 17);
        headers.insert(header::CONTENT_LENGTH, "many".parse().unwrap());
        assert_eq!(content_length(&headers).unwrap_err().code(), ErrorCode::InvalidArgument);
    }
}

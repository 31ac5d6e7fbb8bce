//! Requests that are refused before they are one: their connection says why, in the form of all errors, and ends.
//!
//! The library refuses heads that it cannot read with a status alone and has no place where to say more, so the
//! connection puts these words in the place of the library's (see [`Connection`](super::connection::Connection)).

use axum::http::StatusCode;
use bytes::{Buf, Bytes};
use tenon_protocol::error::ErrorCode;
use tokio::time::Instant;

use super::error::ApiError;
use super::progress::HeadFault;
use crate::limits::{HTTP_HEAD_FIELDS_MAX, HTTP_HEAD_LEN_BYTES_MAX};

/// An answer on its way on a connection that ends with it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) unsent: Bytes,
    /// Until when the rest of the request is read and thrown away, once all was sent.
    pub(super) discard_until: Option<Instant>,
}

impl Refusal {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            unsent: ApiError::new(code, message).with_status(status).into_last_answer(),
            discard_until: None,
        }
    }

    /// What is left after so many bytes were sent.
    pub(super) fn after_sending(mut self, sent_bytes: usize) -> Self {
        self.unsent.advance(sent_bytes);
        self
    }

    /// The refusal of a head that was not read to its end.
    pub(super) fn of(fault: HeadFault) -> Self {
        let too_large = |message| {
            let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            Self::new(status, ErrorCode::InvalidArgument, message)
        };
        match fault {
            HeadFault::TooLong => too_large(format!(
                "request line and header fields have more than {HTTP_HEAD_LEN_BYTES_MAX} bytes"
            )),
            HeadFault::TooManyFields => too_large(format!(
                "the request has more than {HTTP_HEAD_FIELDS_MAX} header fields"
            )),
            HeadFault::Http2 => Self::new(
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                ErrorCode::MalformedRequest,
                "HTTP/2 is not spoken here; use HTTP/1.1",
            ),
        }
    }

    /// The refusal in whose place the library would say this, if it is one.
    pub(super) fn in_place_of(library_says: &[u8]) -> Option<Self> {
        let status = library_says.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        match StatusCode::from_bytes(status).ok()? {
            // Heads that are too long do not get as far as the library, except where it is not known where they begin.
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Some(Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                ErrorCode::InvalidArgument,
                "Content-Length is larger than any body can be (or, behind another request, the head is too long)",
            )),
            status if status.is_client_error() => Some(Self::new(
                status,
                ErrorCode::MalformedRequest,
                "this is no HTTP/1.1: the request line or a header field cannot be read, or its Content-Length or \
                 Transfer-Encoding says nothing that can be",
            )),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_refusals_of_the_library_are_replaced() {
        for (said, expected) in [
            ("HTTP/1.1 400 Bad Request\r\n\r\n", Some("HTTP/1.1 400 Bad Request\r\n")),
            (
                "HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n",
                Some("HTTP/1.1 413 Payload Too Large\r\n"),
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", None),
            ("HTTP/1.1 100 Continue\r\n\r\n", None),
            ("bytes of an object", None),
            ("HTTP/1.1 4", None),
        ] {
            let refusal = Refusal::in_place_of(said.as_bytes());
            let unsent = refusal.map(|refusal| String::from_utf8(refusal.unsent.to_vec()).unwrap());
            match (&unsent, expected) {
                (Some(unsent), Some(expected)) => assert!(unsent.starts_with(expected), "{said}: {unsent}"),
                (unsent, expected) => assert_eq!(unsent.as_deref(), expected, "{said}"),
            }
        }
    }
}

//! What handlers take from requests, with refusals in the one form that errors have.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tenon_client::default_deadline;
use tenon_protocol::error::ErrorCode;
use tokio::time::Instant;

use super::error::ApiError;
use super::path;
use super::strict::Strict;
use crate::limits::CALL_TIMEOUT_MS_MAX;

/// A query string as a struct. Its type refuses unknown keys.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        query(&parts.uri).map(Self)
    }
}

/// The query string of a request that is taken apart by hand.
pub(super) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    // The library would put other text in the place of what cannot be decoded, and so name other objects.
    path::percent_decoded(uri.query().unwrap_or_default())
        .map_err(|reason| ApiError::new(ErrorCode::InvalidArgument, format!("the query {reason}")))?;
    axum::extract::Query::try_from_uri(uri)
        .map(|query| query.0)
        .map_err(|error| ApiError::new(ErrorCode::InvalidArgument, error.body_text()))
}

/// The query of calls that take nothing but a time limit.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeLimit {
    timeout_ms: Option<u64>,
}

/// When a request must have been answered: the caller's wish, or the default for the bytes that it moves. Time that is
/// spent waiting counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    asked_at: Instant,
    wish: Option<Instant>,
}

impl Patience {
    /// What `timeout_ms` in the query asks for, from now on.
    pub(super) fn new(timeout_ms: Option<u64>) -> Result<Self, ApiError> {
        let asked_at = Instant::now();
        let wish = match timeout_ms {
            None => None,
            Some(timeout_ms @ 1..=CALL_TIMEOUT_MS_MAX) => Some(asked_at + Duration::from_millis(timeout_ms)),
            Some(timeout_ms) => {
                let message = format!("timeout_ms is {timeout_ms}: 1 to {CALL_TIMEOUT_MS_MAX} are allowed");
                return Err(ApiError::new(ErrorCode::InvalidArgument, message));
            }
        };
        Ok(Self { asked_at, wish })
    }

    /// The deadline of a request that moves so many bytes.
    pub(super) fn deadline(self, len_bytes: u64) -> Instant {
        self.wish
            .unwrap_or_else(|| default_deadline(len_bytes) - self.asked_at.elapsed())
    }
}

impl TimeLimit {
    pub(super) fn patience(self) -> Result<Patience, ApiError> {
        Patience::new(self.timeout_ms)
    }
}

/// A message from its JSON form. Keys that the message does not have are refused: they would be typing errors without
/// effect. So are keys that are given twice, and arrays in the place of objects, whose values would be taken in an order that may change.
pub(super) fn message<T: DeserializeOwned + serde::Serialize>(json: &[u8]) -> Result<T, ApiError> {
    let refuse = |reason: String| ApiError::new(ErrorCode::MalformedRequest, reason);
    let Strict(given) = serde_json::from_slice(json)
        .map_err(|error| refuse(format!("the body is not JSON as it should be: {error}")))?;
    let message = T::deserialize(&given).map_err(|error| refuse(format!("the body is no such request: {error}")))?;
    let understood = serde_json::to_value(&message).map_err(|error| refuse(error.to_string()))?;
    match first_fault("", &given, &understood) {
        None => Ok(message),
        Some(fault) => Err(refuse(fault)),
    }
}

/// What was given and not understood, or only by chance.
fn first_fault(path: &str, given: &Value, understood: &Value) -> Option<String> {
    match (given, understood) {
        (Value::Object(given), Value::Object(understood)) => given.iter().find_map(|(key, value)| {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            match understood.get(key) {
                None => Some(format!("the body has the unknown field {path:?}")),
                Some(understood) => first_fault(&path, value, understood),
            }
        }),
        (Value::Array(given), Value::Array(understood)) => given
            .iter()
            .zip(understood)
            .enumerate()
            .find_map(|(index, (given, understood))| first_fault(&format!("{path}[{index}]"), given, understood)),
        (Value::Array(_), Value::Object(_)) => Some(format!("the body has an array for the object {path:?}")),
        (Value::Object(_), Value::String(name)) => {
            Some(format!("the body has an object for {path:?}, which is {name:?}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::message::{Keep, KeepRequest, Pin, ReserveRequest};

    const RESERVE: &str = r#"{"namespace":"default","put_id":"0123456789abcdef0123456789abcdef",
        "items":[{"key":"a","len_bytes":1}],"options":{"ttl_ms":7}}"#;

    fn refusal(json: &str) -> String {
        let error = message::<ReserveRequest>(json.as_bytes()).unwrap_err();
        assert_eq!(error.code(), ErrorCode::MalformedRequest);
        format!("{error:?}")
    }

    #[test]
    fn a_message_is_taken_from_its_json() {
        let request: ReserveRequest = message(RESERVE.as_bytes()).unwrap();
        assert_eq!((request.items[0].len_bytes, request.options.ttl_ms), (1, Some(7)));
    }

    #[test]
    fn unknown_fields_are_refused_with_their_path() {
        let json = RESERVE.replace("\"ttl_ms\"", "\"ttl\"");
        assert!(refusal(&json).contains("options.ttl"), "{}", refusal(&json));
        let json = RESERVE.replace("\"key\":\"a\"", "\"key\":\"a\",\"colour\":1");
        assert!(refusal(&json).contains("items[0].colour"), "{}", refusal(&json));
    }

    #[test]
    fn fields_that_are_given_twice_are_refused() {
        for (once, twice) in [
            ("\"ttl_ms\":7", "\"ttl_ms\":7,\"ttl_ms\":7"),
            ("\"len_bytes\":1", "\"len_bytes\":2,\"len_bytes\":1"),
        ] {
            let said = refusal(&RESERVE.replace(once, twice));
            assert!(said.contains("given twice"), "{said}");
        }
    }

    #[test]
    fn arrays_are_no_objects() {
        let item = r#"{"key":"a","len_bytes":1}"#;
        let said = refusal(&RESERVE.replace(item, r#"["a",1]"#));
        assert!(
            said.contains("an array for the object") && said.contains("items[0]"),
            "{said}"
        );
        let whole = r#"["default","0123456789abcdef0123456789abcdef",[{"key":"a","len_bytes":1}],{}]"#;
        refusal(whole);
        let keep = |keep: &str| {
            let json = format!(r#"{{"namespace":"default","keys":["a"],"keep":{keep}}}"#);
            message::<KeepRequest>(json.as_bytes()).map(|request| request.keep)
        };
        assert_eq!(keep(r#""touch""#).unwrap(), Keep::Touch);
        assert_eq!(keep(r#"{"pin":"hard"}"#).unwrap(), Keep::Pin(Pin::Hard));
        assert!(keep(r#"{"touch":null}"#).is_err());
        assert!(keep(r#"{"pin":{"hard":null}}"#).is_err());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for json in ["", "{", "null", "[]", "{}", r#"{"namespace":7}"#] {
            refusal(json);
        }
    }

    #[test]
    fn queries_refuse_unknown_keys_and_bad_values() {
        for path in [
            "/?timeout=1",
            "/?timeout_ms=x",
            "/?timeout_ms=-1",
            "/?timeout_ms=1&timeout_ms=2",
            "/?timeout_ms=1%",
            "/?timeout_ms=%FF",
        ] {
            let error = query::<TimeLimit>(&Uri::from_static(path)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{path}");
        }
        for timeout_ms in [0, CALL_TIMEOUT_MS_MAX + 1] {
            assert_eq!(
                Patience::new(Some(timeout_ms)).unwrap_err().code(),
                ErrorCode::InvalidArgument
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_without_a_wish_gets_time_for_its_bytes_once() {
        let now = Instant::now();
        let (default, asked) = (Patience::new(None).unwrap(), Patience::new(Some(250)).unwrap());
        // Asking later gives no more time.
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(default.deadline(0) - now, Duration::from_secs(5));
        assert_eq!(default.deadline(80 << 20) - now, Duration::from_secs(15));
        assert_eq!(asked.deadline(80 << 20) - now, Duration::from_millis(250));
    }
}

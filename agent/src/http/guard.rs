//! What every request goes through before its handler: is it from this host, and not from a page that a browser was
//! lured to; is its head of a sensible size. And what every answer goes through after it.

use std::net::IpAddr;

use axum::body::HttpBody;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::header::{ALLOW, CONTENT_LENGTH, HOST, ORIGIN, TRANSFER_ENCODING, X_CONTENT_TYPE_OPTIONS};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tenon_client::default_deadline;
use tenon_protocol::error::ErrorCode;
use tokio::time::Instant;

use super::Front;
use super::body::Incoming;
use super::connection::ConnectionHandle;
use super::error::ApiError;
use super::{path, routes};
use crate::limits::HTTP_HEAD_LEN_BYTES_MAX;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Wraps every handler.
pub(super) async fn guard(
    State(front): State<Front>,
    ConnectInfo(connection): ConnectInfo<ConnectionHandle>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = routes::method_name(request.method());
    let _under_way = connection.begin(body_bytes(request.headers()));
    let mut response = match check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => {
            Incoming::of(request).1.discard();
            error.into_response()
        }
    };
    connection.handled(default_deadline(response.body().size_hint().lower()));
    let status = response.status().as_u16();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    front.metrics.http_answered(route, method, status, started.elapsed());
    // Stored bytes are not to be taken for a page of this origin.
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// The length of a request's body, if it is known.
fn body_bytes(headers: &HeaderMap) -> Option<u64> {
    match headers.get(CONTENT_LENGTH) {
        Some(length) => length.to_str().ok()?.parse().ok(),
        None if headers.contains_key(TRANSFER_ENCODING) => None,
        None => Some(0),
    }
}

fn check(request: &Request) -> Result<(), ApiError> {
    let head_bytes = request.uri().path().len()
        + request.uri().query().map_or(0, str::len)
        + request
            .headers()
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .sum::<usize>();
    // The connection refuses longer heads before they get here, except behind another request.
    if head_bytes > HTTP_HEAD_LEN_BYTES_MAX {
        let message =
            format!("request line and headers have {head_bytes} bytes, at most {HTTP_HEAD_LEN_BYTES_MAX} are allowed");
        let error = ApiError::new(ErrorCode::InvalidArgument, message);
        return Err(error.with_status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
    check_single_host(request.headers())?;
    check_host(request.uri(), request.headers())?;
    check_origin(request.method(), request.headers())
}

/// Of two hosts, some programs take the first and some the last.
fn check_single_host(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get_all(HOST).iter().count() > 1 {
        let message = "the request has more than one Host";
        return Err(ApiError::new(ErrorCode::MalformedRequest, message));
    }
    Ok(())
}

/// A page of another site can make a browser send requests here under a name that it controls and that resolves to this
/// host. Such requests carry that name.
fn check_host(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let authority = uri.authority().map(Authority::as_str);
    let Some(foreign) = authority.into_iter().chain([host]).find(|named| !is_loopback(named)) else {
        return Ok(());
    };
    let message = format!("the request is for host {foreign:?}: name this host localhost or by its loopback address");
    Err(ApiError::new(ErrorCode::Forbidden, message))
}

fn is_loopback(named: &str) -> bool {
    let Ok(authority) = named.parse::<Authority>() else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Browsers say from which page a request comes that may change something; programs do not.
fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), ApiError> {
    if method.is_safe() {
        return Ok(());
    }
    let own_origin = || {
        headers
            .get(HOST)
            .and_then(|host| host.to_str().ok())
            .map(|host| format!("http://{host}"))
    };
    let foreign_origin = headers
        .get(ORIGIN)
        .is_some_and(|origin| own_origin().is_none_or(|own| !origin.as_bytes().eq_ignore_ascii_case(own.as_bytes())));
    let foreign_site = headers
        .get(SEC_FETCH_SITE)
        .is_some_and(|site| site != "same-origin" && site != "none");
    if foreign_origin || foreign_site {
        let message = "a page of another site may not change anything here";
        return Err(ApiError::new(ErrorCode::Forbidden, message));
    }
    Ok(())
}

/// What leads nowhere.
pub(super) async fn no_route(request: Request) -> ApiError {
    let (parts, incoming) = Incoming::of(request);
    incoming.discard();
    let path = parts.uri.path();
    if path::lacks_a_key(path) {
        return ApiError::new(ErrorCode::InvalidName, "the key is empty");
    }
    // Not `not_found`: that says that there is no such object.
    let message = format!("there is nothing at {path:?}; /openapi.json says what there is");
    ApiError::new(ErrorCode::MalformedRequest, message).with_status(StatusCode::NOT_FOUND)
}

/// What has no such method.
pub(super) async fn no_method(path: MatchedPath, request: Request) -> ApiError {
    let (parts, incoming) = Incoming::of(request);
    incoming.discard();
    let allowed = routes::allowed_methods(path.as_str());
    let message = format!(
        "{} has no {}; /openapi.json says what it has",
        parts.uri.path(),
        parts.method
    );
    let error = ApiError::new(ErrorCode::MalformedRequest, message).with_status(StatusCode::METHOD_NOT_ALLOWED);
    error.with_header(ALLOW, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn only_names_of_this_host_are_served() {
        let uri = Uri::from_static("/v1/nodes");
        for host in [
            "localhost",
            "LOCALHOST:7600",
            "127.0.0.1:7600",
            "127.1.2.3",
            "[::1]:7600",
        ] {
            check_host(&uri, &headers(&[("host", host)])).unwrap();
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "10.0.0.7:7600",
            "0.0.0.0:7600",
            "user@localhost",
            "",
        ] {
            let error = check_host(&uri, &headers(&[("host", host)])).unwrap_err();
            assert_eq!(error.code(), ErrorCode::Forbidden, "{host}");
        }
        assert!(check_host(&uri, &headers(&[])).is_err());
        let elsewhere = Uri::from_static("http://evil.example/v1/nodes");
        let error = check_host(&elsewhere, &headers(&[("host", "localhost")])).unwrap_err();
        assert!(format!("{error:?}").contains("evil.example"), "{error:?}");
    }

    #[test]
    fn pages_of_other_sites_may_not_change_anything() {
        let local = ("host", "localhost:7600");
        let refused = [
            headers(&[local, ("origin", "http://evil.example")]),
            headers(&[local, ("origin", "null")]),
            headers(&[local, ("origin", "http://localhost:9999")]),
            headers(&[local, ("sec-fetch-site", "cross-site")]),
            headers(&[local, ("sec-fetch-site", "same-site")]),
        ];
        for headers in refused {
            for method in [Method::PUT, Method::POST, Method::DELETE] {
                assert_eq!(
                    check_origin(&method, &headers).unwrap_err().code(),
                    ErrorCode::Forbidden,
                    "{headers:?}"
                );
            }
            check_origin(&Method::GET, &headers).unwrap();
        }
        let allowed = [
            headers(&[local]),
            headers(&[
                local,
                ("origin", "http://localhost:7600"),
                ("sec-fetch-site", "same-origin"),
            ]),
        ];
        for headers in allowed {
            check_origin(&Method::PUT, &headers).unwrap();
        }
    }
}

//! Names in paths. The remainder of a path is percent-decoded exactly once; nothing else is done to it.

use axum::http::Uri;
use percent_encoding::percent_decode_str;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::ids::{PutId, SegmentId};
use tenon_protocol::name::{Namespace, ObjectName};

use super::error::ApiError;

const OBJECTS: &str = "/v1/objects/";
const NAMESPACES: &str = "/v1/namespaces/";
const SEGMENTS: &str = "/v1/segments/";
const PUTS: &str = "/v1/puts/";

/// The object that `/v1/objects/{key}` or `/v1/namespaces/{namespace}/objects/{key}` names.
pub(super) fn object_name(uri: &Uri) -> Result<ObjectName, ApiError> {
    let (namespace, key) = match uri.path().strip_prefix(OBJECTS) {
        Some(key) => (Namespace::new(Namespace::DEFAULT)?, key),
        None => {
            let (namespace, rest) = after_namespace(uri)?;
            (namespace, rest.strip_prefix("objects/").unwrap_or_default())
        }
    };
    Ok(ObjectName::new(&namespace, &decode("key", key)?)?)
}

/// The namespace of a path that begins with `/v1/namespaces/{namespace}/`, else the default one.
pub(super) fn namespace(uri: &Uri) -> Result<Namespace, ApiError> {
    if !uri.path().starts_with(NAMESPACES) {
        return Ok(Namespace::new(Namespace::DEFAULT)?);
    }
    after_namespace(uri).map(|(namespace, _)| namespace)
}

/// The put and the key of `/v1/puts/{put_id}/{key}`.
pub(super) fn put_and_key(uri: &Uri) -> Result<(PutId, String), ApiError> {
    let rest = uri.path().strip_prefix(PUTS).unwrap_or_default();
    let (put_id, key) = rest.split_once('/').unwrap_or((rest, ""));
    let put_id = put_id
        .parse()
        .map_err(|error| ApiError::new(ErrorCode::InvalidArgument, format!("{error}")))?;
    Ok((put_id, decode("key", key)?))
}

/// The segment of `/v1/segments/{id}`, and of what is below that.
pub(super) fn segment(uri: &Uri) -> Result<SegmentId, ApiError> {
    let id = uri.path().strip_prefix(SEGMENTS).unwrap_or_default();
    let id = id.split_once('/').map_or(id, |(id, _)| id);
    id.parse().map(SegmentId).map_err(|_| {
        let message = format!("{id:?} is no segment's id: a number from 1 on; `tenon segments` lists them");
        ApiError::new(ErrorCode::InvalidArgument, message)
    })
}

/// Whether a path that leads nowhere would name an object if its key were not empty.
pub(super) fn lacks_a_key(path: &str) -> bool {
    let of_namespace = path.strip_prefix(NAMESPACES).and_then(|rest| rest.split_once('/'));
    path == OBJECTS || of_namespace.is_some_and(|(_, rest)| rest == "objects/")
}

fn after_namespace(uri: &Uri) -> Result<(Namespace, &str), ApiError> {
    let rest = uri.path().strip_prefix(NAMESPACES).unwrap_or_default();
    let (namespace, rest) = rest.split_once('/').unwrap_or((rest, ""));
    Ok((Namespace::new(&decode("namespace", namespace)?)?, rest))
}

fn decode(what: &str, encoded: &str) -> Result<String, ApiError> {
    percent_decoded(encoded)
        .map_err(|reason| ApiError::new(ErrorCode::InvalidName, format!("the {what} in the path {reason}")))
}

/// What percent-encoded text says, or why it says nothing.
pub(super) fn percent_decoded(encoded: &str) -> Result<String, &'static str> {
    let mut parts = encoded.split('%');
    let escapes_are_whole = parts.next().is_some_and(|_| {
        parts.all(|part| part.len() >= 2 && part.bytes().take(2).all(|digit| digit.is_ascii_hexdigit()))
    });
    if !escapes_are_whole {
        return Err("has a % that is not followed by two hexadecimal digits; a % itself is written %25");
    }
    percent_decode_str(encoded)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| "is not UTF-8 once its percent-encoding is taken away")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &'static str) -> Result<(String, String), ApiError> {
        object_name(&Uri::from_static(path)).map(|name| (name.namespace().to_string(), name.key().to_owned()))
    }

    #[test]
    fn keys_are_decoded_exactly_once() {
        for (path, key) in [
            ("/v1/objects/a", "a"),
            ("/v1/objects/a/b//c/", "a/b//c/"),
            ("/v1/objects//a", "/a"),
            ("/v1/objects/a%2Fb", "a/b"),
            ("/v1/objects/100%25", "100%"),
            ("/v1/objects/%2525", "%25"),
            ("/v1/objects/two%20words+plus", "two words+plus"),
            ("/v1/objects/%C3%A9%E9%8D%B5", "é鍵"),
            ("/v1/objects/what%3Fis%23it?node=x", "what?is#it"),
            ("/v1/objects/..", ".."),
        ] {
            assert_eq!(name(path).unwrap(), ("default".to_owned(), key.to_owned()), "{path}");
        }
    }

    #[test]
    fn a_namespace_may_stand_in_the_path() {
        let named = name("/v1/namespaces/n%2E1/objects/objects/k").unwrap();
        assert_eq!(named, ("n.1".to_owned(), "objects/k".to_owned()));
        assert_eq!(
            namespace(&Uri::from_static("/v1/namespaces/n/objects"))
                .unwrap()
                .as_str(),
            "n"
        );
        assert_eq!(namespace(&Uri::from_static("/v1/objects")).unwrap().as_str(), "default");
    }

    #[test]
    fn bad_names_are_refused() {
        for path in [
            "/v1/objects/",
            "/v1/objects/%",
            "/v1/objects/a%2",
            "/v1/objects/%zz",
            "/v1/objects/%FF",
            "/v1/objects/a%0Ab",
            "/v1/namespaces/a%2Fb/objects/k",
            "/v1/namespaces//objects/k",
            "/v1/namespaces/n/objects/",
        ] {
            assert_eq!(name(path).unwrap_err().code(), ErrorCode::InvalidName, "{path}");
        }
    }

    #[test]
    fn a_path_without_a_key_is_known_as_such() {
        for path in ["/v1/objects/", "/v1/namespaces/n/objects/"] {
            assert!(lacks_a_key(path), "{path}");
        }
        for path in [
            "/v1/objects",
            "/v1/namespaces/n/",
            "/v1/namespaces/n/objects",
            "/v1/puts/",
        ] {
            assert!(!lacks_a_key(path), "{path}");
        }
    }

    #[test]
    fn a_put_is_named_by_its_id() {
        let uri = Uri::from_static("/v1/puts/0123456789abcdef0123456789abcdef/a%2Fb/c?offset=0");
        let (put_id, key) = put_and_key(&uri).unwrap();
        assert_eq!(
            (put_id.to_string().as_str(), key.as_str()),
            ("0123456789abcdef0123456789abcdef", "a/b/c")
        );
        let error = put_and_key(&Uri::from_static("/v1/puts/12/k")).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
}

//! What tests ask over HTTP.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tenon_protocol::ids::NodeId;

use crate::network::Namespace;

/// No call of a test needs longer; one that does has hung.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Larger than any object of a test.
const BODY_BYTES_MAX: u64 = 1 << 30;
/// What stands in a path as it is. A slash may: the key is the remainder of the path.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_');

/// One node's HTTP front.
#[derive(Debug, Clone)]
pub struct Http {
    address: SocketAddr,
    namespace: Option<Namespace>,
    agent: ureq::Agent,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Header names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body, or how it broke off.
    pub body: Result<Vec<u8>, String>,
}

impl Answer {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The whole body.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Ok(bytes) => bytes,
            Err(error) => panic!("the body of an answer {} broke off: {error}", self.status),
        }
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(self.bytes())
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(self.bytes())))
    }

    /// The stable code of an error's body, or the text of what is no error's body.
    pub fn code(&self) -> String {
        code_in(&String::from_utf8_lossy(self.bytes()))
    }

    /// What an error's body says of the error.
    pub fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// Panics with the whole answer if it has another status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        let text = self
            .body
            .as_deref()
            .map(|bytes| String::from_utf8_lossy(&bytes[..bytes.len().min(2000)]).into_owned());
        assert_eq!(self.status, status, "{text:?}");
        self
    }

    /// Panics with the whole answer if it is not this error.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) -> Self {
        let text = String::from_utf8_lossy(self.bytes())
            .chars()
            .take(300)
            .collect::<String>();
        assert_eq!((self.status, self.code().as_str()), (status, code), "{text}");
        self
    }
}

impl Http {
    /// The front at an address. Every call connects anew: a node that was restarted must not be met on an old connection.
    pub fn new(address: SocketAddr) -> Self {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(CALL_TIMEOUT))
            .max_idle_connections(0)
            .build()
            .new_agent();
        Self {
            address,
            namespace: None,
            agent,
        }
    }

    /// The front at an address of a network namespace.
    pub fn in_namespace(address: SocketAddr, namespace: Namespace) -> Self {
        Self {
            namespace: Some(namespace),
            ..Self::new(address)
        }
    }

    /// Does a call from where the front can be reached.
    fn within<R: Send>(&self, call: impl FnOnce() -> R + Send) -> R {
        match &self.namespace {
            Some(namespace) => namespace.enter(call),
            None => call(),
        }
    }

    /// The path of an object in the default namespace.
    pub fn object_path(key: &str) -> String {
        format!("/v1/objects/{}", utf8_percent_encode(key, PLAIN))
    }

    /// Text as it may stand in a query.
    pub fn query_text(text: &str) -> String {
        utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// `GET`, without a panic when nobody answers.
    pub fn try_get(&self, path: &str) -> Result<Answer, String> {
        self.within(|| self.agent.get(self.url(path)).call().map(answer))
            .map_err(|error| error.to_string())
    }

    /// `GET`.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.try_get(path)
            .unwrap_or_else(|error| panic!("GET {}: {error}", self.url(path)))
    }

    /// `GET` with a `Range` header.
    #[track_caller]
    pub fn get_range(&self, path: &str, range: &str) -> Answer {
        let sent = self.within(|| self.agent.get(self.url(path)).header("Range", range).call().map(answer));
        sent.unwrap_or_else(|error| panic!("GET {} {range}: {error}", self.url(path)))
    }

    /// `HEAD`.
    #[track_caller]
    pub fn head(&self, path: &str) -> Answer {
        let sent = self.within(|| self.agent.head(self.url(path)).call().map(answer));
        sent.unwrap_or_else(|error| panic!("HEAD {}: {error}", self.url(path)))
    }

    /// `DELETE`.
    #[track_caller]
    pub fn delete(&self, path: &str) -> Answer {
        let sent = self.within(|| self.agent.delete(self.url(path)).call().map(answer));
        sent.unwrap_or_else(|error| panic!("DELETE {}: {error}", self.url(path)))
    }

    /// `PUT`, without a panic when the answer never comes.
    pub fn try_put(&self, path: &str, body: &[u8]) -> Result<Answer, String> {
        self.within(|| self.agent.put(self.url(path)).send(body).map(answer))
            .map_err(|error| error.to_string())
    }

    /// `PUT`.
    #[track_caller]
    pub fn put(&self, path: &str, body: &[u8]) -> Answer {
        self.try_put(path, body)
            .unwrap_or_else(|error| panic!("PUT {}: {error}", self.url(path)))
    }

    /// Puts an object of the default namespace, which must succeed; returns what the answer says of it.
    #[track_caller]
    pub fn put_object(&self, key: &str, bytes: &[u8]) -> Value {
        let answer = self.put(&Self::object_path(key), bytes);
        assert!(matches!(answer.status, 200 | 201), "put {key:?}: {answer:?}");
        answer.json()
    }

    /// Puts an object on a node of choice, which must succeed.
    #[track_caller]
    pub fn put_object_on(&self, key: &str, bytes: &[u8], node: NodeId) -> Value {
        let answer = self.put(&format!("{}?node={node}", Self::object_path(key)), bytes);
        assert!(matches!(answer.status, 200 | 201), "put {key:?} on {node}: {answer:?}");
        answer.json()
    }

    /// Gets an object of the default namespace, whatever comes of it.
    #[track_caller]
    pub fn get_object(&self, key: &str) -> Answer {
        self.get(&Self::object_path(key))
    }

    /// `POST` of JSON.
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        let post = self
            .agent
            .post(self.url(path))
            .header("Content-Type", "application/json");
        let sent = self.within(|| post.send(body.to_string().as_bytes()).map(answer));
        sent.unwrap_or_else(|error| panic!("POST {}: {error}", self.url(path)))
    }

    /// Sends bytes as they are on a connection of their own, ends the sending side, and returns all that comes back.
    pub fn raw(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        let mut text = Vec::new();
        // A server may answer and close before it has read everything; what came before that counts.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// A bare connection.
    pub fn connect(&self) -> TcpStream {
        let stream = self
            .within(|| TcpStream::connect(self.address))
            .expect("the node listens for HTTP");
        stream
            .set_read_timeout(Some(CALL_TIMEOUT))
            .expect("a time-out can be set");
        stream
    }
}

/// The stable code in the JSON body that is, or ends, a text; or that text if there is none.
pub fn code_in(text: &str) -> String {
    let start = text.find("{\"error\"").unwrap_or(text.len());
    let end = text.rfind('}').map_or(start, |end| end + 1);
    serde_json::from_str::<Value>(text.get(start..end).unwrap_or_default())
        .ok()
        .and_then(|body| body["error"]["code"].as_str().map(str::to_owned))
        .unwrap_or_else(|| format!("no code in {:?}", text.chars().take(200).collect::<String>()))
}

fn answer(response: ureq::http::Response<ureq::Body>) -> Answer {
    let (head, body) = response.into_parts();
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    Answer {
        status: head.status.as_u16(),
        headers: headers.collect(),
        body: body
            .into_with_config()
            .limit(BODY_BYTES_MAX)
            .read_to_vec()
            .map_err(|error| error.to_string()),
    }
}

//! The least HTTP client that can misbehave as wished.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        loop {
            let end = rest.windows(4).position(|window| window == b"\r\n\r\n");
            let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(bytes)));
            let head = String::from_utf8(rest[..end].to_vec()).unwrap();
            rest = &rest[end + 4..];
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            if status != 100 {
                let body = rest.to_vec();
                return Self { status, head, body };
            }
        }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        fields
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Panics unless it is this error, in the form that errors have.
    #[track_caller]
    pub(super) fn expect_error(&self, status: u16, code: &str) -> Value {
        let error = self.json()["error"].clone();
        assert_eq!((self.status, error["code"].as_str()), (status, Some(code)), "{error}");
        assert!(
            error["message"].as_str().is_some_and(|message| !message.is_empty()),
            "{error}"
        );
        error
    }
}

/// A request whose connection ends with it.
pub(super) fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head += "Host: localhost\r\n";
    }
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    let has_length = headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if !has_length && matches!(method, "PUT" | "POST") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// Sends bytes on a connection of their own, and takes all that comes back.
pub(super) async fn send(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    answer(&mut stream).await
}

/// All that comes back until the connection ends, however it does.
pub(super) async fn answer(stream: &mut TcpStream) -> Answer {
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received).await;
    Answer::parse(&received)
}

//! Where a peer listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// An address that can be dialled or bound: `127.0.0.1:7601`, `[::1]:7601` or `unix:/run/tenon/tenon.sock`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A TCP socket.
    Tcp(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// True if nobody on another host can reach it: a unix socket, or TCP on a loopback address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no endpoint: write an IP address and port (127.0.0.1:7601) or unix:/path/to/socket")]
pub struct EndpointError {
    /// The text.
    pub text: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || EndpointError { text: text.to_owned() };
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && !path.contains('\0') => Ok(Self::Unix(path.into())),
            Some(_) => Err(refused()),
            None => text.parse().map(Self::Tcp).map_err(|_| refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_endpoint_convert_both_ways() {
        for text in ["127.0.0.1:7601", "[::1]:7601", "unix:/run/tenon/tenon.sock"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_by_its_text() {
        for text in [
            "",
            "localhost:7601",
            "127.0.0.1",
            "unix:",
            "unix:relative",
            "tcp:127.0.0.1:1",
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap_err().text, text);
        }
    }
}

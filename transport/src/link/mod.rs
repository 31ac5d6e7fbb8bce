//! The link: an authenticated, framed, multiplexed control channel, and the listener and handshake that data lanes
//! share.

mod auth;
mod client;
mod endpoint;
mod frame;
pub(crate) mod handshake;
mod hello;
mod listener;
mod message;
mod server;

pub use auth::{AuthError, Authenticator, NoSecret, ProofKey, SharedSecret, Token, TokenClaims};
pub use client::{Link, Remote};
pub use endpoint::{Endpoint, EndpointError};
pub use hello::{Channel, FEATURE_RDMA, Hello, Identity, LinkError, Refusal, RefusalCode, Role};
pub use listener::{BindError, Listener, ListenerOptions, Serving};
pub use message::VERSIONS;
pub use server::{Admission, AdmitAll, BoxFuture, Service, Session};

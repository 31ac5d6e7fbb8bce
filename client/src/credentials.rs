//! How a client proves itself to holders.

use crate::control::{Service, reply};
use crate::limits::TOKEN_RENEW_BEFORE_MS;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::message::{Request, TokenReply};
use tenon_transport::link::{Authenticator, Endpoint, NoSecret, Token};
use tokio::time::Instant;

/// Where proofs towards holders come from.
pub(crate) enum Credentials {
    /// The caller has what every holder takes: the cluster's secret.
    Own(Arc<dyn Authenticator>),
    /// The agent gives tokens; or, in a cluster without a secret, nothing is needed.
    FromAgent {
        service: Service,
        token: Mutex<Option<Held>>,
    },
}

/// A token, until shortly before it expires.
pub(crate) struct Held {
    auth: Arc<Token>,
    until: Instant,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "Own",
            Self::FromAgent { .. } => "FromAgent",
        })
    }
}

impl Credentials {
    pub(crate) fn from_agent(service: Service) -> Self {
        Self::FromAgent {
            service,
            token: Mutex::new(None),
        }
    }

    /// What to show to the holder at `endpoint`.
    pub(crate) async fn towards(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<Arc<dyn Authenticator>, ServiceError> {
        let (service, token) = match self {
            Self::Own(auth) => return Ok(Arc::clone(auth)),
            Self::FromAgent { service, token } => (service, token),
        };
        if let Some(held) = token.lock().as_ref().filter(|held| Instant::now() < held.until) {
            return Ok(Arc::clone(&held.auth) as Arc<dyn Authenticator>);
        }
        let asked = Instant::now();
        match service.call(Request::Token, deadline, reply!(Token)).await {
            Ok(reply) => {
                let held = hold(&reply, asked)?;
                let auth = Arc::clone(&held.auth);
                *token.lock() = Some(held);
                Ok(auth)
            }
            // A cluster without a secret takes no tokens and listens on this host alone.
            Err(error) if error.code() == ErrorCode::NotFound && endpoint.is_local() => Ok(Arc::new(NoSecret)),
            Err(error) => Err(error.into()),
        }
    }
}

fn hold(reply: &TokenReply, asked: Instant) -> Result<Held, ServiceError> {
    let token = Token::from_credential(&reply.claims, reply.key)
        .map_err(|error| ServiceError::new(ErrorCode::Internal, format!("the agent's token: {error}")))?;
    let use_ms = reply.expires_in_ms.saturating_sub(TOKEN_RENEW_BEFORE_MS);
    Ok(Held {
        auth: Arc::new(token),
        until: asked + Duration::from_millis(use_ms),
    })
}

//! Who may connect: keys for the handshake's proofs. All cryptography of this crate is in this file: HMAC-SHA256 and nothing else.

use std::fmt;

use crate::ids::{PeerId, SessionId};
use crate::link::hello::Hello;

/// Why a credential is not good.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// The dialler showed nothing we understand.
    #[error("the credential cannot be understood")]
    Malformed,
    /// The token's time is over.
    #[error("the token expired at Unix time {expires_unix_ms} ms")]
    Expired {
        /// When it expired.
        expires_unix_ms: u64,
    },
    /// The token was made for another peer or session.
    #[error("the token belongs to another {what}")]
    OtherBearer {
        /// `peer` or `session`.
        what: &'static str,
    },
    /// Tokens are for clients.
    #[error("a token does not make a member")]
    RoleNotAllowed,
    /// This acceptor takes no tokens.
    #[error("this endpoint takes no tokens")]
    NoTokens,
    /// The secret is too short to resist guessing.
    #[error("a secret of {len_bytes} bytes is too short: at least {min_bytes} are needed")]
    SecretTooShort {
        /// Its length.
        len_bytes: usize,
        /// The limit.
        min_bytes: usize,
    },
}

/// The key that a proof is made with. Never printed.
#[derive(Clone)]
pub struct ProofKey {
    bytes: [u8; 32],
    scope: Option<u8>,
}

impl ProofKey {
    /// Scope of the token it belongs to; `None` for the secret itself.
    #[must_use]
    pub fn scope(&self) -> Option<u8> {
        self.scope
    }
}

impl fmt::Debug for ProofKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProofKey")
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

/// Gives the handshake its keys. Both sides prove that they know the key; it never crosses the wire.
pub trait Authenticator: Send + Sync {
    /// Dialler: what we show. Empty if we hold the secret itself.
    fn credential(&self) -> Vec<u8>;

    /// Acceptor: which key the proof of this hello must use.
    ///
    /// # Errors
    /// If its credential is not good. The peer is told.
    fn key_for(&self, hello: &Hello, now_unix_ms: u64) -> Result<ProofKey, AuthError>;

    /// Dialler: the key of our own proof.
    fn own_key(&self) -> ProofKey;
}

/// What a token says. Covered by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenClaims {
    /// The client it was made for.
    pub peer: PeerId,
    /// The session it was made for.
    pub session: SessionId,
    /// End of its life, Unix time in milliseconds.
    pub expires_unix_ms: u64,
    /// Opaque: what the bearer may do. Reaches [`Session::scope`](crate::link::Session::scope).
    pub scope: u8,
}

/// The cluster's secret: accepts whoever holds it, and tokens minted from it. Never printed.
pub struct SharedSecret {}

impl SharedSecret {
    /// Takes the secret's bytes, at least [`MIN_SECRET_BYTES`](crate::limits::MIN_SECRET_BYTES).
    ///
    /// # Errors
    /// [`AuthError::SecretTooShort`].
    pub fn new(_secret: &[u8]) -> Result<Self, AuthError> {
        unimplemented!()
    }

    /// Makes a token for a client. Its key is derived from the secret and the claims.
    #[must_use]
    pub fn mint(&self, _claims: TokenClaims) -> Token {
        unimplemented!()
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecret").finish_non_exhaustive()
    }
}

impl Authenticator for SharedSecret {
    fn credential(&self) -> Vec<u8> {
        Vec::new()
    }

    fn key_for(&self, _hello: &Hello, _now_unix_ms: u64) -> Result<ProofKey, AuthError> {
        unimplemented!()
    }

    fn own_key(&self) -> ProofKey {
        unimplemented!()
    }
}

/// A bearer's token: for diallers. Whoever has the key is the bearer, so it travels only over channels that are trusted with it.
/// Its key is never printed.
#[derive(Clone)]
pub struct Token {
    claims: TokenClaims,
    key: [u8; 32],
}

impl Token {
    /// Puts a token together from what [`Token::claims`] and [`Token::key_bytes`] gave.
    #[must_use]
    pub fn new(claims: TokenClaims, key: [u8; 32]) -> Self {
        Self { claims, key }
    }

    /// What it says.
    #[must_use]
    pub fn claims(&self) -> &TokenClaims {
        &self.claims
    }

    /// Its key, to hand it to its bearer.
    #[must_use]
    pub fn key_bytes(&self) -> [u8; 32] {
        self.key
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("claims", &self.claims)
            .finish_non_exhaustive()
    }
}

/// As an acceptor a token knows nobody: [`AuthError::NoTokens`].
impl Authenticator for Token {
    fn credential(&self) -> Vec<u8> {
        unimplemented!()
    }

    fn key_for(&self, _hello: &Hello, _now_unix_ms: u64) -> Result<ProofKey, AuthError> {
        Err(AuthError::NoTokens)
    }

    fn own_key(&self) -> ProofKey {
        ProofKey {
            bytes: self.key,
            scope: Some(self.claims.scope),
        }
    }
}

/// A fixed public key: proves nothing. The caller uses it on [local](crate::link::Endpoint::is_local) endpoints only.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSecret;

impl Authenticator for NoSecret {
    fn credential(&self) -> Vec<u8> {
        Vec::new()
    }

    fn key_for(&self, hello: &Hello, _now_unix_ms: u64) -> Result<ProofKey, AuthError> {
        if hello.credential.is_empty() {
            Ok(self.own_key())
        } else {
            Err(AuthError::NoTokens)
        }
    }

    fn own_key(&self) -> ProofKey {
        ProofKey {
            bytes: *b"tenon-link: no secret, no proof.",
            scope: None,
        }
    }
}

//! Who may connect: keys for the handshake's proofs. All cryptography of this crate is in this file: HMAC-SHA256 and
//! nothing else.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::ids::{PeerId, SessionId};
use crate::limits::MIN_SECRET_BYTES;
use crate::link::hello::{Hello, Role};
use crate::wire::Fields;

/// Each use of HMAC has a label of its own, so that what was made for one is worth nothing in another.
const LABEL_SECRET: &[u8] = b"tenon-link secret key 1\0";
const LABEL_TOKEN: &[u8] = b"tenon-link token key 1\0";
/// Labels of the two proofs of a handshake.
pub(crate) const LABEL_ACCEPTOR: &[u8] = b"tenon-link acceptor proof 1\0";
pub(crate) const LABEL_DIALLER: &[u8] = b"tenon-link dialler proof 1\0";

fn hmac(key: &[u8], label: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(label);
    for part in parts {
        mac.update(part);
    }
    mac
}

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

    /// Proves knowledge of the key over `parts`.
    pub(crate) fn prove(&self, label: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        hmac(&self.bytes, label, parts).finalize().into_bytes().into()
    }

    /// Checks a proof, in a time that does not depend on where it differs.
    pub(crate) fn verify(&self, label: &[u8], parts: &[&[u8]], proof: &[u8; 32]) -> bool {
        hmac(&self.bytes, label, parts).verify_slice(proof).is_ok()
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

/// Format of [`TokenClaims`] as a credential.
const CLAIMS_VERSION: u8 = 1;

impl TokenClaims {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(42);
        bytes.push(CLAIMS_VERSION);
        bytes.extend_from_slice(&self.peer.0);
        bytes.extend_from_slice(&self.session.0);
        bytes.extend_from_slice(&self.expires_unix_ms.to_le_bytes());
        bytes.push(self.scope);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        if fields.u8()? != CLAIMS_VERSION {
            return None;
        }
        let claims = Self {
            peer: PeerId(fields.array()?),
            session: SessionId(fields.array()?),
            expires_unix_ms: fields.u64()?,
            scope: fields.u8()?,
        };
        fields.end()?;
        Some(claims)
    }

    /// Whether who says this hello may bear a token that says this.
    fn check(&self, hello: &Hello, now_unix_ms: u64) -> Result<(), AuthError> {
        let identity = &hello.identity;
        if identity.role != Role::Client {
            return Err(AuthError::RoleNotAllowed);
        }
        if identity.peer != self.peer {
            return Err(AuthError::OtherBearer { what: "peer" });
        }
        if identity.session != self.session {
            return Err(AuthError::OtherBearer { what: "session" });
        }
        if now_unix_ms >= self.expires_unix_ms {
            return Err(AuthError::Expired {
                expires_unix_ms: self.expires_unix_ms,
            });
        }
        Ok(())
    }
}

/// The cluster's secret: accepts whoever holds it, and tokens minted from it. Never printed.
pub struct SharedSecret {
    secret: Vec<u8>,
}

impl SharedSecret {
    /// Takes the secret's bytes, at least [`MIN_SECRET_BYTES`].
    ///
    /// # Errors
    /// [`AuthError::SecretTooShort`].
    pub fn new(secret: &[u8]) -> Result<Self, AuthError> {
        if secret.len() < MIN_SECRET_BYTES {
            return Err(AuthError::SecretTooShort {
                len_bytes: secret.len(),
                min_bytes: MIN_SECRET_BYTES,
            });
        }
        Ok(Self {
            secret: secret.to_vec(),
        })
    }

    /// Makes a token for a client. Its key is derived from the secret and the claims.
    #[must_use]
    pub fn mint(&self, claims: TokenClaims) -> Token {
        let key = hmac(&self.secret, LABEL_TOKEN, &[&claims.encode()])
            .finalize()
            .into_bytes()
            .into();
        Token { claims, key }
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

    fn key_for(&self, hello: &Hello, now_unix_ms: u64) -> Result<ProofKey, AuthError> {
        if hello.credential.is_empty() {
            return Ok(self.own_key());
        }
        let claims = TokenClaims::decode(&hello.credential).ok_or(AuthError::Malformed)?;
        claims.check(hello, now_unix_ms)?;
        Ok(self.mint(claims).own_key())
    }

    fn own_key(&self) -> ProofKey {
        ProofKey {
            bytes: hmac(&self.secret, LABEL_SECRET, &[]).finalize().into_bytes().into(),
            scope: None,
        }
    }
}

/// A bearer's token: for diallers. Whoever has the key is the bearer, so it travels only over channels that are trusted
/// with it. Its key is never printed.
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

    /// Puts a token together from the [`credential`](Authenticator::credential) that it shows and its key.
    ///
    /// # Errors
    /// [`AuthError::Malformed`].
    pub fn from_credential(credential: &[u8], key: [u8; 32]) -> Result<Self, AuthError> {
        let claims = TokenClaims::decode(credential).ok_or(AuthError::Malformed)?;
        Ok(Self { claims, key })
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
        self.claims.encode()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClusterId;
    use crate::link::hello::{Channel, Identity};
    use crate::link::message::VERSIONS;

    const CLAIMS: TokenClaims = TokenClaims {
        peer: PeerId([1; 16]),
        session: SessionId([2; 16]),
        expires_unix_ms: 1_000,
        scope: 5,
    };

    fn secret(byte: u8) -> SharedSecret {
        SharedSecret::new(&[byte; 32]).unwrap()
    }

    fn hello(credential: Vec<u8>) -> Hello {
        let identity = Identity {
            cluster: ClusterId([9; 16]),
            role: Role::Client,
            peer: CLAIMS.peer,
            incarnation: 1,
            session: CLAIMS.session,
            features: 0,
            context: [0; 32],
        };
        Hello {
            version_min: VERSIONS.0,
            version_max: VERSIONS.1,
            channel: Channel::Control,
            identity,
            credential,
            nonce: [0; 32],
        }
    }

    #[test]
    fn the_acceptor_finds_the_key_of_a_token_that_it_minted() {
        let token = secret(7).mint(CLAIMS);
        let key = secret(7).key_for(&hello(token.credential()), 999).unwrap();
        assert_eq!(key.scope(), Some(5));
        let proof = token.own_key().prove(LABEL_DIALLER, &[b"transcript"]);
        assert!(key.verify(LABEL_DIALLER, &[b"trans", b"cript"], &proof));
        assert!(
            !key.verify(LABEL_ACCEPTOR, &[b"transcript"], &proof),
            "proofs of the two sides differ"
        );
        assert!(!secret(7).own_key().verify(LABEL_DIALLER, &[b"transcript"], &proof));
        assert_eq!(
            Token::new(*token.claims(), token.key_bytes()).own_key().bytes,
            key.bytes
        );
        let handed = Token::from_credential(&token.credential(), token.key_bytes()).unwrap();
        assert_eq!((handed.claims(), handed.own_key().bytes), (token.claims(), key.bytes));
        let cut = &token.credential()[1..];
        assert_eq!(
            Token::from_credential(cut, token.key_bytes()).unwrap_err(),
            AuthError::Malformed
        );
    }

    #[test]
    fn a_token_is_good_for_its_bearer_and_time_alone() {
        let credential = secret(7).mint(CLAIMS).credential();
        let key_for = |change: &dyn Fn(&mut Hello), now_unix_ms| {
            let mut hello = hello(credential.clone());
            change(&mut hello);
            secret(7).key_for(&hello, now_unix_ms).unwrap_err()
        };
        assert_eq!(key_for(&|_| (), 1_000), AuthError::Expired { expires_unix_ms: 1_000 });
        assert_eq!(
            key_for(&|h| h.identity.role = Role::Member, 0),
            AuthError::RoleNotAllowed
        );
        assert_eq!(
            key_for(&|h| h.identity.peer.0[0] = 0, 0),
            AuthError::OtherBearer { what: "peer" }
        );
        assert_eq!(
            key_for(&|h| h.identity.session.0[0] = 0, 0),
            AuthError::OtherBearer { what: "session" }
        );
        assert_eq!(key_for(&|h| h.credential.push(0), 0), AuthError::Malformed);
        assert_eq!(key_for(&|h| h.credential[0] = 2, 0), AuthError::Malformed);
    }

    #[test]
    fn claims_that_were_tampered_with_lead_to_another_key() {
        let token = secret(7).mint(CLAIMS);
        let wider = TokenClaims {
            scope: 255,
            expires_unix_ms: u64::MAX,
            ..CLAIMS
        };
        let key = secret(7).key_for(&hello(wider.encode()), 0).unwrap();
        assert!(!key.verify(LABEL_DIALLER, &[], &token.own_key().prove(LABEL_DIALLER, &[])));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output_and_must_be_long() {
        let token = secret(0x77).mint(CLAIMS);
        let shown = format!("{:?} {:?} {:?}", secret(0x77), token, token.own_key());
        assert!(
            !shown.contains("119") && !shown.contains(&format!("{:?}", token.key_bytes())),
            "{shown}"
        );
        let error = SharedSecret::new(&[1; 15]).unwrap_err();
        assert_eq!(
            error,
            AuthError::SecretTooShort {
                len_bytes: 15,
                min_bytes: 16
            }
        );
    }

    #[test]
    fn without_a_secret_no_token_is_taken() {
        assert!(NoSecret.key_for(&hello(Vec::new()), 0).is_ok());
        assert_eq!(NoSecret.key_for(&hello(vec![1]), 0).unwrap_err(), AuthError::NoTokens);
        assert_eq!(
            secret(7).mint(CLAIMS).key_for(&hello(Vec::new()), 0).unwrap_err(),
            AuthError::NoTokens
        );
    }
}

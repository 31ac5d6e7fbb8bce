//! The messages of the handshake on the wire. The header and refusals are the same in all versions.

use crate::ids::{ClusterId, PeerId, SessionId};
use crate::limits::{MAX_CREDENTIAL_BYTES, MAX_HANDSHAKE_BODY_BYTES, MAX_REFUSAL_TEXT_BYTES};
use crate::link::hello::{Channel, Hello, Identity, Refusal, Role};
use crate::wire::{Fields, put_text};

/// Versions of the protocol that this code speaks, lowest and highest: of links and connections, and of the calls that they
/// carry. No build speaks those of others.
pub const VERSIONS: (u16, u16) = (4, 4);

const MAGIC: [u8; 8] = *b"TENONLNK";
pub(crate) const HEADER_BYTES: usize = 16;

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Hello = 1,
    Challenge = 2,
    Proof = 3,
    Welcome = 4,
    Refused = 5,
}

/// A header that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) versions: (u16, u16),
    pub(crate) kind: u8,
    pub(crate) body_bytes: usize,
}

/// Why a header could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Magic,
    Length(usize),
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, BadHeader> {
        let mut fields = Fields::new(bytes);
        let mut read = || {
            let magic = fields.array()?;
            let versions = (fields.u16()?, fields.u16()?);
            let kind = fields.u8()?;
            fields.u8()?;
            Some((magic, versions, kind, usize::from(fields.u16()?)))
        };
        let (magic, versions, kind, body_bytes) = read().ok_or(BadHeader::Magic)?;
        if magic != MAGIC {
            return Err(BadHeader::Magic);
        }
        if body_bytes > MAX_HANDSHAKE_BODY_BYTES {
            return Err(BadHeader::Length(body_bytes));
        }
        Ok(Self {
            versions,
            kind,
            body_bytes,
        })
    }
}

/// A whole message: header and body.
pub(crate) fn message(kind: Kind, body: &[u8]) -> Vec<u8> {
    assert!(
        body.len() <= MAX_HANDSHAKE_BODY_BYTES,
        "no handshake message has {} bytes",
        body.len()
    );
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSIONS.0.to_le_bytes());
    bytes.extend_from_slice(&VERSIONS.1.to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn encode_role(role: Role) -> u8 {
    match role {
        Role::Member => 1,
        Role::Client => 2,
    }
}

fn decode_role(byte: u8) -> Option<Role> {
    match byte {
        1 => Some(Role::Member),
        2 => Some(Role::Client),
        _ => None,
    }
}

/// The body of a hello.
pub(crate) fn encode_hello(hello: &Hello) -> Vec<u8> {
    let identity = &hello.identity;
    let channel = match hello.channel {
        Channel::Control => 1,
        Channel::Data => 2,
        Channel::Rdma => 3,
    };
    let mut bytes = vec![channel, encode_role(identity.role)];
    bytes.extend_from_slice(&identity.cluster.0);
    bytes.extend_from_slice(&identity.peer.0);
    bytes.extend_from_slice(&identity.incarnation.to_le_bytes());
    bytes.extend_from_slice(&identity.session.0);
    bytes.extend_from_slice(&identity.features.to_le_bytes());
    bytes.extend_from_slice(&identity.context);
    bytes.extend_from_slice(&hello.nonce);
    bytes.extend_from_slice(&hello.credential);
    bytes
}

/// The hello with this body, from a header with these versions.
pub(crate) fn decode_hello(versions: (u16, u16), body: &[u8]) -> Option<Hello> {
    let mut fields = Fields::new(body);
    let channel = match fields.u8()? {
        1 => Channel::Control,
        2 => Channel::Data,
        3 => Channel::Rdma,
        _ => return None,
    };
    let identity = Identity {
        role: decode_role(fields.u8()?)?,
        cluster: ClusterId(fields.array()?),
        peer: PeerId(fields.array()?),
        incarnation: fields.u64()?,
        session: SessionId(fields.array()?),
        features: fields.u64()?,
        context: fields.array()?,
    };
    let nonce = fields.array()?;
    let credential = fields.rest().to_vec();
    let (version_min, version_max) = versions;
    (credential.len() <= MAX_CREDENTIAL_BYTES).then_some(Hello {
        version_min,
        version_max,
        channel,
        identity,
        credential,
        nonce,
    })
}

/// What the acceptor says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub(crate) version: u16,
    pub(crate) role: Role,
    pub(crate) cluster: ClusterId,
    pub(crate) peer: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) features: u64,
    pub(crate) context: [u8; 32],
    pub(crate) nonce: [u8; 32],
}

pub(crate) const PROOF_BYTES: usize = 32;

impl Challenge {
    /// The body without the acceptor's proof, which follows it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.version.to_le_bytes().to_vec();
        bytes.push(encode_role(self.role));
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.peer.0);
        bytes.extend_from_slice(&self.incarnation.to_le_bytes());
        bytes.extend_from_slice(&self.features.to_le_bytes());
        bytes.extend_from_slice(&self.context);
        bytes.extend_from_slice(&self.nonce);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let challenge = Self {
            version: fields.u16()?,
            role: decode_role(fields.u8()?)?,
            cluster: ClusterId(fields.array()?),
            peer: PeerId(fields.array()?),
            incarnation: fields.u64()?,
            features: fields.u64()?,
            context: fields.array()?,
            nonce: fields.array()?,
        };
        fields.end()?;
        Some(challenge)
    }
}

/// The body of a refusal.
pub(crate) fn encode_refusal(refusal: &Refusal) -> Vec<u8> {
    let mut bytes = refusal.code.to_le_bytes().to_vec();
    put_text(&mut bytes, &refusal.message, MAX_REFUSAL_TEXT_BYTES);
    bytes
}

pub(crate) fn decode_refusal(body: &[u8]) -> Option<Refusal> {
    let mut fields = Fields::new(body);
    let refusal = Refusal {
        code: fields.u16()?,
        message: fields.text()?.to_owned(),
    };
    fields.end()?;
    Some(refusal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn any_hello()(
            ids in any::<([u8; 16], [u8; 16], [u8; 16])>(),
            numbers in any::<(u64, u64)>(),
            context in any::<[u8; 32]>(),
            nonce in any::<[u8; 32]>(),
            credential in proptest::collection::vec(any::<u8>(), 0..=MAX_CREDENTIAL_BYTES),
            member in any::<bool>(),
            control in any::<bool>(),
        ) -> Hello {
            Hello {
                version_min: VERSIONS.0,
                version_max: VERSIONS.1,
                channel: if control { Channel::Control } else { Channel::Data },
                identity: Identity {
                    cluster: ClusterId(ids.0),
                    role: if member { Role::Member } else { Role::Client },
                    peer: PeerId(ids.1),
                    incarnation: numbers.0,
                    session: SessionId(ids.2),
                    features: numbers.1,
                    context,
                },
                credential,
                nonce,
            }
        }
    }

    proptest! {
        #[test]
        fn what_was_said_is_what_is_heard(hello in any_hello(), code in any::<u16>(), text in ".{0,600}") {
            prop_assert_eq!(decode_hello(VERSIONS, &encode_hello(&hello)), Some(hello.clone()));
            let identity = hello.identity;
            let challenge = Challenge {
                version: VERSIONS.1,
                role: identity.role,
                cluster: identity.cluster,
                peer: identity.peer,
                incarnation: identity.incarnation,
                features: identity.features,
                context: identity.context,
                nonce: hello.nonce,
            };
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Some(challenge));
            let refusal = decode_refusal(&encode_refusal(&Refusal { code, message: text.clone() })).unwrap();
            prop_assert_eq!(refusal.code, code);
            prop_assert!(text.starts_with(&refusal.message));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            _ = decode_hello(VERSIONS, &bytes);
            _ = Challenge::decode(&bytes);
            _ = decode_refusal(&bytes);
            if let Some(header) = bytes.first_chunk() {
                _ = Header::decode(header);
            }
        }
    }

    #[test]
    fn a_message_names_its_versions_kind_and_length() {
        let bytes = message(Kind::Proof, &[0; 32]);
        let mut other: [u8; HEADER_BYTES] = *bytes.first_chunk().unwrap();
        let header = Header::decode(&other).unwrap();
        assert_eq!(
            header,
            Header {
                versions: VERSIONS,
                kind: Kind::Proof as u8,
                body_bytes: 32
            }
        );
        other[0] = b'H';
        assert_eq!(Header::decode(&other), Err(BadHeader::Magic));
    }
}

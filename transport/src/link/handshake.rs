//! The handshake: hello, challenge with the acceptor's proof, the dialler's proof, welcome; or a refusal with its code.
//!
//! Both proofs are HMACs under a key that never crosses the wire, over everything said so far, with a label for each
//! direction: who proves it knows the key also confirms every word of the hello and the challenge.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, timeout_at};

use crate::ids::{ClusterId, PeerId};
use crate::link::auth::{Authenticator, LABEL_ACCEPTOR, LABEL_DIALLER};
use crate::link::client::Remote;
use crate::link::endpoint::Endpoint;
use crate::link::hello::{Channel, Hello, Identity, LinkError, Refusal, RefusalCode};
use crate::link::message::{
    self, BadHeader, Challenge, HEADER_BYTES, Header, Kind, PROOF_BYTES, VERSIONS, decode_hello, encode_hello,
    encode_refusal, message,
};
use crate::link::server::Admission;
use crate::stream::Stream;

/// Connects and shakes hands, all before `deadline`.
pub(crate) async fn dial(
    endpoint: &Endpoint,
    identity: &Identity,
    channel: Channel,
    auth: &dyn Authenticator,
    expect: Option<PeerId>,
    deadline: Instant,
) -> Result<(Stream, Remote), LinkError> {
    let connecting = async {
        Stream::connect(endpoint).await.map_err(|source| LinkError::Connect {
            endpoint: endpoint.clone(),
            source,
        })
    };
    let stream = timeout_at(deadline, connecting)
        .await
        .map_err(|_| LinkError::Deadline { during: "connecting" })??;
    let wire = Wire {
        stream,
        endpoint: endpoint.clone(),
    };
    let remote = timeout_at(deadline, introduce(&wire, identity, channel, auth, expect))
        .await
        .map_err(|_| LinkError::Deadline {
            during: "the handshake",
        })??;
    Ok((wire.stream, remote))
}

/// A dialler that was let in.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) hello: Hello,
    pub(crate) scope: Option<u8>,
}

/// Answers a dialler, before `deadline`.
pub(crate) async fn accept(
    stream: Stream,
    endpoint: Endpoint,
    identity: &Identity,
    auth: &dyn Authenticator,
    admission: &dyn Admission,
    deadline: Instant,
) -> Result<Accepted, LinkError> {
    let wire = Wire { stream, endpoint };
    let (hello, scope) = timeout_at(deadline, challenge(&wire, identity, auth, admission))
        .await
        .map_err(|_| LinkError::Deadline {
            during: "the handshake",
        })??;
    Ok(Accepted {
        stream: wire.stream,
        hello,
        scope,
    })
}

/// Tells a dialler that has proven itself that it may go on.
pub(crate) async fn welcome(accepted: &Accepted, deadline: Instant) -> io::Result<()> {
    timeout_at(deadline, accepted.stream.write_all(&message(Kind::Welcome, &[]))).await?
}

/// Tells a dialler that it may not go on.
pub(crate) async fn refuse(stream: &Stream, code: RefusalCode, words: &str, deadline: Instant) {
    let refusal = Refusal {
        code: code as u16,
        message: words.to_owned(),
    };
    let telling = async {
        if stream
            .write_all(&message(Kind::Refused, &encode_refusal(&refusal)))
            .await
            .is_ok()
        {
            stream.finish().await;
        }
    };
    // Best effort: the connection is given up in any case.
    _ = timeout_at(deadline, telling).await;
}

/// The dialler's part.
async fn introduce(
    wire: &Wire,
    identity: &Identity,
    channel: Channel,
    auth: &dyn Authenticator,
    expect: Option<PeerId>,
) -> Result<Remote, LinkError> {
    let hello = Hello {
        version_min: VERSIONS.0,
        version_max: VERSIONS.1,
        channel,
        identity: identity.clone(),
        credential: auth.credential(),
        nonce: rand::random(),
    };
    let said = message(Kind::Hello, &encode_hello(&hello));
    wire.send(&said).await?;

    let body = wire.answer(Kind::Challenge, identity).await?;
    let (heard, acceptor_proof) = body
        .split_last_chunk::<PROOF_BYTES>()
        .ok_or_else(|| malformed("the challenge is too short"))?;
    let challenge = Challenge::decode(heard).ok_or_else(|| malformed("the challenge cannot be understood"))?;
    let key = auth.own_key();
    if !key.verify(LABEL_ACCEPTOR, &[&said, heard], acceptor_proof) {
        wire.refuse(RefusalCode::Unauthenticated, "the acceptor's proof is not good")
            .await;
        return Err(LinkError::Unauthenticated {
            reason: "the peer did not prove that it shares our secret".to_owned(),
        });
    }
    if challenge.version < VERSIONS.0 || challenge.version > VERSIONS.1 {
        return Err(LinkError::Version {
            ours: VERSIONS,
            theirs: (challenge.version, challenge.version),
        });
    }
    if let Some(expected) = expect.filter(|expected| *expected != challenge.peer) {
        wire.refuse(RefusalCode::WrongPeer, "another peer was expected").await;
        return Err(LinkError::WrongPeer {
            expected,
            found: challenge.peer,
        });
    }
    if identity.cluster != ClusterId::ANY && challenge.cluster != identity.cluster {
        wire.refuse(RefusalCode::WrongCluster, "another cluster was expected")
            .await;
        return Err(LinkError::WrongCluster { ours: identity.cluster });
    }
    wire.send(&message(Kind::Proof, &key.prove(LABEL_DIALLER, &[&said, &body])))
        .await?;
    wire.answer(Kind::Welcome, identity).await?;
    Ok(Remote {
        cluster: challenge.cluster,
        peer: challenge.peer,
        incarnation: challenge.incarnation,
        session: identity.session,
        role: challenge.role,
        features: challenge.features,
        context: challenge.context,
    })
}

/// The acceptor's part, up to and without the welcome.
async fn challenge(
    wire: &Wire,
    identity: &Identity,
    auth: &dyn Authenticator,
    admission: &dyn Admission,
) -> Result<(Hello, Option<u8>), LinkError> {
    let (said, hello) = hear_hello(wire, identity).await?;
    let key = match auth.key_for(&hello, now_unix_ms()) {
        Ok(key) => key,
        Err(error) => return wire.turn_away(RefusalCode::Unauthenticated, error.to_string()).await,
    };
    let challenge = Challenge {
        version: VERSIONS.1.min(hello.version_max),
        role: identity.role,
        cluster: identity.cluster,
        peer: identity.peer,
        incarnation: identity.incarnation,
        features: identity.features,
        context: identity.context,
        nonce: rand::random(),
    };
    let mut body = challenge.encode();
    let proof = key.prove(LABEL_ACCEPTOR, &[&said, &body]);
    body.extend_from_slice(&proof);
    wire.send(&message(Kind::Challenge, &body)).await?;

    let proof = wire.answer(Kind::Proof, identity).await?;
    let good = <[u8; PROOF_BYTES]>::try_from(proof.as_slice())
        .is_ok_and(|proof| key.verify(LABEL_DIALLER, &[&said, &body], &proof));
    if !good {
        return wire
            .turn_away(RefusalCode::Unauthenticated, "the proof is not good".to_owned())
            .await;
    }
    if let Err(refusal) = admission.admit(&hello) {
        wire.refuse_with(&refusal).await;
        return Err(LinkError::Refused {
            code: refusal.code,
            message: refusal.message,
        });
    }
    Ok((hello, key.scope()))
}

/// Hears and checks a hello as far as that goes without a key. Returns its bytes as well.
async fn hear_hello(wire: &Wire, identity: &Identity) -> Result<(Vec<u8>, Hello), LinkError> {
    let (mut said, header) = wire.header().await?;
    let (lowest, highest) = header.versions;
    if lowest > VERSIONS.1 || highest < VERSIONS.0 {
        let words = format!("we speak versions {} to {}", VERSIONS.0, VERSIONS.1);
        wire.refuse(RefusalCode::Version, &words).await;
        return Err(LinkError::Version {
            ours: VERSIONS,
            theirs: header.versions,
        });
    }
    if header.kind != Kind::Hello as u8 {
        return wire
            .turn_away(RefusalCode::Malformed, "a handshake starts with a hello".to_owned())
            .await;
    }
    let body = wire.body(header).await?;
    said.extend_from_slice(&body);
    let Some(hello) = decode_hello(header.versions, &body) else {
        return wire
            .turn_away(RefusalCode::Malformed, "the hello cannot be understood".to_owned())
            .await;
    };
    let takes_any = hello.identity.cluster == ClusterId::ANY && matches!(wire.endpoint, Endpoint::Unix(_));
    if hello.identity.cluster != identity.cluster && !takes_any {
        wire.refuse(RefusalCode::WrongCluster, "this is another cluster").await;
        return Err(LinkError::WrongCluster { ours: identity.cluster });
    }
    Ok((said, hello))
}

/// A connection that is shaking hands.
struct Wire {
    stream: Stream,
    endpoint: Endpoint,
}

impl Wire {
    fn io(&self, source: io::Error) -> LinkError {
        LinkError::Io {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), LinkError> {
        self.stream.write_all(bytes).await.map_err(|source| self.io(source))
    }

    async fn header(&self) -> Result<(Vec<u8>, Header), LinkError> {
        let mut bytes = [0; HEADER_BYTES];
        self.stream
            .read_exact(&mut bytes)
            .await
            .map_err(|source| self.io(source))?;
        match Header::decode(&bytes) {
            Ok(header) => Ok((bytes.to_vec(), header)),
            Err(BadHeader::Magic) => Err(LinkError::BadMagic {
                endpoint: self.endpoint.clone(),
            }),
            Err(BadHeader::Length(len)) => {
                self.turn_away(RefusalCode::Malformed, format!("a handshake message of {len} bytes"))
                    .await
            }
        }
    }

    async fn body(&self, header: Header) -> Result<Vec<u8>, LinkError> {
        let mut body = vec![0; header.body_bytes];
        self.stream
            .read_exact(&mut body)
            .await
            .map_err(|source| self.io(source))?;
        Ok(body)
    }

    /// The body of the message that must come next, unless it is a refusal.
    async fn answer(&self, expected: Kind, identity: &Identity) -> Result<Vec<u8>, LinkError> {
        let (_, header) = self.header().await?;
        let body = self.body(header).await?;
        if header.kind == expected as u8 {
            return Ok(body);
        }
        if header.kind != Kind::Refused as u8 {
            return Err(malformed("an unexpected handshake message"));
        }
        let refusal = message::decode_refusal(&body).ok_or_else(|| malformed("a refusal that cannot be understood"))?;
        Err(match refusal.code {
            code if code == RefusalCode::Version as u16 => LinkError::Version {
                ours: VERSIONS,
                theirs: header.versions,
            },
            code if code == RefusalCode::WrongCluster as u16 => LinkError::WrongCluster { ours: identity.cluster },
            code if code == RefusalCode::Unauthenticated as u16 => LinkError::Unauthenticated {
                reason: refusal.message,
            },
            code => LinkError::Refused {
                code,
                message: refusal.message,
            },
        })
    }

    async fn refuse(&self, code: RefusalCode, words: &str) {
        self.refuse_with(&Refusal {
            code: code as u16,
            message: words.to_owned(),
        })
        .await;
    }

    async fn refuse_with(&self, refusal: &Refusal) {
        // Best effort: the connection is given up in any case.
        let told = self
            .stream
            .write_all(&message(Kind::Refused, &encode_refusal(refusal)))
            .await;
        if told.is_ok() {
            self.stream.finish().await;
        }
    }

    /// Refuses, and fails with what was told.
    async fn turn_away<T>(&self, code: RefusalCode, words: String) -> Result<T, LinkError> {
        self.refuse(code, &words).await;
        Err(match code {
            RefusalCode::Unauthenticated => LinkError::Unauthenticated { reason: words },
            _ => malformed(&words),
        })
    }
}

fn malformed(reason: &str) -> LinkError {
    LinkError::Protocol {
        reason: reason.to_owned(),
    }
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

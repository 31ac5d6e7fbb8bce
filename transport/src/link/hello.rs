//! What two peers tell each other before anything else, and how it may fail.

use std::io;

use crate::ids::{ClusterId, PeerId, SessionId};
use crate::link::endpoint::Endpoint;

/// What a connection will carry. Control calls never share a connection with bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Calls and answers.
    Control,
    /// One-sided transfers.
    Data,
    /// Calls that connect queue pairs and offer buffers: what RDMA transfers need beside them.
    Rdma,
}

/// What the dialler is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Another member of the cluster.
    Member,
    /// A program that uses it.
    Client,
}

/// Bit of [`Identity::features`]: calls of [`Channel::Rdma`] are answered.
pub const FEATURE_RDMA: u64 = 1;

/// Who we are, on either side of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster we belong to; [`ClusterId::ANY`] for a dialler of a unix socket that does not know.
    pub cluster: ClusterId,
    /// What we are.
    pub role: Role,
    /// Our identity.
    pub peer: PeerId,
    /// Grows with every start of the process that bears the identity.
    pub incarnation: u64,
    /// The session that links and connections dialled with this identity belong to. Acceptors do not use it.
    pub session: SessionId,
    /// Bits that say what we can do; each side sees the other's.
    pub features: u64,
    /// Opaque: members put the digest of their member list here.
    pub context: [u8; 32],
}

/// What a dialler says first. All of it is covered by the proofs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest protocol version the dialler speaks.
    pub version_min: u16,
    /// Highest protocol version the dialler speaks.
    pub version_max: u16,
    /// What the connection is for.
    pub channel: Channel,
    /// The dialler's identity.
    pub identity: Identity,
    /// What the dialler shows to be let in; empty if it holds the secret itself. At most
    /// [`MAX_CREDENTIAL_BYTES`](crate::limits::MAX_CREDENTIAL_BYTES).
    pub credential: Vec<u8>,
    /// Random; never used twice.
    pub nonce: [u8; 32],
}

/// Why an acceptor's policy turned a peer away. Codes below 1,000 belong to this crate (see [`RefusalCode`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reaches the dialler; policy codes start at 1,000.
    pub code: u16,
    /// Reaches the dialler.
    pub message: String,
}

/// Codes with which the handshake itself refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum RefusalCode {
    /// No common protocol version.
    Version = 1,
    /// Another cluster.
    WrongCluster = 2,
    /// The dialler expected another peer.
    WrongPeer = 3,
    /// The credential or the proof is not good.
    Unauthenticated = 4,
    /// The acceptor has as many sessions, lanes or open handshakes as it may have.
    Busy = 5,
    /// A message that cannot be understood.
    Malformed = 6,
    /// The acceptor is shutting down.
    ShuttingDown = 7,
    /// The acceptor uses no RDMA device.
    NoRdma = 8,
}

/// Why a link or connection could not be made, or no longer carries calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The address cannot be reached.
    #[error("cannot connect to {endpoint}: {source}")]
    Connect {
        /// What was dialled.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// The connection broke during the handshake.
    #[error("the connection to {endpoint} broke during the handshake: {source}")]
    Io {
        /// What was dialled.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// Whoever answered speaks another protocol.
    #[error("{endpoint} does not speak this protocol")]
    BadMagic {
        /// What was dialled.
        endpoint: Endpoint,
    },
    /// No common version.
    #[error("no common protocol version: we speak {}–{}, the peer {}–{}", ours.0, ours.1, theirs.0, theirs.1)]
    Version {
        /// Lowest and highest version we speak.
        ours: (u16, u16),
        /// Lowest and highest version the peer speaks.
        theirs: (u16, u16),
    },
    /// The peer belongs to another cluster.
    #[error("the peer does not belong to cluster {ours}")]
    WrongCluster {
        /// The cluster we belong to.
        ours: ClusterId,
    },
    /// Another peer lives at that address.
    #[error("expected peer {expected}, found {found}")]
    WrongPeer {
        /// Who was expected.
        expected: PeerId,
        /// Who proved to be there.
        found: PeerId,
    },
    /// One side could not prove that it knows the secret, or the token is not good (any more).
    #[error("not authenticated: {reason}")]
    Unauthenticated {
        /// Which proof failed, in words.
        reason: String,
    },
    /// The acceptor refused.
    #[error("refused: {message} (code {code})")]
    Refused {
        /// See [`RefusalCode`]; codes from 1,000 belong to the acceptor's policy.
        code: u16,
        /// The acceptor's words.
        message: String,
    },
    /// A message that breaks the protocol.
    #[error("protocol violation: {reason}")]
    Protocol {
        /// What is wrong with it.
        reason: String,
    },
    /// The deadline passed first. Of a call: it may have been carried out; the link is usable.
    #[error("the deadline passed during {during}")]
    Deadline {
        /// What was under way.
        during: &'static str,
    },
    /// The link is closed. A call that was under way may have been carried out.
    #[error("the link is closed: {reason}")]
    Closed {
        /// Why it closed.
        reason: String,
    },
    /// The request is longer than a frame may be. Nothing was sent.
    #[error("a request of {len_bytes} bytes is longer than the limit of {limit_bytes}")]
    TooLarge {
        /// Length of the request.
        len_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

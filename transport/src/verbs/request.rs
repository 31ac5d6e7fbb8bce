//! What is posted to a queue pair, and what comes back.

use std::fmt;
use std::io;
use std::sync::Weak;

use rdma_sys::{self as ib, ibv_wc_status as wc, ibv_wr_opcode as opcode};

use super::memory_region::{Access, Local, RegionKey};
use super::posted::Signal;
use super::raw;

/// A range of a peer's memory. Its length is that of the request's local parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Address of its first byte in the peer's process.
    pub address: u64,
    /// Key of the region or window it lies in.
    pub key: RegionKey,
}

/// The operations. Windows are bound and invalidated by their owners alone.
#[derive(Debug)]
pub(super) enum Kind {
    Read(Remote),
    Write(Remote),
    Send,
    Bind(Binding),
    /// The key, and the part that stays registered until it is known to be invalid.
    Invalidate(
        RegionKey,
        #[expect(dead_code, reason = "keeps what the window is bound to")] Local,
    ),
}

/// Which part a window gives access to.
#[derive(Debug)]
pub(super) struct Binding {
    /// Not kept: a window that is dropped goes at once, so that it goes before its queue pair.
    pub(super) window: Weak<raw::Mw>,
    pub(super) key: RegionKey,
    pub(super) part: Local,
    pub(super) access: Access,
}

/// The local bytes of a request.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Parts of registered memory in order, which the device reads or writes until the request is complete.
    Parts(Vec<Local>),
    /// Bytes that are copied into the request as it is posted, for sends and writes.
    Inline(Vec<u8>),
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self {
            Self::Parts(parts) => total_bytes(parts),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Sum of the lengths of parts.
pub(super) fn total_bytes(parts: &[Local]) -> u64 {
    parts.iter().map(|part| u64::from(part.len_bytes())).sum()
}

/// A request of the send queue. `context` is whatever its owner wants back with the completion; it should hold no count
/// of the queue pair, which could then not end while the request is posted.
#[derive(Debug)]
pub struct SendRequest<T> {
    pub(super) operation: Kind,
    pub(super) payload: Payload,
    pub(super) signalled: bool,
    pub(super) context: T,
}

impl<T> SendRequest<T> {
    fn new(operation: Kind, payload: Payload, context: T) -> Self {
        Self {
            operation,
            payload,
            signalled: true,
            context,
        }
    }

    /// Reads a peer's range into local parts, whose regions need [`Access::LOCAL_WRITE`].
    pub fn read(remote: Remote, into: Vec<Local>, context: T) -> Self {
        Self::new(Kind::Read(remote), Payload::Parts(into), context)
    }

    /// Writes local bytes to a peer's range.
    pub fn write(remote: Remote, from: Payload, context: T) -> Self {
        Self::new(Kind::Write(remote), from, context)
    }

    /// Sends local bytes as a message, into what the peer's oldest receive request names.
    pub fn send(from: Payload, context: T) -> Self {
        Self::new(Kind::Send, from, context)
    }

    pub(super) fn bind(binding: Binding, context: T) -> Self {
        Self::new(Kind::Bind(binding), Payload::Parts(Vec::new()), context)
    }

    pub(super) fn invalidate(key: RegionKey, part: Local, context: T) -> Self {
        Self::new(Kind::Invalidate(key, part), Payload::Parts(Vec::new()), context)
    }

    /// Says nothing when it succeeds; its buffers come free with the next completion behind it. A failure is told.
    #[must_use]
    pub fn unsignalled(mut self) -> Self {
        self.signalled = false;
        self
    }

    /// What it carries for its owner.
    pub fn context(&self) -> &T {
        &self.context
    }

    /// Gives its context back.
    pub fn into_context(self) -> T {
        self.context
    }

    /// Writes it in the device's form, but for its name and its place in a list. Appends its parts.
    pub(super) fn fill(&self, made: &mut ib::ibv_send_wr, signalled: bool, parts: &mut Vec<ib::ibv_sge>) {
        let before = parts.len();
        if signalled {
            made.send_flags |= ib::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        match &self.payload {
            Payload::Parts(list) => parts.extend(list.iter().map(Local::scatter)),
            Payload::Inline(bytes) => {
                made.send_flags |= ib::ibv_send_flags::IBV_SEND_INLINE.0;
                parts.push(ib::ibv_sge {
                    addr: bytes.as_ptr().expose_provenance() as u64,
                    length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    lkey: 0,
                });
            }
        }
        made.num_sge = i32::try_from(parts.len() - before).unwrap_or(i32::MAX);
        let to = |remote: &Remote| ib::rdma_t {
            remote_addr: remote.address,
            rkey: remote.key.0,
        };
        match &self.operation {
            Kind::Send => made.opcode = opcode::IBV_WR_SEND,
            Kind::Read(remote) => {
                made.opcode = opcode::IBV_WR_RDMA_READ;
                made.wr.rdma = to(remote);
            }
            Kind::Write(remote) => {
                made.opcode = opcode::IBV_WR_RDMA_WRITE;
                made.wr.rdma = to(remote);
            }
            Kind::Bind(binding) => {
                let window = binding
                    .window
                    .upgrade()
                    .expect("a window posts its own binding, and nobody else does");
                made.opcode = opcode::IBV_WR_BIND_MW;
                made.bind_mw_tso_union.bind_mw = ib::bind_mw_t {
                    mw: window.mw.ptr(),
                    rkey: binding.key.0,
                    bind_info: ib::ibv_mw_bind_info {
                        mr: binding.part.region().raw().mr.ptr(),
                        addr: binding.part.address(),
                        length: u64::from(binding.part.len_bytes()),
                        mw_access_flags: binding.access.bits(),
                    },
                };
            }
            Kind::Invalidate(key, _) => {
                made.opcode = opcode::IBV_WR_LOCAL_INV;
                made.imm_data_invalidated_rkey_union.invalidated_rkey = key.0;
            }
        }
    }

    pub(super) fn done(&self) -> Done {
        match self.operation {
            Kind::Read(_) => Done::Read,
            Kind::Write(_) => Done::Write,
            Kind::Send => Done::Send,
            Kind::Bind(_) => Done::Bind,
            Kind::Invalidate(..) => Done::Invalidate,
        }
    }
}

impl<T> Signal for SendRequest<T> {
    fn is_signalled(&self) -> bool {
        self.signalled
    }
}

/// Room for one message of the peer.
#[derive(Debug)]
pub struct ReceiveRequest<T> {
    pub(super) parts: Vec<Local>,
    pub(super) context: T,
}

impl<T> ReceiveRequest<T> {
    /// Receives a message into parts, in order. A message that is longer ends the queue pair.
    pub fn new(into: Vec<Local>, context: T) -> Self {
        Self { parts: into, context }
    }

    /// Gives its context back.
    pub fn into_context(self) -> T {
        self.context
    }
}

impl<T> Signal for ReceiveRequest<T> {
    fn is_signalled(&self) -> bool {
        true
    }
}

/// What a completed request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Done {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A message sent.
    Send,
    /// A window bound.
    Bind,
    /// A window invalidated.
    Invalidate,
    /// A message received.
    Receive,
}

/// How a request ended. After any but [`Status::Success`] the queue pair is in ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It did what it was to do.
    Success,
    /// Never carried out, or of unknown fate: the queue pair was, or went, into ERR, or was destroyed.
    Flushed,
    /// A local buffer is too short or too long.
    LocalLength,
    /// The request contradicts the queue pair.
    LocalOperation,
    /// A local part is not registered for what the request does.
    LocalProtection,
    /// A window could not be bound or invalidated.
    WindowBind,
    /// The peer's answer makes no sense.
    BadResponse,
    /// The peer wrote where this side does not allow it.
    LocalAccess,
    /// The peer cannot make sense of the request: too long for its buffer, or not allowed on its queue pair.
    RemoteInvalidRequest,
    /// The peer does not allow the access: wrong key, out of bounds, lacking rights. Its queue pair is in ERR too.
    RemoteAccess,
    /// The peer could not carry it out.
    RemoteOperation,
    /// The peer did not answer in time, however often asked.
    RetryExceeded,
    /// The peer had no receive request, however often tried.
    NotReadyExceeded,
    /// The device failed.
    Fatal,
    /// Something that this program does not know.
    Unknown(u32),
}

impl From<u32> for Status {
    fn from(number: u32) -> Self {
        match number {
            wc::IBV_WC_SUCCESS => Self::Success,
            wc::IBV_WC_WR_FLUSH_ERR => Self::Flushed,
            wc::IBV_WC_LOC_LEN_ERR => Self::LocalLength,
            wc::IBV_WC_LOC_QP_OP_ERR => Self::LocalOperation,
            wc::IBV_WC_LOC_PROT_ERR => Self::LocalProtection,
            wc::IBV_WC_MW_BIND_ERR => Self::WindowBind,
            wc::IBV_WC_BAD_RESP_ERR => Self::BadResponse,
            wc::IBV_WC_LOC_ACCESS_ERR => Self::LocalAccess,
            wc::IBV_WC_REM_INV_REQ_ERR => Self::RemoteInvalidRequest,
            wc::IBV_WC_REM_ACCESS_ERR => Self::RemoteAccess,
            wc::IBV_WC_REM_OP_ERR => Self::RemoteOperation,
            wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RESP_TIMEOUT_ERR => Self::RetryExceeded,
            wc::IBV_WC_RNR_RETRY_EXC_ERR => Self::NotReadyExceeded,
            wc::IBV_WC_FATAL_ERR => Self::Fatal,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::Flushed => "flushed",
            Self::LocalLength => "local length error",
            Self::LocalOperation => "local operation error",
            Self::LocalProtection => "local protection error",
            Self::WindowBind => "window not bound",
            Self::BadResponse => "bad response of the peer",
            Self::LocalAccess => "access by the peer not allowed here",
            Self::RemoteInvalidRequest => "request invalid to the peer",
            Self::RemoteAccess => "access not allowed by the peer",
            Self::RemoteOperation => "operation failed at the peer",
            Self::RetryExceeded => "no answer from the peer",
            Self::NotReadyExceeded => "the peer was never ready to receive",
            Self::Fatal => "device failed",
            Self::Unknown(number) => return write!(f, "unknown status {number}"),
        })
    }
}

/// A completed request. Its buffers are nobody's but the receiver's now.
#[derive(Debug)]
pub struct Completion<T> {
    /// What its owner gave along.
    pub context: T,
    /// What it was.
    pub done: Done,
    /// How it ended.
    pub status: Status,
    /// Bytes received or read; 0 for others and after a failure.
    pub len_bytes: u32,
    /// The device's own number for a failure.
    pub vendor_error: u32,
    /// The parts that the request named.
    pub parts: Vec<Local>,
    /// Number of the queue pair.
    pub queue_pair: u32,
}

/// Why requests were not posted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostFailure {
    /// The queue has no room: wait for a completion and post again.
    #[error("the queue of {depth} requests is full")]
    Backpressure {
        /// Requests that it has room for.
        depth: u32,
    },
    /// The queue pair is not connected yet.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// More parts than the queue takes in one request.
    #[error("a request of {parts} parts, beyond {max}")]
    TooManyParts {
        /// Parts of the request.
        parts: usize,
        /// The most that there may be.
        max: u32,
    },
    /// Longer than the port takes in one request.
    #[error("a request of {len_bytes} bytes, beyond {max_bytes}")]
    TooLong {
        /// Length of the request.
        len_bytes: u64,
        /// The longest that there may be.
        max_bytes: u64,
    },
    /// A part, or a window, of another protection domain.
    #[error("a part of the request belongs to another protection domain")]
    OtherDomain,
    /// The window is bound already: invalidate it first; or it is not bound, and cannot be invalidated.
    #[error("the window is {}bound", if *bound { "already " } else { "not " })]
    Window {
        /// Whether it is bound.
        bound: bool,
    },
    /// The device refused.
    #[error("the device takes no request: {source}")]
    Device {
        /// What the system said.
        source: io::Error,
    },
}

/// Requests that were not posted: the first that could not be, and all behind it. Those before it are posted. Of requests
/// of windows the context comes back alone.
#[derive(Debug, thiserror::Error)]
#[error("{} requests not posted: {failure}", rejected.len())]
pub struct PostError<R: fmt::Debug> {
    /// Why.
    #[source]
    pub failure: PostFailure,
    /// The requests, in order.
    pub rejected: Vec<R>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_some_status() {
        for number in (0..64).chain([u32::MAX]) {
            let status = Status::from(number);
            assert!(!status.to_string().is_empty());
            assert_eq!(status == Status::Success, number == 0);
        }
        assert_eq!(Status::from(99), Status::Unknown(99));
    }
}

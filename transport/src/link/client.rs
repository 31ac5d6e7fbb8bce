//! The dialler's end of a control link.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ids::{ClusterId, PeerId, SessionId};
use crate::limits::{LINK_WRITE_TIMEOUT, MAX_LINK_CALLS, MAX_LINK_FRAME_BYTES};
use crate::link::auth::Authenticator;
use crate::link::endpoint::Endpoint;
use crate::link::frame::{Frame, FrameReader, FrameWriter, Kind};
use crate::link::handshake;
use crate::link::hello::{Channel, Identity, LinkError, Role};
use crate::stream::Stream;

/// The acceptor at the other end, as proven by the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its cluster: ours, unless we dialled as of [`ClusterId::ANY`].
    pub cluster: ClusterId,
    /// Its identity.
    pub peer: PeerId,
    /// Its incarnation.
    pub incarnation: u64,
    /// The session: ours.
    pub session: SessionId,
    /// What it is.
    pub role: Role,
    /// Its feature bits.
    pub features: u64,
    /// Its opaque context.
    pub context: [u8; 32],
}

/// An authenticated control link: calls go out in any number, answers come back in any order. Dropping the last
/// reference closes it.
pub struct Link {
    remote: Remote,
    calls: Arc<Calls>,
    outgoing: mpsc::Sender<Frame>,
    slots: Semaphore,
}

impl Link {
    /// Connects and shakes hands. Tasks of the link run on the runtime this is called on.
    ///
    /// # Errors
    /// Each way to fail by its name; [`LinkError::WrongPeer`] if `expect` is given and another peer answers.
    pub async fn dial(
        endpoint: &Endpoint,
        identity: &Identity,
        auth: &dyn Authenticator,
        expect: Option<PeerId>,
        deadline: Instant,
    ) -> Result<Arc<Self>, LinkError> {
        Self::dial_for(Channel::Control, endpoint, identity, auth, expect, deadline).await
    }

    /// The same for calls of another kind.
    pub(crate) async fn dial_for(
        channel: Channel,
        endpoint: &Endpoint,
        identity: &Identity,
        auth: &dyn Authenticator,
        expect: Option<PeerId>,
        deadline: Instant,
    ) -> Result<Arc<Self>, LinkError> {
        let (stream, remote) = handshake::dial(endpoint, identity, channel, auth, expect, deadline).await?;
        let stream = Arc::new(stream);
        let calls = Arc::new(Calls::new());
        let (outgoing, frames) = mpsc::channel(MAX_LINK_CALLS);
        tokio::spawn(read(Arc::clone(&stream), Arc::clone(&calls)));
        tokio::spawn(write(stream, Arc::clone(&calls), frames));
        Ok(Arc::new(Self {
            remote,
            calls,
            outgoing,
            slots: Semaphore::new(MAX_LINK_CALLS),
        }))
    }

    /// Sends a request and waits for its answer. The peer is told how much time is left. Beyond [`MAX_LINK_CALLS`]
    /// calls under way it waits its turn, inside the deadline.
    ///
    /// # Errors
    /// [`LinkError::Deadline`], [`LinkError::Closed`], [`LinkError::TooLarge`]; [`LinkError::Protocol`] if the peer
    /// could not put its answer together.
    pub async fn call(&self, request: Bytes, deadline: Instant) -> Result<Bytes, LinkError> {
        if request.len() > MAX_LINK_FRAME_BYTES as usize {
            return Err(LinkError::TooLarge {
                len_bytes: request.len() as u64,
                limit_bytes: u64::from(MAX_LINK_FRAME_BYTES),
            });
        }
        let calling = async {
            let _slot = self.slots.acquire().await.map_err(|_| self.calls.closed_error())?;
            let (waiting, answer) = Calls::register(&self.calls)?;
            let frame = Frame {
                kind: Kind::Request,
                request: waiting.request,
                deadline_ms: left_ms(deadline),
                payload: request,
            };
            self.outgoing.send(frame).await.map_err(|_| self.calls.closed_error())?;
            answer.await.map_err(|_| self.calls.closed_error())?
        };
        timeout_at(deadline, calling)
            .await
            .map_err(|_| LinkError::Deadline { during: "a call" })?
    }

    /// Who is at the other end.
    #[must_use]
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// True if calls fail at once: it is closed, or the peer has said that it is about to.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.calls.refusing().is_some()
    }

    /// Whether nothing has come over it since then. A link over which calls were sent and nothing came back may be cut
    /// though neither end was told: it is worth closing.
    #[must_use]
    pub fn is_silent_since(&self, since: Instant) -> bool {
        *self.calls.heard_at.lock() < since
    }

    /// Waits until the link is closed, and says why.
    pub async fn closed(&self) -> String {
        let mut closed = self.calls.closed.subscribe();
        let reason = closed.wait_for(Option::is_some).await;
        reason.ok().and_then(|reason| reason.clone()).unwrap_or_default()
    }

    /// Closes it: calls under way get [`LinkError::Closed`]. Does not wait.
    pub fn close(&self) {
        self.calls.close("closed by this side".to_owned());
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("remote", &self.remote)
            .field("closed", &self.calls.refusing())
            .finish_non_exhaustive()
    }
}

/// Time until `deadline` in whole milliseconds, rounded up, as far as the field goes.
fn left_ms(deadline: Instant) -> u32 {
    let left = deadline.saturating_duration_since(Instant::now());
    u32::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(u32::MAX)
}

type Answer = Result<Bytes, LinkError>;

/// Calls that wait for an answer, and whether the link still lives.
#[derive(Debug)]
struct Calls {
    state: Mutex<CallsState>,
    /// The reason, once closed.
    closed: watch::Sender<Option<String>>,
    /// When a frame came last.
    heard_at: Mutex<Instant>,
}

#[derive(Debug, Default)]
struct CallsState {
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    last_request: u64,
    /// What the peer said when it announced its end.
    goodbye: Option<String>,
}

impl Calls {
    fn new() -> Self {
        Self {
            state: Mutex::default(),
            closed: watch::Sender::new(None),
            heard_at: Mutex::new(Instant::now()),
        }
    }

    /// Why no call can be made any more, if so.
    fn refusing(&self) -> Option<String> {
        self.closed
            .borrow()
            .clone()
            .or_else(|| self.state.lock().goodbye.clone())
    }

    fn closed_error(&self) -> LinkError {
        LinkError::Closed {
            reason: self.refusing().unwrap_or_else(|| "it is closing".to_owned()),
        }
    }

    fn register(calls: &Arc<Self>) -> Result<(Waiting, oneshot::Receiver<Answer>), LinkError> {
        let mut state = calls.state.lock();
        // Looked up under the lock under which `close` empties the table: no call can slip in behind it.
        if calls.closed.borrow().is_some() || state.goodbye.is_some() {
            drop(state);
            return Err(calls.closed_error());
        }
        state.last_request += 1;
        let request = state.last_request;
        let (sender, receiver) = oneshot::channel();
        state.waiting.insert(request, sender);
        Ok((
            Waiting {
                calls: Arc::clone(calls),
                request,
            },
            receiver,
        ))
    }

    fn answer(&self, request: u64, answer: Answer) {
        let waiting = self.state.lock().waiting.remove(&request);
        // No one waits any more if the call's deadline has passed or its future was dropped.
        if let Some(waiting) = waiting {
            _ = waiting.send(answer);
        }
    }

    fn close(&self, reason: String) {
        let first = self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(reason);
            first
        });
        if first {
            self.state.lock().waiting.clear();
        }
    }
}

/// Takes the call out of the table when its future ends, however it ends.
struct Waiting {
    calls: Arc<Calls>,
    request: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.calls.state.lock().waiting.remove(&self.request);
    }
}

/// Closes the link when its reader ends in any other way than it should, such as the end of its runtime.
struct EndOfLink<'a> {
    calls: &'a Calls,
}

impl Drop for EndOfLink<'_> {
    fn drop(&mut self) {
        self.calls.close("the link's task has ended".to_owned());
    }
}

async fn read(stream: Arc<Stream>, calls: Arc<Calls>) {
    let _end = EndOfLink { calls: &calls };
    let mut closed = calls.closed.subscribe();
    let mut reader = FrameReader::default();
    loop {
        let frame = tokio::select! {
            _ = closed.wait_for(Option::is_some) => break,
            frame = reader.next(&stream) => frame,
        };
        *calls.heard_at.lock() = Instant::now();
        match frame {
            Ok(Frame {
                kind: Kind::Answer,
                request,
                payload,
                ..
            }) => calls.answer(request, Ok(payload)),
            Ok(Frame {
                kind: Kind::Failed,
                request,
                payload,
                ..
            }) => {
                let reason = String::from_utf8_lossy(&payload).into_owned();
                calls.answer(request, Err(LinkError::Protocol { reason }));
            }
            Ok(Frame {
                kind: Kind::Goodbye,
                payload,
                ..
            }) => {
                calls.state.lock().goodbye = Some(String::from_utf8_lossy(&payload).into_owned());
            }
            Ok(Frame {
                kind: Kind::Request, ..
            }) => {
                calls.close("the acceptor sent a request".to_owned());
                break;
            }
            Err(error) => {
                let goodbye = calls.state.lock().goodbye.clone();
                calls.close(goodbye.unwrap_or_else(|| error.to_string()));
                break;
            }
        }
    }
    // Wakes a writer that waits for room.
    _ = stream.shutdown(Shutdown::Both);
}

async fn write(stream: Arc<Stream>, calls: Arc<Calls>, mut outgoing: mpsc::Receiver<Frame>) {
    let mut closed = calls.closed.subscribe();
    let mut writer = FrameWriter::default();
    let mut frames = Vec::new();
    loop {
        let received = tokio::select! {
            _ = closed.wait_for(Option::is_some) => break,
            received = outgoing.recv_many(&mut frames, MAX_LINK_CALLS) => received,
        };
        if received == 0 {
            break;
        }
        if let Err(error) = write_in_time(LINK_WRITE_TIMEOUT, &mut writer, &stream, &mut frames).await {
            calls.close(format!("cannot send: {error}"));
            break;
        }
    }
}

/// Writes frames, or fails when the peer takes too long to take them.
pub(crate) async fn write_in_time(
    limit: Duration,
    writer: &mut FrameWriter,
    stream: &Stream,
    frames: &mut Vec<Frame>,
) -> io::Result<()> {
    timeout(limit, writer.write(stream, frames))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

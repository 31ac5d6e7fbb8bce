//! The acceptor's end of a control link.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::ids::{PeerId, SessionId};
use crate::limits::{LINK_WRITE_TIMEOUT, MAX_LINK_CALLS, MAX_LINK_FRAME_BYTES, SHUTDOWN_GRACE};
use crate::link::client::write_in_time;
use crate::link::endpoint::Endpoint;
use crate::link::frame::{Frame, FrameReader, FrameWriter, Kind};
use crate::link::hello::{Hello, LinkError, Refusal, Role};
use crate::stream::Stream;
use crate::task::OwnedTask;

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The acceptor's policy: asked after the dialler has proven who it is, for control and data channels alike.
pub trait Admission: Send + Sync {
    /// Lets a peer in or not.
    ///
    /// # Errors
    /// The refusal reaches the dialler as [`LinkError::Refused`](crate::link::LinkError::Refused).
    fn admit(&self, hello: &Hello) -> Result<(), Refusal>;

    /// A handshake failed, for whatever reason; `admit`'s own refusals included. For counting and logging.
    fn handshake_failed(&self, from: &Endpoint, error: &LinkError) {
        tracing::info!(%from, %error, "handshake failed");
    }
}

/// Lets in whoever has proven itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdmitAll;

impl Admission for AdmitAll {
    fn admit(&self, _hello: &Hello) -> Result<(), Refusal> {
        Ok(())
    }
}

/// One accepted control link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The dialler's identity.
    pub peer: PeerId,
    /// The session it named.
    pub session: SessionId,
    /// What it is.
    pub role: Role,
    /// Its incarnation.
    pub incarnation: u64,
    /// Its feature bits.
    pub features: u64,
    /// Its opaque context.
    pub context: [u8; 32],
    /// The scope of the token it came with; `None` if it holds the secret itself (or none is asked for).
    pub scope: Option<u8>,
    /// Where it comes from; for a unix socket, our own path.
    pub endpoint: Endpoint,
}

/// Answers calls.
pub trait Service: Send + Sync {
    /// Answers one call. The future is dropped at `deadline`, the caller's. It runs on after the link has closed.
    fn call(&self, session: Arc<Session>, deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes>;

    /// A control link is up. The same `Arc` comes with each of its calls and with its end.
    fn session_opened(&self, _session: &Arc<Session>) {}

    /// A control link has ended. Calls of it may still be running.
    fn session_closed(&self, _session: &Arc<Session>) {}
}

/// Serves one control link until it ends, or `shutdown` says so.
pub(crate) async fn serve_session(
    stream: Stream,
    session: Arc<Session>,
    service: Arc<dyn Service>,
    mut shutdown: watch::Receiver<bool>,
) {
    let stream = Arc::new(stream);
    let (outgoing, frames) = mpsc::channel(MAX_LINK_CALLS);
    let mut writer = OwnedTask::spawn(write(Arc::clone(&stream), frames));
    service.session_opened(&session);
    let calls = Calls {
        session,
        service,
        outgoing,
        slots: Arc::new(Semaphore::new(MAX_LINK_CALLS)),
    };
    let shutting_down = tokio::select! {
        _ = shutdown.wait_for(|stop| *stop) => true,
        reason = calls.take(&stream) => {
            tracing::debug!(peer = %calls.session.peer, reason, "link ended");
            false
        }
        _ = writer.ended() => false,
    };
    calls.service.session_closed(&calls.session);
    if shutting_down {
        calls.wind_up(&stream, writer).await;
    }
}

/// True once a shutdown was asked for, or nobody is left to ask for one.
pub(crate) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    _ = shutdown.wait_for(|stop| *stop).await;
}

struct Calls {
    session: Arc<Session>,
    service: Arc<dyn Service>,
    outgoing: mpsc::Sender<Frame>,
    /// One permit per call under way, held until its answer is in the writer's queue.
    slots: Arc<Semaphore>,
}

impl Calls {
    /// Takes calls until the link fails; says why.
    async fn take(&self, stream: &Stream) -> String {
        let mut reader = FrameReader::default();
        loop {
            let frame = match reader.next(stream).await {
                Ok(frame) => frame,
                Err(error) => return error.to_string(),
            };
            if frame.kind != Kind::Request {
                return format!("the dialler sent a frame of kind {:?}", frame.kind);
            }
            // The semaphore is never closed. While all slots are taken, the peer's next calls wait in its socket.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else {
                return String::new();
            };
            self.answer(frame, slot);
        }
    }

    fn answer(&self, frame: Frame, slot: OwnedSemaphorePermit) {
        let deadline = Instant::now() + Duration::from_millis(u64::from(frame.deadline_ms));
        let called = self.service.call(Arc::clone(&self.session), deadline, frame.payload);
        let outgoing = self.outgoing.clone();
        tokio::spawn(async move {
            // Nobody waits for an answer after the deadline: none is sent.
            if let Ok(outcome) = timeout_at(deadline, AssertUnwindSafe(called).catch_unwind()).await {
                let (kind, payload) = match outcome {
                    Ok(answer) if answer.len() <= MAX_LINK_FRAME_BYTES as usize => (Kind::Answer, answer),
                    Ok(_) => (
                        Kind::Failed,
                        Bytes::from_static(b"the answer is longer than a frame may be"),
                    ),
                    Err(_) => (Kind::Failed, Bytes::from_static(b"the service failed")),
                };
                // Fails if the link has ended: then nobody waits.
                _ = outgoing
                    .send(Frame {
                        kind,
                        request: frame.request,
                        deadline_ms: 0,
                        payload,
                    })
                    .await;
            }
            drop(slot);
        });
    }

    /// Tells the peer, lets calls under way finish for a short time, and closes.
    async fn wind_up(self, stream: &Stream, mut writer: OwnedTask) {
        let winding_up = async {
            _ = self.outgoing.send(Frame::goodbye("the peer is shutting down")).await;
            _ = self
                .slots
                .acquire_many(u32::try_from(MAX_LINK_CALLS).unwrap_or(u32::MAX))
                .await;
            drop(self.outgoing);
            writer.ended().await;
            stream.finish().await;
        };
        _ = timeout(SHUTDOWN_GRACE, winding_up).await;
    }
}

async fn write(stream: Arc<Stream>, mut outgoing: mpsc::Receiver<Frame>) {
    let mut writer = FrameWriter::default();
    let mut frames = Vec::new();
    while outgoing.recv_many(&mut frames, MAX_LINK_CALLS).await > 0 {
        if let Err(error) = write_in_time(LINK_WRITE_TIMEOUT, &mut writer, &stream, &mut frames).await {
            tracing::debug!(%error, "cannot answer on a link");
            return;
        }
    }
}

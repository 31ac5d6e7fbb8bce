//! Connections of the HTTP front: how many there are, how long they may be silent, and where on them a request ends.
//!
//! The HTTP library is given a stream that
//! * ends when no request is under way for [`HTTP_IDLE_MS_MAX`], which also bounds the time that a head may take to
//!   arrive,
//! * ends when the peer takes no byte of an answer for [`HTTP_STALL_MS_MAX`], or has not taken all of it by the answer's
//!   deadline,
//! * lets a peer that has sent its whole request close its sending side and still get the answer,
//! * knows whether more bytes have come than the request announced. Requests are not pipelined by any client that puts
//!   objects, so such bytes are the rest of a body that is longer than its `Content-Length`,
//! * refuses heads that are too long, and says in words what the library refuses with a status alone.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::progress::Progress;
use super::refusal::Refusal;
use crate::limits::{HTTP_CONNECTIONS_MAX, HTTP_DISCARD_MS_MAX, HTTP_IDLE_MS_MAX, HTTP_STALL_MS_MAX};

/// How long accepting rests when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts a bounded number of connections.
#[derive(Debug)]
pub(super) struct BoundedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl BoundedListener {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX)),
        }
    }
}

impl axum::serve::Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.places).acquire_owned().await else {
                std::future::pending().await
            };
            match self.listener.accept().await {
                Ok((stream, peer)) => {
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, %error, "TCP_NODELAY was refused");
                    }
                    return (Connection::new(stream, place), peer);
                }
                Err(error) => {
                    tracing::warn!(%error, "an HTTP connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// What handlers may ask of the connection that their request came on.
#[derive(Debug, Clone)]
pub(super) struct ConnectionHandle {
    stream: Arc<TcpStream>,
    progress: Arc<Mutex<Progress>>,
}

/// Something is under way on a connection until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Mutex<Progress>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().ended();
    }
}

impl ConnectionHandle {
    /// A handler begins with a request whose body has so many bytes, if that is known.
    pub(super) fn begin(&self, body_bytes: Option<u64>) -> UnderWay {
        self.progress.lock().begin(body_bytes);
        UnderWay(Arc::clone(&self.progress))
    }

    /// The handler has made its answer, at least its head. Unless the answer has a deadline already, this is it.
    pub(super) fn handled(&self, answer_by: Instant) {
        self.progress.lock().handled(answer_by);
    }

    /// The body of the answer is made while it is sent, until the returned value is dropped. It must have been taken by
    /// a deadline. Its place is given back when its last byte is on its way.
    pub(super) fn streaming(&self, answer_by: Instant, place: OwnedSemaphorePermit) -> UnderWay {
        self.progress.lock().streaming(answer_by, place);
        UnderWay(Arc::clone(&self.progress))
    }

    /// Whether bytes have come that are not part of the request under way, of which all bytes have been read.
    pub(super) fn has_surplus(&self) -> bool {
        let Some(has_surplus) = self.progress.lock().has_surplus() else {
            return false;
        };
        let waiting = || {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            recv(self.stream.as_raw_fd(), &mut [0], flags).is_ok_and(|bytes| bytes > 0)
        };
        has_surplus || waiting()
    }
}

impl Connected<IncomingStream<'_, BoundedListener>> for ConnectionHandle {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        let connection = stream.io();
        Self {
            stream: Arc::clone(&connection.stream),
            progress: Arc::clone(&connection.progress),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<TcpStream>,
    progress: Arc<Mutex<Progress>>,
    idle: Pin<Box<Sleep>>,
    stall: Pin<Box<Sleep>>,
    /// Since when a write waits for the peer.
    stalled_since: Option<Instant>,
    /// What is said before the connection ends.
    refusal: Option<Refusal>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream: Arc::new(stream),
            progress: Arc::new(Mutex::new(Progress::new())),
            idle: Box::pin(sleep_until(Instant::now())),
            stall: Box::pin(sleep_until(Instant::now())),
            stalled_since: None,
            refusal: None,
            _place: place,
        }
    }

    /// The library waits for bytes: fails if it has waited too long for a request.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(quiet_since) = self.progress.lock().quiet_since() else {
            return Poll::Pending;
        };
        let deadline = quiet_since + Duration::from_millis(HTTP_IDLE_MS_MAX);
        self.idle.as_mut().reset(deadline);
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")))
    }

    /// The library waits for the peer to take bytes: fails if that takes too long.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let stalled_since = *self.stalled_since.get_or_insert_with(Instant::now);
        let deadline = stalled_since + Duration::from_millis(HTTP_STALL_MS_MAX);
        let answer_by = self.progress.lock().answer_by();
        self.stall
            .as_mut()
            .reset(answer_by.map_or(deadline, |answer_by| answer_by.min(deadline)));
        ready!(self.stall.as_mut().poll(context));
        Poll::Ready(self.break_off("the peer takes no bytes"))
    }

    /// What has not been sent yet is not kept for a peer that does not take it.
    fn break_off(&self, reason: &str) -> io::Error {
        if let Err(error) = self.stream.set_zero_linger() {
            tracing::debug!(%error, "a connection may outlive its end");
        }
        io::Error::new(io::ErrorKind::TimedOut, reason)
    }

    fn poll_write_with(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let answer_by = self.progress.lock().answer_by();
        if answer_by.is_some_and(|answer_by| answer_by <= Instant::now()) {
            return Poll::Ready(Err(self.break_off("the answer's deadline has passed")));
        }
        loop {
            match self.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_stalled(context).map(Err),
            }
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.stalled_since = None;
                    return Poll::Ready(written);
                }
            }
        }
    }

    /// The library says something: whether it refuses a head, which is then refused in better words.
    fn is_refused(&mut self, library_says: &[u8]) -> bool {
        if self.refusal.is_none() && self.progress.lock().may_be_refused() {
            self.refusal = Refusal::in_place_of(library_says);
        }
        self.refusal.is_some()
    }

    /// Says why a head is refused, ends the sending side, and throws away for a while what still comes, so that its
    /// sender gets to read the answer.
    fn poll_refuse(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(unsent) = self.refusal.as_ref().map(|refusal| refusal.unsent.clone())
            && !unsent.is_empty()
        {
            let sent = ready!(self.poll_write_with(context, |stream| stream.try_write(&unsent)))?;
            self.refusal = self.refusal.take().map(|refusal| refusal.after_sending(sent));
        }
        let Some(refusal) = &mut self.refusal else {
            return Poll::Ready(Ok(()));
        };
        if refusal.discard_until.is_none() {
            shutdown(self.stream.as_raw_fd(), Shutdown::Write)?;
        }
        let patience = Duration::from_millis(HTTP_DISCARD_MS_MAX);
        let until = *refusal.discard_until.get_or_insert_with(|| Instant::now() + patience);
        self.idle.as_mut().reset(until);
        let mut discarded = [0; 4096];
        while self.idle.as_mut().poll(context).is_pending() {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(&mut discarded) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                Ok(_) | Err(_) => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

fn bad_head() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the head of a request was refused")
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.refusal.is_some() {
                ready!(self.poll_refuse(context))?;
                return Poll::Ready(Err(bad_head()));
            }
            match self.stream.poll_read_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_idle(context),
            }
            let filled = buffer.filled().len();
            match self.stream.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(0) => {
                    if self.progress.lock().end_concerns(context.waker()) {
                        return Poll::Ready(Ok(()));
                    }
                    return self.poll_idle(context);
                }
                Ok(_) => {
                    let mut progress = self.progress.lock();
                    progress.received(&buffer.filled()[filled..]);
                    let Some(fault) = progress.fault() else {
                        return Poll::Ready(Ok(()));
                    };
                    // Words would be taken for a part of the answer under way.
                    if progress.quiet_since().is_none() {
                        return Poll::Ready(Err(bad_head()));
                    }
                    drop(progress);
                    buffer.set_filled(filled);
                    self.refusal = Some(Refusal::of(fault));
                }
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_refused(bytes) {
            return self.poll_refuse(context).map_ok(|()| bytes.len());
        }
        self.poll_write_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_refused(slices.first().map_or(&[], |slice| slice)) {
            let said_bytes = slices.iter().map(|slice| slice.len()).sum();
            return self.poll_refuse(context).map_ok(|()| said_bytes);
        }
        self.poll_write_with(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.progress.lock().flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(self.stream.as_raw_fd(), Shutdown::Write) {
            Ok(()) | Err(nix::errno::Errno::ENOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

//! Connections of the HTTP front: how many there are, how long they may be silent, and where on them a request ends.
//!
//! The HTTP library is given a stream that
//! * ends when no request is under way for [`HTTP_IDLE_MS_MAX`], which also bounds the time that a head may take to
//!   arrive,
//! * ends when the peer takes no byte of an answer for [`HTTP_STALL_MS_MAX`],
//! * lets a peer that has sent its whole request close its sending side and still get the answer,
//! * knows whether more bytes have come than the request announced. Requests are not pipelined by any client that puts
//!   objects, so such bytes are the rest of a body that is longer than its `Content-Length`.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::limits::{HTTP_CONNECTIONS_MAX, HTTP_IDLE_MS_MAX, HTTP_STALL_MS_MAX};

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

/// Where on the stream of received bytes the library is, as far as that can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// A head begins at byte `from`; `line_ends` of the two that end it have come.
    Expected { from: u64, line_ends: LineEnds },
    /// A head ended before this byte.
    Ended { at: u64 },
    /// The bytes of two requests came together, or a body has no announced length.
    Unknown,
}

/// How much of the empty line that ends a head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnds {
    None,
    One,
    OneAndReturn,
}

impl Head {
    const fn expected(from: u64) -> Self {
        Self::Expected {
            from,
            line_ends: LineEnds::None,
        }
    }

    /// Takes `bytes` into account, the first of which is byte `at` of the stream.
    fn after(self, at: u64, bytes: &[u8]) -> Self {
        let Self::Expected { from, mut line_ends } = self else {
            return self;
        };
        // Bytes of the body before it may be many: they are not looked at.
        let skipped = usize::try_from(from.saturating_sub(at)).unwrap_or(usize::MAX);
        for (byte, at) in bytes.get(skipped..).unwrap_or_default().iter().zip(at.max(from)..) {
            line_ends = match (line_ends, byte) {
                (LineEnds::None, b'\n') => LineEnds::One,
                (LineEnds::One, b'\r') => LineEnds::OneAndReturn,
                (LineEnds::One | LineEnds::OneAndReturn, b'\n') => return Self::Ended { at: at + 1 },
                _ => LineEnds::None,
            };
        }
        Self::Expected { from, line_ends }
    }
}

#[derive(Debug)]
struct Progress {
    /// Handlers at work, and bodies of answers that are still made.
    under_way: u32,
    /// A handler has finished and its answer has not been flushed yet.
    answering: bool,
    /// Since when nothing was under way.
    quiet_since: Instant,
    received_bytes: u64,
    head: Head,
    /// Where the request under way ends, if that is known.
    request_end: Option<u64>,
    /// Waits to hear that the peer has closed its sending side, which it has.
    end_awaited_by: Option<Waker>,
}

impl Progress {
    fn new() -> Self {
        Self {
            under_way: 0,
            answering: false,
            quiet_since: Instant::now(),
            received_bytes: 0,
            head: Head::expected(0),
            request_end: None,
            end_awaited_by: None,
        }
    }

    fn is_quiet(&self) -> bool {
        self.under_way == 0 && !self.answering
    }

    fn received(&mut self, bytes: &[u8]) {
        self.head = self.head.after(self.received_bytes, bytes);
        self.received_bytes += bytes.len() as u64;
    }

    fn begin(&mut self, body_bytes: Option<u64>) {
        self.under_way += 1;
        self.request_end = match (self.head, body_bytes) {
            (Head::Ended { at }, Some(body_bytes)) => at.checked_add(body_bytes),
            _ => None,
        };
        if !self.needs_no_more() {
            self.tell_end();
        }
    }

    /// Whether the peer may have closed its sending side without that being anybody's concern yet: the request has come
    /// as a whole and is not answered, or its head has come and how long it is will be known in a moment.
    fn needs_no_more(&self) -> bool {
        match self.is_quiet() {
            true => matches!(self.head, Head::Ended { .. }),
            false => self.request_end.is_some_and(|end| self.received_bytes >= end),
        }
    }

    fn tell_end(&mut self) {
        if let Some(waker) = self.end_awaited_by.take() {
            waker.wake();
        }
    }

    fn handled(&mut self) {
        self.answering = true;
        self.head = match self.request_end {
            Some(end) if self.received_bytes <= end => Head::expected(end),
            _ => Head::Unknown,
        };
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
        let mut progress = self.0.lock();
        progress.under_way -= 1;
        progress.quiet_since = Instant::now();
    }
}

impl ConnectionHandle {
    /// A handler begins with a request whose body has so many bytes, if that is known.
    pub(super) fn begin(&self, body_bytes: Option<u64>) -> UnderWay {
        self.progress.lock().begin(body_bytes);
        UnderWay(Arc::clone(&self.progress))
    }

    /// The handler has made its answer, at least its head.
    pub(super) fn handled(&self) {
        self.progress.lock().handled();
    }

    /// The body of the answer is made while it is sent, until the returned value is dropped.
    pub(super) fn streaming(&self) -> UnderWay {
        self.progress.lock().under_way += 1;
        UnderWay(Arc::clone(&self.progress))
    }

    /// Whether bytes have come that are not part of the request under way, of which all bytes have been read.
    pub(super) fn has_surplus(&self) -> bool {
        let Some(end) = self.progress.lock().request_end else {
            return false;
        };
        let waiting = || {
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            recv(self.stream.as_raw_fd(), &mut [0], flags).is_ok_and(|bytes| bytes > 0)
        };
        self.progress.lock().received_bytes > end || waiting()
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
    /// A write waits for the peer.
    is_stalled: bool,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    fn new(stream: TcpStream, place: OwnedSemaphorePermit) -> Self {
        Self {
            stream: Arc::new(stream),
            progress: Arc::new(Mutex::new(Progress::new())),
            idle: Box::pin(sleep_until(Instant::now())),
            stall: Box::pin(sleep_until(Instant::now())),
            is_stalled: false,
            _place: place,
        }
    }

    /// The library waits for bytes: fails if it has waited too long for a request.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let deadline = {
            let progress = self.progress.lock();
            if !progress.is_quiet() {
                return Poll::Pending;
            }
            progress.quiet_since + Duration::from_millis(HTTP_IDLE_MS_MAX)
        };
        self.idle.as_mut().reset(deadline);
        ready!(self.idle.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "no request came in time")))
    }

    /// The library waits for the peer to take bytes: fails if that takes too long.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if !self.is_stalled {
            self.is_stalled = true;
            let deadline = Instant::now() + Duration::from_millis(HTTP_STALL_MS_MAX);
            self.stall.as_mut().reset(deadline);
        }
        ready!(self.stall.as_mut().poll(context));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the peer takes no bytes"))
    }

    fn poll_write_with(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.stream.poll_write_ready(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return self.poll_stalled(context).map(Err),
            }
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    self.is_stalled = false;
                    return Poll::Ready(written);
                }
            }
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
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
                    let mut progress = self.progress.lock();
                    if !progress.needs_no_more() {
                        return Poll::Ready(Ok(()));
                    }
                    progress.end_awaited_by = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Ok(_) => {
                    self.progress.lock().received(&buffer.filled()[filled..]);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_with(context, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut progress = self.progress.lock();
        if progress.answering {
            progress.answering = false;
            progress.quiet_since = Instant::now();
        }
        if !progress.needs_no_more() {
            progress.tell_end();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match shutdown(self.stream.as_raw_fd(), Shutdown::Write) {
            Ok(()) | Err(nix::errno::Errno::ENOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_ends_with_an_empty_line_wherever_reads_cut_it() {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody\r\n\r\n";
        let end = request.len() as u64 - 8;
        for cut in 0..request.len() {
            let (first, second) = request.split_at(cut);
            let head = Head::expected(100).after(100, first).after(100 + cut as u64, second);
            assert_eq!(head, Head::Ended { at: 100 + end }, "cut at {cut}");
        }
        assert_eq!(
            Head::expected(0).after(0, b"GET /\nHost: a\n\nbody"),
            Head::Ended { at: 15 }
        );
    }

    #[test]
    fn bytes_before_the_head_do_not_count() {
        let head = Head::expected(4).after(0, b"\r\n\r\nGET / HTTP/1.1\r\n");
        assert!(matches!(head, Head::Expected { from: 4, .. }), "{head:?}");
    }

    #[tokio::test]
    async fn a_peer_may_close_its_side_when_its_announced_bytes_have_come() {
        let mut progress = Progress::new();
        assert!(!progress.needs_no_more());
        progress.received(b"PUT / HTTP/1.1\r\n\r\n123");
        assert!(progress.needs_no_more(), "how long it is will be known in a moment");
        progress.begin(Some(5));
        assert!(!progress.needs_no_more());
        progress.received(b"45");
        assert!(progress.needs_no_more());
        progress.handled();
        progress.under_way -= 1;
        assert!(progress.needs_no_more(), "the answer is on its way");
        progress.answering = false;
        assert!(!progress.needs_no_more());
        progress.received(b"GET / HTTP/1.1\r\n\r\n");
        progress.begin(Some(0));
        assert_eq!(progress.request_end, Some(progress.received_bytes));
        assert!(progress.needs_no_more());
    }

    #[tokio::test]
    async fn after_requests_that_came_together_ends_are_not_known() {
        let mut progress = Progress::new();
        progress.received(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n");
        progress.begin(Some(0));
        progress.handled();
        assert_eq!(progress.head, Head::Unknown);
        progress.begin(Some(0));
        assert_eq!(progress.request_end, None);
        assert!(!progress.needs_no_more());
    }
}

//! What both ends of a lane share: reading frames, writing frames, and noticing that nothing moves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::coop::consume_budget;
use tokio::time::{Instant, sleep};

use crate::checksum::Crc64;
use crate::limits::LANE_SEND_BUFFER_BYTES;
use crate::memory::Memory;
use crate::stream::Stream;
use crate::tcp::wire::{HEADER_BYTES, Header, LaneError, check};

/// Bytes read ahead when a header is due: enough for many small frames in one call. What belongs to a bulk payload is
/// copied on.
const READ_AHEAD_BYTES: usize = 8 << 10;
/// Largest piece received at once. Its checksum is computed while it is in the second-level cache. In the middle of a bulk
/// payload the receiver is not woken for less, unless nothing else comes for a while.
const RECEIVE_BYTES: u32 = 256 << 10;
/// Payloads up to this size are copied beside their headers, so that several leave in one call: for them a call costs
/// more than the copy.
const COALESCE_BYTES: u64 = 64 << 10;
/// Bytes that may wait beside each other before they are sent.
const COALESCED_BYTES: usize = 256 << 10;
/// Buffer of a receiving side.
const INBOX_BYTES: usize = 64 << 10;

/// A range of memory that may be closed at any time: the bytes of one frame.
pub(super) trait Span: Sync {
    /// Runs one short touch with the memory, the place of `offset_bytes` in it, and the number of bytes of the span
    /// that lie there in one piece. `None` once the span is closed: then its memory is not touched any more.
    fn touch<T>(&self, offset_bytes: u64, touch: impl FnOnce(&Memory, u64, u64) -> T) -> Option<T>;
}

/// Whether a lane moves bytes, and whether it should.
#[derive(Debug)]
pub(super) struct Progress {
    stream: Arc<Stream>,
    moves: AtomicU64,
    receiving: AtomicBool,
    sending: AtomicBool,
}

impl Progress {
    pub(super) fn new(stream: Arc<Stream>) -> Self {
        Self {
            stream,
            moves: AtomicU64::default(),
            receiving: AtomicBool::default(),
            sending: AtomicBool::default(),
        }
    }

    fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns once nothing has moved for `limit` although something was under way all the time: in the middle of a
    /// frame, or as far as `busy` knows.
    pub(super) async fn stalled(&self, limit: Duration, busy: impl Fn() -> bool) {
        let mut seen = self.moves.load(Ordering::Relaxed);
        let mut since = Instant::now();
        loop {
            sleep(limit / 4).await;
            let moves = self.moves.load(Ordering::Relaxed);
            let under_way = self.receiving.load(Ordering::Relaxed) || self.sending.load(Ordering::Relaxed) || busy();
            if moves != seen || !under_way {
                seen = moves;
                since = Instant::now();
            } else if since.elapsed() >= limit {
                return;
            } else {
                // However little may have come, it counts.
                mark(&self.stream, 1);
            }
        }
    }
}

/// A frame without bulk data, or the header of one with it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: Header,
    /// The payload, unless it is bulk: then it is still to be read.
    pub(super) small: Vec<u8>,
}

/// The receiving side of a lane.
#[derive(Debug)]
pub(super) struct Inbox {
    stream: Arc<Stream>,
    progress: Arc<Progress>,
    buffer: Box<[u8]>,
    /// What of the buffer was read from the socket and is not used yet.
    start: usize,
    end: usize,
    /// True if the socket was told to wait for much.
    marked: bool,
}

impl Inbox {
    pub(super) fn new(stream: Arc<Stream>, progress: Arc<Progress>) -> Self {
        Self {
            stream,
            progress,
            buffer: vec![0; INBOX_BYTES].into(),
            start: 0,
            end: 0,
            marked: false,
        }
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The next frame; `None` if the peer has closed between two.
    pub(super) async fn frame(&mut self) -> Result<Option<Frame>, LaneError> {
        self.progress.receiving.store(false, Ordering::Relaxed);
        let bytes = loop {
            if let Some(bytes) = self.buffered().first_chunk::<HEADER_BYTES>() {
                break *bytes;
            }
            self.progress.receiving.store(self.start < self.end, Ordering::Relaxed);
            if self.fill(READ_AHEAD_BYTES).await? == 0 {
                return if self.buffered().is_empty() {
                    Ok(None)
                } else {
                    Err(LaneError::End)
                };
            }
        };
        self.start += HEADER_BYTES;
        self.progress.receiving.store(true, Ordering::Relaxed);
        let (header, expected) = Header::decode(&bytes)?;
        if header.kind.is_bulk() {
            return Ok(Some(Frame {
                header,
                small: Vec::new(),
            }));
        }
        let small = self.small(header.payload_bytes as usize).await?;
        if check(&bytes, &small) != expected {
            return Err(LaneError::Damaged);
        }
        Ok(Some(Frame { header, small }))
    }

    async fn small(&mut self, len: usize) -> Result<Vec<u8>, LaneError> {
        let mut small = Vec::with_capacity(len);
        while small.len() < len {
            if self.buffered().is_empty() && self.fill(INBOX_BYTES).await? == 0 {
                return Err(LaneError::End);
            }
            let piece = &self.buffer[self.start..self.end.min(self.start + len - small.len())];
            small.extend_from_slice(piece);
            self.start += piece.len();
        }
        Ok(small)
    }

    /// Reads once, at most `most` bytes, behind what is buffered.
    async fn fill(&mut self, most: usize) -> Result<usize, LaneError> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        loop {
            let room = self.buffer.len().min(self.end + most);
            match self.stream.try_read(&mut self.buffer[self.end..room]) {
                Ok(read_bytes) => {
                    self.end += read_bytes;
                    self.progress.moved();
                    return Ok(read_bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable(1).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until there is something to read; best this much, at least one byte.
    async fn readable(&mut self, wanted_bytes: u64) -> Result<(), LaneError> {
        let wanted_bytes = u32::try_from(wanted_bytes).unwrap_or(u32::MAX).min(RECEIVE_BYTES);
        if self.marked || wanted_bytes > 1 {
            mark(&self.stream, wanted_bytes);
            self.marked = wanted_bytes > 1;
        }
        Ok(self.stream.readable().await?)
    }

    /// Receives a bulk payload into `span`, adding it to `crc`. If the span is closed on the way, the rest is thrown
    /// away and the answer is false.
    pub(super) async fn land(&mut self, span: &impl Span, len_bytes: u64, crc: &mut Crc64) -> Result<bool, LaneError> {
        let mut landed = 0;
        while landed < len_bytes {
            let left = len_bytes - landed;
            let touched = if self.start < self.end {
                let buffered = self.buffered();
                span.touch(landed, |memory, at, room| {
                    let piece = &buffered[..buffered.len().min(as_len(left.min(room)))];
                    crc.update(piece);
                    memory
                        .copy_in(at, piece)
                        .map(|()| piece.len())
                        .map_err(io::Error::other)
                })
                .inspect(|piece| self.start += piece.as_ref().copied().unwrap_or_default())
            } else {
                span.touch(landed, |memory, at, room| {
                    receive(&self.stream, memory, at, left.min(room).min(RECEIVE_BYTES.into()), crc)
                })
            };
            match touched {
                Some(Ok(0)) => return Err(LaneError::End),
                Some(Ok(piece_bytes)) => {
                    landed += piece_bytes as u64;
                    self.progress.moved();
                    consume_budget().await;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.readable(left).await?,
                Some(Err(error)) => return Err(error.into()),
                None => {
                    self.discard(left).await?;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reads a bulk payload and throws it away.
    pub(super) async fn discard(&mut self, mut len_bytes: u64) -> Result<(), LaneError> {
        while len_bytes > 0 {
            if self.buffered().is_empty() && self.fill(as_len(len_bytes)).await? == 0 {
                return Err(LaneError::End);
            }
            let piece = self.buffered().len().min(as_len(len_bytes));
            self.start += piece;
            len_bytes -= piece as u64;
            consume_budget().await;
        }
        Ok(())
    }
}

/// Lets the socket wake its reader only when this much is there.
fn mark(stream: &Stream, len_bytes: u32) {
    if let Err(error) = stream.set_receive_mark(len_bytes) {
        // The lane works all the same, only slower.
        tracing::debug!(%error, "a data lane wakes for every byte");
    }
}

/// Receives once, straight into memory, and adds what came to `crc` while it is hot.
fn receive(stream: &Stream, memory: &Memory, at: u64, len_bytes: u64, crc: &mut Crc64) -> io::Result<usize> {
    let received = stream.try_recv(memory, at, len_bytes)?;
    memory
        .crc64_into(crc, at..at + received as u64)
        .map_err(io::Error::other)?;
    Ok(received)
}

/// Sends once, what waits and then straight from memory; tells how much of each went. What went of the memory is added
/// to `crc` while it is hot: never more than the send buffer takes. (Sending less at once wakes the receiver more
/// often, which costs more than it saves.)
fn transmit(
    stream: &Stream,
    waiting: &[u8],
    memory: &Memory,
    at: u64,
    len_bytes: u64,
    crc: Option<&mut Crc64>,
) -> io::Result<(usize, u64)> {
    let sent = stream.try_send(waiting, memory, at, len_bytes)?;
    let of_waiting = sent.min(waiting.len());
    let of_memory = (sent - of_waiting) as u64;
    if let Some(crc) = crc {
        memory.crc64_into(crc, at..at + of_memory).map_err(io::Error::other)?;
    }
    Ok((of_waiting, of_memory))
}

/// A length in this process; what does not fit is more than any buffer.
fn as_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The sending side of a lane.
#[derive(Debug)]
pub(super) struct Outbox {
    stream: Arc<Stream>,
    progress: Arc<Progress>,
    /// Headers and small payloads that are not sent yet.
    waiting: Vec<u8>,
}

impl Outbox {
    pub(super) fn new(stream: Arc<Stream>, progress: Arc<Progress>) -> Self {
        if let Err(error) = stream.set_send_buffer(LANE_SEND_BUFFER_BYTES) {
            // The lane works all the same, only slower.
            tracing::debug!(%error, "the send buffer of a data lane keeps its size");
        }
        Self {
            stream,
            progress,
            waiting: Vec::new(),
        }
    }

    /// Where whole small frames are put; they leave with the next bulk payload or [`Outbox::flush`].
    pub(super) fn waiting(&mut self) -> &mut Vec<u8> {
        &mut self.waiting
    }

    /// Sends what waits if it is much.
    pub(super) async fn relieve(&mut self) -> Result<(), LaneError> {
        if self.waiting.len() < COALESCED_BYTES {
            Ok(())
        } else {
            self.flush().await
        }
    }

    /// Sends what waits.
    pub(super) async fn flush(&mut self) -> Result<(), LaneError> {
        let mut sent = 0;
        while sent < self.waiting.len() {
            match self.stream.try_write(&self.waiting[sent..]) {
                Ok(piece_bytes) => {
                    sent += piece_bytes;
                    self.progress.moved();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error.into()),
            }
        }
        self.waiting.clear();
        Ok(())
    }

    /// Sends a header and the bulk payload in `span`. If the span is closed on the way, zeroes fill the frame and the
    /// answer is false: the receiver must be told. The payload is added to `crc` if there is one.
    pub(super) async fn send(
        &mut self,
        header: Header,
        span: &impl Span,
        mut crc: Option<&mut Crc64>,
    ) -> Result<bool, LaneError> {
        self.waiting.extend_from_slice(&header.encode(&[]));
        let len_bytes = u64::from(header.payload_bytes);
        if len_bytes <= COALESCE_BYTES {
            let intact = self.coalesce(span, as_len(len_bytes), crc);
            self.relieve().await?;
            return Ok(intact);
        }
        let mut waiting_sent = 0;
        let mut payload_sent = 0;
        while payload_sent < len_bytes {
            let waiting = &self.waiting[waiting_sent..];
            let touched = span.touch(payload_sent, |memory, at, room| {
                let room = room.min(len_bytes - payload_sent);
                transmit(&self.stream, waiting, memory, at, room, crc.as_deref_mut())
            });
            match touched {
                Some(Ok((of_waiting, of_payload))) => {
                    waiting_sent += of_waiting;
                    payload_sent += of_payload;
                    self.progress.moved();
                    consume_budget().await;
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Some(Err(error)) => return Err(error.into()),
                None => {
                    self.waiting.drain(..waiting_sent);
                    self.fill_up(len_bytes - payload_sent).await?;
                    return Ok(false);
                }
            }
        }
        self.waiting.clear();
        Ok(true)
    }

    /// Copies a small payload beside its header; zeroes where the span was closed.
    fn coalesce(&mut self, span: &impl Span, len: usize, crc: Option<&mut Crc64>) -> bool {
        let start = self.waiting.len();
        self.waiting.resize(start + len, 0);
        let mut copied = 0;
        while copied < len {
            let rest = &mut self.waiting[start + copied..];
            let touched = span.touch(copied as u64, |memory, at, room| {
                let piece = rest.len().min(as_len(room));
                memory.copy_out(at, &mut rest[..piece]).map(|()| piece)
            });
            match touched {
                Some(Ok(piece @ 1..)) => copied += piece,
                _ => return false,
            }
        }
        if let Some(crc) = crc {
            crc.update(&self.waiting[start..]);
        }
        true
    }

    /// Ends a frame whose payload cannot be had any more.
    async fn fill_up(&mut self, mut len_bytes: u64) -> Result<(), LaneError> {
        while len_bytes > 0 {
            let piece = as_len(len_bytes).min(COALESCED_BYTES);
            self.waiting.resize(self.waiting.len() + piece, 0);
            self.flush().await?;
            len_bytes -= piece as u64;
        }
        Ok(())
    }

    /// Waits for room. Meanwhile something is under way.
    async fn writable(&self) -> Result<(), LaneError> {
        self.progress.sending.store(true, Ordering::Relaxed);
        self.stream.writable().await?;
        self.progress.sending.store(false, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    struct Whole(Memory);

    impl Span for Whole {
        fn touch<T>(&self, offset_bytes: u64, touch: impl FnOnce(&Memory, u64, u64) -> T) -> Option<T> {
            Some(touch(&self.0, offset_bytes, self.0.len_bytes() - offset_bytes))
        }
    }

    async fn lane() -> (Inbox, Arc<Progress>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = Arc::new(Stream::from_tcp(listener.accept().await.unwrap().0).unwrap());
        let progress = Arc::new(Progress::new(Arc::clone(&stream)));
        (Inbox::new(stream, Arc::clone(&progress)), progress, theirs)
    }

    #[tokio::test]
    async fn a_payload_that_trickles_in_is_no_stall_and_what_follows_it_arrives() {
        let (mut inbox, progress, mut theirs) = lane().await;
        let payload = vec![7; 300_000];
        let trickling = async {
            theirs.write_all(&payload[..200_000]).await.unwrap();
            // All pauses together are much longer than the limit, each is much shorter.
            for piece in payload[200_000..].chunks(20_000) {
                sleep(Duration::from_millis(400)).await;
                theirs.write_all(piece).await.unwrap();
            }
            theirs
                .write_all(&Header::new(crate::tcp::wire::Kind::Done, 5, 6).encode(&[]))
                .await
                .unwrap();
        };
        let span = Whole(Memory::anonymous(300_000).unwrap());
        let mut crc = Crc64::new();
        let receiving = async {
            assert!(inbox.land(&span, 300_000, &mut crc).await.unwrap());
            inbox.frame().await.unwrap().unwrap().header.request
        };
        tokio::select! {
            (request, ()) = async { tokio::join!(receiving, trickling) } => assert_eq!(request, 5),
            () = progress.stalled(Duration::from_millis(1_200), || true) => panic!("a lane that moves was given up"),
        }
        assert_eq!(crc.value(), crate::checksum::crc64(&payload));
    }
}

//! A connected socket, TCP or unix, that one task reads while another writes.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use crate::limits::{FINISH_READS_MAX, FINISH_TIMEOUT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use crate::link::Endpoint;
use crate::memory::{Memory, set_receive_mark};

/// A connected socket. All methods take `&self`: at most one task reads, and at most one writes.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that belongs to no runtime, on its way from one to another.
#[derive(Debug)]
pub(crate) enum DetachedStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    pub(crate) async fn connect(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp(address) => Self::from_tcp(TcpStream::connect(address).await?),
            Endpoint::Unix(path) => Self::connect_unix(path).await,
        }
    }

    async fn connect_unix(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    /// Small frames leave at once, and a silent death of the peer's host is noticed.
    pub(crate) fn from_tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_PROBES);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(Self::Tcp(stream))
    }

    /// Lets the system keep at most about this many bytes that were sent and are not acknowledged.
    pub(crate) fn set_send_buffer(&self, len_bytes: usize) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream).set_send_buffer_size(len_bytes),
            Self::Unix(stream) => SockRef::from(stream).set_send_buffer_size(len_bytes),
        }
    }

    /// Lets it become readable only when this many bytes are there, or no more will come. Unix sockets do not wait.
    pub(crate) fn set_receive_mark(&self, len_bytes: u32) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => set_receive_mark(stream.as_fd(), len_bytes),
            Self::Unix(_) => Ok(()),
        }
    }

    /// Takes it off this runtime.
    pub(crate) fn detach(self) -> io::Result<DetachedStream> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(DetachedStream::Tcp),
            Self::Unix(stream) => stream.into_std().map(DetachedStream::Unix),
        }
    }

    /// Puts it on the runtime this is called on.
    pub(crate) fn attach(stream: DetachedStream) -> io::Result<Self> {
        match stream {
            DetachedStream::Tcp(stream) => TcpStream::from_std(stream).map(Self::Tcp),
            DetachedStream::Unix(stream) => UnixStream::from_std(stream).map(Self::Unix),
        }
    }

    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read(into),
            Self::Unix(stream) => stream.try_read(into),
        }
    }

    pub(crate) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_read_buf(into),
            Self::Unix(stream) => stream.try_read_buf(into),
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
        }
    }

    /// Receives straight into memory; `WouldBlock` if nothing is there.
    pub(crate) fn try_recv(&self, memory: &Memory, offset_bytes: u64, len_bytes: u64) -> io::Result<usize> {
        self.try_io(Interest::READABLE, |fd| {
            memory.recv_from(fd, offset_bytes..offset_bytes + len_bytes)
        })
    }

    /// Sends `header` and then straight from memory; `WouldBlock` if there is no room.
    pub(crate) fn try_send(
        &self,
        header: &[u8],
        memory: &Memory,
        offset_bytes: u64,
        len_bytes: u64,
    ) -> io::Result<usize> {
        self.try_io(Interest::WRITABLE, |fd| {
            memory.send_to(fd, header, offset_bytes..offset_bytes + len_bytes)
        })
    }

    fn try_io<T>(&self, interest: Interest, call: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        match self {
            Self::Tcp(stream) => stream.try_io(interest, || call(stream.as_fd())),
            Self::Unix(stream) => stream.try_io(interest, || call(stream.as_fd())),
        }
    }

    /// Fills `into`, or fails with `UnexpectedEof`.
    pub(crate) async fn read_exact(&self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            match self.try_read(&mut into[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read_bytes) => filled += read_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub(crate) async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.try_write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written_bytes) => written += written_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends our side and waits a little for the peer to end its own: closing while something of the peer is unread
    /// would throw away what we said last.
    pub(crate) async fn finish(&self) {
        if self.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let draining = async {
            let mut scratch = [0; 1024];
            for _ in 0..FINISH_READS_MAX {
                match self.try_read(&mut scratch) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.readable().await.is_ok() => {}
                    Err(_) => return,
                }
            }
        };
        _ = timeout(FINISH_TIMEOUT, draining).await;
    }

    /// Ends one or both directions at once.
    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream).shutdown(how),
            Self::Unix(stream) => SockRef::from(stream).shutdown(how),
        }
    }
}

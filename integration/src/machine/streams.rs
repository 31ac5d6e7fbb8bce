//! What came out of a job: collected without threads, and bounded.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// How much of a stream is kept: its end, as that tells why something failed.
const CAPTURED_BYTES_MAX: usize = 4 << 20;

/// The end of what a stream carried.
#[derive(Debug, Clone, Default)]
pub struct Captured {
    bytes: Vec<u8>,
    lost_bytes: usize,
}

impl Captured {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        // Twice the bound, so that bytes are moved once per bound and not once per read.
        if self.bytes.len() > 2 * CAPTURED_BYTES_MAX {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let surplus = self.bytes.len().saturating_sub(CAPTURED_BYTES_MAX);
        self.bytes.drain(..surplus);
        self.lost_bytes += surplus;
    }

    /// What was kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How much went before it and was not kept.
    pub fn lost_bytes(&self) -> usize {
        self.lost_bytes
    }

    /// What was kept, as text; what is no UTF-8 is replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

impl fmt::Display for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost_bytes > 0 {
            writeln!(f, "[{} bytes before this were not kept]", self.lost_bytes)?;
        }
        f.write_str(&String::from_utf8_lossy(&self.bytes))
    }
}

/// The reading end of a stream.
#[derive(Debug)]
pub(super) struct Stream {
    socket: UnixStream,
    captured: Captured,
    open: bool,
    is_heard: bool,
}

impl Stream {
    pub(super) fn new(socket: UnixStream) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            captured: Captured::default(),
            open: true,
            is_heard: false,
        })
    }

    /// From now on what arrives is written to this process's standard error too, or is not any more.
    pub(super) fn hear(&mut self, is_heard: bool) {
        self.is_heard = is_heard;
    }

    /// Takes what has arrived, without waiting.
    pub(super) fn drain(&mut self) {
        let mut buffer = [0; 64 << 10];
        while self.open {
            match self.socket.read(&mut buffer) {
                Ok(0) => self.open = false,
                Ok(len) => {
                    self.captured.push(&buffer[..len]);
                    if self.is_heard {
                        // Whoever does not listen misses it.
                        let _ = std::io::stderr().write_all(&buffer[..len]);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.open = false,
            }
        }
    }

    /// What has been collected since the last time.
    pub(super) fn take(&mut self) -> Captured {
        self.drain();
        self.captured.trim();
        std::mem::take(&mut self.captured)
    }

    /// What to wait on; `None` once nothing more can come.
    pub(super) fn waitable(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.socket.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stream_is_kept_and_the_rest_counted() {
        let (mut writer, reader) = UnixStream::pair().expect("a pair of sockets");
        let mut stream = Stream::new(reader).expect("a stream");
        let chunk = vec![b'x'; 1 << 16];
        let chunks = 3 * CAPTURED_BYTES_MAX / chunk.len();
        for _ in 0..chunks {
            writer.write_all(&chunk).expect("the socket takes it");
            stream.drain();
        }
        writer.write_all(b"the end").expect("the socket takes it");
        let captured = stream.take();
        assert_eq!(captured.bytes().len(), CAPTURED_BYTES_MAX);
        assert!(captured.bytes().ends_with(b"the end"));
        assert_eq!(captured.lost_bytes(), chunks * chunk.len() + 7 - CAPTURED_BYTES_MAX);
        assert!(stream.take().bytes().is_empty(), "what was taken comes once");
    }
}

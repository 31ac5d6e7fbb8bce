//! Sockets read and write the mapping itself: payloads are not copied on their way through this process.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Memory;

impl Memory {
    /// Receives from a socket into the range without blocking, at most its length. Zero: the peer has closed (or the
    /// range is empty).
    ///
    /// # Errors
    /// The system's, `WouldBlock` included; `InvalidInput` if the range does not lie inside.
    pub fn recv_from(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<usize> {
        let (to, len) = self.address_of(&range).map_err(invalid)?;
        loop {
            // SAFETY: the kernel writes at most `len` bytes at `to`, all mapped and writable; it is done when the call
            // returns, and `self` keeps them mapped until then. `fd` is open: it is borrowed.
            let received = unsafe { libc::recv(fd.as_raw_fd(), to.cast(), len, libc::MSG_DONTWAIT) };
            match usize::try_from(received) {
                Ok(received_bytes) => return Ok(received_bytes),
                Err(_) => not_interrupted(io::Error::last_os_error())?,
            }
        }
    }

    /// Sends `header` and then the range to a socket without blocking; returns how many bytes of both together went.
    ///
    /// # Errors
    /// The system's, `WouldBlock` included; `InvalidInput` if the range does not lie inside.
    pub fn send_to(&self, fd: BorrowedFd<'_>, header: &[u8], range: Range<u64>) -> io::Result<usize> {
        let (from, len) = self.address_of(&range).map_err(invalid)?;
        let mut parts = [
            libc::iovec {
                iov_base: header.as_ptr().cast_mut().cast(),
                iov_len: header.len(),
            },
            libc::iovec {
                iov_base: from.cast(),
                iov_len: len,
            },
        ];
        // SAFETY: msghdr is plain data for which all zeroes mean: no address, no parts, no ancillary data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        loop {
            // SAFETY: `message` names the two parts, which live on this stack frame; the kernel only reads from them.
            // `header` is borrowed and the range is mapped, both for the whole call, and the kernel has copied what it
            // takes when it returns (MSG_ZEROCOPY is not set). `fd` is open: it is borrowed.
            let sent = unsafe {
                libc::sendmsg(
                    fd.as_raw_fd(),
                    &raw const message,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            };
            match usize::try_from(sent) {
                Ok(sent_bytes) => return Ok(sent_bytes),
                Err(_) => not_interrupted(io::Error::last_os_error())?,
            }
        }
    }
}

/// Lets a TCP socket become readable only when this many bytes are there, or no more will come. The system takes less if
/// its buffer could not hold them.
pub(crate) fn set_receive_mark(fd: BorrowedFd<'_>, len_bytes: u32) -> io::Result<()> {
    let mark = libc::c_int::try_from(len_bytes).unwrap_or(libc::c_int::MAX);
    let len = libc::socklen_t::try_from(size_of_val(&mark)).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes at the address of `mark`, which lives on this stack frame, and is done when
    // the call returns. `fd` is open: it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const mark).cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn invalid(error: super::MemoryError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Passes every error on but an interruption, after which the call is made again.
fn not_interrupted(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(())
    } else {
        Err(error)
    }
}

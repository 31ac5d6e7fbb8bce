//! Frames of a control link: a fixed header, then the payload. Both are covered by a checksum, so a bit that flips on
//! the way ends the link and never reaches a caller.

use std::io;

use bytes::{Buf, Bytes, BytesMut};

use crate::checksum::Crc64;
use crate::limits::MAX_LINK_FRAME_BYTES;
use crate::stream::Stream;
use crate::wire::Fields;

const MAGIC: u16 = 0x6c74;
pub(crate) const HEADER_BYTES: usize = 32;
/// The part of the header that the checksum covers, along with the payload; the checksum itself is the rest.
const CHECKED_BYTES: usize = 24;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A call; carries the time it has left.
    Request = 1,
    /// The answer of the service.
    Answer = 2,
    /// The acceptor could not answer; the payload says why, in words.
    Failed = 3,
    /// The sender is about to close; the payload says why, in words. No calls after it; answers may follow.
    Goodbye = 4,
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Request,
            2 => Self::Answer,
            3 => Self::Failed,
            4 => Self::Goodbye,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) request: u64,
    /// Time left for a request, in milliseconds; else zero.
    pub(crate) deadline_ms: u32,
    pub(crate) payload: Bytes,
}

impl Frame {
    pub(crate) fn goodbye(why: &str) -> Self {
        Self {
            kind: Kind::Goodbye,
            request: 0,
            deadline_ms: 0,
            payload: Bytes::copy_from_slice(why.as_bytes()),
        }
    }

    pub(crate) fn header(&self) -> [u8; HEADER_BYTES] {
        let len_bytes = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        assert!(
            len_bytes <= MAX_LINK_FRAME_BYTES,
            "payloads are checked before they become frames"
        );
        let mut header = [0; HEADER_BYTES];
        header[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        header[2] = self.kind as u8;
        header[4..8].copy_from_slice(&len_bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.request.to_le_bytes());
        header[16..20].copy_from_slice(&self.deadline_ms.to_le_bytes());
        let check = check(&header, &self.payload);
        header[CHECKED_BYTES..].copy_from_slice(&check.to_le_bytes());
        header
    }
}

fn check(header: &[u8; HEADER_BYTES], payload: &[u8]) -> u64 {
    let mut crc = Crc64::new();
    crc.update(&header[..CHECKED_BYTES]);
    crc.update(payload);
    crc.value()
}

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the peer closed the connection")]
    End,
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("what the peer sent is no frame")]
    Magic,
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame of {len_bytes} bytes, more than the {MAX_LINK_FRAME_BYTES} allowed")]
    Length { len_bytes: u32 },
    #[error("a frame was damaged on its way")]
    Damaged,
}

/// Takes one frame off the front of `buffer` if it is there; else says how many bytes are needed in all.
fn decode(buffer: &mut BytesMut) -> Result<Result<Frame, usize>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>().copied() else {
        return Ok(Err(HEADER_BYTES));
    };
    let mut fields = Fields::new(&header);
    let mut read = || {
        let (magic, kind) = (fields.u16()?, fields.u8()?);
        fields.u8()?;
        let (len_bytes, request, deadline_ms) = (fields.u32()?, fields.u64()?, fields.u32()?);
        fields.u32()?;
        Some((magic, kind, len_bytes, request, deadline_ms, fields.u64()?))
    };
    let (magic, kind, len_bytes, request, deadline_ms, expected) = read().ok_or(FrameError::Magic)?;
    if magic != MAGIC {
        return Err(FrameError::Magic);
    }
    if len_bytes > MAX_LINK_FRAME_BYTES {
        return Err(FrameError::Length { len_bytes });
    }
    let kind = Kind::decode(kind).ok_or(FrameError::Kind(kind))?;
    let whole_bytes = HEADER_BYTES + usize::try_from(len_bytes).map_err(|_| FrameError::Length { len_bytes })?;
    if buffer.len() < whole_bytes {
        return Ok(Err(whole_bytes));
    }
    let mut frame = buffer.split_to(whole_bytes).freeze();
    frame.advance(HEADER_BYTES);
    if check(&header, &frame) != expected {
        return Err(FrameError::Damaged);
    }
    Ok(Ok(Frame {
        kind,
        request,
        deadline_ms,
        payload: frame,
    }))
}

/// Reads frames off a stream.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    buffer: BytesMut,
}

impl FrameReader {
    /// Waits for the next frame. Cancelling it loses nothing.
    pub(crate) async fn next(&mut self, stream: &Stream) -> Result<Frame, FrameError> {
        loop {
            let needed = match decode(&mut self.buffer)? {
                Ok(frame) => return Ok(frame),
                Err(needed) => needed,
            };
            self.buffer.reserve((needed - self.buffer.len()).max(READ_AHEAD_BYTES));
            match stream.try_read_buf(&mut self.buffer) {
                Ok(0) => return Err(FrameError::End),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Room for a small frame or two, so that they take one read.
const READ_AHEAD_BYTES: usize = 4096;

/// Payloads up to this size are put together with their header in one write.
const COALESCE_BYTES: usize = 16 << 10;

/// Writes frames to a stream, small ones together.
#[derive(Debug, Default)]
pub(crate) struct FrameWriter {
    buffer: Vec<u8>,
}

impl FrameWriter {
    /// Writes all of `frames` and empties it.
    pub(crate) async fn write(&mut self, stream: &Stream, frames: &mut Vec<Frame>) -> io::Result<()> {
        for frame in frames.drain(..) {
            self.buffer.extend_from_slice(&frame.header());
            if frame.payload.len() <= COALESCE_BYTES {
                self.buffer.extend_from_slice(&frame.payload);
                continue;
            }
            self.flush(stream).await?;
            stream.write_all(&frame.payload).await?;
        }
        self.flush(stream).await
    }

    async fn flush(&mut self, stream: &Stream) -> io::Result<()> {
        stream.write_all(&self.buffer).await?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(frame: &Frame) -> BytesMut {
        let mut bytes = BytesMut::from(&frame.header()[..]);
        bytes.extend_from_slice(&frame.payload);
        bytes
    }

    prop_compose! {
        fn any_frame()(
            kind in 1_u8..=4,
            request in any::<u64>(),
            deadline_ms in any::<u32>(),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) -> Frame {
            Frame { kind: Kind::decode(kind).unwrap(), request, deadline_ms, payload: payload.into() }
        }
    }

    proptest! {
        #[test]
        fn frames_come_back_one_by_one(first in any_frame(), second in any_frame()) {
            let mut bytes = encode(&first);
            bytes.unsplit(encode(&second));
            let last = bytes.split_off(bytes.len() - 1);
            prop_assert_eq!(decode(&mut bytes).unwrap().unwrap(), first);
            prop_assert!(decode(&mut bytes).unwrap().is_err());
            bytes.unsplit(last);
            prop_assert_eq!(decode(&mut bytes).unwrap().unwrap(), second);
            prop_assert!(bytes.is_empty());
        }

        #[test]
        fn a_flipped_bit_never_passes(frame in any_frame(), at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut bytes = encode(&frame);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            match decode(&mut bytes) {
                Err(_) | Ok(Err(_)) => {}
                Ok(Ok(passed)) => prop_assert!(false, "{:?} passed as {:?}", frame, passed),
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            _ = decode(&mut BytesMut::from(&bytes[..]));
            let mut with_magic = BytesMut::from(&MAGIC.to_le_bytes()[..]);
            with_magic.extend_from_slice(&bytes);
            _ = decode(&mut with_magic);
        }
    }

    #[test]
    fn an_impossible_length_is_refused_before_anything_is_allocated() {
        let frame = Frame::goodbye("");
        let mut bytes = encode(&frame);
        bytes[4..8].copy_from_slice(&(MAX_LINK_FRAME_BYTES + 1).to_le_bytes());
        assert!(matches!(decode(&mut bytes), Err(FrameError::Length { .. })));
    }
}

//! Where the bytes of a put come from: a file that is read ahead of the sending, or a pipe that is read to its end first.

use super::failure::Failure;
use super::limits::{PIPE_LEN_BYTES_MAX, READ_AHEAD_CHUNKS, READ_CHUNK_BYTES};
use bytes::Bytes;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// The bytes of one object, of known length.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) len_bytes: u64,
    path: PathBuf,
    chunks: Chunks,
}

#[derive(Debug)]
enum Chunks {
    Held(VecDeque<Bytes>),
    Read(mpsc::Receiver<io::Result<Bytes>>),
}

impl Source {
    /// Opens a file, or standard input for `-`. Pipes are read into memory up to their end, since their length is not known before.
    pub(super) async fn open(path: &Path) -> Result<Self, Failure> {
        let is_stdin = path.as_os_str() == "-";
        let named: PathBuf = if is_stdin {
            "standard input".into()
        } else {
            path.to_owned()
        };
        let opening = tokio::task::spawn_blocking(move || {
            if is_stdin {
                return hold(&named, io::stdin().lock(), PIPE_LEN_BYTES_MAX);
            }
            let file = File::open(&named).map_err(|error| Failure::input(&named, &error))?;
            let metadata = file.metadata().map_err(|error| Failure::input(&named, &error))?;
            if metadata.is_dir() {
                return Err(Failure::input(&named, &"it is a directory"));
            }
            if !metadata.is_file() {
                return hold(&named, file, PIPE_LEN_BYTES_MAX);
            }
            Ok(Self {
                len_bytes: metadata.len(),
                path: named,
                chunks: Chunks::Read(read_ahead(file)),
            })
        });
        opening.await.map_err(|error| Failure::input(path, &error))?
    }

    /// The next bytes; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match &mut self.chunks {
            Chunks::Held(chunks) => Ok(chunks.pop_front()),
            Chunks::Read(chunks) => chunks
                .recv()
                .await
                .transpose()
                .map_err(|error| Failure::input(&self.path, &error)),
        }
    }
}

/// Reads a file on a thread of its own, a few chunks ahead. The thread ends when nobody wants more.
fn read_ahead(mut file: File) -> mpsc::Receiver<io::Result<Bytes>> {
    let (sender, receiver) = mpsc::channel(READ_AHEAD_CHUNKS);
    tokio::task::spawn_blocking(move || {
        loop {
            let chunk = read_chunk(&mut file);
            let is_last = !matches!(&chunk, Ok(chunk) if !chunk.is_empty());
            let is_end = matches!(&chunk, Ok(chunk) if chunk.is_empty());
            if is_end || sender.blocking_send(chunk).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// A full chunk, or what is left.
fn read_chunk(from: &mut impl Read) -> io::Result<Bytes> {
    let mut chunk = Vec::with_capacity(READ_CHUNK_BYTES);
    from.take(READ_CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
    Ok(chunk.into())
}

fn hold(path: &Path, mut from: impl Read, limit_bytes: u64) -> Result<Source, Failure> {
    let (mut chunks, mut len_bytes) = (VecDeque::new(), 0);
    loop {
        let chunk = read_chunk(&mut from).map_err(|error| Failure::input(path, &error))?;
        if chunk.is_empty() {
            break;
        }
        len_bytes += chunk.len() as u64;
        if len_bytes > limit_bytes {
            let error = format!(
                "it has more than the {limit_bytes} bytes that a put from a pipe holds in memory: put it from a file"
            );
            return Err(Failure::input(path, &error));
        }
        chunks.push_back(chunk);
    }
    Ok(Source {
        len_bytes,
        path: path.to_owned(),
        chunks: Chunks::Held(chunks),
    })
}

#[cfg(test)]
mod tests {
    use super::super::exit::Exit;
    use super::*;

    async fn read(source: &mut Source) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            assert!(chunk.len() <= READ_CHUNK_BYTES);
            bytes.extend_from_slice(&chunk);
        }
        bytes
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 3 + at).to_le_bytes()[0]).collect()
    }

    #[tokio::test]
    async fn a_file_comes_in_whole_chunks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for len in [0, 1, READ_CHUNK_BYTES, 3 * READ_CHUNK_BYTES + 5] {
            let bytes = payload(len);
            std::fs::write(file.path(), &bytes).unwrap();
            let mut source = Source::open(file.path()).await.unwrap();
            assert_eq!(source.len_bytes, len as u64);
            assert!(read(&mut source).await == bytes, "{len}");
        }
    }

    #[tokio::test]
    async fn a_pipe_is_held_up_to_the_limit() {
        let bytes = payload(2 * READ_CHUNK_BYTES + 5);
        let path = Path::new("pipe");
        let mut source = hold(path, bytes.as_slice(), bytes.len() as u64).unwrap();
        assert_eq!(source.len_bytes, bytes.len() as u64);
        assert!(read(&mut source).await == bytes);
        let failure = hold(path, bytes.as_slice(), bytes.len() as u64 - 1).unwrap_err();
        assert_eq!(failure.exit, Exit::Invalid);
        assert!(failure.line().contains("2097156 bytes"), "{}", failure.line());
    }

    #[tokio::test]
    async fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (path, words) in [
            (dir.path().to_owned(), "is a directory"),
            (dir.path().join("none"), "No such file"),
        ] {
            let failure = Source::open(&path).await.unwrap_err();
            assert_eq!(failure.exit, Exit::Invalid);
            assert!(
                failure.line().contains(words) && failure.line().contains(path.to_str().unwrap()),
                "{}",
                failure.line()
            );
        }
    }
}

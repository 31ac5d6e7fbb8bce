//! The limit to compare with: a bare pump of frames between two processes, without checksums, headers or anything to
//! keep in mind.
//!
//! Every connection sends its frames from memory of its own, in turn, and its other end reads them into memory of its
//! own. How much memory that is makes a difference, since more than a frame or two does not stay in a core's cache:
//! [`Extents`] says.
//!
//! The connections of a run take frames from one counter, so that none waits for another. The first byte of a frame
//! tells the last of its connection, which is answered with a byte; a run ends with the last answer.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The argument that makes the bench's executable the other end of pumps.
pub const PEER_ARGUMENT: &str = "--pump-peer";
/// Bytes of one frame.
pub const FRAME_BYTES: u64 = 1 << 20;

const FRAME_LEN: usize = 1 << 20;
const MORE: u8 = 0;
const LAST: u8 = 1;

const _: () = assert!(FRAME_LEN as u64 == FRAME_BYTES, "one length in two types");

/// How much memory the connections of one run send from and receive into, all together; at least a frame for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extents {
    /// At the sending end.
    pub send_bytes: u64,
    /// At the receiving end.
    pub receive_bytes: u64,
}

/// Frames that one connection goes through in turn.
#[derive(Debug)]
struct Frames {
    memory: Vec<u8>,
    at: usize,
}

impl Frames {
    fn new(count: usize) -> Self {
        Self {
            memory: vec![0x5a; FRAME_LEN * count.max(1)],
            at: 0,
        }
    }

    fn next(&mut self) -> &mut [u8] {
        let start = self.at;
        self.at = (start + FRAME_LEN) % self.memory.len();
        &mut self.memory[start..start + FRAME_LEN]
    }
}

/// One connection and the frames that it sends.
#[derive(Debug)]
struct Lane {
    stream: TcpStream,
    frames: Frames,
}

impl Lane {
    /// Sends frames as long as there are any left, and waits until the other end has them.
    async fn send(mut self, left: Arc<AtomicU64>) -> Result<Self> {
        let mut has_frame = take(&left);
        while has_frame {
            has_frame = take(&left);
            let frame = self.frames.next();
            frame[0] = if has_frame { MORE } else { LAST };
            self.stream.write_all(frame).await?;
            if !has_frame {
                self.stream.read_u8().await?;
            }
        }
        Ok(self)
    }
}

fn take(left: &AtomicU64) -> bool {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    taken.is_ok()
}

/// The process at the receiving end, which ends when this is dropped.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    address: SocketAddr,
}

impl Peer {
    /// Starts this executable again.
    pub fn start() -> Result<Self> {
        let executable = std::env::current_exe().context("the path of this executable")?;
        let mut process = Command::new(executable)
            .arg(PEER_ARGUMENT)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the pump's other end")?;
        let stdout = process.stdout.take().context("the pump's other end has an output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let address = line
            .trim()
            .parse()
            .with_context(|| format!("the pump's other end told no address: {line:?}"))?;
        Ok(Self { process, address })
    }

    /// The id of the process.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Opens connections that last over many runs, as those of the system under test do.
    pub async fn connect(&self, connections: usize, extents: Extents) -> Result<Pump> {
        let share = |len_bytes: u64| len_bytes / FRAME_BYTES / connections as u64;
        let mut lanes = Vec::with_capacity(connections);
        for _ in 0..connections {
            let mut stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            stream.write_u64(share(extents.receive_bytes)).await?;
            // When it answers, its memory is there.
            stream.read_u8().await?;
            let frames = Frames::new(usize::try_from(share(extents.send_bytes))?);
            lanes.push(Lane { stream, frames });
        }
        Ok(Pump(lanes))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connections that share the frames of a run.
#[derive(Debug)]
pub struct Pump(Vec<Lane>);

impl Pump {
    /// Moves this many bytes, a multiple of [`FRAME_BYTES`]; returns when the other end has them.
    pub async fn run(&mut self, len_bytes: u64) -> Result<()> {
        ensure!(
            len_bytes.is_multiple_of(FRAME_BYTES),
            "{len_bytes} bytes are no whole frames"
        );
        let left = Arc::new(AtomicU64::new(len_bytes / FRAME_BYTES));
        let lanes = self.0.drain(..);
        let sending: Vec<_> = lanes.map(|lane| tokio::spawn(lane.send(Arc::clone(&left)))).collect();
        for lane in sending {
            self.0.push(lane.await??);
        }
        Ok(())
    }
}

/// The receiving end: prints its address and serves connections until it is killed.
pub async fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", listener.local_addr()?)?;
    stdout.flush()?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            if let Err(error) = receive(stream).await {
                eprintln!("a pump's connection ended: {error:#}");
            }
        });
    }
}

async fn receive(mut stream: TcpStream) -> Result<()> {
    let mut frames = Frames::new(usize::try_from(stream.read_u64().await?)?);
    stream.write_u8(MORE).await?;
    loop {
        let frame = frames.next();
        match stream.read_exact(frame).await {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if frame[0] == LAST {
            stream.write_u8(LAST).await?;
        }
    }
}

//! A man in the middle that stalls, cuts and damages what passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tenon_transport::link::Endpoint;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One direction of all connections.
pub struct Direction {
    /// Bytes that may pass on each connection.
    allowed: watch::Sender<u64>,
    /// The byte of the next connection to reach it in which a bit is flipped; then no other.
    flip_at: AtomicU64,
    pub passed: AtomicU64,
}

pub struct Proxy {
    pub endpoint: Endpoint,
    pub up: Arc<Direction>,
    pub down: Arc<Direction>,
    cut: watch::Sender<u64>,
}

impl Direction {
    fn new() -> Arc<Self> {
        let flip_at = AtomicU64::new(u64::MAX);
        Arc::new(Self {
            allowed: watch::Sender::new(u64::MAX),
            flip_at,
            passed: AtomicU64::new(0),
        })
    }

    /// Lets only so many bytes of each connection pass.
    pub fn allow(&self, bytes: u64) {
        self.allowed.send_replace(bytes);
    }

    pub fn allow_all(&self) {
        self.allow(u64::MAX);
    }

    /// Flips a bit of the byte at this place of a connection, once.
    pub fn flip(&self, at: u64) {
        self.flip_at.store(at, Ordering::SeqCst);
    }

    async fn pass(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut allowed = self.allowed.subscribe();
        let mut passed = 0;
        let mut buffer = vec![0; 16 << 10];
        loop {
            let Ok(limit) = allowed.wait_for(|limit| *limit > passed).await.map(|limit| *limit) else {
                return;
            };
            let most = usize::try_from(limit - passed).unwrap_or(usize::MAX).min(buffer.len());
            let Ok(read @ 1..) = from.read(&mut buffer[..most]).await else {
                return;
            };
            let end = passed + read as u64;
            let flip_at = self.flip_at.load(Ordering::SeqCst);
            if (passed..end).contains(&flip_at) {
                self.flip_at.store(u64::MAX, Ordering::SeqCst);
                buffer[usize::try_from(flip_at - passed).unwrap()] ^= 0x40;
            }
            passed = end;
            self.passed.fetch_add(read as u64, Ordering::SeqCst);
            if to.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    }
}

impl Proxy {
    pub async fn start(to: &Endpoint) -> Self {
        let Endpoint::Tcp(to) = *to else {
            panic!("a TCP endpoint")
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
        let (up, down) = (Direction::new(), Direction::new());
        let cut = watch::Sender::new(0);
        let (all_up, all_down, cuts) = (Arc::clone(&up), Arc::clone(&down), cut.subscribe());
        tokio::spawn(async move {
            while let Ok((dialler, _)) = listener.accept().await {
                let (up, down, mut cuts) = (Arc::clone(&all_up), Arc::clone(&all_down), cuts.clone());
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(to).await else {
                        return;
                    };
                    let (from_dialler, to_dialler) = dialler.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = up.pass(from_dialler, to_server) => {}
                        () = down.pass(from_server, to_dialler) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self {
            endpoint,
            up,
            down,
            cut,
        }
    }

    /// Breaks all connections; new ones are let through.
    pub fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

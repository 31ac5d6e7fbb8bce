//! Stands between a node and those who dial it, and does to their bytes what networks do.
//!
//! Offsets are counted per connection and direction, from the moment a fault was set. Control connections carry few bytes and data lanes
//! many, so a fault at some hundred kilobytes meets payload only.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Toward {
    /// From whoever dialled to the node.
    Node,
    /// From the node to whoever dialled.
    Dialler,
}

/// What happens to bytes that go one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The lowest bit of the byte at this offset is flipped, once per connection.
    FlipAt(u64),
    /// The lowest bit of every byte at a multiple of this offset is flipped.
    FlipEvery(u64),
    /// Nothing after this offset is passed on any more; connections stay open.
    StallAfter(u64),
}

#[derive(Debug, Default)]
struct Armed {
    /// Counts the changes, so that connections know when to count anew.
    revision: u64,
    fault: Option<(Toward, Fault)>,
}

#[derive(Debug, Default)]
struct Shared {
    armed: Mutex<Armed>,
    open: Mutex<Vec<TcpStream>>,
    flipped: AtomicU64,
    passed_to_dialler: AtomicU64,
    stopped: AtomicBool,
}

/// A proxy that runs until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Listens at an address and passes what comes to another.
    pub fn start(address: SocketAddr, node: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).expect("the proxy's address is free");
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for dialler in listener.incoming() {
                if accepting.stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(dialler) = dialler {
                    pass(&accepting, &dialler, node);
                }
            }
        });
        Self { address, shared }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on, this happens; what was set before does not.
    pub fn set(&self, toward: Toward, fault: Fault) {
        self.arm(Some((toward, fault)));
    }

    /// From now on, bytes pass as they are. Connections that were stalled stay so.
    pub fn heal(&self) {
        self.arm(None);
    }

    fn arm(&self, fault: Option<(Toward, Fault)>) {
        let mut armed = locked(&self.shared.armed);
        armed.revision += 1;
        armed.fault = fault;
    }

    /// Closes every connection that is open now.
    pub fn cut(&self) {
        for stream in locked(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many bits were flipped. A test that counts on damage asks, lest it prove nothing.
    pub fn flipped_bits(&self) -> u64 {
        self.shared.flipped.load(Ordering::Relaxed)
    }

    /// How many bytes were passed from the node to diallers.
    pub fn passed_to_dialler_bytes(&self) -> u64 {
        self.shared.passed_to_dialler.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the accepting thread, which then sees that it is to end.
        let _ = TcpStream::connect(self.address);
    }
}

/// Joins a dialler to the node. If the node does not listen, the dialler's connection is closed at once, much as a refusal.
fn pass(shared: &Arc<Shared>, dialler: &TcpStream, node: SocketAddr) {
    let Ok(node) = TcpStream::connect(node) else {
        return;
    };
    let clone = |stream: &TcpStream| stream.try_clone().expect("a socket can be cloned");
    for stream in [dialler, &node] {
        stream.set_nodelay(true).expect("TCP_NODELAY can be set");
        locked(&shared.open).push(clone(stream));
    }
    for (from, to, toward) in [(dialler, &node, Toward::Node), (&node, dialler, Toward::Dialler)] {
        let (shared, from, to) = (Arc::clone(shared), clone(from), clone(to));
        std::thread::spawn(move || {
            pump(&shared, &from, &to, toward);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

fn pump(shared: &Shared, mut from: &TcpStream, mut to: &TcpStream, toward: Toward) {
    let mut buffer = vec![0; 256 << 10];
    let (mut revision, mut at) = (0, 0);
    loop {
        let Ok(len @ 1..) = from.read(&mut buffer) else { return };
        let bytes = &mut buffer[..len];
        let fault = {
            let armed = locked(&shared.armed);
            if armed.revision != revision {
                (revision, at) = (armed.revision, 0);
            }
            armed.fault.filter(|(way, _)| *way == toward).map(|(_, fault)| fault)
        };
        let pass = apply(fault, at, bytes, &shared.flipped);
        at += len as u64;
        if to.write_all(&bytes[..pass]).is_err() {
            return;
        }
        if toward == Toward::Dialler {
            shared.passed_to_dialler.fetch_add(pass as u64, Ordering::Relaxed);
        }
    }
}

/// Damages bytes that begin at offset `at`, and says how many of them are passed on.
fn apply(fault: Option<Fault>, at: u64, bytes: &mut [u8], flipped: &AtomicU64) -> usize {
    let end = at + bytes.len() as u64;
    let index = |offset: u64| usize::try_from(offset - at).expect("an offset in the buffer");
    let mut flip = |offset: u64| {
        bytes[index(offset)] ^= 1;
        flipped.fetch_add(1, Ordering::Relaxed);
    };
    match fault {
        Some(Fault::FlipAt(offset)) if (at..end).contains(&offset) => flip(offset),
        Some(Fault::FlipEvery(step)) => (1..)
            .map(|count| count * step)
            .skip_while(|&offset| offset < at)
            .take_while(|&offset| offset < end)
            .for_each(flip),
        Some(Fault::StallAfter(offset)) => return index(offset.clamp(at, end)),
        Some(Fault::FlipAt(_)) | None => {}
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(fault: Fault, chunks: &[usize]) -> (Vec<u8>, u64) {
        let flipped = AtomicU64::new(0);
        let (mut at, mut passed) = (0, Vec::new());
        for &len in chunks {
            let mut bytes = vec![0; len];
            let pass = apply(Some(fault), at, &mut bytes, &flipped);
            passed.extend_from_slice(&bytes[..pass]);
            at += len as u64;
        }
        (passed, flipped.into_inner())
    }

    #[test]
    fn a_flip_hits_the_chosen_byte_whatever_the_chunks_are() {
        for chunks in [&[10][..], &[3, 3, 4], &[7, 3], &[8, 2]] {
            let (passed, flipped) = through(Fault::FlipAt(7), chunks);
            assert_eq!((passed, flipped), (vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 1));
        }
    }

    #[test]
    fn repeated_flips_hit_every_multiple() {
        let (passed, flipped) = through(Fault::FlipEvery(4), &[3, 3, 4]);
        assert_eq!((passed, flipped), (vec![0, 0, 0, 0, 1, 0, 0, 0, 1, 0], 2));
    }

    #[test]
    fn a_stall_passes_exactly_what_comes_before_it() {
        assert_eq!(through(Fault::StallAfter(4), &[3, 3, 4]).0.len(), 4);
        assert_eq!(through(Fault::StallAfter(0), &[3, 3]).0.len(), 0);
    }
}

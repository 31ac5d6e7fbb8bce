//! What a device makes of memory windows, found by experiment: some let a peer write beyond the bounds of its window.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use super::completion_queue::CompletionQueue;
use super::device::Device;
use super::error::VerbsError;
use super::gid::GidEntry;
use super::memory_region::{Access, MemoryRegion, RegionKey};
use super::memory_window::MemoryWindow;
use super::protection_domain::ProtectionDomain;
use super::queue_pair::{QueuePair, QueuePairOptions};
use super::request::{Completion, Payload, Remote, SendRequest, Status};
use super::timing::Timing;
use crate::limits::{VERBS_WINDOW_PROBE_PAUSE, VERBS_WINDOW_PROBE_TIMEOUT};
use crate::memory::{Memory, Slice};

/// What a device holds the peer of a memory window to, as far as experiments show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// It has none of type 2, or they cannot be written through.
    None,
    /// It has.
    Seen(Enforced),
}

impl Windows {
    /// Whether a peer can do nothing that its window does not allow.
    #[must_use]
    pub fn are_enforced(self) -> bool {
        self == Self::Seen(Enforced::ALL)
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("there are none"),
            Self::Seen(enforced) if *enforced == Enforced::ALL => f.write_str("enforced"),
            Self::Seen(enforced) => write!(f, "not enforced ({})", enforced.lacking().join(", ")),
        }
    }
}

/// What was refused each time that it was tried, with the victim's bytes untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enforced {
    /// Writes that lie before, behind or across an end of the window.
    pub bounds: bool,
    /// Writes under the key of another queue pair's window, and under the key of the region.
    pub key: bool,
    /// Writes under a key that was invalidated, whether or not the window was bound again.
    pub invalidation: bool,
}

impl Enforced {
    const ALL: Self = Self {
        bounds: true,
        key: true,
        invalidation: true,
    };

    /// Names of what is not enforced.
    #[must_use]
    pub fn lacking(self) -> Vec<&'static str> {
        let parts = [
            (self.bounds, "bounds"),
            (self.key, "key"),
            (self.invalidation, "invalidation"),
        ];
        let lacking = parts.into_iter().filter(|(is_enforced, _)| !is_enforced);
        lacking.map(|(_, name)| name).collect()
    }
}

/// Tries what a device makes of windows, on scratch memory, between queue pairs of one of its ports. Takes some
/// milliseconds and waits where it is called.
///
/// # Errors
/// [`VerbsError`], if the experiment cannot be made.
pub fn probe_windows(device: &Arc<Device>, gid: &GidEntry) -> Result<Windows, VerbsError> {
    if !device.attributes().windows {
        return Ok(Windows::None);
    }
    let bench = Bench::new(device, gid)?;
    if !bench.lets_in()? {
        return Ok(Windows::None);
    }
    Ok(Windows::Seen(Enforced {
        bounds: bench.enforces_bounds()?,
        key: bench.enforces_key()?,
        invalidation: bench.enforces_invalidation()?,
    }))
}

/// A page to write from, and three behind it of which the middle one gets the window.
const PAGE_BYTES: u64 = 4096;
const WINDOW_AT: u64 = 2 * PAGE_BYTES;
const WRITE_BYTES: u64 = 64;
const MEMORY_BYTES: u64 = 4 * PAGE_BYTES;

struct Bench {
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue<Work>>,
    gid: GidEntry,
    memory: Slice,
    region: Arc<MemoryRegion>,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Owner,
    Writer,
}

/// Two queue pairs that are connected, and a window of the one.
struct Pair {
    window: MemoryWindow<Work>,
    owner: QueuePair<Work>,
    writer: QueuePair<Work>,
}

impl Bench {
    fn new(device: &Arc<Device>, gid: &GidEntry) -> Result<Self, VerbsError> {
        let domain = ProtectionDomain::new(device)?;
        let queue = CompletionQueue::new(device, 4 * (OPTIONS.send_requests + OPTIONS.receive_requests))?;
        let len = usize::try_from(MEMORY_BYTES).expect("four pages");
        let memory = Arc::new(Memory::from_vec(vec![0; len])).whole();
        let access = Access::LOCAL_WRITE | Access::BIND_WINDOWS;
        let region = MemoryRegion::register(&domain, memory.clone(), access)?;
        memory.copy_in(0, &[0xa5; 64]).expect("the first page is inside");
        Ok(Self {
            domain,
            queue,
            gid: *gid,
            memory,
            region,
        })
    }

    /// A write inside of the window arrives: what is refused otherwise is so for a reason.
    fn lets_in(&self) -> Result<bool, VerbsError> {
        let pair = self.pair()?;
        let Some(key) = self.bind(&pair)? else { return Ok(false) };
        let status = self.write(&pair, WINDOW_AT, key)?;
        Ok(status == Status::Success && self.touched(WINDOW_AT))
    }

    fn enforces_bounds(&self) -> Result<bool, VerbsError> {
        let end = WINDOW_AT + PAGE_BYTES;
        let outside = [end, WINDOW_AT - WRITE_BYTES, end - WRITE_BYTES / 2];
        for at in outside {
            let pair = self.pair()?;
            let Some(key) = self.bind(&pair)? else { return Ok(false) };
            if !self.is_refused(&pair, at, key)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn enforces_key(&self) -> Result<bool, VerbsError> {
        let (ours, other) = (self.pair()?, self.pair()?);
        let Some(key) = self.bind(&ours)? else { return Ok(false) };
        Ok(self.is_refused(&other, WINDOW_AT, key)? && self.is_refused(&ours, WINDOW_AT, self.region.key())?)
    }

    fn enforces_invalidation(&self) -> Result<bool, VerbsError> {
        for binds_again in [false, true] {
            let pair = self.pair()?;
            let Some(key) = self.bind(&pair)? else { return Ok(false) };
            let posted = pair.window.invalidate(Work::Owner);
            if posted.is_err() || self.next(Work::Owner)? != Status::Success {
                return Ok(false);
            }
            if binds_again && self.bind(&pair)?.is_none() {
                return Ok(false);
            }
            if !self.is_refused(&pair, WINDOW_AT, key)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn pair(&self) -> Result<Pair, VerbsError> {
        let options = QueuePairOptions {
            port: u8::try_from(self.gid.port).unwrap_or(u8::MAX),
            ..OPTIONS
        };
        let made = |access| {
            let queue_pair = QueuePair::new(&self.domain, &self.queue, options)?;
            queue_pair.initialise(access)?;
            let endpoint = queue_pair.endpoint(&self.gid, rand::random())?;
            Ok::<_, VerbsError>((queue_pair, endpoint))
        };
        let (owner, at_owner) = made(Access::REMOTE_WRITE)?;
        let (writer, at_writer) = made(Access::LOCAL_READ)?;
        owner.connect(&at_owner, &self.gid, &at_writer, Timing::default())?;
        writer.connect(&at_writer, &self.gid, &at_owner, Timing::default())?;
        Ok(Pair {
            window: MemoryWindow::new(&owner)?,
            owner,
            writer,
        })
    }

    /// Binds the window; `None` if the device does not.
    fn bind(&self, pair: &Pair) -> Result<Option<RegionKey>, VerbsError> {
        let part = self.region.part(WINDOW_AT..WINDOW_AT + PAGE_BYTES)?;
        match pair.window.bind(part, Access::REMOTE_WRITE, Work::Owner) {
            Ok(key) => Ok((self.next(Work::Owner)? == Status::Success).then_some(key)),
            Err(_) => Ok(None),
        }
    }

    fn is_refused(&self, pair: &Pair, at: u64, key: RegionKey) -> Result<bool, VerbsError> {
        self.memory
            .copy_in(PAGE_BYTES, &[0; 3 * 4096])
            .expect("three pages lie behind the first");
        let status = self.write(pair, at, key)?;
        Ok(status != Status::Success && !self.touched(at))
    }

    fn touched(&self, at: u64) -> bool {
        let written = self.memory.subslice(at..at + WRITE_BYTES).expect("it is inside");
        written.to_vec().iter().any(|byte| *byte != 0)
    }

    fn write(&self, pair: &Pair, at: u64, key: RegionKey) -> Result<Status, VerbsError> {
        let to = Remote {
            address: self.region.address() + at,
            key,
        };
        let from = Payload::Parts(vec![self.region.part(0..WRITE_BYTES)?]);
        match pair.writer.post_send(vec![SendRequest::write(to, from, Work::Writer)]) {
            Ok(()) => self.next(Work::Writer),
            Err(_) => Ok(Status::Flushed),
        }
    }

    /// How the next request of this side ended.
    fn next(&self, whose: Work) -> Result<Status, VerbsError> {
        let (begun, mut found) = (Instant::now(), Vec::new());
        while begun.elapsed() < VERBS_WINDOW_PROBE_TIMEOUT {
            self.queue.poll(&mut found)?;
            let its = |completion: &Completion<Work>| completion.context == whose;
            if let Some(completion) = found.drain(..).find(its) {
                return Ok(completion.status);
            }
            thread::sleep(VERBS_WINDOW_PROBE_PAUSE);
        }
        Err(VerbsError::Silent {
            device: self.domain.device().name().to_owned(),
        })
    }
}

const OPTIONS: QueuePairOptions = QueuePairOptions {
    port: 1,
    send_requests: 4,
    receive_requests: 1,
    parts: 1,
    inline_bytes: 0,
};

impl Drop for Pair {
    /// Its window may be bound: that is let go of only when nobody can write any more.
    fn drop(&mut self) {
        for queue_pair in [&self.owner, &self.writer] {
            if let Err(error) = queue_pair.fail() {
                tracing::warn!(%error, "a queue pair of an experiment does not go to ERR");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_enforced_is_named() {
        let seen = |bounds, key, invalidation| {
            Windows::Seen(Enforced {
                bounds,
                key,
                invalidation,
            })
        };
        assert!(seen(true, true, true).are_enforced() && !Windows::None.are_enforced());
        assert_eq!(seen(true, true, true).to_string(), "enforced");
        let some = seen(false, true, false);
        assert_eq!(
            (some.to_string().as_str(), some.are_enforced()),
            ("not enforced (bounds, invalidation)", false)
        );
        assert!(!seen(true, false, true).are_enforced());
    }
}

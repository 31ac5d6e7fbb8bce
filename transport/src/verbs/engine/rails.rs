//! The devices that this process uses, and the memory that is registered with them.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::flight::Ticket;
use super::subnet::Subnet;
use crate::limits::{VERBS_QUEUE_PAIRS_MAX, VERBS_SEND_REQUESTS};
use crate::memory::{Memory, Slice};
use crate::verbs::{
    Access, CompletionChannel, CompletionQueue, Device, GidEntry, Local, MemoryRegion, PortState, ProtectionDomain,
    QueuePair, QueuePairOptions, Timing, VerbsError, choose_gid, devices,
};

/// How devices are chosen and used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailsOptions {
    /// Names of the devices to use; `None` for all.
    pub devices: Option<Vec<String>>,
    /// Row of the GID table to use on every port; `None` for the best one (see [`choose_gid`]).
    pub gid_index: Option<u32>,
    /// How long completions are polled for before an event is awaited. Zero where peers share a processor.
    pub spin: Duration,
    /// How long a silent peer is waited for.
    pub timing: Timing,
}

impl Default for RailsOptions {
    /// All devices. Polls for some tens of microseconds where there is more than one processor.
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            devices: None,
            gid_index: None,
            spin: Duration::from_micros(if processors > 1 { 30 } else { 0 }),
            timing: Timing::default(),
        }
    }
}

/// No device of this host can be used.
#[derive(Debug, thiserror::Error)]
#[error("no RDMA device can be used: {}", reasons.join("; "))]
pub struct NoRails {
    /// Why, for each device that was tried, or once if there is none.
    pub reasons: Vec<String>,
}

/// One active port of a device, with what transfers over it need.
#[derive(Debug)]
pub(super) struct Rail {
    /// Of the device and port.
    pub(super) name: String,
    port: u8,
    pub(super) gid: GidEntry,
    pub(super) subnet: Subnet,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue<Ticket>>,
    reaper: JoinHandle<()>,
}

impl Drop for Rail {
    fn drop(&mut self) {
        self.reaper.abort();
    }
}

/// All rails of this process. Memory is registered with each of them. Shared by its connections and its target.
pub struct Rails {
    rails: Vec<Arc<Rail>>,
    options: RailsOptions,
    registered: Mutex<HashMap<usize, Registered>>,
}

/// The regions of one memory, one per rail.
struct Registered {
    regions: Vec<Arc<MemoryRegion>>,
    /// [`Registration`]s of it.
    count: usize,
}

/// Keeps a memory registered with every rail. Dropping it ends that, once no transfer uses it any more.
pub struct Registration {
    rails: Arc<Rails>,
    memory: Arc<Memory>,
}

impl Rails {
    /// Opens every device that the options name, and takes each of its ports that is active and has an address. Reapers
    /// run on `runtime`.
    ///
    /// # Errors
    /// [`NoRails`]. A device that cannot be used beside others that can is logged.
    pub fn open(options: RailsOptions, runtime: &Handle) -> Result<Arc<Self>, NoRails> {
        let (mut rails, mut reasons) = (Vec::new(), Vec::new());
        let names = match (&options.devices, devices()) {
            (Some(names), Ok(_)) => names.clone(),
            (None, Ok(found)) => found,
            (_, Err(error)) => {
                reasons.push(error.to_string());
                Vec::new()
            }
        };
        for name in names {
            match open_device(&name, &options, runtime) {
                Ok((mut found, mut unused)) => {
                    rails.append(&mut found);
                    reasons.append(&mut unused);
                }
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        if rails.is_empty() {
            if reasons.is_empty() {
                reasons.push("there is none".to_owned());
            }
            return Err(NoRails { reasons });
        }
        for reason in reasons {
            tracing::warn!(reason, "a device or port is not used for RDMA");
        }
        for rail in &rails {
            tracing::info!(rail = rail.name, subnet = %rail.subnet, "a port is used for RDMA");
        }
        Ok(Arc::new(Self {
            rails,
            options,
            registered: Mutex::default(),
        }))
    }

    /// Names of the rails, device and port.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.rails.iter().map(|rail| rail.name.as_str())
    }

    pub(super) fn all(&self) -> &[Arc<Rail>] {
        &self.rails
    }

    pub(super) fn timing(&self) -> Timing {
        self.options.timing
    }

    /// Registers a whole memory with every rail, for transfers of this process and for reads of its peers. The system
    /// locks its pages, which takes as long as touching them: call it outside of asynchronous tasks.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    pub fn register(self: &Arc<Self>, memory: &Arc<Memory>) -> Result<Registration, VerbsError> {
        let registration = || Registration {
            rails: Arc::clone(self),
            memory: Arc::clone(memory),
        };
        if let Some(known) = self.registered.lock().get_mut(&name_of(memory)) {
            known.count += 1;
            return Ok(registration());
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let register = |rail: &Arc<Rail>| MemoryRegion::register(&rail.domain, memory.whole(), access);
        let regions = self.rails.iter().map(register).collect::<Result<_, _>>()?;
        let mut registered = self.registered.lock();
        let known = registered
            .entry(name_of(memory))
            .or_insert(Registered { regions, count: 0 });
        known.count += 1;
        Ok(registration())
    }

    /// The region that a memory is registered as with a rail.
    pub(super) fn region(&self, rail: usize, memory: &Arc<Memory>) -> Option<Arc<MemoryRegion>> {
        let registered = self.registered.lock();
        Some(Arc::clone(&registered.get(&name_of(memory))?.regions[rail]))
    }

    /// The parts of registered memory that slices are, for requests on one rail. What is not registered is, for as long
    /// as the parts live.
    pub(super) fn locals(&self, rail: usize, slices: &[Slice]) -> Result<Vec<Local>, VerbsError> {
        let local = |slice: &Slice| match self.region(rail, slice.memory()) {
            Some(region) => region.part_of(slice),
            None => self.lend(rail, slice, Access::LOCAL_WRITE)?.part_of(slice),
        };
        slices.iter().map(local).collect()
    }

    /// Registers a slice alone.
    pub(super) fn lend(&self, rail: usize, slice: &Slice, access: Access) -> Result<Arc<MemoryRegion>, VerbsError> {
        MemoryRegion::register(&self.rails[rail].domain, slice.clone(), access)
    }
}

impl fmt::Debug for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rails")
            .field("rails", &self.names().collect::<Vec<_>>())
            .field("registered", &self.registered.lock().len())
            .finish_non_exhaustive()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registered = self.rails.registered.lock();
        let name = name_of(&self.memory);
        let gone = registered.get_mut(&name).is_some_and(|known| {
            known.count -= 1;
            known.count == 0
        });
        let regions = if gone { registered.remove(&name) } else { None };
        drop(registered);
        // Deregistering takes time: without the lock.
        drop(regions);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("len_bytes", &self.memory.len_bytes())
            .finish_non_exhaustive()
    }
}

impl Rail {
    /// A new queue pair in INIT, which lets its peer read.
    pub(super) fn queue_pair(&self) -> Result<QueuePair<Ticket>, VerbsError> {
        let options = QueuePairOptions {
            port: self.port,
            inline_bytes: 0,
            ..QueuePairOptions::default()
        };
        let queue_pair = QueuePair::new(&self.domain, &self.queue, options)?;
        queue_pair.initialise(Access::REMOTE_READ)?;
        Ok(queue_pair)
    }
}

/// Where a memory is. It is kept while it is a key, so no other memory is there.
fn name_of(memory: &Arc<Memory>) -> usize {
    Arc::as_ptr(memory).addr()
}

/// The rails of one device, and why others of its ports are none.
fn open_device(
    name: &str,
    options: &RailsOptions,
    runtime: &Handle,
) -> Result<(Vec<Arc<Rail>>, Vec<String>), VerbsError> {
    let device = Device::open(name)?;
    let domain = ProtectionDomain::new(&device)?;
    let (mut rails, mut unused) = (Vec::new(), Vec::new());
    for number in 1..=device.attributes().ports {
        let port = device.port(number)?;
        if port.state != PortState::Active {
            unused.push(format!("{name}, port {number}: it is {:?}", port.state));
            continue;
        }
        let Some(gid) = choose_gid(&device.gids(number)?, options.gid_index) else {
            unused.push(format!("{name}, port {number}: it has no address that serves"));
            continue;
        };
        let entries = VERBS_QUEUE_PAIRS_MAX * (VERBS_SEND_REQUESTS + 1);
        let queue = CompletionQueue::new(&device, entries)?;
        let _inside = runtime.enter();
        let channel = CompletionChannel::new(&queue)?;
        let name = format!("{name}:{number}");
        rails.push(Arc::new(Rail {
            port: number,
            gid,
            subnet: subnet_of(&gid),
            domain: Arc::clone(&domain),
            queue,
            reaper: runtime.spawn(reap(name.clone(), channel, options.spin)),
            name,
        }));
    }
    Ok((rails, unused))
}

/// The subnet of an address: that of the interface it belongs to, or the first 64 bits.
fn subnet_of(gid: &GidEntry) -> Subnet {
    let address: Ipv6Addr = gid.gid.ipv6();
    let interface = gid.interface_name();
    Subnet::of_interface(address, interface.as_deref()).unwrap_or_else(|| Subnet::new(address, 64))
}

/// Gives completions to whom they belong, for ever.
async fn reap(rail: String, mut channel: CompletionChannel<Ticket>, spin: Duration) {
    let mut found = Vec::new();
    loop {
        if let Err(error) = channel.reap(spin, &mut found).await {
            tracing::error!(rail, %error, "a device gives no completions any more");
            return;
        }
        for completion in found.drain(..) {
            // What it read into or from is let go of before its owner hears of it.
            drop(completion.parts);
            completion.context.complete(completion.status);
        }
    }
}

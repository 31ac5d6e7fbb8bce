//! The devices that this process uses, and the memory that is registered with them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::events::{EventCounts, Losses, follow, look};
use super::flight::Ticket;
use super::path::Path;
use super::paths::Paths;
use super::pool::Slot;
use super::push_policy::{PushPolicy, Writes};
use super::rail::Rail;
use super::registered::{self, Regions};
use crate::limits::{VERBS_IDLE_MIN, VERBS_QUEUE_PAIRS_MAX, VERBS_REGION_BYTES};
use crate::memory::{Memory, Slice};
use crate::task::OwnedTask;
use crate::verbs::{
    Access, AsyncEvents, Device, GidEntry, Local, MemoryRegion, ProtectionDomain, QueuePair, Timing, VerbsError,
    Windows, devices,
};

/// How devices are chosen and used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailsOptions {
    /// Names of the devices to use; `None` for all.
    pub devices: Option<Vec<String>>,
    /// Row of the GID table to use on every port; `None` for the best one (see [`choose_gid`](crate::verbs::choose_gid)).
    pub gid_index: Option<u32>,
    /// How long completions are polled for before an event is awaited. Zero where peers share a processor.
    pub spin: Duration,
    /// How long a silent peer is waited for.
    pub timing: Timing,
    /// Queue pairs of one port at most.
    pub queue_pairs_max: u32,
    /// Whether devices are kept that have no port to use yet: for programs that live long enough to see one.
    pub waits_for_ports: bool,
    /// Whether peers may write by themselves.
    pub push: PushPolicy,
    /// Memory is registered in parts of so many bytes.
    pub region_bytes: u64,
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
            queue_pairs_max: VERBS_QUEUE_PAIRS_MAX,
            waits_for_ports: false,
            push: PushPolicy::default(),
            region_bytes: VERBS_REGION_BYTES,
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

/// Where a read lands.
#[derive(Debug, Default)]
pub(super) struct Landing {
    pub(super) parts: Vec<Local>,
    /// Slots among them, and where their content goes then.
    pub(super) slots: Vec<(Arc<Slot>, Slice)>,
}

/// All rails of this process. Memory is registered with each of them. Shared by its connections and its target.
pub struct Rails {
    rails: Vec<Arc<Rail>>,
    options: RailsOptions,
    registered: Mutex<HashMap<usize, Registered>>,
    /// The paths of each connection and of each peer's link.
    connections: Mutex<Vec<Weak<Paths>>>,
    /// Counts changes of what rails can be used.
    changes: watch::Sender<u64>,
    events: EventCounts,
    losses: Arc<Losses>,
    writes: Writes,
    /// What follows the events of the devices of these rails, each of which it keeps open.
    followers: Mutex<Vec<(Vec<usize>, OwnedTask)>>,
    runtime: Handle,
}

/// The regions of one memory, one per rail whose device is there.
struct Registered {
    regions: Vec<Option<Regions>>,
    /// [`Registration`]s of it.
    count: usize,
}

/// Keeps a memory registered with every rail. Dropping it ends that, once no transfer uses it any more.
pub struct Registration {
    rails: Arc<Rails>,
    memory: Arc<Memory>,
}

impl Rails {
    /// Opens every device that the options name, for each of its ports: a port is used while it is active and has an
    /// address. Tasks run on `runtime`.
    ///
    /// # Errors
    /// [`NoRails`] if there is no device that can be opened, or no port that can be used now and none is waited for. A
    /// device or port that can't be used beside others that can is logged.
    pub fn open(options: RailsOptions, runtime: &Handle) -> Result<Arc<Self>, NoRails> {
        let (mut rails, mut watched, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
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
                Ok((events, found)) => {
                    watched.push((events, (rails.len()..rails.len() + found.len()).collect()));
                    rails.extend(found.into_iter().map(Arc::new));
                }
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        reasons.extend(unused(&rails));
        let is_used = |rail: &Arc<Rail>| options.waits_for_ports || rail.is_up();
        if !rails.iter().any(is_used) {
            if reasons.is_empty() {
                reasons.push("there is none".to_owned());
            }
            return Err(NoRails { reasons });
        }
        for reason in reasons {
            tracing::warn!(reason, "a device or port is not used for RDMA");
        }
        let opened = Arc::new(Self {
            rails,
            options,
            registered: Mutex::default(),
            connections: Mutex::default(),
            changes: watch::Sender::new(0),
            events: EventCounts::default(),
            losses: Arc::default(),
            writes: Writes::default(),
            followers: Mutex::default(),
            runtime: runtime.clone(),
        });
        opened.follow(watched);
        Ok(opened)
    }

    /// Acts on what devices say from now on.
    fn follow(self: &Arc<Self>, watched: Vec<(AsyncEvents, Vec<usize>)>) {
        let _inside = self.runtime.enter();
        let following = watched.into_iter().map(|(events, own)| {
            let task = OwnedTask::spawn(follow(events, Arc::downgrade(self), own.clone()));
            (own, task)
        });
        let looking = (Vec::new(), OwnedTask::spawn(look(Arc::downgrade(self))));
        self.followers.lock().extend(following.chain([looking]));
        for (number, rail) in self.rails.iter().enumerate() {
            if let Ok(address) = rail.address() {
                tracing::info!(rail = rail.name, subnet = %address.subnet, "a port is used for RDMA");
            }
            // It may have changed before somebody listened.
            self.examine(number);
        }
    }

    /// Names of the rails that can be used now, device and port.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let up = self.rails.iter().filter(|rail| rail.is_up());
        up.map(|rail| rail.name.as_str())
    }

    /// Another number after each change of what rails can be used.
    #[must_use]
    pub fn revision(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Why rails cannot be used now that can't.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        unused(&self.rails)
    }

    /// What devices said unasked.
    #[must_use]
    pub fn events(&self) -> &EventCounts {
        &self.events
    }

    /// Paths that ended otherwise than they should.
    #[must_use]
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// What the device of each rail makes of memory windows, by the name of the rail, where that was tried.
    #[must_use]
    pub fn windows(&self) -> Vec<(String, Windows)> {
        let tried = |rail: &Arc<Rail>| Some((rail.name.clone(), rail.windows()?));
        self.rails.iter().filter_map(tried).collect()
    }

    /// How many rails peers may write over now.
    #[must_use]
    pub fn pushing(&self) -> usize {
        self.rails.iter().filter(|rail| rail.is_up() && rail.pushes()).count()
    }

    /// What peers wrote to exports of this process.
    #[must_use]
    pub fn writes(&self) -> &Writes {
        &self.writes
    }

    pub(super) fn all(&self) -> &[Arc<Rail>] {
        &self.rails
    }

    /// How long small reads are polled for before an event is asked for.
    pub(super) fn spin(&self) -> Duration {
        self.options.spin
    }

    pub(super) fn timing(&self) -> Timing {
        self.options.timing
    }

    /// Registers a whole memory with every rail at the same time, for transfers of this process and for reads of its peers. The system
    /// locks its pages, which takes as long as touching them: call it outside of asynchronous tasks.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`]: then no part of it is registered.
    pub fn register(self: &Arc<Self>, memory: &Arc<Memory>) -> Result<Registration, VerbsError> {
        self.register_telling(memory, &|_| ())
    }

    /// The same; `done` gets the bytes of each part that is registered.
    ///
    /// # Errors
    /// As [`Self::register`].
    pub fn register_telling(
        self: &Arc<Self>,
        memory: &Arc<Memory>,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<Registration, VerbsError> {
        let registration = || Registration {
            rails: Arc::clone(self),
            memory: Arc::clone(memory),
        };
        if let Some(known) = self.registered.lock().get_mut(&name_of(memory)) {
            known.count += 1;
            done(memory.len_bytes());
            return Ok(registration());
        }
        let mut regions = registered::register(&self.rails, memory, self.options.region_bytes, done)?;
        let mut registered = self.registered.lock();
        let known = registered.entry(name_of(memory)).or_insert_with(|| Registered {
            regions: std::mem::take(&mut regions),
            count: 0,
        });
        known.count += 1;
        // A device that went in between has not found its region, and waits for it. One that goes from here on finds it.
        for (rail, region) in self.rails.iter().zip(&mut known.regions) {
            if rail.opened().is_err() {
                regions.push(region.take());
            }
        }
        drop(registered);
        // Deregistering takes time: without the lock.
        drop(regions);
        Ok(registration())
    }

    /// The regions that a memory is registered as with a rail.
    pub(super) fn regions(&self, rail: usize, memory: &Arc<Memory>) -> Option<Regions> {
        let registered = self.registered.lock();
        registered.get(&name_of(memory))?.regions[rail].clone()
    }

    /// The region that a slice of registered memory lies in, which is no longer than a request moves.
    pub(super) fn region(&self, rail: usize, slice: &Slice) -> Option<Arc<MemoryRegion>> {
        let registered = self.registered.lock();
        let regions = registered.get(&name_of(slice.memory()))?.regions[rail].as_ref()?;
        regions.of(slice).cloned()
    }

    /// Where a read into slices is to land, on one rail: in the slices themselves if they are registered, which they are
    /// for as long as the parts live if they must be; small ones that are not, in slots of the rail's.
    pub(super) fn landing(&self, rail: usize, slices: &[Slice]) -> Result<Landing, VerbsError> {
        let mut landing = Landing::default();
        for slice in slices {
            let part = if let Some(region) = self.region(rail, slice) {
                region.part_of(slice)?
            } else if let Some(slot) = self.rails[rail].opened()?.pool.take(slice) {
                let part = slot.local(slice.len_bytes())?;
                landing.slots.push((slot, slice.clone()));
                part
            } else {
                self.lend(rail, slice, Access::LOCAL_WRITE)?.part_of(slice)?
            };
            landing.parts.push(part);
        }
        Ok(landing)
    }

    /// The part of memory that a slice is, for a window on one rail.
    pub(super) fn for_window(&self, rail: usize, slice: &Slice) -> Result<Local, VerbsError> {
        let region = match self.region(rail, slice) {
            Some(region) => region,
            None => self.lend(rail, slice, Access::LOCAL_WRITE | Access::BIND_WINDOWS)?,
        };
        region.part_of(slice)
    }

    /// The part of memory that a slice is, for a write on one rail.
    pub(super) fn source(&self, rail: usize, slice: &Slice) -> Result<Local, VerbsError> {
        let region = match self.region(rail, slice) {
            Some(region) => region,
            None => self.lend(rail, slice, Access::LOCAL_READ)?,
        };
        region.part_of(slice)
    }

    /// Registers a slice alone.
    pub(super) fn lend(&self, rail: usize, slice: &Slice, access: Access) -> Result<Arc<MemoryRegion>, VerbsError> {
        let opened = self.rails[rail].opened()?;
        MemoryRegion::register(&opened.domain, slice.clone(), access)
    }

    /// Paths of a new connection, or to a peer that has one.
    pub(super) fn paths(&self, is_initiator: bool) -> Arc<Paths> {
        let paths = Arc::new(Paths::new(is_initiator, &self.losses));
        let mut connections = self.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        connections.push(Arc::downgrade(&paths));
        paths
    }

    /// Whether a rail can be used, and still has this address.
    pub(super) fn has(&self, rail: usize, gid: &GidEntry) -> bool {
        self.rails[rail].address().is_ok_and(|address| address.gid == *gid)
    }

    /// Tells of each change of what rails can be used.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A new queue pair of a rail, in INIT, which lets its peer do this at most. Where there are as many as there may be, those that this side has not used for
    /// the longest time make room.
    pub(super) fn queue_pair(&self, rail: usize, access: Access) -> Result<QueuePair<Ticket>, VerbsError> {
        loop {
            match self.rails[rail].queue_pair(access) {
                Err(VerbsError::CompletionQueueFull { .. }) if self.rest_least_used(rail) => {}
                made => return made,
            }
        }
    }

    /// Closes the path of a rail that this side has not used for the longest time; false if all are in use.
    fn rest_least_used(&self, rail: usize) -> bool {
        let connections = self.connections();
        let idle = connections.iter().flat_map(|paths| {
            paths
                .idle(rail)
                .into_iter()
                .map(move |(idle, path)| (idle, paths, path))
        });
        let least = idle
            .filter(|(idle, ..)| *idle >= VERBS_IDLE_MIN)
            .max_by_key(|(idle, ..)| *idle);
        let Some((idle, paths, path)) = least else { return false };
        tracing::debug!(rail = self.rails[rail].name, ?idle, "a path is closed to make room");
        paths.rest(&path);
        true
    }

    /// Looks at a port again. If it went down, or has another address, its paths do not carry any more.
    pub(super) fn examine(&self, number: usize) {
        let rail = &self.rails[number];
        let Some(address) = rail.examine() else { return };
        match address {
            Ok(address) => tracing::info!(rail = rail.name, subnet = %address.subnet, "a port is used for RDMA"),
            Err(reason) => tracing::warn!(rail = rail.name, reason, "a port is not used for RDMA any more"),
        }
        self.changed(&[number]);
    }

    /// Lets go of devices that are not listed any more. One that gets another name is listed to this process under its
    /// first one, by which the library knows it.
    pub(super) fn keep_listed(&self, listed: &[String]) {
        let rails = self.rails.iter().enumerate();
        let gone = rails.filter(|(_, rail)| rail.opened().is_ok() && !listed.contains(&rail.device));
        let gone: Vec<usize> = gone.map(|(number, _)| number).collect();
        if !gone.is_empty() {
            self.device_gone(&gone, "the system does not list it any more");
        }
    }

    /// The device of these rails is gone: it is let go.
    pub(super) fn device_gone(&self, own: &[usize], reason: &str) {
        let opened: Vec<_> = own.iter().filter_map(|rail| self.rails[*rail].gone(reason)).collect();
        for rail in own {
            tracing::error!(rail = self.rails[*rail].name, reason, "a device is gone");
        }
        self.changed(own);
        let mut gone = Vec::new();
        for known in self.registered.lock().values_mut() {
            gone.extend(own.iter().filter_map(|rail| known.regions[*rail].take()));
        }
        // Deregistering takes time: without the lock.
        drop(gone);
        let is_kept = |(of, _): &(Vec<usize>, OwnedTask)| !of.iter().any(|rail| own.contains(rail));
        self.followers.lock().retain(is_kept);
        for opened in opened {
            self.runtime.spawn(opened.let_go());
        }
    }

    fn changed(&self, rails: &[usize]) {
        self.lose_paths(|path| rails.contains(&path.rail));
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Ends paths that do not carry any more, of whatever connection.
    pub(super) fn lose_paths(&self, is_lost: impl Fn(&Path) -> bool) {
        for paths in self.connections() {
            for path in paths.up().iter().filter(|path| is_lost(path)) {
                paths.lose(path);
            }
        }
    }

    fn connections(&self) -> Vec<Arc<Paths>> {
        self.connections.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Rails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free_slots = self
            .rails
            .iter()
            .filter_map(|rail| Some(rail.opened().ok()?.pool.free()));
        f.debug_struct("Rails")
            .field("rails", &self.names().collect::<Vec<_>>())
            .field("registered", &self.registered.lock().len())
            .field("free_slots", &free_slots.collect::<Vec<_>>())
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

fn unused(rails: &[Arc<Rail>]) -> Vec<String> {
    let reason = |rail: &Arc<Rail>| Some(format!("{}: {}", rail.name, rail.address().err()?));
    rails.iter().filter_map(reason).collect()
}

/// Where a memory is. It is kept while it is a key, so no other memory is there.
fn name_of(memory: &Arc<Memory>) -> usize {
    Arc::as_ptr(memory).addr()
}

/// The rails of one device, one per port, and what it says unasked.
fn open_device(name: &str, options: &RailsOptions, runtime: &Handle) -> Result<(AsyncEvents, Vec<Rail>), VerbsError> {
    let device = Device::open(name)?;
    let domain = ProtectionDomain::new(&device)?;
    let _inside = runtime.enter();
    let events = AsyncEvents::new(&device)?;
    let ports = 1..=device.attributes().ports;
    let rails = ports.map(|port| Rail::open(&domain, port, options, runtime));
    Ok((events, rails.collect::<Result<_, _>>()?))
}

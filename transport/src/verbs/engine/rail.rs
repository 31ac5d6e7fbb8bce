//! One port of a device: whether it can be used, and what transfers over it need.

use std::net::Ipv6Addr;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::flight::Ticket;
use super::pool::Pool;
use super::push_policy::PushPolicy;
use super::rails::RailsOptions;
use super::reaping::{deliver, reap};
use super::subnet::Subnet;
use crate::limits::{VERBS_FLUSH_TIMEOUT, VERBS_LET_GO_PERIOD, VERBS_SEND_REQUESTS};
use crate::task::OwnedTask;
use crate::verbs::{
    Access, CompletionChannel, CompletionQueue, Device, GidEntry, PortState, ProtectionDomain, QueuePair,
    QueuePairOptions, VerbsError, Windows, choose_gid,
};

/// A port's address, and the network that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) gid: GidEntry,
    pub(super) subnet: Subnet,
}

/// One port of a device.
#[derive(Debug)]
pub(super) struct Rail {
    /// Of the device and port.
    pub(super) name: String,
    pub(super) device: String,
    pub(super) port: u8,
    gid_index: Option<u32>,
    push: PushPolicy,
    /// Held while the port is looked at.
    looking: Mutex<()>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: the device is gone.
    opened: Option<Arc<Opened>>,
    /// While it can be used; else why it can't.
    address: Result<Address, String>,
    /// What the device makes of windows, once that was tried.
    windows: Option<Windows>,
}

/// A device that is in use, and what belongs to one of its ports.
#[derive(Debug)]
pub(super) struct Opened {
    device: Arc<Device>,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) pool: Arc<Pool>,
    queue: Arc<CompletionQueue<Ticket>>,
    /// Of the queue while no queue pair has its share.
    entries: u32,
    _reaper: OwnedTask,
}

impl Rail {
    /// A port of a device, whose completions are reaped on `runtime`.
    pub(super) fn open(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        options: &RailsOptions,
        runtime: &Handle,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let name = format!("{}:{port}", device.name());
        let entries = options.queue_pairs_max.saturating_mul(VERBS_SEND_REQUESTS + 1);
        let queue = CompletionQueue::new(device, entries)?;
        let _inside = runtime.enter();
        let channel = CompletionChannel::new(&queue)?;
        let opened = Opened {
            device: Arc::clone(device),
            domain: Arc::clone(domain),
            pool: Pool::new(domain)?,
            entries: queue.free(),
            queue,
            _reaper: OwnedTask::spawn(reap(name.clone(), channel, options.spin)),
        };
        let address = opened.address(port, options.gid_index)?;
        let found = address.as_ref().ok();
        let windows = found.and_then(|found| options.push.tried_on(&name, device, &found.gid));
        Ok(Self {
            name,
            device: device.name().to_owned(),
            port,
            gid_index: options.gid_index,
            push: options.push,
            looking: Mutex::default(),
            state: RwLock::new(State {
                opened: Some(Arc::new(opened)),
                address,
                windows,
            }),
        })
    }

    /// What the device makes of windows, if that was tried.
    pub(super) fn windows(&self) -> Option<Windows> {
        self.state.read().windows
    }

    /// Whether peers may write over it, under windows.
    pub(super) fn pushes(&self) -> bool {
        self.windows().is_some_and(|windows| self.push.allows(windows))
    }

    /// What memory is registered for besides, so that windows can be bound to it.
    pub(super) fn for_windows(&self) -> Access {
        let has_windows = self.opened().is_ok_and(|opened| opened.device.attributes().windows);
        match self.push != PushPolicy::Off && has_windows {
            true => Access::BIND_WINDOWS,
            false => Access::LOCAL_READ,
        }
    }

    /// Its address, while it can be used; else why it can't.
    pub(super) fn address(&self) -> Result<Address, String> {
        self.state.read().address.clone()
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.read().address.is_ok()
    }

    /// What is there of its device.
    pub(super) fn opened(&self) -> Result<Arc<Opened>, VerbsError> {
        let opened = self.state.read().opened.clone();
        opened.ok_or_else(|| VerbsError::Gone {
            port: self.name.clone(),
        })
    }

    /// Looks at the port again. If that changes anything, what it is now.
    pub(super) fn examine(&self) -> Option<Result<Address, String>> {
        // One look after the other: what an earlier one saw does not replace what a later one did.
        let _looking = self.looking.lock();
        let opened = self.opened().ok()?;
        let address = match opened.address(self.port, self.gid_index) {
            Ok(address) => address,
            Err(error) => Err(error.to_string()),
        };
        let before = self.windows();
        let windows = match &address {
            // Tried when the port can be used for the first time.
            Ok(found) if before.is_none() => self.push.tried_on(&self.name, &opened.device, &found.gid),
            _ => before,
        };
        let mut state = self.state.write();
        if state.address == address || state.opened.is_none() {
            return None;
        }
        state.address = address.clone();
        state.windows = windows;
        Some(address)
    }

    /// Its device is gone: what was opened is returned once.
    pub(super) fn gone(&self, reason: &str) -> Option<Arc<Opened>> {
        let mut state = self.state.write();
        state.address = Err(reason.to_owned());
        state.opened.take()
    }

    /// A new queue pair in INIT, which lets its peer do this at most.
    pub(super) fn queue_pair(&self, access: Access) -> Result<QueuePair<Ticket>, VerbsError> {
        let opened = self.opened()?;
        let options = QueuePairOptions {
            port: self.port,
            inline_bytes: 0,
            ..QueuePairOptions::default()
        };
        let queue_pair = QueuePair::new(&opened.domain, &opened.queue, options)?;
        queue_pair.initialise(access)?;
        Ok(queue_pair)
    }
}

impl Opened {
    /// The address of a port, or why it is not used.
    fn address(&self, number: u8, gid_index: Option<u32>) -> Result<Result<Address, String>, VerbsError> {
        let port = self.device.port(number)?;
        if port.state != PortState::Active {
            return Ok(Err(format!("it is {:?}", port.state)));
        }
        let Some(gid) = choose_gid(&self.device.gids(number)?, gid_index) else {
            return Ok(Err("it has no address that serves".to_owned()));
        };
        let subnet = subnet_of(&gid);
        Ok(Ok(Address { gid, subnet }))
    }

    /// Keeps a device that is gone until nothing uses it any more, or for a bounded time, and then closes it.
    pub(super) async fn let_go(self: Arc<Self>) {
        let rounds = VERBS_FLUSH_TIMEOUT.as_millis() / VERBS_LET_GO_PERIOD.as_millis();
        for _ in 0..rounds {
            if self.queue.free() == self.entries {
                return;
            }
            // The reaper may have ended with the device.
            let mut found = Vec::new();
            if self.queue.poll(&mut found).is_ok() || !found.is_empty() {
                deliver(found.drain(..));
            }
            sleep(VERBS_LET_GO_PERIOD).await;
        }
        tracing::error!(device = self.device.name(), "a device that is gone is still in use");
    }
}

/// The subnet of an address: that of the interface it belongs to, or the first 64 bits.
fn subnet_of(gid: &GidEntry) -> Subnet {
    let address: Ipv6Addr = gid.gid.ipv6();
    let interface = gid.interface_name();
    Subnet::of_interface(address, interface.as_deref()).unwrap_or_else(|| Subnet::new(address, 64))
}

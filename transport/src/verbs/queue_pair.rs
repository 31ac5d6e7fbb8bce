//! Reliable-connected queue pairs.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::{ibv_qp_attr, ibv_qp_cap};

use super::completion_queue::CompletionQueue;
use super::device::{Device, LinkLayer, Mtu, Port};
use super::error::VerbsError;
use super::gid::{Gid, GidEntry};
use super::memory_region::{Access, Local};
use super::posted::Posted;
use super::protection_domain::ProtectionDomain;
use super::raw;
use super::request::{Kind, Payload, PostError, PostFailure, ReceiveRequest, SendRequest, total_bytes};
use super::timing::Timing;
use super::transition::{Attribute, QueuePairState, transition_mask};
use crate::limits::{VERBS_INLINE_BYTES, VERBS_PARTS_MAX, VERBS_SEND_REQUESTS};

/// Sizes of a queue pair, clamped to what the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// Port of the device, from 1.
    pub port: u8,
    /// Requests of the send queue.
    pub send_requests: u32,
    /// Requests of the receive queue; one-sided work needs none.
    pub receive_requests: u32,
    /// Parts of one request, of either queue.
    pub parts: u32,
    /// Bytes that a request may carry in itself. A device that does not take as many gets none.
    pub inline_bytes: u32,
}

impl Default for QueuePairOptions {
    fn default() -> Self {
        Self {
            port: 1,
            send_requests: VERBS_SEND_REQUESTS,
            receive_requests: 1,
            parts: VERBS_PARTS_MAX,
            inline_bytes: VERBS_INLINE_BYTES,
        }
    }
}

/// One end of a connection: what the other must know of it. Plain numbers, for the caller to carry over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of the queue pair.
    pub queue_pair: u32,
    /// Sequence number of the first packet that it sends, below 2^24. Random, so that late packets of an earlier
    /// connection are not taken for this one's.
    pub first_packet: u32,
    /// Address of its port.
    pub gid: Gid,
    /// Local id of its port; 0 on Ethernet.
    pub local_id: u16,
    /// MTU of its port.
    pub mtu: Mtu,
    /// Reads that it serves at once.
    pub reads_as_target: u8,
}

/// A queue pair and its posted requests. Dropping it moves it to ERR, so that what is posted is flushed; the device's
/// object and the buffers go when it is known that nothing can be touched any more. Completions arrive all the same.
pub struct QueuePair<T: Send + 'static> {
    shared: Arc<Shared<T>>,
}

/// What a queue pair shares with its windows, which must be released before it.
pub(super) struct Shared<T: Send + 'static> {
    pub(super) raw: raw::Qp<T>,
    domain: Arc<ProtectionDomain>,
    options: QueuePairOptions,
    port: Port,
    connected: AtomicBool,
}

impl<T: Send + fmt::Debug + 'static> QueuePair<T> {
    /// A new queue pair, in RESET.
    ///
    /// # Errors
    /// [`VerbsError::CompletionQueueFull`], [`VerbsError::OtherDevice`], [`VerbsError::UnknownPort`],
    /// [`VerbsError::System`].
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue<T>>,
        options: QueuePairOptions,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        if !Arc::ptr_eq(device, queue.device()) {
            return Err(VerbsError::OtherDevice {
                what: "the completion queue",
            });
        }
        let port = device.port(options.port)?;
        let mut options = options.clamped(device);
        let entries = options.send_requests + options.receive_requests;
        let registration = queue.reserve(entries)?;
        let posted = Arc::new(Posted::new(
            registration,
            options.send_requests,
            options.receive_requests,
        ));
        let made = options.make(domain, queue, &posted);
        let raw = made.map_err(|source| {
            queue.unreserve(entries);
            device.failed("create a queue pair", source)
        })?;
        queue.register(&posted, raw.number, entries);
        Ok(Self {
            shared: Arc::new(Shared {
                raw,
                domain: Arc::clone(domain),
                options,
                port,
                connected: AtomicBool::new(false),
            }),
        })
    }

    /// Its number on its device.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.shared.raw.number
    }

    /// The sizes that it has.
    #[must_use]
    pub fn options(&self) -> QueuePairOptions {
        self.shared.options
    }

    /// Its completion queue.
    #[must_use]
    pub fn completions(&self) -> &Arc<CompletionQueue<T>> {
        &self.shared.raw.cq
    }

    /// Requests that are posted and not known to be complete.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.shared.raw.posted.len()
    }

    /// Its state, from the device.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn state(&self) -> Result<QueuePairState, VerbsError> {
        self.shared.state()
    }

    /// What the peer must know. `first_packet` should be random, and is taken modulo 2^24.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn endpoint(&self, gid: &GidEntry, first_packet: u32) -> Result<Endpoint, VerbsError> {
        let device = self.shared.device();
        let port = device.port(self.shared.options.port)?;
        Ok(Endpoint {
            queue_pair: self.number(),
            first_packet: first_packet & 0xff_ffff,
            gid: gid.gid,
            local_id: port.local_id,
            mtu: port.active_mtu,
            reads_as_target: device.attributes().max_reads_as_target.max(1),
        })
    }

    /// Goes to INIT: receive requests may be posted. `access` is what the peer gets at most.
    ///
    /// # Errors
    /// [`VerbsError::NoTransition`] if it is not in RESET, [`VerbsError::System`].
    pub fn initialise(&self, access: Access) -> Result<(), VerbsError> {
        let mut attributes = Attributes::default();
        attributes.set(Attribute::PartitionIndex, |values| values.pkey_index = 0);
        attributes.set(Attribute::Port, |values| values.port_num = self.shared.options.port);
        attributes.set(Attribute::Access, |values| values.qp_access_flags = access.bits());
        self.shared.change(QueuePairState::Init, attributes)
    }

    /// Goes from INIT to RTS: connected to the peer, which does the same with the ends swapped. `gid` is the row that
    /// `local` was made with. The smaller MTU counts, and no more reads are under way than the peer serves.
    ///
    /// # Errors
    /// [`VerbsError::Setting`], [`VerbsError::NoTransition`], [`VerbsError::System`].
    pub fn connect(
        &self,
        local: &Endpoint,
        gid: &GidEntry,
        remote: &Endpoint,
        timing: Timing,
    ) -> Result<(), VerbsError> {
        timing.check()?;
        let setting = |setting, value: u32, max| VerbsError::Setting { setting, value, max };
        let gid_index = u8::try_from(gid.index).map_err(|_| setting("GID index", gid.index, 255))?;
        for (name, value) in [("queue_pair", remote.queue_pair), ("first_packet", remote.first_packet)] {
            if value > 0xff_ffff {
                return Err(setting(name, value, 0xff_ffff));
            }
        }
        let mut receive = Attributes::default();
        let (port, link_layer) = (self.shared.options.port, self.shared.port.link_layer);
        receive.set(Attribute::Path, |values| {
            let path = &mut values.ah_attr;
            path.port_num = port;
            path.dlid = remote.local_id;
            path.is_global = u8::from(link_layer != LinkLayer::InfiniBand);
            path.grh.dgid.raw = remote.gid.0;
            path.grh.sgid_index = gid_index;
            path.grh.hop_limit = 64;
        });
        receive.set(Attribute::PathMtu, |values| {
            values.path_mtu = local.mtu.min(remote.mtu).number()
        });
        receive.set(Attribute::RemoteNumber, |values| values.dest_qp_num = remote.queue_pair);
        receive.set(Attribute::ReceiveSequence, |values| values.rq_psn = remote.first_packet);
        receive.set(Attribute::ReadsAsTarget, |values| {
            values.max_dest_rd_atomic = local.reads_as_target
        });
        receive.set(Attribute::NotReadyTimer, |values| {
            values.min_rnr_timer = timing.not_ready_timer
        });
        self.shared.change(QueuePairState::ReadyToReceive, receive)?;

        let most = self.shared.device().attributes().max_reads_as_initiator;
        let mut send = Attributes::default();
        send.set(Attribute::Timeout, |values| values.timeout = timing.timeout_exponent);
        send.set(Attribute::Retries, |values| values.retry_cnt = timing.retries);
        send.set(Attribute::NotReadyRetries, |values| {
            values.rnr_retry = timing.not_ready_retries
        });
        send.set(Attribute::SendSequence, |values| values.sq_psn = local.first_packet);
        send.set(Attribute::ReadsAsInitiator, |values| {
            values.max_rd_atomic = most.min(remote.reads_as_target).max(1)
        });
        self.shared.change(QueuePairState::ReadyToSend, send)?;
        self.shared.connected.store(true, Ordering::Release);
        Ok(())
    }

    /// Goes to ERR: everything posted completes as flushed, if it did not before, and so does all that is posted later.
    /// From RESET, where nothing can be posted, it goes nowhere.
    ///
    /// # Errors
    /// [`VerbsError::System`].
    pub fn fail(&self) -> Result<(), VerbsError> {
        self.shared.fail()
    }

    /// Resolves when nothing is posted. The reaper must be at work. After [`QueuePair::fail`] it takes only as long as
    /// the device needs for flushing, and then no buffer is touched any more.
    pub async fn drained(&self) {
        let posted = &self.shared.raw.posted;
        loop {
            let emptied = posted.emptied.notified();
            tokio::pin!(emptied);
            // Registered before the question, so that the answer cannot change unnoticed.
            emptied.as_mut().enable();
            if posted.len() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Posts requests to the send queue, in one list and in order. Posting stops at the first that cannot be posted; it
    /// comes back with all behind it, and those before it are posted.
    ///
    /// # Errors
    /// Why it stopped. After [`PostFailure::Backpressure`] post again when something has completed.
    pub fn post_send(&self, requests: Vec<SendRequest<T>>) -> Result<(), PostError<SendRequest<T>>> {
        self.shared.post_send(requests, true)
    }

    /// As [`QueuePair::post_send`], and does not see to it that the reaper wakes: the caller polls the queue, and then asks for
    /// an event, or wakes the reaper.
    pub(super) fn post_send_unwatched(&self, requests: Vec<SendRequest<T>>) -> Result<(), PostError<SendRequest<T>>> {
        self.shared.post_send(requests, false)
    }

    /// Posts receive requests, from INIT on. As [`QueuePair::post_send`].
    ///
    /// # Errors
    /// Why it stopped.
    pub fn post_receive(&self, requests: Vec<ReceiveRequest<T>>) -> Result<(), PostError<ReceiveRequest<T>>> {
        let shared = &self.shared;
        let (good, rest, fault) = divide(requests, |request| shared.parts_fault(&request.parts));
        let posted = shared.expecting(good.len(), true, || shared.raw.post_receive(good));
        outcome(posted, rest, fault, shared.options.receive_requests)
    }

    pub(super) fn shared(&self) -> &Arc<Shared<T>> {
        &self.shared
    }
}

impl<T: Send + 'static> Shared<T> {
    pub(super) fn device(&self) -> &Arc<Device> {
        self.domain.device()
    }

    fn state(&self) -> Result<QueuePairState, VerbsError> {
        let number = self.raw.query_state();
        let number = number.map_err(|source| self.device().failed("query a queue pair", source))?;
        Ok(QueuePairState::from(number))
    }

    fn change(&self, to: QueuePairState, attributes: Attributes) -> Result<(), VerbsError> {
        let mask = transition_mask(self.state()?, to, &attributes.given)?;
        let mut values = attributes.values.unwrap_or_else(raw::no_attributes);
        values.qp_state = to.number();
        let changed = self.raw.modify(values, mask);
        changed.map_err(|source| self.device().failed("change the state of a queue pair", source))
    }

    fn fail(&self) -> Result<(), VerbsError> {
        match self.change(QueuePairState::Error, Attributes::default()) {
            Err(VerbsError::NoTransition { .. }) => Ok(()),
            result => result,
        }
    }

    /// What is wrong with the parts of a request.
    fn parts_fault(&self, parts: &[Local]) -> Option<PostFailure> {
        let max = self.options.parts;
        let (len_bytes, max_bytes) = (total_bytes(parts), u64::from(self.port.max_message_bytes));
        let foreign = |part: &Local| !Arc::ptr_eq(part.region().domain(), &self.domain);
        if u32::try_from(parts.len()).is_ok_and(|parts| parts > max) {
            let parts = parts.len();
            Some(PostFailure::TooManyParts { parts, max })
        } else if len_bytes > max_bytes {
            Some(PostFailure::TooLong { len_bytes, max_bytes })
        } else if parts.iter().any(foreign) {
            Some(PostFailure::OtherDomain)
        } else {
            None
        }
    }

    fn fault(&self, request: &SendRequest<T>) -> Option<PostFailure> {
        if !self.connected.load(Ordering::Acquire) {
            return Some(PostFailure::NotConnected);
        }
        if let Kind::Bind(binding) = &request.operation {
            return self.parts_fault(std::slice::from_ref(&binding.part)).filter(|fault| {
                // A window may be longer than a message.
                !matches!(fault, PostFailure::TooLong { .. })
            });
        }
        match &request.payload {
            Payload::Parts(parts) => self.parts_fault(parts),
            Payload::Inline(bytes) => {
                let (len_bytes, max_bytes) = (bytes.len() as u64, u64::from(self.options.inline_bytes));
                (len_bytes > max_bytes).then_some(PostFailure::TooLong { len_bytes, max_bytes })
            }
        }
    }

    pub(super) fn post_send(
        &self,
        requests: Vec<SendRequest<T>>,
        is_watched: bool,
    ) -> Result<(), PostError<SendRequest<T>>>
    where
        T: fmt::Debug,
    {
        let (good, rest, fault) = divide(requests, |request| self.fault(request));
        let posted = self.expecting(good.len(), is_watched, || self.raw.post_send(good));
        outcome(posted, rest, fault, self.options.send_requests)
    }

    /// Posts so many requests; before that, the queue is told of them and, if they are watched, armed.
    fn expecting<R>(
        &self,
        requests: usize,
        is_watched: bool,
        post: impl FnOnce() -> Result<(), (io::Error, Vec<R>)>,
    ) -> Result<(), (io::Error, Vec<R>)> {
        let queue = &self.raw.cq;
        queue.expect(requests);
        if is_watched && queue.arm().is_err() {
            // The reaper finds out for itself, and says so.
            queue.wake();
        }
        post().inspect_err(|(_, rejected)| queue.released(rejected.len()))
    }
}

/// Requests up to the first with a fault, the rest, and the fault.
fn divide<R>(mut requests: Vec<R>, fault: impl Fn(&R) -> Option<PostFailure>) -> (Vec<R>, Vec<R>, Option<PostFailure>) {
    let first = requests
        .iter()
        .enumerate()
        .find_map(|(index, request)| Some((index, fault(request)?)));
    match first {
        None => (requests, Vec::new(), None),
        Some((index, fault)) => {
            let rest = requests.split_off(index);
            (requests, rest, Some(fault))
        }
    }
}

fn outcome<R: fmt::Debug>(
    posted: Result<(), (io::Error, Vec<R>)>,
    rest: Vec<R>,
    fault: Option<PostFailure>,
    depth: u32,
) -> Result<(), PostError<R>> {
    let (failure, mut rejected) = match (posted, fault) {
        (Ok(()), None) => return Ok(()),
        (Ok(()), Some(fault)) => (fault, Vec::new()),
        (Err((source, rejected)), _) => match source.raw_os_error() {
            Some(libc::ENOMEM) => (PostFailure::Backpressure { depth }, rejected),
            _ => (PostFailure::Device { source }, rejected),
        },
    };
    rejected.extend(rest);
    Err(PostError { failure, rejected })
}

impl<T: Send + 'static> Drop for QueuePair<T> {
    fn drop(&mut self) {
        if let Err(error) = self.shared.fail() {
            // Destroying it, which comes next, does the same.
            tracing::warn!(%error, queue_pair = self.shared.raw.number, "a queue pair was dropped and did not go to ERR");
        }
    }
}

impl<T: Send + 'static> fmt::Debug for QueuePair<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("device", &self.shared.device().name())
            .field("number", &self.shared.raw.number)
            .field("outstanding", &self.shared.raw.posted.len())
            .finish_non_exhaustive()
    }
}

impl QueuePairOptions {
    fn clamped(self, device: &Device) -> Self {
        let has = device.attributes();
        let requests = |wanted: u32| wanted.clamp(1, has.max_requests.max(1));
        Self {
            port: self.port,
            send_requests: requests(self.send_requests),
            receive_requests: requests(self.receive_requests),
            parts: self.parts.clamp(1, has.max_parts.min(has.max_read_parts).max(1)),
            inline_bytes: self.inline_bytes,
        }
    }

    /// Makes the device's object; without inline bytes if it does not come with as many.
    fn make<T: Send + 'static>(
        &mut self,
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue<T>>,
        posted: &Arc<Posted<T>>,
    ) -> io::Result<raw::Qp<T>> {
        let mut made = raw::Qp::new(domain.raw(), queue, posted, self.capacities());
        if made.is_err() && self.inline_bytes > 0 {
            self.inline_bytes = 0;
            made = raw::Qp::new(domain.raw(), queue, posted, self.capacities());
        }
        made
    }

    fn capacities(&self) -> ibv_qp_cap {
        ibv_qp_cap {
            max_send_wr: self.send_requests,
            max_recv_wr: self.receive_requests,
            max_send_sge: self.parts,
            max_recv_sge: self.parts,
            max_inline_data: self.inline_bytes,
        }
    }
}

/// Attributes for a change of state, and which of them are given.
#[derive(Default)]
struct Attributes {
    values: Option<ibv_qp_attr>,
    given: Vec<Attribute>,
}

impl Attributes {
    fn set(&mut self, attribute: Attribute, set: impl FnOnce(&mut ibv_qp_attr)) {
        set(self.values.get_or_insert_with(raw::no_attributes));
        self.given.push(attribute);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posting_stops_at_the_first_fault() {
        let fault = |number: &u32| (*number == 3).then_some(PostFailure::OtherDomain);
        let (good, rest, found) = divide(vec![1, 2, 3, 4], fault);
        assert_eq!((good, rest), (vec![1, 2], vec![3, 4]));
        assert!(found.is_some());
        let full = io::Error::from_raw_os_error(libc::ENOMEM);
        let error = outcome(Err((full, vec![2])), vec![3, 4], found, 16).unwrap_err();
        assert_eq!(error.rejected, [2, 3, 4]);
        assert!(
            matches!(error.failure, PostFailure::Backpressure { depth: 16 }),
            "the first counts"
        );
    }
}

//! Every call into libibverbs, behind owners that make it safe: the one file here with `unsafe`.
//!
//! Its blocks rely on this:
//! * Each owner here holds counts of its parents and releases its object in its drop alone: a pointer taken from an
//!   owner inside a method with `&self` points to a living object, whose parents live too.
//! * libibverbs lets any thread use any object at any time; it locks inside.
//! * **Memory that the device may touch is owned until it cannot any more.** A registered range is owned by [`Mr`]. The
//!   buffers of a posted request are owned by the queue pair's [`Posted`] rings, which give them up in three cases only:
//!   the device completed the request, did not take it, or the queue pair is destroyed. Where the device refuses to
//!   release an object, what it may still touch is leaked on purpose, logged and counted.
//! * What a request names for the device (`SendRequest::fill`) is what it owns: parts of regions, windows, inline bytes.
//! * Structures that are passed are plain data for which all zeroes are valid, and are read back as integers: what the
//!   library or the kernel returns that we do not know is a value, never an enum out of range.

#![allow(unsafe_code, reason = "calls into libibverbs: the one place where they are made")]

use std::ffi::{CStr, c_int};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{fmt, io, mem};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rdma_sys as ib;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::async_events::{AsyncEvent, Subject};
use super::completion_queue::{CompletionQueue, WorkCompletion};
use super::gid::{Gid, GidEntry, GidKind};
use super::posted::{Posted, Ring, Side, Signal};
use super::request::{ReceiveRequest, SendRequest};
use super::{Local, not_released};
use crate::limits::COMPLETIONS_PER_POLL;
use crate::memory::Slice;

/// A pointer to an object of libibverbs that exists until its owner is dropped.
pub(super) struct Handle<X>(NonNull<X>);

// SAFETY: objects of libibverbs belong to no thread.
unsafe impl<X> Send for Handle<X> {}
// SAFETY: libibverbs locks inside; fields that are read here directly do not change, but for one that says who locks.
unsafe impl<X> Sync for Handle<X> {}

impl<X> fmt::Debug for Handle<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<X> Handle<X> {
    /// Takes what a function returned that gives null and errno on failure.
    fn made(pointer: *mut X) -> io::Result<Self> {
        NonNull::new(pointer).map(Self).ok_or_else(io::Error::last_os_error)
    }

    pub(super) fn ptr(&self) -> *mut X {
        self.0.as_ptr()
    }
}

/// Judges a return value: most functions give errno, some -1 and set errno.
fn checked(code: c_int) -> io::Result<()> {
    match code {
        0 => Ok(()),
        errno if errno > 0 => Err(io::Error::from_raw_os_error(errno)),
        _ => Err(io::Error::last_os_error()),
    }
}

macro_rules! released_on_drop {
    ($owner:ty, $handle:ident, $function:ident, $what:literal) => {
        impl Drop for $owner {
            fn drop(&mut self) {
                // SAFETY: the object exists until here, where it is released once. Whatever uses it holds a count of
                // its owner, so nothing does any more; events about it were acknowledged as they were taken.
                let result = checked(unsafe { ib::$function(self.$handle.ptr()) });
                let object = format_args!(
                    concat!($what, " {:?} (", stringify!($function), ")"),
                    self.$handle
                );
                not_released(object, result);
            }
        }
    };
}
released_on_drop!(Context, context, ibv_close_device, "device");
released_on_drop!(Pd, pd, ibv_dealloc_pd, "protection domain");
released_on_drop!(Channel, channel, ibv_destroy_comp_channel, "completion channel");
released_on_drop!(Cq, cq, ibv_destroy_cq, "completion queue");
released_on_drop!(Mw, mw, ibv_dealloc_mw, "memory window");

/// An object with a descriptor that becomes readable when there is an event.
macro_rules! descriptor {
    ($owner:ty, $fd:ident) => {
        impl AsRawFd for $owner {
            fn as_raw_fd(&self) -> RawFd {
                self.$fd
            }
        }

        impl $owner {
            /// Watches the descriptor, in the runtime that this is called in.
            pub(super) fn watch(self: &Arc<Self>) -> io::Result<AsyncFd<Arc<Self>>> {
                // SAFETY: the object owns the descriptor, always the same one, and closes it in its drop; what is made
                // here holds a count of it, and lets go of the descriptor first.
                let watched = unsafe { AsyncFd::register_with_interest(Arc::clone(self), Interest::READABLE) };
                watched.map_err(io::Error::from)
            }
        }
    };
}

/// Chains requests for the device in a list, and gives each its share of the parts.
macro_rules! chain {
    ($list:ident, $parts:ident) => {
        let (mut part, mut next) = ($parts.as_mut_ptr(), $list.as_mut_ptr());
        for request in &mut $list {
            request.sg_list = part;
            part = part.wrapping_add(usize::try_from(request.num_sge).unwrap_or(0));
            next = next.wrapping_add(1);
            request.next = next;
        }
        $list
            .last_mut()
            .into_iter()
            .for_each(|last| last.next = ptr::null_mut());
    };
}

/// Attributes of a queue pair to fill in.
pub(super) fn no_attributes() -> ib::ibv_qp_attr {
    // SAFETY: plain data.
    unsafe { mem::zeroed() }
}

fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller's object, which is alive, owns `fd`; it stays open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

/// The host's devices.
struct DeviceList {
    list: Handle<*mut ib::ibv_device>,
    len: usize,
}

impl DeviceList {
    fn get() -> io::Result<Self> {
        let mut len = 0;
        // SAFETY: it writes the number of devices to `len`, which lives on this stack frame.
        let list = Handle::made(unsafe { ib::ibv_get_device_list(&raw mut len) })?;
        let len = usize::try_from(len).unwrap_or(0);
        Ok(Self { list, len })
    }

    fn devices(&self) -> impl Iterator<Item = (String, *mut ib::ibv_device)> {
        (0..self.len).filter_map(|index| {
            // SAFETY: the list has `len` entries and lives as long as `self`.
            let device = unsafe { *self.list.ptr().wrapping_add(index) };
            // SAFETY: a device of the list lives as long as the list.
            let name = NonNull::new(unsafe { ib::ibv_get_device_name(device) }.cast_mut())?;
            // SAFETY: the name is a terminated string inside the device.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list was made by ibv_get_device_list and is freed once. Opened devices keep their own count.
        unsafe { ib::ibv_free_device_list(self.list.ptr()) };
    }
}

/// Names of the host's devices.
pub(super) fn device_names() -> io::Result<Vec<String>> {
    Ok(DeviceList::get()?.devices().map(|(name, _)| name).collect())
}

/// An open device.
#[derive(Debug)]
pub(super) struct Context {
    context: Handle<ib::ibv_context>,
    async_fd: RawFd,
}

impl Context {
    /// Opens the device of this name; `None` if there is none.
    pub(super) fn open(name: &str) -> io::Result<Option<Self>> {
        let list = DeviceList::get()?;
        let Some((_, device)) = list.devices().find(|(found, _)| found == name) else {
            return Ok(None);
        };
        // SAFETY: the device belongs to `list`, which lives until the end of this function.
        let context = Handle::made(unsafe { ib::ibv_open_device(device) })?;
        // SAFETY: the context was just opened; async_fd is set by then and does not change.
        let async_fd = unsafe { (*context.ptr()).async_fd };
        let opened = Self { context, async_fd };
        set_nonblocking(async_fd).map(|()| Some(opened))
    }

    pub(super) fn query_device(&self) -> io::Result<ib::ibv_device_attr> {
        // SAFETY: plain data.
        let mut attributes: ib::ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open, and `attributes` lives on this stack frame.
        checked(unsafe { ib::ibv_query_device(self.context.ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    pub(super) fn query_port(&self, port: u8) -> io::Result<ib::ibv_port_attr> {
        // SAFETY: plain data. Older providers fill a part of it: the rest must be zero.
        let mut attributes: ib::ibv_port_attr = unsafe { mem::zeroed() };
        // SAFETY: the context is open, and `attributes` lives on this stack frame.
        checked(unsafe { ib::ibv_query_port(self.context.ptr(), port, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// The rows of the GID tables of all ports that are in use, at most `rows_max`.
    pub(super) fn gid_table(&self, rows_max: usize) -> io::Result<Vec<GidEntry>> {
        // SAFETY: plain data.
        let mut rows: Vec<ib::ibv_gid_entry> = vec![unsafe { mem::zeroed() }; rows_max];
        // SAFETY: the context is open, and `rows` has room for `rows_max` entries of the size that is passed along.
        let found = unsafe { ib::ibv_query_gid_table(self.context.ptr(), rows.as_mut_ptr(), rows_max, 0) };
        let errno = i32::try_from(found.wrapping_neg()).unwrap_or(libc::EIO);
        let found = usize::try_from(found).map_err(|_| io::Error::from_raw_os_error(errno))?;
        let row = |row: &ib::ibv_gid_entry| GidEntry {
            port: row.port_num,
            index: row.gid_index,
            // SAFETY: both variants of the union are 16 bytes for which every value is valid.
            gid: Gid(unsafe { row.gid.raw }),
            kind: GidKind::from(row.gid_type),
            interface: row.ndev_ifindex,
        };
        Ok(rows[..found.min(rows_max)].iter().map(row).collect())
    }

    /// Takes one asynchronous event and acknowledges it.
    pub(super) fn next_event(&self) -> io::Result<AsyncEvent> {
        // SAFETY: plain data; all zeroes are a known event and a null object.
        let mut event: ib::ibv_async_event = unsafe { mem::zeroed() };
        // SAFETY: the context is open, and `event` lives on this stack frame.
        checked(unsafe { ib::ibv_get_async_event(self.context.ptr(), &raw mut event) })?;
        // SAFETY: initialised; read as an integer, since newer kernels know more kinds than the enum does.
        let kind = unsafe { (&raw const event.event_type).cast::<u32>().read() };
        let event_is = match AsyncEvent::subject(kind) {
            // SAFETY: events of these kinds carry a port number.
            Subject::Port => AsyncEvent::new(kind, unsafe { event.element.port_num }.cast_unsigned()),
            Subject::QueuePair => {
                // SAFETY: events of these kinds carry a queue pair.
                let queue_pair = unsafe { event.element.qp };
                // SAFETY: its destruction waits until the event is acknowledged, below; the number does not change.
                AsyncEvent::new(kind, unsafe { (*queue_pair).qp_num })
            }
            Subject::Other => AsyncEvent::new(kind, 0),
        };
        // SAFETY: the event was taken and is acknowledged once.
        unsafe { ib::ibv_ack_async_event(&raw mut event) };
        Ok(event_is)
    }
}

descriptor!(Context, async_fd);

/// A protection domain.
#[derive(Debug)]
pub(super) struct Pd {
    pd: Handle<ib::ibv_pd>,
    #[expect(dead_code, reason = "a parent outlives its child")]
    context: Arc<Context>,
}

impl Pd {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let pd = Handle::made(unsafe { ib::ibv_alloc_pd(context.context.ptr()) })?;
        Ok(Self {
            pd,
            context: Arc::clone(context),
        })
    }
}

/// A registered range of memory, which it keeps alive. The keys are fixed when it is made.
#[derive(Debug)]
pub(super) struct Mr {
    pub(super) mr: Handle<ib::ibv_mr>,
    pub(super) local_key: u32,
    pub(super) remote_key: u32,
    slice: Option<Slice>,
    #[expect(dead_code, reason = "a parent outlives its child")]
    pd: Arc<Pd>,
}

impl Mr {
    pub(super) fn new(pd: &Arc<Pd>, slice: Slice, access: u32) -> io::Result<Self> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let len = usize::try_from(slice.len_bytes()).map_err(invalid)?;
        let access = c_int::try_from(access).map_err(invalid)?;
        // SAFETY: the slice is mapped for its whole length and owned by what is made here until the device has
        // released it. No Rust reference into it exists, so the device may write it.
        let mr = unsafe { ib::ibv_reg_mr(pd.pd.ptr(), slice.address().cast(), len, access) };
        let mr = Handle::made(mr)?;
        // SAFETY: just made; the key does not change.
        let local_key = unsafe { (*mr.ptr()).lkey };
        // SAFETY: as above.
        let remote_key = unsafe { (*mr.ptr()).rkey };
        Ok(Self {
            mr,
            local_key,
            remote_key,
            slice: Some(slice),
            pd: Arc::clone(pd),
        })
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: posted requests that use it hold a count of it, and so do windows on it; released once.
        let result = checked(unsafe { ib::ibv_dereg_mr(self.mr.ptr()) });
        if not_released(format_args!("memory region {:?} (ibv_dereg_mr)", self.mr), result) {
            // The device may still touch the range: it stays mapped for good.
            mem::forget(self.slice.take());
        }
    }
}

/// Tells of completions through a descriptor.
#[derive(Debug)]
pub(super) struct Channel {
    channel: Handle<ib::ibv_comp_channel>,
    fd: RawFd,
    #[expect(dead_code, reason = "a parent outlives its child")]
    context: Arc<Context>,
}

impl Channel {
    pub(super) fn new(context: &Arc<Context>) -> io::Result<Self> {
        // SAFETY: the context is open.
        let channel = Handle::made(unsafe { ib::ibv_create_comp_channel(context.context.ptr()) })?;
        // SAFETY: just made; the descriptor does not change.
        let fd = unsafe { (*channel.ptr()).fd };
        let made = Self {
            channel,
            fd,
            context: Arc::clone(context),
        };
        set_nonblocking(fd)?;
        Ok(made)
    }

    /// Takes all events that are there and acknowledges them.
    pub(super) fn drain(&self) -> io::Result<()> {
        loop {
            let (mut cq, mut cq_context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel exists; both pointers point to this stack frame.
            let code = unsafe { ib::ibv_get_cq_event(self.channel.ptr(), &raw mut cq, &raw mut cq_context) };
            match checked(code) {
                // SAFETY: the queue of an event cannot be destroyed before the event is acknowledged, here and once.
                Ok(()) => unsafe { ib::ibv_ack_cq_events(cq, 1) },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

descriptor!(Channel, fd);

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    cq: Handle<ib::ibv_cq>,
    pub(super) channel: Arc<Channel>,
}

impl Cq {
    /// A queue of at least this many entries whose events go to the channel.
    pub(super) fn new(channel: Arc<Channel>, context: &Arc<Context>, entries: u32) -> io::Result<Self> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let (context, events) = (context.context.ptr(), channel.channel.ptr());
        // SAFETY: the context is open and the channel, which the queue owns, exists and belongs to it (both are made in
        // one place). The first completion vector always exists.
        let cq = unsafe { ib::ibv_create_cq(context, entries, ptr::null_mut(), events, 0) };
        let cq = Handle::made(cq)?;
        Ok(Self { cq, channel })
    }

    /// Asks for one event at the next completion.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue exists.
        checked(unsafe { ib::ibv_req_notify_cq(self.cq.ptr(), 0) })
    }

    /// Takes a batch of completions; returns how many were added to `into`.
    pub(super) fn poll(&self, into: &mut Vec<WorkCompletion>) -> io::Result<usize> {
        // SAFETY: plain data.
        let mut found: [ib::ibv_wc; COMPLETIONS_PER_POLL] = unsafe { mem::zeroed() };
        let room = c_int::try_from(found.len()).unwrap_or(1);
        // SAFETY: the queue exists, and `found` has that much room.
        let taken = unsafe { ib::ibv_poll_cq(self.cq.ptr(), room, found.as_mut_ptr()) };
        let taken = usize::try_from(taken).map_err(|_| io::Error::from_raw_os_error(libc::EIO))?;
        into.extend(found[..taken].iter().map(|wc| WorkCompletion {
            request: wc.wr_id,
            status: wc.status,
            len_bytes: wc.byte_len,
            vendor_error: wc.vendor_err,
        }));
        Ok(taken)
    }
}

/// A type-2 memory window.
#[derive(Debug)]
pub(super) struct Mw {
    pub(super) mw: Handle<ib::ibv_mw>,
    /// The key it was allocated with; binding needs the next one.
    pub(super) key: u32,
    #[expect(dead_code, reason = "a parent outlives its child")]
    pd: Arc<Pd>,
}

impl Mw {
    pub(super) fn new(pd: &Arc<Pd>) -> io::Result<Self> {
        // SAFETY: the domain exists.
        let mw = unsafe { ib::ibv_alloc_mw(pd.pd.ptr(), ib::ibv_mw_type::IBV_MW_TYPE_2) };
        let mw = Handle::made(mw)?;
        // SAFETY: just made; nobody writes the key.
        let key = unsafe { (*mw.ptr()).rkey };
        Ok(Self {
            mw,
            key,
            pd: Arc::clone(pd),
        })
    }

    /// Says that a request that binds it to this key was posted: the library finds the window by its last key. Its owner
    /// keeps others from posting it meanwhile.
    pub(super) fn bound(&self, key: u32) {
        // SAFETY: the window exists. Only posting it reads the key, which its owner keeps from happening now.
        unsafe { (*self.mw.ptr()).rkey = key };
    }
}

/// A reliable-connected queue pair, and the requests that are posted to it.
pub(super) struct Qp<T: Send + 'static> {
    qp: Handle<ib::ibv_qp>,
    pub(super) number: u32,
    pub(super) posted: Arc<Posted<T>>,
    pub(super) cq: Arc<CompletionQueue<T>>,
    pub(super) pd: Arc<Pd>,
}

impl<T: Send + 'static> Qp<T> {
    /// Makes a queue pair with at least these capacities.
    pub(super) fn new(
        pd: &Arc<Pd>,
        cq: &Arc<CompletionQueue<T>>,
        posted: &Arc<Posted<T>>,
        capacities: ib::ibv_qp_cap,
    ) -> io::Result<Self> {
        // SAFETY: plain data; no shared receive queue, no context, signalling as each request says.
        let mut wanted: ib::ibv_qp_init_attr = unsafe { mem::zeroed() };
        wanted.send_cq = cq.raw().cq.ptr();
        wanted.recv_cq = wanted.send_cq;
        wanted.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
        wanted.cap = capacities;
        // SAFETY: the domain and the queue exist, and what is made here keeps them; `wanted` is on this stack frame.
        let qp = Handle::made(unsafe { ib::ibv_create_qp(pd.pd.ptr(), &raw mut wanted) })?;
        // SAFETY: just made; the number does not change.
        let number = unsafe { (*qp.ptr()).qp_num };
        Ok(Self {
            qp,
            number,
            posted: Arc::clone(posted),
            cq: Arc::clone(cq),
            pd: Arc::clone(pd),
        })
    }

    /// Sets the attributes that the mask names.
    pub(super) fn modify(&self, mut attributes: ib::ibv_qp_attr, mask: u32) -> io::Result<()> {
        // SAFETY: the queue pair exists; `attributes` lives on this stack frame, and the kernel checks them.
        checked(unsafe { ib::ibv_modify_qp(self.qp.ptr(), &raw mut attributes, mask.cast_signed()) })
    }

    /// The number of its state.
    pub(super) fn query_state(&self) -> io::Result<u32> {
        let mut attributes = no_attributes();
        // SAFETY: plain data.
        let mut made_with: ib::ibv_qp_init_attr = unsafe { mem::zeroed() };
        let mask = ib::ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed();
        // SAFETY: the queue pair exists; both structures live on this stack frame.
        checked(unsafe { ib::ibv_query_qp(self.qp.ptr(), &raw mut attributes, mask, &raw mut made_with) })?;
        Ok(attributes.qp_state)
    }

    /// Posts requests in one list. Stops at the first that the device does not take: gives it and all behind it back.
    pub(super) fn post_send(&self, mut requests: Vec<SendRequest<T>>) -> Result<(), (io::Error, Vec<SendRequest<T>>)> {
        let mut ring = self.posted.send.lock();
        let (before, room) = (ring.len(), ring.room());
        let rest = requests.split_off(room.min(requests.len()));
        requests.into_iter().for_each(|request| ring.push(request));
        let (mut parts, mut list) = (Vec::new(), Vec::new());
        for (sequence, signalled, request) in ring.since(before) {
            // SAFETY: plain data.
            let mut made: ib::ibv_send_wr = unsafe { mem::zeroed() };
            made.wr_id = self.posted.name(Side::Send, sequence);
            request.fill(&mut made, signalled, &mut parts);
            list.push(made);
        }
        chain!(list, parts);
        let mut refused = ptr::null_mut();
        let code = if list.is_empty() {
            0
        } else {
            // SAFETY: the queue pair exists. The list, its parts, inline bytes and windows (which post their bindings
            // themselves) are alive during the call, in which they are copied. Buffers lie in registered memory that the
            // ring owns until the device has completed the request or the queue pair is destroyed.
            unsafe { ib::ibv_post_send(self.qp.ptr(), list.as_mut_ptr(), &raw mut refused) }
        };
        posted(&mut ring, before, &list, (code, refused), rest)
    }

    /// Posts buffers for messages in one list. As [`Qp::post_send`].
    pub(super) fn post_receive(
        &self,
        mut requests: Vec<ReceiveRequest<T>>,
    ) -> Result<(), (io::Error, Vec<ReceiveRequest<T>>)> {
        let mut ring = self.posted.receive.lock();
        let (before, room) = (ring.len(), ring.room());
        let rest = requests.split_off(room.min(requests.len()));
        requests.into_iter().for_each(|request| ring.push(request));
        let (mut parts, mut list) = (Vec::new(), Vec::new());
        for (sequence, _, request) in ring.since(before) {
            parts.extend(request.parts.iter().map(Local::scatter));
            list.push(ib::ibv_recv_wr {
                wr_id: self.posted.name(Side::Receive, sequence),
                next: ptr::null_mut(),
                sg_list: ptr::null_mut(),
                num_sge: c_int::try_from(request.parts.len()).unwrap_or(c_int::MAX),
            });
        }
        chain!(list, parts);
        let mut refused = ptr::null_mut();
        let code = if list.is_empty() {
            0
        } else {
            // SAFETY: as in `post_send`.
            unsafe { ib::ibv_post_recv(self.qp.ptr(), list.as_mut_ptr(), &raw mut refused) }
        };
        posted(&mut ring, before, &list, (code, refused), rest)
    }
}

impl<T: Send + 'static> Drop for Qp<T> {
    /// Takes what is complete, destroys, takes what was completed meanwhile. What is left can be touched by nobody.
    fn drop(&mut self) {
        self.cq.absorb();
        // SAFETY: windows on it hold a count of it, and its events are acknowledged as they are taken; destroyed once.
        let result = checked(unsafe { ib::ibv_destroy_qp(self.qp.ptr()) });
        if not_released(format_args!("queue pair {} (ibv_destroy_qp)", self.number), result) {
            // The device may still touch the buffers: their owner stays for good.
            mem::forget(Arc::clone(&self.posted));
        } else {
            self.cq.absorb();
            self.cq.retire(&self.posted);
        }
    }
}

/// Judges what became of a list whose requests were added to the ring behind `before`: the device's code, and the first
/// that it refused. `rest` found no room in the ring.
fn posted<W, R: Signal>(
    ring: &mut Ring<R>,
    before: usize,
    list: &[W],
    (code, refused): (c_int, *const W),
    rest: Vec<R>,
) -> Result<(), (io::Error, Vec<R>)> {
    if let Err(error) = checked(code) {
        // An address outside the list says nothing: then all count as taken, and are owned until the queue pair is gone.
        let distance = refused.addr().checked_sub(list.as_ptr().addr());
        let taken = distance.map_or(list.len(), |distance| list.len().min(distance / size_of::<W>()));
        let mut back = ring.take_back(before + taken);
        back.extend(rest);
        return Err((error, back));
    }
    if rest.is_empty() {
        return Ok(());
    }
    Err((io::Error::from_raw_os_error(libc::ENOMEM), rest))
}

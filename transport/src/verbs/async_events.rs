//! What a device says unasked: ports going up and down, queue pairs and the device failing.

use std::io;
use std::sync::Arc;

use rdma_sys::ibv_event_type as event;
use tokio::io::unix::AsyncFd;

use super::device::Device;
use super::error::VerbsError;
use super::raw;

/// Something happened that no request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// The port carries traffic again.
    PortActive(u32),
    /// The port's link is down.
    PortError(u32),
    /// The port's GID table changed: judge it again.
    GidChange(u32),
    /// Another property of the port changed: local id, partition table, subnet manager, speed, registration.
    PortChange(u32),
    /// The device has failed for good: nothing on it will complete as usual any more.
    DeviceFatal,
    /// The queue pair of this number is in ERR after a failure of the device.
    QueuePairFatal(u32),
    /// The queue pair of this number is in ERR: the peer asked for something malformed.
    QueuePairRequestError(u32),
    /// The queue pair of this number is in ERR: the peer asked for memory that it may not touch.
    QueuePairAccessError(u32),
    /// The queue pair of this number, in ERR, has taken its last receive request.
    LastRequest(u32),
    /// Something else about the queue pair of this number, of no consequence here: its kind and the number.
    QueuePairOther(u32, u32),
    /// A completion queue overran, which sizing is to rule out, or failed: nothing on it will complete any more.
    CompletionQueueError,
    /// A kind that this program does not know or has no use for.
    Unknown(u32),
}

/// What the number that comes with an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Port,
    QueuePair,
    Other,
}

const PORT_ACTIVE: u32 = event::IBV_EVENT_PORT_ACTIVE as u32;
const PORT_ERR: u32 = event::IBV_EVENT_PORT_ERR as u32;
const GID_CHANGE: u32 = event::IBV_EVENT_GID_CHANGE as u32;
const LID_CHANGE: u32 = event::IBV_EVENT_LID_CHANGE as u32;
const PKEY_CHANGE: u32 = event::IBV_EVENT_PKEY_CHANGE as u32;
const SM_CHANGE: u32 = event::IBV_EVENT_SM_CHANGE as u32;
const CLIENT_REREGISTER: u32 = event::IBV_EVENT_CLIENT_REREGISTER as u32;
const SPEED_CHANGE: u32 = event::IBV_EVENT_DEVICE_SPEED_CHANGE as u32;
const DEVICE_FATAL: u32 = event::IBV_EVENT_DEVICE_FATAL as u32;
const QP_FATAL: u32 = event::IBV_EVENT_QP_FATAL as u32;
const QP_REQ_ERR: u32 = event::IBV_EVENT_QP_REQ_ERR as u32;
const QP_ACCESS_ERR: u32 = event::IBV_EVENT_QP_ACCESS_ERR as u32;
const QP_LAST_WQE_REACHED: u32 = event::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
const COMM_EST: u32 = event::IBV_EVENT_COMM_EST as u32;
const SQ_DRAINED: u32 = event::IBV_EVENT_SQ_DRAINED as u32;
const PATH_MIG: u32 = event::IBV_EVENT_PATH_MIG as u32;
const PATH_MIG_ERR: u32 = event::IBV_EVENT_PATH_MIG_ERR as u32;
const CQ_ERR: u32 = event::IBV_EVENT_CQ_ERR as u32;

impl AsyncEvent {
    /// What an event of this kind is about.
    pub(super) fn subject(kind: u32) -> Subject {
        match kind {
            PORT_ACTIVE | PORT_ERR | GID_CHANGE | LID_CHANGE | PKEY_CHANGE | SM_CHANGE | CLIENT_REREGISTER
            | SPEED_CHANGE => Subject::Port,
            QP_FATAL | QP_REQ_ERR | QP_ACCESS_ERR | QP_LAST_WQE_REACHED | COMM_EST | SQ_DRAINED | PATH_MIG
            | PATH_MIG_ERR => Subject::QueuePair,
            _ => Subject::Other,
        }
    }

    /// The event of this kind about the port or queue pair of this number.
    pub(super) fn new(kind: u32, number: u32) -> Self {
        match kind {
            PORT_ACTIVE => Self::PortActive(number),
            PORT_ERR => Self::PortError(number),
            GID_CHANGE => Self::GidChange(number),
            DEVICE_FATAL => Self::DeviceFatal,
            QP_FATAL => Self::QueuePairFatal(number),
            QP_REQ_ERR => Self::QueuePairRequestError(number),
            QP_ACCESS_ERR => Self::QueuePairAccessError(number),
            QP_LAST_WQE_REACHED => Self::LastRequest(number),
            CQ_ERR => Self::CompletionQueueError,
            other => match Self::subject(other) {
                Subject::Port => Self::PortChange(number),
                Subject::QueuePair => Self::QueuePairOther(other, number),
                Subject::Other => Self::Unknown(other),
            },
        }
    }
}

/// The events of one device, each of which is told once: have one of these per device.
#[derive(Debug)]
pub struct AsyncEvents {
    events: AsyncFd<Arc<raw::Context>>,
    device: Arc<Device>,
}

impl AsyncEvents {
    /// Listens to a device. Must be called inside a tokio runtime with I/O enabled.
    ///
    /// # Errors
    /// [`VerbsError::System`] if the descriptor cannot be watched.
    pub fn new(device: &Arc<Device>) -> Result<Self, VerbsError> {
        let events = device
            .raw()
            .watch()
            .map_err(|source| device.failed("listen to the events", source))?;
        Ok(Self {
            events,
            device: Arc::clone(device),
        })
    }

    /// The next event. Acknowledged before it is returned; none is lost if this is dropped while it waits.
    ///
    /// # Errors
    /// [`VerbsError::System`]: the device is gone.
    pub async fn next(&mut self) -> Result<AsyncEvent, VerbsError> {
        let failed = |source| self.device.failed("read events", source);
        loop {
            let mut ready = self.events.readable().await.map_err(failed)?;
            match ready.try_io(|fd| fd.get_ref().next_event()) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result.map_err(failed),
                // Not readable any more: wait again.
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_some_event() {
        for kind in (0..64).chain([u32::MAX]) {
            let event = AsyncEvent::new(kind, 7);
            if kind > SPEED_CHANGE {
                assert_eq!(event, AsyncEvent::Unknown(kind));
            }
        }
        assert_eq!(AsyncEvent::new(PORT_ERR, 2), AsyncEvent::PortError(2));
        assert_eq!(AsyncEvent::new(SM_CHANGE, 2), AsyncEvent::PortChange(2));
        assert_eq!(
            AsyncEvent::new(SQ_DRAINED, 5),
            AsyncEvent::QueuePairOther(SQ_DRAINED, 5)
        );
    }
}

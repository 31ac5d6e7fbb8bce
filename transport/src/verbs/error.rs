//! How verbs may fail.

use std::fmt;
use std::io;

use nix::sys::resource::{Resource, getrlimit};

use super::memory_region::Access;
use super::transition::{Attribute, QueuePairState};

/// Why an object could not be made, changed or asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not on this host.
    #[error("libibverbs.so.1 is not installed (Debian: libibverbs1 and ibverbs-providers)")]
    NoLibrary,
    /// The library is there, the kernel has no RDMA.
    #[error("the kernel of this host has no RDMA: {source} (is the module ib_uverbs loaded?)")]
    NoKernelSupport {
        /// What the system said.
        source: io::Error,
    },
    /// No device has this name.
    #[error("there is no RDMA device {name:?}; this host has {}", listed(found))]
    UnknownDevice {
        /// The name that was asked for.
        name: String,
        /// The devices that there are.
        found: Vec<String>,
    },
    /// The device has no such port.
    #[error("{device} has no port {port}; it has {ports}")]
    UnknownPort {
        /// The device.
        device: String,
        /// The port that was asked for.
        port: u8,
        /// How many it has, counted from 1.
        ports: u8,
    },
    /// The device or the system refused.
    #[error("cannot {operation} of {device}: {source}")]
    System {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// Memory could not be registered.
    #[error(
        "cannot register {len_bytes} bytes for {access} with {device}: {source}{}",
        register_hint(source)
    )]
    Register {
        /// The device.
        device: String,
        /// Length of the range.
        len_bytes: u64,
        /// What it was to be registered for.
        access: Access,
        /// What the system said.
        source: io::Error,
    },
    /// The device was let go.
    #[error("the device of {port} is gone")]
    Gone {
        /// Its name and the port's number.
        port: String,
    },
    /// A request was posted, and the device says nothing of it.
    #[error("{device} completes no request")]
    Silent {
        /// The device.
        device: String,
    },
    /// More than the device registers in one piece.
    #[error("cannot register {len_bytes} bytes with {device}: it registers at most {max_bytes} at once")]
    RegionTooLong {
        /// The device.
        device: String,
        /// Length of the range.
        len_bytes: u64,
        /// The device's limit.
        max_bytes: u64,
    },
    /// A part that does not lie inside the region, is empty, or is longer than a request can say (4 GiB).
    #[error("{len_bytes} bytes at {offset_bytes} are no part of a region of {region_bytes} bytes")]
    OutOfRange {
        /// Start of the part, counted from the start of the region.
        offset_bytes: u64,
        /// Length of the part.
        len_bytes: u64,
        /// Length of the region.
        region_bytes: u64,
    },
    /// A slice of another memory than the region's.
    #[error("a slice of {len_bytes} bytes belongs to another memory than the region")]
    OtherMemory {
        /// Length of the slice.
        len_bytes: u64,
    },
    /// A change of state lacks an attribute.
    #[error("a queue pair goes from {from} to {to} only with its {attribute}, which is missing")]
    MissingAttribute {
        /// State it is in.
        from: QueuePairState,
        /// State it was to go to.
        to: QueuePairState,
        /// The first attribute that is missing.
        attribute: Attribute,
    },
    /// A change of state takes no such attribute.
    #[error("a queue pair takes no {attribute} on its way from {from} to {to}")]
    NeedlessAttribute {
        /// State it is in.
        from: QueuePairState,
        /// State it was to go to.
        to: QueuePairState,
        /// The attribute.
        attribute: Attribute,
    },
    /// There is no such change of state.
    #[error("a queue pair does not go from {from} to {to}")]
    NoTransition {
        /// State it is in.
        from: QueuePairState,
        /// State it was to go to.
        to: QueuePairState,
    },
    /// A setting is beyond what this program or the protocol allows.
    #[error("{setting} is {value}, beyond {max}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// Its value.
        value: u32,
        /// The most that is allowed.
        max: u32,
    },
    /// The completion queue has no room for all that the queue pair may have under way.
    #[error("a queue pair of {wanted} requests does not fit: {free} entries of its completion queue are free")]
    CompletionQueueFull {
        /// Entries that it needs.
        wanted: u32,
        /// Entries that are free.
        free: u32,
    },
    /// Two objects of different devices or domains.
    #[error("{what} belongs to another device")]
    OtherDevice {
        /// The object.
        what: &'static str,
    },
}

fn listed(found: &[String]) -> String {
    if found.is_empty() {
        "none".to_owned()
    } else {
        found.join(", ")
    }
}

impl VerbsError {
    /// Whether memory was not registered because no more of it may be locked now: less may be later.
    pub(super) fn may_lock_later(&self) -> bool {
        matches!(self, Self::Register { source, .. } if source.raw_os_error() == Some(libc::ENOMEM))
    }
}

/// What to do about a refused registration.
fn register_hint(source: &io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::ENOMEM | libc::EPERM | libc::EAGAIN) => {
            let limit = getrlimit(Resource::RLIMIT_MEMLOCK)
                .map_or_else(|_| "unknown".to_owned(), |(soft, _)| in_bytes(soft).to_string());
            format!(
                "; registered memory counts as locked, and RLIMIT_MEMLOCK is {limit}: raise it (LimitMEMLOCK=infinity in \
                 a systemd unit, ulimit -l) or free memory"
            )
        }
        Some(libc::EINVAL) => "; remote writes and atomics need local write too".to_owned(),
        Some(libc::EFAULT | libc::EOPNOTSUPP) => {
            "; memory for the device must be anonymous, memfd, tmpfs or hugetlbfs, and writable if it is to be written"
                .to_owned()
        }
        _ => String::new(),
    }
}

/// Shows a limit in bytes.
fn in_bytes(limit: u64) -> impl fmt::Display {
    if limit == libc::RLIM_INFINITY {
        "unlimited".to_owned()
    } else {
        format!("{limit} bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_registration_says_length_access_and_what_to_do() {
        let error = |errno| {
            VerbsError::Register {
                device: "mlx5_0".to_owned(),
                len_bytes: 1 << 30,
                access: Access::LOCAL_WRITE | Access::REMOTE_READ,
                source: io::Error::from_raw_os_error(errno),
            }
            .to_string()
        };
        let no_memory = error(libc::ENOMEM);
        assert!(
            no_memory.contains("1073741824 bytes for local write, remote read with mlx5_0"),
            "{no_memory}"
        );
        assert!(no_memory.contains("RLIMIT_MEMLOCK is"), "{no_memory}");
        assert!(error(libc::EPERM).contains("LimitMEMLOCK=infinity"));
        assert!(error(libc::EINVAL).contains("local write too"));
        assert!(error(libc::EFAULT).contains("tmpfs"));
        assert!(!error(libc::EIO).contains(';'));
    }
}

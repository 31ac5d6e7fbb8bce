//! Registered memory.

use std::fmt;
use std::ops::{BitOr, Range};
use std::sync::Arc;

use rdma_sys::ibv_access_flags as flags;

use super::error::VerbsError;
use super::protection_domain::ProtectionDomain;
use super::raw;
use crate::memory::Slice;

/// What a region or window may be used for, or what a queue pair lets its peer do. Reading locally is always allowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Access(u32);

impl Access {
    /// Nothing but local reading.
    pub const LOCAL_READ: Self = Self(0);
    /// The device may write it for us: the destination of reads and received messages.
    pub const LOCAL_WRITE: Self = Self(flags::IBV_ACCESS_LOCAL_WRITE.0);
    /// Peers may read it.
    pub const REMOTE_READ: Self = Self(flags::IBV_ACCESS_REMOTE_READ.0);
    /// Peers may write it. Regions need [`Access::LOCAL_WRITE`] with it.
    pub const REMOTE_WRITE: Self = Self(flags::IBV_ACCESS_REMOTE_WRITE.0);
    /// Peers may use atomic operations on it. Regions need [`Access::LOCAL_WRITE`] with it.
    pub const REMOTE_ATOMIC: Self = Self(flags::IBV_ACCESS_REMOTE_ATOMIC.0);
    /// Windows may be bound to it.
    pub const BIND_WINDOWS: Self = Self(flags::IBV_ACCESS_MW_BIND.0);

    const NAMES: [(Self, &str); 5] = [
        (Self::LOCAL_WRITE, "local write"),
        (Self::REMOTE_READ, "remote read"),
        (Self::REMOTE_WRITE, "remote write"),
        (Self::REMOTE_ATOMIC, "remote atomic"),
        (Self::BIND_WINDOWS, "window binding"),
    ];

    /// Whether all of `other` is allowed.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed = Self::NAMES.into_iter().filter(|(access, _)| self.contains(*access));
        let names: Vec<_> = allowed.map(|(_, name)| name).collect();
        f.write_str(&if names.is_empty() {
            "local read".to_owned()
        } else {
            names.join(", ")
        })
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({self})")
    }
}

/// The key under which peers reach a region or window on one device. Not secret enough to be a protection by itself, but
/// shown by its last byte only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u32);

impl fmt::Display for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "…{:02x}", self.0 & 0xff)
    }
}

impl fmt::Debug for RegionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionKey({self})")
    }
}

/// A range of memory that a device may touch. It keeps the memory; whoever posts a part of it keeps the region. The
/// device lets go of it when the last count is dropped: peers' requests under its key fail from then on, and each such
/// failure ends the queue pair that it came on.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: raw::Mr,
    slice: Slice,
    access: Access,
    domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers a range. The system locks its pages: this takes as long as touching all of them, so do it outside of
    /// asynchronous tasks, and in pieces if progress is to be shown. Ordering is never relaxed: bytes are visible before
    /// the completion that tells of them.
    ///
    /// # Errors
    /// [`VerbsError::RegionTooLong`], and [`VerbsError::Register`], which says what to do.
    pub fn register(domain: &Arc<ProtectionDomain>, slice: Slice, access: Access) -> Result<Arc<Self>, VerbsError> {
        let device = domain.device();
        let (len_bytes, max_bytes) = (slice.len_bytes(), device.attributes().max_region_bytes);
        if len_bytes > max_bytes {
            return Err(VerbsError::RegionTooLong {
                device: device.name().to_owned(),
                len_bytes,
                max_bytes,
            });
        }
        let raw = raw::Mr::new(domain.raw(), slice.clone(), access.bits());
        let raw = raw.map_err(|source| VerbsError::Register {
            device: device.name().to_owned(),
            len_bytes,
            access,
            source,
        })?;
        Ok(Arc::new(Self {
            raw,
            slice,
            access,
            domain: Arc::clone(domain),
        }))
    }

    /// Address of its first byte, as peers name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.slice.address().expose_provenance() as u64
    }

    /// The key under which peers reach it.
    #[must_use]
    pub fn key(&self) -> RegionKey {
        RegionKey(self.raw.remote_key)
    }

    /// The memory that is registered.
    #[must_use]
    pub fn slice(&self) -> &Slice {
        &self.slice
    }

    /// What it may be used for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Its domain.
    #[must_use]
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// A part of it, counted from its start, at most 4 GiB - 1 byte.
    ///
    /// # Errors
    /// [`VerbsError::OutOfRange`].
    pub fn part(self: &Arc<Self>, range: Range<u64>) -> Result<Local, VerbsError> {
        let (offset_bytes, region_bytes) = (range.start, self.slice.len_bytes());
        let len_bytes = range.end.saturating_sub(offset_bytes);
        match u32::try_from(len_bytes) {
            Ok(len) if len > 0 && range.end <= region_bytes => Ok(Local {
                region: Arc::clone(self),
                offset_bytes,
                len_bytes: len,
            }),
            _ => Err(VerbsError::OutOfRange {
                offset_bytes,
                len_bytes,
                region_bytes,
            }),
        }
    }

    /// The part of it that a slice of the same memory is.
    ///
    /// # Errors
    /// [`VerbsError::OtherMemory`], [`VerbsError::OutOfRange`].
    pub fn part_of(self: &Arc<Self>, slice: &Slice) -> Result<Local, VerbsError> {
        let len_bytes = slice.len_bytes();
        if !Arc::ptr_eq(slice.memory(), self.slice.memory()) {
            return Err(VerbsError::OtherMemory { len_bytes });
        }
        let Some(start) = slice.offset_bytes().checked_sub(self.slice.offset_bytes()) else {
            return Err(VerbsError::OutOfRange {
                offset_bytes: slice.offset_bytes(),
                len_bytes,
                region_bytes: self.slice.len_bytes(),
            });
        };
        self.part(start..start + len_bytes)
    }

    pub(super) fn raw(&self) -> &raw::Mr {
        &self.raw
    }
}

/// A part of a registered region, as a request names it. It keeps the region and so the memory.
#[derive(Clone, Debug)]
pub struct Local {
    region: Arc<MemoryRegion>,
    offset_bytes: u64,
    len_bytes: u32,
}

impl Local {
    /// Its region.
    #[must_use]
    pub fn region(&self) -> &Arc<MemoryRegion> {
        &self.region
    }

    /// Where it starts in the region.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Its length, at least one byte.
    #[must_use]
    pub fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    /// Address of its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.region.address() + self.offset_bytes
    }

    /// The part in the device's form.
    pub(super) fn scatter(&self) -> rdma_sys::ibv_sge {
        rdma_sys::ibv_sge {
            addr: self.address(),
            length: self.len_bytes,
            lkey: self.region.raw.local_key,
        }
    }
}

//! The seam: where an object's (segment, offset, length) becomes memory with an address and keys.
//!
//! `store-core` decides in segment ids and offsets and knows no memory; `transport` moves bytes between ranges of
//! memory and knows no
//! objects. They meet in this file: a [`MountedSegment`] is one segment of `store-core` and two exports of `transport`,
//! the payload and
//! the table beside it.

use crate::lives::Mounting;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Generation, SegmentId, Slot};
use tenon_protocol::message::AttachedSegment;
use tenon_protocol::table::{Descriptor, GENERATION_AT_BYTE, KeyRow, TableLayout};
use tenon_store_core::objects::MountError;
use tenon_transport::verbs::VerbsError;
use tenon_transport::verbs::engine::{Rails, Registration};
use tenon_transport::{
    Export, Exports, ExportsError, Guard, HugePages, Memory, MemoryError, RemoteKey, Rights, Scope, Slice, Unguarded,
};

/// Where a segment's memory comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSource {
    /// Payload length.
    pub len_bytes: u64,
    /// Descriptors in the table.
    pub slots: u32,
    /// What backs it.
    pub backing: Backing,
}

/// See [`SegmentSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Memory of its own.
    Memfd(HugePages),
    /// A file on tmpfs or hugetlbfs, created or emptied. Its content ends with the process.
    File(PathBuf),
}

impl std::fmt::Display for Backing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memfd(_) => f.write_str("memfd"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Why a segment could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// No memory.
    #[error("cannot mount segment {segment} of {len_bytes} bytes: {source}")]
    Memory {
        /// Which.
        segment: SegmentId,
        /// Its length.
        len_bytes: u64,
        /// What transport said.
        source: MemoryError,
    },
    /// It could not be registered with an RDMA device.
    #[error("cannot register segment {segment} for RDMA: {source}")]
    Register {
        /// Which.
        segment: SegmentId,
        /// What transport said.
        source: VerbsError,
    },
    /// No room among the exports.
    #[error("cannot export segment {segment}: {source}")]
    Export {
        /// Which.
        segment: SegmentId,
        /// What transport said.
        source: ExportsError,
    },
}

/// Why mapped memory did not become a segment.
#[derive(Debug, thiserror::Error)]
pub enum MountFailure {
    /// It could not be exported.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The holder refused it.
    #[error(transparent)]
    Holder(#[from] MountError),
}

impl From<MountFailure> for ServiceError {
    fn from(failure: MountFailure) -> Self {
        match failure {
            MountFailure::Segment(error) => error.into(),
            MountFailure::Holder(error) => Self::new(ErrorCode::Overloaded, error.to_string()),
        }
    }
}

/// The memory of a segment, before anyone may reach it.
#[derive(Debug)]
pub struct SegmentMemory {
    source: SegmentSource,
    payload: Arc<Memory>,
    table: Arc<Memory>,
    layout: TableLayout,
    /// Keep payload and table registered with RDMA devices, if there are any.
    registrations: Vec<Registration>,
}

impl SegmentMemory {
    /// Maps the payload and its table, and gives every page its memory now; `progress` gets the payload bytes done so
    /// far.
    ///
    /// # Errors
    /// [`SegmentError::Memory`].
    pub fn map(
        segment: SegmentId,
        source: SegmentSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, SegmentError> {
        let failed = |error| SegmentError::Memory {
            segment,
            len_bytes: source.len_bytes,
            source: error,
        };
        let payload = match &source.backing {
            Backing::Memfd(huge_pages) => {
                Memory::memfd(&format!("tenon-segment-{segment}"), source.len_bytes, *huge_pages)
            }
            Backing::File(path) => Memory::file(path, source.len_bytes),
        }
        .map_err(failed)?;
        let layout = TableLayout::new(source.len_bytes, source.slots);
        let table =
            Memory::memfd(&format!("tenon-table-{segment}"), layout.len_bytes(), HugePages::Off).map_err(failed)?;
        payload.prefault(0..source.len_bytes, progress).map_err(failed)?;
        Ok(Self {
            source,
            payload: Arc::new(payload),
            table: Arc::new(table),
            layout,
            registrations: Vec::new(),
        })
    }

    /// Registers payload and table with every rail. Takes as long as touching them: call it where that does no harm.
    ///
    /// # Errors
    /// [`SegmentError::Register`]: then neither is registered.
    pub(crate) fn register(
        &mut self,
        segment: SegmentId,
        rails: &Arc<Rails>,
        mounting: &Mounting,
    ) -> Result<(), SegmentError> {
        let memories = [&self.payload, &self.table];
        mounting.to_register(memories.iter().map(|memory| memory.len_bytes()).sum());
        let register = |memory: &&Arc<Memory>| rails.register_telling(memory, &|bytes| mounting.registered(bytes));
        let registrations: Result<Vec<_>, _> = memories.iter().map(register).collect();
        self.registrations = registrations.map_err(|source| SegmentError::Register { segment, source })?;
        Ok(())
    }

    /// Its payload, to see when nobody has it any more.
    pub(crate) fn watch(&self) -> Weak<Memory> {
        Arc::downgrade(&self.payload)
    }

    /// Ends what `register` began.
    pub fn deregister(&mut self) {
        self.registrations.clear();
    }

    /// Payload length.
    pub fn len_bytes(&self) -> u64 {
        self.source.len_bytes
    }

    /// Descriptors in the table.
    pub fn slots(&self) -> u32 {
        self.source.slots
    }
}

/// A segment that peers may read.
#[derive(Debug)]
pub struct MountedSegment {
    id: SegmentId,
    memory: SegmentMemory,
    data_key: RemoteKey,
    table_key: RemoteKey,
    /// No session may read it any more.
    is_closed: AtomicBool,
}

/// The ranges of a segment are decided by the holder of its objects; a range outside the mapping is a fault of ours.
const INSIDE: &str = "ranges of a segment come from its allocator and its layout";

impl MountedSegment {
    /// Its id.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// What it is made of.
    pub fn source(&self) -> &SegmentSource {
        &self.memory.source
    }

    /// The memory, once nobody uses the segment.
    pub(crate) fn into_memory(self) -> SegmentMemory {
        self.memory
    }

    /// The size of its pages.
    pub fn page_bytes(&self) -> u64 {
        self.memory.payload.page_bytes()
    }

    /// How a session reaches it.
    pub fn attached(&self) -> AttachedSegment {
        AttachedSegment {
            segment: self.id,
            segment_bytes: self.memory.source.len_bytes,
            slots: self.memory.source.slots,
            data_key: self.data_key.0,
            table_key: self.table_key.0,
        }
    }

    /// The memory of a region.
    ///
    /// # Panics
    /// If the range lies outside the segment.
    pub fn region(&self, range: Range<u64>) -> Slice {
        self.memory.payload.slice(range).expect(INSIDE)
    }

    /// Writes the piece sums, the row and the descriptor of a region, and its generation last: from here on it
    /// describes an object.
    ///
    /// # Panics
    /// If slot or region lie outside the segment.
    pub fn seal(&self, slot: Slot, descriptor: &Descriptor, row: &KeyRow, piece_sums: &[u64]) {
        let (table, layout) = (&self.memory.table, &self.memory.layout);
        let sums: Vec<u8> = piece_sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        if !sums.is_empty() {
            table
                .copy_in(layout.piece_sums_at(row.offset_bytes), &sums)
                .expect(INSIDE);
        }
        table.copy_in(layout.row_at(slot), &row.encode()).expect(INSIDE);
        let at = layout.descriptor_at(slot);
        table
            .copy_in(at, &descriptor.encode()[..GENERATION_AT_BYTE])
            .expect(INSIDE);
        self.store_generation(slot, descriptor.generation);
    }

    /// Makes the slot describe nothing. Must come before its region or the slot itself is used again.
    ///
    /// # Panics
    /// If the slot lies outside the table.
    pub fn invalidate(&self, slot: Slot) {
        self.store_generation(slot, Generation::NONE);
    }

    fn store_generation(&self, slot: Slot, generation: Generation) {
        let at = self.memory.layout.descriptor_at(slot) + GENERATION_AT_BYTE as u64;
        self.memory
            .table
            .store_u64(at, generation.0.to_le(), Ordering::Release)
            .expect(INSIDE);
    }
}

/// The mounted segments of this node.
#[derive(Debug)]
pub struct Segments {
    exports: Arc<Exports>,
    mounted: RwLock<BTreeMap<SegmentId, Arc<MountedSegment>>>,
}

impl Segments {
    /// None yet.
    pub fn new(exports: Arc<Exports>) -> Self {
        Self {
            exports,
            mounted: RwLock::default(),
        }
    }

    /// Lets every session read a segment; `guard` resolves each read of its payload to a live region.
    ///
    /// # Errors
    /// [`SegmentError::Export`].
    pub fn mount(
        &self,
        id: SegmentId,
        memory: SegmentMemory,
        guard: Arc<dyn Guard>,
    ) -> Result<Arc<MountedSegment>, SegmentError> {
        let readable = |memory: &Arc<Memory>, guard| {
            let export = Export {
                memory: memory.whole(),
                rights: Rights::Read,
                scope: Scope::AnySession,
                guard,
            };
            self.exports
                .add(export)
                .map_err(|source| SegmentError::Export { segment: id, source })
        };
        let data_key = readable(&memory.payload, guard)?;
        let table_key = readable(&memory.table, Arc::new(Unguarded)).inspect_err(|_| {
            self.exports.revoke(data_key);
        })?;
        let segment = Arc::new(MountedSegment {
            id,
            memory,
            data_key,
            table_key,
            is_closed: AtomicBool::new(false),
        });
        self.mounted.write().insert(id, Arc::clone(&segment));
        Ok(segment)
    }

    /// Lets no session read a segment any more; transfers under way end. Its own node may still read and write it.
    pub fn close(&self, segment: &MountedSegment) {
        segment.is_closed.store(true, Ordering::Relaxed);
        self.exports.revoke(segment.data_key);
        self.exports.revoke(segment.table_key);
    }

    /// How sessions reach those that they may read.
    pub fn attached(&self) -> Vec<AttachedSegment> {
        let mounted = self.mounted.read();
        let open = mounted
            .values()
            .filter(|segment| !segment.is_closed.load(Ordering::Relaxed));
        open.map(|segment| segment.attached()).collect()
    }

    /// How sessions reach one, if they may read it.
    pub fn attached_one(&self, id: SegmentId) -> Option<AttachedSegment> {
        let segment = self.get(id)?;
        (!segment.is_closed.load(Ordering::Relaxed)).then(|| segment.attached())
    }

    /// Forgets one.
    pub fn remove(&self, id: SegmentId) {
        self.mounted.write().remove(&id);
    }

    /// One of them.
    pub fn get(&self, id: SegmentId) -> Option<Arc<MountedSegment>> {
        self.mounted.read().get(&id).cloned()
    }

    /// All, by id.
    pub fn all(&self) -> Vec<Arc<MountedSegment>> {
        self.mounted.read().values().cloned().collect()
    }
}

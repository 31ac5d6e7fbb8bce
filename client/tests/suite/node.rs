//! A holder in this process: a segment, its table, and the guard that stamps reads with generations.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenon_client::HolderAccess;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::ids::{ClusterId, Generation, Incarnation, NodeId, SegmentId, Slot, Version};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{AttachReply, AttachedSegment, NodeRef, Replica};
use tenon_protocol::name::ObjectName;
use tenon_protocol::table::{Descriptor, GENERATION_AT_BYTE, KeyRow, TableLayout, row_checksum};
use tenon_transport::local::LocalConnection;
use tenon_transport::{
    Connection, Export, Exports, Guard, Hold, Memory, PeerId, Refused, RemoteKey, Rights, Scope, SessionId, Unguarded,
};

pub const CLUSTER: ClusterId = ClusterId::from_bytes([0xc1; 16]);
pub const SESSION: SessionId = SessionId([0x5e; 16]);
const SEGMENT: SegmentId = SegmentId(1);
const SLOTS: u32 = 4096;
const ALIGN_BYTES: u64 = 64;

/// Regions by offset: length and generation.
type Regions = Arc<Mutex<BTreeMap<u64, (u64, Generation)>>>;

struct Stamps(Regions);

impl Guard for Stamps {
    fn begin_read(&self, offset_bytes: u64, len_bytes: u64) -> Result<Hold, Refused> {
        let regions = self.0.lock();
        let region = regions.range(..=offset_bytes).next_back();
        match region {
            Some((&at, &(region_bytes, generation))) if offset_bytes + len_bytes <= at + region_bytes => {
                Ok(Hold::new(generation.0))
            }
            _ => Err(Refused {
                code: 1,
                message: "no object lies there",
            }),
        }
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        unreachable!("the segment is exported for reading")
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {}
}

pub struct FakeNode {
    pub id: NodeId,
    /// Where it is served, if it is.
    pub endpoint: Mutex<String>,
    incarnation: AtomicU64,
    pub exports: Arc<Exports>,
    segment: Arc<Memory>,
    table: Arc<Memory>,
    layout: TableLayout,
    regions: Regions,
    keys: Mutex<(RemoteKey, RemoteKey)>,
    next_offset: AtomicU64,
    next_slot: AtomicU64,
    next_generation: AtomicU64,
}

/// What a table says of one object, to be damaged by tests before it is stored.
#[derive(Clone)]
pub struct Entries {
    pub sums: Vec<u64>,
    pub row: KeyRow,
    pub descriptor: Descriptor,
}

impl FakeNode {
    pub fn new(number: u8, segment_bytes: u64) -> Arc<Self> {
        let exports = Arc::new(Exports::new());
        let layout = TableLayout::new(segment_bytes, SLOTS);
        let segment = Arc::new(Memory::anonymous(segment_bytes).unwrap());
        let table = Arc::new(Memory::anonymous(layout.len_bytes()).unwrap());
        let regions = Regions::default();
        let keys = Mutex::new(export(&exports, &segment, &table, &regions));
        Arc::new(Self {
            id: NodeId::from_bytes([number; 16]),
            endpoint: Mutex::new("127.0.0.1:1".into()),
            incarnation: AtomicU64::new(1_000),
            exports,
            segment,
            table,
            layout,
            regions,
            keys,
            next_offset: AtomicU64::new(0),
            next_slot: AtomicU64::new(0),
            next_generation: AtomicU64::new(u64::from(number) << 32 | 1),
        })
    }

    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Relaxed))
    }

    /// A new life: nothing is there any more, and no old grant is good.
    pub fn restart(&self) {
        self.incarnation.fetch_add(1, Ordering::Relaxed);
        self.regions.lock().clear();
        self.change_keys();
    }

    pub fn node_ref(&self) -> NodeRef {
        NodeRef {
            node: self.id,
            incarnation: self.incarnation(),
            endpoint: self.endpoint.lock().clone(),
        }
    }

    pub fn attach(&self) -> AttachReply {
        let (data_key, table_key) = *self.keys.lock();
        AttachReply {
            incarnation: self.incarnation(),
            segments: vec![AttachedSegment {
                segment: SEGMENT,
                segment_bytes: self.segment.len_bytes(),
                slots: SLOTS,
                data_key: data_key.0,
                table_key: table_key.0,
            }],
        }
    }

    pub fn connection(&self) -> Arc<dyn Connection> {
        LocalConnection::new(Arc::clone(&self.exports), SESSION, PeerId(self.id.to_bytes()))
    }

    pub fn access(&self, connection: Arc<dyn Connection>) -> Arc<HolderAccess> {
        Arc::new(HolderAccess::new(self.id, connection, self.attach()))
    }

    /// Grants under new keys: those that were given out are good no more.
    pub fn change_keys(&self) {
        let mut keys = self.keys.lock();
        assert!(self.exports.revoke(keys.0) && self.exports.revoke(keys.1));
        *keys = export(&self.exports, &self.segment, &self.table, &self.regions);
    }

    /// Sets room aside; its offset. Regions start off piece boundaries, as they may.
    pub fn reserve(&self, len_bytes: u64) -> u64 {
        let room = len_bytes.next_multiple_of(ALIGN_BYTES) + ALIGN_BYTES;
        let offset = self.next_offset.fetch_add(room, Ordering::Relaxed);
        assert!(
            offset + len_bytes <= self.segment.len_bytes(),
            "the fake's segment is full"
        );
        offset
    }

    /// Grants writing to reserved room.
    pub fn grant(&self, offset_bytes: u64, len_bytes: u64, session: SessionId) -> RemoteKey {
        let memory = self.segment.slice(offset_bytes..offset_bytes + len_bytes).unwrap();
        let export = Export {
            memory,
            rights: Rights::Write,
            scope: Scope::Session(session),
            guard: Arc::new(Unguarded),
        };
        self.exports.add(export).unwrap()
    }

    pub fn bytes(&self, offset_bytes: u64, len_bytes: u64) -> Vec<u8> {
        self.segment
            .slice(offset_bytes..offset_bytes + len_bytes)
            .unwrap()
            .to_vec()
    }

    /// The replica that room will be when it is sealed.
    pub fn replica(&self, offset_bytes: u64) -> Replica {
        let slot = self.next_slot.fetch_add(1, Ordering::Relaxed);
        Replica {
            holder: self.id,
            incarnation: self.incarnation(),
            segment: SEGMENT,
            offset_bytes,
            slot: Slot(u32::try_from(slot).unwrap()),
            generation: Generation(self.next_generation.fetch_add(1, Ordering::Relaxed)),
            is_copy: false,
        }
    }

    pub fn entries(
        &self,
        replica: &Replica,
        name: &ObjectName,
        version: Version,
        sums: &Checksums,
        len_bytes: u64,
    ) -> Entries {
        let mut sums = sums.clone();
        let tail_checksum = match len_bytes.is_multiple_of(PIECE_BYTES) {
            true => 0,
            false => sums.pieces.pop().unwrap(),
        };
        Entries {
            sums: sums.pieces,
            row: KeyRow {
                generation: replica.generation,
                offset_bytes: replica.offset_bytes,
                version,
                tail_checksum,
                sealed_unix_ms: 1_700_000_000_000,
                fingerprint: Vec::new(),
                name: name.clone(),
            },
            descriptor: Descriptor {
                key_hash: name.hash(CLUSTER),
                len_bytes,
                checksum: sums.whole,
                row_checksum: 0,
                generation: replica.generation,
            },
        }
    }

    /// Seals: the entries with the right row checksum, the generation last.
    pub fn seal(&self, replica: &Replica, mut entries: Entries) {
        let row = entries.row.encode();
        entries.descriptor.row_checksum = row_checksum(&row);
        let sums: Vec<u8> = entries.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.table
            .copy_in(self.layout.piece_sums_at(replica.offset_bytes), &sums)
            .unwrap();
        self.table.copy_in(self.layout.row_at(replica.slot), &row).unwrap();
        let line = entries.descriptor.encode();
        self.table
            .copy_in(self.layout.descriptor_at(replica.slot), &line[..GENERATION_AT_BYTE])
            .unwrap();
        let region = (entries.descriptor.len_bytes, replica.generation);
        self.regions.lock().insert(replica.offset_bytes, region);
        self.store_generation(replica, replica.generation);
    }

    fn store_generation(&self, replica: &Replica, generation: Generation) {
        let at = self.layout.descriptor_at(replica.slot) + GENERATION_AT_BYTE as u64;
        self.table
            .store_u64(at, generation.0.to_le(), Ordering::Release)
            .unwrap();
    }

    /// Writes bytes and seals them in one go.
    pub fn store(&self, name: &ObjectName, version: Version, bytes: &[u8]) -> Replica {
        let replica = self.replica(self.reserve(bytes.len() as u64));
        self.write(&replica, 0, bytes);
        let entries = self.entries(&replica, name, version, &Checksums::of(bytes), bytes.len() as u64);
        self.seal(&replica, entries);
        replica
    }

    /// Overwrites payload behind everybody's back.
    pub fn write(&self, replica: &Replica, at: u64, bytes: &[u8]) {
        self.segment.copy_in(replica.offset_bytes + at, bytes).unwrap();
    }

    /// Flips a byte of the table, counted from the start of the descriptor, the row or the sums.
    pub fn damage(&self, replica: &Replica, part: Part, at: u64) {
        let start = match part {
            Part::Descriptor => self.layout.descriptor_at(replica.slot),
            Part::Row => self.layout.row_at(replica.slot),
            Part::Sums => self.layout.piece_sums_at(replica.offset_bytes),
        };
        let mut byte = [0];
        self.table.copy_out(start + at, &mut byte).unwrap();
        self.table.copy_in(start + at, &[byte[0] ^ 1]).unwrap();
    }

    /// Drops an object.
    pub fn free(&self, replica: &Replica) {
        self.store_generation(replica, Generation::NONE);
        self.regions.lock().remove(&replica.offset_bytes);
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Part {
    Descriptor,
    Row,
    Sums,
}

fn export(exports: &Exports, segment: &Arc<Memory>, table: &Arc<Memory>, regions: &Regions) -> (RemoteKey, RemoteKey) {
    let add = |memory, guard| {
        let export = Export {
            memory,
            rights: Rights::Read,
            scope: Scope::AnySession,
            guard,
        };
        exports.add(export).unwrap()
    };
    (
        add(segment.whole(), Arc::new(Stamps(Arc::clone(regions)))),
        add(table.whole(), Arc::new(Unguarded)),
    )
}

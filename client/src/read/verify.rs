//! Whether what was read is the object: nothing reaches the caller but through here.

use crate::error::ReadFault;
use crate::read::Trouble;
use std::fmt::Display;
use tenon_protocol::checksum::{Checksums, combine_pieces};
use tenon_protocol::ids::{ClusterId, Version};
use tenon_protocol::limits::PIECE_BYTES;
use tenon_protocol::message::{Located, Replica};
use tenon_protocol::name::ObjectName;
use tenon_protocol::table::{DESCRIPTOR_BYTES, Descriptor, GENERATION_AT_BYTE, KeyRow, TableError, row_checksum};

/// Table entries as they were read; empty where they were not wanted.
#[derive(Debug)]
pub(crate) struct TableBytes {
    pub(crate) sums: Vec<u8>,
    pub(crate) row: Vec<u8>,
    pub(crate) descriptor: Vec<u8>,
}

/// What is known of an object whose table entries were verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Namespace and key.
    pub name: ObjectName,
    /// Its exact length.
    pub len_bytes: u64,
    /// Which object of the key.
    pub version: Version,
    /// When it was sealed, by its holder's wall clock.
    pub sealed_unix_ms: u64,
    /// What the putter stored with it; empty if nothing.
    pub fingerprint: Vec<u8>,
    /// Of the whole, and of each piece.
    pub checksums: Checksums,
    /// Where it lies, in the order in which it is read.
    pub replicas: Vec<Replica>,
}

fn same<T: PartialEq + Display>(field: &'static str, expected: &T, found: &T) -> Result<(), ReadFault> {
    if expected == found {
        return Ok(());
    }
    Err(ReadFault::Other {
        field,
        expected: expected.to_string(),
        found: found.to_string(),
    })
}

/// Checks that the slot still belongs to the replica.
pub(crate) fn check_generation(replica: &Replica, descriptor: &[u8]) -> Result<(), Trouble> {
    let generation = descriptor.get(GENERATION_AT_BYTE..DESCRIPTOR_BYTES);
    if generation == Some(&replica.generation.0.to_le_bytes()[..]) {
        Ok(())
    } else {
        Err(Trouble::Gone)
    }
}

/// Checks an object's table entries against the name that was asked for and what the index said of it.
///
/// The descriptor was read last: if it has the replica's generation, then sums and row were read while they belonged to it, and whatever
/// is wrong with them is damage.
pub(crate) fn check_table(
    name: &ObjectName,
    cluster: ClusterId,
    located: &Located,
    replica: &Replica,
    table: &TableBytes,
) -> Result<ObjectInfo, Trouble> {
    check_generation(replica, &table.descriptor)?;
    let (descriptor, row) = decode(table)?;
    same("key hash", &name.hash(cluster), &descriptor.key_hash)?;
    same("length", &located.len_bytes, &descriptor.len_bytes)?;
    same("row's generation", &replica.generation, &row.generation)?;
    same("row's offset", &replica.offset_bytes, &row.offset_bytes)?;
    same("version", &located.version, &row.version)?;
    same("namespace", name.namespace(), row.name.namespace())?;
    same("key", &name.key(), &row.name.key())?;
    let checksums = checksums(&descriptor, &row, &table.sums)?;
    Ok(ObjectInfo {
        name: row.name,
        len_bytes: descriptor.len_bytes,
        version: row.version,
        sealed_unix_ms: row.sealed_unix_ms,
        fingerprint: row.fingerprint,
        checksums,
        replicas: located.replicas.clone(),
    })
}

fn decode(table: &TableBytes) -> Result<(Descriptor, KeyRow), ReadFault> {
    let line: &[u8; DESCRIPTOR_BYTES] = table.descriptor.as_slice().try_into().map_err(|_| TableError::Short {
        part: "descriptor",
        len_bytes: table.descriptor.len(),
        needed_bytes: DESCRIPTOR_BYTES,
    })?;
    let descriptor = Descriptor::decode(line)?;
    let (expected, found) = (descriptor.row_checksum, row_checksum(&table.row));
    if expected != found {
        return Err(ReadFault::Row { expected, found });
    }
    Ok((descriptor, KeyRow::decode(&table.row)?))
}

/// The checksums of all pieces, which must combine to the whole's.
fn checksums(descriptor: &Descriptor, row: &KeyRow, sums: &[u8]) -> Result<Checksums, ReadFault> {
    let len_bytes = descriptor.len_bytes;
    let mut pieces: Vec<u64> = sums.as_chunks().0.iter().map(|&sum| u64::from_le_bytes(sum)).collect();
    if !len_bytes.is_multiple_of(PIECE_BYTES) {
        pieces.push(row.tail_checksum);
    } else if len_bytes == PIECE_BYTES {
        // The sum of an object's only piece is the whole's, so it is not read from the table.
        pieces = vec![descriptor.checksum];
    }
    let checksums = Checksums {
        whole: descriptor.checksum,
        pieces,
    };
    if checksums.is_consistent(len_bytes) {
        return Ok(checksums);
    }
    Err(ReadFault::Sums {
        expected: checksums.whole,
        found: combine_pieces(len_bytes, &checksums.pieces),
    })
}

/// Checks one piece as it landed.
pub(crate) fn check_piece(info: &ObjectInfo, piece: u64, found: u64) -> Result<(), ReadFault> {
    let expected = usize::try_from(piece)
        .ok()
        .and_then(|at| info.checksums.pieces.get(at))
        .copied();
    match expected {
        Some(expected) if expected == found => Ok(()),
        expected => Err(ReadFault::Piece {
            piece,
            expected: expected.unwrap_or(0),
            found,
        }),
    }
}

//! What the two ends of an RDMA connection tell each other beside their transfers.

use std::net::Ipv6Addr;

use super::subnet::Subnet;
use crate::engine::TransferError;
use crate::ids::RemoteKey;
use crate::limits::{VERBS_FORGET_KEYS_MAX, VERBS_PATHS_MAX, VERBS_PULLS_MAX, VERBS_READ_PARTS_MAX, VERBS_REGIONS_MAX};
use crate::verbs::{Endpoint, Gid, Mtu, RegionKey, Remote};
use crate::wire::{Fields, decode_transfer_error, encode_transfer_error, put_text};

/// A queue pair that wants to be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) path: u8,
    pub(super) subnet: Subnet,
    pub(super) endpoint: Endpoint,
}

/// The queue pair that an offered one is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accept {
    pub(super) path: u8,
    pub(super) endpoint: Endpoint,
    /// A few bytes that may be read over it, to see whether it carries.
    pub(super) probe: Remote,
    /// Whether writes under windows may be asked for on it.
    pub(super) pushes: bool,
}

/// A range of an export that the initiator wants to write to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) key: RemoteKey,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    /// Over which path.
    pub(super) path: u8,
}

/// A range that may be written to, until it is settled or the deadline of the call has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// What it is settled by.
    pub(super) grant: u64,
    pub(super) to: Remote,
}

/// A grant is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settle {
    pub(super) grant: u64,
    /// All bytes were written, as far as the initiator knows.
    pub(super) landed: bool,
}

/// Bytes that the owner is to read into an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pull {
    pub(super) key: RemoteKey,
    pub(super) offset_bytes: u64,
    /// Items of one group that is not zero are carried out in order.
    pub(super) group: u32,
    /// Ranges of the initiator's memory in order.
    pub(super) sources: Vec<Source>,
}

/// A range of the initiator's memory, as it is named on each path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) len_bytes: u64,
    pub(super) from: Vec<(u8, Remote)>,
}

/// How an export is named on a path: from the beginning of each of its parts on, up to the longest read beyond its end, under a key of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) path: u8,
    /// Of its first byte.
    pub(super) address: u64,
    /// Length of the first part.
    pub(super) first_bytes: u64,
    /// Length of each further part but the last.
    pub(super) part_bytes: u64,
    pub(super) keys: Vec<RegionKey>,
}

impl Named {
    /// Where a slice of it begins, by the key of the part that it begins in.
    pub(super) fn at(&self, offset_bytes: u64) -> Option<Remote> {
        let further = offset_bytes.checked_sub(self.first_bytes);
        let part = further.map_or(0, |further_bytes| 1 + further_bytes / self.part_bytes);
        Some(Remote {
            address: self.address.wrapping_add(offset_bytes),
            key: *self.keys.get(usize::try_from(part).ok()?)?,
        })
    }
}

/// A question of the initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Connect these. `any_subnet`: also to a rail of another network.
    Connect { any_subnet: bool, offers: Vec<Offer> },
    /// Where is this export?
    Resolve { key: RemoteKey },
    /// Read these.
    Pull(Vec<Pull>),
    /// These paths were closed on the initiator's side, to make room for others.
    Rest(Vec<u8>),
    /// Are paths to be closed, or keys to be forgotten? Answered when some are, or after a while.
    Listen,
    /// Nothing is read under these keys any more.
    Forgot(Vec<RemoteKey>),
    /// Let these be written.
    Grant(Vec<Want>),
    /// Take these grants back.
    Settle(Vec<Settle>),
}

/// The owner's answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tell {
    /// Those that could be, and why others could not.
    Connected { accepted: Vec<Accept>, refused: String },
    /// Its length, and how it is named on each path.
    Resolved { len_bytes: u64, at: Vec<Named> },
    /// The checksum of each as it landed; and which of the paths that were named are not up at the owner.
    Pulled {
        results: Vec<Result<u64, TransferError>>,
        away: Vec<u8>,
    },
    /// It is so.
    Done,
    /// Close those of these paths that were not used for some time; and forget these keys, and say so.
    Wanted {
        paths: Vec<u8>,
        idle_ms: u32,
        keys: Vec<RemoteKey>,
    },
    /// What may be written where; `None`: offer it to be read instead.
    Granted(Vec<Result<Option<Given>, TransferError>>),
    /// The checksum of each as it landed; `None`: offer it to be read instead.
    Settled(Vec<Result<Option<u64>, TransferError>>),
    /// What was asked can't be done at all.
    Failed(TransferError),
}

const CONNECT: u8 = 1;
const RESOLVE: u8 = 2;
const PULL: u8 = 3;
const FAILED: u8 = 4;
const REST: u8 = 5;
const LISTEN: u8 = 6;
const GRANT: u8 = 7;
const SETTLE: u8 = 8;
const FORGOT: u8 = 9;

impl Ask {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            Self::Connect { any_subnet, offers } => {
                to.extend_from_slice(&[CONNECT, u8::from(*any_subnet), count(offers.len())]);
                for offer in offers {
                    to.push(offer.path);
                    to.extend_from_slice(&offer.subnet.prefix.octets());
                    to.push(offer.subnet.prefix_bits);
                    put_endpoint(&mut to, &offer.endpoint);
                }
            }
            Self::Resolve { key } => {
                to.push(RESOLVE);
                to.extend_from_slice(&key.0.to_le_bytes());
            }
            Self::Pull(pulls) => {
                to.push(PULL);
                put_u16(&mut to, pulls.len());
                for pull in pulls {
                    to.extend_from_slice(&pull.key.0.to_le_bytes());
                    to.extend_from_slice(&pull.offset_bytes.to_le_bytes());
                    to.extend_from_slice(&pull.group.to_le_bytes());
                    put_u16(&mut to, pull.sources.len());
                    for source in &pull.sources {
                        to.extend_from_slice(&source.len_bytes.to_le_bytes());
                        put_named(&mut to, &source.from);
                    }
                }
            }
            Self::Rest(paths) => {
                to.push(REST);
                put_paths(&mut to, paths);
            }
            Self::Listen => to.push(LISTEN),
            Self::Forgot(keys) => {
                to.push(FORGOT);
                put_keys(&mut to, keys);
            }
            Self::Grant(wants) => {
                to.push(GRANT);
                put_u16(&mut to, wants.len());
                for want in wants {
                    to.extend_from_slice(&want.key.0.to_le_bytes());
                    to.extend_from_slice(&want.offset_bytes.to_le_bytes());
                    to.extend_from_slice(&want.len_bytes.to_le_bytes());
                    to.push(want.path);
                }
            }
            Self::Settle(settles) => {
                to.push(SETTLE);
                put_u16(&mut to, settles.len());
                for settle in settles {
                    to.extend_from_slice(&settle.grant.to_le_bytes());
                    to.push(u8::from(settle.landed));
                }
            }
        }
        to
    }

    /// `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let ask = match fields.u8()? {
            CONNECT => {
                let any_subnet = fields.u8()? != 0;
                let offers = list(fields.u8()?.into(), VERBS_PATHS_MAX, || {
                    let path = fields.u8()?;
                    let subnet = Subnet::new(Ipv6Addr::from(fields.array::<16>()?), fields.u8()?);
                    let endpoint = endpoint(&mut fields)?;
                    Some(Offer { path, subnet, endpoint })
                })?;
                Self::Connect { any_subnet, offers }
            }
            RESOLVE => Self::Resolve {
                key: RemoteKey(fields.u64()?),
            },
            PULL => Self::Pull(list(fields.u16()?.into(), VERBS_PULLS_MAX, || {
                let (key, offset_bytes, group) = (RemoteKey(fields.u64()?), fields.u64()?, fields.u32()?);
                let sources = list(fields.u16()?.into(), VERBS_READ_PARTS_MAX, || {
                    let len_bytes = fields.u64()?;
                    let from = named(&mut fields)?;
                    Some(Source { len_bytes, from })
                })?;
                Some(Pull {
                    key,
                    offset_bytes,
                    group,
                    sources,
                })
            })?),
            REST => Self::Rest(paths(&mut fields)?),
            LISTEN => Self::Listen,
            FORGOT => Self::Forgot(keys(&mut fields)?),
            GRANT => Self::Grant(list(fields.u16()?.into(), VERBS_PULLS_MAX, || {
                Some(Want {
                    key: RemoteKey(fields.u64()?),
                    offset_bytes: fields.u64()?,
                    len_bytes: fields.u64()?,
                    path: fields.u8()?,
                })
            })?),
            SETTLE => Self::Settle(list(fields.u16()?.into(), VERBS_PULLS_MAX, || {
                Some(Settle {
                    grant: fields.u64()?,
                    landed: fields.u8()? != 0,
                })
            })?),
            _ => return None,
        };
        fields.end()?;
        Some(ask)
    }
}

impl Tell {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::new();
        match self {
            Self::Connected { accepted, refused } => {
                to.extend_from_slice(&[CONNECT, count(accepted.len())]);
                for accept in accepted {
                    to.push(accept.path);
                    put_endpoint(&mut to, &accept.endpoint);
                    put_remote(&mut to, accept.probe);
                    to.push(u8::from(accept.pushes));
                }
                put_text(&mut to, refused, crate::limits::MAX_REFUSAL_TEXT_BYTES);
            }
            Self::Resolved { len_bytes, at } => {
                to.push(RESOLVE);
                to.extend_from_slice(&len_bytes.to_le_bytes());
                to.push(count(at.len()));
                at.iter().for_each(|named| put_named_export(&mut to, named));
            }
            Self::Pulled { results, away } => {
                to.push(PULL);
                put_paths(&mut to, away);
                put_results(&mut to, results, |to, crc64| to.extend_from_slice(&crc64.to_le_bytes()));
            }
            Self::Granted(results) => {
                to.push(GRANT);
                put_results(&mut to, results, |to, given| {
                    to.push(u8::from(given.is_some()));
                    if let Some(given) = given {
                        to.extend_from_slice(&given.grant.to_le_bytes());
                        put_remote(to, given.to);
                    }
                });
            }
            Self::Settled(results) => {
                to.push(SETTLE);
                put_results(&mut to, results, |to, crc64| {
                    to.push(u8::from(crc64.is_some()));
                    to.extend_from_slice(&crc64.unwrap_or(0).to_le_bytes());
                });
            }
            Self::Done => to.push(REST),
            Self::Wanted { paths, idle_ms, keys } => {
                to.push(LISTEN);
                put_paths(&mut to, paths);
                to.extend_from_slice(&idle_ms.to_le_bytes());
                put_keys(&mut to, keys);
            }
            Self::Failed(error) => {
                to.push(FAILED);
                put_error(&mut to, error);
            }
        }
        to
    }

    /// `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::new(bytes);
        let tell = match fields.u8()? {
            CONNECT => {
                let accepted = list(fields.u8()?.into(), VERBS_PATHS_MAX, || {
                    let (path, endpoint) = (fields.u8()?, endpoint(&mut fields)?);
                    let (probe, pushes) = (remote(&mut fields)?, fields.u8()? != 0);
                    Some(Accept {
                        path,
                        endpoint,
                        probe,
                        pushes,
                    })
                })?;
                Self::Connected {
                    accepted,
                    refused: fields.text()?.to_owned(),
                }
            }
            RESOLVE => Self::Resolved {
                len_bytes: fields.u64()?,
                at: list(fields.u8()?.into(), VERBS_PATHS_MAX, || named_export(&mut fields))?,
            },
            PULL => {
                let away = paths(&mut fields)?;
                let results = results(&mut fields, |fields| fields.u64())?;
                Self::Pulled { results, away }
            }
            GRANT => Self::Granted(results(&mut fields, |fields| match fields.u8()? {
                0 => Some(None),
                _ => Some(Some(Given {
                    grant: fields.u64()?,
                    to: remote(fields)?,
                })),
            })?),
            SETTLE => Self::Settled(results(&mut fields, |fields| {
                let (is_some, crc64) = (fields.u8()? != 0, fields.u64()?);
                Some(is_some.then_some(crc64))
            })?),
            REST => Self::Done,
            LISTEN => Self::Wanted {
                paths: paths(&mut fields)?,
                idle_ms: fields.u32()?,
                keys: keys(&mut fields)?,
            },
            FAILED => Self::Failed(error(&mut fields)?),
            _ => return None,
        };
        fields.end()?;
        Some(tell)
    }
}

/// `len` items, unless that is more than there may be.
fn list<T>(len: usize, max: usize, mut item: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
    if len > max {
        return None;
    }
    (0..len).map(|_| item()).collect()
}

fn count(len: usize) -> u8 {
    u8::try_from(len).expect("limited before it is sent")
}

fn put_u16(to: &mut Vec<u8>, len: usize) {
    let len = u16::try_from(len).expect("limited before it is sent");
    to.extend_from_slice(&len.to_le_bytes());
}

fn put_remote(to: &mut Vec<u8>, remote: Remote) {
    to.extend_from_slice(&remote.address.to_le_bytes());
    to.extend_from_slice(&remote.key.0.to_le_bytes());
}

fn remote(fields: &mut Fields<'_>) -> Option<Remote> {
    Some(Remote {
        address: fields.u64()?,
        key: RegionKey(fields.u32()?),
    })
}

fn put_named(to: &mut Vec<u8>, named: &[(u8, Remote)]) {
    to.push(count(named.len()));
    for (path, remote) in named {
        to.push(*path);
        put_remote(to, *remote);
    }
}

fn named(fields: &mut Fields<'_>) -> Option<Vec<(u8, Remote)>> {
    let len = fields.u8()?.into();
    list(len, VERBS_PATHS_MAX, || Some((fields.u8()?, remote(fields)?)))
}

fn put_named_export(to: &mut Vec<u8>, named: &Named) {
    to.push(named.path);
    for number in [named.address, named.first_bytes, named.part_bytes] {
        to.extend_from_slice(&number.to_le_bytes());
    }
    put_u16(to, named.keys.len());
    named
        .keys
        .iter()
        .for_each(|key| to.extend_from_slice(&key.0.to_le_bytes()));
}

fn named_export(fields: &mut Fields<'_>) -> Option<Named> {
    let (path, address) = (fields.u8()?, fields.u64()?);
    let (first_bytes, part_bytes, len) = (fields.u64()?, fields.u64()?, fields.u16()?.into());
    let keys = list(len, VERBS_REGIONS_MAX, || Some(RegionKey(fields.u32()?)))?;
    // Whoever looks a part up divides by it.
    (part_bytes > 0).then_some(Named {
        path,
        address,
        first_bytes,
        part_bytes,
        keys,
    })
}

fn put_paths(to: &mut Vec<u8>, paths: &[u8]) {
    to.push(count(paths.len()));
    to.extend_from_slice(paths);
}

fn paths(fields: &mut Fields<'_>) -> Option<Vec<u8>> {
    let len = fields.u8()?.into();
    list(len, VERBS_PATHS_MAX, || fields.u8())
}

fn put_keys(to: &mut Vec<u8>, keys: &[RemoteKey]) {
    put_u16(to, keys.len());
    keys.iter().for_each(|key| to.extend_from_slice(&key.0.to_le_bytes()));
}

fn keys(fields: &mut Fields<'_>) -> Option<Vec<RemoteKey>> {
    let len = fields.u16()?.into();
    list(len, VERBS_FORGET_KEYS_MAX, || Some(RemoteKey(fields.u64()?)))
}

fn put_endpoint(to: &mut Vec<u8>, endpoint: &Endpoint) {
    to.extend_from_slice(&endpoint.queue_pair.to_le_bytes());
    to.extend_from_slice(&endpoint.first_packet.to_le_bytes());
    to.extend_from_slice(&endpoint.gid.0);
    to.extend_from_slice(&endpoint.local_id.to_le_bytes());
    to.extend_from_slice(&endpoint.mtu.bytes().to_le_bytes());
    to.push(endpoint.reads_as_target);
}

fn endpoint(fields: &mut Fields<'_>) -> Option<Endpoint> {
    Some(Endpoint {
        queue_pair: fields.u32()?,
        first_packet: fields.u32()?,
        gid: Gid(fields.array()?),
        local_id: fields.u16()?,
        mtu: Mtu::of_bytes(fields.u32()?)?,
        reads_as_target: fields.u8()?,
    })
}

fn put_results<T>(to: &mut Vec<u8>, results: &[Result<T, TransferError>], put: impl Fn(&mut Vec<u8>, &T)) {
    put_u16(to, results.len());
    for result in results {
        to.push(u8::from(result.is_ok()));
        match result {
            Ok(found) => put(to, found),
            Err(error) => put_error(to, error),
        }
    }
}

fn results<T>(
    fields: &mut Fields<'_>,
    found: impl Fn(&mut Fields<'_>) -> Option<T>,
) -> Option<Vec<Result<T, TransferError>>> {
    let len = fields.u16()?.into();
    list(len, VERBS_PULLS_MAX, || match fields.u8()? {
        0 => Some(Err(error(fields)?)),
        _ => Some(Ok(found(fields)?)),
    })
}

fn put_error(to: &mut Vec<u8>, error: &TransferError) {
    let encoded = encode_transfer_error(error);
    put_u16(to, encoded.len());
    to.extend_from_slice(&encoded);
}

fn error(fields: &mut Fields<'_>) -> Option<TransferError> {
    let len = fields.u16()?;
    decode_transfer_error(fields.bytes(len.into())?)
}

#[cfg(test)]
mod tests;

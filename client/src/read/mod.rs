//! The one way in which objects are read: locate, read, verify; and what to do when that fails. Whole gets, ranges, streams and `stat` all go
//! through [`Core::read`].

mod fetch;
mod item;
pub(crate) mod plan;
pub(crate) mod reader;
mod verify;

pub use verify::ObjectInfo;

use crate::client::Core;
use crate::error::{ClientError, ReadFault};
use crate::get::Check;
use crate::holders::HolderAccess;
use crate::locate::Place;
use crate::time::half_of;
use fetch::{Fetch, Fetched};
use futures_util::future::join_all;
use item::Item;
use plan::Target;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId, SegmentId};
use tenon_protocol::message::NodeRef;
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_transport::Slice;
use tokio::time::{Instant, timeout_at};

/// One object to read.
#[derive(Debug)]
pub(crate) struct ReadJob {
    /// Which.
    pub(crate) name: ObjectName,
    /// What of it, and where to.
    pub(crate) target: Target,
    /// An object with another fingerprint is a miss.
    pub(crate) fingerprint: Option<Vec<u8>>,
    /// What an earlier read found: only this very object will do, and its table entries need not be read again.
    pub(crate) known: Option<Known>,
    /// By what it is checked.
    pub(crate) check: Check,
}

/// An object whose table entries were verified, and where it was found.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) info: Arc<ObjectInfo>,
    pub(crate) place: Place,
}

/// An object that was read and verified.
#[derive(Debug)]
pub(crate) struct ReadDone {
    pub(crate) known: Known,
    /// The bytes, if any were wanted.
    pub(crate) data: Option<Slice>,
}

/// What became of one job: `None` is a miss.
pub(crate) type ReadResult = Result<Option<ReadDone>, ClientError>;

/// Why one attempt to read a replica gave nothing.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// The holder does not have this object there any more.
    Gone,
    /// It has, but what came is not the object.
    Wrong(ReadFault),
    /// The holder has withdrawn the grant to read the segment.
    Withdrawn,
    /// The way to the holder broke.
    Broken(String),
    /// The holder does not answer.
    Unreachable(ClientError),
    /// The time for this attempt passed.
    Late,
    /// Trying again is no use.
    Final(ClientError),
}

impl From<ReadFault> for Trouble {
    fn from(fault: ReadFault) -> Self {
        Self::Wrong(fault)
    }
}

impl Core {
    /// Reads objects of one namespace; one result per job. A destination has undefined content unless its job is done.
    pub(crate) async fn read(&self, namespace: &Namespace, jobs: Vec<ReadJob>, deadline: Instant) -> Vec<ReadResult> {
        let mut items: Vec<Item> = jobs.into_iter().map(Item::new).collect();
        loop {
            self.locate_items(namespace, &mut items, deadline).await;
            let groups = by_holder(&mut items);
            if groups.is_empty() {
                return items.into_iter().map(Item::into_result).collect();
            }
            let attempts = groups
                .iter()
                .map(|(node, at)| self.read_from(node, at.iter().map(|&at| &items[at]).collect(), deadline));
            let attempts = join_all(attempts).await;
            for ((node, at), results) in groups.iter().zip(attempts) {
                for (&at, result) in at.iter().zip(results) {
                    items[at].attempted(node.node, result, deadline);
                }
            }
        }
    }

    async fn locate_items(&self, namespace: &Namespace, items: &mut [Item], deadline: Instant) {
        let wanted = (0..items.len()).filter(|&at| items[at].wants_place());
        let (again, at): (Vec<usize>, Vec<usize>) = wanted.partition(|&at| items[at].missed().is_some());
        let keys = at.iter().map(|&at| items[at].key().to_owned()).collect();
        let missed = again.iter().filter_map(|&at| items[at].missed()).collect();
        let (places, other_places) = tokio::join!(
            self.locate(namespace.as_str(), keys, deadline),
            self.relocate(namespace.as_str(), missed, deadline),
        );
        for (at, place) in at.into_iter().zip(places).chain(again.into_iter().zip(other_places)) {
            items[at].placed(place);
        }
    }

    /// One attempt at all items that lie at one holder.
    async fn read_from(
        &self,
        node: &NodeRef,
        items: Vec<&Item>,
        deadline: Instant,
    ) -> Vec<Result<Arc<ObjectInfo>, Trouble>> {
        // With another replica to turn to, a holder that hangs must not use up all the time.
        let has_other = items.iter().any(|item| item.has_other_replica());
        let deadline = if has_other { half_of(deadline) } else { deadline };
        let access = match timeout_at(deadline, self.holders.open(node, deadline)).await {
            Ok(Ok(access)) => access,
            Ok(Err(error)) => return vec![Err(trouble_of(error)); items.len()],
            Err(_) => return vec![Err(Trouble::Late); items.len()],
        };
        if let Some(trouble) = other_life(node, &access) {
            if matches!(trouble, Trouble::Broken(_)) {
                self.holders.discard(&access);
            }
            return vec![Err(trouble); items.len()];
        }
        let guarded = access.connection.guards_reads();
        let fetches: Vec<Fetch<'_>> = items.iter().map(|item| item.fetch(guarded)).collect();
        let segments: Vec<SegmentId> = fetches.iter().map(|fetch| fetch.replica.segment).collect();
        if let Err(error) = access.learn(&segments, deadline).await {
            return vec![Err(trouble_of(error)); items.len()];
        }
        let fetched = fetch::fetch(&access, &fetches, deadline).await;
        if fetched.iter().any(|result| matches!(result, Err(Trouble::Broken(_)))) {
            self.holders.discard(&access);
        }
        for (segment, result) in segments.iter().zip(&fetched) {
            if matches!(result, Err(Trouble::Withdrawn)) && !access.forget(*segment) {
                self.holders.discard(&access);
            }
        }
        let verify = |(item, result): (&&Item, Result<Fetched, Trouble>)| item.verify(self.cluster, &result?);
        let read: Vec<_> = items.iter().zip(fetched).map(verify).collect();
        if !guarded {
            let used = fetches.iter().zip(&read);
            let used = used.filter(|(fetch, read)| read.is_ok() && !fetch.pieces.is_empty());
            self.marks.note(used.map(|(fetch, _)| fetch.name));
        }
        read
    }
}

/// The undecided items by the holder that is to be tried next.
fn by_holder(items: &mut [Item]) -> Vec<(NodeRef, Vec<usize>)> {
    let mut groups: HashMap<(NodeId, Incarnation), (NodeRef, Vec<usize>)> = HashMap::new();
    for (at, item) in items.iter_mut().enumerate() {
        if let Some(node) = item.next_holder() {
            let group = groups.entry((node.node, node.incarnation));
            group.or_insert_with(|| (node, Vec::new())).1.push(at);
        }
    }
    groups.into_values().collect()
}

/// Whether the holder lives another life than the one in which the objects were located.
fn other_life(asked: &NodeRef, access: &HolderAccess) -> Option<Trouble> {
    match access.incarnation.cmp(&asked.incarnation) {
        Ordering::Equal => None,
        Ordering::Greater => Some(Trouble::Gone),
        Ordering::Less => Some(Trouble::Broken(format!(
            "node {} was reached in life {}, it is known to live {}",
            asked.node, access.incarnation, asked.incarnation
        ))),
    }
}

fn trouble_of(error: ServiceError) -> Trouble {
    match error.code {
        ErrorCode::Unavailable => Trouble::Unreachable(error.into()),
        ErrorCode::DeadlineExceeded => Trouble::Late,
        _ => Trouble::Final(error.into()),
    }
}

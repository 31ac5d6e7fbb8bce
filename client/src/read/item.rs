//! One object on its way through [`Core::read`](crate::client::Core::read): what was tried, and what to try next.

use crate::error::ClientError;
use crate::get::Check;
use crate::limits::{BROKEN_READS_MAX, CORRUPT_READS_MAX, RELOCATIONS_MAX};
use crate::locate::{Place, Placed};
use crate::read::fetch::{Fetch, Fetched, TableWanted};
use crate::read::plan::Plan;
use crate::read::verify::{ObjectInfo, check_generation, check_piece, check_table};
use crate::read::{Known, ReadDone, ReadJob, ReadResult, Trouble};
use std::sync::Arc;
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_protocol::message::{Located, MissedKey, NodeRef, Replica};
use tokio::time::Instant;

/// Each step decides the item or uses up one of a bounded number of tries, so it ends.
#[derive(Debug)]
pub(crate) struct Item {
    job: ReadJob,
    place: Option<Place>,
    plan: Plan,
    replica_at: usize,
    /// Where it was located, and gone from when it was read.
    gone_from: Option<Located>,
    relocations: u32,
    corrupt_reads: u32,
    broken_reads: u32,
    /// The first replica that could not be asked.
    unreachable: Option<ClientError>,
    result: Option<ReadResult>,
}

impl Item {
    pub(crate) fn new(job: ReadJob) -> Self {
        let known_place = job.known.as_ref().map(|known| known.place.clone());
        let mut item = Self {
            job,
            place: None,
            plan: Plan::default(),
            replica_at: 0,
            gone_from: None,
            relocations: 0,
            corrupt_reads: 0,
            broken_reads: 0,
            unreachable: None,
            result: None,
        };
        if known_place.is_some() {
            item.placed(Ok(known_place));
        }
        item
    }

    pub(crate) fn key(&self) -> &str {
        self.job.name.key()
    }

    /// What was not found where it should have been, so that the homes look again.
    pub(crate) fn missed(&self) -> Option<MissedKey> {
        let gone = self.gone_from.as_ref()?;
        Some(MissedKey {
            key: self.key().to_owned(),
            version: gone.version,
        })
    }

    pub(crate) fn wants_place(&self) -> bool {
        self.result.is_none() && self.place.is_none()
    }

    /// The index has answered where the object is.
    pub(crate) fn placed(&mut self, place: Placed) {
        match place {
            Ok(Some(place)) => self.found_at(place),
            Ok(None) => self.result = Some(self.no_such_object()),
            Err(error) => self.result = Some(Err(error)),
        }
    }

    fn found_at(&mut self, place: Place) {
        let known = self.job.known.as_ref();
        if let Some(known) = known.filter(|known| known.info.version != place.located.version) {
            let expected = known.info.version;
            self.result = Some(Err(ClientError::Changed { expected }));
            return;
        }
        match Plan::new(&self.job.target, place.located.len_bytes) {
            Ok(plan) => {
                self.plan = plan;
                self.place = Some(place);
                self.replica_at = 0;
                self.broken_reads = 0;
            }
            Err(error) => self.result = Some(Err(error)),
        }
    }

    /// Whoever has opened an object and then does not find it must not take that for its end.
    fn no_such_object(&self) -> ReadResult {
        match &self.job.known {
            Some(known) => Err(ClientError::Changed {
                expected: known.info.version,
            }),
            None => Ok(None),
        }
    }

    /// The holder to try next; `None` if the item is decided.
    pub(crate) fn next_holder(&mut self) -> Option<NodeRef> {
        if self.result.is_some() {
            return None;
        }
        match self.place.as_ref()?.holder(self.replica_at) {
            Ok(node) => Some(node),
            Err(error) => {
                self.result = Some(Err(error));
                None
            }
        }
    }

    pub(crate) fn has_other_replica(&self) -> bool {
        self.place
            .as_ref()
            .is_some_and(|place| self.replica_at + 1 < place.located.replicas.len())
    }

    fn current(&self) -> (&Place, &Replica) {
        let place = self.place.as_ref().expect("only items with a place are read");
        (place, &place.located.replicas[self.replica_at])
    }

    /// What to read from the holder that [`Item::next_holder`] named.
    pub(crate) fn fetch(&self, guarded: bool) -> Fetch<'_> {
        let (place, replica) = self.current();
        Fetch {
            name: &self.job.name,
            len_bytes: place.located.len_bytes,
            replica: *replica,
            pieces: &self.plan.pieces,
            table: match (&self.job.known, guarded) {
                (None, _) => TableWanted::Full,
                (Some(_), false) => TableWanted::Descriptor,
                (Some(_), true) => TableWanted::Nothing,
            },
            check: self.job.check,
        }
    }

    /// Verifies what was read, and only then hands it on to the destination.
    pub(crate) fn verify(&self, cluster: ClusterId, fetched: &Fetched) -> Result<Arc<ObjectInfo>, Trouble> {
        let (place, replica) = self.current();
        let info = match &self.job.known {
            Some(known) => {
                if !fetched.table.descriptor.is_empty() {
                    check_generation(replica, &fetched.table.descriptor)?;
                }
                Arc::clone(&known.info)
            }
            None => Arc::new(check_table(
                &self.job.name,
                cluster,
                &place.located,
                replica,
                &fetched.table,
            )?),
        };
        for (read, found) in self.plan.pieces.iter().zip(&fetched.piece_sums) {
            match found {
                Some(found) => check_piece(&info, read.piece, *found)?,
                None => assert_eq!(self.job.check, Check::Generation, "a piece was not looked at"),
            }
        }
        self.plan.deliver();
        Ok(info)
    }

    /// One attempt has ended.
    pub(crate) fn attempted(&mut self, node: NodeId, result: Result<Arc<ObjectInfo>, Trouble>, deadline: Instant) {
        match result {
            Ok(info) => self.done(info),
            Err(Trouble::Gone) => self.gone(),
            Err(Trouble::Wrong(fault)) => {
                self.corrupt_reads += 1;
                if self.corrupt_reads >= CORRUPT_READS_MAX {
                    self.result = Some(Err(ClientError::FailedRead { node, fault }));
                } else {
                    self.next_replica();
                }
            }
            Err(Trouble::Broken(reason)) => {
                self.broken_reads += 1;
                if self.broken_reads >= BROKEN_READS_MAX {
                    self.unreachable(ClientError::unavailable(node, &format!("reading an object, {reason}")));
                }
            }
            Err(Trouble::Withdrawn) => {
                self.broken_reads += 1;
                if self.broken_reads >= BROKEN_READS_MAX {
                    self.unreachable(ClientError::unavailable(
                        node,
                        "it withdraws each grant to read an object",
                    ));
                }
            }
            Err(Trouble::Unreachable(error)) => self.unreachable(error),
            Err(Trouble::Late) => self.unreachable(ClientError::deadline(format!("reading from node {node}"))),
            Err(Trouble::Final(error)) => self.result = Some(Err(error)),
        }
        if self.result.is_none() && Instant::now() >= deadline {
            let error = ClientError::deadline(format!("reading from node {node}"));
            self.result = Some(Err(error));
        }
    }

    fn done(&mut self, info: Arc<ObjectInfo>) {
        let other = self
            .job
            .fingerprint
            .as_ref()
            .is_some_and(|wanted| *wanted != info.fingerprint);
        if other {
            self.result = Some(Ok(None));
        } else if let Some(place) = self.place.take() {
            let data = self.plan.data.clone();
            let known = Known { info, place };
            self.result = Some(Ok(Some(ReadDone { known, data })));
        }
    }

    fn next_replica(&mut self) -> bool {
        let has_other = self.has_other_replica();
        if has_other {
            self.replica_at += 1;
            self.broken_reads = 0;
        }
        has_other
    }

    fn unreachable(&mut self, error: ClientError) {
        let first = self.unreachable.get_or_insert(error).clone();
        if !self.next_replica() {
            self.result = Some(Err(first));
        }
    }

    /// This replica is gone: the next one, or a fresh look at the index. If the index then names nothing that was not found gone
    /// before, it only lags behind the holders, who know: a miss.
    fn gone(&mut self) {
        if self.next_replica() {
            return;
        }
        let Some(place) = self.place.take() else { return };
        let is_old_news = self.gone_from.as_ref().is_some_and(|gone| {
            gone.version == place.located.version
                && place.located.replicas.iter().all(|one| gone.replicas.contains(one))
        });
        if is_old_news {
            self.result = Some(self.unreachable.take().map_or_else(|| self.no_such_object(), Err));
        } else if self.relocations >= RELOCATIONS_MAX {
            let times = self.relocations;
            self.result = Some(Err(ClientError::Restless { times }));
        } else {
            self.relocations += 1;
            self.gone_from = Some(place.located);
            self.unreachable = None;
        }
    }

    pub(crate) fn into_result(self) -> ReadResult {
        let undecided = || Err(ClientError::protocol("a read ended undecided"));
        self.result.unwrap_or_else(undecided)
    }
}

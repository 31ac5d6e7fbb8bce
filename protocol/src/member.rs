//! What members ask each other: on behalf of a client, as homes of keys, and as neighbours.

use crate::checksum::Checksums;
use crate::error::ServiceError;
use crate::ids::{Epoch, Generation, Incarnation, KeyHash, NodeId, PutId, SessionId, Version};
use crate::limits::{EPOCH_MAX, INCARNATION_MAX, OWED_DROPS_TOLD_MAX, PUT_ENDS_MAX, REPLICAS_MAX};
use crate::message::{Committed, KeyResult, Replica, Reply, Request, ReserveRequest, SpaceAccount};
use crate::placement::FitHint;
use serde::{Deserialize, Serialize};

/// A call between members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberRequest {
    /// Serve this from your own memory for a client's session; never pass it on.
    OnBehalf {
        /// The client's session at the coordinator; `None` for a put over HTTP, which belongs to the coordinator
        /// itself.
        session: Option<SessionId>,
        /// What the client asked.
        request: Box<Request>,
    },
    /// The client's session has ended.
    SessionEnded {
        /// Which.
        session: SessionId,
    },
    /// To a home of the keys; one result per event. Of several events those that are not decided within a bound are
    /// answered by [`HomeAnswer::Later`].
    Home(Vec<HomeEvent>),
    /// To a holder: questions of a home or of another holder; one answer per question.
    Holder(Vec<HolderQuestion>),
    /// To a holder, from a home that does not know all yet: what do you hold of which I am a home?
    Announce(PageRequest),
    /// To a home, from one that does not know all yet: what do you keep of the keys that we are the homes of?
    HandOver(PageRequest),
    /// I am here, and this is how full I am.
    Heartbeat(Heartbeat),
    /// To a home: what has become of these events? One result per ticket, under the same bound as
    /// [`MemberRequest::Home`].
    Later(Vec<Ticket>),
    /// Set regions aside in your own memory for a client's session, and let objects go for that if there is no room. Answered by
    /// [`MemberReply::OnBehalf`].
    ReserveEvicting {
        /// The client's session at the coordinator.
        session: SessionId,
        /// What the client asked.
        request: ReserveRequest,
    },
    /// Commit these regions in your own memory as further replicas of objects that their keys have already.
    CommitCopies(CopiesRequest),
    /// Might regions of these lengths be set aside in your own memory, each by itself? Nothing is.
    Look {
        /// One per object that is to be put.
        lens_bytes: Vec<u64>,
    },
}

/// See [`MemberRequest::CommitCopies`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesRequest {
    /// The keys' namespace.
    pub namespace: String,
    /// What was written.
    pub items: Vec<CopyItem>,
}

/// A further replica of an object, whose bytes have been written to a region that was set aside under the object's put id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyItem {
    /// Its key.
    pub key: String,
    /// Which object of the key.
    pub version: Version,
    /// Of the bytes.
    pub checksums: Checksums,
    /// Stored with the object.
    pub fingerprint: Vec<u8>,
}

/// Names an event that a home has taken in and not decided yet, for one [`MemberRequest::Later`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The home's life. In another one it knows nothing of the event.
    pub life: Incarnation,
    /// Which event of that life.
    pub number: u64,
}

/// The answer to a [`MemberRequest`], of the variant of the same name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberReply {
    /// To [`MemberRequest::OnBehalf`], and to [`MemberRequest::ReserveEvicting`].
    OnBehalf {
        /// The answer.
        reply: Box<Reply>,
        /// The room of the node that answers, after it.
        hint: FitHint,
    },
    /// To [`MemberRequest::SessionEnded`].
    SessionEnded,
    /// To [`MemberRequest::Home`], and to [`MemberRequest::Later`].
    Home(Vec<KeyResult<HomeAnswer>>),
    /// To [`MemberRequest::Holder`].
    Holder(Vec<KeyResult<HolderAnswer>>),
    /// To [`MemberRequest::Announce`].
    Announce(Page),
    /// To [`MemberRequest::HandOver`].
    HandOver(Page),
    /// To [`MemberRequest::Heartbeat`].
    Heartbeat(Box<Heartbeat>),
    /// To [`MemberRequest::CommitCopies`]: one result per item. A copy that is there, and that a home of its key knows of, is a success.
    CommitCopies(Vec<KeyResult<()>>),
    /// To [`MemberRequest::Look`].
    Look {
        /// One per length: why no region would be set aside, or none if one might be.
        refusals: Vec<Option<ServiceError>>,
        /// The room of the node that answers.
        hint: FitHint,
    },
}

/// What a node says of itself once per heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Which life.
    pub incarnation: Incarnation,
    /// The program's version.
    pub version: String,
    /// Whether it was asked to stop: it takes nothing new, and moves what it alone holds to others.
    pub is_draining: bool,
    /// How full.
    pub space: SpaceAccount,
    /// Keys that the sender, as the other home, decided alone and has not told the receiver of yet.
    pub untold_keys: u64,
    /// What puts it has room for.
    pub hint: FitHint,
}

/// Asks for a page of what the other side has, in the order of key hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRequest {
    /// The last key of the page before; `None` for the first page.
    pub after: Option<KeyHash>,
}

/// The answer to a [`PageRequest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// At most [`PAGE_KEYS_MAX`](crate::limits::PAGE_KEYS_MAX).
    pub keys: Vec<PageKey>,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<KeyHash>,
}

/// One key of a [`Page`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageKey {
    /// Which key.
    pub key_hash: KeyHash,
    /// Its homes.
    pub homes: Homes,
    /// What is known of it.
    pub entry: MirrorEntry,
}

/// An object as a home knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeEntry {
    /// Which object of the key.
    pub version: Version,
    /// Its length.
    pub len_bytes: u64,
    /// Where it lies.
    pub replicas: Vec<Replica>,
}

/// The nodes that keep the index entry of a key, by rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Homes {
    /// The one that decides.
    pub first: NodeId,
    /// The one that is told before an answer is given, and decides where the first cannot be reached. `None` if there
    /// is one node.
    pub second: Option<NodeId>,
}

impl Homes {
    /// The other home; `None` if there is no other, or if `node` is no home of the key.
    pub fn partner_of(&self, node: NodeId) -> Option<NodeId> {
        match self.second {
            Some(second) if node == self.first => Some(second),
            Some(second) if node == second => Some(self.first),
            _ => None,
        }
    }

    /// Whether `node` is one of them.
    pub fn includes(&self, node: NodeId) -> bool {
        node == self.first || Some(node) == self.second
    }
}

/// Something a home is told or asked about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HomeEvent {
    /// Which key.
    pub key_hash: KeyHash,
    /// Its homes, as the sender ranks them: they follow from the namespace, which a home does not know.
    pub homes: Homes,
    /// What.
    pub kind: HomeEventKind,
}

/// See [`HomeEvent`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HomeEventKind {
    /// A holder has verified bytes and asks whether they may become the key's object.
    Propose {
        /// The attempt.
        put_id: PutId,
        /// Its length.
        len_bytes: u64,
        /// Where it lies.
        replicas: Vec<Replica>,
        /// It is to take the place of the object that the key has.
        replace: bool,
    },
    /// The holder has sealed what was accepted.
    Sealed {
        /// Which object.
        version: Version,
        /// Who.
        holder: NodeId,
        /// Where: another try of the put, elsewhere, may have the same version.
        generation: Generation,
        /// It has taken the place of the object that the key had: the answer waits until that one's holders have dropped it.
        replace: bool,
    },
    /// The holder has given up a proposal or dropped the object.
    Withdrawn(Withdrawal),
    /// Where is it?
    Locate,
    /// Remove what the sender has found: drop it at its holders and let no older announcement bring it back. An object
    /// of a higher epoch was put since, and stays: so a removal that arrives late, or twice, does no harm. Earlier
    /// removals that are not complete are completed, whatever the epoch.
    Remove {
        /// That of the object which was found; 0 if there was none.
        up_to: Epoch,
    },
    /// From the partner: what the key's entry is now.
    Mirror(MirrorEntry),
    /// From the partner, which decided alone: what it knows. Whichever object wins stays.
    Share(MirrorEntry),
    /// From a holder: an object that it has, and of which a home may not know. It is the key's if it comes after what the
    /// homes have, or if they have none.
    Publish(HomeEntry),
    /// From a partner that does not know all yet: what do you know?
    Recall,
    /// A reader did not find this object where the entry says: look whether it is there.
    Doubt {
        /// Which object.
        version: Version,
    },
    /// The holder has evicted an object. Its put was stored and is answered so; the key has no object any more.
    Evicted {
        /// Which object.
        version: Version,
        /// Who had it.
        holder: NodeId,
        /// Where: another try of the put, elsewhere, may have the same version.
        generation: Generation,
    },
}

/// A region that is not its put's any more. Another try of the put, even at the same holder, has another region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdrawal {
    /// Whose proposal or object.
    pub put_id: PutId,
    /// Which holder has it no longer.
    pub holder: NodeId,
    /// Which region.
    pub generation: Generation,
}

/// What is known of one key, as one home passes it to the other.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorEntry {
    /// The sealed object, if any. If it is the one that was withdrawn, its replica has been evicted, by its holder and generation: it was the
    /// last one that the first home knew, and others may be left.
    pub sealed: Option<HomeEntry>,
    /// The accepted object that is not sealed yet, if any.
    pub pending: Option<HomeEntry>,
    /// The object that its holders have dropped, if that is what is told.
    pub withdrawn: Option<Version>,
    /// How puts of the key have ended: retries of them are to be answered likewise. At most
    /// [`PUT_ENDS_MAX`], those left out that ended by storing the sealed object.
    pub ended: Vec<PutEnd>,
    /// The epoch below which nothing is the key's object any more; 0 if the key was not removed.
    pub epoch: u64,
    /// What must be dropped and was not heard to be.
    pub owed: Vec<OwedDrop>,
}

/// What a member said that no sound member says. Nothing of it is taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// An object without replicas, or with too many.
    #[error("an object with {replicas} replicas: 1 to {REPLICAS_MAX} are allowed")]
    Replicas {
        /// How many it names.
        replicas: usize,
    },
    /// A life that no node can have.
    #[error("life {incarnation} of a node: lives are below {INCARNATION_MAX}")]
    Life {
        /// Its number.
        incarnation: u64,
    },
    /// An epoch that no key can have.
    #[error("epoch {epoch} of a key: epochs are below {EPOCH_MAX}")]
    Epoch {
        /// Its number.
        epoch: u64,
    },
    /// More of a list than there may be.
    #[error("{count} {what}: at most {max} are told")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// One node twice.
    #[error("a key whose two homes are one node")]
    OneHome,
}

fn check_epoch(epoch: u64) -> Result<(), Unsound> {
    if epoch < EPOCH_MAX {
        Ok(())
    } else {
        Err(Unsound::Epoch { epoch })
    }
}

fn check_replicas(replicas: &[Replica]) -> Result<(), Unsound> {
    if replicas.is_empty() || replicas.len() > REPLICAS_MAX.into() {
        let replicas = replicas.len();
        return Err(Unsound::Replicas { replicas });
    }
    let mut lives = replicas.iter().map(|replica| replica.incarnation.0);
    match lives.find(|life| *life >= INCARNATION_MAX) {
        Some(incarnation) => Err(Unsound::Life { incarnation }),
        None => Ok(()),
    }
}

impl CopyItem {
    /// Whether a sound member may say it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Unsound> {
        check_epoch(self.version.epoch.0)
    }
}

impl HomeEntry {
    /// Whether a sound member may say it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Unsound> {
        check_epoch(self.version.epoch.0)?;
        check_replicas(&self.replicas)
    }
}

impl MirrorEntry {
    /// Whether a sound member may say it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Unsound> {
        check_epoch(self.epoch)?;
        self.sealed.iter().chain(&self.pending).try_for_each(HomeEntry::check)?;
        for owed in &self.owed {
            check_epoch(owed.version.epoch.0)?;
            check_replicas(&[owed.replica])?;
        }
        let lists = [
            ("owed drops", self.owed.len(), OWED_DROPS_TOLD_MAX),
            ("ends of puts", self.ended.len(), PUT_ENDS_MAX),
        ];
        match lists.into_iter().find(|(_, count, max)| count > max) {
            Some((what, count, max)) => Err(Unsound::TooMany { what, count, max }),
            None => Ok(()),
        }
    }
}

impl HomeEvent {
    /// Whether a sound member may say it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Unsound> {
        if self.homes.second == Some(self.homes.first) {
            return Err(Unsound::OneHome);
        }
        match &self.kind {
            HomeEventKind::Propose { replicas, .. } => check_replicas(replicas),
            HomeEventKind::Mirror(entry) | HomeEventKind::Share(entry) => entry.check(),
            HomeEventKind::Publish(entry) => entry.check(),
            HomeEventKind::Evicted { version, .. } => check_epoch(version.epoch.0),
            HomeEventKind::Sealed { .. }
            | HomeEventKind::Withdrawn(_)
            | HomeEventKind::Locate
            | HomeEventKind::Remove { .. }
            | HomeEventKind::Recall
            | HomeEventKind::Doubt { .. } => Ok(()),
        }
    }
}

impl HomeAnswer {
    /// Whether a sound member may say it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Unsound> {
        match self {
            Self::Hit(entry) => entry.check(),
            Self::Known { entry, .. } => entry.check(),
            Self::Accepted { version, .. } | Self::AlreadyExists { version, .. } => check_epoch(version.epoch.0),
            Self::Done { .. } | Self::Miss | Self::Unknown | Self::Later { .. } => Ok(()),
        }
    }
}

/// How a put has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutEnd {
    /// Which put.
    pub put_id: PutId,
    /// How.
    pub outcome: Committed,
}

/// A replica that its holder is to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwedDrop {
    /// Which object.
    pub version: Version,
    /// Where it lies.
    pub replica: Replica,
}

/// What a home answers about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HomeAnswer {
    /// The proposal is accepted as this version and may be sealed.
    Accepted {
        /// Which object.
        version: Version,
        /// The home decided alone.
        degraded: bool,
    },
    /// The key keeps the object it has.
    AlreadyExists {
        /// Which.
        version: Version,
        /// The home decided alone.
        degraded: bool,
    },
    /// Noted.
    Done {
        /// Whether it changed something.
        changed: bool,
    },
    /// It is here.
    Hit(HomeEntry),
    /// There is none.
    Miss,
    /// This home cannot know yet.
    Unknown,
    /// To [`HomeEventKind::Recall`].
    Known {
        /// What.
        entry: MirrorEntry,
        /// Whether this home has learned all that there is to know of the key.
        is_grown: bool,
    },
    /// It is not decided yet, and the others of its frame do not wait for it: ask for it by this ticket.
    Later {
        /// Which event.
        ticket: Ticket,
    },
}

/// What a home, or another holder, asks or tells a holder about one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderQuestion {
    /// Which key.
    pub key_hash: KeyHash,
    /// Which object.
    pub version: Version,
    /// What.
    pub kind: HolderQuestionKind,
}

/// See [`HolderQuestion`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderQuestionKind {
    /// Do you still have it?
    Confirm,
    /// Drop it. As far as the home knows its put is stored.
    Drop,
    /// From any member: do you have it, in a segment that does not drain?
    Stay,
    /// Drop it: it was never the key's, and its put has ended otherwise.
    Refuse,
}

/// What a holder answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HolderAnswer {
    /// To [`HolderQuestionKind::Confirm`].
    Confirmed {
        /// Whether it is there, sealed.
        held: bool,
    },
    /// To [`HolderQuestionKind::Drop`] and [`HolderQuestionKind::Refuse`]: it is not there any more.
    Dropped,
    /// To [`HolderQuestionKind::Stay`]. The holder does not let it go later because the asker has it.
    Stays {
        /// The region in which it lies; `None` if it is not there, or its segment drains.
        generation: Option<Generation>,
    },
}

impl MemberReply {
    /// One result of each key of a batch that failed as a whole.
    pub fn home_failed(error: &ServiceError, keys: usize) -> Vec<KeyResult<HomeAnswer>> {
        vec![Err(error.clone()); keys]
    }
}

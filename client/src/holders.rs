//! Reaching the nodes that hold objects.

use crate::limits::GONE_SEGMENTS_MAX;
use crate::rdma_failures::Retry;
use crate::remote_holders::attach;
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{Incarnation, NodeId, SegmentId};
use tenon_protocol::message::{AttachReply, AttachedSegment, NodeRef};
use tenon_transport::Connection;
use tenon_transport::link::Link;
use tokio::time::Instant;

/// Gives access to holders, and remembers it.
pub trait Holders: Send + Sync {
    /// Access to a node. The access's incarnation may be a later one than was asked for: then what was located in the earlier life is
    /// gone.
    ///
    /// # Errors
    /// `unavailable` with the node if it does not answer: at once if that is known already. Others if it refuses us.
    fn open<'a>(
        &'a self,
        node: &'a NodeRef,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Arc<HolderAccess>, ServiceError>>;

    /// Transfers through this access failed in a way that a fresh one may not: it is not given out again.
    fn discard(&self, _access: &Arc<HolderAccess>) {}
}

/// What is needed to move bytes from and to one holder in one of its lives.
#[derive(Debug)]
pub struct HolderAccess {
    /// Who.
    pub node: NodeId,
    /// Which life.
    pub incarnation: Incarnation,
    /// Moves the bytes.
    pub connection: Arc<dyn Connection>,
    segments: Segments,
    link: Option<Arc<Link>>,
    until: Option<Retry>,
}

/// Where the grants to read a holder's segments are known from.
enum Segments {
    /// It has told us.
    Told {
        known: RwLock<Told>,
        /// Held while it is asked again.
        asking: tokio::sync::Mutex<()>,
    },
    /// It is this process.
    Own(OwnSegments),
}

/// Tells how a segment of this process is reached, if it may be.
pub type OwnSegments = Box<dyn Fn(SegmentId) -> Option<AttachedSegment> + Send + Sync>;

#[derive(Debug, Default)]
struct Told {
    grants: HashMap<SegmentId, AttachedSegment>,
    /// Segments in which something was said to lie and which the holder did not name after that: no segment gets such an id again in its life.
    gone: HashSet<SegmentId>,
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { known, .. } => f.debug_tuple("Told").field(&known.read().grants.len()).finish(),
            Self::Own(_) => f.write_str("Own"),
        }
    }
}

impl HolderAccess {
    /// Access by a connection and what the holder answered to `attach`.
    pub fn new(node: NodeId, connection: Arc<dyn Connection>, attached: AttachReply) -> Self {
        let told = Told {
            grants: attached.segments.into_iter().map(|one| (one.segment, one)).collect(),
            gone: HashSet::new(),
        };
        let segments = Segments::Told {
            known: RwLock::new(told),
            asking: tokio::sync::Mutex::default(),
        };
        Self::with(node, attached.incarnation, connection, segments)
    }

    /// Access to the memory of this process.
    pub fn own(node: NodeId, incarnation: Incarnation, connection: Arc<dyn Connection>, segments: OwnSegments) -> Self {
        Self::with(node, incarnation, connection, Segments::Own(segments))
    }

    fn with(node: NodeId, incarnation: Incarnation, connection: Arc<dyn Connection>, segments: Segments) -> Self {
        Self {
            node,
            incarnation,
            connection,
            segments,
            link: None,
            until: None,
        }
    }

    /// The grant to read a segment, as far as it is known.
    pub fn segment(&self, segment: SegmentId) -> Option<AttachedSegment> {
        match &self.segments {
            Segments::Told { known, .. } => known.read().grants.get(&segment).copied(),
            Segments::Own(of) => of(segment),
        }
    }

    /// Whether a segment without a grant is known to be gone, and not just new.
    pub(crate) fn is_gone(&self, segment: SegmentId) -> bool {
        match &self.segments {
            Segments::Told { known, .. } => known.read().gone.contains(&segment),
            Segments::Own(_) => true,
        }
    }

    /// The grant to read a segment is good no more. False if the holder cannot be asked for another one: then a fresh access is needed.
    pub(crate) fn forget(&self, segment: SegmentId) -> bool {
        match &self.segments {
            Segments::Told { known, .. } => {
                known.write().grants.remove(&segment);
                self.link.is_some()
            }
            Segments::Own(_) => true,
        }
    }

    /// Asks the holder for its grants again if one of these segments is neither known nor known to be gone: it may have been mounted since.
    ///
    /// # Errors
    /// Those of the question.
    pub(crate) async fn learn(&self, wanted: &[SegmentId], deadline: Instant) -> Result<(), ServiceError> {
        let (Segments::Told { known, asking }, Some(link)) = (&self.segments, &self.link) else {
            return Ok(());
        };
        let is_unknown = |segment: &&SegmentId| {
            let known = known.read();
            !known.grants.contains_key(segment) && !known.gone.contains(segment)
        };
        if !wanted.iter().any(|segment| is_unknown(&segment)) {
            return Ok(());
        }
        let _one_at_a_time = asking.lock().await;
        let unknown: Vec<SegmentId> = wanted.iter().filter(is_unknown).copied().collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let attached = attach(link, self.node, deadline).await?;
        let mut known = known.write();
        known.grants = attached.segments.into_iter().map(|one| (one.segment, one)).collect();
        if known.gone.len() >= GONE_SEGMENTS_MAX {
            known.gone.clear();
        }
        let gone = unknown
            .into_iter()
            .filter(|segment| !known.grants.contains_key(segment));
        let gone: Vec<SegmentId> = gone.collect();
        known.gone.extend(gone);
        Ok(())
    }

    /// The same, and the access ends with the control link on which it was granted.
    #[must_use]
    pub fn with_link(mut self, link: Arc<Link>) -> Self {
        self.link = Some(link);
        self
    }

    /// The same, and a fresh access may be better from then on.
    #[must_use]
    pub(crate) fn until(mut self, until: Option<Retry>) -> Self {
        self.until = until;
        self
    }

    /// Whether transfers may still succeed, and no fresh access is to be preferred.
    pub fn is_usable(&self) -> bool {
        !self.until.as_ref().is_some_and(Retry::is_due)
            && !self.connection.is_closed()
            && !self.link.as_ref().is_some_and(|link| link.is_closed())
    }

    /// Ends it: transfers under way fail.
    pub fn close(&self) {
        self.connection.close();
        if let Some(link) = &self.link {
            link.close();
        }
    }
}

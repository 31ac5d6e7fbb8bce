//! Reaching the nodes that hold objects.

use crate::rdma_failures::Retry;
use futures_util::future::BoxFuture;
use std::collections::HashMap;
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
    /// The grants to read its segments.
    pub segments: HashMap<SegmentId, AttachedSegment>,
    link: Option<Arc<Link>>,
    until: Option<Retry>,
}

impl HolderAccess {
    /// Access by a connection and what the holder answered to `attach`.
    pub fn new(node: NodeId, connection: Arc<dyn Connection>, attached: AttachReply) -> Self {
        Self {
            node,
            incarnation: attached.incarnation,
            connection,
            segments: attached.segments.into_iter().map(|one| (one.segment, one)).collect(),
            link: None,
            until: None,
        }
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

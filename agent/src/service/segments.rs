//! Segments: what there is, and how they come and go.

use super::Caller;
use super::checks::unexpected;
use crate::node::Node;
use crate::segments::MountedSegment;
use futures_util::future::join_all;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::message::{Reply, Request};
use tenon_protocol::segments::{SegmentCall, SegmentChange, SegmentInfo, SegmentState, SegmentsReply};
use tokio::time::Instant;

impl Node {
    pub(super) async fn segments(
        self: &Arc<Self>,
        deadline: Instant,
        node: Option<NodeId>,
    ) -> Result<SegmentsReply, ServiceError> {
        let wanted: Vec<NodeId> = match node {
            Some(node) if node != self.id() && self.peers().endpoint(node).is_none() => {
                return Err(self.unknown_node(node));
            }
            Some(node) => vec![node],
            None => self.view().members().to_vec(),
        };
        let asks = wanted.into_iter().map(async |node| {
            if node == self.id() {
                return Ok(self.own_segments());
            }
            match self
                .on_behalf(node, None, Request::Segments { node: Some(node) }, deadline)
                .await
            {
                Ok(Reply::Segments(reply)) => Ok(reply.segments),
                Ok(_) | Err(_) => Err(node),
            }
        });
        let mut reply = SegmentsReply {
            segments: Vec::new(),
            missing: Vec::new(),
        };
        for answer in join_all(asks).await {
            match answer {
                Ok(segments) => reply.segments.extend(segments),
                Err(node) => reply.missing.push(node),
            }
        }
        reply.segments.sort_by_key(|info| (info.node, info.segment));
        Ok(reply)
    }

    /// The segments of this node, those included that are not in use yet, and the last ones that are gone.
    pub(crate) fn own_segments(&self) -> Vec<SegmentInfo> {
        let mounted = self.holder().segments().all();
        let mut infos: Vec<SegmentInfo> = mounted.iter().filter_map(|segment| self.describe(segment)).collect();
        infos.extend(self.lives().infos(self.id()));
        infos.sort_by_key(|info| info.segment);
        // One that was just mounted, or has just gone, may have been seen as both.
        infos.dedup_by_key(|info| info.segment);
        infos
    }

    /// One of them.
    pub(crate) fn segment_info(&self, segment: SegmentId) -> Result<SegmentInfo, ServiceError> {
        let info = self.own_segments().into_iter().find(|info| info.segment == segment);
        info.ok_or_else(|| {
            let message = format!("segment {segment} is not mounted on node {}", self.id());
            ServiceError::new(ErrorCode::UnknownSegment, message)
        })
    }

    fn describe(&self, segment: &Arc<MountedSegment>) -> Option<SegmentInfo> {
        let usage = self.holder().segment_usage(segment.id())?;
        Some(SegmentInfo {
            node: self.id(),
            segment: segment.id(),
            backing: segment.source().backing.to_string(),
            page_bytes: segment.page_bytes(),
            state: match usage.is_draining {
                true => SegmentState::Draining,
                false => SegmentState::Active,
            },
            space: usage.space,
            slots: usage.slots,
            slots_used: usage.slots_used,
            mounting: None,
            draining: self.drain_progress(segment.id()),
            failure: None,
        })
    }

    /// Mounts, drains or unmounts a segment, here or at another node.
    pub(super) async fn change_segment(
        self: &Arc<Self>,
        caller: Caller,
        deadline: Instant,
        call: SegmentCall,
    ) -> Result<SegmentInfo, ServiceError> {
        if let Caller::Client { local: false, .. } = caller {
            let message = "segments are mounted, drained and unmounted from the host of an agent, or over its HTTP";
            return Err(ServiceError::new(ErrorCode::Forbidden, message));
        }
        match call.node {
            Some(node) if node != self.id() => {
                if self.peers().endpoint(node).is_none() {
                    return Err(self.unknown_node(node));
                }
                match self.on_behalf(node, None, Request::Segment(call), deadline).await? {
                    Reply::Segment(info) => Ok(*info),
                    other => Err(unexpected(&other)),
                }
            }
            _ => self.change_own_segment(call.change, deadline).await,
        }
    }

    /// The same of this node's.
    pub(super) async fn change_own_segment(
        self: &Arc<Self>,
        change: SegmentChange,
        deadline: Instant,
    ) -> Result<SegmentInfo, ServiceError> {
        match change {
            SegmentChange::Mount(spec) => self.mount_segment(spec, deadline).await,
            SegmentChange::Drain { segment } => self.drain_segment(segment),
            SegmentChange::Unmount {
                segment,
                graceful_ms,
                force,
            } => self.unmount_segment(segment, (graceful_ms, force), deadline).await,
        }
    }
}

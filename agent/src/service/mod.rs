//! The control service: one set of calls, whoever asks and through whichever front.
//!
//! A call is served by the *coordinator*, the node that the caller talks to. It places puts, asks the homes of keys,
//! and passes to holders what
//! only they can do, one frame per node for a whole batch.

mod batch;
mod checks;
mod copies;
mod drive;
mod dry_run;
mod evicting;
mod keep;
mod list;
mod lookup;
mod member;
mod moves;
mod overview;
mod place;
mod put;
mod remove;
mod reserving;
mod segments;

pub(crate) use self::batch::group_by;

use crate::limits::ANSWER_MARGIN_MAX;
use crate::metrics::Verb;
use crate::node::Node;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId, SessionId};
use tenon_protocol::member::MemberRequest;
use tenon_protocol::message::{Reply, Request};
use tokio::time::Instant;

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A program on a link.
    Client {
        /// Its session.
        session: SessionId,
        /// It came over an endpoint that only this host can reach.
        local: bool,
    },
    /// Another member of the view.
    Member {
        /// Which.
        node: NodeId,
        /// In which life its link was made.
        incarnation: Incarnation,
    },
    /// The HTTP front of this agent, whose transfers are this agent's own.
    Http,
}

impl Node {
    /// Serves one call; answers by `deadline`.
    pub async fn call(self: &Arc<Self>, caller: Caller, deadline: Instant, request: Request) -> Reply {
        let (verb, asked_at) = (Verb::from(&request), Instant::now());
        let put_id = match &request {
            Request::Commit(commit) => Some(commit.put_id),
            _ => None,
        };
        // Whoever asked waits until the deadline: what this node asks others must end a little earlier to be told as
        // what it is.
        let margin = (deadline.saturating_duration_since(asked_at) / 10).min(ANSWER_MARGIN_MAX);
        let deadline = deadline.checked_sub(margin).unwrap_or(deadline);
        let served = tokio::time::timeout_at(deadline + margin / 2, self.dispatch(caller, deadline, request));
        let reply = match served.await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => Reply::Failed(error),
            Err(_) => {
                let message =
                    "the call's deadline passed before all of its keys were answered; ask again or allow more time";
                let error = ServiceError::new(ErrorCode::DeadlineExceeded, message);
                Reply::Failed(match put_id {
                    Some(put_id) => error.of_unknown_put(put_id),
                    None => error,
                })
            }
        };
        let failed = if let Reply::Failed(error) = &reply {
            Some(error.code)
        } else {
            None
        };
        self.metrics().called(verb, failed, asked_at.elapsed());
        reply
    }

    async fn dispatch(
        self: &Arc<Self>,
        caller: Caller,
        deadline: Instant,
        request: Request,
    ) -> Result<Reply, ServiceError> {
        Ok(match request {
            Request::Reserve(request) => Reply::Reserve(self.reserve(caller, deadline, request).await?),
            Request::Commit(request) => Reply::Commit(self.commit(caller, deadline, request).await?),
            Request::Abort(request) => Reply::Abort(self.abort(caller, deadline, request).await?),
            Request::Locate(request) => Reply::Locate(self.locate(deadline, &request).await?),
            Request::Relocate(request) => Reply::Locate(self.relocate(deadline, request).await?),
            Request::Exists(request) => Reply::Exists(self.exists(deadline, request).await?),
            Request::Remove(request) => Reply::Remove(self.remove(deadline, &request).await?),
            Request::List(request) => Reply::List(self.list(deadline, request).await?),
            Request::Nodes => Reply::Nodes(self.nodes()),
            Request::Segments { node } => Reply::Segments(self.segments(deadline, node).await?),
            Request::Attach => Reply::Attach(self.attach()),
            Request::Token => Reply::Token(self.token(caller)?),
            Request::DryRun(request) => Reply::DryRun(Box::new(self.dry_run(deadline, request).await?)),
            Request::Keep(request) => Reply::Keep(self.keep(deadline, request).await?),
            Request::Segment(call) => Reply::Segment(Box::new(self.change_segment(caller, deadline, call).await?)),
            Request::SegmentMap(request) => Reply::SegmentMap(self.segment_map(deadline, request).await?),
            Request::Member(request) => match caller {
                Caller::Member { node, incarnation } => {
                    check_life(&request, incarnation)?;
                    Reply::Member(self.member_call(node, deadline, request).await?)
                }
                Caller::Client { .. } | Caller::Http => {
                    return Err(ServiceError::new(
                        ErrorCode::Forbidden,
                        "only members of the cluster may make member calls",
                    ));
                }
            },
        })
    }
}

/// A member says of itself what its handshake has said.
fn check_life(request: &MemberRequest, incarnation: Incarnation) -> Result<(), ServiceError> {
    match request {
        MemberRequest::Heartbeat(heartbeat) if heartbeat.incarnation != incarnation => {
            let said = heartbeat.incarnation;
            let message = format!("a heartbeat of life {said} over a link of life {incarnation}");
            Err(ServiceError::new(ErrorCode::InvalidArgument, message))
        }
        _ => Ok(()),
    }
}

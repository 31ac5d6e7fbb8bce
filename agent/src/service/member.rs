//! What other members ask of this node.

use super::checks::check_batch;
use crate::holder::Owner;
use crate::node::Node;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_protocol::member::{MemberReply, MemberRequest, PageRequest};
use tenon_protocol::message::{Reply, Request, ReserveReply, ReserveRequest};
use tenon_protocol::segments::SegmentsReply;
use tokio::time::Instant;

impl Node {
    pub(super) async fn member_call(
        self: &Arc<Self>,
        from: NodeId,
        deadline: Instant,
        request: MemberRequest,
    ) -> Result<MemberReply, ServiceError> {
        Ok(match request {
            MemberRequest::OnBehalf { session, request } => {
                let reply = self
                    .serve_on_behalf(from, session, *request, deadline)
                    .await
                    .unwrap_or_else(Reply::Failed);
                self.with_hint(reply)
            }
            MemberRequest::ReserveEvicting { session, request } => {
                let owner = Owner {
                    coordinator: from,
                    session,
                };
                self.with_hint(self.reserve_for(owner, &request, true).unwrap_or_else(Reply::Failed))
            }
            MemberRequest::Look { lens_bytes } => {
                check_batch(lens_bytes.len())?;
                MemberReply::Look {
                    refusals: self.look_own(&lens_bytes),
                    hint: self.fit_hint(),
                }
            }
            MemberRequest::CommitCopies(request) => {
                MemberReply::CommitCopies(self.commit_copies_own(request, deadline).await?)
            }
            MemberRequest::SessionEnded { session } => {
                self.holder().session_ended(Owner {
                    coordinator: from,
                    session,
                });
                MemberReply::SessionEnded
            }
            MemberRequest::Home(events) => {
                check_batch(events.len())?;
                MemberReply::Home(self.serve_home(from, events, deadline).await)
            }
            MemberRequest::Later(tickets) => {
                check_batch(tickets.len())?;
                MemberReply::Home(self.serve_later(from, &tickets, deadline).await?)
            }
            MemberRequest::Holder(questions) => {
                check_batch(questions.len())?;
                MemberReply::Holder(
                    questions
                        .iter()
                        .map(|question| self.holder().answer(question))
                        .collect(),
                )
            }
            MemberRequest::Announce(PageRequest { after }) => {
                MemberReply::Announce(self.announce_to(from, after).await)
            }
            MemberRequest::HandOver(PageRequest { after }) => {
                MemberReply::HandOver(self.hand_over_to(from, after).await)
            }
            MemberRequest::Heartbeat(heartbeat) => {
                self.peers().heard(from, heartbeat);
                MemberReply::Heartbeat(Box::new(self.heartbeat(from)))
            }
        })
    }

    /// A reply, and what room there is after it.
    fn with_hint(&self, reply: Reply) -> MemberReply {
        MemberReply::OnBehalf {
            reply: Box::new(reply),
            hint: self.fit_hint(),
        }
    }

    /// Sets regions aside for a coordinator's client, and lets objects go for that if it may.
    fn reserve_for(&self, owner: Owner, request: &ReserveRequest, may_evict: bool) -> Result<Reply, ServiceError> {
        check_batch(request.items.len())?;
        Ok(Reply::Reserve(ReserveReply {
            nodes: Vec::new(),
            items: self.reserve_own(owner, request, may_evict)?,
        }))
    }

    /// What a coordinator's client asked, served from this node's own memory and never passed on.
    async fn serve_on_behalf(
        self: &Arc<Self>,
        coordinator: NodeId,
        session: Option<SessionId>,
        request: Request,
        deadline: Instant,
    ) -> Result<Reply, ServiceError> {
        Ok(match request {
            Request::Reserve(request) => {
                let session = session.ok_or_else(no_session)?;
                self.reserve_for(Owner { coordinator, session }, &request, false)?
            }
            Request::Commit(request) => {
                check_batch(request.items.len())?;
                Reply::Commit(self.commit_own(deadline, request).await?)
            }
            Request::Abort(request) => {
                check_batch(request.items.len())?;
                Reply::Abort(self.abort_own(session.ok_or_else(no_session)?, &request)?)
            }
            Request::Keep(request) => {
                check_batch(request.keys.len())?;
                Reply::Keep(self.keep_own(&request)?)
            }
            Request::List(request) => Reply::List(self.list_own(&request)?),
            Request::DryRun(request) => Reply::DryRun(Box::new(self.dry_run_own(&request)?)),
            Request::SegmentMap(request) => Reply::SegmentMap(self.own_segment_map(&request)?),
            Request::Segment(call) => Reply::Segment(Box::new(self.change_own_segment(call.change, deadline).await?)),
            Request::Segments { .. } => Reply::Segments(SegmentsReply {
                segments: self.own_segments(),
                missing: Vec::new(),
            }),
            _ => {
                return Err(ServiceError::new(
                    ErrorCode::MalformedRequest,
                    "this call is not made on behalf of a client",
                ));
            }
        })
    }
}

fn no_session() -> ServiceError {
    ServiceError::new(ErrorCode::InvalidArgument, "a reservation belongs to a session")
}

//! The link front: the control service over the framed link, and who may come in.

use crate::metrics::RefusedBecause;
use crate::node::Node;
use crate::refusals::{self, Failures};
use crate::service::Caller;
use bytes::Bytes;
use std::sync::Arc;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId, SessionId};
use tenon_protocol::limits::INCARNATION_MAX;
use tenon_protocol::message::{Reply, Request};
use tenon_transport::link::{Admission, BoxFuture, Endpoint, Hello, LinkError, Refusal, Role, Service, Session};
use tokio::time::Instant;

/// The code of a refusal on the wire; codes below 1,000 are the handshake's own.
const fn code_of(because: RefusedBecause) -> u16 {
    match because {
        RefusedBecause::OtherMemberList => 1000,
        RefusedBecause::NotAMember => 1001,
        RefusedBecause::StaleIncarnation => 1002,
        RefusedBecause::MemberOnUnix => 1003,
    }
}

/// The seam between links and the control service.
#[derive(Debug)]
pub(crate) struct LinkFront {
    node: Arc<Node>,
    /// Only this host can reach the endpoint.
    local: bool,
    /// The endpoint asks for no secret, so it lets in no members of a cluster that has one.
    members: bool,
    failures: Failures,
}

impl LinkFront {
    /// The front of one endpoint.
    pub(crate) fn new(node: Arc<Node>, local: bool, members: bool) -> Self {
        Self {
            node,
            local,
            members,
            failures: Failures::default(),
        }
    }

    fn caller(&self, session: &Session) -> Caller {
        match session.role {
            Role::Member => Caller::Member {
                node: NodeId::from_bytes(session.peer.0),
                incarnation: Incarnation(session.incarnation),
            },
            Role::Client => Caller::Client {
                session: SessionId::from_bytes(session.session.0),
                local: self.local,
            },
        }
    }
}

impl Service for LinkFront {
    fn call(&self, session: Arc<Session>, deadline: Instant, request: Bytes) -> BoxFuture<'static, Bytes> {
        let (node, caller) = (Arc::clone(&self.node), self.caller(&session));
        Box::pin(async move {
            let reply = match codec::decode::<Request>(&request) {
                Ok(request) => node.call(caller, deadline, request).await,
                Err(error) => Reply::Failed(ServiceError::new(ErrorCode::MalformedRequest, error.to_string())),
            };
            encode(&reply)
        })
    }

    fn session_opened(&self, session: &Arc<Session>) {
        if session.role == Role::Client {
            self.node
                .sessions()
                .opened(SessionId::from_bytes(session.session.0), session.peer);
        }
    }

    fn session_closed(&self, session: &Arc<Session>) {
        if session.role == Role::Client {
            self.node.client_gone(SessionId::from_bytes(session.session.0));
        }
    }
}

/// An answer that is too long to send is replaced by an error that says so.
fn encode(reply: &Reply) -> Bytes {
    let bytes = codec::encode(reply).or_else(|error| {
        let message = format!("the answer cannot be sent ({error}); ask for fewer keys at a time");
        codec::encode(&Reply::Failed(ServiceError::new(ErrorCode::InvalidArgument, message)))
    });
    Bytes::from(bytes.unwrap_or_default())
}

impl Admission for LinkFront {
    fn admit(&self, hello: &Hello) -> Result<(), Refusal> {
        if hello.identity.role == Role::Client {
            return Ok(());
        }
        let member = NodeId::from_bytes(hello.identity.peer.0);
        match self.objection(hello, member) {
            None => Ok(()),
            Some((because, message)) => {
                self.node.metrics().refused(because);
                Err(Refusal {
                    code: code_of(because),
                    message,
                })
            }
        }
    }

    fn handshake_failed(&self, from: &Endpoint, error: &LinkError) {
        let error = refusals::told(error, self.node.cluster_name());
        if self.failures.is_news(from, &error, Instant::now()) {
            tracing::info!(%from, error, "handshake failed; the same is not told again soon");
        }
    }
}

impl LinkFront {
    /// Why a member is not let in.
    fn objection(&self, hello: &Hello, member: NodeId) -> Option<(RefusedBecause, String)> {
        let own = self.node.id();
        if !self.members {
            return Some((
                RefusedBecause::MemberOnUnix,
                "members dial the link's TCP endpoint".to_owned(),
            ));
        }
        let (theirs, ours) = (hello.identity.context, self.node.member_digest());
        if theirs != ours {
            let theirs = refusals::short(&theirs);
            let ours = refusals::list(self.node.view(), &ours);
            let reason = format!("its member list (digest {theirs}) is not that of this node ({ours})");
            self.node.peers().refused(member, reason);
            return Some((
                RefusedBecause::OtherMemberList,
                format!("the member list of {member} (digest {theirs}) is not that of {own} ({ours})"),
            ));
        }
        if !self.node.view().contains(member) || member == own {
            return Some((
                RefusedBecause::NotAMember,
                format!("{member} is no other member of the view of {own}"),
            ));
        }
        let incarnation = Incarnation(hello.identity.incarnation);
        if incarnation.0 >= INCARNATION_MAX {
            let message = format!("no node has life {incarnation}: lives are below {INCARNATION_MAX}");
            return Some((RefusedBecause::NotAMember, message));
        }
        let known = self
            .node
            .known_incarnation(member)
            .filter(|known| *known > incarnation)?;
        Some((
            RefusedBecause::StaleIncarnation,
            format!("{member} was seen in life {known}, this is life {incarnation}"),
        ))
    }
}

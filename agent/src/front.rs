//! The link front: the control service over the framed link, and who may come in.

use crate::node::Node;
use crate::service::Caller;
use bytes::Bytes;
use std::sync::Arc;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId, SessionId};
use tenon_protocol::message::{Reply, Request};
use tenon_transport::link::{Admission, BoxFuture, Hello, Refusal, Role, Service, Session};
use tokio::time::Instant;

/// A member whose list of members is another one.
pub(crate) const REFUSED_OTHER_MEMBER_LIST: u16 = 1000;
/// A member that is not in our view.
pub(crate) const REFUSED_NOT_A_MEMBER: u16 = 1001;
/// A member in an earlier life than one that was seen already.
pub(crate) const REFUSED_STALE_INCARNATION: u16 = 1002;
/// A unix socket is for clients of this host.
pub(crate) const REFUSED_MEMBER_ON_UNIX: u16 = 1003;

/// The seam between links and the control service.
#[derive(Debug)]
pub(crate) struct LinkFront {
    node: Arc<Node>,
    /// Only this host can reach the endpoint.
    local: bool,
    /// The endpoint asks for no secret, so it lets in no members of a cluster that has one.
    members: bool,
}

impl LinkFront {
    /// The front of one endpoint.
    pub(crate) fn new(node: Arc<Node>, local: bool, members: bool) -> Self {
        Self { node, local, members }
    }

    fn caller(&self, session: &Session) -> Caller {
        match session.role {
            Role::Member => Caller::Member {
                node: NodeId::from_bytes(session.peer.0),
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
        let refuse = |code, message: String| Err(Refusal { code, message });
        if !self.members {
            return refuse(
                REFUSED_MEMBER_ON_UNIX,
                "members dial the link's TCP endpoint".to_owned(),
            );
        }
        let member = NodeId::from_bytes(hello.identity.peer.0);
        if hello.identity.context != self.node.member_digest() {
            self.node.peers().refused(member, "its member list is another one");
            return refuse(
                REFUSED_OTHER_MEMBER_LIST,
                format!("the member list of {member} is not that of {}", self.node.id()),
            );
        }
        if !self.node.view().members().contains(&member) || member == self.node.id() {
            return refuse(
                REFUSED_NOT_A_MEMBER,
                format!("{member} is no other member of the view of {}", self.node.id()),
            );
        }
        let incarnation = Incarnation(hello.identity.incarnation);
        match self.node.known_incarnation(member) {
            Some(known) if known > incarnation => refuse(
                REFUSED_STALE_INCARNATION,
                format!("{member} was seen in life {known}, this is life {incarnation}"),
            ),
            _ => Ok(()),
        }
    }
}

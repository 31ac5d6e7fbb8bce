//! What operators and clients ask about the cluster itself: nodes, segments, read grants, tokens.

use super::Caller;
use crate::limits::TOKEN_LIFE_MS;
use crate::node::Node;
use std::collections::BTreeSet;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{AttachReply, IndexInfo, NodeInfo, NodeRef, NodeState, NodesReply, TokenReply};
use tenon_transport::link::TokenClaims;

impl Node {
    pub(super) fn nodes(&self) -> NodesReply {
        let own = NodeInfo {
            node: self.id(),
            incarnation: Some(self.incarnation()),
            endpoint: self.endpoint().to_owned(),
            state: NodeState::Alive,
            is_self: true,
            is_draining: self.is_draining(),
            version: Some(crate::VERSION.to_owned()),
            space: Some(self.holder().space()),
        };
        let mut nodes: Vec<NodeInfo> = self.peers().infos().chain([own]).collect();
        nodes.sort_by_key(|info| info.node);
        NodesReply {
            view_source: self.view().source().to_string(),
            view_revision: self.view().revision(),
            nodes,
            index: Box::new(self.index()),
            alarms: self.alarms(),
        }
    }

    fn index(&self) -> IndexInfo {
        let counts = self.homes().counts();
        IndexInfo {
            settled: counts.is_settled(),
            keys: counts.keys as u64,
            pending_keys: counts.pending as u64,
            tombstones: counts.tombstones as u64,
            owed_drops: counts.owed as u64,
            unannounced_members: counts.unannounced as u64,
            partners_out_of_step: counts.out_of_step as u64,
            learned_keys: counts.learned,
            untold_keys: counts.untold as u64,
            unpublished_objects: self.unpublished() as u64,
            waiting_decisions: counts.waiting as u64,
            conflicts: counts.losers,
        }
    }

    /// How to reach nodes that an answer names.
    pub(super) fn node_refs(&self, nodes: BTreeSet<NodeId>) -> Vec<NodeRef> {
        let reference = |node| {
            if node == self.id() {
                return Some(NodeRef {
                    node,
                    incarnation: self.incarnation(),
                    endpoint: self.endpoint().to_owned(),
                });
            }
            let endpoint = self.peers().endpoint(node)?.to_string();
            Some(NodeRef {
                node,
                incarnation: self.known_incarnation(node)?,
                endpoint,
            })
        };
        nodes.into_iter().filter_map(reference).collect()
    }

    pub(super) fn attach(&self) -> AttachReply {
        AttachReply {
            incarnation: self.incarnation(),
            segments: self.holder().attached(),
        }
    }

    /// A token is given over endpoints that only this host can reach: whoever may dial those is trusted with it.
    pub(super) fn token(&self, caller: Caller) -> Result<TokenReply, ServiceError> {
        let Caller::Client { session, local: true } = caller else {
            let message = "tokens are given to clients of the unix socket or of a loopback link; others need the cluster's secret";
            return Err(ServiceError::new(ErrorCode::Forbidden, message));
        };
        let Some(secret) = self.secret() else {
            return Err(ServiceError::new(
                ErrorCode::NotFound,
                "this cluster has no secret, so its nodes take no tokens",
            ));
        };
        let peer = self
            .sessions()
            .peer_of(session)
            .ok_or_else(|| ServiceError::new(ErrorCode::Forbidden, "the session has ended"))?;
        let expires_unix_ms = crate::clock::unix_ms() + TOKEN_LIFE_MS;
        let token = secret.mint(TokenClaims {
            peer,
            session: tenon_transport::SessionId(session.to_bytes()),
            expires_unix_ms,
            scope: 0,
        });
        Ok(TokenReply {
            claims: tenon_transport::link::Authenticator::credential(&token),
            key: token.key_bytes(),
            expires_in_ms: TOKEN_LIFE_MS,
        })
    }
}

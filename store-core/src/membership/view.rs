//! The member list at one revision.

use super::rendezvous::IndexNodes;
use crate::limits::INDEX_NODES_MAX;
use std::fmt;
use tenon_protocol::ids::{KeyHash, NodeId};
use tenon_protocol::limits::NODES_MAX;
use tenon_protocol::member::Homes;
use tenon_protocol::name::Namespace;

/// Where a member list comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ViewSource {
    /// One node alone; nothing to configure.
    Standalone,
    /// The list in the configuration, the same for every member.
    Static,
}

impl ViewSource {
    /// The name that operators see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standalone => "standalone",
            Self::Static => "static",
        }
    }
}

impl fmt::Display for ViewSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a member list makes no view.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// Nobody is in it.
    #[error("the member list is empty")]
    Empty,
    /// More than [`NODES_MAX`].
    #[error("the member list has {members} members, at most {NODES_MAX} are allowed")]
    TooMany {
        /// How many.
        members: usize,
    },
    /// One is in it twice.
    #[error("node {node} is in the member list twice")]
    Twice {
        /// Which.
        node: NodeId,
    },
}

/// The members at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    source: ViewSource,
    revision: u64,
    members: Box<[NodeId]>,
}

impl View {
    /// The view of one node alone.
    pub fn standalone(node: NodeId) -> Self {
        Self {
            source: ViewSource::Standalone,
            revision: 1,
            members: Box::new([node]),
        }
    }

    /// A view of `members`, given in any order.
    pub fn new(source: ViewSource, revision: u64, mut members: Vec<NodeId>) -> Result<Self, ViewError> {
        if members.is_empty() {
            return Err(ViewError::Empty);
        }
        if members.len() > NODES_MAX {
            return Err(ViewError::TooMany { members: members.len() });
        }
        members.sort_unstable();
        if let Some(pair) = members.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ViewError::Twice { node: pair[0] });
        }
        Ok(Self {
            source,
            revision,
            members: members.into(),
        })
    }

    /// Where the list comes from.
    pub fn source(&self) -> ViewSource {
        self.source
    }

    /// Which list. A higher revision of the same source is a later one.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The members, ordered by id.
    pub fn members(&self) -> &[NodeId] {
        &self.members
    }

    /// Whether `node` is one of them.
    pub fn contains(&self, node: NodeId) -> bool {
        self.members.binary_search(&node).is_ok()
    }

    /// The nodes among which the homes of a namespace's keys are. This looks at every member; see
    /// [`IndexCache`](super::IndexCache) for asking often.
    pub fn index_nodes(&self, namespace: &Namespace) -> IndexNodes {
        IndexNodes::choose(&self.members, namespace)
    }

    /// The same where it is the same for every namespace: where there are no more members than index nodes.
    pub fn index_nodes_of_all(&self) -> Option<IndexNodes> {
        (self.members.len() <= INDEX_NODES_MAX).then(|| IndexNodes::of_all(&self.members))
    }

    /// The homes of one key.
    pub fn homes(&self, namespace: &Namespace, key_hash: KeyHash) -> Homes {
        self.index_nodes(namespace).homes(key_hash)
    }

    /// What two members must agree on, as bytes that are equal exactly if they do: a format tag with its version, the
    /// number of members as 4 bytes little-endian, and their ids in order. Members compare a hash of it.
    pub fn canonical_bytes(&self) -> Vec<u8> {
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let mut bytes = b"tenon members 1\0".to_vec();
        bytes.extend_from_slice(&members.to_le_bytes());
        for member in &self.members {
            bytes.extend_from_slice(&member.to_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u8) -> NodeId {
        NodeId::from_bytes([id; 16])
    }

    #[test]
    fn members_are_ordered_whatever_the_order_of_the_list() {
        let view = View::new(ViewSource::Static, 1, vec![node(3), node(1), node(2)]).unwrap();
        assert_eq!(view.members(), [node(1), node(2), node(3)]);
        assert!(view.contains(node(2)) && !view.contains(node(4)));
    }

    #[test]
    fn lists_that_make_no_view_are_refused_by_name() {
        let make = |members| View::new(ViewSource::Static, 1, members);
        assert_eq!(make(Vec::new()), Err(ViewError::Empty));
        assert_eq!(
            make(vec![node(1), node(2), node(1)]),
            Err(ViewError::Twice { node: node(1) })
        );
        let many = (0..=NODES_MAX as u128)
            .map(|id| NodeId::from_bytes(id.to_be_bytes()))
            .collect();
        assert_eq!(make(many), Err(ViewError::TooMany { members: NODES_MAX + 1 }));
    }

    #[test]
    fn canonical_bytes_tell_lists_apart_and_ignore_their_order() {
        let bytes = |members| View::new(ViewSource::Static, 1, members).unwrap().canonical_bytes();
        assert_eq!(bytes(vec![node(1), node(2)]), bytes(vec![node(2), node(1)]));
        assert_ne!(bytes(vec![node(1), node(2)]), bytes(vec![node(1)]));
        assert_ne!(bytes(vec![node(1), node(2)]), bytes(vec![node(1), node(3)]));
    }
}

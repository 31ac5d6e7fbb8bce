//! Where objects lie.

use crate::batch;
use crate::client::Core;
use crate::control::{check_count, reply};
use crate::error::ClientError;
use std::collections::HashMap;
use std::sync::Arc;
use tenon_protocol::ids::NodeId;
use tenon_protocol::limits::OBJECT_LEN_BYTES_MAX;
use tenon_protocol::message::{KeysRequest, LocateReply, Located, MissedKey, NodeRef, RelocateRequest, Request};
use tokio::time::Instant;

/// Where an object lies, and how to reach the nodes that hold it.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) located: Located,
    nodes: Arc<HashMap<NodeId, NodeRef>>,
}

impl Place {
    /// How to reach the holder of replica `at`, in the life in which it held it.
    pub(crate) fn holder(&self, at: usize) -> Result<NodeRef, ClientError> {
        let replica = self.located.replicas.get(at);
        let named = replica.and_then(|replica| self.nodes.get(&replica.holder).map(|node| (replica, node)));
        let Some((replica, node)) = named else {
            return Err(ClientError::protocol(format!(
                "the reply to locate does not say how to reach replica {at}"
            )));
        };
        Ok(NodeRef {
            incarnation: replica.incarnation,
            ..node.clone()
        })
    }
}

/// A key's place, a miss, or why that cannot be said.
pub(crate) type Placed = Result<Option<Place>, ClientError>;

impl Core {
    /// Where the keys are; one result per key.
    pub(crate) async fn locate(&self, namespace: &str, keys: Vec<String>, deadline: Instant) -> Vec<Placed> {
        let frames = batch::frames(keys, String::len);
        batch::send_all(frames, |keys| self.locate_frame(namespace, keys, deadline)).await
    }

    /// Where keys are whose objects were not found where they should have been; one result per key.
    pub(crate) async fn relocate(&self, namespace: &str, keys: Vec<MissedKey>, deadline: Instant) -> Vec<Placed> {
        let frames = batch::frames(keys, |missed| missed.key.len());
        batch::send_all(frames, async |keys| {
            let asked = keys.len();
            let namespace = namespace.to_owned();
            let request = Request::Relocate(RelocateRequest { namespace, keys });
            self.ask_where(request, asked, deadline).await
        })
        .await
    }

    async fn locate_frame(&self, namespace: &str, keys: Vec<String>, deadline: Instant) -> Vec<Placed> {
        let asked = keys.len();
        let namespace = namespace.to_owned();
        let request = Request::Locate(KeysRequest { namespace, keys });
        self.ask_where(request, asked, deadline).await
    }

    async fn ask_where(&self, request: Request, asked: usize, deadline: Instant) -> Vec<Placed> {
        let answer = match self.service.call(request, deadline, reply!(Locate)).await {
            Ok(answer) => check_count("locate", asked, answer.items.len()).map(|()| answer),
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => places(answer),
            Err(error) => vec![Err(error); asked],
        }
    }
}

fn places(answer: LocateReply) -> Vec<Placed> {
    let nodes: HashMap<NodeId, NodeRef> = answer.nodes.into_iter().map(|node| (node.node, node)).collect();
    let nodes = Arc::new(nodes);
    let place = |located: Option<Located>| {
        located.map(|located| {
            check_located(&located)?;
            let nodes = Arc::clone(&nodes);
            Ok(Place { located, nodes })
        })
    };
    answer
        .items
        .into_iter()
        .map(|item| {
            item.map_err(ClientError::from)
                .and_then(|located| place(located).transpose())
        })
        .collect()
}

fn check_located(located: &Located) -> Result<(), ClientError> {
    if located.len_bytes == 0 || located.len_bytes > OBJECT_LEN_BYTES_MAX || located.replicas.is_empty() {
        return Err(ClientError::protocol(format!(
            "an object of {} bytes in {} replicas",
            located.len_bytes,
            located.replicas.len()
        )));
    }
    Ok(())
}

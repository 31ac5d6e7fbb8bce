//! The client's handle, and the operations that are one question to the service.

use crate::batch;
use crate::control::{Control, Service, check_count, reply};
use crate::error::ClientError;
use crate::holders::Holders;
use crate::marks::Marks;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tenon_protocol::ids::{ClusterId, NodeId};
use tenon_protocol::message::{
    ExistsMode, ExistsReply, ExistsRequest, Keep, KeepRequest, KeyResult, ListReply, ListRequest, Located, NodesReply,
    Reply, Request,
};
use tenon_protocol::name::Namespace;
use tenon_protocol::segments::{SegmentCall, SegmentInfo, SegmentsReply};
use tokio::time::Instant;

/// Put and get, and what belongs to them. Cheap to clone; clones share links and connections.
///
/// Every operation takes the caller's deadline and comes back by it (see [`default_deadline`](crate::default_deadline)). Dropping an
/// operation's future cancels it: memory that was lent to it is not touched any more.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) core: Arc<Core>,
}

/// What the operations share.
pub(crate) struct Core {
    pub(crate) cluster: ClusterId,
    pub(crate) service: Service,
    pub(crate) holders: Arc<dyn Holders>,
    pub(crate) marks: Marks,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `cluster` that asks through `control` and moves bytes through `holders`.
    pub fn new(cluster: ClusterId, control: Arc<dyn Control>, holders: Arc<dyn Holders>) -> Self {
        let service = Service::new(control);
        Self {
            core: Arc::new(Core {
                cluster,
                marks: Marks::new(service.clone()),
                service,
                holders,
            }),
        }
    }

    /// The cluster it belongs to.
    pub fn cluster(&self) -> ClusterId {
        self.core.cluster
    }

    /// Whether there are objects under the keys; one result per key. Pins and refreshes nothing.
    pub async fn exists(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
        deadline: Instant,
    ) -> Vec<Result<bool, ClientError>> {
        let service = &self.core.service;
        per_key("exists", keys, async |keys| {
            let request = Request::Exists(ExistsRequest {
                namespace: namespace.to_string(),
                keys,
                mode: ExistsMode::Each,
            });
            let each = |reply| match reply {
                Reply::Exists(ExistsReply::Each(items)) => Ok(items),
                other => Err(other),
            };
            service.call(request, deadline, each).await
        })
        .await
    }

    /// How many of the keys, counted from the first, have objects without a gap.
    pub async fn exists_leading_run(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
        deadline: Instant,
    ) -> Result<usize, ClientError> {
        let mut run = 0;
        for keys in batch::frames(keys, String::len) {
            let asked = keys.len();
            let request = Request::Exists(ExistsRequest {
                namespace: namespace.to_string(),
                keys,
                mode: ExistsMode::LeadingRun,
            });
            let leading = |reply| match reply {
                Reply::Exists(ExistsReply::LeadingRun(hits)) => Ok(hits),
                other => Err(other),
            };
            let hits = self.core.service.call(request, deadline, leading).await?;
            let hits = usize::try_from(hits).unwrap_or(usize::MAX);
            if hits > asked {
                return Err(ClientError::protocol(format!(
                    "a leading run of {hits} among {asked} keys"
                )));
            }
            run += hits;
            if hits < asked {
                break;
            }
        }
        Ok(run)
    }

    /// Marks objects as used, or pins them otherwise; one result per key: whether there was one.
    pub async fn keep(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
        keep: Keep,
        deadline: Instant,
    ) -> Vec<Result<bool, ClientError>> {
        let service = &self.core.service;
        per_key("keep", keys, async |keys| {
            let namespace = namespace.to_string();
            let request = Request::Keep(KeepRequest { namespace, keys, keep });
            service.call(request, deadline, reply!(Keep)).await
        })
        .await
    }

    /// Where objects lie; one result per key, `None` for a miss.
    pub async fn locate(
        &self,
        namespace: &Namespace,
        keys: Vec<String>,
        deadline: Instant,
    ) -> Vec<Result<Option<Located>, ClientError>> {
        let places = self.core.locate(namespace.as_str(), keys, deadline).await;
        let located = |place: Option<crate::locate::Place>| place.map(|place| place.located);
        places.into_iter().map(|place| place.map(located)).collect()
    }

    /// One page of the keys that begin with `prefix` and come after `after`, in byte order; see [`ListRequest`] and [`ListReply`].
    pub async fn list(
        &self,
        namespace: &Namespace,
        prefix: &str,
        after: Option<String>,
        limit: u32,
        deadline: Instant,
    ) -> Result<ListReply, ClientError> {
        let request = Request::List(ListRequest {
            namespace: namespace.to_string(),
            prefix: prefix.to_owned(),
            after,
            limit,
        });
        self.core.service.call(request, deadline, reply!(List)).await
    }

    /// The members of the view.
    pub async fn nodes(&self, deadline: Instant) -> Result<NodesReply, ClientError> {
        self.core.service.call(Request::Nodes, deadline, reply!(Nodes)).await
    }

    /// The segments of one node, or of all.
    pub async fn segments(&self, node: Option<NodeId>, deadline: Instant) -> Result<SegmentsReply, ClientError> {
        let request = Request::Segments { node };
        self.core.service.call(request, deadline, reply!(Segments)).await
    }

    /// Mounts, drains or unmounts a segment; how it stands then. By the deadline it says how far it is, and goes on.
    pub async fn change_segment(&self, call: SegmentCall, deadline: Instant) -> Result<SegmentInfo, ClientError> {
        let info = self
            .core
            .service
            .call(Request::Segment(call), deadline, reply!(Segment));
        Ok(*info.await?)
    }
}

/// Asks about each key, frame by frame; a frame that fails as a whole fails for each of its keys.
pub(crate) async fn per_key<T, F>(
    kind: &'static str,
    keys: Vec<String>,
    ask: impl Fn(Vec<String>) -> F,
) -> Vec<Result<T, ClientError>>
where
    F: Future<Output = Result<Vec<KeyResult<T>>, ClientError>>,
{
    let ask = &ask;
    batch::send_all(batch::frames(keys, String::len), |keys| async move {
        let asked = keys.len();
        let answer = match ask(keys).await {
            Ok(items) => check_count(kind, asked, items.len()).map(|()| items),
            Err(error) => Err(error),
        };
        match answer {
            Ok(items) => items.into_iter().map(|item| item.map_err(ClientError::from)).collect(),
            Err(error) => (0..asked).map(|_| Err(error.clone())).collect(),
        }
    })
    .await
}

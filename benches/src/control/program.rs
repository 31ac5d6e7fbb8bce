//! A program that puts and asks for many small objects through one node.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use tenon_client::{
    Client, ClientError, Control, GetItem, GetOutcome, LinkControl, PutItem, PutOptions, RemoteHolders, Transports,
    default_deadline,
};
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{PutOutcome, Reply, Request};
use tenon_protocol::name::Namespace;
use tenon_transport::link::{BoxFuture, Identity, Role, SharedSecret};
use tenon_transport::{ClusterId, Memory, PeerId, SessionId, Slice};
use tokio::time::Instant;

use crate::cluster::Cluster;

/// Length of every object.
pub const OBJECT_BYTES: u64 = 64;
/// Length of every key.
const KEY_LEN: usize = 32;
/// Objects whose numbers differ by this have the same bytes.
const CONTENTS: u64 = 1021;

/// The key of object `number` under a prefix: always as long.
#[must_use]
pub fn key(prefix: &str, number: u64) -> String {
    let width = KEY_LEN - 1 - prefix.len();
    format!("{prefix}/{number:0width$}")
}

/// A way to an agent that notes how long its answers to commits took.
#[derive(Debug)]
struct Timed {
    link: Arc<LinkControl>,
    commit_s: Mutex<Vec<f64>>,
}

impl Control for Timed {
    fn call(&self, request: Request, deadline: Instant) -> BoxFuture<'_, Result<Reply, ServiceError>> {
        Box::pin(async move {
            let is_commit = matches!(request, Request::Commit(_));
            let start = Instant::now();
            let reply = self.link.call(request, deadline).await;
            if is_commit {
                self.commit_s.lock().push(start.elapsed().as_secs_f64());
            }
            reply
        })
    }
}

/// A client of one node with links and lanes of its own, and the objects it puts.
#[derive(Clone, Debug)]
pub struct Program {
    client: Client,
    timed: Arc<Timed>,
    namespace: Namespace,
    contents: Slice,
}

impl Program {
    /// A program beside the node at `at`, once that node sees all others.
    pub async fn start(cluster: &Cluster, at: usize) -> Result<Self> {
        cluster.connect(at).await?;
        let identity = Identity {
            cluster: ClusterId(Cluster::cluster_id().to_bytes()),
            role: Role::Client,
            peer: PeerId(rand::random()),
            incarnation: 0,
            session: SessionId(rand::random()),
            features: 0,
            context: [0; 32],
        };
        let secret = Arc::new(SharedSecret::new(Cluster::secret())?);
        let link = LinkControl::connect(cluster.link(at), identity, secret.clone(), default_deadline(0)).await?;
        let holders = RemoteHolders::for_client(Arc::clone(&link), Some(secret), Transports::default());
        let timed = Arc::new(Timed {
            link,
            commit_s: Mutex::default(),
        });
        let contents = Arc::new(Memory::anonymous(CONTENTS * OBJECT_BYTES)?).whole();
        for number in 0..CONTENTS {
            contents.copy_in(number * OBJECT_BYTES, &number.to_le_bytes())?;
        }
        Ok(Self {
            client: Client::new(Cluster::cluster_id(), Arc::clone(&timed) as _, Arc::new(holders)),
            timed,
            namespace: Namespace::new(Namespace::DEFAULT)?,
            contents,
        })
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The objects' namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    fn content(&self, number: u64) -> Result<Slice> {
        let start = number % CONTENTS * OBJECT_BYTES;
        Ok(self.contents.subslice(start..start + OBJECT_BYTES)?)
    }

    /// Puts objects on one node, all of which must be new, in one batch.
    pub async fn put(&self, prefix: &str, numbers: &[u64], holder: NodeId) -> Result<()> {
        let item = |&number: &u64| {
            let source = self.content(number)?;
            let key = key(prefix, number);
            Ok(PutItem { key, source })
        };
        let items = numbers.iter().map(item).collect::<Result<Vec<_>>>()?;
        let options = PutOptions {
            node: Some(holder),
            ..PutOptions::default()
        };
        let putting = self
            .client
            .put_batch(&self.namespace, items, &options, default_deadline(0));
        for result in putting.await {
            let committed = result.context("a put failed")?;
            ensure!(committed.outcome == PutOutcome::Stored, "a key was put before");
        }
        Ok(())
    }

    /// How long the commits since the last question took, until their answers came.
    #[must_use]
    pub fn take_commit_s(&self) -> Vec<f64> {
        std::mem::take(&mut *self.timed.commit_s.lock())
    }

    /// Gets one object. `Ok(None)` is a miss; `Ok(Some(false))` would be other bytes than were put.
    pub async fn get(&self, prefix: &str, number: u64) -> Result<Option<bool>, ClientError> {
        let into = Memory::anonymous(OBJECT_BYTES).map(|memory| Arc::new(memory).whole());
        let into = into.expect("there is memory for a small object");
        let items = vec![GetItem::whole(key(prefix, number), into.clone())];
        let outcome = self
            .client
            .get_batch(&self.namespace, items, default_deadline(0))
            .await
            .pop()
            .expect("one result per item")?;
        let expected = self.content(number).expect("contents are there for every number");
        Ok(match outcome {
            GetOutcome::Hit(_) => Some(into.to_vec() == expected.to_vec()),
            GetOutcome::Miss => None,
        })
    }
}

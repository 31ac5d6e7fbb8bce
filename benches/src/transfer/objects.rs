//! Objects of one size that are put to one node and got back from it, in batches of which several are under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use parking_lot::Mutex;
use tenon_client::{Check, Client, GetItem, GetOutcome, PutItem, PutOptions};
use tenon_protocol::ids::NodeId;
use tenon_protocol::name::Namespace;
use tenon_transport::Slice;
use tokio::time::Instant;

use crate::transfer::buffers::Buffers;

/// How long one call may take: what is measured is how long it takes, also on hosts that are busy or emulated.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The contents of two objects that follow each other start this far apart in the source: an odd number of cache lines.
const CONTENT_STRIDE_BYTES: u64 = 64 * 113;

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

/// How objects are grouped.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Length of one object.
    pub object_bytes: u64,
    /// Objects of one batch.
    pub batch: u64,
    /// Batches under way at once.
    pub in_flight: u64,
}

impl Shape {
    /// What all batches under way need for landing.
    #[must_use]
    pub const fn landing_bytes(&self) -> u64 {
        self.in_flight * self.batch * self.object_bytes
    }
}

/// One object of a round.
#[derive(Clone, Debug)]
struct Object {
    key: String,
    content: Slice,
}

/// Objects, all different, on their way to and from one node.
#[derive(Clone, Debug)]
pub struct Objects {
    client: Client,
    namespace: Namespace,
    options: PutOptions,
    buffers: Buffers,
    shape: Shape,
    count: u64,
    check: Check,
}

impl Objects {
    /// Objects for `holder`, this many bytes of them. Landing and source of `buffers` must be long enough for the
    /// shape.
    pub fn new(client: Client, holder: NodeId, buffers: Buffers, shape: Shape, len_bytes: u64) -> Result<Self> {
        ensure!(
            buffers.source().len_bytes() > shape.object_bytes && buffers.landing().len_bytes() >= shape.landing_bytes(),
            "the buffers are too small for {shape:?}"
        );
        Ok(Self {
            client,
            namespace: Namespace::new(Namespace::DEFAULT)?,
            options: PutOptions {
                node: Some(holder),
                ..PutOptions::default()
            },
            buffers,
            shape,
            count: len_bytes / shape.object_bytes,
            check: Check::default(),
        })
    }

    /// The same, but what is got is checked so.
    #[must_use]
    pub fn checked_by(self, check: Check) -> Self {
        Self { check, ..self }
    }

    fn object(&self, prefix: &str, at: u64) -> Result<Object> {
        let source = self.buffers.source();
        let start = at * CONTENT_STRIDE_BYTES % (source.len_bytes() - self.shape.object_bytes);
        Ok(Object {
            key: format!("{prefix}/{at}"),
            content: source.subslice(start..start + self.shape.object_bytes)?,
        })
    }

    fn batches(&self, prefix: &str) -> Result<VecDeque<Vec<Object>>> {
        let objects: Vec<_> = (0..self.count)
            .map(|at| self.object(prefix, at))
            .collect::<Result<_>>()?;
        let batch = usize::try_from(self.shape.batch)?;
        Ok(objects.chunks(batch).map(<[_]>::to_vec).collect())
    }

    /// Runs `work` on every batch, as many at once as the shape says. Each of those has a part of the landing memory
    /// for itself.
    async fn for_each<F>(
        &self,
        prefix: &str,
        work: impl Fn(Arc<Self>, Vec<Object>, Slice) -> F + Clone + Send + 'static,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send,
    {
        let batches = Arc::new(Mutex::new(self.batches(prefix)?));
        let this = Arc::new(self.clone());
        let part_bytes = self.shape.batch * self.shape.object_bytes;
        let mut workers = Vec::new();
        for at in 0..self.shape.in_flight {
            let landing = self
                .buffers
                .landing()
                .subslice(at * part_bytes..(at + 1) * part_bytes)?;
            let (this, batches, work) = (Arc::clone(&this), Arc::clone(&batches), work.clone());
            workers.push(tokio::spawn(async move {
                loop {
                    let next = batches.lock().pop_front();
                    match next {
                        Some(batch) => work(Arc::clone(&this), batch, landing.clone()).await?,
                        None => return Ok::<(), anyhow::Error>(()),
                    }
                }
            }));
        }
        for worker in workers {
            worker.await??;
        }
        Ok(())
    }

    /// Puts all objects under keys with this prefix.
    pub async fn put(&self, prefix: &str) -> Result<()> {
        self.for_each(prefix, |this, batch, _| async move { this.put_batch(batch).await })
            .await
    }

    /// Gets all objects under keys with this prefix.
    pub async fn get(&self, prefix: &str) -> Result<()> {
        self.for_each(prefix, |this, batch, landing| async move {
            this.get_batch(&batch, &landing).await.map(drop)
        })
        .await
    }

    /// Gets all objects under keys with this prefix and compares every byte with what was put.
    pub async fn verify(&self, prefix: &str) -> Result<()> {
        self.for_each(prefix, |this, batch, landing| async move {
            landing.copy_in(0, &vec![0; usize::try_from(landing.len_bytes())?])?;
            for (object, landed) in batch.iter().zip(this.get_batch(&batch, &landing).await?) {
                ensure!(
                    landed.to_vec() == object.content.to_vec(),
                    "what was got as {:?} is not what was put",
                    object.key
                );
            }
            Ok(())
        })
        .await
    }

    /// Removes all objects under keys with this prefix.
    pub async fn remove(&self, prefix: &str) -> Result<()> {
        let keys = (0..self.count).map(|at| format!("{prefix}/{at}")).collect();
        for result in self.client.remove(&self.namespace, keys, deadline()).await {
            ensure!(result.context("a removal failed")?, "an object to remove is missing");
        }
        Ok(())
    }

    async fn put_batch(&self, batch: Vec<Object>) -> Result<()> {
        let item = |Object { key, content }| PutItem { key, source: content };
        let items = batch.into_iter().map(item).collect();
        let putting = self.client.put_batch(&self.namespace, items, &self.options, deadline());
        for result in putting.await {
            result.context("a put failed")?;
        }
        Ok(())
    }

    /// Returns where each object landed.
    async fn get_batch(&self, batch: &[Object], landing: &Slice) -> Result<Vec<Slice>> {
        let len_bytes = self.shape.object_bytes;
        let part = |at| landing.subslice(at * len_bytes..(at + 1) * len_bytes);
        let parts: Vec<_> = (0..batch.len() as u64).map(part).collect::<Result<_, _>>()?;
        let items = batch.iter().zip(&parts);
        let item = |(object, into): (&Object, &Slice)| GetItem::whole(&object.key, into.clone()).checked_by(self.check);
        let items = items.map(item);
        for result in self
            .client
            .get_batch(&self.namespace, items.collect(), deadline())
            .await
        {
            let outcome = result.context("a get failed")?;
            ensure!(matches!(outcome, GetOutcome::Hit(_)), "an object is missing");
        }
        Ok(parts)
    }
}

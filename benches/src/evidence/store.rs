//! The real store under an experiment: two agent processes on loopback, one that holds and one that is asked, and a program that puts over TCP.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use tenon_client::{Client, ClientError, PutItem, PutOptions, default_deadline};
use tenon_protocol::name::Namespace;
use tenon_transport::Memory;
use tokio::runtime::Runtime;

use crate::cluster::{Cluster, NodeSpec, Segment, Site};
use crate::control::memory::rss_bytes;
use crate::metrics;
use crate::report::Samples;

const HOLDER: usize = 0;
const ASKED: usize = 1;

/// How a node chooses among its segments, by the settings of its configuration that have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) name: &'static str,
    settings: &'static str,
}

impl Variant {
    const fn new(name: &'static str, settings: &'static str) -> Self {
        Self { name, settings }
    }

    pub(super) const DEFAULT: Self = Self::new("default", "fallback = \"indexed\"");
    pub(super) const BLIND: Self = Self::new("blind", "strategy = \"free_ratio_first\"\nfallback = \"blind\"");
    pub(super) const FIT_AWARE: Self =
        Self::new("fit_aware", "strategy = \"free_ratio_first\"\nfallback = \"fit_aware\"");

    /// All of them, those that are compared in pairs first.
    pub(super) const ALL: [Self; 7] = [
        Self::DEFAULT,
        Self::BLIND,
        Self::FIT_AWARE,
        Self::new("random", "strategy = \"random\""),
        Self::new(
            "fragmentation_aware",
            "strategy = \"fragmentation_aware\"\nfallback = \"blind\"",
        ),
        Self::new("retry_control", "strategy = \"retry_control\""),
        Self::new("best_fit", "strategy = \"best_fit\""),
    ];
}

/// What a series of puts has led to.
#[derive(Debug, Default)]
pub(super) struct Puts {
    pub(super) stored: usize,
    pub(super) no_space: usize,
    /// Of which the answer itself says that a free region had the length.
    pub(super) refused_though_fits: usize,
    /// From call to answer, those without room included.
    pub(super) took_s: Vec<f64>,
    elapsed_s: f64,
}

impl Puts {
    pub(super) fn requests(&self) -> usize {
        self.stored + self.no_space
    }

    /// Puts per second, those without room included.
    pub(super) fn rate_per_s(&self) -> f64 {
        self.requests() as f64 / self.elapsed_s
    }

    pub(super) fn p99_s(&self) -> f64 {
        Samples::new(self.took_s.clone()).quantile(0.99)
    }
}

/// Two nodes and a program beside the one that holds nothing.
pub(super) struct Store {
    runtime: Runtime,
    cluster: Cluster,
    client: Client,
    namespace: Namespace,
}

impl Store {
    /// Starts a holder with so many segments that places by `variant`, and the node that is asked.
    pub(super) fn start(variant: Variant, segments: usize, segment_bytes: u64) -> Result<Self> {
        let settings = variant.settings;
        let more_config = format!("\n[placement]\n{settings}\n\n[eviction]\npolicy = \"off\"\n");
        let holder = NodeSpec {
            segment: Segment {
                bytes: segment_bytes,
                slots: None,
            },
            segments,
            site: Site::default(),
            more_config,
        };
        let asked = NodeSpec {
            segment: Segment {
                bytes: 1 << 20,
                slots: None,
            },
            segments: 1,
            site: Site::default(),
            more_config: String::new(),
        };
        let cluster = Cluster::start_nodes(&[holder, asked])?;
        let runtime = Runtime::new()?;
        runtime.block_on(cluster.settled())?;
        let client = runtime.block_on(cluster.connect(ASKED))?;
        Ok(Self {
            runtime,
            cluster,
            client,
            namespace: Namespace::new(Namespace::DEFAULT)?,
        })
    }

    /// Puts objects of one length with these keys on the holder, one after the other. Anything but success and no space is an error.
    pub(super) fn put(&self, keys: &[String], len_bytes: u64) -> Result<Puts> {
        let memory = Arc::new(Memory::anonymous(len_bytes)?);
        let source = memory.whole();
        source.copy_in(0, &len_bytes.to_le_bytes())?;
        let options = PutOptions {
            node: Some(self.cluster.id(HOLDER)),
            ..PutOptions::default()
        };
        let mut puts = Puts::default();
        let begin = Instant::now();
        for key in keys {
            let item = PutItem {
                key: key.clone(),
                source: source.clone(),
            };
            let start = Instant::now();
            let putting = self
                .client
                .put_batch(&self.namespace, vec![item], &options, default_deadline(len_bytes));
            let result = self.runtime.block_on(putting).pop().context("one result per item")?;
            puts.took_s.push(start.elapsed().as_secs_f64());
            match result {
                Ok(_) => puts.stored += 1,
                Err(ClientError::NoSpace { numbers, .. }) => {
                    puts.no_space += 1;
                    puts.refused_though_fits += usize::from(numbers.largest_free_bytes >= len_bytes);
                }
                Err(error) => return Err(error).with_context(|| format!("cannot put {key}")),
            }
        }
        puts.elapsed_s = begin.elapsed().as_secs_f64();
        Ok(puts)
    }

    /// Removes objects that are there.
    pub(super) fn remove(&self, keys: &[String]) -> Result<()> {
        for key in keys {
            let removing = self
                .client
                .remove(&self.namespace, vec![key.clone()], default_deadline(0));
            let removed = self.runtime.block_on(removing);
            ensure!(removed.iter().all(Result::is_ok), "cannot remove {key}: {removed:?}");
        }
        Ok(())
    }

    /// What the holder's process has resident.
    pub(super) fn holder_rss_bytes(&self) -> Result<f64> {
        let process = self.cluster.process_id(HOLDER).context("the holder runs")?;
        rss_bytes(&process.to_string())
    }

    /// The holder's metrics.
    pub(super) fn metrics(&self) -> Result<String> {
        self.runtime.block_on(metrics::of(self.cluster.http(HOLDER)))
    }
}

/// Keys with these numbers.
pub(super) fn keys(prefix: &str, numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|number| format!("{prefix}/{number:06}")).collect()
}

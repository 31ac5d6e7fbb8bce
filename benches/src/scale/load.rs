//! A steady load of look-ups and gets through several nodes, call by call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::RngExt as _;
use tenon_client::{ClientError, default_deadline};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::control::program::{Program, key};

/// Keys under this prefix have objects; those under the other never had one.
pub const PRESENT: &str = "scale";
const ABSENT: &str = "never";
const MISS: &str = "miss";
const HIT_OF_NOTHING: &str = "hit_of_nothing";
const OTHER_BYTES: &str = "other_bytes";
/// Wrong answers that are no errors: none may be given, whatever dies.
pub const LIES: [&str; 3] = [MISS, HIT_OF_NOTHING, OTHER_BYTES];
/// Keys of a large batch.
const BATCH: u64 = 128;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// One key that has an object.
    Exists,
    /// Many such keys.
    ExistsBatch,
    /// One key that has none.
    ExistsAbsent,
    /// One object, into memory.
    Get,
    /// The member list: an answer for which the node that is asked needs no other, and no index. What moves its times is
    /// the machine.
    Nodes,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Exists,
        Self::ExistsBatch,
        Self::ExistsAbsent,
        Self::Get,
        Self::Nodes,
    ];

    /// For tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::ExistsBatch => "exists_128",
            Self::ExistsAbsent => "exists_absent",
            Self::Get => "get",
            Self::Nodes => "nodes",
        }
    }

    /// Between two calls of one caller.
    fn period(self) -> Duration {
        match self {
            Self::Exists | Self::Get | Self::Nodes => Duration::from_millis(10),
            Self::ExistsBatch | Self::ExistsAbsent => Duration::from_millis(40),
        }
    }
}

/// One call that has ended.
#[derive(Clone, Debug)]
pub struct Call {
    /// What.
    pub kind: Kind,
    /// When its answer came.
    pub end: Instant,
    /// Since it was made, or was due if the call before it lasted longer than that.
    pub took: Duration,
    /// What was wrong with its answers: how many of the keys got which wrong answer.
    pub wrong: BTreeMap<&'static str, u64>,
}

/// Callers at work.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Call>>>,
}

impl Load {
    /// Starts callers of each kind in each program, which ask for `objects` keys that are there.
    #[must_use]
    pub fn start(programs: &[Program], objects: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = Vec::new();
        for program in programs {
            for kind in Kind::ALL {
                let caller = Caller {
                    program: program.clone(),
                    kind,
                    objects,
                };
                callers.push(tokio::spawn(caller.run(Arc::clone(&stop))));
            }
        }
        Self { stop, callers }
    }

    /// Ends it and answers every call.
    pub async fn stop(self) -> Result<Vec<Call>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut calls = Vec::new();
        for caller in self.callers {
            calls.extend(caller.await?);
        }
        Ok(calls)
    }
}

struct Caller {
    program: Program,
    kind: Kind,
    objects: u64,
}

impl Caller {
    async fn run(self, stop: Arc<AtomicBool>) -> Vec<Call> {
        let period = self.kind.period();
        let mut due = Instant::now() + period.mul_f64(rand::random());
        let mut calls = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            // Whoever is late makes the calls that were due: they count from then, the others from when they are made.
            let since = if Instant::now() < due {
                sleep_until(due).await;
                Instant::now()
            } else {
                due
            };
            let wrong = self.call().await;
            let end = Instant::now();
            calls.push(Call {
                kind: self.kind,
                end,
                took: end - since,
                wrong,
            });
            due += period;
        }
        calls
    }

    async fn call(&self) -> BTreeMap<&'static str, u64> {
        let first = rand::rng().random_range(0..self.objects);
        let mut wrong = BTreeMap::new();
        let mut note = |name: &'static str| *wrong.entry(name).or_insert(0) += 1;
        match self.kind {
            Kind::Get => match self.program.get(PRESENT, first).await {
                Ok(Some(true)) => {}
                Ok(Some(false)) => note(OTHER_BYTES),
                Ok(None) => note(MISS),
                Err(error) => note(error.code().as_str()),
            },
            Kind::Nodes => {
                let asking = self.program.client().nodes(default_deadline(0));
                if let Err(error) = asking.await {
                    note(error.code().as_str());
                }
            }
            kind => {
                let count = if kind == Kind::ExistsBatch { BATCH } else { 1 };
                let is_there = kind != Kind::ExistsAbsent;
                let prefix = if is_there { PRESENT } else { ABSENT };
                for found in self.exists(prefix, first, count).await {
                    match found {
                        Ok(found) if found == is_there => {}
                        Ok(true) => note(HIT_OF_NOTHING),
                        Ok(false) => note(MISS),
                        Err(error) => note(error.code().as_str()),
                    }
                }
            }
        }
        wrong
    }

    async fn exists(&self, prefix: &str, first: u64, count: u64) -> Vec<Result<bool, ClientError>> {
        let numbers = (first..first + count).map(|number| number % self.objects);
        let keys = numbers.map(|number| key(prefix, number)).collect();
        let client = self.program.client();
        client.exists(self.program.namespace(), keys, default_deadline(0)).await
    }
}

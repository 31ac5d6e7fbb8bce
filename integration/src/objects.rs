//! What was put into a cluster, and whether it is found again: every object by every node, byte for byte, within a bound.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::{Answer, Http};
use crate::node::Node;
use crate::payload::{assert_same, payload};

/// Within this time after the last node has died, gone on, come back or can be reached again, every object of a living holder is found by every
/// node, what is not there is a miss, and removals work.
pub const FOUND_AGAIN: Duration = Duration::from_secs(15);
/// The deadline of every call here.
pub const CALL_DEADLINE: Duration = Duration::from_secs(3);
/// How late the answer may be on a busy machine.
const LATE: Duration = Duration::from_secs(3);
/// Before a call is repeated that was told to come again.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a miss is an answer to bear with for a while, where the object is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misses {
    /// The nodes could reach each other, but for one home at most: a miss is wrong at any time.
    Never,
    /// Homes of a key were apart when it was put or removed, so they have to learn first.
    AtFirst,
}

/// What a node says that a key has.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// These bytes.
    Object(Vec<u8>),
    /// Nothing.
    Miss,
    /// It can't be said now, with the reason.
    NotNow(String),
}

/// Objects by their keys, each with the index of its holder.
#[derive(Debug, Clone, Default)]
pub struct Objects(BTreeMap<String, (usize, Vec<u8>)>);

impl Objects {
    /// Puts `count` objects through all nodes onto all nodes of `nodes`, evenly. Every one of them must succeed, sooner or later.
    pub fn put_over(cluster: &Cluster, nodes: &[usize], prefix: &str, count: usize) -> Self {
        let mut objects = Self::default();
        for index in 0..count {
            let holder = nodes[index % nodes.len()];
            let coordinator = nodes[(index / nodes.len()) % nodes.len()];
            objects.put(cluster, coordinator, holder, &format!("{prefix} {index}"), FOUND_AGAIN);
        }
        objects
    }

    /// Puts an object that names its own bytes; it must succeed, if need be in more than one attempt. Returns the last answer.
    pub fn put(&mut self, cluster: &Cluster, coordinator: usize, holder: usize, key: &str, bound: Duration) -> Value {
        let bytes = bytes_of(key);
        let deadline = Instant::now() + bound;
        let answer = again_until(deadline, key, || {
            try_put(&cluster[coordinator], &cluster[holder], key, &bytes)
        });
        self.insert(key, holder, bytes);
        answer
    }

    /// Notes an object.
    pub fn insert(&mut self, key: &str, holder: usize, bytes: Vec<u8>) {
        self.0.insert(key.to_owned(), (holder, bytes));
    }

    /// Takes away, and returns, the objects on some nodes.
    pub fn take_held_by(&mut self, holders: &[usize]) -> Self {
        let (taken, kept) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(_, (holder, _))| holders.contains(holder));
        self.0 = kept;
        Self(taken)
    }

    /// Takes away, and returns, the object at a place in the order of keys.
    pub fn take_at(&mut self, place: usize) -> Self {
        let key = self.keys().nth(place).expect("so many objects").to_owned();
        Self(self.0.remove_entry(&key).into_iter().collect())
    }

    /// Takes away, and returns, every other object.
    pub fn take_half(&mut self) -> Self {
        let mut is_taken = false;
        let (taken, kept) = std::mem::take(&mut self.0).into_iter().partition(|_| {
            is_taken = !is_taken;
            is_taken
        });
        self.0 = kept;
        Self(taken)
    }

    /// Adds other objects.
    pub fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Each with its key, holder and bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize, &[u8])> + Clone {
        self.0
            .iter()
            .map(|(key, (holder, bytes))| (key.as_str(), *holder, bytes.as_slice()))
    }

    /// The keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Panics unless each of `readers` finds every object within [`FOUND_AGAIN`]. Other bytes are wrong at any time.
    pub fn assert_found(&self, cluster: &Cluster, readers: &[usize], misses: Misses) {
        self.by_all(cluster, readers, |node, key, bytes| match look(&node.http(), key) {
            Seen::Object(found) => {
                assert_same(&found, bytes, &format!("{key:?} from node {}", node.id()));
                Ok(())
            }
            Seen::Miss if misses == Misses::Never => panic!("node {} misses {key:?}", node.id()),
            Seen::Miss => Err("a miss".to_owned()),
            Seen::NotNow(reason) => Err(reason),
        });
    }

    /// Panics unless each of `readers` says within [`FOUND_AGAIN`] that none of these keys has an object. Their old bytes are wrong at any time.
    pub fn assert_missed(&self, cluster: &Cluster, readers: &[usize]) {
        self.not_said_to_be_missing(cluster, readers)
            .by_all(cluster, readers, |node, key, _| match look(&node.http(), key) {
                Seen::Object(_) => panic!("node {} has found {key:?}, which is gone", node.id()),
                Seen::Miss => Ok(()),
                Seen::NotNow(reason) => Err(reason),
            });
    }

    /// As [`Self::assert_missed`], but a node that was apart when they were removed may have to learn that first.
    pub fn assert_gone_at_last(&self, cluster: &Cluster, readers: &[usize]) {
        self.not_said_to_be_missing(cluster, readers)
            .by_all(cluster, readers, |node, key, _| match look(&node.http(), key) {
                Seen::Object(_) => Err("it is found".to_owned()),
                Seen::Miss => Ok(()),
                Seen::NotNow(reason) => Err(reason),
            });
    }

    /// The objects of which not all of `readers` say at once that they are not there.
    fn not_said_to_be_missing(&self, cluster: &Cluster, readers: &[usize]) -> Self {
        let keys: Vec<&str> = self.keys().collect();
        let mut open = Self::default();
        for batch in keys.chunks(128) {
            for &reader in readers {
                let asked = json!({ "namespace": "default", "keys": batch, "mode": "each" });
                let answer = cluster[reader].http().post("/v1/exists", &asked).expect(200).json();
                let items = answer["items"]
                    .as_array()
                    .unwrap_or_else(|| panic!("no items in {answer}"));
                assert_eq!(items.len(), batch.len(), "{answer}");
                let said = batch.iter().zip(items).filter(|(_, item)| item["ok"] != false);
                open.0
                    .extend(said.map(|(&key, _)| (key.to_owned(), self.0[key].clone())));
            }
        }
        open
    }

    /// Panics unless removing each object through one of `nodes` succeeds within [`FOUND_AGAIN`].
    pub fn remove(&self, cluster: &Cluster, nodes: &[usize]) {
        let deadline = Instant::now() + FOUND_AGAIN;
        for (index, key) in self.keys().enumerate() {
            let node = &cluster[nodes[index % nodes.len()]];
            // An attempt whose answer came late may have done it: then the next one finds nothing.
            let mut is_first = true;
            again_until(deadline, key, || {
                let removed = try_remove(node, key);
                assert!(removed != Ok(false) || !is_first, "{key:?} was not there to be removed");
                is_first = false;
                removed
            });
        }
    }

    /// Panics unless all of `readers` say the same of each key within [`FOUND_AGAIN`]; returns what they then have. Each object is one of those that
    /// `candidates` gives for its key.
    pub fn agreed(&self, cluster: &Cluster, readers: &[usize], candidates: impl Fn(&str) -> Vec<Vec<u8>>) -> Self {
        let deadline = Instant::now() + FOUND_AGAIN;
        let mut agreed = Self::default();
        for (key, holder, _) in self.iter() {
            let candidates = candidates(key);
            let all = again_until(deadline, key, || {
                let all: Vec<Seen> = readers
                    .iter()
                    .map(|&reader| look(&cluster[reader].http(), key))
                    .collect();
                for seen in &all {
                    match seen {
                        Seen::Object(bytes) => assert!(candidates.contains(bytes), "{key:?} has bytes that nobody put"),
                        Seen::Miss => {}
                        Seen::NotNow(reason) => return Err(reason.clone()),
                    }
                }
                match all.iter().all(|seen| *seen == all[0]) {
                    true => Ok(all),
                    false => Err("nodes differ".to_owned()),
                }
            });
            if let Some(Seen::Object(bytes)) = all.into_iter().next() {
                agreed.insert(key, holder, bytes);
            }
        }
        agreed
    }

    /// Panics unless every node that runs lists exactly these keys among those that begin with `prefix`, and says that this is all.
    pub fn assert_listed(&self, cluster: &Cluster, readers: &[usize], prefix: &str) {
        let deadline = Instant::now() + FOUND_AGAIN;
        let path = format!("/v1/objects?limit=1000&prefix={}", Http::query_text(prefix));
        for &reader in readers {
            again_until(deadline, "a listing", || {
                let listed = cluster[reader].http().get(&path).expect(200).json();
                let entries = listed["entries"].as_array().expect("entries");
                let mut keys: Vec<_> = entries.iter().filter_map(|entry| entry["key"].as_str()).collect();
                keys.sort_unstable();
                match listed["complete"] == true && keys.iter().copied().eq(self.keys()) {
                    true => Ok(()),
                    false => Err(format!(
                        "complete: {}, {} keys instead of {}",
                        listed["complete"],
                        keys.len(),
                        self.len()
                    )),
                }
            });
        }
    }

    /// Does something while each of `readers` reads the objects over and over. They may be told that it can't be said now where an object is, but a
    /// miss is wrong at any time, as are other bytes.
    pub fn while_read<R>(&self, cluster: &mut Cluster, readers: &[usize], work: impl FnOnce(&mut Cluster) -> R) -> R {
        let is_over = AtomicBool::new(false);
        let fronts: Vec<Http> = readers.iter().map(|&reader| cluster[reader].http()).collect();
        thread::scope(|scope| {
            let is_over = &is_over;
            for http in &fronts {
                scope.spawn(move || {
                    for (key, _, bytes) in self.iter().cycle() {
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                        match look(http, key) {
                            Seen::Object(found) => assert_same(&found, bytes, key),
                            Seen::Miss => panic!("{key:?} is missed by {http:?}"),
                            Seen::NotNow(_) => thread::sleep(PAUSE),
                        }
                    }
                });
            }
            // Also if it panics: the readers must end.
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(cluster)));
            is_over.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn by_all(
        &self,
        cluster: &Cluster,
        readers: &[usize],
        check: impl Fn(&Node, &str, &[u8]) -> Result<(), String> + Sync,
    ) {
        let deadline = Instant::now() + FOUND_AGAIN;
        thread::scope(|scope| {
            let by_one = |reader: usize| {
                let (node, check) = (&cluster[reader], &check);
                scope.spawn(move || {
                    for (key, _, bytes) in self.iter() {
                        let what = format!("{key:?} by node {reader}");
                        again_until(deadline, &what, || check(node, key, bytes));
                    }
                })
            };
            let threads: Vec<_> = readers.iter().map(|&reader| by_one(reader)).collect();
            for thread in threads {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        });
    }
}

/// Does something again and again until it succeeds; panics when `deadline` has passed.
pub fn again_until<T>(deadline: Instant, what: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(reason) if Instant::now() >= deadline => panic!("{what}: not in time: {reason}"),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Bytes that belong to a key alone.
pub fn bytes_of(key: &str) -> Vec<u8> {
    let seed = key
        .bytes()
        .fold(0u64, |sum, byte| sum.wrapping_mul(131).wrapping_add(byte.into()));
    payload(seed, 3_000 + key.len())
}

/// Asks a node for an object.
pub fn look(http: &Http, key: &str) -> Seen {
    let answer = in_time(|| http.get(&path(key)));
    match answer.status {
        200 => Seen::Object(answer.bytes().to_vec()),
        404 => Seen::Miss,
        502..=504 => Seen::NotNow(reason(&answer)),
        _ => panic!("GET {key:?}: {answer:?}"),
    }
}

/// Puts an object onto a node; `Err` if that can't be done now. Either way the answer comes in time.
pub fn try_put(coordinator: &Node, holder: &Node, key: &str, bytes: &[u8]) -> Result<Value, String> {
    let path = format!("{}&node={}", path(key), holder.id());
    let answer = in_time(|| coordinator.http().put(&path, bytes));
    match answer.status {
        200 | 201 => Ok(answer.json()),
        503 | 504 => Err(reason(&answer)),
        _ => panic!("PUT {key:?}: {answer:?}"),
    }
}

/// Removes a key's object; `Ok(false)` if there is none, `Err` if that can't be done or told now.
pub fn try_remove(node: &Node, key: &str) -> Result<bool, String> {
    let answer = in_time(|| node.http().delete(&path(key)));
    match answer.status {
        200 | 204 => Ok(true),
        404 => Ok(false),
        503 | 504 => Err(reason(&answer)),
        _ => panic!("DELETE {key:?}: {answer:?}"),
    }
}

fn path(key: &str) -> String {
    format!("{}?timeout_ms={}", Http::object_path(key), CALL_DEADLINE.as_millis())
}

fn reason(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.bytes()).into_owned()
}

/// Panics if a call is answered long after its deadline.
fn in_time(call: impl FnOnce() -> Answer) -> Answer {
    let started = Instant::now();
    let answer = call();
    let took = started.elapsed();
    assert!(took < CALL_DEADLINE + LATE, "a call took {took:?}: {answer:?}");
    answer
}

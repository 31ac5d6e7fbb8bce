//! Random operations of several clients against all nodes for a bounded time, each answer compared with a model.
//!
//! Keys of a client's own are written by it alone, so the model knows exactly what each answer must be. Shared keys are written by all; what is
//! read there must be, byte for byte, something that somebody put there.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenon_client::{Client, PutOptions, default_deadline};
use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::Cluster;
use tenon_integration::payload::{assert_same, payload};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::PutOutcome;
use tenon_protocol::name::{Namespace, ObjectName};

const NODES: usize = 5;
const WORKERS: usize = 4;
const OWN_KEYS: usize = 12;
const SHARED_KEYS: usize = 6;
const RUN: Duration = Duration::from_secs(12);
/// A shared object begins with its seed and length, so that a reader can tell what it must be.
const LABEL_BYTES: usize = 16;

fn name(key: &str) -> ObjectName {
    let namespace = Namespace::new("random").expect("a namespace");
    ObjectName::new(&namespace, key).expect("a key")
}

fn labelled(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = payload(seed, len.max(LABEL_BYTES));
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let len = bytes.len() as u64;
    bytes[8..16].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// What was ever put, or tried to be put, under a shared key: (key, seed, length).
type Attempts = Arc<Mutex<HashSet<(String, u64, u64)>>>;

struct Worker {
    index: usize,
    random: StdRng,
    clients: Vec<Client>,
    nodes: Vec<NodeId>,
    /// What must be under this worker's own keys.
    model: BTreeMap<String, Vec<u8>>,
    attempts: Attempts,
    done: usize,
}

impl Worker {
    fn client(&mut self) -> Client {
        let index = self.random.random_range(0..self.clients.len());
        self.clients[index].clone()
    }

    fn options(&mut self) -> PutOptions {
        let index = self.random.random_range(0..2 * self.nodes.len());
        PutOptions {
            node: self.nodes.get(index).copied(),
            ..PutOptions::default()
        }
    }

    fn own_key(&mut self) -> String {
        format!("own/{}/{}", self.index, self.random.random_range(0..OWN_KEYS))
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = [100, 70_000, 70_000, 1 << 20, 3 << 20][self.random.random_range(0..5usize)];
        let len = self.random.random_range(LABEL_BYTES..=most);
        labelled(self.random.random(), len)
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..25 => self.put_own().await,
            25..50 => self.get_own().await,
            50..58 => self.get_range_of_own().await,
            58..72 => self.remove_own().await,
            72..78 => self.look_at_own().await,
            78..88 => self.put_or_remove_shared().await,
            _ => self.get_shared().await,
        }
        self.done += 1;
    }

    async fn put_own(&mut self) {
        let (client, options, key, bytes) = (self.client(), self.options(), self.own_key(), self.bytes());
        let deadline = default_deadline(bytes.len() as u64);
        let put = client.put(&name(&key), bytes.clone(), &options, deadline).await;
        let outcome = put.unwrap_or_else(|error| panic!("put {key}: {error}")).outcome;
        let expected = match self.model.get(&key) {
            Some(_) => PutOutcome::AlreadyExists,
            None => PutOutcome::Stored,
        };
        assert_eq!(outcome, expected, "put {key}");
        self.model.entry(key).or_insert(bytes);
    }

    async fn get_own(&mut self) {
        let (client, key) = (self.client(), self.own_key());
        let got = client.get(&name(&key), default_deadline(4 << 20)).await;
        match (got, self.model.get(&key)) {
            (Ok(Some(found)), Some(bytes)) => assert_same(&found, bytes, &key),
            (Ok(None), None) => {}
            (got, expected) => panic!(
                "get {key}: {:?} instead of {:?}",
                got.map(|b| b.map(|b| b.len())),
                expected.map(Vec::len)
            ),
        }
    }

    async fn get_range_of_own(&mut self) {
        let (client, key) = (self.client(), self.own_key());
        let opened = client.open(&name(&key), default_deadline(0)).await;
        let opened = opened.unwrap_or_else(|error| panic!("open {key}: {error}"));
        match (opened, self.model.get(&key)) {
            (Some(mut reader), Some(bytes)) => {
                assert_eq!(reader.info().len_bytes, bytes.len() as u64, "{key}");
                let piece = self.random.random_range(0..reader.pieces());
                let found = reader.read_piece(piece, default_deadline(1 << 20)).await;
                let found = found.unwrap_or_else(|error| panic!("piece {piece} of {key}: {error}"));
                let start = usize::try_from(piece << 20).expect("an offset");
                assert_same(&found, &bytes[start..bytes.len().min(start + (1 << 20))], &key);
            }
            (None, None) => {}
            (found, expected) => panic!("open {key}: {} instead of {}", found.is_some(), expected.is_some()),
        }
    }

    async fn remove_own(&mut self) {
        let (client, key) = (self.client(), self.own_key());
        let removed = client
            .remove(name(&key).namespace(), vec![key.clone()], default_deadline(0))
            .await;
        let there_was = self.model.remove(&key).is_some();
        assert_eq!(removed, [Ok(there_was)], "remove {key}");
    }

    /// Existence and listing of all own keys.
    async fn look_at_own(&mut self) {
        let client = self.client();
        let prefix = format!("own/{}/", self.index);
        let keys: Vec<String> = (0..OWN_KEYS).map(|index| format!("{prefix}{index}")).collect();
        let namespace = Namespace::new("random").expect("a namespace");
        let found = client.exists(&namespace, keys.clone(), default_deadline(0)).await;
        for (key, found) in keys.iter().zip(found) {
            assert_eq!(found, Ok(self.model.contains_key(key)), "exists {key}");
        }
        let listed = client.list(&namespace, &prefix, None, 1000, default_deadline(0)).await;
        let listed = listed.unwrap_or_else(|error| panic!("list {prefix}: {error}"));
        let listed: Vec<_> = listed
            .entries
            .iter()
            .map(|entry| (entry.key.clone(), entry.len_bytes))
            .collect();
        let expected: Vec<_> = self
            .model
            .iter()
            .map(|(key, bytes)| (key.clone(), bytes.len() as u64))
            .collect();
        assert_eq!(listed, expected, "list {prefix}");
    }

    async fn put_or_remove_shared(&mut self) {
        let (client, options) = (self.client(), self.options());
        let key = format!("shared/{}", self.random.random_range(0..SHARED_KEYS));
        if self.random.random_range(0..3) == 0 {
            let removed = client
                .remove(name(&key).namespace(), vec![key.clone()], default_deadline(0))
                .await;
            removed[0]
                .as_ref()
                .unwrap_or_else(|error| panic!("remove {key}: {error}"));
            return;
        }
        let (seed, len) = (self.random.random(), self.random.random_range(LABEL_BYTES..1 << 20));
        let bytes = labelled(seed, len);
        self.attempts
            .lock()
            .expect("the attempts")
            .insert((key.clone(), seed, len as u64));
        let put = client
            .put(&name(&key), bytes, &options, default_deadline(1 << 20))
            .await;
        put.unwrap_or_else(|error| panic!("put {key}: {error}"));
    }

    async fn get_shared(&mut self) {
        let client = self.client();
        let key = format!("shared/{}", self.random.random_range(0..SHARED_KEYS));
        let got = client.get(&name(&key), default_deadline(1 << 20)).await;
        let Some(found) = got.unwrap_or_else(|error| panic!("get {key}: {error}")) else {
            return;
        };
        let word = |at: usize| {
            found[at..at + 8]
                .try_into()
                .map(u64::from_le_bytes)
                .expect("eight bytes")
        };
        let (seed, len) = (word(0), word(8));
        let attempt = (key.clone(), seed, len);
        assert!(
            self.attempts.lock().expect("the attempts").contains(&attempt),
            "nobody put {attempt:?}"
        );
        assert_same(&found, &labelled(seed, usize::try_from(len).expect("a length")), &key);
    }
}

async fn worker(cluster: &Cluster, index: usize, seed: u64, attempts: &Attempts) -> Worker {
    let mut clients = Vec::new();
    for (number, node) in cluster.nodes().iter().enumerate() {
        clients.push(match (number + index) % 2 {
            0 => node.client().await,
            _ => node.client_over_tcp().await,
        });
    }
    Worker {
        index,
        random: StdRng::seed_from_u64(seed + index as u64),
        clients,
        nodes: cluster.nodes().iter().map(tenon_integration::node::Node::id).collect(),
        model: BTreeMap::new(),
        attempts: Arc::clone(attempts),
        done: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_operations_of_several_clients_against_all_nodes_agree_with_the_model() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let cluster = Cluster::start(NODES);
    let attempts = Attempts::default();
    let end = Instant::now() + RUN;
    let mut running = Vec::new();
    for index in 0..WORKERS {
        let mut worker = worker(&cluster, index, seed, &attempts).await;
        running.push(tokio::spawn(async move {
            while Instant::now() < end {
                worker.step().await;
            }
            worker
        }));
    }
    let (mut done, mut own) = (0, BTreeMap::new());
    for worker in running {
        let worker = worker.await.expect("a worker");
        done += worker.done;
        own.extend(worker.model);
    }
    println!("{done} operations");
    assert!(done > 500, "{done} operations in {RUN:?} show little");
    assert_accounts(&cluster);
    check_and_clear(&cluster, &own).await;
}

/// Every node agrees on what is there at the end; without it, the nodes are empty.
async fn check_and_clear(cluster: &Cluster, own: &BTreeMap<String, Vec<u8>>) {
    let namespace = Namespace::new("random").expect("a namespace");
    let mut keys = Vec::new();
    for node in cluster.nodes() {
        let client = node.client().await;
        let listed = client
            .list(&namespace, "", None, 1000, default_deadline(0))
            .await
            .expect("a listing");
        keys = listed.entries.into_iter().map(|entry| entry.key).collect();
        let own_listed: Vec<_> = keys.iter().filter(|key| key.starts_with("own/")).collect();
        assert_eq!(own_listed, own.keys().collect::<Vec<_>>(), "listed by {}", node.id());
        for (key, bytes) in own {
            let found = client.get(&name(key), default_deadline(4 << 20)).await.expect("a get");
            assert_same(&found.expect("an object of the model"), bytes, key);
        }
    }
    let objects: u64 = cluster.nodes().iter().map(|node| field(node, "objects")).sum();
    assert_eq!(
        objects,
        keys.len() as u64,
        "an object that nobody lists, or the reverse"
    );
    if !keys.is_empty() {
        let removed = cluster[0]
            .client()
            .await
            .remove(&namespace, keys, default_deadline(0))
            .await;
        assert!(removed.iter().all(|removed| *removed == Ok(true)), "{removed:?}");
    }
    assert_empty(cluster);
}

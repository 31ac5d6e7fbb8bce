//! Homes of keys, holders and coordinators that die, come back empty or stand still: what the others hold is found again by every node, byte for
//! byte, what is not there is a miss, and nothing comes back that was removed.
//!
//! Which nodes are the homes of a key is nobody's business but the nodes'. With five nodes each node is a home of two keys in five, and any
//! two nodes are the homes of one key in ten; the checks are over all keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenon_integration::account::{assert_accounts, assert_empty, field};
use tenon_integration::cluster::{Cluster, ClusterOptions};
use tenon_integration::node::Node;
use tenon_integration::objects::{
    FOUND_AGAIN, Misses, Objects, Seen, again_until, bytes_of, look, try_put, try_remove,
};
use tenon_integration::raw::{OpenPut, RawClient, new_put_id};
use tenon_integration::wait;
use tenon_protocol::checksum::Checksums;
use tenon_protocol::error::ErrorCode;
use tenon_protocol::message::{Committed, KeyResult, PutOutcome, Reply, Request};

/// Puts that are committed at once.
const PUTS: usize = 16;
const ALL: [usize; 5] = [0, 1, 2, 3, 4];
/// A peer that is silent for longer is unreachable.
const UNREACHABLE_AFTER: Duration = Duration::from_millis(800);

fn cluster() -> Cluster {
    cluster_with(UNREACHABLE_AFTER)
}

fn cluster_with(unreachable_after: Duration) -> Cluster {
    Cluster::start_with(&ClusterOptions {
        nodes: 5,
        segments_bytes: vec![16 << 20],
        more_config: format!(
            "[timeouts]\nheartbeat_ms = 200\nunreachable_after_ms = {}\nreservation_ttl_ms = 3000\n",
            unreachable_after.as_millis()
        ),
        ..ClusterOptions::default()
    })
}

fn others(victims: &[usize]) -> Vec<usize> {
    ALL.into_iter().filter(|node| !victims.contains(node)).collect()
}

/// Keys that were never put.
fn absent(prefix: &str) -> Objects {
    let mut absent = Objects::default();
    for index in 0..15 {
        absent.insert(&format!("{prefix}, never put {index}"), 0, Vec::new());
    }
    absent
}

/// Waits until every node but the victim skips it.
fn wait_unreachable(cluster: &Cluster, victim: usize) {
    let id = cluster[victim].id().to_string();
    for node in cluster.others(&[victim]) {
        wait::until(wait::SOON, "the node is unreachable", || {
            let nodes = node.http().get("/v1/nodes").expect(200).json();
            let entries = nodes["nodes"].as_array().cloned().unwrap_or_default();
            match entries.iter().find(|entry| entry["node"] == id.as_str()) {
                Some(entry) if entry["state"] == "unreachable" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
}

/// Waits until no home knows, and no holder has, what another home is still to be told.
fn wait_told(cluster: &Cluster) {
    for node in cluster.nodes() {
        wait::until(FOUND_AGAIN, "homes have told each other", || {
            let index = node.http().get("/v1/nodes").expect(200).json()["index"].clone();
            let is_zero = |field: &str| index[field] == 0;
            match ["untold_keys", "unpublished_objects", "partners_out_of_step"]
                .into_iter()
                .all(is_zero)
            {
                true => Ok(()),
                false => Err(index),
            }
        });
    }
}

/// No node that looks for objects of a dead or silent holder says that they are not there.
fn assert_not_missed(cluster: &Cluster, readers: &[usize], objects: &Objects) {
    for &reader in readers {
        for key in objects.keys() {
            let seen = look(&cluster[reader].http(), key);
            assert!(matches!(seen, Seen::NotNow(_)), "{key:?} by node {reader}: {seen:?}");
        }
    }
}

/// Everything works again: what is there is found, listed and removed, what is not there is a miss, and the accounts balance.
fn assert_whole(cluster: &Cluster, mut objects: Objects, gone: &Objects, prefix: &str) {
    objects.assert_found(cluster, &ALL, Misses::Never);
    gone.assert_missed(cluster, &ALL);
    absent(prefix).assert_missed(cluster, &ALL);
    objects.assert_listed(cluster, &ALL, prefix);
    let half = objects.take_half();
    half.remove(cluster, &ALL);
    half.assert_missed(cluster, &ALL);
    objects.remove(cluster, &ALL);
    objects.assert_missed(cluster, &ALL);
    assert_empty(cluster);
}

#[test]
fn what_others_hold_is_found_while_a_home_is_dead_and_after_it_is_back_empty() {
    let mut cluster = cluster();
    let mut objects = Objects::put_over(&cluster, &ALL, "k", 40);
    let mut gone = Objects::default();
    for victim in [1, 3] {
        let living = others(&[victim]);
        cluster[victim].kill9();
        let lost = objects.take_held_by(&[victim]);
        objects.assert_found(&cluster, &living, Misses::Never);
        assert_not_missed(&cluster, &living, &lost);
        absent("k").assert_missed(&cluster, &living);
        let new = Objects::put_over(&cluster, &living, &format!("k, without {victim},"), 12);
        new.assert_found(&cluster, &living, Misses::Never);
        objects.extend(new);
        let removed = objects.take_half();
        removed.remove(&cluster, &living);
        removed.assert_missed(&cluster, &living);
        gone.extend(lost);
        gone.extend(removed);

        objects.while_read(&mut cluster, &living, |cluster| cluster[victim].restart());
        gone.assert_missed(&cluster, &ALL);
    }
    assert_whole(&cluster, objects, &gone, "k");
}

#[test]
fn both_homes_restarted_one_after_another_leave_every_object_of_living_holders() {
    let mut cluster = cluster();
    let mut objects = Objects::put_over(&cluster, &ALL, "k", 60);
    let gone = objects.take_held_by(&[0, 4]);
    // The second dies as soon as the first is back, whatever that one has learned by then.
    objects.while_read(&mut cluster, &[1, 2, 3], |cluster| {
        for victim in [0, 4] {
            cluster[victim].kill9();
            cluster[victim].restart();
        }
    });
    assert_whole(&cluster, objects, &gone, "k");
}

#[test]
fn both_homes_dead_at_once_know_all_that_living_holders_have_when_they_are_back() {
    let mut cluster = cluster();
    let mut objects = Objects::put_over(&cluster, &ALL, "k", 60);
    let gone = objects.take_held_by(&[1, 2]);
    let living = others(&[1, 2]);
    cluster[1].kill9();
    cluster[2].kill9();
    for &reader in &living {
        for key in objects.keys().chain(gone.keys()) {
            assert_ne!(
                look(&cluster[reader].http(), key),
                Seen::Miss,
                "{key:?} by node {reader}"
            );
        }
    }
    // One alone learns from the holders what both had.
    objects.while_read(&mut cluster, &living, |cluster| cluster[1].restart());
    objects.assert_found(&cluster, &others(&[2]), Misses::Never);
    absent("k").assert_missed(&cluster, &others(&[2]));
    objects.while_read(&mut cluster, &living, |cluster| cluster[2].restart());
    assert_whole(&cluster, objects, &gone, "k");
}

/// Removes every object of `objects` and puts others under the same keys, while `victim` stands still. Returns the new ones and how many of them one home
/// decided alone.
fn put_others_under_the_same_keys(cluster: &Cluster, objects: &Objects, victim: usize) -> (Objects, usize) {
    let living = others(&[victim]);
    let (mut new, mut degraded) = (Objects::default(), 0);
    for (index, (key, holder, _)) in objects.iter().enumerate() {
        let coordinator = living[index % living.len()];
        let deadline = Instant::now() + FOUND_AGAIN;
        again_until(deadline, key, || try_remove(&cluster[coordinator], key));
        let bytes = bytes_of(&format!("another object of {key}"));
        let put = again_until(deadline, key, || {
            try_put(&cluster[coordinator], &cluster[holder], key, &bytes)
        });
        degraded += usize::from(put["degraded"] == true);
        new.insert(key, holder, bytes);
    }
    (new, degraded)
}

#[test]
fn keys_removed_and_put_again_while_a_home_stands_still_have_their_new_bytes_when_it_goes_on() {
    let mut cluster = cluster();
    let mut objects = Objects::put_over(&cluster, &ALL, "k", 30);
    for victim in [2, 0] {
        let kept = objects.take_held_by(&[victim]);
        cluster[victim].sigstop();
        wait_unreachable(&cluster, victim);
        let (new, degraded) = put_others_under_the_same_keys(&cluster, &objects, victim);
        assert!(
            degraded > 0,
            "node {victim} is a home of none of {} keys",
            objects.len()
        );
        cluster[victim].sigcont();
        new.assert_found(&cluster, &ALL, Misses::Never);
        objects = new;
        objects.extend(kept);
    }
    // What the other home decided alone is known by now to the one that stood still: it does without the other one.
    wait_told(&cluster);
    cluster[4].kill9();
    let gone = objects.take_held_by(&[4]);
    objects.assert_found(&cluster, &others(&[4]), Misses::Never);
    objects.while_read(&mut cluster, &others(&[4]), |cluster| cluster[4].restart());
    assert_whole(&cluster, objects, &gone, "k");
}

#[test]
fn a_node_that_stands_still_for_any_time_is_itself_again_in_every_role() {
    let cluster = cluster();
    let mut objects = Objects::put_over(&cluster, &ALL, "k", 30);
    let mut gone = Objects::default();
    // Barely unreachable, and for long.
    for (victim, still) in [
        (4, UNREACHABLE_AFTER + Duration::from_millis(300)),
        (1, Duration::from_secs(3)),
    ] {
        let living = others(&[victim]);
        let halted = Instant::now();
        cluster[victim].sigstop();
        let own = objects.take_held_by(&[victim]);
        let (mut removed, mut index) = (Objects::default(), 0);
        while halted.elapsed() < still {
            // Nobody knows at first that it stands still: what is not answered for that reason is tried again.
            let coordinator = living[index % living.len()];
            let new = format!("k, put while {victim} stands still {index}");
            objects.put(&cluster, coordinator, living[0], &new, FOUND_AGAIN);
            let one = objects.take_at(index * 7 % objects.len());
            one.remove(&cluster, &[coordinator]);
            removed.extend(one);
            index += 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        cluster[victim].sigcont();
        objects.extend(own);
        gone.extend(removed);
        objects.assert_found(&cluster, &ALL, Misses::Never);
        gone.assert_missed(&cluster, &ALL);
    }
    assert_whole(&cluster, objects, &gone, "k");
}

/// Puts at one node as the holder, written through another as the coordinator, and not committed.
async fn open_puts(coordinator: &Node, holder: &Node, prefix: &str) -> (Arc<RawClient>, Vec<OpenPut>) {
    let client = RawClient::dial(coordinator.link_address()).await;
    let mut puts = Vec::new();
    for index in 0..PUTS {
        let key = format!("{prefix} {index}");
        let bytes = bytes_of(&key);
        let put = client
            .reserve_one(new_put_id(), &key, bytes.len() as u64, Some(holder.id()))
            .await;
        put.write(0, &bytes).await.expect("the bytes can be written");
        puts.push(put);
    }
    (Arc::new(client), puts)
}

fn commit_of(put: &OpenPut) -> Request {
    put.commit_request(Checksums::of(&bytes_of(&put.key)))
}

type Commits = Vec<tokio::task::JoinHandle<Option<KeyResult<Committed>>>>;

/// Sends all commits at once; each gets an answer or loses it.
fn commit_all(client: &Arc<RawClient>, puts: &[OpenPut]) -> Commits {
    let commits = puts.iter().map(|put| {
        let (client, request) = (Arc::clone(client), commit_of(put));
        tokio::spawn(async move {
            match client.try_call(&request).await {
                Ok(Reply::Commit(mut items)) if items.len() == 1 => Some(items.remove(0)),
                Ok(other) => panic!("{request:?} was answered {other:?}"),
                Err(_) => None,
            }
        })
    });
    commits.collect()
}

/// Commits again until there is an answer: what was stored, or `None` if nothing was.
async fn outcome(client: &RawClient, put: &OpenPut) -> Option<Committed> {
    let deadline = Instant::now() + FOUND_AGAIN;
    loop {
        let answer = client.commit_one(put, Checksums::of(&bytes_of(&put.key))).await;
        match answer {
            Ok(committed) => return Some(committed),
            Err(error) if error.code == ErrorCode::UnknownPut => return None,
            Err(error) => assert!(Instant::now() < deadline, "{:?}: {error}", put.key),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_whose_coordinator_dies_before_or_during_its_commit_has_one_outcome_everywhere() {
    let (mut cluster, coordinator, holder) = (cluster(), 1, 2);
    let living = others(&[coordinator]);
    let mut objects = Objects::default();
    for round in 0..3 {
        let prefix = format!("k, round {round},");
        let (client, puts) = open_puts(&cluster[coordinator], &cluster[holder], &prefix).await;
        // In the first round before any commit, then after more and more of them.
        let commits = if round == 0 {
            Vec::new()
        } else {
            commit_all(&client, &puts)
        };
        tokio::time::sleep(Duration::from_millis(4 * round)).await;
        cluster[coordinator].kill9();
        let other = RawClient::dial(cluster[3].link_address()).await;
        let mut answers = Vec::new();
        for commit in commits {
            answers.push(commit.await.expect("a commit"));
        }
        let mut gone = Objects::default();
        for (index, put) in puts.iter().enumerate() {
            let first = outcome(&other, put).await;
            let again = outcome(&other, put).await;
            let version = |outcome: &Option<Committed>| outcome.as_ref().map(|committed| committed.version);
            assert_eq!(version(&first), version(&again), "{:?}", put.key);
            if let Some(Some(Ok(committed))) = answers.get(index) {
                assert_eq!(version(&first), Some(committed.version), "{:?}", put.key);
            }
            let of_it = if first.is_some() { &mut objects } else { &mut gone };
            of_it.insert(&put.key, holder, bytes_of(&put.key));
        }
        let lost = answers.iter().filter(|answer| answer.is_none()).count();
        eprintln!("round {round}: {lost} answers lost, {} stored", PUTS - gone.len());
        objects.assert_found(&cluster, &living, Misses::Never);
        gone.assert_missed(&cluster, &living);
        cluster[coordinator].restart();
        cluster.wait_all_alive();
    }
    // Reservations that were never committed end by themselves.
    drop(open_puts(&cluster[coordinator], &cluster[holder], "k, never committed").await);
    cluster[coordinator].kill9();
    cluster[coordinator].restart();
    wait::until(FOUND_AGAIN, "no reservation is left", || {
        match field(&cluster[holder], "reserved_bytes") {
            0 => Ok(()),
            left => Err(left),
        }
    });
    assert_whole(&cluster, objects, &Objects::default(), "k");
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_whose_holder_dies_during_their_commits_are_gone_with_it_and_block_no_key() {
    let (mut cluster, coordinator, holder) = (cluster(), 1, 2);
    let mut objects = Objects::default();
    for round in 0..3 {
        let prefix = format!("k, round {round},");
        let (client, puts) = open_puts(&cluster[coordinator], &cluster[holder], &prefix).await;
        let commits = commit_all(&client, &puts);
        tokio::time::sleep(Duration::from_millis(2 + 4 * round)).await;
        cluster[holder].kill9();
        for commit in commits {
            commit.await.expect("a commit");
        }
        // The same puts again, elsewhere: each is known as stored, or stored now, or can't be decided while its first holder may have it.
        let mut keys = Objects::default();
        for put in &puts {
            let bytes = bytes_of(&put.key);
            let again = client
                .reserve_one(put.put_id, &put.key, bytes.len() as u64, Some(cluster[3].id()))
                .await;
            again.write(0, &bytes).await.expect("the bytes can be written");
            if let Err(error) = client.commit_one(&again, Checksums::of(&bytes)).await {
                let codes = [
                    ErrorCode::Unavailable,
                    ErrorCode::Overloaded,
                    ErrorCode::DeadlineExceeded,
                ];
                assert!(codes.contains(&error.code), "{:?}: {error}", put.key);
            }
            keys.insert(&put.key, 3, bytes);
        }
        cluster[holder].restart();
        let agreed = keys.agreed(&cluster, &ALL, |key| vec![bytes_of(key)]);
        eprintln!("round {round}: {} of {PUTS} stored elsewhere", agreed.len());
        for put in &puts {
            objects.put(&cluster, 0, 4, &put.key, FOUND_AGAIN);
        }
        objects.assert_found(&cluster, &ALL, Misses::Never);
    }
    wait::until(FOUND_AGAIN, "no reservation is left", || {
        match field(&cluster[3], "reserved_bytes") {
            0 => Ok(()),
            left => Err(left),
        }
    });
    assert_whole(&cluster, objects, &Objects::default(), "k");
}

/// What came of a put of a key whose first put is under way at a holder that stands still.
#[derive(Debug, PartialEq, Eq)]
enum Rival {
    Stored,
    Exists,
    /// Stored by one home alone: the other one may have accepted the first put before it stood still.
    Degraded,
    Failed,
}

impl Rival {
    fn of(answer: Result<Value, String>) -> Self {
        match answer {
            Ok(put) if put["degraded"] == true => Self::Degraded,
            Ok(put) if put["outcome"] == "stored" => Self::Stored,
            Ok(_) => Self::Exists,
            Err(_) => Self::Failed,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_puts_whose_holder_stands_still_during_their_commits_and_their_rivals_one_has_each_key() {
    let (cluster, coordinator, holder) = (cluster(), 1, 2);
    let mut objects = Objects::default();
    for round in 0..3 {
        let prefix = format!("k, round {round},");
        let (client, puts) = open_puts(&cluster[coordinator], &cluster[holder], &prefix).await;
        let commits = commit_all(&client, &puts);
        tokio::time::sleep(Duration::from_millis(2 + 4 * round)).await;
        cluster[holder].sigstop();
        wait_unreachable(&cluster, holder);
        let rival = |key: &str| bytes_of(&format!("the rival of {key}"));
        let mut rivals = Vec::new();
        for put in &puts {
            let answer = try_put(&cluster[3], &cluster[4], &put.key, &rival(&put.key));
            rivals.push(Rival::of(answer));
        }
        cluster[holder].sigcont();
        let mut keys = Objects::default();
        for (put, (commit, rival)) in puts.iter().zip(commits.into_iter().zip(&rivals)) {
            let answer = commit.await.expect("a commit");
            let is_stored = answer.is_some_and(|answer| answer.is_ok_and(|done| done.outcome == PutOutcome::Stored));
            let is_rival_stored = matches!(rival, Rival::Stored | Rival::Degraded);
            assert!(!is_stored || !is_rival_stored, "{:?} was stored twice", put.key);
            keys.insert(&put.key, 4, bytes_of(&put.key));
        }
        let agreed = keys.agreed(&cluster, &ALL, |key| vec![bytes_of(key), rival(key)]);
        for (put, outcome) in puts.iter().zip(rivals) {
            let found = agreed
                .iter()
                .find(|(key, ..)| *key == put.key)
                .map(|(_, _, bytes)| bytes);
            match outcome {
                Rival::Stored | Rival::Degraded => assert!(
                    found == Some(&rival(&put.key)),
                    "{:?} has lost the rival's bytes, {outcome:?}",
                    put.key
                ),
                Rival::Exists => assert!(found == Some(&bytes_of(&put.key)), "{:?} has lost its bytes", put.key),
                Rival::Failed => {}
            }
        }
        objects.extend(agreed);
    }
    objects.assert_found(&cluster, &ALL, Misses::Never);
    objects.remove(&cluster, &ALL);
    objects.assert_missed(&cluster, &ALL);
    wait::until(FOUND_AGAIN, "losers are freed", || {
        let sealed = cluster.nodes().iter().map(|node| field(node, "sealed_bytes"));
        match sealed.sum::<u64>() {
            0 => Ok(()),
            left => Err(left),
        }
    });
    assert_accounts(&cluster);
    assert_empty(&cluster);
}

/// Keys of which a node is no home: put while it is out of reach, they were decided by both of theirs. None has an object in the end.
fn keys_without(cluster: &Cluster, victim: usize) -> Vec<String> {
    cluster[victim].sigstop();
    wait_unreachable(cluster, victim);
    let living = others(&[victim]);
    let (mut put, mut keys) = (Objects::default(), Vec::new());
    for index in 0..60 {
        let key = format!("k {index}");
        let answer = put.put(cluster, living[index % 4], living[0], &key, FOUND_AGAIN);
        if answer["degraded"] == false {
            keys.push(key);
        }
    }
    cluster[victim].sigcont();
    cluster.wait_all_alive();
    wait_told(cluster);
    put.remove(cluster, &ALL);
    keys
}

/// One put of many keys at one node, written and not committed.
async fn open_together(client: &RawClient, holder: &Node, keys: impl Iterator<Item = &String>) -> Vec<OpenPut> {
    let (put_id, mut puts) = (new_put_id(), Vec::<OpenPut>::new());
    for key in keys {
        let bytes = bytes_of(key);
        let len_bytes = bytes.len() as u64;
        let put = match puts.first() {
            None => client.reserve_one(put_id, key, len_bytes, Some(holder.id())).await,
            Some(first) => client.reserve_also(first, key, len_bytes).await,
        };
        put.write(0, &bytes).await.expect("the bytes can be written");
        puts.push(put);
    }
    puts
}

/// A commit of all of these puts, which are one.
fn commit_together(puts: &[OpenPut]) -> Request {
    let mut commits = puts.iter().map(|put| match commit_of(put) {
        Request::Commit(commit) => commit,
        other => panic!("{other:?} is no commit"),
    });
    let mut all = commits.next().expect("a put");
    all.items.extend(commits.flat_map(|commit| commit.items));
    Request::Commit(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_batch_are_stored_while_another_one_waits_for_a_node_that_stands_still() {
    let (victim, holder) = (4, 0);
    let cluster = cluster_with(Duration::from_secs(5));
    let mut keys = keys_without(&cluster, victim);
    // Enough that every home has to ask the node that stands still about one.
    let mut objects = Objects::default();
    let slow: Vec<String> = keys.drain(..16).collect();
    for key in &slow {
        objects.put(&cluster, 1, victim, key, FOUND_AGAIN);
    }
    let client = RawClient::dial(cluster[holder].link_address()).await;
    let puts = open_together(&client, &cluster[holder], slow.iter().chain(&keys)).await;
    cluster[victim].sigstop();
    let (began, batch) = (Instant::now(), commit_together(&puts));
    let commit = tokio::spawn(async move { client.call(&batch).await });
    let mut found_after = Vec::new();
    for key in &keys {
        let found = || match look(&cluster[1].http(), key) {
            Seen::Object(bytes) if bytes == bytes_of(key) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        again_until(began + FOUND_AGAIN, key, found);
        found_after.push(began.elapsed());
    }
    assert!(
        !commit.is_finished(),
        "keys are found once the batch is answered: {found_after:?}"
    );
    let Reply::Commit(answers) = commit.await.expect("a commit") else {
        panic!("a commit is answered by another reply");
    };
    eprintln!(
        "{} keys found after {found_after:?}, the batch answered after {:?}",
        keys.len(),
        began.elapsed()
    );
    let (waited, stored) = answers.split_at(slow.len());
    for answer in waited {
        let error = answer.as_ref().expect_err("its object's holder can't be asked");
        assert_eq!(
            (error.code, error.node),
            (ErrorCode::Unavailable, Some(cluster[victim].id()))
        );
    }
    for (key, answer) in keys.iter().zip(stored) {
        assert!(
            matches!(answer, Ok(done) if done.outcome == PutOutcome::Stored),
            "{key:?}: {answer:?}"
        );
        objects.insert(key, holder, bytes_of(key));
    }
    cluster[victim].sigcont();
    assert_whole(&cluster, objects, &Objects::default(), "k");
}

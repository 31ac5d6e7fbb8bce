//! Segments that go while peers read them by themselves, on the devices that the environment names; skipped where it names none. `rdma_segments.rs` runs it where
//! devices are. Host A has node 0, which reads, host B node 1, which holds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tenon_integration::account::assert_accounts;
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Answer, Http};
use tenon_integration::node::Node;
use tenon_integration::objects::{FOUND_AGAIN, Seen, again_until, look};
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::rails::{cluster, connections, metric, packets_sent};
use tenon_integration::wait;
use tenon_transport::limits::VERBS_FORGET_TIMEOUT;

/// The deadline of calls, which emulated processors keep on a busy host.
const PATIENCE: Duration = Duration::from_secs(60);
/// Room for what stays, and not for much else.
const SEGMENT_BYTES: u64 = 8 << 20;
const MOUNTED_BYTES: u64 = 24 << 20;
const LEN: usize = 3 << 20;
/// Long enough on its way for something to happen meanwhile.
const LONG: usize = 20 << 20;
/// So many packets are a small part of an object of [`LONG`].
const UNDER_WAY: u64 = 200;
/// Memory that a node may have beside its segments.
const SLACK_BYTES: u64 = 2 << 20;

fn path(key: &str) -> String {
    format!("{}?timeout_ms={}", Http::object_path(key), PATIENCE.as_millis())
}

/// Puts an object onto the holder, through the reader. Says in which segment it lies.
#[track_caller]
fn put(cluster: &Cluster, key: &str, bytes: &[u8]) -> u64 {
    let (reader, holder) = (&cluster[0], &cluster[1]);
    let put_there = format!("{}&node={}", path(key), holder.id());
    again_until(Instant::now() + PATIENCE, key, || {
        match reader.http().put(&put_there, bytes) {
            answer if matches!(answer.status, 200 | 201) => Ok(()),
            answer if matches!(answer.status, 503 | 504) => Err(answer.code()),
            answer => panic!("put {key:?}: {answer:?}"),
        }
    });
    let request = json!({ "namespace": "default", "keys": [key] });
    let answer = reader.http().post("/v1/locate", &request).expect(200).json();
    let found = &answer["items"][0]["ok"]["replicas"][0]["segment"];
    found.as_u64().unwrap_or_else(|| panic!("{answer}"))
}

fn mount(holder: &Node) -> u64 {
    let spec = json!({ "len_bytes": MOUNTED_BYTES, "huge_pages": "off" });
    let info = holder.http().post("/v1/segments", &spec).expect(201).json();
    info["segment"].as_u64().expect("an id")
}

/// Unmounts a segment at once; how long that took.
fn unmount(holder: &Node, segment: u64) -> Duration {
    let begun = Instant::now();
    let answer = holder
        .http()
        .delete(&format!("/v1/segments/{segment}?timeout_ms=30000"));
    let info = answer.expect(200).json();
    assert_eq!(info["state"], "gone", "{info}");
    begun.elapsed()
}

/// What a get of an object that may go at any moment says: its bytes, or that it is not there, any more if the answer had begun.
fn is_there(answer: &Answer, key: &str, bytes: &[u8]) -> bool {
    match (answer.status, &answer.body) {
        (200, Ok(got)) => {
            assert_same(got, bytes, key);
            true
        }
        (200, Err(_)) | (404, _) => false,
        (409, _) if answer.code() == "conflict" => false,
        _ => panic!("GET {key}: {answer:?}"),
    }
}

/// Does something with the holder while keys are read through the reader without a pause, some of which may go.
fn while_read<R>(reader: &Node, kept: (&str, &[u8]), going: &[(String, Vec<u8>)], work: impl FnOnce() -> R) -> R {
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_over = &is_over;
    thread::scope(|scope| {
        let reading = |key: String, bytes: Vec<u8>, may_go: bool| {
            let (http, reads) = (reader.http(), &reads);
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    let is_there = is_there(&http.get(&path(&key)), &key, &bytes);
                    assert!(is_there || may_go, "{key} is not there");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        scope.spawn(reading(kept.0.to_owned(), kept.1.to_vec(), false));
        for (key, bytes) in going {
            scope.spawn(reading(key.clone(), bytes.clone(), true));
        }
        let working = || {
            let before = reads.load(Ordering::Relaxed);
            while reads.load(Ordering::Relaxed) < before + 2 * (going.len() as u64 + 1) {
                thread::sleep(Duration::from_millis(5));
            }
            work()
        };
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(working));
        // Also if it panics: the readers must end.
        is_over.store(true, Ordering::Relaxed);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn readers_in_full_flight_lose_no_queue_pair_when_a_segment_is_unmounted() {
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    let (reader, holder) = (&cluster[0], &cluster[1]);
    let kept = payload(1, LEN + 17);
    assert_eq!(put(&cluster, "kept", &kept), 1);
    for round in 0..3_u64 {
        let before = holder.shared_bytes();
        let segment = mount(holder);
        let objects = (0..4_u64).map(|number| (format!("{round}/{number}"), payload(10 * round + number, LEN)));
        let (going, _): (Vec<_>, Vec<_>) = objects.partition(|(key, bytes)| put(&cluster, key, bytes) == segment);
        assert!(going.len() > 1, "nothing lies in segment {segment}");
        let took = while_read(reader, ("kept", &kept), &going, || unmount(holder, segment));
        println!("round {round}: unmounted after {took:?}");
        wait::until(wait::SOON, "the memory is given back", || match holder.shared_bytes() {
            now if now < before + SLACK_BYTES => Ok(()),
            now => Err(format!("{now}, {before} before")),
        });
        for (key, _) in &going {
            assert_eq!(reader.http().get(&path(key)).status, 404, "{key}");
        }
        // For other reasons a busy machine loses some.
        let refused = reader.metric("tenon_rdma_paths_lost_total{reason=\"refused\"}");
        assert!(refused < 0.5, "{refused}: {}", reader.log_tail());
        assert_eq!(metric(holder, "tenon_rdma_cut_off_total"), 0, "{}", holder.log_tail());
    }
    assert_eq!(connections(reader, "tcp"), 0);
    assert_accounts(&cluster);
}

#[test]
fn a_reader_that_is_stopped_in_the_middle_of_a_get_is_cut_off_in_time_and_sees_no_other_bytes() {
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    let (reader, holder) = (&cluster[0], &cluster[1]);
    let (kept, long) = (payload(1, LEN), payload(2, LONG));
    assert_eq!(put(&cluster, "kept", &kept), 1);
    let before = holder.shared_bytes();
    let segment = mount(holder);
    assert_eq!(put(&cluster, "long", &long), segment);
    assert!(is_there(&reader.http().get(&path("long")), "long", &long));

    let (http, sent) = (reader.http(), packets_sent(1));
    let seen = thread::scope(|scope| {
        let reading = scope.spawn(|| http.try_get(&path("long")));
        while packets_sent(1) - sent < UNDER_WAY && !reading.is_finished() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!reading.is_finished(), "it is under way");
        reader.sigstop();
        let took = unmount(holder, segment);
        println!("unmounted after {took:?} with a reader that is stopped");
        assert!(took < VERBS_FORGET_TIMEOUT + Duration::from_secs(4), "{took:?}");
        assert!(holder.shared_bytes() < before + SLACK_BYTES, "its memory is given back");
        assert_eq!(metric(holder, "tenon_rdma_cut_off_total"), 1, "{}", holder.log_tail());
        // Other memory lies where it lay.
        let next = mount(holder);
        assert_eq!(next, segment + 1);
        reader.sigcont();
        reading.join().expect("a reader's answers are right")
    });
    match seen {
        Ok(Answer {
            status: 200,
            body: Ok(got),
            ..
        }) => assert_same(&got, &long, "long"),
        seen => println!(
            "the get that was under way: {:?}",
            seen.map(|answer| (answer.status, answer.body.is_ok()))
        ),
    }
    cluster.wait_all_alive();
    again_until(Instant::now() + FOUND_AGAIN, "a miss", || {
        match look(&reader.http(), "long") {
            Seen::Miss => Ok(()),
            Seen::NotNow(reason) => Err(reason),
            Seen::Object(_) => panic!("an unmounted segment has its objects"),
        }
    });
    again_until(Instant::now() + FOUND_AGAIN, "kept", || {
        match look(&reader.http(), "kept") {
            Seen::Object(got) => {
                assert_same(&got, &kept, "kept");
                Ok(())
            }
            Seen::NotNow(reason) => Err(reason),
            Seen::Miss => panic!("it is missed"),
        }
    });
    assert_eq!(connections(reader, "tcp"), 0);
    assert_accounts(&cluster);
}

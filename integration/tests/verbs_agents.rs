//! Real agents on the devices that the environment names, and what can go wrong; skipped where it names none. `rdma_faults.rs` runs it where
//! devices are. Host A has the even nodes, host B the odd ones; two rails lie between them.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tenon_integration::account::assert_accounts;
use tenon_integration::cluster::Cluster;
use tenon_integration::http::{Answer, Http};
use tenon_integration::node::{Node, tenond};
use tenon_integration::objects::{FOUND_AGAIN, Seen, again_until, look, try_put, try_remove};
use tenon_integration::payload::{assert_same, payload};
use tenon_integration::rails::{
    Disturbed, RailDown, cluster, connections, kernel_objects, may_be_disturbed, metric, options, packets_sent,
    packets_sent_by,
};
use tenon_integration::wait;

/// Around the borders of a table's line, a packet, a frame and a slice, and some slices for both rails.
const LENGTHS: [usize; 13] = [
    1,
    63,
    64,
    65,
    4095,
    4096,
    4097,
    (64 << 10) - 1,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (16 << 20) + 17,
    64 << 20,
];
/// So many packets are more than connecting takes, and a small part of an object of [`LONG`].
const UNDER_WAY: u64 = 200;
/// Payload of a packet at most.
const PACKET_BYTES: usize = 4096;
const SEGMENT_BYTES: u64 = 40 << 20;
/// Long enough on its way for something to happen meanwhile.
const LONG: usize = 12 << 20;
/// The default deadline of a call on an object of [`LONG`], and some time for a busy machine.
const FIRST_ANSWER: Duration = Duration::from_secs(15);
/// The deadline of calls that must succeed.
const PATIENCE: Duration = Duration::from_secs(60);
/// A rail is down for so long.
const CUT: Duration = Duration::from_secs(5);

/// The path of an object, and a deadline that emulated processors keep on a busy host.
fn path(key: &str) -> String {
    format!("{}?timeout_ms={}", Http::object_path(key), PATIENCE.as_millis())
}

/// Puts an object onto a node, which must succeed, sooner or later: nodes that have just started may be too busy.
#[track_caller]
fn put(node: &Node, holder: &Node, key: &str, bytes: &[u8]) {
    again_until(Instant::now() + PATIENCE, key, || {
        let answer = node.http().put(&format!("{}&node={}", path(key), holder.id()), bytes);
        match answer.status {
            200 | 201 => Ok(()),
            503 | 504 => Err(String::from_utf8_lossy(answer.bytes()).into_owned()),
            _ => panic!("put {key:?}: {answer:?}"),
        }
    });
}

/// Gets an object through a node, which must succeed with these bytes.
#[track_caller]
fn assert_got(node: &Node, key: &str, bytes: &[u8]) {
    let answer = node.http().get(&path(key)).expect(200);
    assert_same(answer.bytes(), bytes, key);
}

/// The bytes of all these objects have left host A (0) or B (1) over RDMA.
#[track_caller]
fn assert_sent(host: usize, before: u64, bytes: usize) {
    let packets = packets_sent(host) - before;
    let least = bytes / PACKET_BYTES;
    assert!(packets >= least as u64, "{packets} packets for {bytes} bytes");
}

/// What the kernel counts, once it does not change any more.
fn settled() -> String {
    let mut last = kernel_objects();
    loop {
        thread::sleep(Duration::from_millis(300));
        let now = kernel_objects();
        if now == last {
            return now;
        }
        last = now;
    }
}

#[test]
fn objects_of_every_length_come_back_and_their_bytes_go_over_rdma_alone() {
    let Some(cluster) = cluster(&["require", "require"], 160 << 20) else {
        return;
    };
    let empty = cluster[0].http().put(&Http::object_path("empty"), b"");
    empty.expect_error(400, "empty_object");
    let (sent_a, sent_b) = (packets_sent(0), packets_sent(1));
    for len in LENGTHS {
        let (key, bytes) = (format!("{len} bytes"), payload(len as u64, len));
        put(&cluster[0], &cluster[1], &key, &bytes);
        assert_got(&cluster[0], &key, &bytes);
        cluster[0].http().delete(&Http::object_path(&key)).expect(204);
    }
    let all = LENGTHS.iter().sum();
    assert_sent(0, sent_a, all);
    assert_sent(1, sent_b, all);
    assert_eq!(connections(&cluster[0], "tcp"), 0);
    assert_accounts(&cluster);
}

#[test]
fn gets_that_race_removals_and_puts_of_the_same_keys_see_whole_objects_alone() {
    const KEYS: [&str; 2] = ["contested", "contested too"];
    const ROUNDS: usize = 10;
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    // The length says which round's object it is.
    let version = |round: usize| payload(round as u64, (1 << 20) + round);
    let (is_over, found) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for node in cluster.nodes() {
            let (http, is_over, found) = (node.http(), &is_over, &found);
            scope.spawn(move || {
                for key in KEYS.into_iter().cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let answer = http.get(&path(key));
                    match (answer.status, &answer.body) {
                        (200, Ok(bytes)) => {
                            assert_same(bytes, &version(bytes.len() - (1 << 20)), key);
                            found.fetch_add(1, Ordering::Relaxed);
                        }
                        // Removed in the middle, not there, or another one each time it was read.
                        (200, Err(_)) | (404 | 409, _) => {}
                        _ => panic!("GET {key:?}: {answer:?}"),
                    }
                }
            });
        }
        let writing = || {
            for round in 0..ROUNDS {
                let (near, far) = (&cluster[round % 2], &cluster[(round + 1) % 2]);
                for key in KEYS {
                    let deadline = Instant::now() + FOUND_AGAIN;
                    again_until(deadline, key, || try_put(near, far, key, &version(round)));
                }
                for key in KEYS {
                    again_until(Instant::now() + FOUND_AGAIN, key, || try_remove(near, key));
                }
            }
        };
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(writing));
        // Also if it panics: the readers must end.
        is_over.store(true, Ordering::Relaxed);
        written.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert!(found.into_inner() > 0, "nothing was ever found");
    assert_accounts(&cluster);
}

#[test]
fn objects_that_are_read_past_their_holder_are_not_the_first_to_be_evicted() {
    const LEN: usize = 256 << 10;
    let Some(cluster) = cluster(&["require", "require"], 40 * LEN as u64) else {
        return;
    };
    let (reader, holder) = (&cluster[0], &cluster[1]);
    let evicted = || metric(holder, "tenon_evictions_total{reason=\"watermark\"}");
    // 36 of 40; from 95 % on some go in the background.
    for number in 0..36 {
        put(reader, holder, &format!("object {number}"), &payload(number, LEN));
    }
    let sent = packets_sent(1);
    for number in 0..3 {
        assert_got(reader, &format!("object {number}"), &payload(number, LEN));
    }
    assert_sent(1, sent, 3 * LEN);
    // Nobody but the reader knows of it yet: it tells the holder in a batch, a moment later.
    thread::sleep(Duration::from_secs(2));
    let mut number = 36;
    while evicted() == 0 {
        assert!(number < 60, "nothing is evicted");
        put(reader, holder, &format!("object {number}"), &payload(number, LEN));
        number += 1;
    }
    wait::until(wait::SOON, "the oldest that were not read are gone", || {
        match look(&reader.http(), "object 3") {
            Seen::Miss => Ok(()),
            Seen::Object(_) => Err("it is there".to_owned()),
            Seen::NotNow(reason) => Err(reason),
        }
    });
    for number in 0..3 {
        assert_got(reader, &format!("object {number}"), &payload(number, LEN));
    }
    assert_eq!(connections(reader, "tcp"), 0);
    assert_accounts(&cluster);
}

/// A client that gets an object, whose bytes are under way from host B. One that fails, or ends before that is seen, is started again.
fn getting(node: &Node, key: &str) -> Child {
    let attempt = || {
        let before = packets_sent(1);
        let mut client = node
            .tenon_command()
            .args(["--rdma", "require", "--timeout-ms", "60000"])
            .args(["get", key, "--output", "got"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tenon starts");
        while packets_sent(1) - before < UNDER_WAY {
            if let Some(status) = client.try_wait().expect("it can be waited for") {
                return Err(format!("it has ended with {status}"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(client)
    };
    again_until(Instant::now() + PATIENCE, "a get that is under way", attempt)
}

#[test]
fn a_client_killed_in_the_middle_of_a_get_leaves_nothing_behind() {
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    let bytes = payload(1, LONG);
    put(&cluster[0], &cluster[1], "long", &bytes);
    assert_got(&cluster[0], "long", &bytes);
    let before = settled();
    for _ in 0..3 {
        let mut client = getting(&cluster[0], "long");
        client.kill().expect("the client can be killed");
        client.wait().expect("the client can be waited for");
    }
    wait::until(
        wait::SOON,
        "the holder lets go of the client's queue pairs",
        || match kernel_objects() {
            now if now == before => Ok(()),
            now => Err(format!("{now}, before: {before}")),
        },
    );
    assert_got(&cluster[0], "long", &bytes);
    assert_accounts(&cluster);
}

/// Gets an object over and over until that fails, for a bounded time; how long the last one took.
fn until_it_fails(http: &Http, key: &str, bytes: &[u8]) -> Duration {
    loop {
        let started = Instant::now();
        let answer = http.get_object(key);
        match (answer.status, &answer.body) {
            (200, Ok(got)) => assert_same(got, bytes, key),
            (200, Err(_)) => return started.elapsed(),
            _ => {
                let code = answer.code();
                assert!(["unavailable", "deadline_exceeded"].contains(&code.as_str()), "{code}");
                return started.elapsed();
            }
        }
    }
}

/// The code of an answer; none if its body broke off.
fn code(answer: &Answer) -> String {
    answer.body.as_ref().map_or_else(|_| String::new(), |_| answer.code())
}

/// A get says that the holder is unavailable, sooner or later, and at once from then on.
fn assert_unavailable(reader: &Node, holder: &Node, key: &str) {
    wait::until(wait::SOON, "the holder is known to be away", || {
        match code(&reader.http().get_object(key)).as_str() {
            "unavailable" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    let answer = reader.http().get_object(key).expect_error(503, "unavailable");
    assert_eq!(answer.error()["node"], holder.id().to_string(), "{}", answer.json());
}

#[test]
fn a_killed_holder_is_noticed_in_the_middle_of_a_get_and_its_next_life_is_met_anew() {
    let Some(mut cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    let bytes = payload(1, LONG);
    put(&cluster[0], &cluster[1], "long", &bytes);
    let (http, before) = (cluster[0].http(), packets_sent(1));
    let took = thread::scope(|scope| {
        let reading = scope.spawn(|| until_it_fails(&http, "long", &bytes));
        // A reader that has ended sends nothing any more, and says why below.
        while packets_sent(1) - before < UNDER_WAY && !reading.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        cluster[1].kill9();
        reading.join().expect("the reader's answers are right")
    });
    assert!(took < FIRST_ANSWER, "an answer took {took:?}");
    assert_unavailable(&cluster[0], &cluster[1], "long");

    // Keys to memory of its former life are of no use: it is a miss, and new objects are read under new keys.
    cluster[1].restart();
    cluster.wait_all_alive();
    again_until(Instant::now() + FOUND_AGAIN, "a miss", || {
        match look(&cluster[0].http(), "long") {
            Seen::Miss => Ok(()),
            Seen::NotNow(reason) => Err(reason),
            Seen::Object(_) => panic!("a new life has its former objects"),
        }
    });
    let new = payload(2, LONG);
    put(&cluster[0], &cluster[1], "long", &new);
    assert_got(&cluster[0], "long", &new);
    assert_eq!(connections(&cluster[0], "tcp"), 0);
    assert_accounts(&cluster);
}

#[test]
fn a_killed_home_costs_no_object() {
    let Some(mut cluster) = cluster(&["require", "require", "require"], SEGMENT_BYTES) else {
        return;
    };
    // Enough that each pair of nodes is the homes of some.
    let objects: Vec<_> = (0..12)
        .map(|index| (format!("key {index}"), payload(index, 70_000)))
        .collect();
    for (key, bytes) in &objects {
        put(&cluster[0], &cluster[1], key, bytes);
    }
    cluster[2].kill9();
    for (key, bytes) in &objects {
        again_until(Instant::now() + FOUND_AGAIN, key, || found(&cluster[0], key, bytes));
    }
    assert_accounts(&cluster);
}

#[test]
fn a_halted_holder_costs_a_bounded_time_and_is_itself_again_when_it_goes_on() {
    let Some(mut cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    let bytes = payload(1, 1 << 20);
    put(&cluster[0], &cluster[1], "kept", &bytes);
    assert_got(&cluster[0], "kept", &bytes);
    cluster[1].sigstop();
    // A device in the kernel goes on serving reads; what needs the agent does not.
    let took = until_it_fails(&cluster[0].http(), "kept", &bytes);
    assert!(took < FIRST_ANSWER, "an answer took {took:?}");
    assert_unavailable(&cluster[0], &cluster[1], "kept");
    cluster[1].sigcont();
    cluster.wait_all_alive();
    again_until(Instant::now() + FOUND_AGAIN, "kept", || {
        found(&cluster[0], "kept", &bytes)
    });
    assert_eq!(connections(&cluster[0], "tcp"), 0);
    assert_accounts(&cluster);
    // Peers with paths to it do not keep it from ending; it moves what it holds to them before.
    assert_eq!(cluster[1].stop().code(), Some(0), "{}", cluster[1].log_tail());
    assert_got(&cluster[0], "kept", &bytes);
}

#[test]
fn lost_and_late_packets_cost_time_alone() {
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    if !may_be_disturbed() {
        return;
    }
    for netem in ["loss 1%", "delay 20ms"] {
        let disturbed = Disturbed::new(netem);
        for round in 0..3 {
            let (key, bytes) = (format!("{netem} {round}"), payload(round, (2 << 20) + 11));
            put(&cluster[0], &cluster[1], &key, &bytes);
            assert_got(&cluster[0], &key, &bytes);
        }
        drop(disturbed);
    }
    assert_eq!(connections(&cluster[0], "tcp"), 0);
    assert_accounts(&cluster);
}

#[test]
fn a_rail_that_is_cut_loses_nothing_and_carries_again_when_it_is_back() {
    let Some(cluster) = cluster(&["require", "require"], SEGMENT_BYTES) else {
        return;
    };
    if !may_be_disturbed() {
        return;
    }
    let bytes = payload(1, 4 << 20);
    put(&cluster[0], &cluster[1], "kept", &bytes);
    assert_got(&cluster[0], "kept", &bytes);
    let (cut, started) = (RailDown::new(0), Instant::now());
    for round in 0.. {
        assert_got(&cluster[0], "kept", &bytes);
        let (key, new) = (format!("new {round}"), payload(round, 300_000));
        put(&cluster[0], &cluster[1], &key, &new);
        if started.elapsed() > CUT {
            break;
        }
    }
    drop(cut);
    let before = packets_sent_by("rxe1");
    wait::until(wait::SOON, "the rail carries again", || {
        assert_got(&cluster[0], "kept", &bytes);
        match packets_sent_by("rxe1") - before {
            packets if packets > UNDER_WAY => Ok(()),
            packets => Err(packets),
        }
    });
    assert_eq!(connections(&cluster[0], "tcp"), 0);
    assert_accounts(&cluster);
}

#[test]
fn without_any_rail_prefer_goes_on_over_tcp_and_require_is_refused_by_name_until_one_is_back() {
    let Some(cluster) = cluster(&["prefer", "prefer", "require"], SEGMENT_BYTES) else {
        return;
    };
    if !may_be_disturbed() {
        return;
    }
    let bytes = payload(1, 300_000);
    put(&cluster[0], &cluster[1], "kept", &bytes);
    assert_got(&cluster[0], "kept", &bytes);
    assert_got(&cluster[2], "kept", &bytes);
    let cut = [RailDown::new(0), RailDown::new(1)];
    again_until(Instant::now() + FOUND_AGAIN, "over TCP", || {
        found(&cluster[0], "kept", &bytes)
    });
    assert!(metric(&cluster[0], "tenon_rdma_fallbacks_total") >= 1);
    wait::until(wait::SOON, "the refusal has its name", || {
        match code(&cluster[2].http().get_object("kept")).as_str() {
            "rdma_required" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    assert_eq!(connections(&cluster[2], "tcp"), 0);
    drop(cut);
    let before = packets_sent(1);
    again_until(Instant::now() + FOUND_AGAIN, "over RDMA", || {
        found(&cluster[2], "kept", &bytes)
    });
    assert_sent(1, before, bytes.len());
    // A port that is active again is a reason to try RDMA at once.
    let made = connections(&cluster[0], "rdma");
    again_until(Instant::now() + FOUND_AGAIN, "RDMA again", || {
        found(&cluster[0], "kept", &bytes)?;
        match connections(&cluster[0], "rdma") {
            now if now > made => Ok(()),
            now => Err(format!("{now} connections over RDMA")),
        }
    });
    for event in ["port_active", "port_error"] {
        let name = format!("tenon_rdma_events_total{{event={event:?}}}");
        assert!(metric(&cluster[0], &name) >= 1, "{name}");
    }
    assert_accounts(&cluster);
}

/// Whether a node finds an object now; other bytes and misses are wrong at any time.
fn found(node: &Node, key: &str, bytes: &[u8]) -> Result<(), String> {
    match look(&node.http(), key) {
        Seen::Object(got) => {
            assert_same(&got, bytes, key);
            Ok(())
        }
        Seen::Miss => panic!("{key:?} is missed"),
        Seen::NotNow(reason) => Err(reason),
    }
}

/// Run with a bound on locked memory, see `rdma_faults.rs`.
#[test]
fn with_too_little_locked_memory_prefer_uses_tcp_and_require_does_not_start() {
    let Some(cluster) = cluster(&["prefer", "prefer"], SEGMENT_BYTES) else {
        return;
    };
    let bytes = payload(1, 300_000);
    put(&cluster[0], &cluster[1], "kept", &bytes);
    assert_got(&cluster[0], "kept", &bytes);
    for node in cluster.nodes() {
        assert_eq!(metric(node, "tenon_rdma_rails"), 0, "{}", node.log_tail());
        assert!(node.log_tail().contains("RDMA is not used, transfers go over TCP"));
    }
    assert_eq!(connections(&cluster[0], "tcp"), 1);
    let Some(required) = options(&["require"], SEGMENT_BYTES) else {
        return;
    };
    let required = Cluster::prepare(&required);
    let config = required[0].config_file();
    let output = tenond(&["--config", config.to_str().expect("a path in UTF-8")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("RDMA is required by rdma.policy and cannot be used") && said.contains("locked"),
        "{said}"
    );
}

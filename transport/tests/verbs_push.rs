//! Writes by the initiator itself, under memory windows, and what keeps it from writing more; skipped where the environment
//! names no devices.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod devices;
#[path = "support/hosts.rs"]
mod hosts;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hosts::{Hosts, fill, transfer};
use support::{SESSION, client_identity, eventually, soon};
use tenon_transport::checksum::crc64;
use tenon_transport::conformance::one_sided_conformance;
use tenon_transport::link::{Identity, NoSecret};
use tenon_transport::verbs::engine::{PushPolicy, Registration, Rogue, RogueGrant};
use tenon_transport::verbs::{FailedReleases, Remote, Status, Windows, failed_releases};
use tenon_transport::{Export, Guard, Hold, Memory, Op, Refused, RemoteKey, Rights, Scope, SessionId, Slice, Transfer};
use tokio::time::{Instant, sleep};

/// Payload of the victims around a granted range.
const BEFORE: u8 = 0x11;
/// What rogues write.
const EVIL: u8 = 0xee;

/// The granted range, in the middle of registered memory.
const START_BYTES: u64 = 16 << 10;
const LEN_BYTES: u64 = 16 << 10;
const MEMORY_BYTES: usize = 64 << 10;

fn pushed(hosts: &Hosts) -> u64 {
    hosts.theirs.writes().pushed.count.load(Ordering::Relaxed)
}

fn pulled(hosts: &Hosts) -> u64 {
    hosts.theirs.writes().pulled.count.load(Ordering::Relaxed)
}

/// Counts the holds of its writes.
#[derive(Default)]
struct Holds(Arc<AtomicUsize>);

impl Guard for Holds {
    fn begin_read(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        Ok(Hold::new(0))
    }

    fn begin_write(&self, _: u64, _: u64) -> Result<Hold, Refused> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let held = Arc::clone(&self.0);
        Ok(Hold::with_release(0, move || _ = held.fetch_sub(1, Ordering::SeqCst)))
    }

    fn wrote(&self, _: u64, _: u64, _: u64) {}
}

/// Registered memory of the owner of which the middle may be written to, and all be read.
struct Victim {
    memory: Slice,
    key: RemoteKey,
    read_key: RemoteKey,
    holds: Arc<AtomicUsize>,
    _registered: Registration,
}

impl Victim {
    fn new(hosts: &Hosts) -> Self {
        let memory = Arc::new(Memory::from_vec(vec![BEFORE; MEMORY_BYTES]));
        let registered = hosts.theirs.register(&memory).unwrap();
        let guard = Holds::default();
        let holds = Arc::clone(&guard.0);
        let guard: Arc<dyn Guard> = Arc::new(guard);
        let export = |memory: Slice, rights| Export {
            memory,
            rights,
            scope: Scope::Session(SESSION),
            guard: Arc::clone(&guard),
        };
        let middle = memory.slice(START_BYTES..START_BYTES + LEN_BYTES).unwrap();
        Self {
            key: hosts.exports.add(export(middle, Rights::Write)).unwrap(),
            read_key: hosts.exports.add(export(memory.whole(), Rights::Read)).unwrap(),
            memory: memory.whole(),
            holds,
            _registered: registered,
        }
    }

    async fn grant(&self, rogue: &Rogue, deadline: Instant) -> RogueGrant {
        let granted = rogue.grant(self.key, 0, LEN_BYTES, deadline).await;
        granted.unwrap().expect("a window is given")
    }

    /// No byte is the rogue's.
    fn is_whole(&self) -> bool {
        self.memory.to_vec().iter().all(|byte| *byte != EVIL)
    }

    /// A write there is refused, and nothing of it is seen, then or later.
    async fn keeps_out(&self, rogue: &Rogue, to: Remote, why: &str) {
        fill(&self.memory, BEFORE);
        let status = rogue.write(to, &evil(4096)).await;
        assert_ne!(status, Status::Success, "{why}");
        sleep(Duration::from_millis(20)).await;
        assert!(self.is_whole(), "{why}");
    }

    async fn is_let_go(&self, why: &str) {
        eventually(why, || self.holds.load(Ordering::SeqCst) == 0).await;
    }
}

fn evil(len: usize) -> Slice {
    Arc::new(Memory::from_vec(vec![EVIL; len])).whole()
}

async fn rogue(hosts: &Hosts, session: SessionId) -> Rogue {
    let identity = Identity {
        session,
        ..client_identity()
    };
    Rogue::connect(&hosts.ours, &hosts.server.endpoint, &identity, &NoSecret, soon()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_engine_passes_the_suite_of_one_sided_engines_when_peers_push() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    one_sided_conformance(&hosts).await;
    println!("{} slices were pushed, {} pulled", pushed(&hosts), pulled(&hosts));
    assert!(pushed(&hosts) > 0);
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_peers_push_what_stands_alone_is_written_and_groups_are_read() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let bytes = vec![7; (2 << 20) + 5];
    let (sink, key) = hosts.export(vec![0; bytes.len()], Rights::Write);
    let from = Arc::new(Memory::from_vec(bytes.clone())).whole();
    let connection = hosts.open(SESSION).await.unwrap();
    for (group, counts) in [(0, (3, 0)), (1, (3, 3))] {
        fill(&sink, 0);
        let write = Transfer {
            group,
            ..transfer(Op::Write, key, &from)
        };
        let result = connection.submit(vec![write], soon()).await.remove(0);
        assert_eq!(
            result.unwrap().crc64,
            Some(crc64(&bytes)),
            "the owner says what is there"
        );
        assert!(sink.to_vec() == bytes);
        assert_eq!((pushed(&hosts), pulled(&hosts)), counts, "slices of 1 MiB");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_windows_are_not_enforced_probed_peers_write_by_pull() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Probed).await else {
        return;
    };
    let (name, windows) = hosts.theirs.windows().remove(0);
    println!("{name}: memory windows are {windows}");
    let are_enforced = windows.are_enforced();
    if name.starts_with("rxe") {
        let Windows::Seen(enforced) = windows else {
            panic!("{windows:?}")
        };
        assert_eq!(enforced.lacking(), ["bounds"], "what the software device lacks");
    }
    assert_eq!(hosts.theirs.pushing(), usize::from(are_enforced));
    let (sink, key) = hosts.export(vec![0; 100_000], Rights::Write);
    let from = Arc::new(Memory::from_vec(vec![7; 100_000])).whole();
    let connection = hosts.open(SESSION).await.unwrap();
    let result = connection
        .submit(vec![transfer(Op::Write, key, &from)], soon())
        .await
        .remove(0);
    assert_eq!(result.unwrap().crc64, Some(crc64(&[7; 100_000])));
    assert!(sink.to_vec() == [7; 100_000]);
    assert_eq!(
        (pushed(&hosts), pulled(&hosts)),
        (u64::from(are_enforced), u64::from(!are_enforced))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rogue_writes_what_it_was_granted_and_nothing_after_that() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let victim = Victim::new(&hosts);
    let writer = rogue(&hosts, SESSION).await;
    assert!(writer.may_push());
    let grant = victim.grant(&writer, soon()).await;
    assert_eq!(
        victim.holds.load(Ordering::SeqCst),
        1,
        "held while it may be written to"
    );
    assert_eq!(writer.write(grant.to, &evil(4096)).await, Status::Success);
    let landed = victim.memory.subslice(START_BYTES..START_BYTES + LEN_BYTES).unwrap();
    let sum = writer.settle(grant, true, soon()).await.unwrap();
    assert_eq!(sum, Some(landed.crc64()), "the owner tells what is there");
    assert_eq!(victim.holds.load(Ordering::SeqCst), 0);
    victim.keeps_out(&writer, grant.to, "after it was settled").await;
    assert_eq!(
        rogue(&hosts, SESSION).await.settle(grant, true, soon()).await,
        Ok(None),
        "another link's grants are not its own"
    );

    let writer = rogue(&hosts, SESSION).await;
    let whole = writer.resolve(victim.read_key, soon()).await.unwrap();
    victim
        .keeps_out(&writer, whole, "without a grant, under the key for reading")
        .await;

    let (writer, other) = (rogue(&hosts, SESSION).await, rogue(&hosts, SESSION).await);
    let grant = victim.grant(&writer, soon()).await;
    victim
        .keeps_out(&other, grant.to, "over a queue pair that has no grant")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_ends_with_its_deadline_its_export_its_path_and_its_link() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let victim = Victim::new(&hosts);
    let writer = rogue(&hosts, SESSION).await;
    let grant = victim.grant(&writer, Instant::now() + Duration::from_millis(400)).await;
    victim.is_let_go("the hold ends at the deadline").await;
    victim.keeps_out(&writer, grant.to, "after the deadline").await;

    let writer = rogue(&hosts, SESSION).await;
    let grant = victim.grant(&writer, soon()).await;
    drop(rogue(&hosts, SESSION).await);
    assert_eq!(
        victim.holds.load(Ordering::SeqCst),
        1,
        "another link's end is nothing to it"
    );
    hosts.exports.revoke(victim.key);
    victim.is_let_go("the hold ends when the export is revoked").await;
    assert_eq!(writer.settle(grant, true, soon()).await, Ok(None));
    victim
        .keeps_out(&writer, grant.to, "after the export was revoked")
        .await;

    let victim = Victim::new(&hosts);
    let writer = rogue(&hosts, SESSION).await;
    let grant = victim.grant(&writer, Instant::now() + Duration::from_secs(120)).await;
    // The owner has another queue pair then, to which nothing of the writer's is connected.
    assert!(writer.takes_path(0, soon()).await);
    victim.is_let_go("the hold ends when its path is replaced").await;
    victim.keeps_out(&writer, grant.to, "after its path was replaced").await;

    let victim = Victim::new(&hosts);
    for _ in 0..3 {
        let writer = rogue(&hosts, SESSION).await;
        let grant = victim.grant(&writer, soon()).await;
        let from = evil(usize::try_from(LEN_BYTES).unwrap());
        // Killed while writes are under way.
        let writing = tokio::time::timeout(Duration::from_millis(30), writer.write_on(grant.to, &from));
        assert!(writing.await.is_err(), "it could have gone on");
        drop(writer);
        victim.is_let_go("the hold ends with the link").await;
        fill(&victim.memory, BEFORE);
        sleep(Duration::from_millis(50)).await;
        assert!(victim.is_whole(), "nothing lands once the hold has ended");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_window_a_device_may_let_a_rogue_write_and_behind_the_memory_never() {
    let Some(hosts) = Hosts::pushing(1, PushPolicy::Trusted).await else {
        return;
    };
    let victim = Victim::new(&hosts);
    let writer = rogue(&hosts, SESSION).await;
    let grant = victim.grant(&writer, soon()).await;
    let at = |offset_bytes: u64| Remote {
        address: grant.to.address + offset_bytes,
        ..grant.to
    };
    let (_, Windows::Seen(enforced)) = hosts.theirs.windows().remove(0) else {
        panic!("there are windows")
    };
    if !enforced.bounds {
        // What `trusted` means on such a device: who may put may write anywhere in the segment.
        assert_eq!(writer.write(at(LEN_BYTES + 100), &evil(64)).await, Status::Success);
        assert!(!victim.is_whole());
        println!("the device lets a peer write behind its window");
    }
    let behind = at(MEMORY_BYTES as u64 - START_BYTES);
    victim.keeps_out(&writer, behind, "behind the registered memory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_lose_nothing_when_their_rail_goes_down() {
    let Some(hosts) = Hosts::pushing(2, PushPolicy::Trusted).await else {
        return;
    };
    let len = 4 << 20;
    let (sink, key) = hosts.export(vec![0; len], Rights::Write);
    let connection = hosts.open(SESSION).await.unwrap();
    for (round, state) in ["up", "down", "up"].into_iter().enumerate() {
        let set = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(20));
            hosts::run("ip", &["link", "set", "rail1a", state])
        });
        for repeat in 0..3 {
            let bytes = vec![u8::try_from(10 * round + repeat + 1).unwrap(); len];
            let from = Arc::new(Memory::from_vec(bytes.clone())).whole();
            let result = connection
                .submit(vec![transfer(Op::Write, key, &from)], soon())
                .await
                .remove(0);
            assert_eq!(result.unwrap().crc64, Some(crc64(&bytes)), "rail 1 goes {state}");
            assert!(sink.to_vec() == bytes);
        }
        set.await.unwrap();
    }
    println!("{} slices were pushed, {} pulled", pushed(&hosts), pulled(&hosts));
    assert!(pushed(&hosts) > 0);
}

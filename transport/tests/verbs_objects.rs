//! The objects of verbs on real devices, named by TENON_RDMA_DEVICES; skipped without.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod support;

use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use support::{End, IMPATIENT, MEMORY_BYTES, Named, PATIENCE, connect, counted, named_devices, pair, post};
use tenon_transport::Memory;
use tenon_transport::verbs::{
    Access, AsyncEvent, AsyncEvents, Done, FailedReleases, GidKind, LinkLayer, MemoryRegion, MemoryWindow, Payload,
    PortState, PostFailure, QueuePairOptions, QueuePairState, ReceiveRequest, RegionKey, Remote, SendRequest, Status,
    Timing, VerbsError, devices, failed_releases, judge_gids,
};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};

/// The tests share devices whose objects they count: one at a time.
static ALONE: Mutex<()> = Mutex::const_new(());

/// The first two devices, and the right to use them; `None` if the test is to be skipped.
async fn two() -> Option<(Named, Named, MutexGuard<'static, ()>)> {
    let named = named_devices()?;
    Some((named[0].clone(), named[1].clone(), ALONE.lock().await))
}

async fn two_ends() -> Option<(End, End, MutexGuard<'static, ()>)> {
    let (a, b, alone) = two().await?;
    Some((End::new(&a), End::new(&b), alone))
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|index| u8::try_from((index * 7 + seed) % 251).unwrap())
        .collect()
}

#[tokio::test]
async fn devices_ports_and_addresses_are_seen() {
    let Some((a, b, _alone)) = two_ends().await else { return };
    let found = devices().unwrap();
    for end in [&a, &b] {
        assert!(found.iter().any(|name| name == end.device.name()));
        let attributes = end.device.attributes();
        assert!(
            attributes.ports >= 1 && attributes.max_requests > 0 && attributes.max_parts > 0,
            "{attributes:?}"
        );
        let port = end.device.port(1).unwrap();
        assert_eq!(
            (port.state, port.link_layer),
            (PortState::Active, LinkLayer::Ethernet),
            "{port:?}"
        );
        assert!(
            port.active_mtu <= port.max_mtu && port.max_message_bytes > 0,
            "{port:?}"
        );
        assert_eq!(end.gid.kind, GidKind::RoceV2);
        for (entry, verdict) in judge_gids(&end.device.gids(1).unwrap(), None) {
            println!(
                "{} gid {} {} {}: {verdict}",
                end.device.name(),
                entry.index,
                entry.gid,
                entry.kind
            );
        }
    }
    let error = a.device.port(200).unwrap_err();
    assert!(matches!(error, VerbsError::UnknownPort { port: 200, .. }), "{error}");
}

#[tokio::test]
async fn reads_and_writes_move_the_bytes_of_their_scatter_lists() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, _peer) = pair(&a, &b, Timing::default());
    let bytes = pattern(512 << 10, 3);
    a.memory.copy_in(0, &bytes).unwrap();

    // A write from four parts, out of order in memory, and one behind it that reads it back in one part.
    let quarter = 128 << 10;
    let from: Vec<_> = [3, 1, 2, 0].map(|part| a.part(part * quarter, quarter)).into();
    post(&queue_pair, SendRequest::write(b.remote(4096), Payload::Parts(from), 1));
    let written = a.success(1).await;
    assert_eq!(
        (written.done, written.parts.len(), written.len_bytes),
        (Done::Write, 4, 0)
    );
    let mut expected = Vec::new();
    for part in [3, 1, 2, 0] {
        let start = part * (128 << 10);
        expected.extend_from_slice(&bytes[start..start + (128 << 10)]);
    }
    let mut landed = vec![0; expected.len()];
    b.memory.copy_out(4096, &mut landed).unwrap();
    assert!(landed == expected);

    let into: Vec<_> = [7, 5, 6, 4].map(|part| a.part(part * quarter, quarter)).into();
    post(&queue_pair, SendRequest::read(b.remote(4096), into, 2));
    let read = a.success(2).await;
    assert_eq!(
        (read.done, read.len_bytes, read.queue_pair),
        (Done::Read, 512 << 10, queue_pair.number())
    );
    for (place, part) in [7, 5, 6, 4].into_iter().enumerate() {
        let mut found = vec![0; 128 << 10];
        a.memory.copy_out(part * quarter, &mut found).unwrap();
        assert!(
            found == expected[place * (128 << 10)..(place + 1) * (128 << 10)],
            "part {part}"
        );
    }
    assert_eq!(queue_pair.outstanding(), 0);
}

#[tokio::test]
async fn unsignalled_requests_are_silent_and_come_free_with_the_next() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, _peer) = pair(&a, &b, Timing::default());
    let write = |number| {
        SendRequest::write(
            b.remote(number),
            Payload::Inline(vec![u8::try_from(number).unwrap()]),
            number,
        )
    };
    let batch: Vec<_> = (0..8)
        .map(|number| write(number).unsignalled())
        .chain([write(8)])
        .collect();
    queue_pair.post_send(batch).unwrap();
    assert_eq!(queue_pair.outstanding(), 9);
    a.success(8).await;
    assert_eq!(queue_pair.outstanding(), 0);
    let mut landed = [0; 9];
    b.memory.copy_out(0, &mut landed).unwrap();
    assert_eq!(landed, [0, 1, 2, 3, 4, 5, 6, 7, 8]);

    // Many more than fit, none of which but the last is to be told of: the queue must not fill up for good.
    let last = 10 * u64::from(queue_pair.options().send_requests);
    let started = Instant::now();
    for number in 0..=last {
        let one = write(number % 200);
        let mut request = vec![if number == last { one } else { one.unsignalled() }];
        while let Err(error) = queue_pair.post_send(request) {
            assert!(matches!(error.failure, PostFailure::Backpressure { .. }), "{error}");
            assert!(started.elapsed() < PATIENCE, "stuck at {number}");
            a.nothing_more();
            request = error.rejected;
        }
    }
    a.success(last % 200).await;
}

#[tokio::test]
async fn messages_arrive_from_parts_and_inline() {
    let Some((a, mut b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    let room = |number: u64| {
        ReceiveRequest::new(
            vec![b.part(number * 8192, 4096), b.part(number * 8192 + 4096, 4096)],
            number,
        )
    };
    peer.post_receive((0..3).map(room).collect()).unwrap();
    a.memory.copy_in(0, &pattern(5000, 1)).unwrap();
    post(
        &queue_pair,
        SendRequest::send(Payload::Parts(vec![a.part(0, 5000)]), 10),
    );
    post(&queue_pair, SendRequest::send(Payload::Inline(b"short".to_vec()), 11));
    let first = b.success(0).await;
    assert_eq!(
        (first.done, first.len_bytes, first.parts.len()),
        (Done::Receive, 5000, 2)
    );
    assert_eq!(b.success(1).await.len_bytes, 5);
    let (mut long, mut short) = (vec![0; 5000], [0; 5]);
    b.memory.copy_out(0, &mut long).unwrap();
    b.memory.copy_out(8192, &mut short).unwrap();
    assert!(long == pattern(5000, 1) && &short == b"short");

    let most = usize::try_from(queue_pair.options().inline_bytes).unwrap();
    let too_long = SendRequest::send(Payload::Inline(vec![0; most + 1]), 12);
    let refused = queue_pair.post_send(vec![too_long]).unwrap_err();
    assert!(matches!(refused.failure, PostFailure::TooLong { .. }), "{refused}");
    assert_eq!(peer.outstanding(), 1);
}

#[tokio::test]
async fn a_full_queue_gives_requests_back() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let options = QueuePairOptions {
        send_requests: 8,
        ..QueuePairOptions::default()
    };
    let (queue_pair, peer) = (a.queue_pair(options), b.queue_pair(options));
    let (region, remote) = (Arc::clone(&a.region), b.remote(0));
    let part = |start, len| region.part(start..start + len).unwrap();
    let read = |number| SendRequest::read(remote, vec![part(number * 4096, 4096)], number);
    let early = queue_pair.post_send(vec![read(0)]).unwrap_err();
    assert!(matches!(early.failure, PostFailure::NotConnected), "{early}");
    connect((&a, &b), (&queue_pair, &peer), Timing::default());
    let full = queue_pair.post_send((0..20).map(read).collect()).unwrap_err();
    assert!(matches!(full.failure, PostFailure::Backpressure { depth: 8 }), "{full}");
    let left: Vec<_> = full.rejected.iter().map(|request| *request.context()).collect();
    assert_eq!(left, (8..20).collect::<Vec<_>>());
    let mut rejected = full.rejected;
    let mut next = 0;
    while next < 20 {
        a.success(next).await;
        next += 1;
        if let Err(error) = queue_pair.post_send(rejected) {
            rejected = error.rejected;
        } else {
            rejected = Vec::new();
        }
    }
    let many_parts: Vec<_> = (0..u64::from(queue_pair.options().parts) + 1)
        .map(|number| part(number * 8, 8))
        .collect();
    let refused = queue_pair
        .post_send(vec![read(1), SendRequest::read(remote, many_parts, 2), read(3)])
        .unwrap_err();
    assert!(matches!(refused.failure, PostFailure::TooManyParts { .. }), "{refused}");
    assert_eq!(refused.rejected.len(), 2, "the one before it is posted");
    a.success(1).await;
}

#[tokio::test]
async fn a_local_fault_ends_the_local_queue_pair_only() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let beyond = a.region.part(MEMORY_BYTES - 100..MEMORY_BYTES + 1).unwrap_err();
    assert!(
        matches!(beyond, VerbsError::OutOfRange { len_bytes: 101, .. }),
        "{beyond}"
    );
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    // Not registered for writing, so nothing can be read into it.
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    let region = MemoryRegion::register(&a.domain, memory.whole(), Access::LOCAL_READ).unwrap();
    let into = vec![region.part_of(&memory.slice(0..4096).unwrap()).unwrap()];
    post(&queue_pair, SendRequest::read(b.remote(0), into, 1));
    let failed = a.next().await;
    assert!(
        matches!(failed.status, Status::LocalProtection | Status::LocalOperation),
        "{failed:?}"
    );
    assert_eq!(queue_pair.state().unwrap(), QueuePairState::Error);
    assert_eq!(peer.state().unwrap(), QueuePairState::ReadyToSend);
    let other = a.region.part_of(&memory.whole()).unwrap_err();
    assert!(matches!(other, VerbsError::OtherMemory { .. }), "{other}");
}

#[tokio::test]
async fn failing_a_queue_pair_flushes_all_that_is_posted() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, _peer) = pair(&a, &b, Timing::default());
    let room = |number| ReceiveRequest::new(vec![a.part(0, 64)], number);
    queue_pair.post_receive((0..20).map(room).collect()).unwrap();
    let reads = (20..40).map(|number| SendRequest::read(b.remote(0), vec![a.part(0, 1 << 20)], number));
    queue_pair.post_send(reads.collect()).unwrap();
    let started = Instant::now();
    queue_pair.fail().unwrap();
    let mut seen = [false; 40];
    for _ in 0..40 {
        let completion = a.next().await;
        assert!(
            matches!(completion.status, Status::Success | Status::Flushed),
            "{completion:?}"
        );
        assert!(
            !std::mem::replace(&mut seen[usize::try_from(completion.context).unwrap()], true),
            "told twice"
        );
    }
    timeout(PATIENCE, queue_pair.drained()).await.unwrap();
    println!("flushed 40 requests in {:?}", started.elapsed());
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "a deadline is kept by failing and flushing"
    );
    a.nothing_more();
}

#[tokio::test]
async fn buffers_stay_until_their_request_is_complete_even_if_all_else_is_dropped() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    let region = MemoryRegion::register(&a.domain, memory.whole(), Access::LOCAL_WRITE).unwrap();
    let (kept_memory, kept_region): (Weak<_>, Weak<_>) = (Arc::downgrade(&memory), Arc::downgrade(&region));
    let requests = (0..4).map(|number| ReceiveRequest::new(vec![region.part(0..4096).unwrap()], number));
    queue_pair.post_receive(requests.collect()).unwrap();
    drop((memory, region));
    assert!(
        kept_memory.upgrade().is_some() && kept_region.upgrade().is_some(),
        "the queue pair owns them"
    );
    post(&peer, SendRequest::send(Payload::Inline(vec![1]), 9));
    drop(a.success(0).await);
    assert!(kept_region.upgrade().is_some(), "three requests are left");
    // The queue pair's end tells of each request that is left, once.
    drop(queue_pair);
    for number in 1..4 {
        let completion = a.next().await;
        assert_eq!((completion.context, completion.status), (number, Status::Flushed));
        assert!(kept_region.upgrade().is_some(), "a completion brings its buffers back");
    }
    assert!(kept_memory.upgrade().is_none() && kept_region.upgrade().is_none());
    a.nothing_more();
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test]
async fn a_peer_that_is_gone_is_noticed_within_the_bound() {
    let Some((mut a, b, _alone)) = two_ends().await else {
        return;
    };
    for timing in [
        IMPATIENT,
        Timing {
            timeout_exponent: 12,
            ..IMPATIENT
        },
    ] {
        let (queue_pair, peer) = pair(&a, &b, timing);
        post(
            &queue_pair,
            SendRequest::write(b.remote(0), Payload::Inline(vec![1]), 1),
        );
        a.success(1).await;
        drop(peer);
        let started = Instant::now();
        post(
            &queue_pair,
            SendRequest::write(b.remote(0), Payload::Inline(vec![2]), 2),
        );
        assert_eq!(a.next().await.status, Status::RetryExceeded);
        let took = started.elapsed();
        println!("silence noticed after {took:?}, reckoned {:?}", timing.silence());
        assert!(took < 4 * timing.silence() + Duration::from_millis(500), "{took:?}");
    }
}

#[tokio::test]
async fn completions_wake_a_sleeping_reaper_each_time() {
    let Some((mut a, mut b, _alone)) = two_ends().await else {
        return;
    };
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    let started = Instant::now();
    for round in 0..300 {
        peer.post_receive(vec![ReceiveRequest::new(vec![b.part(0, 64)], round)])
            .unwrap();
        let send = async {
            if round % 100 == 0 {
                // Long enough for the receiver to be asleep.
                sleep(Duration::from_millis(50)).await;
            }
            post(&queue_pair, SendRequest::send(Payload::Inline(vec![1]), round));
            a.success(round).await;
        };
        tokio::join!(send, b.success(round));
    }
    println!("300 messages by event in {:?}", started.elapsed());
}

#[tokio::test]
async fn windows_give_access_and_take_it_back() {
    let Some((mut a, mut b, _alone)) = two_ends().await else {
        return;
    };
    if !b.device.attributes().windows {
        println!("skipped: {} has no windows of type 2", b.device.name());
        return;
    }
    let (queue_pair, peer) = pair(&a, &b, Timing::default());
    let window = MemoryWindow::new(&peer).unwrap();
    let key = window.bind(b.part(8192, 4096), Access::REMOTE_WRITE, 1).unwrap();
    assert_eq!(b.success(1).await.done, Done::Bind);
    let again = window.bind(b.part(0, 64), Access::REMOTE_WRITE, 9).unwrap_err();
    assert!(matches!(again.failure, PostFailure::Window { bound: true }), "{again}");
    let inside = Remote {
        address: b.region.address() + 8192,
        key,
    };
    post(&queue_pair, SendRequest::write(inside, Payload::Inline(vec![7; 16]), 2));
    a.success(2).await;

    // Does the device hold the peer to the bounds? Scratch memory is written 100 bytes behind the end.
    let behind = Remote {
        address: inside.address + 4096 + 100,
        key,
    };
    post(&queue_pair, SendRequest::write(behind, Payload::Inline(vec![8; 16]), 3));
    let enforced = a.next().await.status != Status::Success;
    println!(
        "{}: window bounds {}",
        b.device.name(),
        if enforced { "enforced" } else { "not enforced" }
    );
    if b.device.name().starts_with("rxe") {
        assert!(
            !enforced,
            "the software device has learnt it: windows can be trusted there now"
        );
        window.invalidate(4).unwrap();
        assert_eq!(b.success(4).await.done, Done::Invalidate);
        window.invalidated();
        let twice = window.invalidate(5).unwrap_err();
        assert!(matches!(twice.failure, PostFailure::Window { bound: false }), "{twice}");
        let next = window.bind(b.part(0, 4096), Access::REMOTE_WRITE, 6).unwrap();
        b.success(6).await;
        assert_ne!(next, key);
        post(&queue_pair, SendRequest::write(inside, Payload::Inline(vec![9; 16]), 7));
        assert_eq!(
            a.next().await.status,
            Status::RemoteAccess,
            "the old key is no good any more"
        );
    }
    // Released before its queue pair whatever the order here.
    let started = Instant::now();
    drop((peer, queue_pair, window));
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test]
async fn a_region_outlives_a_window_that_could_not_be_invalidated() {
    let Some((a, mut b, _alone)) = two_ends().await else {
        return;
    };
    if !b.device.attributes().windows {
        println!("skipped: {} has no windows of type 2", b.device.name());
        return;
    }
    let (_queue_pair, peer) = pair(&a, &b, Timing::default());
    let memory = Arc::new(Memory::anonymous(4096).unwrap());
    let access = Access::LOCAL_WRITE | Access::BIND_WINDOWS;
    let region = MemoryRegion::register(&b.domain, memory.whole(), access).unwrap();
    let window = MemoryWindow::new(&peer).unwrap();
    window
        .bind(region.part(0..4096).unwrap(), Access::REMOTE_WRITE, 1)
        .unwrap();
    assert_eq!(b.success(1).await.done, Done::Bind);
    peer.fail().unwrap();
    window.invalidate(2).unwrap();
    assert_eq!(b.next().await.status, Status::Flushed);
    drop(region);
    assert_eq!(
        failed_releases(),
        FailedReleases::default(),
        "the window is still bound to it"
    );
    drop(window);
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test]
async fn two_hundred_failures_leave_nothing_behind_in_the_kernel() {
    let Some((named_a, named_b, _alone)) = two().await else {
        return;
    };
    let names = [named_a.device.as_str(), named_b.device.as_str()];
    let before = counted(&names);
    {
        let (mut a, mut b) = (End::new(&named_a), End::new(&named_b));
        let during = counted(&names);
        assert!(before.is_none() || before != during, "the count moves: {during:?}");
        for round in 0..200_u32 {
            let (queue_pair, peer) = pair(&a, &b, IMPATIENT);
            peer.post_receive(vec![ReceiveRequest::new(vec![b.part(0, 64)], 5)])
                .unwrap();
            let memory = Arc::new(Memory::anonymous(8192).unwrap());
            let region = MemoryRegion::register(&a.domain, memory.whole(), Access::LOCAL_WRITE).unwrap();
            let key = RegionKey(b.region.key().0.wrapping_add(0x100 * (round + 1)));
            let wrong = Remote { key, ..b.remote(0) };
            post(
                &queue_pair,
                SendRequest::read(wrong, vec![region.part(0..8192).unwrap()], 1),
            );
            drop((memory, region));
            if round % 2 == 0 {
                assert_eq!(a.next().await.status, Status::RemoteAccess);
                drop((queue_pair, peer));
            } else {
                // Dropped while it is under way: told of all the same.
                drop((queue_pair, peer));
                let status = a.next().await.status;
                assert!(
                    matches!(status, Status::RemoteAccess | Status::Flushed | Status::RetryExceeded),
                    "{status}"
                );
            }
            assert_eq!(b.next().await.status, Status::Flushed);
        }
        assert_eq!(counted(&names), during);
    }
    let after = counted(&names);
    println!("before {before:?}\nafter  {after:?}");
    assert_eq!(before, after);
    assert_eq!(failed_releases(), FailedReleases::default());
}

#[tokio::test]
async fn a_port_that_goes_down_and_up_is_told_of() {
    let Some((a, _b, _alone)) = two_ends().await else {
        return;
    };
    if std::env::var("TENON_RDMA").is_ok_and(|value| value == "native") {
        println!("skipped: links of a real host stay up");
        return;
    }
    let interface = a.gid.interface_name().expect("software devices have an interface");
    let set = |state: &str| {
        let done = Command::new("ip")
            .args(["link", "set", &interface, state])
            .status()
            .unwrap();
        assert!(done.success());
    };
    let mut events = AsyncEvents::new(&a.device).unwrap();
    let until = async |events: &mut AsyncEvents, wanted: AsyncEvent| {
        let waiting = async {
            loop {
                let event = events.next().await.unwrap();
                println!("{event:?}");
                if event == wanted {
                    return;
                }
            }
        };
        timeout(PATIENCE, waiting)
            .await
            .unwrap_or_else(|_| panic!("no {wanted:?}"));
    };
    set("down");
    until(&mut events, AsyncEvent::PortError(1)).await;
    set("up");
    until(&mut events, AsyncEvent::PortActive(1)).await;
    assert_eq!(a.device.port(1).unwrap().state, PortState::Active);
    // The address comes back with the link, for the tests that follow.
    let started = Instant::now();
    while !a
        .device
        .gids(1)
        .unwrap()
        .iter()
        .any(|entry| entry.gid == a.gid.gid && entry.kind == GidKind::RoceV2)
    {
        assert!(started.elapsed() < PATIENCE, "the address did not come back");
        sleep(Duration::from_millis(20)).await;
    }
}

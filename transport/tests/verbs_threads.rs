//! Verbs used by several threads at once, on the devices of TENON_RDMA_DEVICES; skipped without.

#![allow(clippy::unwrap_used, reason = "a test may fail anywhere")]

#[path = "support/verbs.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::{End, PATIENCE, connect, counted, named_devices};
use tenon_transport::verbs::{
    FailedReleases, PostFailure, QueuePair, QueuePairOptions, SendRequest, Status, Timing, failed_releases,
};

const THREADS: u64 = 3;
const ROUNDS: u64 = 6;
const REQUESTS: u64 = 150;

/// Posts `REQUESTS` reads, every third one signalled, and counts nothing: the reaper does.
fn post_all(queue_pair: &QueuePair<u64>, a: &End, b: &End, name: u64) {
    let started = Instant::now();
    for number in 0..REQUESTS {
        let read = SendRequest::read(b.remote(number * 4096), vec![a.part(number * 4096, 4096)], name);
        let mut request = vec![if number % 3 == 2 { read } else { read.unsignalled() }];
        while let Err(error) = queue_pair.post_send(request) {
            assert!(matches!(error.failure, PostFailure::Backpressure { .. }), "{error}");
            assert!(started.elapsed() < PATIENCE, "the reaper does not keep up");
            thread::yield_now();
            request = error.rejected;
        }
    }
}

/// Makes queue pairs, posts on them and drops them: every other one with requests under way.
fn work(a: &End, b: &End, thread: u64) {
    for round in 0..ROUNDS {
        let options = QueuePairOptions {
            send_requests: 32,
            ..QueuePairOptions::default()
        };
        let (queue_pair, peer) = (a.queue_pair(options), b.queue_pair(options));
        // Threads that share one processor may be silent for longer than an impatient peer waits.
        connect((a, b), (&queue_pair, &peer), Timing::default());
        post_all(&queue_pair, a, b, thread * ROUNDS + round);
        if round % 2 == 0 {
            let started = Instant::now();
            while queue_pair.outstanding() > 0 {
                assert!(started.elapsed() < PATIENCE, "{} are left", queue_pair.outstanding());
                thread::yield_now();
            }
        }
    }
}

#[test]
fn every_signalled_request_is_told_of_once_whatever_other_threads_do() {
    let Some(named) = named_devices() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let names = [named[0].device.as_str(), named[1].device.as_str()];
    let before = counted(&names);
    {
        let entered = runtime.enter();
        let (mut a, b) = (End::new(&named[0]), End::new(&named[1]));
        let mut channel = a.take_channel();
        drop(entered);
        let ended = Arc::new(AtomicBool::new(false));
        let reaper = runtime.spawn({
            let ended = Arc::clone(&ended);
            async move {
                let mut told: HashMap<u64, (u64, u64)> = HashMap::new();
                loop {
                    let mut found = Vec::new();
                    let reap = channel.reap(Duration::from_micros(20), &mut found);
                    if tokio::time::timeout(Duration::from_millis(200), reap).await.is_err()
                        && ended.load(Ordering::Acquire)
                    {
                        return told;
                    }
                    for completion in found {
                        let counts = told.entry(completion.context).or_default();
                        match completion.status {
                            Status::Success => counts.0 += 1,
                            Status::Flushed | Status::RetryExceeded => counts.1 += 1,
                            other => panic!("{other}"),
                        }
                    }
                }
            }
        });
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (a, b) = (&a, &b);
                scope.spawn(move || work(a, b, thread));
            }
        });
        ended.store(true, Ordering::Release);
        let told = runtime.block_on(reaper).unwrap();
        assert_eq!(u64::try_from(told.len()).unwrap(), THREADS * ROUNDS);
        for (name, (succeeded, failed)) in told {
            // An unsignalled request is told of if it failed; so at most what was posted, at least what was signalled.
            let all = succeeded + failed;
            assert!(
                ((REQUESTS / 3)..=REQUESTS).contains(&all),
                "{name}: {succeeded} succeeded, {failed} failed"
            );
            assert!(succeeded <= REQUESTS / 3, "{name}: a silent request was told of");
            if (name % ROUNDS).is_multiple_of(2) {
                assert_eq!((succeeded, failed), (REQUESTS / 3, 0), "{name}: it was waited for");
            }
        }
    }
    drop(runtime);
    assert_eq!(counted(&names), before);
    assert_eq!(failed_releases(), FailedReleases::default());
}

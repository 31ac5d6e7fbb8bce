//! Deadlines, cancellation and closing.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::{Fixture, SESSION, assert_done, eventually, export, local, one, pattern, read, soon, write};
use crate::engine::{Submission, TransferError};
use crate::exports::Rights;
use crate::memory::{Memory, Slice};

/// The memory's last reference is the caller's.
fn is_let_go(slice: &Slice) -> bool {
    Arc::strong_count(slice.memory()) == 1
}

/// How many submissions are begun for those that are to be met under way: the engine's own threads may have carried out
/// a whole one before the thread that began it runs again.
const ATTEMPTS_MAX: usize = 1_000;

/// Whether the submission is still under way after it was polled once.
fn is_under_way(submission: &mut Submission) -> bool {
    Pin::new(submission)
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending()
}

/// However a submission ends, its memory belongs to the caller alone when it has: the last slice turns into bytes
/// without a copy.
pub async fn nothing_is_held_once_a_submission_has_ended(fixture: &impl Fixture) {
    let bytes = pattern(3 << 20, 7);
    let (_owner, key) = export(fixture, bytes.clone(), Rights::Read);
    let connection = fixture.connect(SESSION).await;
    for deadline in [soon(), Instant::now(), Instant::now() + Duration::from_micros(300)] {
        let into = local(vec![0; 3 << 20]);
        let results = connection.submit(vec![read(key, 0, &into)], deadline).await;
        assert!(is_let_go(&into), "after {results:?}");
        match &results[0] {
            Ok(_) => assert!(into.into_bytes().expect("nobody else has it") == bytes),
            Err(error) => assert!(
                matches!(error, TransferError::Deadline { len_bytes, .. } if *len_bytes == 3 << 20),
                "{error}"
            ),
        }
    }
    let into = local(vec![0; 100]);
    assert_done(&one(&connection, read(key, 0, &into)).await, &bytes[..100]);
}

/// Dropping a submission that has begun gives its memory back before the drop returns, and the connection goes on.
pub async fn a_dropped_submission_lets_go_of_its_memory_at_once(fixture: &impl Fixture) {
    let bytes = pattern(8 << 20, 8);
    let (_owner, key) = export(fixture, bytes.clone(), Rights::Read);
    let (sink, sink_key) = export(fixture, vec![0; 8 << 20], Rights::Write);
    let connection = fixture.connect(SESSION).await;
    let mut round = 0;
    for _ in 0..ATTEMPTS_MAX {
        let into = local(vec![0; 8 << 20]);
        let from = local(bytes.clone());
        let mut submission = connection.submit(vec![read(key, 0, &into), write(sink_key, 0, &from)], soon());
        if !is_under_way(&mut submission) {
            continue;
        }
        tokio::time::sleep(Duration::from_micros(200 * round)).await;
        drop(submission);
        let is_free = || is_let_go(&into) && is_let_go(&from);
        if connection.guards_reads() {
            assert!(is_free());
        } else {
            eventually("the device has flushed", is_free).await;
        }
        let seen = into.to_vec();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(into.to_vec() == seen, "nothing lands after the drop");
        round += 1;
        if round == 10 {
            break;
        }
    }
    assert_eq!(round, 10, "submissions of 16 MiB that were under way");
    let unpolled = local(vec![0; 100]);
    drop(connection.submit(vec![read(key, 0, &unpolled)], soon()));
    assert!(is_let_go(&unpolled));
    assert_done(&one(&connection, read(key, 0, &unpolled)).await, &bytes[..100]);
    // Bytes of the dropped writes may still be on their way. Revoking keeps them out, but for what a device was told
    // to write before.
    fixture.exports().revoke(sink_key);
    let deadline = soon();
    loop {
        sink.copy_in(0, &vec![9; 8 << 20]).expect("it fits");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let is_untouched = sink.to_vec().iter().all(|byte| *byte == 9);
        let may_land = !connection.guards_reads() && Instant::now() < deadline;
        assert!(is_untouched || may_land, "no byte lands after the export was revoked");
        if is_untouched {
            break;
        }
    }
}

/// Closing ends what is under way and what comes later, at once.
pub async fn a_closed_connection_fails_everything_at_once(fixture: &impl Fixture) {
    let (_owner, key) = export(fixture, vec![1; 64 << 20], Rights::Read);
    let connection = fixture.connect(SESSION).await;
    assert!(!connection.is_closed());
    let into = Arc::new(Memory::anonymous(64 << 20).expect("there is memory")).whole();
    let under_way = (0..ATTEMPTS_MAX)
        .map(|_| connection.submit(vec![read(key, 0, &into)], soon()))
        .find_map(|mut submission| is_under_way(&mut submission).then_some(submission))
        .expect("a read of 64 MiB that is under way");
    connection.close();
    assert!(connection.is_closed());
    let begun = Instant::now();
    let results = under_way.await;
    assert!(
        matches!(results[0], Err(TransferError::Disconnected { .. })),
        "{results:?}"
    );
    let later = one(&connection, read(key, 0, &into)).await;
    assert!(matches!(later, Err(TransferError::Disconnected { .. })), "{later:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "at once");
    eventually("the memory is let go", || is_let_go(&into)).await;
    let other = fixture.connect(SESSION).await;
    assert_done(&one(&other, read(key, 0, &local(vec![0; 10]))).await, &[1; 10]);
}

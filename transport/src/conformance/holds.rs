//! The owner holds what is being read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Fixture, SESSION, assert_done, eventually, export_guarded, local, one, pattern, read, soon, write};
use crate::engine::{Transfer, TransferError};
use crate::exports::{Guard, Hold, Refused, Rights};

/// Counts holds, and stamps them with what the offset says or with their number.
#[derive(Default)]
struct Counter {
    begun: AtomicUsize,
    released: Arc<AtomicUsize>,
    /// Holds that had begun when the first was released.
    begun_at_first_release: Arc<AtomicUsize>,
    stamp_by_number: bool,
    wrote: AtomicU64,
}

impl Counter {
    fn hold(&self, offset_bytes: u64) -> Hold {
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // What is seen at the first release is what had begun by then: later ones overwrite nothing.
        if self.released.load(Ordering::SeqCst) == 0 {
            self.begun_at_first_release.store(number, Ordering::SeqCst);
        }
        let released = Arc::clone(&self.released);
        let stamp = if self.stamp_by_number {
            number as u64
        } else {
            offset_bytes / 1_000
        };
        Hold::with_release(stamp, move || _ = released.fetch_add(1, Ordering::SeqCst))
    }
}

impl Guard for Counter {
    fn begin_read(&self, offset_bytes: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.hold(offset_bytes))
    }

    fn begin_write(&self, offset_bytes: u64, _: u64) -> Result<Hold, Refused> {
        Ok(self.hold(offset_bytes))
    }

    fn wrote(&self, _: u64, len_bytes: u64, _: u64) {
        self.wrote.fetch_add(len_bytes, Ordering::SeqCst);
    }
}

/// A payload and the line that describes it are read under both holds at once, in any number of groups.
pub async fn holds_of_a_group_are_all_taken_before_one_is_released(fixture: &impl Fixture) {
    let bytes = pattern(5 << 20, 5);
    let connection = fixture.connect(SESSION).await;
    for group_len in [2, 17, 200] {
        let counter = Arc::new(Counter::default());
        let (_owner, key) = export_guarded(fixture, bytes.clone(), Rights::Read, counter.clone());
        let payload = local(vec![0; 4 << 20]);
        let line = local(vec![0; 64]);
        let mut batch = vec![Transfer {
            group: 9,
            ..read(key, 0, &payload)
        }];
        batch.resize(
            group_len,
            Transfer {
                group: 9,
                ..read(key, 4 << 20, &line)
            },
        );
        let results = connection.submit(batch, soon()).await;
        assert_done(&results[0], &bytes[..4 << 20]);
        assert!(results.iter().all(Result::is_ok));
        eventually("all holds are released", || {
            counter.released.load(Ordering::SeqCst) == group_len
        })
        .await;
        assert_eq!(
            counter.begun.load(Ordering::SeqCst),
            group_len,
            "one hold for each read of a group"
        );
        assert_eq!(counter.begun_at_first_release.load(Ordering::SeqCst), group_len);
    }
}

/// Stamps reach their own transfers; holds of transfers that succeed or fail are all given back.
pub async fn every_hold_is_released_and_stamps_are_exact(fixture: &impl Fixture) {
    let counter = Arc::new(Counter::default());
    let (_owner, key) = export_guarded(fixture, vec![0; 100_000], Rights::Read, counter.clone());
    let writes = Arc::new(Counter::default());
    let (_sink, sink_key) = export_guarded(fixture, vec![0; 100_000], Rights::Write, writes.clone());
    let connection = fixture.connect(SESSION).await;
    assert!(connection.guards_reads(), "this check is for engines that guard");
    let into = local(vec![0; 1_000]);
    let batch: Vec<Transfer> = (0..100).map(|i| read(key, i * 1_000, &into.clone())).collect();
    let results = connection.submit(batch, soon()).await;
    for (i, result) in (0..).zip(&results) {
        assert_eq!(
            result.as_ref().map(|done| done.stamp),
            Ok(Some(i)),
            "the stamp of read {i}"
        );
    }
    eventually("all holds are released", || {
        counter.released.load(Ordering::SeqCst) == 100
    })
    .await;
    let result = one(&connection, write(sink_key, 0, &into)).await;
    assert_eq!(result.map(|done| done.stamp), Ok(None), "writes carry no stamp");
    eventually("all holds are released", || writes.released.load(Ordering::SeqCst) == 1).await;
    assert_eq!(writes.wrote.load(Ordering::SeqCst), 1_000);
}

/// A large read of a range that changes its stamp on the way is not taken for whole.
pub async fn a_read_whose_parts_carry_different_stamps_is_torn(fixture: &impl Fixture) {
    let counter = Arc::new(Counter {
        stamp_by_number: true,
        ..Counter::default()
    });
    let (_owner, key) = export_guarded(fixture, vec![0; 6 << 20], Rights::Read, counter.clone());
    let connection = fixture.connect(SESSION).await;
    let into = local(vec![0; 6 << 20]);
    let result = one(&connection, read(key, 0, &into)).await;
    assert!(matches!(result, Err(TransferError::Torn { .. })), "{result:?}");
    let grouped = one(
        &connection,
        Transfer {
            group: 1,
            ..read(key, 0, &into)
        },
    )
    .await;
    assert!(grouped.is_ok(), "a grouped read has one hold: {grouped:?}");
}

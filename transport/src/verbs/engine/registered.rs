//! Memory that is registered with a device as a whole: in parts, which are registered beside each other and whose progress is seen.
//!
//! The region of each part reaches [`VERBS_READ_BYTES_MAX`] into the next one. What one request moves is no longer than that, so it lies in the region of the
//! part that it begins in, and nothing is ever cut where one part ends.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::message::Named;
use super::plan::sub;
use super::rail::Rail;
use crate::limits::{VERBS_READ_BYTES_MAX, VERBS_REGIONS_MAX, VERBS_REGISTER_THREADS_MAX};
use crate::memory::{Memory, Slice};
use crate::verbs::{Access, MemoryRegion, VerbsError};

/// The regions of some memory with one device, by the parts that they are of.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    all: Arc<[Arc<MemoryRegion>]>,
    /// Length of all parts but the last.
    part_bytes: u64,
}

impl Regions {
    /// One region, of a slice that is registered alone.
    pub(super) fn alone(region: Arc<MemoryRegion>) -> Self {
        Self {
            all: Arc::new([region]),
            part_bytes: u64::MAX,
        }
    }

    /// The region that a slice lies in.
    pub(super) fn of(&self, slice: &Slice) -> Option<&Arc<MemoryRegion>> {
        let number = usize::try_from(slice.offset_bytes() / self.part_bytes).ok()?;
        let region = self.all.get(number)?;
        (slice.range().end <= region.slice().range().end).then_some(region)
    }

    /// How a peer names an export on a path.
    pub(super) fn named(&self, path: u8, export: &Slice) -> Option<Named> {
        let regions = self.all.get(parts(export.range(), self.part_bytes)?)?;
        let start = regions[0].address() - regions[0].slice().offset_bytes();
        Some(Named {
            path,
            address: start + export.offset_bytes(),
            first_bytes: self.part_bytes - export.offset_bytes() % self.part_bytes,
            part_bytes: self.part_bytes,
            keys: regions.iter().map(|region| region.key()).collect(),
        })
    }
}

/// The numbers of the parts that a range begins, lies and ends in.
fn parts(range: Range<u64>, part_bytes: u64) -> Option<RangeInclusive<usize>> {
    let number = |offset_bytes: u64| usize::try_from(offset_bytes / part_bytes).ok();
    Some(number(range.start)?..=number(range.end.checked_sub(1)?)?)
}

/// A part that is to be registered with a rail.
struct Job<'a> {
    rail: usize,
    part: Slice,
    /// Rails with which the part is to be registered yet.
    left: &'a AtomicUsize,
    /// Without what reaches into the next part.
    len_bytes: u64,
}

/// Registers a memory with each rail whose device is there. `done` gets the bytes of each part that all have. When one cannot be registered, none is.
pub(super) fn register(
    rails: &[Arc<Rail>],
    memory: &Arc<Memory>,
    part_bytes: u64,
    done: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Option<Regions>>, VerbsError> {
    let len_bytes = memory.len_bytes();
    let part_bytes = part_bytes.max(len_bytes.div_ceil(VERBS_REGIONS_MAX as u64)).max(1);
    let starts: Vec<u64> = (0..len_bytes.div_ceil(part_bytes))
        .map(|number| number * part_bytes)
        .collect();
    let left: Vec<AtomicUsize> = starts.iter().map(|_| AtomicUsize::new(rails.len())).collect();
    let whole = memory.whole();
    let jobs = starts.iter().zip(&left).flat_map(|(start, left)| {
        let end = len_bytes.min(start + part_bytes);
        let part = sub(&whole, *start..len_bytes.min(end + VERBS_READ_BYTES_MAX));
        (0..rails.len()).map(move |rail| Job {
            rail,
            part: part.clone(),
            left,
            len_bytes: end - start,
        })
    });
    let jobs: Vec<Job<'_>> = jobs.collect();
    let made = carry_out(&jobs, |job| {
        let region = match rails[job.rail].opened() {
            Ok(opened) => {
                let access = Access::LOCAL_WRITE | Access::REMOTE_READ | rails[job.rail].for_windows();
                Some(MemoryRegion::register(&opened.domain, job.part.clone(), access)?)
            }
            Err(_) => None,
        };
        if job.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            done(job.len_bytes);
        }
        Ok(region)
    })?;
    let of_rail = |rail: usize| {
        // A device that went in between has some, and is let go of as if it had none.
        let all: Option<Vec<_>> = made.iter().skip(rail).step_by(rails.len()).cloned().collect();
        let all = all?.into();
        Some(Regions { all, part_bytes })
    };
    Ok((0..rails.len()).map(of_rail).collect())
}

/// Does jobs that block, a bounded number at once: what came of each, or the first failure, after which no other is begun.
fn carry_out<J: Sync, T: Send>(
    jobs: &[J],
    work: impl Fn(&J) -> Result<T, VerbsError> + Sync,
) -> Result<Vec<T>, VerbsError> {
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let ended: Vec<Mutex<Option<Result<T, VerbsError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let one_after_another = || {
        while !has_failed.load(Ordering::Relaxed)
            && let Some((job, end)) = jobs.iter().zip(&ended).nth(next.fetch_add(1, Ordering::Relaxed))
        {
            let made = work(job);
            has_failed.fetch_or(made.is_err(), Ordering::Relaxed);
            *end.lock() = Some(made);
        }
    };
    std::thread::scope(|scope| {
        // This thread is one of them.
        for _ in 1..jobs.len().min(VERBS_REGISTER_THREADS_MAX) {
            scope.spawn(one_after_another);
        }
        one_after_another();
    });
    let (mut all, mut failure) = (Vec::with_capacity(jobs.len()), None);
    for end in ended {
        match end.into_inner() {
            Some(Ok(made)) => all.push(made),
            Some(Err(error)) => _ = failure.get_or_insert(error),
            // Not begun after a failure.
            None => {}
        }
    }
    match failure {
        Some(error) => Err(error),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verbs::RegionKey;

    proptest! {
        /// The model: part `n` has key `n` and one region, from its first byte on up to the longest read beyond its last.
        #[test]
        fn what_one_request_moves_lies_in_the_region_that_it_is_named_by(
            part_bytes in 1..3 * VERBS_READ_BYTES_MAX,
            start in 0..9 * VERBS_READ_BYTES_MAX,
            len in 1..9 * VERBS_READ_BYTES_MAX,
            at in any::<prop::sample::Index>(),
            moved in 1..=VERBS_READ_BYTES_MAX,
        ) {
            let numbers = parts(start..start + len, part_bytes).unwrap();
            let named = Named {
                path: 0,
                address: 1 << 40,
                first_bytes: part_bytes - start % part_bytes,
                part_bytes,
                keys: numbers.map(|number| RegionKey(u32::try_from(number).unwrap())).collect(),
            };
            let offset = at.index(usize::try_from(len).unwrap()) as u64;
            let moved = moved.min(len - offset);
            let found = named.at(offset).unwrap();
            prop_assert_eq!(found.address, (1 << 40) + offset);
            let part = u64::from(found.key.0);
            let region = part * part_bytes..(part + 1) * part_bytes + VERBS_READ_BYTES_MAX;
            let range = start + offset..start + offset + moved;
            prop_assert!(region.start <= range.start && range.end <= region.end);
        }
    }

    #[test]
    fn after_a_failure_no_job_is_begun_and_what_was_made_is_let_go() {
        let made = Arc::new(());
        let jobs: Vec<usize> = (0..1_000).collect();
        let failed = carry_out(&jobs, |job| match job {
            20 => Err(VerbsError::Gone {
                port: "a port".to_owned(),
            }),
            _ => Ok(Arc::clone(&made)),
        });
        assert!(matches!(failed, Err(VerbsError::Gone { .. })));
        assert_eq!(Arc::strong_count(&made), 1);
        let all = carry_out(&jobs, |job| Ok(*job)).unwrap();
        assert_eq!(all, jobs);
    }
}

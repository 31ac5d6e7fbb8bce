//! Segments that take nothing any more, until they are gone.

use super::{Leaving, gone};
use crate::limits::{CROWDED_PATIENCE, GRACEFUL_MS_MAX, RELEASE_PATIENCE, TICK_EVERY};
use crate::node::Node;
use crate::segments::MountedSegment;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::SegmentId;
use tenon_protocol::segments::{DrainProgress, SegmentInfo};
use tenon_store_core::objects::{SegmentUsers, UnmountError};
use tokio::time::{Instant, sleep, timeout, timeout_at};

impl Node {
    /// From now on a segment takes nothing. What is there stays.
    ///
    /// # Errors
    /// `unknown_segment`; `conflict` while it is being mounted.
    pub(crate) fn drain_segment(self: &Arc<Self>, segment: SegmentId) -> Result<SegmentInfo, ServiceError> {
        self.begin_leaving(segment, None)?;
        self.segment_info(segment)
    }

    /// Unmounts a segment, at once or when nobody uses it any more, but within a bound. Answers when it is gone, or says how far it is by the deadline and
    /// goes on.
    ///
    /// # Errors
    /// As [`Self::drain_segment`]; `pinned_objects` if pinned objects would be lost and that is not forced; `invalid_argument` for an impossible bound.
    pub(crate) async fn unmount_segment(
        self: &Arc<Self>,
        segment: SegmentId,
        (graceful_ms, force): (u64, bool),
        deadline: Instant,
    ) -> Result<SegmentInfo, ServiceError> {
        if graceful_ms > GRACEFUL_MS_MAX {
            let message = format!("graceful_ms is {graceful_ms}: 0 to {GRACEFUL_MS_MAX} are allowed");
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        let pinned = self.holder().users(segment).map_or(0, |users| users.pins.hard.objects);
        if pinned > 0 && !force {
            let message = format!(
                "segment {segment} holds {pinned} pinned objects, which would be lost: unpin, remove or drain them, or force it"
            );
            return Err(ServiceError::new(ErrorCode::PinnedObjects, message));
        }
        let leaving = self.begin_leaving(segment, Some(Instant::now() + Duration::from_millis(graceful_ms)))?;
        let mut is_gone = leaving.gone.subscribe();
        // It goes on whether or not anybody waits.
        let _ = timeout_at(deadline, is_gone.wait_for(|is_gone| *is_gone)).await;
        self.segment_info(segment)
    }

    fn begin_leaving(
        self: &Arc<Self>,
        segment: SegmentId,
        until: Option<Instant>,
    ) -> Result<Arc<Leaving>, ServiceError> {
        let _one_at_a_time = self.lives().one_at_a_time();
        if self.lives().mounting().iter().any(|(id, _)| *id == segment) {
            let message = format!("segment {segment} is being mounted; ask again when it is active");
            return Err(ServiceError::new(ErrorCode::Conflict, message));
        }
        self.holder().drain(segment)?;
        let mounted = self.holder().segments().get(segment);
        let mounted = mounted.ok_or_else(|| ServiceError::from(UnmountError::Unknown { segment }))?;
        let (leaving, is_new) = self.lives().leave(segment, mounted.source());
        if let Some(until) = until {
            leaving.hurry(until);
        }
        if is_new {
            tracing::info!(%segment, "a segment takes nothing any more");
            let (node, leaving) = (Arc::clone(self), Arc::clone(&leaving));
            tokio::spawn(async move { node.leave(segment, &leaving).await });
            self.room_changed();
        }
        Ok(leaving)
    }

    /// Moves what a draining segment holds to other nodes, until it is to be unmounted and nobody uses it and nothing moves any more, or its time is over; and unmounts it.
    async fn leave(self: &Arc<Self>, segment: SegmentId, leaving: &Arc<Leaving>) {
        let mut until = leaving.until.subscribe();
        // What is unmounted at once moves nothing.
        let may_move = until.borrow().is_none_or(|by| by > Instant::now());
        let moving = may_move.then(|| tokio::spawn(Arc::clone(self).move_away(segment, Arc::clone(leaving))));
        loop {
            let by = *until.borrow_and_update();
            let users = self.holder().users(segment).unwrap_or_default();
            match by {
                Some(_) if is_done(&users, leaving) => break,
                Some(by) if by <= Instant::now() => {
                    let (puts, transfers) = (users.puts, users.transfers);
                    tracing::info!(%segment, puts, transfers, "a segment is unmounted though it is used");
                    break;
                }
                Some(_) => _ = timeout(TICK_EVERY, until.changed()).await,
                // Its sender lives as long as this does.
                None => _ = until.changed().await,
            }
        }
        // What is being moved stays, until it is dropped.
        if let Some(moving) = moving {
            moving.abort();
            let _ = moving.await;
        }
        if let Some(mounted) = self.holder().segments().get(segment) {
            self.empty(&mounted, leaving).await;
            self.give_back(mounted, leaving).await;
        }
    }

    /// Drops what a segment holds, and waits for what ends by itself.
    async fn empty(self: &Arc<Self>, mounted: &Arc<MountedSegment>, leaving: &Leaving) {
        let segment = mounted.id();
        let mut is_first = true;
        let patience = Instant::now() + CROWDED_PATIENCE;
        loop {
            let mut next_bytes = Some(0);
            while let Some(from_bytes) = next_bytes {
                let dropped = self.holder().drop_some(segment, from_bytes);
                next_bytes = dropped.next_bytes;
                leaving.dropped(dropped);
                self.report_evictions();
                while self.untold_evictions().is_crowded() && Instant::now() < patience {
                    sleep(TICK_EVERY).await;
                }
                tokio::task::yield_now().await;
            }
            if std::mem::take(&mut is_first) {
                // What is read from now on was located before: its reader learns that it is gone.
                self.holder().segments().close(mounted);
            }
            if self.holder().unmount(segment) {
                return;
            }
            sleep(TICK_EVERY).await;
        }
    }

    /// Gives the memory of an unmounted segment back to the system, once nobody has it.
    async fn give_back(self: &Arc<Self>, mounted: Arc<MountedSegment>, leaving: &Leaving) {
        let segment = mounted.id();
        let info = SegmentInfo {
            draining: Some(DrainProgress {
                left_objects: 0,
                ..*leaving.done.lock()
            }),
            ..gone(self.id(), segment, mounted.source())
        };
        let releasing = tokio::task::spawn_blocking(move || release(mounted));
        if let Err(error) = releasing.await {
            tracing::error!(%segment, %error, "the memory of a segment was not given back");
        }
        let dropped_objects = leaving.done.lock().dropped_objects;
        tracing::info!(%segment, dropped_objects, "a segment is gone");
        self.metrics().segment_unmounted();
        self.lives().gone(info);
        self.room_changed();
        leaving.gone.send_replace(true);
    }

    /// Takes nothing from now on, moves what this node holds to others as far as they have room, and lets puts and transfers end; comes back when all that is done or does
    /// not go on, or by the deadline. Says what is lost with the node.
    pub async fn leave_cluster(self: &Arc<Self>, deadline: Instant) {
        self.drain();
        let mounted = self.holder().segments().all();
        let leaving: Vec<(SegmentId, Arc<Leaving>)> = mounted
            .iter()
            .filter_map(|segment| Some((segment.id(), self.begin_leaving(segment.id(), None).ok()?)))
            .collect();
        let is_done = |(segment, leaving): &(SegmentId, Arc<Leaving>)| {
            let users = self.holder().users(*segment);
            users.is_none_or(|users| is_done(&users, leaving))
        };
        while !leaving.iter().all(is_done) && Instant::now() < deadline {
            sleep(TICK_EVERY).await;
        }
        let progress = leaving.iter().filter_map(|(segment, _)| self.drain_progress(*segment));
        let sum = progress.fold(DrainProgress::default(), |mut sum, one| {
            sum.moved_objects += one.moved_objects;
            sum.left_objects += one.left_objects;
            sum.left_bytes += one.left_bytes;
            sum.no_room_objects += one.no_room_objects;
            sum
        });
        let (moved, left, left_bytes) = (sum.moved_objects, sum.left_objects, sum.left_bytes);
        let no_room = sum.no_room_objects;
        tracing::info!(moved, left, left_bytes, no_room, "leaving: what is left is lost");
    }

    /// How far a node that leaves is, in words.
    pub fn draining_text(&self) -> String {
        let mounted = self.holder().segments().all();
        let progress = mounted.iter().filter_map(|segment| self.drain_progress(segment.id()));
        let (moved, left) = progress.fold((0, 0), |(moved, left), one| {
            (moved + one.moved_objects, left + one.left_objects)
        });
        format!("leaving: {moved} objects moved to other nodes, {left} left")
    }

    /// How far the draining of a segment is.
    pub(crate) fn drain_progress(&self, segment: SegmentId) -> Option<DrainProgress> {
        let leaving = self.lives().leaving(segment)?;
        let users = self.holder().users(segment).unwrap_or_default();
        let pins = users.pins;
        let in_ms = |until: Instant| {
            let left = until.saturating_duration_since(Instant::now());
            u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
        };
        let unmounted_in_ms = leaving.until.borrow().map(in_ms);
        let done = *leaving.done.lock();
        Some(DrainProgress {
            left_objects: pins.evictable.objects + pins.soft.objects + pins.hard.objects,
            left_bytes: pins.evictable.bytes + pins.soft.bytes + pins.hard.bytes,
            pinned_objects: pins.hard.objects,
            puts: users.puts,
            transfers: users.transfers,
            unmounted_in_ms,
            ..done
        })
    }
}

/// Nobody uses the segment, and nothing moves any more.
fn is_done(users: &SegmentUsers, leaving: &Leaving) -> bool {
    let pins = users.pins;
    let left = pins.evictable.objects + pins.soft.objects + pins.hard.objects;
    users.puts == 0 && users.transfers == 0 && (left == 0 || *leaving.is_stuck.borrow())
}

/// Waits until nobody else has a segment, then until nobody has its memory. Takes as long as unmapping does.
fn release(mut mounted: Arc<MountedSegment>) {
    let (segment, until) = (mounted.id(), Instant::now() + RELEASE_PATIENCE);
    let is_late = || Instant::now() >= until;
    let memory = loop {
        match Arc::try_unwrap(mounted) {
            Ok(alone) => break alone.into_memory(),
            Err(shared) => mounted = shared,
        }
        if is_late() {
            tracing::warn!(%segment, "somebody still has a segment that was unmounted; its memory goes when they let go of it");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let watched = memory.watch();
    drop(memory);
    while watched.strong_count() > 0 {
        if is_late() {
            tracing::warn!(%segment, "a transfer still has memory of a segment that was unmounted; it goes when it ends");
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

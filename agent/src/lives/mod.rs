//! Segments that come and go: mounting, and draining until they are gone. Those in between are the holder's.
//!
//! Memory that was contributed goes back to the system when nothing can touch it any more: its regions are over, its exports are revoked, and peers that
//! knew where it lies for their devices have been cut off from it.

mod leave;
mod mount;

use crate::limits::GONE_SEGMENTS_KEPT_MAX;
use crate::segments::{SegmentMemory, SegmentSource};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::message::SpaceAccount;
use tenon_protocol::segments::{DrainProgress, MountProgress, SegmentInfo, SegmentState};
use tenon_store_core::objects::Dropped;
use tokio::sync::watch;
use tokio::time::Instant;

/// A segment whose memory is being made ready.
#[derive(Debug)]
pub(crate) struct Mounting {
    pub(crate) source: SegmentSource,
    prefaulted_bytes: AtomicU64,
    to_register_bytes: AtomicU64,
    registered_bytes: AtomicU64,
}

impl Mounting {
    fn new(source: SegmentSource) -> Arc<Self> {
        Arc::new(Self {
            source,
            prefaulted_bytes: AtomicU64::new(0),
            to_register_bytes: AtomicU64::new(0),
            registered_bytes: AtomicU64::new(0),
        })
    }

    /// So many payload bytes have their memory.
    pub(crate) fn prefaulted(&self, bytes: u64) {
        self.prefaulted_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// So many bytes are to be registered with devices.
    pub(crate) fn to_register(&self, bytes: u64) {
        self.to_register_bytes.store(bytes, Ordering::Relaxed);
    }

    /// So many more are.
    pub(crate) fn registered(&self, bytes: u64) {
        self.registered_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> MountProgress {
        MountProgress {
            len_bytes: self.source.len_bytes,
            prefaulted_bytes: self.prefaulted_bytes.load(Ordering::Relaxed),
            to_register_bytes: self.to_register_bytes.load(Ordering::Relaxed),
            registered_bytes: self.registered_bytes.load(Ordering::Relaxed),
        }
    }
}

/// A segment that takes nothing any more.
#[derive(Debug)]
pub(crate) struct Leaving {
    source: SegmentSource,
    /// What has become of its objects so far.
    pub(crate) done: Mutex<DrainProgress>,
    /// By when it is to be unmounted, whoever uses it; `None` while it is only drained.
    pub(crate) until: watch::Sender<Option<Instant>>,
    /// The last try moved nothing to other nodes: nothing is left, or nothing moves now.
    pub(crate) is_stuck: watch::Sender<bool>,
    /// It is gone.
    pub(crate) gone: watch::Sender<bool>,
}

impl Leaving {
    fn new(source: SegmentSource) -> Arc<Self> {
        Arc::new(Self {
            source,
            done: Mutex::default(),
            until: watch::Sender::new(None),
            is_stuck: watch::Sender::new(false),
            gone: watch::Sender::new(false),
        })
    }

    /// An object is held elsewhere and not here any more.
    pub(crate) fn moved(&self, len_bytes: u64) {
        let mut done = self.done.lock();
        done.moved_objects += 1;
        done.moved_bytes += len_bytes;
    }

    /// For so many objects there was no room elsewhere when they were last tried.
    pub(crate) fn without_room(&self, objects: u64, bytes: u64) {
        let mut done = self.done.lock();
        (done.no_room_objects, done.no_room_bytes) = (objects, bytes);
    }

    fn dropped(&self, dropped: Dropped) {
        let mut done = self.done.lock();
        done.dropped_objects += dropped.objects;
        done.dropped_bytes += dropped.bytes;
    }

    /// It is to be unmounted by then, or sooner if that was said before.
    fn hurry(&self, until: Instant) {
        self.until
            .send_modify(|known| *known = Some(known.map_or(until, |known| known.min(until))));
    }
}

/// Memory that is ready to be used, or to be registered first.
pub(crate) type Mapped = (SegmentId, SegmentMemory, Arc<Mounting>);

/// Where a segment is that the holder does not simply use.
#[derive(Debug, Clone)]
enum Life {
    Mounting(Arc<Mounting>),
    Leaving(Arc<Leaving>),
    Gone(Box<SegmentInfo>),
}

/// The segments of this node that are not simply in use, by id.
#[derive(Debug, Default)]
pub struct Lives {
    known: Mutex<BTreeMap<SegmentId, Life>>,
    changing: Mutex<()>,
}

impl Lives {
    /// To be held while it is decided whether a segment comes or goes.
    fn one_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// A segment is being mounted.
    pub(crate) fn begin(&self, segment: SegmentId, source: SegmentSource) -> Arc<Mounting> {
        let mounting = Mounting::new(source);
        self.known.lock().insert(segment, Life::Mounting(Arc::clone(&mounting)));
        mounting
    }

    /// Its memory is in use.
    pub(crate) fn mounted(&self, segment: SegmentId) {
        self.known.lock().remove(&segment);
    }

    /// It takes nothing any more. Answers what is known of that, and whether it is news.
    fn leave(&self, segment: SegmentId, source: &SegmentSource) -> (Arc<Leaving>, bool) {
        let mut lives = self.known.lock();
        if let Some(Life::Leaving(leaving)) = lives.get(&segment) {
            return (Arc::clone(leaving), false);
        }
        let leaving = Leaving::new(source.clone());
        lives.insert(segment, Life::Leaving(Arc::clone(&leaving)));
        (leaving, true)
    }

    /// What is known of a segment that takes nothing any more.
    pub(crate) fn leaving(&self, segment: SegmentId) -> Option<Arc<Leaving>> {
        match self.known.lock().get(&segment) {
            Some(Life::Leaving(leaving)) => Some(Arc::clone(leaving)),
            _ => None,
        }
    }

    /// It is not there any more. The last ones are remembered.
    fn gone(&self, info: SegmentInfo) {
        let mut lives = self.known.lock();
        lives.insert(info.segment, Life::Gone(Box::new(info)));
        let gone = lives.iter().filter(|(_, life)| matches!(life, Life::Gone(_)));
        let gone: Vec<SegmentId> = gone.map(|(segment, _)| *segment).collect();
        for segment in gone.iter().rev().skip(GONE_SEGMENTS_KEPT_MAX) {
            lives.remove(segment);
        }
    }

    /// Those that are being mounted.
    pub(crate) fn mounting(&self) -> Vec<(SegmentId, Arc<Mounting>)> {
        let lives = self.known.lock();
        let mounting = lives.iter().filter_map(|(segment, life)| match life {
            Life::Mounting(mounting) => Some((*segment, Arc::clone(mounting))),
            Life::Leaving(_) | Life::Gone(_) => None,
        });
        mounting.collect()
    }

    /// How far mounting is, in words; `None` if nothing is being mounted.
    pub(crate) fn mounting_text(&self) -> Option<String> {
        let mounting = self.mounting();
        let sum = |of: fn(MountProgress) -> u64| mounting.iter().map(|(_, one)| of(one.progress())).sum::<u64>();
        let gib = |bytes: u64| format!("{}.{} GiB", bytes >> 30, ((bytes & ((1 << 30) - 1)) * 10) >> 30);
        (!mounting.is_empty()).then(|| {
            format!(
                "mounting {} segments: {} of {} have memory, {} of {} are registered",
                mounting.len(),
                gib(sum(|progress| progress.prefaulted_bytes)),
                gib(sum(|progress| progress.len_bytes)),
                gib(sum(|progress| progress.registered_bytes)),
                gib(sum(|progress| progress.to_register_bytes)),
            )
        })
    }

    /// Those that are being mounted, those that are gone, and those on the way there.
    pub(crate) fn infos(&self, node: NodeId) -> Vec<SegmentInfo> {
        let lives = self.known.lock();
        let infos = lives.iter().map(|(segment, life)| match life {
            Life::Mounting(mounting) => being_mounted(node, *segment, mounting),
            Life::Gone(info) => (**info).clone(),
            // If the holder has it still, it knows more.
            Life::Leaving(leaving) => SegmentInfo {
                state: SegmentState::Draining,
                draining: Some(*leaving.done.lock()),
                ..gone(node, *segment, &leaving.source)
            },
        });
        infos.collect()
    }
}

fn being_mounted(node: NodeId, segment: SegmentId, mounting: &Mounting) -> SegmentInfo {
    let len_bytes = mounting.source.len_bytes;
    SegmentInfo {
        node,
        segment,
        backing: mounting.source.backing.to_string(),
        page_bytes: 0,
        state: SegmentState::Mounting,
        space: SpaceAccount::default(),
        slots: mounting.source.slots,
        slots_used: 0,
        mounting: Some(MountProgress {
            len_bytes,
            ..mounting.progress()
        }),
        draining: None,
        failure: None,
    }
}

/// A segment that is gone.
fn gone(node: NodeId, segment: SegmentId, source: &SegmentSource) -> SegmentInfo {
    SegmentInfo {
        node,
        segment,
        backing: source.backing.to_string(),
        page_bytes: 0,
        state: SegmentState::Gone,
        space: SpaceAccount::default(),
        slots: source.slots,
        slots_used: 0,
        mounting: None,
        draining: None,
        failure: None,
    }
}

/// Maps a segment's memory and gives every page of it memory now, off the runtime's workers.
pub(crate) async fn map(
    segment: SegmentId,
    mounting: &Arc<Mounting>,
) -> Result<Result<SegmentMemory, crate::segments::SegmentError>, tokio::task::JoinError> {
    let mounting = Arc::clone(mounting);
    tokio::task::spawn_blocking(move || {
        let logged = mount::progress_log(segment);
        let progress = |bytes| {
            mounting.prefaulted(bytes);
            logged(bytes);
        };
        SegmentMemory::map(segment, mounting.source.clone(), &progress)
    })
    .await
}

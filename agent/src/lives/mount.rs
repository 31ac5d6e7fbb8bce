//! Segments that are mounted at run time.

use super::{Mounting, map};
use crate::config::default_slots;
use crate::limits::{MOUNTS_AT_ONCE_MAX, SEGMENT_LEN_BYTES_MIN, SLOTS_MAX};
use crate::node::Node;
use crate::segments::{Backing, SegmentError, SegmentMemory, SegmentSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::SegmentId;
use tenon_protocol::segments::{HugePageUse, MountSpec, SegmentInfo};
use tenon_protocol::table::TableLayout;
use tenon_transport::{HugePages, MemoryError};
use tokio::time::{Instant, timeout_at};

/// What the host has, as far as a segment depends on it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    /// An ordinary page.
    pub(crate) page_bytes: u64,
    /// A huge page, if there are any.
    pub(crate) huge_page_bytes: Option<u64>,
    /// What programs may still take; `None` if that is not known.
    pub(crate) available_bytes: Option<u64>,
}

impl Host {
    fn probe() -> Self {
        let host = crate::config::Host::probe();
        Self {
            page_bytes: host.page_bytes,
            huge_page_bytes: host.huge_page_bytes,
            available_bytes: crate::config::available_bytes(),
        }
    }
}

fn invalid(message: String) -> ServiceError {
    ServiceError::new(ErrorCode::InvalidArgument, message)
}

/// What a segment is to be made of, if it can be. `taken` are the bytes that others are about to take.
///
/// # Errors
/// What is wrong, and by which numbers.
pub(crate) fn check(spec: &MountSpec, host: Host, taken_bytes: u64) -> Result<SegmentSource, ServiceError> {
    let MountSpec {
        len_bytes,
        slots,
        huge_pages,
        file,
    } = spec;
    let len_bytes = *len_bytes;
    let backing = match (file, huge_pages) {
        (Some(_), Some(_)) => {
            return Err(invalid(
                "a file's pages are those of its file system: huge_pages does not go with it".into(),
            ));
        }
        (Some(file), None) if !Path::new(file).is_absolute() => {
            return Err(invalid(format!("the path {file:?} is not absolute")));
        }
        (Some(file), None) => Backing::File(PathBuf::from(file)),
        (None, huge_pages) => Backing::Memfd(match huge_pages.unwrap_or(HugePageUse::Prefer) {
            HugePageUse::Require => HugePages::Require,
            HugePageUse::Prefer => HugePages::Prefer,
            HugePageUse::Off => HugePages::Off,
        }),
    };
    let page_bytes = match backing {
        Backing::Memfd(HugePages::Require) => host.huge_page_bytes.unwrap_or(host.page_bytes),
        _ => host.page_bytes,
    };
    if len_bytes < SEGMENT_LEN_BYTES_MIN || !len_bytes.is_multiple_of(page_bytes) {
        return Err(invalid(format!(
            "a segment of {len_bytes} bytes: at least {SEGMENT_LEN_BYTES_MIN} are needed, in whole pages of {page_bytes}"
        )));
    }
    let slots = slots.unwrap_or_else(|| default_slots(len_bytes));
    if slots == 0 || slots > SLOTS_MAX {
        return Err(invalid(format!(
            "{slots} descriptor slots: 1 to {SLOTS_MAX} are allowed"
        )));
    }
    let asked_bytes = match backing {
        // These have memory of their own, which was set aside for them.
        Backing::File(_) | Backing::Memfd(HugePages::Require) => 0,
        Backing::Memfd(_) => len_bytes,
    };
    let asked_bytes = asked_bytes.saturating_add(TableLayout::new(len_bytes, slots).len_bytes());
    if let Some(available_bytes) = host.available_bytes
        && asked_bytes.saturating_add(taken_bytes) > available_bytes
    {
        let message = format!(
            "a segment of {len_bytes} bytes takes {asked_bytes} of the host's memory with its table: {available_bytes} are \
             available, and {taken_bytes} of them are about to be taken by other segments"
        );
        return Err(ServiceError::new(ErrorCode::NoMemory, message));
    }
    Ok(SegmentSource {
        len_bytes,
        slots,
        backing,
    })
}

impl From<SegmentError> for ServiceError {
    fn from(error: SegmentError) -> Self {
        let code = match &error {
            SegmentError::Memory { source, .. } => match source {
                MemoryError::File { .. } | MemoryError::FileSystem { .. } => ErrorCode::InvalidArgument,
                MemoryError::InUse { .. } => ErrorCode::Conflict,
                _ => ErrorCode::NoMemory,
            },
            SegmentError::Register { .. } => ErrorCode::NoMemory,
            SegmentError::Export { .. } => ErrorCode::Overloaded,
        };
        Self::new(code, error.to_string())
    }
}

/// Logs every eighth GiB that got its pages.
pub(super) fn progress_log(segment: SegmentId) -> impl Fn(u64) + Sync {
    let step_bytes = 8 << 30;
    let next_bytes = AtomicU64::new(step_bytes);
    move |done_bytes| {
        let next = next_bytes.load(Ordering::Relaxed);
        if done_bytes >= next
            && next_bytes
                .compare_exchange(next, next + step_bytes, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            tracing::info!(%segment, done_bytes, "mounting");
        }
    }
}

impl Node {
    /// Mounts a segment. Answers when it is in use, or says how far it is by the deadline and goes on.
    ///
    /// # Errors
    /// What is wrong with it, or why its memory cannot be had.
    pub(crate) async fn mount_segment(
        self: &Arc<Self>,
        spec: MountSpec,
        deadline: Instant,
    ) -> Result<SegmentInfo, ServiceError> {
        if self.is_draining() {
            let message = "the node is draining: it takes no further memory into use";
            return Err(ServiceError::new(ErrorCode::Draining, message));
        }
        let (segment, mounting) = self.announce_segment(&spec)?;
        tracing::info!(%segment, len_bytes = spec.len_bytes, backing = ?mounting.source.backing, "mounting a segment");
        let node = Arc::clone(self);
        let mut under_way = tokio::spawn(async move { node.make_segment(segment, &mounting).await });
        match timeout_at(deadline, &mut under_way).await {
            Ok(Ok(mounted)) => mounted?,
            Ok(Err(error)) => return Err(ServiceError::new(ErrorCode::Internal, error.to_string())),
            Err(_) => {}
        }
        self.segment_info(segment)
    }

    /// Gives a segment its id, unless too much is being mounted, or what backs it is in use.
    fn announce_segment(&self, spec: &MountSpec) -> Result<(SegmentId, Arc<Mounting>), ServiceError> {
        let _one_at_a_time = self.lives().one_at_a_time();
        let under_way = self.lives().mounting();
        if under_way.len() >= MOUNTS_AT_ONCE_MAX {
            let message = format!("{MOUNTS_AT_ONCE_MAX} segments are being mounted, more at once are not allowed");
            return Err(ServiceError::new(ErrorCode::Overloaded, message));
        }
        let missing = |(_, mounting): &(_, Arc<Mounting>)| {
            let progress = mounting.progress();
            progress.len_bytes - progress.prefaulted_bytes.min(progress.len_bytes)
        };
        let source = check(spec, Host::probe(), under_way.iter().map(missing).sum())?;
        let in_use = self.holder().segments().all().into_iter();
        let in_use = in_use.map(|segment| (segment.id(), segment.source().backing.clone()));
        let coming = under_way
            .into_iter()
            .map(|(id, mounting)| (id, mounting.source.backing.clone()));
        if let Backing::File(path) = &source.backing
            && let Some((id, _)) = in_use.chain(coming).find(|(_, backing)| *backing == source.backing)
        {
            let message = format!("the file {} backs segment {id}", path.display());
            return Err(ServiceError::new(ErrorCode::Conflict, message));
        }
        let segment = self.holder().new_segment_id()?;
        Ok((segment, self.lives().begin(segment, source)))
    }

    async fn make_segment(self: &Arc<Self>, segment: SegmentId, mounting: &Arc<Mounting>) -> Result<(), ServiceError> {
        let begun = Instant::now();
        let made = self.take_into_use(segment, mounting).await;
        match &made {
            Ok(()) => {
                let took_ms = begun.elapsed().as_millis();
                tracing::info!(%segment, len_bytes = mounting.source.len_bytes, took_ms, "a segment is mounted");
                self.lives().mounted(segment);
                self.metrics().segment_mounted();
                self.room_changed();
            }
            Err(error) => {
                tracing::error!(%segment, %error, "a segment was not mounted");
                self.metrics().segment_mount_failed();
                self.lives().gone(SegmentInfo {
                    failure: Some(error.to_string()),
                    ..super::gone(self.id(), segment, &mounting.source)
                });
            }
        }
        made
    }

    async fn take_into_use(&self, segment: SegmentId, mounting: &Arc<Mounting>) -> Result<(), ServiceError> {
        let failed = |error: tokio::task::JoinError| ServiceError::new(ErrorCode::Internal, error.to_string());
        let mut memory = map(segment, mounting).await.map_err(failed)??;
        if let Some(rails) = self.rails() {
            let (rails, mounting) = (Arc::clone(rails), Arc::clone(mounting));
            let registering = tokio::task::spawn_blocking(move || {
                memory.register(segment, &rails, &mounting)?;
                Ok::<SegmentMemory, SegmentError>(memory)
            });
            memory = registering.await.map_err(failed)??;
        }
        if self.is_draining() {
            return Err(ServiceError::new(ErrorCode::Draining, "the node has begun to drain"));
        }
        Ok(self.holder().mount(segment, memory)?)
    }
}

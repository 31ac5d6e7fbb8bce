//! Connections that do what reality does not do on demand.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tenon_transport::{Connection, Done, PeerId, Submission, Transfer, TransferResult};
use tokio::time::Instant;

/// Called with the number of the submission, counted from 0, after it was carried out.
type After = Box<dyn FnMut(usize, &[Transfer], &mut Vec<TransferResult>) + Send>;

pub struct Script {
    after: Mutex<After>,
    submits: AtomicUsize,
    transfers: AtomicUsize,
    guards_reads: bool,
    hangs: bool,
}

impl Script {
    fn with(guards_reads: bool, hangs: bool) -> Arc<Self> {
        Arc::new(Self {
            after: Mutex::new(Box::new(|_, _, _| ())),
            submits: AtomicUsize::new(0),
            transfers: AtomicUsize::new(0),
            guards_reads,
            hangs,
        })
    }

    /// As the engine beneath.
    pub fn guarded() -> Arc<Self> {
        Self::with(true, false)
    }

    /// An engine of one-sided hardware: no stamps, no checksums.
    pub fn one_sided() -> Arc<Self> {
        Self::with(false, false)
    }

    /// Nothing ever completes.
    pub fn hanging() -> Arc<Self> {
        Self::with(true, true)
    }

    pub fn after(&self, after: impl FnMut(usize, &[Transfer], &mut Vec<TransferResult>) + Send + 'static) {
        *self.after.lock() = Box::new(after);
    }

    pub fn wrap(self: &Arc<Self>) -> impl Fn(Arc<dyn Connection>) -> Arc<dyn Connection> + Send + Sync + 'static {
        let script = Arc::clone(self);
        move |inner| {
            Arc::new(Scripted {
                inner,
                script: Arc::clone(&script),
            })
        }
    }

    /// Submissions so far.
    pub fn submits(&self) -> usize {
        self.submits.load(Ordering::Relaxed)
    }

    /// Transfers so far.
    pub fn transfers(&self) -> usize {
        self.transfers.load(Ordering::Relaxed)
    }
}

struct Scripted {
    inner: Arc<dyn Connection>,
    script: Arc<Script>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scripted").finish_non_exhaustive()
    }
}

impl Connection for Scripted {
    fn peer(&self) -> PeerId {
        self.inner.peer()
    }

    fn submit(&self, batch: Vec<Transfer>, deadline: Instant) -> Submission {
        let (inner, script) = (Arc::clone(&self.inner), Arc::clone(&self.script));
        Submission::new(async move {
            let number = script.submits.fetch_add(1, Ordering::Relaxed);
            script.transfers.fetch_add(batch.len(), Ordering::Relaxed);
            if script.hangs {
                let late = |transfer: &Transfer| {
                    Err(tenon_transport::TransferError::Deadline {
                        moved_bytes: 0,
                        len_bytes: transfer.len_bytes(),
                    })
                };
                tokio::time::sleep_until(deadline).await;
                return batch.iter().map(late).collect();
            }
            let mut results = inner.submit(batch.clone(), deadline).await;
            if !script.guards_reads {
                for result in &mut results {
                    *result = result.clone().map(|done| Done {
                        stamp: None,
                        crc64: None,
                        ..done
                    });
                }
            }
            (script.after.lock())(number, &batch, &mut results);
            results
        })
    }

    fn guards_reads(&self) -> bool {
        self.script.guards_reads
    }

    fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    fn close(&self) {
        self.inner.close();
    }
}

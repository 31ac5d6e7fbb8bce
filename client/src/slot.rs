//! One connection that is made when it is first needed, shared by all who need it, and made again with back-off when it broke.

use crate::limits::{BACK_OFF_MAX_MS, BACK_OFF_MIN_MS, SECOND_DIAL_PATIENCE_MS};
use crate::time::within;
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Whether something still works.
pub(crate) trait Usable: Send + Sync + 'static {
    /// False if it has to be made anew.
    fn is_usable(&self) -> bool;
}

type Made<T> = Result<Arc<T>, ServiceError>;

/// A place for one `T`. A peer that does not answer costs its callers the time of one attempt; from then on they are told at once, and at
/// most once per back-off somebody waits a short time to see whether it is back.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
enum State<T> {
    Empty,
    Full(Arc<T>),
    Making {
        done: watch::Receiver<Option<Made<T>>>,
        /// The failure that this attempt follows.
        after: Option<ServiceError>,
    },
    Failed {
        error: ServiceError,
        until: Instant,
        back_off: Duration,
    },
}

enum Look<T> {
    Now(Made<T>),
    Wait {
        done: watch::Receiver<Option<Made<T>>>,
        after: Option<ServiceError>,
    },
}

impl<T: Usable> Slot<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::Empty),
        })
    }

    /// What is there, if it works; else what `make` makes. `make` runs to its end whether or not this caller waits for it, so it must end by
    /// itself.
    pub(crate) async fn get<F>(self: &Arc<Self>, make: impl FnOnce() -> F, deadline: Instant) -> Made<T>
    where
        F: Future<Output = Made<T>> + Send + 'static,
    {
        let (mut done, after) = match self.look(make) {
            Look::Now(made) => return made,
            Look::Wait { done, after } => (done, after),
        };
        let patience_end = match &after {
            Some(_) => within(deadline, SECOND_DIAL_PATIENCE_MS),
            None => deadline,
        };
        let made = match timeout_at(patience_end, done.wait_for(Option::is_some)).await {
            Ok(Ok(made)) => made.clone(),
            Ok(Err(_)) => None,
            Err(_) => Some(Err(after.unwrap_or_else(|| {
                ServiceError::new(ErrorCode::DeadlineExceeded, "the deadline passed while connecting")
            }))),
        };
        made.unwrap_or_else(|| {
            Err(ServiceError::new(
                ErrorCode::Internal,
                "connecting ended without a result",
            ))
        })
    }

    /// What can be said at once, or an attempt to wait for, which is started if none is under way.
    fn look<F>(self: &Arc<Self>, make: impl FnOnce() -> F) -> Look<T>
    where
        F: Future<Output = Made<T>> + Send + 'static,
    {
        let mut state = self.state.lock();
        let (after, back_off) = match &*state {
            State::Full(made) if made.is_usable() => return Look::Now(Ok(Arc::clone(made))),
            State::Failed { error, until, .. } if Instant::now() < *until => return Look::Now(Err(error.clone())),
            State::Making { done, after } => {
                return Look::Wait {
                    done: done.clone(),
                    after: after.clone(),
                };
            }
            State::Failed { error, back_off, .. } => (Some(error.clone()), Some(*back_off)),
            State::Empty | State::Full(_) => (None, None),
        };
        let (sender, done) = watch::channel(None);
        *state = State::Making {
            done: done.clone(),
            after: after.clone(),
        };
        drop(state);
        let (slot, made) = (Arc::clone(self), make());
        tokio::spawn(async move {
            let made = made.await;
            slot.settle(&made, back_off);
            sender.send_replace(Some(made));
        });
        Look::Wait { done, after }
    }

    fn settle(&self, made: &Made<T>, back_off: Option<Duration>) {
        let shortest = Duration::from_millis(BACK_OFF_MIN_MS);
        let longest = Duration::from_millis(BACK_OFF_MAX_MS);
        *self.state.lock() = match made {
            Ok(made) => State::Full(Arc::clone(made)),
            Err(error) => {
                let back_off = back_off.map_or(shortest, |last| (last * 2).min(longest));
                State::Failed {
                    error: error.clone(),
                    until: Instant::now() + back_off,
                    back_off,
                }
            }
        };
    }

    /// Forgets `made`, if that is what is there.
    pub(crate) fn discard(&self, made: &Arc<T>) {
        let mut state = self.state.lock();
        if matches!(&*state, State::Full(there) if Arc::ptr_eq(there, made)) {
            *state = State::Empty;
        }
    }

    /// What is there, working or not.
    pub(crate) fn peek(&self) -> Option<Arc<T>> {
        match &*self.state.lock() {
            State::Full(made) => Some(Arc::clone(made)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use tokio::time::{advance, sleep};

    #[derive(Debug, Default)]
    struct Thing {
        is_broken: AtomicBool,
    }

    impl Usable for Thing {
        fn is_usable(&self) -> bool {
            !self.is_broken.load(Ordering::Relaxed)
        }
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn dead() -> ServiceError {
        ServiceError::new(ErrorCode::Unavailable, "dead")
    }

    async fn hang_then_fail() -> Made<Thing> {
        sleep(Duration::from_secs(3)).await;
        Err(dead())
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_one_attempt_and_its_result() {
        let (slot, attempts) = (Slot::new(), Arc::new(AtomicU32::new(0)));
        let get = || {
            let attempts = Arc::clone(&attempts);
            slot.get(
                move || async move {
                    attempts.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(10)).await;
                    Ok(Arc::new(Thing::default()))
                },
                far(),
            )
        };
        let (a, b) = tokio::join!(get(), get());
        assert!(Arc::ptr_eq(&a.unwrap(), &b.unwrap()));
        get().await.unwrap();
        assert_eq!(attempts.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_peer_costs_one_attempt_then_nothing_then_a_short_look() {
        let slot: Arc<Slot<Thing>> = Slot::new();
        let costs = async || {
            let start = Instant::now();
            assert_eq!(slot.get(hang_then_fail, far()).await.unwrap_err(), dead());
            start.elapsed()
        };
        assert_eq!(costs().await, Duration::from_secs(3));
        assert_eq!(costs().await, Duration::ZERO);
        advance(Duration::from_millis(BACK_OFF_MIN_MS)).await;
        assert_eq!(costs().await, Duration::from_millis(SECOND_DIAL_PATIENCE_MS));
    }

    #[tokio::test(start_paused = true)]
    async fn back_off_doubles_up_to_its_bound() {
        let slot: Arc<Slot<Thing>> = Slot::new();
        let mut expected_ms = BACK_OFF_MIN_MS;
        for _ in 0..10 {
            slot.get(async || Err(dead()), far()).await.unwrap_err();
            let expected = Duration::from_millis(expected_ms);
            assert!(matches!(&*slot.state.lock(), State::Failed { back_off, .. } if *back_off == expected));
            advance(expected).await;
            expected_ms = (expected_ms * 2).min(BACK_OFF_MAX_MS);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_broke_or_was_discarded_is_made_anew() {
        let slot = Slot::new();
        let get = || slot.get(async || Ok(Arc::new(Thing::default())), far());
        let first = get().await.unwrap();
        first.is_broken.store(true, Ordering::Relaxed);
        let second = get().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        slot.discard(&first);
        assert!(Arc::ptr_eq(&second, &get().await.unwrap()), "another one was discarded");
        slot.discard(&second);
        assert!(!Arc::ptr_eq(&second, &get().await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_waits_no_longer_than_its_deadline() {
        let slot: Arc<Slot<Thing>> = Slot::new();
        let start = Instant::now();
        let error = slot
            .get(hang_then_fail, start + Duration::from_millis(20))
            .await
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::DeadlineExceeded);
        assert_eq!(start.elapsed(), Duration::from_millis(20));
    }
}

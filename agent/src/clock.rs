//! The clocks that `store-core` is told about: monotonic for every decision, wall time for people.

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};
use tenon_store_core::time::Time;
use tokio::time::Instant;

/// Milliseconds since this process first asked.
pub(crate) fn now() -> Time {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    Time::from_ms(u64::try_from(Instant::now().saturating_duration_since(start).as_millis()).unwrap_or(u64::MAX))
}

/// `deadline` on the same scale as [`now`].
pub(crate) fn at(deadline: Instant) -> Time {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    now().after_ms(u64::try_from(left).unwrap_or(u64::MAX))
}

/// Unix time in milliseconds.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `time` on tokio's clock.
pub(crate) fn instant(time: Time) -> Instant {
    Instant::now() + std::time::Duration::from_millis(time.since_ms(now()))
}

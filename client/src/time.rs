//! Deadlines.

use crate::limits::{DEADLINE_BASE_MS, DEADLINE_BYTES_PER_S};
use std::time::Duration;
use tokio::time::Instant;

/// The deadline of an operation on so many bytes whose caller has no wish of his own: 5 s and 1 s per 8 MiB from now.
pub fn default_deadline(len_bytes: u64) -> Instant {
    let bytes_ms = len_bytes.saturating_mul(1_000) / DEADLINE_BYTES_PER_S;
    Instant::now() + Duration::from_millis(DEADLINE_BASE_MS + bytes_ms)
}

/// `limit_ms` from now, but not after `deadline`.
pub(crate) fn within(deadline: Instant, limit_ms: u64) -> Instant {
    deadline.min(Instant::now() + Duration::from_millis(limit_ms))
}

/// The middle of the time that is left until `deadline`.
pub(crate) fn half_of(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_default_deadline_grows_with_the_bytes() {
        let base = Duration::from_millis(DEADLINE_BASE_MS);
        assert_eq!(default_deadline(0) - Instant::now(), base);
        assert_eq!(
            default_deadline(64 << 20) - Instant::now(),
            base + Duration::from_secs(8)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_deadline_is_never_later_than_the_callers() {
        let now = Instant::now();
        let soon = now + Duration::from_millis(10);
        assert_eq!(within(soon, 1_000), soon);
        assert_eq!(
            within(now + Duration::from_secs(9), 1_000),
            now + Duration::from_secs(1)
        );
        assert_eq!(half_of(soon), now + Duration::from_millis(5));
    }
}

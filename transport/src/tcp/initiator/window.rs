//! How much one connection may have under way.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::limits::{MAX_IN_FLIGHT_BYTES, MAX_IN_FLIGHT_REQUESTS};

/// Bytes are counted in units of this size, rounded up.
const UNIT_BYTES: u64 = 4 << 10;

/// Requests and bytes that may still go out.
#[derive(Debug)]
pub(super) struct Window {
    requests: Semaphore,
    units: Semaphore,
}

/// What one request takes up; given back when dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    window: Arc<Window>,
    units: usize,
}

fn units_of(len_bytes: u64) -> usize {
    let units = len_bytes.min(MAX_IN_FLIGHT_BYTES).div_ceil(UNIT_BYTES);
    usize::try_from(units).unwrap_or(Semaphore::MAX_PERMITS)
}

impl Window {
    pub(super) fn new() -> Arc<Self> {
        let units = units_of(MAX_IN_FLIGHT_BYTES);
        Arc::new(Self {
            requests: Semaphore::new(MAX_IN_FLIGHT_REQUESTS),
            units: Semaphore::new(units),
        })
    }

    /// Waits for room for requests of these lengths, all together. What is larger than the window takes all of it.
    pub(super) async fn enter(self: &Arc<Self>, lens_bytes: &[u64]) -> Vec<Ticket> {
        assert!(
            lens_bytes.len() <= MAX_IN_FLIGHT_REQUESTS,
            "a step never has more requests than the window"
        );
        let mut units_left = units_of(MAX_IN_FLIGHT_BYTES);
        let mut take = |len_bytes| {
            let units = units_of(len_bytes).min(units_left);
            units_left -= units;
            units
        };
        let units: Vec<usize> = lens_bytes.iter().map(|len_bytes| take(*len_bytes)).collect();
        let requests_wanted = u32::try_from(units.len()).unwrap_or(u32::MAX);
        let units_wanted = u32::try_from(units.iter().sum::<usize>()).unwrap_or(u32::MAX);
        // Neither semaphore is ever closed. Whoever holds requests and waits for units waits only for those who are
        // under way.
        let requests = self.requests.acquire_many(requests_wanted).await;
        let bytes = self.units.acquire_many(units_wanted).await;
        if let (Ok(requests), Ok(bytes)) = (requests, bytes) {
            requests.forget();
            bytes.forget();
        }
        units
            .into_iter()
            .map(|units| Ticket {
                window: Arc::clone(self),
                units,
            })
            .collect()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.window.units.add_permits(self.units);
        self.window.requests.add_permits(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_waits_and_what_never_fits_takes_all() {
        let window = Window::new();
        let half = window.enter(&[MAX_IN_FLIGHT_BYTES / 2]).await;
        let brief = Duration::from_millis(10);
        assert!(timeout(brief, window.enter(&[u64::MAX, 1])).await.is_err());
        let quarter = window.enter(&[MAX_IN_FLIGHT_BYTES / 4]).await;
        drop((half, quarter));
        let all = window.enter(&[u64::MAX, 1]).await;
        assert!(timeout(brief, window.enter(&[1])).await.is_err());
        drop(all);
        assert_eq!(window.units.available_permits(), units_of(MAX_IN_FLIGHT_BYTES));
        assert_eq!(window.requests.available_permits(), MAX_IN_FLIGHT_REQUESTS);
    }
}

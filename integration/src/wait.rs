//! Waiting for something to become true, for a bounded time.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything that needs no time-out to expire may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// Asks `probe` again and again until it is `Ok`; panics with the last `Err` when `bound` has passed. Returns what it found.
pub fn until<T, E: Debug>(bound: Duration, what: &str, mut probe: impl FnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + bound;
    loop {
        match probe() {
            Ok(found) => return found,
            Err(error) if Instant::now() >= deadline => panic!("{what}: not within {bound:?}: {error:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

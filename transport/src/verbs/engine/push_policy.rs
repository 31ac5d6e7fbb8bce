//! Whether peers may write by themselves, and what they wrote.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::verbs::{Device, GidEntry, Windows, probe_windows};

/// Whether peers write to this process themselves (push), or have what they write read by it (pull).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PushPolicy {
    /// They have it read.
    #[default]
    Off,
    /// They write over ports whose device was seen to hold them to what their windows allow.
    Probed,
    /// They write over every port whose device has windows, whatever was seen.
    Trusted,
}

impl PushPolicy {
    /// All of them, with their names.
    pub const NAMED: [(&'static str, Self); 3] =
        [("off", Self::Off), ("probed", Self::Probed), ("trusted", Self::Trusted)];

    /// What a port makes of windows, if that matters; it is tried here.
    pub(super) fn tried_on(self, rail: &str, device: &Arc<Device>, gid: &GidEntry) -> Option<Windows> {
        if self == Self::Off {
            return None;
        }
        let windows = match probe_windows(device, gid) {
            Ok(windows) => windows,
            Err(error) => {
                tracing::warn!(rail, %error, "memory windows cannot be tried: puts are pulled");
                return None;
            }
        };
        let pushes = self.allows(windows);
        let go = if pushes { "pushed" } else { "pulled" };
        match windows.are_enforced() {
            true => tracing::info!(rail, %windows, "memory windows were tried: puts are {go}"),
            false => tracing::warn!(rail, %windows, push = %self, "memory windows were tried: puts are {go}"),
        }
        Some(windows)
    }

    pub(super) fn allows(self, windows: Windows) -> bool {
        match self {
            Self::Off => false,
            Self::Probed => windows.are_enforced(),
            Self::Trusted => windows != Windows::None,
        }
    }
}

impl fmt::Display for PushPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.iter().find(|(_, policy)| policy == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

/// What peers wrote, by the way it came.
#[derive(Debug, Default)]
pub struct Writes {
    /// Under windows.
    pub pushed: WritesOfAWay,
    /// Read by this side.
    pub pulled: WritesOfAWay,
}

/// Whole ranges that landed.
#[derive(Debug, Default)]
pub struct WritesOfAWay {
    /// How many.
    pub count: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
}

impl WritesOfAWay {
    pub(super) fn add(&self, len_bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Enforced;

    #[test]
    fn only_the_operators_word_makes_up_for_what_a_device_does_not_enforce() {
        let seen = |bounds| {
            Windows::Seen(Enforced {
                bounds,
                key: true,
                invalidation: true,
            })
        };
        let allowed = |windows| PushPolicy::NAMED.map(|(_, policy)| policy.allows(windows));
        assert_eq!(allowed(seen(true)), [false, true, true]);
        assert_eq!(allowed(seen(false)), [false, false, true]);
        assert_eq!(allowed(Windows::None), [false, false, false]);
        assert_eq!(PushPolicy::default(), PushPolicy::Off);
        assert_eq!(PushPolicy::Probed.to_string(), "probed");
    }
}

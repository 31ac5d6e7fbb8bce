//! Points in time, as the decisions of this crate see them.

use std::fmt;

/// Milliseconds on a clock that never goes back and starts anywhere. The caller reads the clock; this crate only
/// compares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// The end of the clock, which is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// The point `ms` milliseconds after the start of the clock.
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the start of the clock.
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// The point `ms` milliseconds later, at most the end of the clock.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds from `earlier` until this point; 0 if `earlier` is not earlier.
    pub const fn since_ms(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

//! How long queue pairs wait for their peers.

use std::time::Duration;

use super::error::VerbsError;
use crate::limits::{VERBS_RETRIES_MAX, VERBS_TIMEOUT_EXPONENT_MAX};

/// How long a silent peer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// An acknowledgement is waited for 4.096 µs times 2 to this, from 1.
    pub timeout_exponent: u8,
    /// Times that a packet is sent again without an answer.
    pub retries: u8,
    /// Times that a message is sent again to a peer without a receive request.
    pub not_ready_retries: u8,
    /// Code of the pause that this side asks for when it has no receive request: 12 is 0.64 ms.
    pub not_ready_timer: u8,
}

impl Default for Timing {
    /// A silent peer is noticed after about half a second.
    fn default() -> Self {
        Self {
            timeout_exponent: 14,
            retries: VERBS_RETRIES_MAX,
            not_ready_retries: VERBS_RETRIES_MAX,
            not_ready_timer: 12,
        }
    }
}

impl Timing {
    /// About the time after which a request to a silent peer fails. Devices may take up to four times as long.
    #[must_use]
    pub fn silence(self) -> Duration {
        let once = Duration::from_nanos(4096 << u32::from(self.timeout_exponent.min(VERBS_TIMEOUT_EXPONENT_MAX)));
        once * (u32::from(self.retries) + 1)
    }

    pub(super) fn check(self) -> Result<(), VerbsError> {
        let limits = [
            ("timeout_exponent", self.timeout_exponent, VERBS_TIMEOUT_EXPONENT_MAX),
            ("retries", self.retries, VERBS_RETRIES_MAX),
            ("not_ready_retries", self.not_ready_retries, VERBS_RETRIES_MAX),
            ("not_ready_timer", self.not_ready_timer, 31),
        ];
        for (setting, value, max) in limits {
            // An exponent of zero waits for ever.
            if value > max || (setting == "timeout_exponent" && value == 0) {
                return Err(VerbsError::Setting {
                    setting,
                    value: value.into(),
                    max: max.into(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_on_silence_follows_from_timeout_and_retries() {
        let timing = |timeout_exponent, retries| Timing {
            timeout_exponent,
            retries,
            ..Timing::default()
        };
        assert_eq!(timing(14, 6).silence().as_millis(), 469);
        assert_eq!(timing(10, 6).silence().as_millis(), 29);
    }

    #[test]
    fn settings_that_could_wait_for_ever_are_refused() {
        assert!(Timing::default().check().is_ok());
        let refused = |timing: Timing| timing.check().unwrap_err().to_string();
        let base = Timing::default();
        assert_eq!(refused(Timing { retries: 7, ..base }), "retries is 7, beyond 6");
        assert_eq!(
            refused(Timing {
                not_ready_retries: 7,
                ..base
            }),
            "not_ready_retries is 7, beyond 6"
        );
        assert!(
            refused(Timing {
                timeout_exponent: 0,
                ..base
            })
            .starts_with("timeout_exponent is 0")
        );
        assert!(
            refused(Timing {
                timeout_exponent: 31,
                ..base
            })
            .starts_with("timeout_exponent is 31")
        );
    }
}

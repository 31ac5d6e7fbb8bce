//! The environment variables of the agent. They are read here and nowhere else. (`NOTIFY_SOCKET` and the watchdog's
//! variables are read by the sd-notify library.)

use std::ffi::OsString;
use std::path::PathBuf;

/// What the environment says.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `TENON_CONFIG`: the configuration, unless a flag names it.
    pub config: Option<PathBuf>,
    /// `CREDENTIALS_DIRECTORY`: where systemd passes credentials.
    pub credentials_dir: Option<PathBuf>,
}

impl Environment {
    /// Reads this process's environment. Empty variables count as not set.
    pub fn of_process() -> Self {
        let path = |name| std::env::var_os(name).and_then(not_empty);
        Self {
            config: path("TENON_CONFIG"),
            credentials_dir: path("CREDENTIALS_DIRECTORY"),
        }
    }
}

fn not_empty(value: OsString) -> Option<PathBuf> {
    (!value.is_empty()).then(|| value.into())
}

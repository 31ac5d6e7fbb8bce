//! Where settings come from: every value keeps its key and its origin until it has been checked, so that errors can
//! name both.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Who said it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file.
    File {
        /// Its path.
        path: Arc<Path>,
        /// Counted from 1.
        line: usize,
    },
    /// A flag of the command line.
    Flag(&'static str),
    /// Nobody.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value that has not been checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sourced<T> {
    /// The setting's path in the file, such as `listen.http` or `segments[0].size`.
    pub(super) key: String,
    /// As written.
    pub(super) value: T,
    /// By whom.
    pub(super) origin: Origin,
}

impl<T> Sourced<T> {
    pub(super) fn default_of(key: &str, value: impl Into<T>) -> Self {
        Self {
            key: key.to_owned(),
            value: value.into(),
            origin: Origin::Default,
        }
    }

    pub(super) fn flag(key: &str, name: &'static str, value: T) -> Self {
        Self {
            key: key.to_owned(),
            value,
            origin: Origin::Flag(name),
        }
    }

    /// The same place with another value.
    pub(super) fn with<U>(&self, value: U) -> Sourced<U> {
        Sourced {
            key: self.key.clone(),
            value,
            origin: self.origin.clone(),
        }
    }
}

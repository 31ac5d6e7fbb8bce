//! Choices that configuration makes by name.

use thiserror::Error;

/// A name that stands for none of the choices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown {what} {name:?}: expected one of {}", valid.join(", "))]
pub struct UnknownName {
    /// What was to be chosen.
    pub what: &'static str,
    /// The name that was given.
    pub name: String,
    /// The names that are known.
    pub valid: Vec<&'static str>,
}

/// Finds the choice called `name` among `choices`, by the name that `name_of` gives each.
///
/// # Errors
///
/// [`UnknownName`], which lists the names that exist.
pub(crate) fn choose<T: Copy>(
    what: &'static str,
    name: &str,
    choices: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    choices
        .iter()
        .copied()
        .find(|&choice| name_of(choice) == name)
        .ok_or_else(|| UnknownName {
            what,
            name: name.to_owned(),
            valid: choices.iter().map(|&choice| name_of(choice)).collect(),
        })
}

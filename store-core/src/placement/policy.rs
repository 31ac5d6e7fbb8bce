//! The choices of a placement policy, by name.

use std::fmt;
use std::str::FromStr;

use crate::names::{self, UnknownName};

/// How entries are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// Preferred entries, then a scan from a random start.
    Random,
    /// Preferred entries, then a sample of neighbours by their free ratio, then the fallback scan.
    #[default]
    FreeRatioFirst,
    /// As [`Self::FreeRatioFirst`], but the sample is ordered by how much of an entry's free space lies in one region.
    FragmentationAware,
    /// As [`Self::FreeRatioFirst`] with a scan of its own: blind, and without the sampled entries if they were a quarter of the pool.
    RetryControl,
    /// Preferred entries, then the one whose largest free region is the smallest that suffices: reads every hint.
    BestFit,
}

impl Strategy {
    const ALL: [Self; 5] = [
        Self::Random,
        Self::FreeRatioFirst,
        Self::FragmentationAware,
        Self::RetryControl,
        Self::BestFit,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::FreeRatioFirst => "free_ratio_first",
            Self::FragmentationAware => "fragmentation_aware",
            Self::RetryControl => "retry_control",
            Self::BestFit => "best_fit",
        }
    }
}

impl Strategy {
    /// Whether it has use for a [`Fallback`]; the others have a way of their own.
    #[must_use]
    pub fn uses_fallback(self) -> bool {
        matches!(self, Self::FreeRatioFirst | Self::FragmentationAware)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        names::choose("placement strategy", name, &Self::ALL, Self::name)
    }
}

/// How a strategy looks for room once its first choices have failed.
///
/// Only [`Strategy::FreeRatioFirst`] and [`Strategy::FragmentationAware`] have use for it; the others have their own way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// A scan of which every position costs one.
    Blind,
    /// A scan in which, after a real failure in a large pool, entries that are known to have no room cost nothing.
    FitAware,
    /// No sample and no scan: after the preferred entries, the entry that the pool's own order of hints names as the tightest.
    ///
    /// Fails only if no entry fits. It packs: which of many entries is emptiest does not matter where one owner has them all. A node does not keep
    /// entries for it, but the free regions of all its segments under one index.
    #[default]
    Indexed,
}

impl Fallback {
    const ALL: [Self; 3] = [Self::Blind, Self::FitAware, Self::Indexed];

    fn name(self) -> &'static str {
        match self {
            Self::Blind => "blind",
            Self::FitAware => "fit_aware",
            Self::Indexed => "indexed",
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Fallback {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        names::choose("placement fallback", name, &Self::ALL, Self::name)
    }
}

impl Fallback {
    /// Whether it has use for what the [`Strategy`] chooses first.
    #[must_use]
    pub fn uses_strategy(self) -> bool {
        self != Self::Indexed
    }
}

/// A complete placement policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How entries are tried.
    pub strategy: Strategy,
    /// How room is looked for once the first choices have failed.
    pub fallback: Fallback,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Classes;

    #[test]
    fn every_name_leads_back_to_its_choice() {
        for strategy in Strategy::ALL {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        for fallback in Fallback::ALL {
            assert_eq!(fallback.to_string().parse(), Ok(fallback));
        }
        assert_eq!("peer".parse(), Ok(Classes::Peer));
        assert_eq!("tight".parse(), Ok(Classes::Tight));
    }

    #[test]
    fn an_unknown_name_lists_the_names_that_exist() {
        let error = "best_fitting".parse::<Strategy>().unwrap_err();
        let text = r#"unknown placement strategy "best_fitting": expected one of random, free_ratio_first, "#
            .to_owned()
            + "fragmentation_aware, retry_control, best_fit";
        assert_eq!(error.to_string(), text);
        let error = "Blind".parse::<Fallback>().unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"unknown placement fallback "Blind": expected one of blind, fit_aware, indexed"#
        );
    }
}

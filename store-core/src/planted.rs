//! Bugs on purpose, so that tests can show that they would be found.
//!
//! They exist under the feature `planted-bugs` alone, and do nothing there until a test plants one in its own thread.

/// A known bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-bugs"),
    expect(unreachable_pub, reason = "public with the feature")
)]
pub enum Bug {
    /// A holder seals although the homes have not accepted.
    SealsUnaccepted,
    /// A home says `miss` before it has learned what others know.
    MissesUnsettled,
    /// The second home decides although it reaches the first.
    SecondDecides,
    /// The second home decides when the caller's time is over, whether it reaches the first or not.
    SecondDecidesLate,
    /// A home hands entries over and no tombstones.
    ForgetsTombstones,
    /// A home keeps replicas of earlier lives of their holders.
    KeepsEarlierLives,
    /// A home that could not tell its partner what it decided alone does not try again.
    ForgetsToRetell,
    /// Of two objects of a key the one of the lower epoch wins.
    LowerEpochWins,
    /// A home removes an object that a reader did not find, without asking its holder.
    DoubtDoesNotAsk,
    /// A home that has stood still goes on as if nothing had happened.
    PauseUnnoticed,
    /// A home that gets no answer from its partner goes on alone, also if it has stood still meanwhile.
    SilenceIsLoss,
    /// A home decides without a partner that it has lost, though that one has begun a new life and asks it.
    NewLifeIsLost,
    /// A removal that arrives late or twice removes what was put since.
    RemovesWhatCameLater,
    /// The first home answers without telling the second.
    SecondIsNotTold,
    /// What a home tells its partner later does not say how puts have ended.
    EndsAreNotRetold,
    /// Of the ends of puts that a home tells its partner later it tells the first few, and takes them for all.
    FewEndsAreRetold,
    /// What an object has taken the place of comes back when that one is gone.
    ReplacedIsNotBuried,
    /// The second home has copies dropped that the first did not tell it of.
    OtherCopiesAreDropped,
    /// A holder says that what lies in a draining segment stays there.
    LeaversStay,
}

#[cfg(feature = "planted-bugs")]
mod planting {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    impl Bug {
        /// Every bug.
        pub const ALL: [Self; 19] = [
            Self::SealsUnaccepted,
            Self::MissesUnsettled,
            Self::SecondDecides,
            Self::SecondDecidesLate,
            Self::ForgetsTombstones,
            Self::KeepsEarlierLives,
            Self::ForgetsToRetell,
            Self::LowerEpochWins,
            Self::DoubtDoesNotAsk,
            Self::PauseUnnoticed,
            Self::SilenceIsLoss,
            Self::NewLifeIsLost,
            Self::RemovesWhatCameLater,
            Self::SecondIsNotTold,
            Self::EndsAreNotRetold,
            Self::FewEndsAreRetold,
            Self::ReplacedIsNotBuried,
            Self::OtherCopiesAreDropped,
            Self::LeaversStay,
        ];
    }

    /// Plants a bug in this thread in the place of the one before, or none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(feature = "planted-bugs")]
pub(crate) use self::planting::is_planted;
#[cfg(feature = "planted-bugs")]
pub use self::planting::plant;

#[cfg(not(feature = "planted-bugs"))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

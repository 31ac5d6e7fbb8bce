//! Each known bug of a home is found by a test of one behaviour.

use crate::{copies, learning, missed, one_home, two_homes};
use std::panic::catch_unwind;
use tenon_store_core::planted::{Bug, plant};

/// In the order of [`Bug::ALL`]. The one that is left out is a holder's, and the simulation shows it.
const FOUND: [(Bug, fn()); 17] = [
    (
        Bug::MissesUnsettled,
        one_home::an_unsettled_home_does_not_say_miss_and_lets_puts_wait,
    ),
    (
        Bug::SecondDecides,
        two_homes::the_second_home_passes_decisions_on_to_the_first,
    ),
    (
        Bug::SecondDecidesLate,
        two_homes::the_second_home_does_not_decide_only_because_the_callers_time_is_over,
    ),
    (
        Bug::ForgetsTombstones,
        missed::a_home_that_begins_anew_takes_over_what_was_removed_and_not_dropped_yet,
    ),
    (
        Bug::KeepsEarlierLives,
        one_home::what_lay_in_an_earlier_life_of_its_holder_is_gone,
    ),
    (
        Bug::ForgetsToRetell,
        missed::what_a_partner_did_not_take_when_it_was_told_later_is_told_again,
    ),
    (
        Bug::LowerEpochWins,
        missed::an_object_of_a_higher_epoch_takes_the_place_of_one_whose_removal_a_home_has_missed,
    ),
    (
        Bug::DoubtDoesNotAsk,
        learning::an_object_that_a_reader_did_not_find_is_looked_for_at_its_holder,
    ),
    (
        Bug::PauseUnnoticed,
        learning::a_home_that_stood_still_believes_nothing_until_it_has_heard_from_its_partner,
    ),
    (
        Bug::SilenceIsLoss,
        learning::a_home_asks_its_partner_again_where_only_the_link_broke,
    ),
    (
        Bug::NewLifeIsLost,
        learning::a_home_does_not_decide_without_a_lost_partner_that_has_begun_a_new_life,
    ),
    (
        Bug::RemovesWhatCameLater,
        one_home::a_removal_that_comes_late_or_twice_leaves_what_was_put_since,
    ),
    (
        Bug::SecondIsNotTold,
        one_home::an_object_is_found_at_both_homes_once_its_seal_is_reported,
    ),
    (
        Bug::EndsAreNotRetold,
        learning::the_end_of_a_put_that_the_keys_object_stood_against_is_told_to_the_home_that_missed_it,
    ),
    (
        Bug::FewEndsAreRetold,
        missed::all_ends_of_a_key_that_were_decided_alone_are_told_however_many_it_has,
    ),
    (
        Bug::ReplacedIsNotBuried,
        copies::a_replacing_put_takes_the_place_of_the_object_and_has_it_dropped,
    ),
    (
        Bug::OtherCopiesAreDropped,
        copies::a_copy_that_the_first_home_does_not_know_is_not_dropped_when_it_says_what_it_knows,
    ),
];

#[test]
fn each_planted_bug_of_a_home_is_found_by_a_test_of_one_behaviour() {
    let of_holders = [Bug::SealsUnaccepted, Bug::LeaversStay];
    let of_homes = Bug::ALL.into_iter().filter(|bug| !of_holders.contains(bug));
    assert!(of_homes.eq(FOUND.map(|(bug, _)| bug)), "a bug has no test");
    for (bug, test) in FOUND {
        plant(Some(bug));
        let is_found = catch_unwind(test).is_err();
        plant(None);
        assert!(is_found, "{bug:?} is not found");
        test();
    }
}

//! Copies at their holder.

use crate::fixture::*;
use crate::steps::*;
use tenon_protocol::ids::Epoch;
use tenon_store_core::objects::*;

#[test]
fn a_copy_is_sealed_under_the_version_that_the_homes_have() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    fill(&mut holder, at(0), reserve_spec(1, "k", 100));
    let copy = verified(&mut holder, 1, "k", 100);
    assert!(holder.seal_copy(at(0), copy, Epoch(7), 0));
    let held = holder.held(hash("k")).expect("it is held");
    assert_eq!((held.version.epoch, held.replicas[0].is_copy), (Epoch(7), true));
    // Its commit, repeated, is over.
    let again = holder.begin_commit(at(0), commit_spec(1, "k", 100)).expect("known");
    assert!(matches!(again, CommitStep::Done(known) if known.version == held.version));
    holder.check_invariants();
}

#[test]
fn a_copy_that_comes_after_a_later_object_is_freed() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    for put_id in [1, 2] {
        fill(&mut holder, at(0), reserve_spec(put_id, "k", 100));
    }
    let late = verified(&mut holder, 1, "k", 100);
    let later = verified(&mut holder, 2, "k", 100);
    assert!(holder.seal_copy(at(0), later, Epoch(2), 0));
    assert!(!holder.seal_copy(at(0), late, Epoch(1), 0));
    assert_eq!(holder.held(hash("k")).expect("it is held").version.epoch, Epoch(2));
    assert_eq!((holder.account().objects, holder.account().reservations), (1, 0));
    holder.check_invariants();
}

#[test]
fn a_copy_takes_the_place_of_an_earlier_object() {
    let (mut holder, _) = holder(&[(1 << 20, 4)]);
    store(&mut holder, 1, "k", 100);
    fill(&mut holder, at(0), reserve_spec(2, "k", 50));
    let copy = verified(&mut holder, 2, "k", 50);
    assert!(holder.seal_copy(at(0), copy, Epoch(2), 0));
    assert_eq!(holder.held(hash("k")).expect("it is held").len_bytes, 50);
    assert_eq!(holder.account().objects, 1);
    holder.check_invariants();
}

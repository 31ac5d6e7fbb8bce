//! What is posted and not known to be complete: it owns the buffers that the device may touch.
//!
//! A reliable-connected queue completes its requests in the order in which they were posted, and says nothing of a
//! request that was not to be signalled and succeeded. So each queue is a [`Ring`]: a completion releases its own
//! request and the unsignalled ones before it. A signalled request is released by its own completion alone, whatever
//! the order in which completions come.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::request::{ReceiveRequest, SendRequest};

/// Which of the two queues of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Send,
    Receive,
}

/// Bits of a request's name that hold its place in its ring; the bit above them is the side.
const SEQUENCE_BITS: u32 = 31;
const SEQUENCE_MASK: u32 = (1 << SEQUENCE_BITS) - 1;

/// The two rings of a queue pair.
pub(super) struct Posted<T> {
    /// Number of the queue pair in the life of its completion queue: never used again there, so that a late completion
    /// of a queue pair that is gone finds nothing.
    registration: u32,
    pub(super) send: Mutex<Ring<SendRequest<T>>>,
    pub(super) receive: Mutex<Ring<ReceiveRequest<T>>>,
    /// Notified when both rings have become empty.
    pub(super) emptied: Notify,
}

impl<T> Posted<T> {
    /// Rings of queues with these depths.
    pub(super) fn new(registration: u32, send_depth: u32, receive_depth: u32) -> Self {
        Self {
            registration,
            send: Mutex::new(Ring::new(send_depth)),
            receive: Mutex::new(Ring::new(receive_depth)),
            emptied: Notify::new(),
        }
    }

    pub(super) fn registration(&self) -> u32 {
        self.registration
    }

    /// The name under which the device knows a request.
    pub(super) fn name(&self, side: Side, sequence: u32) -> u64 {
        let low = sequence | (u32::from(side == Side::Receive) << SEQUENCE_BITS);
        (u64::from(self.registration) << 32) | u64::from(low)
    }

    /// Requests of both rings.
    pub(super) fn len(&self) -> usize {
        let sent = self.send.lock().len();
        sent + self.receive.lock().len()
    }
}

/// Registration, side and sequence of a name.
pub(super) fn parse(name: u64) -> (u32, Side, u32) {
    let [high, low] = [name >> 32, name & u64::from(u32::MAX)].map(|half| u32::try_from(half).unwrap_or(u32::MAX));
    let side = if low >> SEQUENCE_BITS == 0 {
        Side::Send
    } else {
        Side::Receive
    };
    (high, side, low & SEQUENCE_MASK)
}

/// A request that is to be signalled when it succeeds, or is not.
pub(super) trait Signal {
    /// Whether its owner wants to hear of its success.
    fn is_signalled(&self) -> bool;
}

struct Slot<R> {
    /// Gone once it is complete.
    request: Option<R>,
    /// Whether the device tells of its success.
    signalled: bool,
}

/// Requests in the order in which they were posted.
pub(super) struct Ring<R> {
    slots: VecDeque<Slot<R>>,
    /// Sequence of the first slot.
    first: u32,
    /// Unsignalled requests since the last signalled one.
    silent: usize,
    /// Most slots.
    depth: usize,
}

/// A request that is complete.
pub(super) struct Complete<R> {
    pub(super) request: R,
    /// False if its owner does not want to hear of its success.
    pub(super) wanted: bool,
}

impl<R: Signal> Ring<R> {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            slots: VecDeque::new(),
            first: 0,
            silent: 0,
            depth: usize::try_from(depth).unwrap_or(usize::MAX),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Slots that are free.
    pub(super) fn room(&self) -> usize {
        self.depth.saturating_sub(self.slots.len())
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds a request for which there is room. In a row of unsignalled ones that is half as long as the queue is deep,
    /// one is signalled all the same: a queue full of requests that nothing tells of could never be emptied.
    pub(super) fn push(&mut self, request: R) {
        let signalled = request.is_signalled() || self.silent + 1 >= (self.depth / 2).max(1);
        self.silent = if signalled { 0 } else { self.silent + 1 };
        self.slots.push_back(Slot {
            request: Some(request),
            signalled,
        });
    }

    /// Sequence, signalling and content of the slots from this one on.
    pub(super) fn since(&self, index: usize) -> impl Iterator<Item = (u32, bool, &R)> {
        let numbered = self.slots.iter().zip(0..).skip(index);
        numbered.filter_map(|(slot, index)| {
            let request = slot.request.as_ref()?;
            Some((self.first.wrapping_add(index) & SEQUENCE_MASK, slot.signalled, request))
        })
    }

    /// Takes the slots from this one on out again: the device did not take them.
    pub(super) fn take_back(&mut self, index: usize) -> Vec<R> {
        let back = self.slots.split_off(index.min(self.slots.len()));
        self.silent = self.slots.iter().rev().take_while(|slot| !slot.signalled).count();
        back.into_iter().filter_map(|slot| slot.request).collect()
    }

    /// The device completed the request of this sequence. Requests before it that were not to be signalled are complete
    /// too, and put in `swept`. `None` if nothing of this sequence is posted.
    pub(super) fn complete(&mut self, sequence: u32, swept: &mut Vec<R>) -> Option<Complete<R>> {
        let index = usize::try_from(sequence.wrapping_sub(self.first) & SEQUENCE_MASK).ok()?;
        let request = self.slots.get_mut(index)?.request.take()?;
        let before = self.slots.range_mut(..index).filter(|slot| !slot.signalled);
        swept.extend(before.filter_map(|slot| slot.request.take()));
        while self.slots.front().is_some_and(|slot| slot.request.is_none()) {
            self.slots.pop_front();
            self.first = self.first.wrapping_add(1) & SEQUENCE_MASK;
        }
        let wanted = request.is_signalled();
        Some(Complete { request, wanted })
    }

    /// Takes everything out: nothing can touch it any more.
    pub(super) fn take_all(&mut self) -> Vec<R> {
        self.take_back(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A number, and whether its owner wants to hear of it.
    impl Signal for (u32, bool) {
        fn is_signalled(&self) -> bool {
            self.1
        }
    }

    fn sequence_of(ring: &Ring<(u32, bool)>, index: usize) -> u32 {
        ring.since(index).next().expect("a request").0
    }

    #[test]
    fn names_carry_registration_side_and_sequence() {
        let posted = Posted::<()>::new(0xfedc_ba98, 16, 16);
        for (side, sequence) in [
            (Side::Send, 0),
            (Side::Receive, 0),
            (Side::Send, SEQUENCE_MASK),
            (Side::Receive, 7),
        ] {
            assert_eq!(parse(posted.name(side, sequence)), (0xfedc_ba98, side, sequence));
        }
    }

    #[test]
    fn a_completion_releases_the_silent_requests_before_it_and_no_others() {
        let mut ring = Ring::new(100);
        for request in [(0, false), (1, true), (2, false), (3, true), (4, false)] {
            ring.push(request);
        }
        let mut swept = Vec::new();
        let complete = ring.complete(sequence_of(&ring, 3), &mut swept).unwrap();
        assert_eq!(complete.request, (3, true));
        assert_eq!(swept, [(0, false), (2, false)]);
        // The signalled one before it has had no completion of its own: it stays, and so does its place.
        let left: Vec<_> = ring.since(0).map(|(_, _, request)| request.0).collect();
        assert_eq!(left, [1, 4]);
        assert_eq!(
            ring.complete(sequence_of(&ring, 0), &mut swept).unwrap().request,
            (1, true)
        );
        assert_eq!(ring.len(), 1);
    }

    #[test]
    fn a_sequence_that_is_not_posted_completes_nothing() {
        let mut ring = Ring::new(100);
        ring.push((0, true));
        let mut swept = Vec::new();
        assert!(ring.complete(1, &mut swept).is_none());
        assert!(ring.complete(SEQUENCE_MASK, &mut swept).is_none());
        assert!(ring.complete(0, &mut swept).is_some());
        assert!(ring.complete(0, &mut swept).is_none(), "once only");
    }

    #[test]
    fn long_runs_of_silent_requests_are_signalled_unasked() {
        let mut ring = Ring::new(8);
        for number in 0..10 {
            ring.push((number, false));
        }
        let signalled: Vec<_> = ring
            .since(0)
            .filter(|(_, signalled, _)| *signalled)
            .map(|(_, _, r)| r.0)
            .collect();
        assert_eq!(signalled, [3, 7]);
        let complete = ring.complete(3, &mut Vec::new()).unwrap();
        assert!(!complete.wanted, "its owner did not ask");
    }

    /// One step of the random test below.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Post { signalled: bool },
        Complete { pick: usize },
        TakeBack { count: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<bool>().prop_map(|signalled| Step::Post { signalled }),
            any::<usize>().prop_map(|pick| Step::Complete { pick }),
            (0..3_usize).prop_map(|count| Step::TakeBack { count }),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Against a plain list: nothing is released twice, early, or never, around the wrap of sequences too.
        #[test]
        fn it_owns_exactly_what_a_plain_list_does(steps in steps(), first in prop_oneof![Just(0), Just(SEQUENCE_MASK - 5)]) {
            let mut ring = Ring::new(u32::MAX);
            ring.first = first;
            let mut model: Vec<(u32, bool)> = Vec::new();
            let mut next = 0;
            for step in steps {
                match step {
                    Step::Post { signalled } => {
                        ring.push((next, signalled));
                        model.push((next, signalled));
                        next += 1;
                    }
                    Step::Complete { pick } if !model.is_empty() => {
                        let wanted = model[pick % model.len()];
                        let sequence = ring.since(0).find(|(_, _, request)| **request == wanted).unwrap().0;
                        let mut swept = Vec::new();
                        prop_assert_eq!(ring.complete(sequence, &mut swept).unwrap().request, wanted);
                        let silent = |request: &(u32, bool)| !request.1 && request.0 < wanted.0;
                        let expected: Vec<_> = model.iter().copied().filter(silent).collect();
                        prop_assert_eq!(swept, expected);
                        model.retain(|request| *request != wanted && !silent(request));
                    }
                    Step::TakeBack { count } => {
                        let at = ring.len() - count.min(ring.len());
                        let back = ring.take_back(at);
                        prop_assert_eq!(&back, &model.split_off(model.len() - back.len()));
                    }
                    Step::Complete { .. } => {}
                }
                let left: Vec<_> = ring.since(0).map(|(_, _, request)| *request).collect();
                prop_assert_eq!(&left, &model);
            }
        }
    }
}

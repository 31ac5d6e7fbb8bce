//! Whether one member answers: a state machine fed with what probes and links show.

use crate::limits::{PROBE_BACKOFF_MS_MAX, PROBE_BACKOFF_MS_MIN};
use crate::time::Time;
use tenon_protocol::ids::Incarnation;
use tenon_protocol::message::NodeState;

/// How often a member is probed and how long its silence is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeTiming {
    /// From one answered probe to the next.
    pub heartbeat_ms: u64,
    /// A member that leaves a probe unanswered for this long is unreachable.
    pub unreachable_after_ms: u64,
}

impl ProbeTiming {
    /// A node that sees its clock jump by so much has stood still, and may be unreachable for others since.
    pub fn pause_ms(&self) -> u64 {
        self.unreachable_after_ms / 2
    }
}

/// Why a probe brought no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeFailure {
    /// It could not be delivered: the connection was refused, or broke.
    Broken,
    /// Nothing came back within the time of one probe.
    Silent,
    /// The member, or this node, refused the other: wrong member list, wrong proof, unknown version.
    Refused,
}

/// What an incarnation says of a member's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The life that was known.
    Same,
    /// The first one that was seen, or a later one: what an earlier life held is gone.
    New {
        /// The life before.
        previous: Option<Incarnation>,
    },
    /// An earlier life than the known one. Such an answer is a leftover: it is not to be believed.
    Stale {
        /// The known life.
        known: Incarnation,
    },
}

/// What is known of one member.
#[derive(Debug, Clone)]
pub struct Reachability {
    timing: ProbeTiming,
    state: NodeState,
    incarnation: Option<Incarnation>,
    /// When the first probe since the last answer was sent.
    silent_since: Option<Time>,
    is_probing: bool,
    probe_at: Time,
    backoff_ms: u64,
    /// When this node looked at the time last. A longer gap says that it has stood still.
    ticked_at: Option<Time>,
}

impl Reachability {
    /// A member that was never heard of; it is to be probed at once.
    pub fn new(timing: ProbeTiming) -> Self {
        Self {
            timing,
            state: NodeState::Unknown,
            incarnation: None,
            silent_since: None,
            is_probing: false,
            probe_at: Time::ZERO,
            backoff_ms: PROBE_BACKOFF_MS_MIN,
            ticked_at: None,
        }
    }

    /// Where the member stands.
    pub fn state(&self) -> NodeState {
        self.state
    }

    /// Its latest life that was seen.
    pub fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Whether a request may be sent: not if the member is known not to answer. One that was not tried yet may answer.
    pub fn may_ask(&self) -> bool {
        matches!(self.state, NodeState::Alive | NodeState::Unknown)
    }

    /// Moves on with time; call it several times per [`ProbeTiming::pause_ms`], also while a probe is under way. True
    /// says: send a probe now, in the place of one that is under way, and tell its result by [`Self::answered`] or
    /// [`Self::probe_failed`].
    pub fn tick(&mut self, now: Time) -> bool {
        if self.has_stood_still(now) {
            self.forget_silence(now);
        }
        self.ticked_at = Some(now);
        if self.is_silent_too_long(now) {
            self.state = NodeState::Unreachable;
        }
        let is_due = !self.is_probing && now >= self.probe_at;
        if is_due {
            self.is_probing = true;
            self.silent_since.get_or_insert(now);
        }
        is_due
    }

    /// The member answered a probe or any other call of ours. A stale answer changes nothing but ends the probe.
    pub fn answered(&mut self, now: Time, incarnation: Incarnation) -> Life {
        let life = self.seen(now, incarnation);
        self.is_probing = false;
        if matches!(life, Life::Stale { .. }) {
            self.back_off(now);
            return life;
        }
        self.state = NodeState::Alive;
        self.silent_since = None;
        self.backoff_ms = PROBE_BACKOFF_MS_MIN;
        // What was asked before a pause of our own does not say that we are seen now.
        let wait_ms = if self.has_stood_still(now) {
            0
        } else {
            self.timing.heartbeat_ms
        };
        self.probe_at = now.after_ms(wait_ms);
        life
    }

    /// The member called us: it lives, though that does not say that it can be reached. If it was thought not to answer
    /// it is probed at once.
    pub fn seen(&mut self, now: Time, incarnation: Incarnation) -> Life {
        match self.incarnation {
            Some(known) if incarnation < known => Life::Stale { known },
            Some(known) if incarnation == known && self.state == NodeState::Alive => Life::Same,
            previous => {
                self.incarnation = Some(incarnation);
                self.backoff_ms = PROBE_BACKOFF_MS_MIN;
                self.probe_at = self.probe_at.min(now);
                if previous == Some(incarnation) {
                    Life::Same
                } else {
                    Life::New { previous }
                }
            }
        }
    }

    /// The probe under way is not waited for any longer: the member has called us since it was sent, and may not have
    /// been there to get it. Another one is to be sent at once.
    pub fn probe_given_up(&mut self, now: Time) {
        self.is_probing = false;
        self.probe_at = self.probe_at.min(now);
    }

    /// A probe brought no answer.
    pub fn probe_failed(&mut self, now: Time, failure: ProbeFailure) {
        if self.has_stood_still(now) {
            return self.forget_silence(now);
        }
        self.is_probing = false;
        match failure {
            ProbeFailure::Broken => self.state = NodeState::Unreachable,
            ProbeFailure::Refused => {
                self.state = NodeState::Refused;
                self.silent_since = None;
            }
            ProbeFailure::Silent if self.is_silent_too_long(now) => self.state = NodeState::Unreachable,
            ProbeFailure::Silent => {}
        }
        self.back_off(now);
    }

    /// A link to the member broke: it is probed at once, and if that cannot be delivered it is unreachable.
    pub fn link_broke(&mut self, now: Time) {
        if self.state == NodeState::Alive {
            self.probe_at = self.probe_at.min(now);
        }
    }

    fn has_stood_still(&self, now: Time) -> bool {
        let pause_ms = self.timing.pause_ms();
        self.ticked_at
            .is_some_and(|ticked_at| now.since_ms(ticked_at) >= pause_ms)
    }

    /// This node has stood still while a probe was under way: that it was not answered, or that its connection broke,
    /// says nothing of the member.
    fn forget_silence(&mut self, now: Time) {
        self.silent_since = None;
        self.probe_given_up(now);
    }

    fn is_silent_too_long(&self, now: Time) -> bool {
        self.silent_since
            .is_some_and(|since| now.since_ms(since) >= self.timing.unreachable_after_ms)
    }

    fn back_off(&mut self, now: Time) {
        self.probe_at = now.after_ms(self.backoff_ms);
        self.backoff_ms = (self.backoff_ms * 2).min(PROBE_BACKOFF_MS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMING: ProbeTiming = ProbeTiming {
        heartbeat_ms: 1_000,
        unreachable_after_ms: 3_000,
    };
    const FIRST: Incarnation = Incarnation(7);

    fn at(ms: u64) -> Time {
        Time::from_ms(ms)
    }

    /// A member that answered a probe at 0.
    fn alive() -> Reachability {
        let mut peer = Reachability::new(TIMING);
        assert!(peer.tick(at(0)));
        assert_eq!(peer.answered(at(0), FIRST), Life::New { previous: None });
        peer
    }

    #[test]
    fn an_unknown_member_is_probed_at_once_and_once_at_a_time() {
        let mut peer = Reachability::new(TIMING);
        assert_eq!(peer.state(), NodeState::Unknown);
        assert!(peer.may_ask());
        assert!(peer.tick(at(5)));
        assert!(!peer.tick(at(1_000)));
    }

    #[test]
    fn an_answering_member_is_probed_once_per_heartbeat() {
        let mut peer = alive();
        assert_eq!(peer.state(), NodeState::Alive);
        assert!(!peer.tick(at(999)));
        assert!(peer.tick(at(1_000)));
        assert_eq!(peer.answered(at(1_001), FIRST), Life::Same);
        assert!(!peer.tick(at(2_000)));
        assert!(peer.tick(at(2_001)));
    }

    #[test]
    fn silence_makes_a_member_unreachable_only_after_the_bound() {
        let mut peer = alive();
        assert!(peer.tick(at(1_000)));
        for now in [2_000, 3_000, 3_999] {
            assert!(!peer.tick(at(now)));
            assert_eq!(peer.state(), NodeState::Alive);
        }
        peer.tick(at(4_000));
        assert_eq!(peer.state(), NodeState::Unreachable);
        assert!(!peer.may_ask());
    }

    #[test]
    fn a_pause_of_our_own_is_no_silence_of_the_member() {
        let mut peer = alive();
        assert!(peer.tick(at(60_000)), "no probe was open during the pause");
        assert_eq!(peer.state(), NodeState::Alive);
        // One is open during the next: another is sent in its place, whatever came of it.
        assert!(peer.tick(at(120_000)));
        assert_eq!(peer.state(), NodeState::Alive);
        for (now, failure) in [(180_000, ProbeFailure::Silent), (240_000, ProbeFailure::Broken)] {
            peer.probe_failed(at(now), failure);
            assert_eq!(peer.state(), NodeState::Alive);
            assert!(peer.tick(at(now)));
        }
        peer.probe_failed(at(240_001), ProbeFailure::Broken);
        assert_eq!(peer.state(), NodeState::Unreachable);
    }

    #[test]
    fn a_member_that_answered_what_was_asked_before_our_pause_is_probed_at_once() {
        let mut peer = alive();
        assert!(peer.tick(at(1_000)));
        peer.answered(at(60_000), FIRST);
        assert!(peer.tick(at(60_000)));
    }

    #[test]
    fn a_probe_that_cannot_be_delivered_makes_it_unreachable_at_once() {
        let mut peer = alive();
        peer.link_broke(at(100));
        assert!(peer.tick(at(100)));
        assert_eq!(peer.state(), NodeState::Alive);
        peer.probe_failed(at(101), ProbeFailure::Broken);
        assert_eq!(peer.state(), NodeState::Unreachable);
    }

    #[test]
    fn probes_of_a_member_that_is_down_back_off_from_50_ms_to_5_s() {
        let mut peer = alive();
        let (mut now, mut waits) = (1_000, Vec::new());
        assert!(peer.tick(at(now)));
        for _ in 0..9 {
            peer.probe_failed(at(now), ProbeFailure::Broken);
            let failed_at = now;
            while !peer.tick(at(now)) {
                now += 1;
            }
            waits.push(now - failed_at);
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        peer.answered(at(now), FIRST);
        assert_eq!(peer.state(), NodeState::Alive);
        assert!(!peer.tick(at(now + 999)));
    }

    #[test]
    fn a_refusal_is_an_answer_and_not_a_silence() {
        let mut peer = alive();
        for now in [1_000, 1_050, 1_150, 1_350, 1_750, 2_550, 4_150, 7_350] {
            assert!(peer.tick(at(now)), "{now}");
            peer.probe_failed(at(now), ProbeFailure::Refused);
            assert_eq!(peer.state(), NodeState::Refused);
        }
    }

    #[test]
    fn a_higher_incarnation_is_a_new_life_and_a_lower_one_is_not_believed() {
        let mut peer = alive();
        let next = Incarnation(8);
        assert!(peer.tick(at(1_000)));
        assert_eq!(peer.answered(at(1_000), next), Life::New { previous: Some(FIRST) });
        assert!(peer.tick(at(2_000)));
        assert_eq!(peer.answered(at(2_000), FIRST), Life::Stale { known: next });
        assert_eq!(peer.incarnation(), Some(next));
    }

    #[test]
    fn a_probe_that_is_given_up_is_followed_by_another_and_its_silence_counts() {
        let mut peer = alive();
        assert!(peer.tick(at(1_000)));
        assert!(!peer.tick(at(2_000)));
        peer.probe_given_up(at(2_000));
        assert!(peer.tick(at(2_000)));
        peer.tick(at(3_000));
        peer.tick(at(4_000));
        assert_eq!(peer.state(), NodeState::Unreachable);
    }

    #[test]
    fn a_member_that_calls_us_is_probed_at_once() {
        let mut peer = alive();
        assert!(peer.tick(at(1_000)));
        peer.probe_failed(at(1_000), ProbeFailure::Broken);
        assert_eq!(
            peer.seen(at(1_010), Incarnation(8)),
            Life::New { previous: Some(FIRST) }
        );
        assert_eq!(peer.state(), NodeState::Unreachable);
        assert!(peer.tick(at(1_010)));
    }
}

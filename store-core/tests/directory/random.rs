//! Random puts, removals and look-ups through both homes, with messages in any order, holders that stop and restart,
//! and one home that stops.
//!
//! Checked all the time: a key has at most one accepted object that nothing speaks against; what is found was sealed; a
//! token is answered once. Checked at the end: every token is answered, and nothing is left pending.

use crate::cluster::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use tenon_protocol::ids::{KeyHash, Version};
use tenon_protocol::member::{HomeAnswer, HomeEventKind};
use tenon_protocol::message::KeyResult;
use tenon_store_core::directory::RequestToken;
use tenon_store_core::limits::PENDING_CHECK_MS;
use tenon_store_core::time::Time;

const KEYS: u8 = 2;
const HOLDERS: usize = 3;

/// What may stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Only holders.
    None,
    /// The second home, for a while: what is sent to it meanwhile waits for it, or is taken as not delivered.
    SecondPauses,
    /// The first home, for good.
    FirstDies,
}

#[derive(Debug, Clone)]
enum Step {
    Put { key: u8, holder: usize, at_second: bool },
    Remove { key: u8, at_second: bool },
    Locate { key: u8, at_second: bool },
    Deliver { which: usize },
    Pass { ms: u64 },
    Restart { holder: usize },
    Toggle { holder: usize },
    Fault,
}

fn step() -> impl Strategy<Value = Step> {
    let key = || 0..KEYS;
    let at_second = || prop::bool::weighted(0.3);
    prop_oneof![
        8 => (key(), 0..HOLDERS, at_second()).prop_map(|(key, holder, at_second)| Step::Put { key, holder, at_second }),
        2 => (key(), at_second()).prop_map(|(key, at_second)| Step::Remove { key, at_second }),
        3 => (key(), at_second()).prop_map(|(key, at_second)| Step::Locate { key, at_second }),
        60 => any::<usize>().prop_map(|which| Step::Deliver { which }),
        3 => (1u64..4_000).prop_map(|ms| Step::Pass { ms }),
        1 => (0..HOLDERS).prop_map(|holder| Step::Restart { holder }),
        2 => (0..HOLDERS).prop_map(|holder| Step::Toggle { holder }),
        1 => Just(Step::Fault),
    ]
}

/// A put whose answer is waited for.
#[derive(Debug, Clone, Copy)]
struct Put {
    id: u64,
    key: KeyHash,
    holder: usize,
    incarnation: u64,
    home: usize,
    /// Sealed, and to be reported.
    sealed: Option<Version>,
}

struct Run {
    cluster: Cluster,
    fault: Fault,
    last_put: u64,
    puts: HashMap<RequestToken, Put>,
    locates: HashMap<RequestToken, KeyHash>,
    removals: HashMap<RequestToken, KeyHash>,
    /// Until when a removal that was answered by an error may still be done, by key.
    late_removals: BTreeMap<KeyHash, Time>,
    withdrawals: HashSet<RequestToken>,
    /// Objects that a home has accepted, by key, and from which holder.
    accepted: BTreeMap<KeyHash, HashMap<Version, usize>>,
    /// Objects that may be gone: withdrawn, removed, or lost with their holder.
    gone: HashSet<(KeyHash, Version)>,
    sealed: HashSet<(KeyHash, Version)>,
    acknowledged: usize,
}

impl Run {
    fn new(fault: Fault) -> Self {
        Self {
            cluster: Cluster::new(HOLDERS),
            fault,
            last_put: 0,
            puts: HashMap::new(),
            locates: HashMap::new(),
            removals: HashMap::new(),
            late_removals: BTreeMap::new(),
            withdrawals: HashSet::new(),
            accepted: BTreeMap::new(),
            gone: HashSet::new(),
            sealed: HashSet::new(),
            acknowledged: 0,
        }
    }

    /// The home that a caller asks: the one it wants, unless it knows that it does not answer.
    fn home(&self, at_second: bool) -> usize {
        match self.cluster.home_answers {
            [false, _] => SECOND,
            [_, false] => FIRST,
            _ => usize::from(at_second),
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Put {
                key: id,
                holder,
                at_second,
            } => self.put(key(id), holder, at_second),
            Step::Remove { key: id, at_second } => {
                let (key, home) = (key(id), self.home(at_second));
                let token = self.cluster.send(home, key, remove());
                self.removals.insert(token, key);
                self.doubt(key, |_| true);
            }
            Step::Locate { key: id, at_second } => {
                let home = self.home(at_second);
                let token = self.cluster.send(home, key(id), HomeEventKind::Locate);
                self.locates.insert(token, key(id));
            }
            Step::Deliver { which } => self.deliver(which),
            Step::Pass { ms } => self.cluster.pass(ms),
            Step::Restart { holder } => {
                self.cluster.restart(holder);
                self.doubt_holder(holder);
            }
            Step::Toggle { holder } => {
                let node = &mut self.cluster.holders[holder];
                node.answers = !node.answers;
                self.doubt_holder(holder);
            }
            Step::Fault => self.fault(),
        }
        self.take_answers();
    }

    fn fault(&mut self) {
        match self.fault {
            Fault::None => {}
            Fault::SecondPauses => self.cluster.home_answers[SECOND] ^= true,
            Fault::FirstDies => self.cluster.home_answers[FIRST] = false,
        }
    }

    fn deliver(&mut self, which: usize) {
        let under_way = self.cluster.under_way.len();
        if under_way == 0 {
            return;
        }
        let index = which % under_way;
        let is_for_second = matches!(self.cluster.under_way[index], Message::ToHome(SECOND, _));
        let is_paused = self.fault == Fault::SecondPauses && !self.cluster.home_answers[SECOND];
        if is_for_second && is_paused {
            self.cluster.leave_or_give_up(index, which.is_multiple_of(2));
        } else {
            self.cluster.deliver(index);
        }
    }

    fn put(&mut self, key: KeyHash, holder: usize, at_second: bool) {
        self.last_put += 1;
        let put = Put {
            id: self.last_put,
            key,
            holder,
            incarnation: self.cluster.holders[holder].incarnation,
            home: self.home(at_second),
            sealed: None,
        };
        let token = self
            .cluster
            .send(put.home, key, propose(put.id, holder, put.incarnation));
        self.puts.insert(token, put);
    }

    /// Something was said or done that speaks against objects of the key.
    fn doubt(&mut self, key: KeyHash, is_meant: impl Fn(usize) -> bool) {
        let accepted = self.accepted.get(&key).into_iter().flatten();
        let doubted = accepted
            .filter(|(_, holder)| is_meant(**holder))
            .map(|(version, _)| (key, *version));
        self.gone.extend(doubted);
    }

    fn doubt_holder(&mut self, holder: usize) {
        for id in 0..KEYS {
            self.doubt(key(id), |other| other == holder);
        }
    }

    fn take_answers(&mut self) {
        for (token, answer) in std::mem::take(&mut self.cluster.answers) {
            if let Some(put) = self.puts.remove(&token) {
                match put.sealed {
                    None => self.proposed(put, answer),
                    Some(version) => self.reported(put, version, answer),
                }
            } else if let Some(key) = self.locates.remove(&token) {
                self.located(key, answer);
            } else if let Some(key) = self.removals.remove(&token) {
                if answer.is_err() {
                    self.late_removals.insert(key, self.cluster.now.after_ms(DEADLINE_MS));
                }
            } else {
                assert!(self.withdrawals.remove(&token), "{token:?} was answered before");
            }
        }
    }

    fn proposed(&mut self, put: Put, answer: KeyResult<HomeAnswer>) {
        let Put { key, holder, .. } = put;
        match answer {
            Ok(HomeAnswer::Accepted { version, .. }) => {
                let has_restarted = self.cluster.holders[holder].incarnation != put.incarnation;
                if has_restarted || self.may_be_removed(key) {
                    self.gone.insert((key, version));
                }
                self.check_alone(key, version);
                self.accepted.entry(key).or_default().insert(version, holder);
                if has_restarted {
                    return;
                }
                let node = &mut self.cluster.holders[holder];
                if let Some(older) = node.sealed.insert(key, version) {
                    self.gone.insert((key, older));
                }
                self.sealed.insert((key, version));
                let home = self.home(put.home == SECOND);
                let token = self.cluster.send(home, key, sealed(version, holder));
                let sealed = Some(version);
                self.puts.insert(token, Put { home, sealed, ..put });
            }
            Ok(HomeAnswer::AlreadyExists { version, .. }) => {
                assert!(
                    self.sealed.contains(&(key, version)),
                    "an object exists that was never sealed"
                );
            }
            Ok(other) => panic!("{other:?}"),
            Err(_) => self.withdraw(put),
        }
    }

    fn may_be_removed(&self, key: KeyHash) -> bool {
        let is_late = self
            .late_removals
            .get(&key)
            .is_some_and(|until| *until >= self.cluster.now);
        is_late || self.cluster.may_remove(key) || self.removals.values().any(|removed| *removed == key)
    }

    fn check_alone(&self, key: KeyHash, version: Version) {
        // The answer may come late, when there is a word against this very object already.
        let is_doubted = |version: Version| {
            let object = (key, version);
            self.gone.contains(&object) || self.cluster.doubted.contains(&object)
        };
        for &other in self.accepted.get(&key).into_iter().flat_map(HashMap::keys) {
            // What a home has decided alone before it died the other need not know.
            let is_untold = self.fault == Fault::FirstDies && self.cluster.untold.contains(&key);
            let is_alone = other == version || is_untold || is_doubted(other) || is_doubted(version);
            assert!(is_alone, "{key}: {version} is accepted beside {other}");
        }
    }

    fn reported(&mut self, put: Put, version: Version, answer: KeyResult<HomeAnswer>) {
        match answer {
            Ok(HomeAnswer::Done { .. }) => self.acknowledged += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => {
                let sealed = &mut self.cluster.holders[put.holder].sealed;
                if sealed.get(&put.key) == Some(&version) {
                    sealed.remove(&put.key);
                }
                self.gone.insert((put.key, version));
                self.withdraw(put);
            }
        }
    }

    fn withdraw(&mut self, put: Put) {
        let home = self.home(put.home == SECOND);
        let token = self.cluster.send(home, put.key, withdrawn(put.id, put.holder));
        self.withdrawals.insert(token);
        // Its acceptance may still be on its way: such an object was given up before it was accepted.
        let accepted = self.accepted.entry(put.key).or_default();
        let versions = accepted
            .keys()
            .filter(|version| version.put_id == crate::cluster::put(put.id));
        self.gone.extend(versions.map(|version| (put.key, *version)));
    }

    fn located(&self, key: KeyHash, answer: KeyResult<HomeAnswer>) {
        match answer {
            Ok(HomeAnswer::Hit(entry)) => {
                assert!(
                    self.sealed.contains(&(key, entry.version)),
                    "{key}: {} was never sealed",
                    entry.version
                );
            }
            Ok(HomeAnswer::Miss) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
    }

    /// Everything that can answer does, and time passes.
    fn finish(mut self) -> usize {
        if self.fault == Fault::SecondPauses {
            self.cluster.home_answers[SECOND] = true;
        }
        for node in &mut self.cluster.holders {
            node.answers = true;
        }
        for _ in 0..8 {
            while !self.cluster.under_way.is_empty() {
                self.deliver(0);
                self.take_answers();
            }
            self.cluster.pass(PENDING_CHECK_MS);
            self.take_answers();
        }
        let lost = |token: &RequestToken| self.cluster.is_lost(*token);
        assert!(
            self.puts
                .keys()
                .chain(self.locates.keys())
                .chain(self.removals.keys())
                .chain(&self.withdrawals)
                .all(lost),
            "a token is not answered"
        );
        for (home, directory) in self.cluster.directories.iter().enumerate() {
            if self.cluster.home_answers[home] {
                let counts = directory.counts();
                assert_eq!(
                    (counts.pending, counts.requests, counts.questions),
                    (0, 0, 0),
                    "home {home}"
                );
            }
        }
        if self.fault == Fault::None {
            for id in 0..KEYS {
                let found = [FIRST, SECOND].map(|home| self.cluster.located(home, key(id)));
                let agree = found[FIRST] == found[SECOND] || self.cluster.untold.contains(&key(id));
                assert!(agree, "the homes of a key do not agree: {found:?}");
            }
        }
        self.acknowledged
    }
}

fn run(fault: Fault, steps: &[Step]) -> usize {
    let mut run = Run::new(fault);
    for step in steps {
        run.apply(step);
    }
    run.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn homes_that_answer(steps in prop::collection::vec(step(), 1..400)) {
        run(Fault::None, &steps);
    }

    #[test]
    fn a_second_home_that_pauses(steps in prop::collection::vec(step(), 1..400)) {
        run(Fault::SecondPauses, &steps);
    }

    #[test]
    fn a_first_home_that_dies(steps in prop::collection::vec(step(), 1..400)) {
        run(Fault::FirstDies, &steps);
    }
}

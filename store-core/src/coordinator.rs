//! What a coordinator asks the homes of one key, one after the other, and what their answers say together.

use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, Version};
use tenon_protocol::member::{HomeAnswer, HomeEntry, Homes};
use tenon_protocol::message::{KeyResult, Located, Replica};

/// A decision on its way: to the first home, and to the second only where the first can't be reached.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    homes: Homes,
    is_at_second: bool,
}

impl Route {
    /// A decision about a key with these homes. The first home is left out if it is known not to answer.
    pub fn new(homes: Homes, is_first_reachable: bool) -> Self {
        Self {
            homes,
            is_at_second: !is_first_reachable && homes.second.is_some(),
        }
    }

    /// Whom to ask.
    pub fn home(&self) -> NodeId {
        match self.homes.second {
            Some(second) if self.is_at_second => second,
            _ => self.homes.first,
        }
    }

    /// The home that was asked has answered. True says that the other one is to be asked.
    pub fn goes_on(&mut self, answer: &KeyResult<HomeAnswer>) -> bool {
        let is_silent = answer.as_ref().is_err_and(|error| is_silence_of(error, self.home()));
        let goes_on = is_silent && !self.is_at_second && self.homes.second.is_some();
        self.is_at_second |= goes_on;
        goes_on
    }
}

fn is_silence_of(error: &ServiceError, node: NodeId) -> bool {
    error.code == ErrorCode::Unavailable && error.node == Some(node)
}

/// A look-up: a hit needs one home, a miss needs a home that is settled and no hit from the other.
#[derive(Debug, Clone)]
pub struct LookUp {
    homes: Homes,
    asks_both: bool,
    answers: Vec<KeyResult<HomeAnswer>>,
}

/// What the homes of a key say together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The key has this object.
    Hit(HomeEntry),
    /// It has none.
    Miss,
    /// The homes do not know yet: ask again.
    Unknown,
    /// It can't be said.
    Failed(ServiceError),
}

impl LookUp {
    /// Looks a key up. `asks_both`: the caller has reason not to believe one home alone.
    pub fn new(homes: Homes, asks_both: bool) -> Self {
        Self {
            homes,
            asks_both,
            answers: Vec::with_capacity(2),
        }
    }

    /// Whom to ask next; `None` if there is enough to tell what is found.
    pub fn home(&self) -> Option<NodeId> {
        match self.answers.as_slice() {
            [] => Some(self.homes.first),
            [Ok(HomeAnswer::Hit(_))] if !self.asks_both => None,
            [_] => self.homes.second,
            _ => None,
        }
    }

    /// The home that was to be asked has answered.
    pub fn answered(&mut self, answer: KeyResult<HomeAnswer>) {
        self.answers.push(answer);
    }

    /// What the answers say together. Of two objects the one that wins is the key's.
    pub fn found(self) -> Found {
        let (mut hit, mut is_miss, mut is_unknown, mut failure) = (None::<HomeEntry>, false, false, None);
        for answer in self.answers {
            match answer {
                Ok(HomeAnswer::Hit(entry)) => match &hit {
                    Some(known) if !entry.version.wins_over(&known.version) => {}
                    _ => hit = Some(entry),
                },
                Ok(HomeAnswer::Miss) => is_miss = true,
                Ok(HomeAnswer::Unknown) => is_unknown = true,
                Ok(other) => {
                    let message = format!("a home answered a look-up with {other:?}");
                    failure = failure.or(Some(ServiceError::new(ErrorCode::Internal, message)));
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        match (hit, failure) {
            (Some(entry), _) => Found::Hit(entry),
            _ if is_miss => Found::Miss,
            _ if is_unknown => Found::Unknown,
            (None, Some(error)) => Found::Failed(error),
            (None, None) => Found::Failed(ServiceError::new(ErrorCode::Internal, "no home was asked")),
        }
    }
}

/// What a reader is told that did not find an object of this version where it was said to be, and had the homes look: what they say now, unless it is the
/// same and the home whose word it is has not looked. `looked` are their answers to the doubt, the first home's first; the second one counts where the
/// first does not answer at all.
///
/// # Errors
/// Why the home has not looked: whether the object is there can't be said.
pub fn relocated(
    homes: Homes,
    missed: Version,
    looked: Vec<KeyResult<HomeAnswer>>,
    found: Option<Located>,
) -> KeyResult<Option<Located>> {
    let mut looked = looked.into_iter();
    let word = match (looked.next(), looked.next()) {
        (Some(Err(error)), Some(second)) if is_silence_of(&error, homes.first) => second,
        (Some(first), _) => first,
        (None, _) => return Ok(found),
    };
    match (&found, word) {
        (Some(located), Err(error)) if located.version == missed => Err(error),
        _ => Ok(found),
    }
}

/// What a coordinator knows of a replica's holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HolderState {
    /// It may be asked, in the life in which it holds the replica as far as is known.
    Reachable,
    /// It does not answer now.
    Silent,
    /// It has begun another life: the replica is gone.
    LaterLife,
}

/// The replicas of a key's object that can be read now. An object whose holders are all in a later life is gone with
/// them: a miss.
///
/// # Errors
/// `unavailable` with a holder that is silent, if no other can be read.
pub fn readable(entry: HomeEntry, state: impl Fn(&Replica) -> HolderState) -> KeyResult<Option<Located>> {
    let (mut replicas, mut silent) = (Vec::new(), None);
    for replica in entry.replicas {
        match state(&replica) {
            HolderState::Reachable => replicas.push(replica),
            HolderState::Silent => silent = Some(replica.holder),
            HolderState::LaterLife => {}
        }
    }
    match (replicas.is_empty(), silent) {
        (false, _) => Ok(Some(Located {
            version: entry.version,
            len_bytes: entry.len_bytes,
            replicas,
        })),
        (true, Some(node)) => Err(ServiceError::unavailable(node, "it holds the object")),
        (true, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenon_protocol::ids::{Epoch, Generation, Incarnation, PutId, SegmentId, Slot};

    const FIRST: NodeId = NodeId::from_bytes([1; 16]);
    const SECOND: NodeId = NodeId::from_bytes([2; 16]);
    const HOMES: Homes = Homes {
        first: FIRST,
        second: Some(SECOND),
    };

    fn entry(epoch: u64) -> HomeEntry {
        let version = Version {
            epoch: Epoch(epoch),
            put_id: PutId::from_bytes([7; 16]),
        };
        HomeEntry {
            version,
            len_bytes: 1,
            replicas: Vec::new(),
        }
    }

    fn hit(epoch: u64) -> KeyResult<HomeAnswer> {
        Ok(HomeAnswer::Hit(entry(epoch)))
    }

    fn silent(node: NodeId) -> KeyResult<HomeAnswer> {
        Err(ServiceError::unavailable(node, "it is a home of the key"))
    }

    /// What is found, and how many homes were asked for it.
    fn look_up(asks_both: bool, answers: [KeyResult<HomeAnswer>; 2]) -> (Found, usize) {
        let mut look_up = LookUp::new(HOMES, asks_both);
        let mut asked = 0;
        while let Some(home) = look_up.home() {
            assert_eq!(home, [FIRST, SECOND][asked]);
            look_up.answered(answers[asked].clone());
            asked += 1;
        }
        (look_up.found(), asked)
    }

    #[test]
    fn a_hit_of_the_first_home_is_enough_unless_it_is_not_believed() {
        assert_eq!(look_up(false, [hit(1), hit(2)]), (Found::Hit(entry(1)), 1));
        assert_eq!(look_up(true, [hit(1), hit(2)]), (Found::Hit(entry(2)), 2));
        assert_eq!(look_up(true, [hit(2), hit(1)]), (Found::Hit(entry(2)), 2));
    }

    #[test]
    fn what_was_missed_is_not_said_to_be_there_by_a_home_that_has_not_looked() {
        let found = || {
            let HomeEntry { version, len_bytes, .. } = entry(1);
            let replicas = Vec::new();
            Some(Located {
                version,
                len_bytes,
                replicas,
            })
        };
        let (missed, later) = (entry(1).version, entry(2).version);
        let done = || Ok(HomeAnswer::Done { changed: false });
        let late = || Err(ServiceError::new(ErrorCode::DeadlineExceeded, "it has not decided"));
        let told = |missed, looked: [KeyResult<HomeAnswer>; 2]| relocated(HOMES, missed, looked.into(), found());
        assert_eq!(told(missed, [done(), late()]), Ok(found()));
        assert_eq!(told(missed, [silent(FIRST), done()]), Ok(found()));
        assert_eq!(
            told(missed, [late(), done()]).map_err(|error| error.code),
            Err(ErrorCode::DeadlineExceeded)
        );
        assert!(told(missed, [silent(FIRST), silent(SECOND)]).is_err());
        assert_eq!(told(later, [late(), late()]), Ok(found()), "it is another one");
        assert_eq!(relocated(HOMES, missed, vec![late(), late()], None), Ok(None));
    }

    #[test]
    fn a_miss_needs_a_settled_home_and_no_hit_from_the_other() {
        let (miss, unknown) = (Ok(HomeAnswer::Miss), Ok(HomeAnswer::Unknown));
        assert_eq!(look_up(false, [miss.clone(), hit(1)]).0, Found::Hit(entry(1)));
        assert_eq!(look_up(false, [miss.clone(), unknown.clone()]).0, Found::Miss);
        assert_eq!(look_up(false, [miss.clone(), silent(SECOND)]).0, Found::Miss);
        assert_eq!(look_up(false, [unknown.clone(), miss]).0, Found::Miss);
        assert_eq!(look_up(false, [unknown.clone(), silent(SECOND)]).0, Found::Unknown);
        assert_eq!(look_up(false, [unknown.clone(), unknown]).0, Found::Unknown);
    }

    #[test]
    fn homes_that_do_not_answer_make_no_miss() {
        let Found::Failed(error) = look_up(false, [silent(FIRST), silent(SECOND)]).0 else {
            panic!("nobody has answered");
        };
        assert_eq!((error.code, error.node), (ErrorCode::Unavailable, Some(FIRST)));
    }

    #[test]
    fn replicas_of_silent_holders_make_an_object_unavailable_and_those_of_later_lives_a_miss() {
        let replica = |holder: u8| Replica {
            holder: NodeId::from_bytes([holder; 16]),
            incarnation: Incarnation(1),
            segment: SegmentId(1),
            offset_bytes: 0,
            slot: Slot(0),
            generation: Generation(1),
            is_copy: false,
        };
        let readable = |states: &[HolderState]| {
            let replicas = (0u8..).zip(states).map(|(holder, _)| replica(holder)).collect();
            let entry = HomeEntry { replicas, ..entry(1) };
            readable(entry, |replica| states[usize::from(replica.holder.to_bytes()[0])])
        };
        use HolderState::{LaterLife, Reachable, Silent};
        let found = readable(&[Silent, Reachable, LaterLife]).unwrap().unwrap();
        assert_eq!(found.replicas, [replica(1)]);
        let silent = readable(&[LaterLife, Silent]).unwrap_err();
        assert_eq!(
            (silent.code, silent.node),
            (ErrorCode::Unavailable, Some(replica(1).holder))
        );
        assert_eq!(readable(&[LaterLife, LaterLife]), Ok(None));
    }

    #[test]
    fn a_decision_goes_to_the_second_home_only_where_the_first_is_silent() {
        let mut route = Route::new(HOMES, true);
        assert_eq!(route.home(), FIRST);
        let refused = Err(ServiceError::new(ErrorCode::Conflict, "another object"));
        assert!(!route.goes_on(&refused) && !route.goes_on(&silent(SECOND)) && !route.goes_on(&hit(1)));
        assert!(route.goes_on(&silent(FIRST)));
        assert_eq!(route.home(), SECOND);
        assert!(!route.goes_on(&silent(SECOND)) && !route.goes_on(&silent(FIRST)));
        assert_eq!(Route::new(HOMES, false).home(), SECOND);
    }
}

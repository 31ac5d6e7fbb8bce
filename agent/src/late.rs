//! What a home has not decided by the time at which its frame is answered: kept under tickets until it is asked for.

use crate::home::not_answered;
use crate::limits::{FRAME_WAIT_MAX, FRAME_WAIT_MIN, LATE_FORGOTTEN_EVERY, LATE_KEPT_MAX, LATE_KEYS_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::member::{HomeAnswer, Ticket};
use tenon_protocol::message::KeyResult;
use tenon_store_core::directory::RequestToken;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// An answer that is not there yet. The directory gives it, at the latest at the request's deadline.
pub(crate) type Undecided = oneshot::Receiver<KeyResult<HomeAnswer>>;

/// A request's answer, now or later.
#[derive(Debug)]
pub(crate) enum Waiting {
    Answered(KeyResult<HomeAnswer>),
    For(Undecided),
}

#[derive(Debug)]
struct Kept {
    answer: Undecided,
    /// Who was given the ticket, which is good for nobody else.
    asker: NodeId,
    /// After this nobody asks for it any more.
    until: Instant,
}

#[derive(Debug)]
struct Answers {
    kept: HashMap<RequestToken, Kept>,
    forgotten_at: Instant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Late {
    life: Incarnation,
    answers: Mutex<Answers>,
}

impl Late {
    /// Nothing yet, in this life of the node.
    pub(crate) fn new(life: Incarnation) -> Self {
        Self {
            life,
            answers: Mutex::new(Answers {
                kept: HashMap::new(),
                forgotten_at: Instant::now(),
            }),
        }
    }

    /// Waits for the answers of one frame, within the bound if there are several: in the place of each that is not
    /// there by then stands its ticket, for this asker.
    pub(crate) async fn answers(
        &self,
        asker: NodeId,
        requests: Vec<(RequestToken, Waiting)>,
        deadline: Instant,
    ) -> Vec<KeyResult<HomeAnswer>> {
        // Nobody waits for the only one.
        let bound = match requests.len() {
            1 => None,
            _ => Some(wait_until(Instant::now(), deadline)),
        };
        let mut answers = Vec::with_capacity(requests.len());
        for (token, request) in requests {
            answers.push(match (request, bound) {
                (Waiting::Answered(answer), _) => answer,
                (Waiting::For(undecided), None) => decided(undecided.await),
                (Waiting::For(mut undecided), Some(bound)) => match timeout_at(bound, &mut undecided).await {
                    Ok(answer) => decided(answer),
                    Err(_) => match self.keep(token, undecided, asker, deadline) {
                        Ok(ticket) => Ok(HomeAnswer::Later { ticket }),
                        Err(undecided) => decided(undecided.await),
                    },
                },
            });
        }
        answers
    }

    /// Gives an answer back for which there is no room.
    fn keep(
        &self,
        token: RequestToken,
        answer: Undecided,
        asker: NodeId,
        deadline: Instant,
    ) -> Result<Ticket, Undecided> {
        let mut answers = self.answers.lock();
        if answers.kept.len() >= LATE_KEYS_MAX {
            return Err(answer);
        }
        // The deadline is whatever the asker says. Each time that it asks, what is still not decided is kept anew.
        let until = deadline.min(Instant::now() + LATE_KEPT_MAX);
        answers.kept.insert(token, Kept { answer, asker, until });
        Ok(Ticket {
            life: self.life,
            number: token.0,
        })
    }

    /// What these tickets stand for. Each is good once, for whom it was given to. `None` if one is of another life.
    pub(crate) fn take(&self, asker: NodeId, tickets: &[Ticket]) -> Option<Vec<(RequestToken, Waiting)>> {
        let mut answers = self.answers.lock();
        let mut taken = |ticket: &Ticket| {
            let token = RequestToken(ticket.number);
            let waiting = match answers.kept.entry(token) {
                Entry::Occupied(kept) if kept.get().asker == asker => Waiting::For(kept.remove().answer),
                _ => {
                    let message = "the home keeps no event under this ticket, or not any more";
                    Waiting::Answered(Err(ServiceError::new(ErrorCode::DeadlineExceeded, message)))
                }
            };
            (token, waiting)
        };
        let is_own = tickets.iter().all(|ticket| ticket.life == self.life);
        is_own.then(|| tickets.iter().map(&mut taken).collect())
    }

    /// Forgets what nobody asks for any more, if that was not done a moment ago.
    pub(crate) fn forget(&self, now: Instant) {
        let mut answers = self.answers.lock();
        if now.saturating_duration_since(answers.forgotten_at) >= LATE_FORGOTTEN_EVERY {
            answers.forgotten_at = now;
            answers.kept.retain(|_, kept| kept.until > now);
        }
    }
}

/// How long the keys of a frame wait for each other. A quarter of the time that is left at most: what is decided must
/// be back in time, and what is not must be asked for.
fn wait_until(now: Instant, deadline: Instant) -> Instant {
    let left = deadline.saturating_duration_since(now);
    now + (left / 4).clamp(FRAME_WAIT_MIN, FRAME_WAIT_MAX)
}

fn decided(answer: Result<KeyResult<HomeAnswer>, oneshot::error::RecvError>) -> KeyResult<HomeAnswer> {
    answer.unwrap_or_else(|_| Err(not_answered()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const DONE: KeyResult<HomeAnswer> = Ok(HomeAnswer::Done { changed: true });
    const LIFE: Incarnation = Incarnation(7);
    const ASKER: NodeId = NodeId::from_bytes([3; 16]);

    type Senders = Vec<oneshot::Sender<KeyResult<HomeAnswer>>>;

    fn undecided(tokens: std::ops::Range<u64>) -> (Senders, Vec<(RequestToken, Waiting)>) {
        let waiting = tokens.map(|token| {
            let (sender, receiver) = oneshot::channel();
            (sender, (RequestToken(token), Waiting::For(receiver)))
        });
        waiting.unzip()
    }

    fn ticket(number: u64) -> Ticket {
        Ticket { life: LIFE, number }
    }

    fn later(number: u64) -> KeyResult<HomeAnswer> {
        let ticket = ticket(number);
        Ok(HomeAnswer::Later { ticket })
    }

    fn late() -> (Late, Instant) {
        (Late::new(LIFE), Instant::now() + Duration::from_secs(5))
    }

    fn decide_all(senders: impl IntoIterator<Item = oneshot::Sender<KeyResult<HomeAnswer>>>) {
        for sender in senders {
            sender.send(DONE).unwrap();
        }
    }

    /// Decides after the bound of a frame.
    fn decide_late(senders: Senders) {
        tokio::spawn(async move {
            tokio::time::sleep(4 * FRAME_WAIT_MAX).await;
            decide_all(senders);
        });
    }

    fn code(answer: &KeyResult<HomeAnswer>) -> Option<ErrorCode> {
        answer.as_ref().err().map(|error| error.code)
    }

    #[tokio::test(start_paused = true)]
    async fn the_keys_of_a_frame_do_not_wait_for_one_that_is_not_decided() {
        let (late, deadline) = late();
        let (mut senders, mut requests) = undecided(0..3);
        requests.push((RequestToken(3), Waiting::Answered(Ok(HomeAnswer::Miss))));
        decide_all(senders.drain(1..));
        let began = Instant::now();
        let answers = late.answers(ASKER, requests, deadline).await;
        assert_eq!(answers, [later(0), DONE, DONE, Ok(HomeAnswer::Miss)]);
        assert!(began.elapsed() < 2 * FRAME_WAIT_MAX);
        // Asked for alone it is waited for.
        decide_late(senders);
        let asked = late.take(ASKER, &[ticket(0)]).unwrap();
        assert_eq!(late.answers(ASKER, asked, deadline).await, [DONE]);
        assert!(late.answers.lock().kept.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_good_once_until_its_deadline_and_in_one_life() {
        let (late, deadline) = late();
        let (senders, requests) = undecided(0..2);
        assert_eq!(late.answers(ASKER, requests, deadline).await, [later(0), later(1)]);
        late.forget(deadline - LATE_FORGOTTEN_EVERY);
        decide_all(senders);
        let of_another_life = Ticket {
            life: Incarnation(LIFE.0 - 1),
            number: 0,
        };
        assert!(late.take(ASKER, &[ticket(0), of_another_life]).is_none());
        let twice = late.take(ASKER, &[ticket(0), ticket(0)]).unwrap();
        let answers = late.answers(ASKER, twice, deadline).await;
        assert_eq!(answers[0], DONE);
        assert_eq!(code(&answers[1]), Some(ErrorCode::DeadlineExceeded));
        late.forget(deadline);
        let gone = late.take(ASKER, &[ticket(1)]).unwrap();
        let gone = late.answers(ASKER, gone, deadline).await;
        assert_eq!(code(&gone[0]), Some(ErrorCode::DeadlineExceeded));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_decided_is_waited_for_where_there_is_no_room_to_keep_it() {
        let (late, deadline) = late();
        let most = LATE_KEYS_MAX as u64;
        let (_senders, full) = undecided(0..most);
        for (token, waiting) in full {
            let Waiting::For(answer) = waiting else {
                unreachable!("none is answered")
            };
            late.keep(token, answer, ASKER, deadline).unwrap();
        }
        let (senders, requests) = undecided(most..most + 2);
        decide_late(senders);
        assert_eq!(late.answers(ASKER, requests, deadline).await, [DONE, DONE]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_with_little_time_left_is_answered_within_it() {
        let left = FRAME_WAIT_MAX / 2;
        let late = Late::new(LIFE);
        let deadline = Instant::now() + left;
        let (mut senders, requests) = undecided(0..2);
        decide_all(senders.drain(1..));
        assert_eq!(late.answers(ASKER, requests, deadline).await, [later(0), DONE]);
        assert!(Instant::now() < deadline - left / 2);
        // Nor is it asked for again and again without a pause once the time has passed.
        let (_senders, requests) = undecided(2..4);
        let passed = Instant::now();
        assert_eq!(late.answers(ASKER, requests, passed).await, [later(2), later(3)]);
        assert!(passed.elapsed() >= FRAME_WAIT_MIN);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_that_nobody_asks_for_is_forgotten_long_before_a_far_deadline() {
        let late = Late::new(LIFE);
        let deadline = Instant::now() + Duration::from_secs(3600);
        let (_senders, requests) = undecided(0..3);
        late.answers(ASKER, requests, deadline).await;
        // Asked for again in time two of them are kept anew.
        tokio::time::advance(LATE_KEPT_MAX - LATE_FORGOTTEN_EVERY).await;
        let asked = late.take(ASKER, &[ticket(0), ticket(1)]).unwrap();
        assert_eq!(late.answers(ASKER, asked, deadline).await, [later(0), later(1)]);
        tokio::time::advance(LATE_FORGOTTEN_EVERY).await;
        late.forget(Instant::now());
        let tokens = || {
            let mut tokens: Vec<u64> = late.answers.lock().kept.keys().map(|token| token.0).collect();
            tokens.sort_unstable();
            tokens
        };
        assert_eq!(tokens(), [0, 1]);
        tokio::time::advance(LATE_KEPT_MAX).await;
        late.forget(Instant::now());
        assert_eq!(tokens(), [0; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_good_for_nobody_but_whom_it_was_given_to() {
        let (late, deadline) = late();
        let (senders, requests) = undecided(0..2);
        assert_eq!(late.answers(ASKER, requests, deadline).await, [later(0), later(1)]);
        decide_all(senders);
        let other = NodeId::from_bytes([4; 16]);
        let named = late.take(other, &[ticket(0), ticket(1)]).unwrap();
        for answer in late.answers(other, named, deadline).await {
            assert_eq!(code(&answer), Some(ErrorCode::DeadlineExceeded));
        }
        let own = late.take(ASKER, &[ticket(0), ticket(1)]).unwrap();
        assert_eq!(late.answers(ASKER, own, deadline).await, [DONE, DONE]);
    }
}

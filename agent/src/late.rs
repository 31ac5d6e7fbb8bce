//! What a home has not decided by the time at which its frame is answered: kept under tickets until it is asked for.

use crate::home::not_answered;
use crate::limits::{FRAME_WAIT_MAX, LATE_KEYS_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::Incarnation;
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
    /// After this nobody asks for it any more.
    until: Instant,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Late {
    life: Incarnation,
    kept: Mutex<HashMap<RequestToken, Kept>>,
}

impl Late {
    /// Nothing yet, in this life of the node.
    pub(crate) fn new(life: Incarnation) -> Self {
        Self {
            life,
            kept: Mutex::default(),
        }
    }

    /// Waits for the answers of one frame, within the bound if there are several: in the place of each that is not
    /// there by then stands its ticket.
    pub(crate) async fn answers(
        &self,
        requests: Vec<(RequestToken, Waiting)>,
        deadline: Instant,
    ) -> Vec<KeyResult<HomeAnswer>> {
        // Nobody waits for the only one.
        let bound = match requests.len() {
            1 => None,
            _ => Some(Instant::now() + FRAME_WAIT_MAX),
        };
        let mut answers = Vec::with_capacity(requests.len());
        for (token, request) in requests {
            answers.push(match (request, bound) {
                (Waiting::Answered(answer), _) => answer,
                (Waiting::For(undecided), None) => decided(undecided.await),
                (Waiting::For(mut undecided), Some(bound)) => match timeout_at(bound, &mut undecided).await {
                    Ok(answer) => decided(answer),
                    Err(_) => match self.keep(token, undecided, deadline) {
                        Ok(ticket) => Ok(HomeAnswer::Later { ticket }),
                        Err(undecided) => decided(undecided.await),
                    },
                },
            });
        }
        answers
    }

    /// Gives an answer back for which there is no room.
    fn keep(&self, token: RequestToken, answer: Undecided, until: Instant) -> Result<Ticket, Undecided> {
        let mut kept = self.kept.lock();
        if kept.len() >= LATE_KEYS_MAX {
            return Err(answer);
        }
        kept.insert(token, Kept { answer, until });
        Ok(Ticket {
            life: self.life,
            number: token.0,
        })
    }

    /// What these tickets stand for. Each is good once. `None` if one is of another life.
    pub(crate) fn take(&self, tickets: &[Ticket]) -> Option<Vec<(RequestToken, Waiting)>> {
        let mut kept = self.kept.lock();
        let mut taken = |ticket: &Ticket| {
            let token = RequestToken(ticket.number);
            let waiting = match kept.remove(&token) {
                Some(Kept { answer, .. }) => Waiting::For(answer),
                None => {
                    let message = "the home keeps no event under this ticket, or not any more";
                    Waiting::Answered(Err(ServiceError::new(ErrorCode::DeadlineExceeded, message)))
                }
            };
            (token, waiting)
        };
        let is_own = tickets.iter().all(|ticket| ticket.life == self.life);
        is_own.then(|| tickets.iter().map(&mut taken).collect())
    }

    /// Forgets what nobody asks for any more.
    pub(crate) fn forget(&self, now: Instant) {
        let mut kept = self.kept.lock();
        if !kept.is_empty() {
            kept.retain(|_, kept| kept.until > now);
        }
    }
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
        let answers = late.answers(requests, deadline).await;
        assert_eq!(answers, [later(0), DONE, DONE, Ok(HomeAnswer::Miss)]);
        assert!(began.elapsed() < 2 * FRAME_WAIT_MAX);
        // Asked for alone it is waited for.
        decide_late(senders);
        let asked = late.take(&[ticket(0)]).unwrap();
        assert_eq!(late.answers(asked, deadline).await, [DONE]);
        assert!(late.kept.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_is_good_once_until_its_deadline_and_in_one_life() {
        let (late, deadline) = late();
        let (senders, requests) = undecided(0..2);
        assert_eq!(late.answers(requests, deadline).await, [later(0), later(1)]);
        late.forget(Instant::now());
        decide_all(senders);
        let of_another_life = Ticket {
            life: Incarnation(LIFE.0 - 1),
            number: 0,
        };
        assert!(late.take(&[ticket(0), of_another_life]).is_none());
        let twice = late.take(&[ticket(0), ticket(0)]).unwrap();
        let answers = late.answers(twice, deadline).await;
        assert_eq!(answers[0], DONE);
        assert_eq!(code(&answers[1]), Some(ErrorCode::DeadlineExceeded));
        late.forget(deadline);
        let gone = late.take(&[ticket(1)]).unwrap();
        let gone = late.answers(gone, deadline).await;
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
            late.keep(token, answer, deadline).unwrap();
        }
        let (senders, requests) = undecided(most..most + 2);
        decide_late(senders);
        assert_eq!(late.answers(requests, deadline).await, [DONE, DONE]);
    }
}

//! Drives a plan of `store-core` over the nodes: asks whom it names, tells it the answers, until it is finished.

use crate::rooms::Rooms;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use tenon_protocol::error::{ErrorCode, NoSpace, ServiceError};
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{KeyResult, Reply};
use tenon_protocol::placement::FitHint;
use tenon_store_core::placement::nodes::{Action, Event, ItemOutcome, NodeIndex, NodePlan, PlanStop, Why};
use tokio::time::{Instant, sleep_until};

/// One question to one node.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// Who is asked.
    pub node: NodeId,
    /// For which items of the plan.
    pub items: Vec<usize>,
    /// Why it.
    pub why: Why,
}

/// What has come of it.
#[derive(Debug)]
pub(super) struct Answer<R> {
    /// The node's room after it; `None` if the node did not answer.
    pub hint: Option<FitHint>,
    /// One result per item, or the failure of the whole question.
    pub items: Result<Vec<KeyResult<R>>, ServiceError>,
}

impl<R> Answer<R> {
    /// What has come of asking another member; `items_of` finds the results in its reply.
    pub(super) fn of_member(
        asked: Result<(Reply, FitHint), ServiceError>,
        items_of: impl FnOnce(Reply) -> Result<Vec<KeyResult<R>>, ServiceError>,
    ) -> Self {
        match asked {
            Ok((reply, hint)) => Self {
                hint: Some(hint),
                items: items_of(reply),
            },
            Err(error) => Self {
                hint: None,
                items: Err(error),
            },
        }
    }
}

/// What a plan asks of its surroundings.
pub(super) trait Driving {
    /// What a node gives for an item.
    type Given: Send + 'static;

    /// Asks a node.
    fn ask(&mut self, question: Question) -> BoxFuture<'static, Answer<Self::Given>>;

    /// Gives up what a node has given for an item, or may have.
    fn release(&mut self, node: NodeId, item: usize);

    /// A question has been answered.
    fn answered(&mut self, question: &Question, results: &[KeyResult<Self::Given>]);
}

/// What has become of an item.
#[derive(Debug)]
pub(super) enum Fate<R> {
    /// What the chosen node answered: it has room, or an error that no other node would answer otherwise.
    Answered(KeyResult<R>),
    /// No node has room.
    Refused(Refusals),
}

/// Why no node has room for an item.
#[derive(Debug)]
pub(super) struct Refusals {
    len_bytes: u64,
    stop: PlanStop,
    /// What the nodes that were asked have answered.
    errors: Vec<ServiceError>,
    /// One that did not answer.
    silent: Option<NodeId>,
}

/// Whether another node might answer otherwise.
fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NoSpace
            | ErrorCode::ObjectTooLarge
            | ErrorCode::Overloaded
            | ErrorCode::Draining
            | ErrorCode::Unavailable
    )
}

type Asked<R> = BoxFuture<'static, (NodeIndex, Question, Answer<R>)>;

/// Runs a plan to its end; one fate per item.
pub(super) async fn drive<D: Driving>(
    rooms: &Rooms,
    mut plan: NodePlan,
    deadline: Instant,
    driving: &mut D,
) -> Vec<Fate<D::Given>> {
    let mut answers = Answers::default();
    let mut questions: FuturesUnordered<Asked<D::Given>> = FuturesUnordered::new();
    let mut actions = rooms.start(&mut plan);
    loop {
        for action in actions {
            match action {
                Action::Reserve { node, items, why } => {
                    let id = rooms.id(node);
                    let question = Question { node: id, items, why };
                    let answer = driving.ask(question.clone());
                    questions.push(Box::pin(async move { (node, question, answer.await) }));
                }
                Action::Release { node, item } => driving.release(rooms.id(node), item),
                Action::Finish => return answers.fates(rooms.outcomes(&plan)),
            }
        }
        actions = tokio::select! {
            biased;
            Some((node, question, answer)) = questions.next() => match answer.hint {
                None => {
                    driving.answered(&question, &[]);
                    answers.silent = Some(question.node);
                    rooms.on(&mut plan, Event::Silent { node })
                }
                Some(hint) => {
                    let results = super::batch::per_key(answer.items, question.items.len());
                    driving.answered(&question, &results);
                    let items = answers.note(node, &question, results);
                    rooms.answered(&mut plan, node, items, &hint)
                }
            },
            () = sleep_until(deadline) => rooms.on(&mut plan, Event::Deadline),
        };
    }
}

/// What the nodes have answered so far.
struct Answers<R> {
    given: BTreeMap<(NodeIndex, usize), KeyResult<R>>,
    refusals: BTreeMap<usize, Vec<ServiceError>>,
    silent: Option<NodeId>,
}

impl<R> Default for Answers<R> {
    fn default() -> Self {
        Self {
            given: BTreeMap::new(),
            refusals: BTreeMap::new(),
            silent: None,
        }
    }
}

impl<R> Answers<R> {
    /// Keeps the results of a question; answers which items are settled by it.
    fn note(&mut self, node: NodeIndex, question: &Question, results: Vec<KeyResult<R>>) -> Vec<(usize, bool)> {
        let note = |(&item, result): (&usize, KeyResult<R>)| match result {
            Err(error) if is_refusal(error.code) => {
                self.refusals.entry(item).or_default().push(error);
                (item, false)
            }
            result => {
                self.given.insert((node, item), result);
                (item, true)
            }
        };
        question.items.iter().zip(results).map(note).collect()
    }

    fn fates(mut self, outcomes: Vec<ItemOutcome>) -> Vec<Fate<R>> {
        let fate = |(item, outcome)| match outcome {
            ItemOutcome::Placed(nodes) => {
                let given = nodes.first().and_then(|&node| self.given.remove(&(node, item)));
                Fate::Answered(given.expect("a node that has room has answered"))
            }
            ItemOutcome::NoSpace(numbers) => Fate::Refused(Refusals {
                len_bytes: numbers.len_bytes,
                stop: numbers.stop,
                errors: self.refusals.remove(&item).unwrap_or_default(),
                silent: self.silent,
            }),
        };
        outcomes.into_iter().enumerate().map(fate).collect()
    }
}

impl Refusals {
    /// A node that was asked to evict has no room either. What it says of its space counts as little as what it said before, so that no node's numbers count
    /// twice; that it does not answer counts.
    pub(super) fn evicted_in_vain(&mut self, error: &ServiceError) {
        if error.code == ErrorCode::Unavailable {
            self.silent = error.node.or(self.silent);
            self.stop = PlanStop::SomeSilent;
        }
    }

    /// Whether the nodes have refused before the time was over.
    pub(super) fn are_in_time(&self) -> bool {
        self.stop != PlanStop::Deadline
    }

    /// The same as an error: the numbers of all nodes that were asked, if all of them have refused.
    pub(super) fn into_error(self) -> ServiceError {
        let len_bytes = self.len_bytes;
        match (self.stop, self.silent) {
            (PlanStop::Deadline, _) => {
                let message = format!("no node that answered in time has room for {len_bytes} bytes");
                return ServiceError::new(ErrorCode::DeadlineExceeded, message);
            }
            (PlanStop::SomeSilent, Some(node)) => {
                let doing = format!("no other node has room for {len_bytes} bytes");
                return ServiceError::unavailable(node, &doing);
            }
            _ => {}
        }
        let numbers: Vec<&NoSpace> = self.errors.iter().filter_map(|error| error.no_space.as_ref()).collect();
        match (sum(&numbers), self.errors.into_iter().next()) {
            (Some(sum), _) => ServiceError::no_space(sum),
            (None, Some(error)) => error,
            (None, None) => ServiceError::new(
                ErrorCode::Draining,
                "no member takes puts: all are draining or do not answer",
            ),
        }
    }
}

/// The numbers of several nodes as those of one; `None` if there are none.
fn sum(numbers: &[&NoSpace]) -> Option<NoSpace> {
    let (first, others) = numbers.split_first()?;
    let add = |mut sum: NoSpace, numbers: &&NoSpace| {
        sum.free_bytes = sum.free_bytes.saturating_add(numbers.free_bytes);
        sum.largest_free_bytes = sum.largest_free_bytes.max(numbers.largest_free_bytes);
        sum.evictable_bytes = sum.evictable_bytes.saturating_add(numbers.evictable_bytes);
        sum.held_bytes = sum.held_bytes.saturating_add(numbers.held_bytes);
        sum.entries_looked_at = sum.entries_looked_at.saturating_add(numbers.entries_looked_at);
        if sum.stop_reason != numbers.stop_reason {
            "all_nodes_refused".clone_into(&mut sum.stop_reason);
        }
        sum
    };
    Some(others.iter().fold((*first).clone(), add))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(free_bytes: u64, largest_free_bytes: u64, stop_reason: &str) -> NoSpace {
        NoSpace {
            asked_bytes: 100,
            free_bytes,
            largest_free_bytes,
            evictable_bytes: 1,
            held_bytes: 2,
            entries_looked_at: 3,
            stop_reason: stop_reason.into(),
        }
    }

    fn refused(stop: PlanStop, errors: Vec<ServiceError>) -> ServiceError {
        let refusals = Refusals {
            len_bytes: 100,
            stop,
            errors,
            silent: Some(NodeId::from_bytes([7; 16])),
        };
        refusals.into_error()
    }

    #[test]
    fn the_numbers_of_a_refused_put_are_those_of_all_nodes_together() {
        let errors = [numbers(50, 20, "nothing_fits"), numbers(70, 60, "slots")].map(ServiceError::no_space);
        let error = refused(PlanStop::AllRefused, errors.to_vec());
        let expected = NoSpace {
            evictable_bytes: 2,
            held_bytes: 4,
            entries_looked_at: 6,
            ..numbers(120, 60, "all_nodes_refused")
        };
        assert_eq!((error.code, error.no_space), (ErrorCode::NoSpace, Some(expected)));
        let one = refused(PlanStop::AllRefused, errors[..1].to_vec());
        assert_eq!(one.no_space, Some(numbers(50, 20, "nothing_fits")));
    }

    #[test]
    fn there_is_no_space_only_if_every_node_has_said_so() {
        let error = ServiceError::no_space(numbers(50, 20, "nothing_fits"));
        let silent = refused(PlanStop::SomeSilent, vec![error.clone()]);
        assert_eq!(silent.code, ErrorCode::Unavailable);
        assert_eq!(silent.node, Some(NodeId::from_bytes([7; 16])));
        assert_eq!(
            refused(PlanStop::Deadline, vec![error]).code,
            ErrorCode::DeadlineExceeded
        );
        assert_eq!(refused(PlanStop::AllRefused, Vec::new()).code, ErrorCode::Draining);
    }

    #[test]
    fn an_object_too_large_for_some_nodes_has_the_numbers_of_the_others() {
        let too_large = ServiceError::new(ErrorCode::ObjectTooLarge, "too large");
        assert_eq!(
            refused(PlanStop::AllRefused, vec![too_large.clone()]).code,
            ErrorCode::ObjectTooLarge
        );
        let no_space = ServiceError::no_space(numbers(50, 20, "nothing_fits"));
        let error = refused(PlanStop::AllRefused, vec![too_large, no_space]);
        assert_eq!(error.no_space, Some(numbers(50, 20, "nothing_fits")));
    }
}

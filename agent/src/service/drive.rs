//! Drives a plan of `store-core` over the nodes: asks whom it names, tells it the answers, until it is finished.

use super::batch::per_key;
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

    /// Asks a node for room.
    fn ask(&mut self, question: Question) -> BoxFuture<'static, Answer<Self::Given>>;

    /// Asks a node whether it may have room for each item; it sets nothing aside.
    fn look(&mut self, question: Question) -> BoxFuture<'static, Answer<()>>;

    /// Gives up what a node has given for an item, or may have.
    fn release(&mut self, node: NodeId, item: usize);

    /// A question has been answered; not at all if there are no results.
    fn answered(&mut self, question: &Question, results: &[KeyResult<Self::Given>]);

    /// A node has been looked at; it did not answer if there are no results.
    fn looked(&mut self, question: &Question, results: &[KeyResult<()>]);
}

/// What has become of an item.
#[derive(Debug)]
pub(super) enum Fate<R> {
    /// What the chosen nodes answered: they have room, or an error that no other node would answer otherwise.
    Answered {
        /// The first of them.
        first: KeyResult<R>,
        /// Those of the others that have room.
        more: Vec<R>,
    },
    /// No node has room.
    Refused(Refusals),
}

/// Why no node has room for an item.
#[derive(Debug)]
pub(super) struct Refusals {
    len_bytes: u64,
    stop: PlanStop,
    /// What the nodes have answered, each once.
    errors: Vec<(NodeId, ServiceError)>,
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

/// The answer to either kind of question.
enum Heard<R> {
    Asked(Answer<R>),
    Looked(Answer<()>),
}

type Open<R> = BoxFuture<'static, (NodeIndex, Question, Heard<R>)>;

/// Runs a plan to its end; one fate per item.
pub(super) async fn drive<D: Driving>(
    rooms: &Rooms,
    mut plan: NodePlan,
    deadline: Instant,
    driving: &mut D,
) -> Vec<Fate<D::Given>> {
    let mut answers = Answers::default();
    let mut questions: FuturesUnordered<Open<D::Given>> = FuturesUnordered::new();
    let mut actions = rooms.start(&mut plan);
    loop {
        for action in actions {
            match action {
                Action::Reserve { node, items, why } => {
                    let id = rooms.id(node);
                    let question = Question { node: id, items, why };
                    let answer = driving.ask(question.clone());
                    questions.push(Box::pin(async move { (node, question, Heard::Asked(answer.await)) }));
                }
                Action::Look { node, items } => {
                    let (id, why) = (rooms.id(node), Why::Confirmation);
                    let question = Question { node: id, items, why };
                    let answer = driving.look(question.clone());
                    questions.push(Box::pin(async move { (node, question, Heard::Looked(answer.await)) }));
                }
                Action::Release { node, item } => driving.release(rooms.id(node), item),
                Action::Finish => return answers.fates(rooms.outcomes(&plan)),
            }
        }
        actions = tokio::select! {
            biased;
            Some((node, question, heard)) = questions.next() => {
                answers.take(rooms, &mut plan, driving, (node, &question), heard)
            }
            () = sleep_until(deadline) => rooms.on(&mut plan, Event::Deadline),
        };
    }
}

/// What the nodes have answered so far.
struct Answers<R> {
    given: BTreeMap<(NodeIndex, usize), KeyResult<R>>,
    refusals: BTreeMap<usize, Vec<(NodeId, ServiceError)>>,
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
    /// Tells the plan of an answer; answers what it wants then.
    fn take<D: Driving<Given = R>>(
        &mut self,
        rooms: &Rooms,
        plan: &mut NodePlan,
        driving: &mut D,
        (node, question): (NodeIndex, &Question),
        heard: Heard<R>,
    ) -> Vec<Action> {
        let asked = question.items.len();
        match heard {
            Heard::Asked(Answer { hint, items }) => {
                let results = hint.map_or_else(Vec::new, |_| per_key(items, asked));
                driving.answered(question, &results);
                if let Some(hint) = hint {
                    let items = self.note(node, question, results);
                    return rooms.answered(plan, node, items, &hint);
                }
            }
            Heard::Looked(Answer { hint, items }) => {
                let results = hint.map_or_else(Vec::new, |_| per_key(items, asked));
                driving.looked(question, &results);
                if let Some(hint) = hint {
                    let items = self.note_looked(question, results);
                    return rooms.looked(plan, node, items, &hint);
                }
            }
        }
        self.silent = Some(question.node);
        rooms.on(plan, Event::Silent { node })
    }

    /// Keeps why a node that was looked at has no room; answers for which items it may have some. Where it cannot tell it is asked.
    fn note_looked(&mut self, question: &Question, results: Vec<KeyResult<()>>) -> Vec<(usize, bool)> {
        let note = |(&item, result): (&usize, KeyResult<()>)| match result {
            Err(error) if is_refusal(error.code) => {
                self.refuse(item, question.node, error);
                (item, false)
            }
            _ => (item, true),
        };
        question.items.iter().zip(results).map(note).collect()
    }

    fn refuse(&mut self, item: usize, node: NodeId, error: ServiceError) {
        self.refusals.entry(item).or_default().push((node, error));
    }

    /// Keeps the results of a question; answers which items are settled by it.
    fn note(&mut self, node: NodeIndex, question: &Question, results: Vec<KeyResult<R>>) -> Vec<(usize, bool)> {
        let note = |(&item, result): (&usize, KeyResult<R>)| match result {
            Err(error) if is_refusal(error.code) => {
                self.refuse(item, question.node, error);
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
                let mut given = nodes.iter().filter_map(|&node| self.given.remove(&(node, item)));
                let first = given.next().expect("a node that has room has answered");
                let more = given.filter_map(Result::ok).collect();
                Fate::Answered { first, more }
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

    /// Whether a node may have room once it has let objects go: it has so many bytes that are free or evictable, as it last said.
    pub(super) fn may_evict(&self, node: NodeId) -> bool {
        let may_evict = |numbers: &NoSpace| {
            let free_then_bytes = numbers.free_bytes.saturating_add(numbers.evictable_bytes);
            numbers.evictable_bytes > 0
                && free_then_bytes >= self.len_bytes
                && numbers.largest_segment_bytes >= self.len_bytes
        };
        let of_node = self.errors.iter().filter(|(refusing, _)| *refusing == node);
        of_node
            .filter_map(|(_, error)| error.no_space.as_deref())
            .any(may_evict)
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
        let errors = || self.errors.iter().map(|(_, error)| error);
        let numbers: Vec<&NoSpace> = errors().filter_map(|error| error.no_space.as_deref()).collect();
        let is_too_large = errors().all(|error| error.code == ErrorCode::ObjectTooLarge);
        match (sum(&numbers), self.errors.first()) {
            (Some(sum), _) if is_too_large => ServiceError::too_large(sum),
            (Some(sum), _) => ServiceError::no_space(sum),
            (None, Some((_, error))) => error.clone(),
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
        sum.largest_segment_bytes = sum.largest_segment_bytes.max(numbers.largest_segment_bytes);
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
            largest_segment_bytes: 1000,
            entries_looked_at: 3,
            stop_reason: stop_reason.into(),
        }
    }

    fn refusals(stop: PlanStop, errors: Vec<ServiceError>) -> Refusals {
        let of_node = |(node, error)| (NodeId::from_bytes([node; 16]), error);
        Refusals {
            len_bytes: 100,
            stop,
            errors: (0..).zip(errors).map(of_node).collect(),
            silent: Some(NodeId::from_bytes([7; 16])),
        }
    }

    fn refused(stop: PlanStop, errors: Vec<ServiceError>) -> ServiceError {
        refusals(stop, errors).into_error()
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
        assert_eq!(
            (error.code, error.no_space.as_deref()),
            (ErrorCode::NoSpace, Some(&expected))
        );
        let one = refused(PlanStop::AllRefused, errors[..1].to_vec());
        assert_eq!(one.no_space.as_deref(), Some(&numbers(50, 20, "nothing_fits")));
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
    fn an_object_too_large_for_some_nodes_has_the_numbers_of_all_and_the_limit_of_the_largest() {
        let too_large = |largest_segment_bytes| {
            ServiceError::too_large(NoSpace {
                largest_segment_bytes,
                ..numbers(30, 30, "too_large")
            })
        };
        let all = refused(PlanStop::AllRefused, vec![too_large(40), too_large(90), too_large(50)]);
        assert_eq!(all.code, ErrorCode::ObjectTooLarge);
        assert!(
            all.message.ends_with("larger than the largest segment, which has 90"),
            "{}",
            all.message
        );
        let told = all.no_space.expect("numbers");
        assert_eq!(
            (told.free_bytes, told.largest_segment_bytes, told.stop_reason.as_str()),
            (90, 90, "too_large")
        );
        let no_space = ServiceError::no_space(numbers(50, 20, "nothing_fits"));
        let some = refused(PlanStop::AllRefused, vec![too_large(40), no_space]);
        assert_eq!(some.code, ErrorCode::NoSpace);
        let told = some.no_space.expect("numbers");
        assert_eq!(
            (
                told.free_bytes,
                told.largest_free_bytes,
                told.largest_segment_bytes,
                told.stop_reason.as_str()
            ),
            (80, 30, 1000, "all_nodes_refused")
        );
    }

    #[test]
    fn only_nodes_whose_evictable_bytes_may_make_a_hole_are_asked_to_evict() {
        let of = |free_bytes, evictable_bytes, largest_segment_bytes| NoSpace {
            evictable_bytes,
            largest_segment_bytes,
            ..numbers(free_bytes, 20, "nothing_fits")
        };
        let answers = [of(99, 0, 1000), of(50, 49, 1000), of(50, 50, 1000), of(50, 500, 99)];
        let mut errors = answers.map(ServiceError::no_space).to_vec();
        errors.push(ServiceError::new(ErrorCode::Draining, "draining"));
        let refusals = refusals(PlanStop::AllRefused, errors);
        let may_evict: Vec<bool> = (0..6)
            .map(|node| refusals.may_evict(NodeId::from_bytes([node; 16])))
            .collect();
        assert_eq!(may_evict, [false, false, true, false, false, false]);
    }
}

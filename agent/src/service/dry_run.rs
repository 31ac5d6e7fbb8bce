//! Placement explained: where puts would go, question by question, and what a segment is used for, run by run.

use super::checks::{check_len, invalid, unexpected};
use super::drive::{Answer, Driving, Fate, Question, drive};
use crate::node::Node;
use crate::rooms::told;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::limits::{DRY_RUN_ITEMS_MAX, MAP_RUNS_MAX};
use tenon_protocol::message::{KeyResult, Reply, Request};
use tenon_protocol::placement::{
    DryRunAnswer, DryRunItem, DryRunPlace, DryRunReply, DryRunRequest, DryRunStep, FitHint, SegmentMapReply,
    SegmentMapRequest,
};
use tenon_store_core::placement::nodes::{NodePlan, PlanItem};
use tokio::time::Instant;

/// Why a node is asked that the caller has named.
const NAMED: &str = "named";

impl Node {
    /// Plays the placement of a batch through, from what is known now, against the nodes as they are now.
    pub(super) async fn dry_run(
        self: &Arc<Self>,
        deadline: Instant,
        request: DryRunRequest,
    ) -> Result<DryRunReply, ServiceError> {
        check_items(&request.items)?;
        self.note_own_room();
        let rooms = self.rooms().snapshot();
        let longest_bytes = request.items.iter().map(|item| item.len_bytes).max().unwrap_or(0);
        let nodes = rooms.describe(longest_bytes);
        let mut asking = Asking {
            node: Arc::clone(self),
            deadline,
            items: request.items,
            steps: Vec::new(),
            asked: Vec::new(),
            given: BTreeMap::new(),
        };
        let items = match request.node {
            Some(named) => asking.ask_named(named).await?,
            None => {
                let item = |item: &DryRunItem| PlanItem {
                    len_bytes: item.len_bytes,
                    replicas: 1,
                };
                let items: Vec<PlanItem> = asking.items.iter().map(item).collect();
                let plan = NodePlan::new(&items).map_err(invalid)?;
                let fates = drive(&rooms, plan, deadline, &mut asking).await;
                let result = |fate| match fate {
                    Fate::Answered { first, .. } => first,
                    Fate::Refused(refusals) => Err(refusals.into_error()),
                };
                fates.into_iter().map(result).collect()
            }
        };
        Ok(DryRunReply {
            policy: self.placement_policy().clone(),
            nodes,
            steps: asking.steps,
            items,
            room_after: None,
        })
    }

    /// Where objects would lie in this node's own memory.
    pub(super) fn dry_run_own(&self, request: &DryRunRequest) -> Result<DryRunReply, ServiceError> {
        check_items(&request.items)?;
        let (items, room_after) = self.own_places(&request.items)?;
        Ok(DryRunReply {
            policy: self.placement_policy().clone(),
            nodes: Vec::new(),
            steps: Vec::new(),
            items,
            room_after: Some(room_after),
        })
    }

    /// Where objects would lie in this node's own memory, and its room then.
    fn own_places(&self, items: &[DryRunItem]) -> Result<Places, ServiceError> {
        self.check_not_draining()?;
        let lens_bytes: Vec<u64> = items.iter().map(|item| item.len_bytes).collect();
        let (places, hint) = self.holder().dry_run(&lens_bytes);
        Ok((places, told(hint)))
    }

    /// What a segment is used for.
    pub(super) async fn segment_map(
        self: &Arc<Self>,
        deadline: Instant,
        request: SegmentMapRequest,
    ) -> Result<SegmentMapReply, ServiceError> {
        let node = request.node.unwrap_or(self.id());
        if node == self.id() {
            return self.own_segment_map(&request);
        }
        if !self.view().contains(node) {
            return Err(self.unknown_node(node));
        }
        match self
            .on_behalf(node, None, Request::SegmentMap(request), deadline)
            .await?
        {
            Reply::SegmentMap(reply) => Ok(reply),
            other => Err(unexpected(&other)),
        }
    }

    /// What a segment of this node is used for.
    pub(super) fn own_segment_map(&self, request: &SegmentMapRequest) -> Result<SegmentMapReply, ServiceError> {
        let SegmentMapRequest {
            segment,
            from_bytes,
            limit,
            ..
        } = *request;
        if limit == 0 || limit > MAP_RUNS_MAX {
            let message = format!("a map of {limit} runs: 1 to {MAP_RUNS_MAX} are allowed");
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        let page = self.holder().map(segment, from_bytes, limit);
        let page = page.ok_or_else(|| self.unknown_segment(segment))?;
        if from_bytes >= page.capacity_bytes {
            let message = format!("the segment has {} bytes, none at {from_bytes}", page.capacity_bytes);
            return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
        }
        Ok(SegmentMapReply {
            node: self.id(),
            segment,
            incarnation: page.incarnation,
            version: page.version,
            capacity_bytes: page.capacity_bytes,
            runs: page.runs,
            next_bytes: page.next_bytes,
        })
    }

    fn unknown_segment(&self, segment: SegmentId) -> ServiceError {
        let message = format!(
            "segment {segment} is not mounted on node {}; `tenon segments` lists them",
            self.id()
        );
        ServiceError::new(ErrorCode::UnknownSegment, message)
    }
}

fn check_items(items: &[DryRunItem]) -> Result<(), ServiceError> {
    let count = items.len();
    if count == 0 || count > DRY_RUN_ITEMS_MAX {
        let message = format!("a dry run of {count} objects: 1 to {DRY_RUN_ITEMS_MAX} are allowed");
        return Err(ServiceError::new(ErrorCode::InvalidArgument, message));
    }
    items.iter().try_for_each(|item| check_len(item.len_bytes))
}

/// A dry run under way.
struct Asking {
    node: Arc<Node>,
    deadline: Instant,
    items: Vec<DryRunItem>,
    /// In the order in which they were asked.
    steps: Vec<DryRunStep>,
    /// The items of each step, and its kind.
    asked: Vec<(Vec<usize>, Kind)>,
    /// The items that each node would have been given, those included whose answer is to come. It is asked for them again with each question, so that it
    /// sees what those before would have taken.
    given: BTreeMap<NodeId, Vec<usize>>,
}

/// What a step asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Room,
    Look,
}

/// Places of objects, and the room of their node if they lay there.
type Places = (Vec<KeyResult<DryRunPlace>>, FitHint);

impl Asking {
    async fn ask_named(&mut self, named: NodeId) -> Result<Vec<KeyResult<DryRunPlace>>, ServiceError> {
        if !self.node.view().contains(named) {
            return Err(self.node.unknown_node(named));
        }
        let all: Vec<usize> = (0..self.items.len()).collect();
        self.begin_step(named, NAMED, &all, Kind::Room);
        let answer = self.ask_node(named, &all).await;
        let results = super::batch::per_key(answer.items, all.len());
        self.end_step(named, &all, Kind::Room, results.iter().map(placed));
        Ok(results)
    }

    /// Asks a node where items would lie beside what it would have been given before.
    fn ask_node(&self, node: NodeId, items: &[usize]) -> BoxFuture<'static, Answer<DryRunPlace>> {
        let (me, deadline) = (Arc::clone(&self.node), self.deadline);
        let before = self.given.get(&node).map_or(&[][..], Vec::as_slice);
        let (skipped, all) = (before.len(), before.iter().chain(items));
        let request = DryRunRequest {
            items: all.map(|&item| self.items[item]).collect(),
            node: Some(node),
        };
        Box::pin(async move {
            let (played, hint) = if node == me.id() {
                (me.own_places(&request.items), me.fit_hint())
            } else {
                let asked = me.on_behalf_hinted(node, None, Request::DryRun(request), deadline);
                match asked.await {
                    Ok((reply, hint)) => (places_in(reply, hint), hint),
                    Err(error) => {
                        return Answer {
                            hint: None,
                            items: Err(error),
                        };
                    }
                }
            };
            match played {
                Ok((mut places, room_after)) => Answer {
                    hint: Some(room_after),
                    items: Ok(places.split_off(skipped.min(places.len()))),
                },
                Err(error) => Answer {
                    hint: Some(hint),
                    items: Err(error),
                },
            }
        })
    }

    fn begin_step(&mut self, node: NodeId, because: &str, items: &[usize], kind: Kind) {
        self.steps.push(DryRunStep {
            node,
            because: because.to_owned(),
            answers: Vec::new(),
        });
        self.asked.push((items.to_vec(), kind));
    }

    /// Answers come in any order.
    fn end_step(
        &mut self,
        node: NodeId,
        items: &[usize],
        kind: Kind,
        results: impl Iterator<Item = (Option<DryRunPlace>, Option<ServiceError>)>,
    ) {
        let answer = |(&item, (place, refusal)): (&usize, (_, _))| DryRunAnswer {
            item: u32::try_from(item).expect("items are bounded"),
            place,
            refusal,
        };
        let mut steps = self.steps.iter_mut().zip(&self.asked);
        let step = steps.find(|(step, (asked, of_kind))| step.node == node && asked == items && *of_kind == kind);
        let (step, _) = step.expect("answers are to questions that were asked");
        step.answers = items.iter().zip(results).map(answer).collect();
    }
}

fn placed(result: &KeyResult<DryRunPlace>) -> (Option<DryRunPlace>, Option<ServiceError>) {
    (result.as_ref().ok().copied(), result.as_ref().err().cloned())
}

/// What a member says of its places; `hint` is its room as it is.
fn places_in(reply: Reply, hint: FitHint) -> Result<Places, ServiceError> {
    match reply {
        Reply::DryRun(reply) => {
            let room_after = reply.room_after.filter(FitHint::is_sound);
            Ok((reply.items, room_after.unwrap_or(hint)))
        }
        other => Err(unexpected(&other)),
    }
}

impl Driving for Asking {
    type Given = DryRunPlace;

    fn ask(&mut self, question: Question) -> BoxFuture<'static, Answer<DryRunPlace>> {
        let Question { node, items, why } = question;
        self.begin_step(node, why.as_str(), &items, Kind::Room);
        let answer = self.ask_node(node, &items);
        self.given.entry(node).or_default().extend(items);
        answer
    }

    /// A place that is not found beside those of other items of the question is no reason not to ask for it.
    fn look(&mut self, question: Question) -> BoxFuture<'static, Answer<()>> {
        let Question { node, items, why } = question;
        self.begin_step(node, why.as_str(), &items, Kind::Look);
        let answer = self.ask_node(node, &items);
        let lens_bytes: Vec<u64> = items.iter().map(|&item| self.items[item].len_bytes).collect();
        Box::pin(async move {
            let Answer { hint, items } = answer.await;
            let may_fit = |(result, len_bytes): (KeyResult<DryRunPlace>, u64)| match result {
                Err(error) if hint.is_none_or(|hint| len_bytes > hint.largest_free_upper_bound_bytes) => Err(error),
                _ => Ok(()),
            };
            let items = items.map(|places| places.into_iter().zip(lens_bytes).map(may_fit).collect());
            Answer { hint, items }
        })
    }

    fn release(&mut self, _node: NodeId, _item: usize) {}

    fn answered(&mut self, question: &Question, results: &[KeyResult<DryRunPlace>]) {
        self.end_step(question.node, &question.items, Kind::Room, results.iter().map(placed));
        let refused = question.items.iter().zip(results).filter(|(_, result)| result.is_err());
        let refused: Vec<usize> = refused.map(|(&item, _)| item).collect();
        let given = self.given.entry(question.node).or_default();
        given.retain(|item| !refused.contains(item));
    }

    fn looked(&mut self, question: &Question, results: &[KeyResult<()>]) {
        let refused = |result: &KeyResult<()>| (None, result.as_ref().err().cloned());
        self.end_step(question.node, &question.items, Kind::Look, results.iter().map(refused));
    }
}

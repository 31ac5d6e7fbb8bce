//! Placement explained: where puts would go, question by question, and what a segment is used for, run by run.

use super::drive::{Answer, Driving, Fate, Question, drive};
use super::place::invalid;
use super::put::unexpected;
use crate::node::Node;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SegmentId};
use tenon_protocol::limits::{DRY_RUN_ITEMS_MAX, MAP_RUNS_MAX};
use tenon_protocol::message::{KeyResult, Reply, Request};
use tenon_protocol::placement::{
    DryRunAnswer, DryRunItem, DryRunPlace, DryRunReply, DryRunRequest, DryRunStep, SegmentMapReply, SegmentMapRequest,
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
                    Fate::Answered(result) => result,
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
        })
    }

    /// Where objects would lie in this node's own memory.
    pub(super) fn dry_run_own(&self, request: &DryRunRequest) -> Result<DryRunReply, ServiceError> {
        check_items(&request.items)?;
        Ok(DryRunReply {
            policy: self.placement_policy().clone(),
            nodes: Vec::new(),
            steps: Vec::new(),
            items: self.own_places(&request.items)?,
        })
    }

    fn own_places(&self, items: &[DryRunItem]) -> Result<Vec<KeyResult<DryRunPlace>>, ServiceError> {
        self.check_not_draining()?;
        let lens_bytes: Vec<u64> = items.iter().map(|item| item.len_bytes).collect();
        Ok(self.holder().dry_run(&lens_bytes))
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
    items.iter().try_for_each(|item| super::put::check_len(item.len_bytes))
}

/// A dry run under way.
struct Asking {
    node: Arc<Node>,
    deadline: Instant,
    items: Vec<DryRunItem>,
    /// In the order in which they were asked.
    steps: Vec<DryRunStep>,
    /// The items of each step.
    asked: Vec<Vec<usize>>,
}

impl Asking {
    async fn ask_named(&mut self, named: NodeId) -> Result<Vec<KeyResult<DryRunPlace>>, ServiceError> {
        if !self.node.view().contains(named) {
            return Err(self.node.unknown_node(named));
        }
        let all: Vec<usize> = (0..self.items.len()).collect();
        self.begin_step(named, NAMED, &all);
        let answer = self.ask_node(named, &all).await;
        let results = super::batch::per_key(answer.items, all.len());
        self.end_step(named, &all, &results);
        Ok(results)
    }

    fn ask_node(&self, node: NodeId, items: &[usize]) -> BoxFuture<'static, Answer<DryRunPlace>> {
        let (me, deadline) = (Arc::clone(&self.node), self.deadline);
        let request = DryRunRequest {
            items: items.iter().map(|&item| self.items[item]).collect(),
            node: Some(node),
        };
        Box::pin(async move {
            if node == me.id() {
                return Answer {
                    hint: Some(me.fit_hint()),
                    items: me.own_places(&request.items),
                };
            }
            let asked = me
                .on_behalf_hinted(node, None, Request::DryRun(request), deadline)
                .await;
            Answer::of_member(asked, |reply| match reply {
                Reply::DryRun(reply) => Ok(reply.items),
                other => Err(unexpected(&other)),
            })
        })
    }

    fn begin_step(&mut self, node: NodeId, because: &str, items: &[usize]) {
        self.steps.push(DryRunStep {
            node,
            because: because.to_owned(),
            answers: Vec::new(),
        });
        self.asked.push(items.to_vec());
    }

    /// Answers come in any order.
    fn end_step(&mut self, node: NodeId, items: &[usize], results: &[KeyResult<DryRunPlace>]) {
        let answer = |(&item, result): (&usize, &KeyResult<DryRunPlace>)| DryRunAnswer {
            item: u32::try_from(item).expect("items are bounded"),
            place: result.as_ref().ok().copied(),
            refusal: result.as_ref().err().cloned(),
        };
        let mut steps = self.steps.iter_mut().zip(&self.asked);
        let step = steps.find(|(step, asked)| step.node == node && asked.as_slice() == items);
        let (step, _) = step.expect("answers are to questions that were asked");
        step.answers = items.iter().zip(results).map(answer).collect();
    }
}

impl Driving for Asking {
    type Given = DryRunPlace;

    fn ask(&mut self, question: Question) -> BoxFuture<'static, Answer<DryRunPlace>> {
        self.begin_step(question.node, question.why.as_str(), &question.items);
        self.ask_node(question.node, &question.items)
    }

    fn release(&mut self, _node: NodeId, _item: usize) {}

    fn answered(&mut self, question: &Question, results: &[KeyResult<DryRunPlace>]) {
        self.end_step(question.node, &question.items, results);
    }
}

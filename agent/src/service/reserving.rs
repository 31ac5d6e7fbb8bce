//! A batch for which room is being set aside, as the plan of it drives it: whom it asks, and how.

use super::checks::unexpected;
use super::drive::{Answer, Driving, Question};
use crate::holder::Owner;
use crate::metrics::RoomAnswer;
use crate::node::Node;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_protocol::member::MemberRequest;
use tenon_protocol::message::{AbortItem, AbortRequest, KeyResult, Reply, Request, Reservation, ReserveRequest};
use tenon_protocol::placement::FitHint;
use tokio::time::Instant;

/// A batch that is being reserved.
pub(super) struct Reserving {
    pub(super) node: Arc<Node>,
    pub(super) session: SessionId,
    pub(super) deadline: Instant,
    pub(super) request: ReserveRequest,
    /// Where each item of the plan stands in the request.
    pub(super) places: Vec<usize>,
}

impl Reserving {
    fn request(&self, items: &[usize]) -> ReserveRequest {
        let item = |&item: &usize| self.request.items[self.places[item]].clone();
        ReserveRequest {
            namespace: self.request.namespace.clone(),
            put_id: self.request.put_id,
            items: items.iter().map(item).collect(),
            options: self.request.options.clone(),
        }
    }

    fn own_answer(&self, request: &ReserveRequest, may_evict: bool) -> Answer<Reservation> {
        let owner = Owner {
            coordinator: self.node.id(),
            session: self.session,
        };
        let items = self.node.reserve_own(owner, request, may_evict);
        Answer {
            hint: Some(self.node.fit_hint()),
            items,
        }
    }

    /// The nodes that take puts, in an order drawn by their capacity.
    pub(super) fn nodes_by_capacity(&self) -> Vec<NodeId> {
        self.node.rooms().drawn_by_capacity()
    }

    /// Asks a node for room for which it may let objects go.
    pub(super) async fn ask_to_evict(&self, node: NodeId, items: &[usize]) -> Answer<Reservation> {
        let request = self.request(items);
        if node == self.node.id() {
            return self.own_answer(&request, true);
        }
        let session = self.session;
        self.node.sessions().note_holder(session, node);
        let call = MemberRequest::ReserveEvicting { session, request };
        Answer::of_member(self.node.served(node, call, self.deadline).await, reserved)
    }
}

/// The results in a member's reply.
fn reserved(reply: Reply) -> Result<Vec<KeyResult<Reservation>>, ServiceError> {
    match reply {
        Reply::Reserve(reply) => Ok(reply.items),
        other => Err(unexpected(&other)),
    }
}

/// What a node that was looked at has answered.
fn looked(refusals: Vec<Option<ServiceError>>, hint: FitHint) -> Answer<()> {
    let result = |refusal: Option<ServiceError>| refusal.map_or(Ok(()), Err);
    Answer {
        hint: Some(hint),
        items: Ok(refusals.into_iter().map(result).collect()),
    }
}

impl Driving for Reserving {
    type Given = Reservation;

    fn ask(&mut self, question: Question) -> BoxFuture<'static, Answer<Reservation>> {
        let request = self.request(&question.items);
        if question.node == self.node.id() {
            let answer = self.own_answer(&request, false);
            return Box::pin(std::future::ready(answer));
        }
        let (node, session, deadline) = (Arc::clone(&self.node), self.session, self.deadline);
        node.sessions().note_holder(session, question.node);
        Box::pin(async move {
            let asked = node
                .on_behalf_hinted(question.node, Some(session), Request::Reserve(request), deadline)
                .await;
            Answer::of_member(asked, reserved)
        })
    }

    fn look(&mut self, question: Question) -> BoxFuture<'static, Answer<()>> {
        let len_of = |&item: &usize| self.request.items[self.places[item]].len_bytes;
        let lens_bytes: Vec<u64> = question.items.iter().map(len_of).collect();
        let (me, node, deadline) = (Arc::clone(&self.node), question.node, self.deadline);
        if node == me.id() {
            let answer = looked(me.look_own(&lens_bytes), me.fit_hint());
            return Box::pin(std::future::ready(answer));
        }
        Box::pin(async move {
            match me.look(node, lens_bytes, deadline).await {
                Ok((refusals, hint)) => looked(refusals, hint),
                Err(error) => Answer {
                    hint: None,
                    items: Err(error),
                },
            }
        })
    }

    fn release(&mut self, node: NodeId, item: usize) {
        let request = AbortRequest {
            namespace: self.request.namespace.clone(),
            put_id: self.request.put_id,
            items: vec![AbortItem {
                key: self.request.items[self.places[item]].key.clone(),
                holders: vec![node],
            }],
        };
        self.node.release_at(node, self.session, request);
    }

    fn answered(&mut self, question: &Question, results: &[KeyResult<Reservation>]) {
        self.count(question, RoomAnswer::Given, results);
    }

    fn looked(&mut self, question: &Question, results: &[KeyResult<()>]) {
        self.count(question, RoomAnswer::Hopeful, results);
    }
}

impl Reserving {
    fn count<R>(&self, question: &Question, yes: RoomAnswer, results: &[KeyResult<R>]) {
        let (metrics, why) = (self.node.metrics(), question.why);
        let said_yes = results.iter().filter(|result| result.is_ok()).count();
        metrics.room_answered(why, yes, said_yes);
        metrics.room_answered(why, RoomAnswer::Refused, results.len() - said_yes);
        metrics.room_answered(why, RoomAnswer::Silent, usize::from(results.is_empty()));
    }
}

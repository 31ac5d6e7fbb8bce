//! Where puts go: one decision for a batch, by what is known of the room of each node.

use super::batch::{Results, to_its_end};
use super::drive::{Answer, Driving, Fate, Question, drive};
use super::evicting::evict_for;
use super::put::{check_len, unexpected};
use crate::holder::Owner;
use crate::limits::RELEASE_TIMEOUT;
use crate::metrics::RoomAnswer;
use crate::node::Node;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_protocol::member::MemberRequest;
use tenon_protocol::message::{
    AbortItem, AbortRequest, KeyResult, Reply, Request, Reservation, ReserveReply, ReserveRequest,
};
use tenon_protocol::name::{Namespace, ObjectName};
use tenon_protocol::placement::FitHint;
use tenon_store_core::placement::nodes::{NodePlan, PlanItem};
use tokio::time::Instant;

impl Node {
    /// Sets regions aside wherever there is room.
    pub(super) async fn reserve_anywhere(
        self: &Arc<Self>,
        session: SessionId,
        deadline: Instant,
        request: ReserveRequest,
    ) -> Result<ReserveReply, ServiceError> {
        if self.view().members().len() == 1 {
            return self.place_batch(session, deadline, request).await;
        }
        // A caller that goes away leaves no question open of which the plan does not hear.
        let node = Arc::clone(self);
        let placing = async move { node.place_batch(session, deadline, request).await };
        to_its_end("placing", placing).await?
    }

    async fn place_batch(
        self: &Arc<Self>,
        session: SessionId,
        deadline: Instant,
        request: ReserveRequest,
    ) -> Result<ReserveReply, ServiceError> {
        let mut results = Results::new(request.items.len());
        let places = valid_items(&request, &mut results)?;
        if places.is_empty() {
            let (nodes, items) = (Vec::new(), results.finish());
            return Ok(ReserveReply { nodes, items });
        }
        let item = |&place: &usize| PlanItem {
            len_bytes: request.items[place].len_bytes,
            replicas: request.options.replicas.unwrap_or(1).into(),
        };
        let items: Vec<PlanItem> = places.iter().map(item).collect();
        let plan = NodePlan::new(&items).map_err(invalid)?;
        self.note_own_room();
        let mut reserving = Reserving {
            node: Arc::clone(self),
            session,
            deadline,
            request,
            places,
        };
        let mut fates = drive(self.rooms(), plan, deadline, &mut reserving).await;
        evict_for(&mut reserving, &mut fates, deadline).await;
        let mut holders = BTreeSet::new();
        for (&place, fate) in reserving.places.iter().zip(fates) {
            let result = match fate {
                Fate::Answered { first, more } => first.map(|first| joined(first, more)),
                Fate::Refused(refusals) => Err(refusals.into_error()),
            };
            self.metrics().placed(self.id(), &result);
            if let Ok(reservation) = &result {
                holders.extend(reservation.replicas.iter().map(|region| region.holder));
            }
            results.set(place, result);
        }
        Ok(ReserveReply {
            nodes: self.node_refs(holders),
            items: results.finish(),
        })
    }

    /// Why objects of these lengths would not be placed in this node's own memory now, each by itself; `None` of those that might be.
    pub(super) fn look_own(&self, lens_bytes: &[u64]) -> Vec<Option<ServiceError>> {
        match self.check_not_draining() {
            Ok(()) => self.holder().look(lens_bytes),
            Err(error) => vec![Some(error); lens_bytes.len()],
        }
    }

    /// Gives back what a node has set aside for a session, or may have. Nobody waits for it.
    pub(super) fn release_at(self: &Arc<Self>, holder: NodeId, session: SessionId, request: AbortRequest) {
        if holder == self.id() {
            // What it has not it cannot give back.
            let _ = self.abort_own(session, &request);
            return;
        }
        let me = Arc::clone(self);
        tokio::spawn(async move {
            let deadline = Instant::now() + RELEASE_TIMEOUT;
            let released = me
                .on_behalf(holder, Some(session), Request::Abort(request), deadline)
                .await;
            if let Err(error) = released {
                tracing::debug!(%holder, %error, "room that is not needed was not given back; it runs out");
            }
        });
    }

    /// This node itself is known as it is at the moment.
    pub(super) fn note_own_room(&self) {
        self.rooms().hear(self.id(), &self.fit_hint());
    }
}

/// The items that can be reserved at all; the others get their results.
fn valid_items(request: &ReserveRequest, results: &mut Results<Reservation>) -> Result<Vec<usize>, ServiceError> {
    let namespace = Namespace::new(&request.namespace)?;
    let mut places = Vec::with_capacity(request.items.len());
    for (place, item) in request.items.iter().enumerate() {
        let checked = ObjectName::new(&namespace, &item.key).map_err(ServiceError::from);
        match checked.and_then(|_| check_len(item.len_bytes)) {
            Ok(()) => places.push(place),
            Err(error) => results.set(place, Err(error)),
        }
    }
    Ok(places)
}

/// The regions of one object on several nodes.
fn joined(mut first: Reservation, more: Vec<Reservation>) -> Reservation {
    first.replicas.extend(more.into_iter().flat_map(|more| more.replicas));
    first
}

pub(super) fn invalid(error: impl std::fmt::Display) -> ServiceError {
    ServiceError::new(ErrorCode::InvalidArgument, error.to_string())
}

/// A batch that is being reserved.
pub(super) struct Reserving {
    node: Arc<Node>,
    session: SessionId,
    deadline: Instant,
    request: ReserveRequest,
    /// Where each item of the plan stands in the request.
    places: Vec<usize>,
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

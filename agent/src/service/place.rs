//! Where puts go: one decision for a batch, by what is known of the room of each node.

use super::batch::{Results, to_its_end};
use super::checks::{check_len, invalid};
use super::drive::{Fate, drive};
use super::evicting::evict_for;
use super::reserving::Reserving;
use crate::limits::RELEASE_TIMEOUT;
use crate::node::Node;
use std::collections::BTreeSet;
use std::sync::Arc;
use tenon_protocol::error::ServiceError;
use tenon_protocol::ids::{NodeId, SessionId};
use tenon_protocol::message::{AbortRequest, Request, Reservation, ReserveReply, ReserveRequest};
use tenon_protocol::name::{Namespace, ObjectName};
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

//! Reserving, and giving back what was reserved for nothing.

use crate::batch;
use crate::client::Core;
use crate::control::{check_count, reply};
use crate::error::ClientError;
use crate::limits::ABORT_TIMEOUT_MS;
use crate::put::Attempt;
use crate::time::within;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::ids::NodeId;
use tenon_protocol::message::{
    AbortItem, AbortRequest, NodeRef, PutOptions as WireOptions, Request, ReserveItem, ReserveReply, ReserveRequest,
};
use tenon_transport::RemoteKey;
use tokio::time::Instant;

/// The regions set aside for one object.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reserved {
    pub(crate) regions: Vec<Region>,
}

/// One region: how to reach its holder, and the grant to write it.
#[derive(Debug, Clone)]
pub(crate) struct Region {
    pub(crate) node: NodeRef,
    pub(crate) write_key: RemoteKey,
}

impl Reserved {
    pub(crate) fn holders(&self) -> Vec<NodeId> {
        self.regions.iter().map(|region| region.node.node).collect()
    }
}

/// What one attempt has reserved and not committed. Dropping it gives all of that back.
#[derive(Debug)]
pub(crate) struct Reservations {
    core: Arc<Core>,
    attempt: Attempt,
    held: Mutex<HashMap<String, AbortItem>>,
}

impl Reservations {
    pub(crate) fn new(core: &Arc<Core>, attempt: &Attempt) -> Self {
        Self {
            core: Arc::clone(core),
            attempt: attempt.clone(),
            held: Mutex::default(),
        }
    }

    /// Reserves for objects of these keys and lengths; one result each.
    pub(crate) async fn reserve(&self, objects: Vec<(String, u64)>) -> Vec<Result<Reserved, ClientError>> {
        let frames = batch::frames(objects, |(key, _)| key.len() + 16);
        batch::send_all(frames, |frame| self.reserve_frame(frame)).await
    }

    async fn reserve_frame(&self, objects: Vec<(String, u64)>) -> Vec<Result<Reserved, ClientError>> {
        let items = objects.iter().map(|(key, len_bytes)| ReserveItem {
            key: key.clone(),
            len_bytes: *len_bytes,
        });
        let request = Request::Reserve(ReserveRequest {
            namespace: self.attempt.namespace.to_string(),
            put_id: self.attempt.put_id,
            items: items.collect(),
            options: WireOptions {
                node: self.attempt.options.node,
                ttl_ms: self.attempt.options.ttl_ms,
                pin: self.attempt.options.pin,
                replicas: self.attempt.options.replicas,
                replace: self.attempt.options.replace,
            },
        });
        let answer = self
            .core
            .service
            .call(request, self.attempt.deadline, reply!(Reserve))
            .await;
        let answer =
            answer.and_then(|answer| check_count("reserve", objects.len(), answer.items.len()).map(|()| answer));
        match answer {
            Ok(answer) => {
                let reserved = reserved(answer);
                self.hold(
                    objects
                        .iter()
                        .zip(&reserved)
                        .filter_map(|((key, _), one)| Some((key, one.as_ref().ok()?))),
                );
                reserved
            }
            Err(error) => vec![Err(error); objects.len()],
        }
    }

    fn hold<'a>(&self, objects: impl Iterator<Item = (&'a String, &'a Reserved)>) {
        let items = objects.map(|(key, reserved)| {
            let item = AbortItem {
                key: key.clone(),
                holders: reserved.holders(),
            };
            (key.clone(), item)
        });
        self.held.lock().extend(items);
    }

    /// From now on the fate of this object's reservations is their holders': they are about to be committed; all but those of these
    /// holders, which are of no use.
    pub(crate) fn release_but<'a>(&self, key: &str, holders: impl Iterator<Item = &'a NodeId>) {
        let holders: Vec<NodeId> = holders.copied().collect();
        let mut held = self.held.lock();
        match held.get_mut(key) {
            Some(item) if !holders.is_empty() => item.holders = holders,
            _ => drop(held.remove(key)),
        }
    }

    fn take(&self) -> Vec<AbortItem> {
        std::mem::take(&mut *self.held.lock()).into_values().collect()
    }

    /// Gives back what is held, in what is left of the attempt's time; what fails then, the holder ends by itself when its time to live is over.
    pub(crate) async fn abort(&self) {
        let deadline = within(self.attempt.deadline, ABORT_TIMEOUT_MS);
        abort(&self.core, &self.attempt, self.take(), deadline).await;
    }
}

impl Drop for Reservations {
    fn drop(&mut self) {
        let items = self.take();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if items.is_empty() {
            return;
        }
        let (core, attempt) = (Arc::clone(&self.core), self.attempt.clone());
        runtime.spawn(async move {
            let deadline = Instant::now() + Duration::from_millis(ABORT_TIMEOUT_MS);
            abort(&core, &attempt, items, deadline).await;
        });
    }
}

async fn abort(core: &Core, attempt: &Attempt, items: Vec<AbortItem>, deadline: Instant) {
    for items in batch::frames(items, |item| item.key.len() + 16 * item.holders.len() + 16) {
        let request = Request::Abort(AbortRequest {
            namespace: attempt.namespace.to_string(),
            put_id: attempt.put_id,
            items,
        });
        if let Err(error) = core.service.call(request, deadline, reply!(Abort)).await {
            let put_id = attempt.put_id;
            tracing::debug!(%put_id, %error, "reservations were not given back; they end by themselves");
        }
    }
}

fn reserved(answer: ReserveReply) -> Vec<Result<Reserved, ClientError>> {
    let nodes: HashMap<NodeId, NodeRef> = answer.nodes.into_iter().map(|node| (node.node, node)).collect();
    let regions = |reservation: tenon_protocol::message::Reservation| {
        let region = |region: tenon_protocol::message::ReservedRegion| {
            let node = nodes.get(&region.holder).cloned().ok_or_else(|| {
                ClientError::protocol(format!(
                    "the reply to reserve does not say how to reach node {}",
                    region.holder
                ))
            })?;
            let write_key = RemoteKey(region.write_key);
            Ok(Region { node, write_key })
        };
        let regions: Vec<Region> = reservation
            .replicas
            .into_iter()
            .map(region)
            .collect::<Result<_, ClientError>>()?;
        if regions.is_empty() {
            return Err(ClientError::protocol("the reply to reserve names no region"));
        }
        Ok(Reserved { regions })
    };
    answer
        .items
        .into_iter()
        .map(|item| item.map_err(ClientError::from).and_then(regions))
        .collect()
}

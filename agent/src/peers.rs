//! The other members: one control link and one heartbeat link to each, and what is known of their reachability.
//!
//! Heartbeats have a task and a connection of their own, so that neither data nor a slow call delays them. A peer that
//! does not answer costs the callers
//! that are waiting for it the rest of its bound, once; from then on every call says `unavailable` at once until a
//! probe succeeds.

use crate::alarms::{self, Silence};
use crate::clock;
use crate::refusals;
use crate::rooms::Rooms;
use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tenon_protocol::codec;
use tenon_protocol::error::{ErrorCode, ServiceError};
use tenon_protocol::ids::{Incarnation, NodeId};
use tenon_protocol::member::{Heartbeat, MemberReply, MemberRequest};
use tenon_protocol::message::{Alarm, NodeInfo, NodeState, Reply, Request};
use tenon_store_core::directory::Event;
use tenon_store_core::membership::{Life, ProbeFailure, ProbeTiming, Reachability};
use tenon_store_core::time::Time;
use tenon_transport::PeerId;
use tenon_transport::link::{Authenticator, Endpoint, Identity, Link, LinkError};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How this node dials.
#[derive(Clone)]
pub(crate) struct Dialler {
    /// Who we are.
    pub identity: Arc<Identity>,
    /// What people call the cluster.
    pub cluster_name: Arc<str>,
    /// How we prove it.
    pub auth: Arc<dyn Authenticator>,
}

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialler")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// A link that is dialled when it is needed.
type LinkSlot = tokio::sync::Mutex<Option<Arc<Link>>>;

/// How often a peer's probes are looked at. Well below the shortest back-off.
const PROBE_TICK: Duration = Duration::from_millis(20);

/// A control link over which a call was not answered, nor anything else, for so long is dialled again.
const CONTROL_SILENCE_MAX: Duration = Duration::from_millis(800);

/// Called with what is learned of members, for the directory.
pub(crate) type OnNews = Arc<dyn Fn(Event) + Send + Sync>;

/// One other member.
pub(crate) struct Peer {
    node: NodeId,
    endpoint: Endpoint,
    dialler: Dialler,
    unreachable_after: Duration,
    reach: Mutex<Reachability>,
    state: watch::Sender<NodeState>,
    refusal: Mutex<Option<String>>,
    heard: Mutex<Option<Heartbeat>>,
    control: LinkSlot,
    heartbeat: LinkSlot,
    probe_now: Notify,
    /// It has called us while it was not thought to be alive.
    called: Notify,
    on_news: OnNews,
    rooms: Arc<Rooms>,
    silence: Arc<Silence>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("node", &self.node)
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Peer {
    fn unavailable(&self, doing: &str) -> ServiceError {
        match &*self.refusal.lock() {
            Some(reason) => ServiceError::unavailable(self.node, &format!("{doing}; it is refused: {reason}")),
            None => ServiceError::unavailable(self.node, doing),
        }
    }

    /// One call over the control link. Ends at once when the peer becomes unreachable.
    async fn call(&self, request: MemberRequest, deadline: Instant, doing: &str) -> Result<MemberReply, ServiceError> {
        let mut state = self.state.subscribe();
        if !may_ask(*state.borrow_and_update()) {
            return Err(self.unavailable(doing));
        }
        let request = Request::Member(request);
        tokio::select! {
            reply = self.exchange(&request, deadline, doing) => reply,
            _ = state.wait_for(|state| !may_ask(*state)) => Err(self.unavailable(doing)),
        }
    }

    async fn exchange(&self, request: &Request, deadline: Instant, doing: &str) -> Result<MemberReply, ServiceError> {
        let asked_at = Instant::now();
        match self.answer_on(&self.control, request, deadline).await {
            Ok(Reply::Member(reply)) => Ok(reply),
            Ok(Reply::Failed(error)) => Err(error),
            Ok(_) => Err(other_answer()),
            Err(error @ (LinkError::TooLarge { .. } | LinkError::Protocol { .. })) => {
                Err(ServiceError::new(ErrorCode::Internal, error.to_string()))
            }
            Err(LinkError::Deadline { .. }) => {
                self.hang_up_if_silent(asked_at);
                Err(self.unavailable(doing))
            }
            Err(error) => {
                self.link_failed(&error);
                Err(self.unavailable(doing))
            }
        }
    }

    async fn answer_on(&self, slot: &LinkSlot, request: &Request, deadline: Instant) -> Result<Reply, LinkError> {
        let protocol = |error: codec::CodecError| LinkError::Protocol {
            reason: error.to_string(),
        };
        let bytes = codec::encode(request).map_err(protocol)?;
        let link = self.link(slot, deadline).await?;
        let answer = link.call(bytes.into(), deadline).await?;
        codec::decode::<Reply>(&answer).map_err(protocol)
    }

    /// The link in `slot`, dialled if there is none. Whoever comes while it is being dialled waits for the same
    /// attempt.
    async fn link(&self, slot: &LinkSlot, deadline: Instant) -> Result<Arc<Link>, LinkError> {
        let mut slot = slot.lock().await;
        if let Some(link) = slot.as_ref().filter(|link| !link.is_closed()) {
            return Ok(Arc::clone(link));
        }
        *slot = None;
        let deadline = deadline.min(Instant::now() + self.unreachable_after);
        let expect = Some(PeerId(self.node.to_bytes()));
        let link = Link::dial(
            &self.endpoint,
            &self.dialler.identity,
            &*self.dialler.auth,
            expect,
            deadline,
        )
        .await?;
        *slot = Some(Arc::clone(&link));
        self.met(Incarnation(link.remote().incarnation));
        Ok(link)
    }

    /// What a failed exchange says of the peer.
    fn link_failed(&self, error: &LinkError) -> ProbeFailure {
        let refused = matches!(
            error,
            LinkError::Refused { .. }
                | LinkError::Version { .. }
                | LinkError::WrongCluster { .. }
                | LinkError::WrongPeer { .. }
                | LinkError::Unauthenticated { .. }
                | LinkError::BadMagic { .. }
        );
        let reason = refusals::told(error, &self.dialler.cluster_name);
        if !refused {
            self.reach.lock().link_broke(clock::now());
            self.probe_now.notify_one();
            return ProbeFailure::Broken;
        }
        if self.refusal.lock().as_ref() != Some(&reason) {
            tracing::warn!(node = %self.node, endpoint = %self.endpoint, reason, "member refuses us or is not who it should be");
            *self.refusal.lock() = Some(reason);
        }
        ProbeFailure::Refused
    }

    /// It lives. Whether it is to be asked the next probe says.
    fn met(&self, incarnation: Incarnation) {
        let life = self.reach.lock().seen(clock::now(), incarnation);
        self.note(life, incarnation);
        self.probe_now.notify_one();
    }

    /// It has answered a probe.
    fn alive(&self, heartbeat: Heartbeat, asked_at: Time) {
        let incarnation = heartbeat.incarnation;
        let life = self.reach.lock().answered(clock::now(), incarnation);
        self.note(life, incarnation);
        self.publish();
        if !matches!(life, Life::Stale { .. }) {
            *self.refusal.lock() = None;
            self.hear(heartbeat, Some(asked_at));
        }
    }

    fn note(&self, life: Life, incarnation: Incarnation) {
        let node = self.node;
        match life {
            Life::Same => {}
            Life::New { previous } => {
                tracing::info!(%node, %incarnation, ?previous, "member seen in a new life");
                (self.on_news)(Event::Life { node, incarnation });
            }
            Life::Stale { known } => {
                tracing::warn!(%node, %incarnation, %known, "an answer of an earlier life is not believed")
            }
        }
    }

    fn hear(&self, heartbeat: Heartbeat, asked_at: Option<Time>) {
        self.rooms.hear(self.node, &heartbeat.hint);
        (self.on_news)(Event::Heard {
            node: self.node,
            incarnation: heartbeat.incarnation,
            untold_keys: heartbeat.untold_keys,
            asked_at,
        });
        *self.heard.lock() = Some(heartbeat);
    }

    fn publish(&self) {
        let state = self.reach.lock().state();
        if self
            .state
            .send_if_modified(|known| std::mem::replace(known, state) != state)
        {
            tracing::info!(node = %self.node, ?state, "member changed its state");
            self.rooms.set_usable(self.node, may_ask(state));
            match state {
                NodeState::Unreachable => self.hang_up(),
                NodeState::Alive | NodeState::Refused => self.silence.answered(self.node),
                NodeState::Unknown => {}
            }
            self.tell_if_lost(state);
        }
    }

    fn tell_if_lost(&self, state: NodeState) {
        if state == NodeState::Unreachable {
            self.silence.fell_silent(self.node);
            (self.on_news)(Event::Lost { node: self.node });
        }
    }

    /// Closes the control link if nothing has come over it for long, though something was asked. Heartbeats travel apart
    /// and may go on.
    fn hang_up_if_silent(&self, since: Instant) {
        let is_long = since.elapsed() >= CONTROL_SILENCE_MAX;
        if let Ok(slot) = self.control.try_lock()
            && let Some(link) = slot.as_ref().filter(|link| is_long && link.is_silent_since(since))
        {
            tracing::warn!(node = %self.node, "a control link is silent and is dialled again");
            link.close();
        }
    }

    /// Closes the control link. After a cut it may carry again only long after a new one would: what was sent into the
    /// cut is sent again at ever longer intervals, and what comes later waits for it.
    fn hang_up(&self) {
        // Whoever has the lock is dialling: there is none.
        if let Ok(mut slot) = self.control.try_lock()
            && let Some(link) = slot.take()
        {
            link.close();
        }
    }

    /// Sends heartbeats for ever, and probes with back-off while the peer does not answer.
    async fn beat(self: Arc<Self>, own: impl Fn(NodeId) -> Heartbeat) {
        let mut probe = OptionFuture::default();
        loop {
            tokio::select! {
                biased;
                Some(()) = &mut probe => probe = OptionFuture::default(),
                () = self.called.notified() => self.reach.lock().probe_given_up(clock::now()),
                () = self.probe_now.notified() => {}
                () = tokio::time::sleep(PROBE_TICK) => {}
            }
            if self.reach.lock().tick(clock::now()) {
                // One that is under way still is dropped.
                let next = Arc::clone(&self).probe(own(self.node));
                probe = OptionFuture::from(Some(next.boxed()));
            }
            self.publish();
        }
    }

    async fn probe(self: Arc<Self>, own: Heartbeat) {
        let request = Request::Member(MemberRequest::Heartbeat(own));
        let (asked_at, deadline) = (clock::now(), Instant::now() + self.unreachable_after);
        let had_link = self.heartbeat.lock().await.is_some();
        let mut answer = self.answer_on(&self.heartbeat, &request, deadline).await;
        if had_link && matches!(answer, Err(LinkError::Closed { .. })) {
            // That an old link has broken says that it was closed; whether the member is there a new one tells.
            answer = self.answer_on(&self.heartbeat, &request, deadline).await;
        }
        let failure = match answer {
            Ok(Reply::Member(MemberReply::Heartbeat(heartbeat))) => {
                self.alive(*heartbeat, asked_at);
                return;
            }
            Ok(_) | Err(LinkError::Deadline { .. }) => {
                // For the reason of `hang_up`.
                *self.heartbeat.lock().await = None;
                ProbeFailure::Silent
            }
            Err(error) => self.link_failed(&error),
        };
        let state = {
            let mut reach = self.reach.lock();
            reach.probe_failed(clock::now(), failure);
            reach.state()
        };
        self.tell_if_lost(state);
    }

    fn info(&self) -> NodeInfo {
        let heard = self.heard.lock().clone();
        NodeInfo {
            node: self.node,
            incarnation: self.reach.lock().incarnation(),
            endpoint: self.endpoint.to_string(),
            state: *self.state.borrow(),
            is_self: false,
            is_draining: heard.as_ref().is_some_and(|heard| heard.is_draining),
            version: heard.as_ref().map(|heard| heard.version.clone()),
            space: heard.map(|heard| heard.space),
        }
    }
}

fn may_ask(state: NodeState) -> bool {
    matches!(state, NodeState::Alive | NodeState::Unknown)
}

/// All other members of the view.
#[derive(Debug)]
pub(crate) struct Peers {
    members: BTreeMap<NodeId, Arc<Peer>>,
    silence: Arc<Silence>,
}

impl Peers {
    /// Knows `members` (this node not among them), none of them tried yet.
    pub(crate) fn new(
        members: Vec<(NodeId, Endpoint)>,
        dialler: &Dialler,
        timing: ProbeTiming,
        on_news: &OnNews,
        rooms: &Arc<Rooms>,
    ) -> Self {
        let silence = Arc::new(Silence::new(members.len() + 1));
        let peer = |(node, endpoint)| {
            let peer = Peer {
                node,
                endpoint,
                dialler: dialler.clone(),
                unreachable_after: Duration::from_millis(timing.unreachable_after_ms),
                reach: Mutex::new(Reachability::new(timing)),
                state: watch::Sender::new(NodeState::Unknown),
                refusal: Mutex::default(),
                heard: Mutex::default(),
                control: tokio::sync::Mutex::default(),
                heartbeat: tokio::sync::Mutex::default(),
                probe_now: Notify::new(),
                called: Notify::new(),
                on_news: Arc::clone(on_news),
                rooms: Arc::clone(rooms),
                silence: Arc::clone(&silence),
            };
            (node, Arc::new(peer))
        };
        Self {
            members: members.into_iter().map(peer).collect(),
            silence,
        }
    }

    /// Starts the heartbeats; they end with the runtime.
    pub(crate) fn start(&self, own: impl Fn(NodeId) -> Heartbeat + Clone + Send + 'static) {
        for peer in self.members.values() {
            tokio::spawn(Arc::clone(peer).beat(own.clone()));
        }
    }

    /// One call to a member.
    pub(crate) async fn call(
        &self,
        node: NodeId,
        request: MemberRequest,
        deadline: Instant,
        doing: &str,
    ) -> Result<MemberReply, ServiceError> {
        match self.members.get(&node) {
            Some(peer) => peer.call(request, deadline, doing).await,
            None => Err(ServiceError::new(
                ErrorCode::UnknownNode,
                format!("{node} is no other member of the view"),
            )),
        }
    }

    /// A member's own heartbeat has arrived: it lives. If it was thought not to answer, it is probed at once.
    pub(crate) fn heard(&self, node: NodeId, heartbeat: Heartbeat) {
        let Some(peer) = self.members.get(&node) else { return };
        let (life, state) = {
            let mut reach = peer.reach.lock();
            (reach.seen(clock::now(), heartbeat.incarnation), reach.state())
        };
        peer.note(life, heartbeat.incarnation);
        if matches!(life, Life::Stale { .. }) {
            return;
        }
        if state != NodeState::Alive || matches!(life, Life::New { .. }) {
            // What is on its way to it may have been sent when it was not there.
            peer.called.notify_one();
            peer.probe_now.notify_one();
        }
        peer.hear(heartbeat, None);
    }

    /// A member was turned away at our door. What it says of us when we dial it stands.
    pub(crate) fn refused(&self, node: NodeId, reason: String) {
        if let Some(peer) = self.members.get(&node) {
            peer.refusal.lock().get_or_insert(reason);
            peer.reach.lock().probe_failed(clock::now(), ProbeFailure::Refused);
            peer.publish();
        }
    }

    /// Whether a call to the member is worth trying.
    pub(crate) fn is_reachable(&self, node: NodeId) -> bool {
        self.members
            .get(&node)
            .is_some_and(|peer| may_ask(*peer.state.borrow()))
    }

    /// Whether the member refuses this node, or this node it.
    pub(crate) fn is_refused(&self, node: NodeId) -> bool {
        self.members
            .get(&node)
            .is_some_and(|peer| *peer.state.borrow() == NodeState::Refused)
    }

    /// The last life the member was seen in.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.members.get(&node)?.reach.lock().incarnation()
    }

    /// Where the member's link listens.
    pub(crate) fn endpoint(&self, node: NodeId) -> Option<&Endpoint> {
        self.members.get(&node).map(|peer| &peer.endpoint)
    }

    /// The members' ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.members.keys().copied()
    }

    /// What is known of each.
    pub(crate) fn infos(&self) -> impl Iterator<Item = NodeInfo> {
        self.members.values().map(|peer| peer.info())
    }

    /// The members that refuse us or are refused, with the reason.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (NodeId, String)> {
        self.members.values().filter_map(|peer| {
            let reason = peer.refusal.lock().clone()?;
            Some((peer.node, format!("member {} is refused: {reason}", peer.node)))
        })
    }

    /// What an operator should look at.
    pub(crate) fn alarms(&self) -> Vec<Alarm> {
        let refused = self.refusals().map(|(node, message)| alarms::refused(node, message));
        self.silence.alarm().into_iter().chain(refused).collect()
    }
}

/// What is said of an answer that is none to the question.
pub(crate) fn other_answer() -> ServiceError {
    ServiceError::new(
        ErrorCode::Internal,
        "a member answered another question than it was asked",
    )
}
